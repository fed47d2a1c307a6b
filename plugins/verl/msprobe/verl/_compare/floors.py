"""How far two healthy engines may be apart: by the closed form of the core's noise model, or as a baseline measured.

The unit round-off of the coarser dtype, times a growth with the number of calls before the value, times the size of the
value: see `msprobe_core.judge.noise.closed_form`. Limits of scores are the core's too (`LEAST_LIMITS`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msprobe_core.judge.limits import UNIT_ROUNDOFF, Precision, conventional, precision_of
from msprobe_core.judge.noise import ALPHA, Measure, NoiseSource
from msprobe_core.judge.noise.closed_form import CLOSED_NULLS, closed_distance
from msprobe_core.judge.noise.null_distribution import EXTREME_LIMIT, LEAST_LIMITS
from msprobe_core.judge.verdict import Verdict

DEFAULT_DEPTH = 400
"""Calls of modules before the log-probs of a model of 28 layers, where nobody counted them.

So the floor of bfloat16 is ``2**-8 * 0.35 * sqrt(400) = 0.027`` nats, root mean square, for logits of about 1.
Published: 0.03 nats between a trainer and vLLM in bfloat16 on Qwen2.5-0.5B (Fast-LLM, pull request 525); 0.015
healthy, 0.2 with a weight that was not sent (trl, issue 5312).
"""

ENGINES = 4.0
"""Two engines add in other orders: so many times what one rounding per call explains, in float32 and finer formats.

Coarser formats are multiplied in, but summed up in float32, so that the rounding of results is all that counts.
"""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What two healthy engines are apart, root mean square.

    Attributes:
        size: In the unit of the values; 0 where they must be equal to the bit.
        source: Where it comes from.
    """

    size: float
    source: NoiseSource = NoiseSource.CLOSED_FORM


@dataclass(frozen=True, kw_only=True)
class Score:
    """One measure against its floor.

    Attributes:
        measure: What it is, in words.
        value: As measured.
        floor: What healthy engines are apart.
        limit: How many floors are too many.
        source: Of the floor.
    """

    measure: str
    value: float
    floor: float
    limit: float
    source: NoiseSource

    @property
    def score(self) -> float:
        """How many floors the value is; +Inf where the floor is 0 and the value is not."""
        if not math.isfinite(self.value):
            return math.inf
        return self.value / self.floor if self.floor else (math.inf if self.value else 0.0)

    @property
    def is_over(self) -> bool:
        """Whether rounding does not explain it."""
        return self.score > self.limit

    @property
    def verdict(self) -> Verdict:
        """What tables say of it."""
        return Verdict.ERROR if self.is_over else Verdict.PASS


def precision_named(dtype: str) -> Precision:
    """Return the precision of a dtype; float32 for what is no floating-point dtype."""
    found = precision_of(dtype)
    return Precision.FLOAT32 if found is None else found


def log_prob_floor(precision: Precision, size: float, depth: int = DEFAULT_DEPTH) -> Floor:
    """Return the floor of log-probs, in nats.

    The error of logits of about 1, and the rounding of the log-probs themselves, which are float32 or finer.

    Args:
        precision: The coarser of the two engines'.
        size: Root mean square of the log-probs, in nats.
        depth: Calls before them.
    """
    own = UNIT_ROUNDOFF[min(precision, Precision.FLOAT32)] * size
    return Floor(size=math.hypot(module_floor(precision, depth).size, own))


def log_prob_scores(
    floor: Floor, *, rms: float, mean: float, largest: float, num_tokens: int, num_samples: int
) -> list[Score]:
    """Return how differences of log-probs stand to their floor: all of them, their mean, and the largest.

    The mean of independent errors is smaller than they are by the root of their number; tokens of one sample share
    errors, so at least half of what independent samples explain is granted, as the core does for rows of a tensor.
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
        precision: The coarser of the two.
        depth: Calls of modules up to it.
    """
    engines = ENGINES if precision <= Precision.FLOAT32 else 1.0
    return Floor(size=engines * closed_distance(UNIT_ROUNDOFF[precision], depth))


def module_score(error: float, floor: Floor, precision: Precision, num_values: int) -> Score:
    """Return how a module's relative error stands to its floor; no limit is above the conventional one.

    Args:
        error: ``|target - golden| / |golden|``.
        floor: See `module_floor`, or of a baseline.
        precision: The coarser of the two.
        num_values: How many such values are judged at once.
    """
    probability = ALPHA / max(num_values, 1)
    limit = max(CLOSED_NULLS[Measure.REL_L2].limit(probability), LEAST_LIMITS[Measure.REL_L2])
    if floor.size and floor.source is NoiseSource.CLOSED_FORM:
        limit = min(limit, conventional().relative.of(precision) / floor.size)
    return Score(measure="relative", value=error, floor=floor.size, limit=limit, source=floor.source)
