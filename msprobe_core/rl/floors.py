"""Noise floors between two healthy engines: by the closed form of the core's noise model, or from a measured baseline.

A floor is the unit round-off of the coarser dtype, times a growth with the number of preceding calls, times the size of
the value: see `msprobe_core.judge.noise.closed_form`. Limits of scores are the core's too (`LEAST_LIMITS`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msprobe_core.judge.limits import UNIT_ROUNDOFF, Precision, conventional, precision_of
from msprobe_core.judge.noise.closed_form import CLOSED_NULLS, closed_distance
from msprobe_core.judge.noise.measures import Measure
from msprobe_core.judge.noise.model import ALPHA, NoiseSource
from msprobe_core.judge.noise.null_distribution import EXTREME_LIMIT, LEAST_LIMITS
from msprobe_core.judge.verdict import Verdict

DEFAULT_DEPTH = 400
"""Number of module calls before the log-probs in a model of 28 layers, for use when it is not known.

So the floor of bfloat16 is ``2**-8 * 0.35 * sqrt(400) = 0.027`` nats, root mean square, for logits of about 1.
Published: 0.03 nats between a trainer and vLLM in bfloat16 on Qwen2.5-0.5B (Fast-LLM, pull request 525); 0.015
healthy, 0.2 with a weight that was not sent (trl, issue 5312).
"""

ENGINES = 4.0
"""Difference of two engines with other orders of addition, in units of one rounding per call, in float32 and finer.

Coarser formats are multiplied in, but summed up in float32, so that only the rounding of results counts.
"""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Root mean square of the difference between two healthy engines.

    Attributes:
        size: In the unit of the values; 0 if they must be bitwise equal.
        source: Origin of the floor.
    """

    size: float
    source: NoiseSource = NoiseSource.CLOSED_FORM


@dataclass(frozen=True, kw_only=True)
class Score:
    """One measure against its floor.

    Attributes:
        measure: Name of the measure.
        value: Measured value.
        floor: Its size between healthy engines.
        limit: Largest multiple of the floor that passes.
        source: Origin of the floor.
    """

    measure: str
    value: float
    floor: float
    limit: float
    source: NoiseSource

    @property
    def score(self) -> float:
        """The value as a multiple of the floor; +Inf if the floor is 0 and the value is not."""
        if not math.isfinite(self.value):
            return math.inf
        return self.value / self.floor if self.floor else (math.inf if self.value else 0.0)

    @property
    def is_over(self) -> bool:
        """Whether rounding does not explain the value."""
        return self.score > self.limit

    @property
    def verdict(self) -> Verdict:
        """The verdict in tables."""
        return Verdict.ERROR if self.is_over else Verdict.PASS


def precision_named(dtype: str) -> Precision:
    """Return the precision of a dtype; float32 if it is not a floating-point dtype."""
    found = precision_of(dtype)
    return Precision.FLOAT32 if found is None else found


def log_prob_floor(precision: Precision, size: float) -> Floor:
    """Return the floor of log-probs, in nats.

    It consists of the error of logits of about 1 and the rounding of the log-probs, which are float32 or finer.

    Args:
        precision: Precision of the coarser engine.
        size: Root mean square of the log-probs, in nats.
    """
    own = UNIT_ROUNDOFF[min(precision, Precision.FLOAT32)] * size
    return Floor(size=math.hypot(module_floor(precision, DEFAULT_DEPTH).size, own))


def log_prob_scores(
    floor: Floor, *, rms: float, mean: float, largest: float, num_tokens: int, num_samples: int
) -> list[Score]:
    """Return scores of differences of log-probs: of all differences, of their mean, and of the largest.

    The mean of n independent errors is smaller by the square root of n. Since tokens of one sample share errors, the
    floor of the mean is at least half of that of independent samples, as in the core for rows of a tensor.
    """
    of_mean = max(1 / math.sqrt(max(num_tokens, 1)), 0.5 / math.sqrt(max(num_samples, 1)))
    numbers = (
        ("root mean square", rms, floor.size, LEAST_LIMITS[Measure.REL_L2]),
        ("mean", abs(mean), floor.size * of_mean, LEAST_LIMITS[Measure.MEAN]),
        ("largest", largest, floor.size, EXTREME_LIMIT * math.sqrt(math.log(max(num_tokens, 3)) / math.log(1000))),
    )
    return [Score(measure=n, value=v, floor=f, limit=limit, source=floor.source) for n, v, f, limit in numbers]


def module_floor(precision: Precision, depth: int) -> Floor:
    """Return the floor of a module's output between two engines, relative to the output's norm.

    Args:
        precision: The coarser precision of the two.
        depth: Number of module calls up to the output.
    """
    engines = ENGINES if precision <= Precision.FLOAT32 else 1.0
    return Floor(size=engines * closed_distance(UNIT_ROUNDOFF[precision], depth))


def module_score(error: float, floor: Floor, precision: Precision, num_values: int) -> Score:
    """Return the score of a module's relative error; no limit exceeds the conventional one.

    Args:
        error: ``|target - golden| / |golden|``.
        floor: From `module_floor` or a baseline.
        precision: The coarser precision of the two.
        num_values: Number of such values that are judged together.
    """
    probability = ALPHA / max(num_values, 1)
    limit = max(CLOSED_NULLS[Measure.REL_L2].limit(probability), LEAST_LIMITS[Measure.REL_L2])
    if floor.size and floor.source is NoiseSource.CLOSED_FORM:
        limit = min(limit, conventional().relative.of(precision) / floor.size)
    return Score(measure="relative", value=error, floor=floor.size, limit=limit, source=floor.source)
