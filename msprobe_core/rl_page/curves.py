"""Measures of a run over its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msprobe_core.rl.files import RLStage
from msprobe_core.rl.outcome import Outcome
from msprobe_core.rl.recorded import RecordedRun
from msprobe_core.rl.runs import is_result
from msprobe_core.rl_page.sightings import Examined
from msprobe_core.view.data import Number, RLCurve, number

MOST_METRICS = 60

_GROUPS: Mapping[str, Sequence[str]] = {
    "difference": ("mean_abs", "rms", "p99", "max"), "bias": ("mean",), "kl": ("kl", "k3"), "chi2": ("chi2",),
    "perplexity": ("ppl_ratio",), "weights": ("mean_ratio", "ratio_p99", "ratio_max"),
    "effective": ("effective_share",), "clipped": ("clipped_low", "clipped_high"), "probability": ("pearson",),
}  # fmt: skip
"""Measures of `LogProbMeasures` that are drawn together."""

_SCORES = {"rms": "root mean square", "max": "largest", "mean": "mean"}
"""Measures with a limit, and their names among the scores."""


def curves_of(
    run: RecordedRun, golden: RecordedRun | None, steps: Sequence[int], log_probs: Sequence[Outcome | None],
    found: Examined,
) -> Iterator[RLCurve]:  # fmt: skip
    """Yield all curves.

    Args:
        run: The run.
        golden: The trusted one.
        steps: The steps of the page.
        log_probs: Comparison of the log-probs of each of the two, as far as there is one.
        found: What was found in the run.

    Raises:
        DumpError: a batch cannot be read.
    """
    target, other = ([_measures(each, step) for step in steps] for each in log_probs)
    for group, names in _GROUPS.items():
        for name in names:
            own = [number(of_step.get(name)) for of_step in target]
            if any(each is not None for each in own):
                beside = [number(of_step.get(name)) for of_step in other] if log_probs[1] is not None else None
                limit = [number(_limit(of_step, name)) for of_step in target] if name in _SCORES else None
                yield RLCurve(group, name, own, beside, limit)
    for pair, shares in _routing(found.routing).items():
        yield RLCurve("routing", pair, [number(shares.get(step)) for step in steps])
    for hop, wrong in found.hops.items():
        yield RLCurve("hops", hop, [wrong.get(step) for step in steps])
    yield from _metrics(run, golden, steps)


def _measures(outcome: Outcome | None, step: int) -> Mapping[str, Any]:
    return {} if outcome is None else outcome.numbers["steps"].get(str(step), {})


def _routing(outcome: Outcome | None) -> Mapping[str, Mapping[int, float]]:
    """Return the share of tokens with other experts, by the two stages and by step."""
    shares: dict[str, dict[int, float]] = {}
    for pair in () if outcome is None else outcome.numbers["pairs"]:
        name = f"{pair['golden']} \N{RIGHTWARDS ARROW} {pair['target']}"
        shares.setdefault(name, {})[pair["step"]] = pair["share"]
    return shares


def _limit(of_step: Mapping[str, Any], name: str) -> float | None:
    score = of_step.get("scores", {}).get(_SCORES[name])
    if score is None or not score["score"] or not math.isfinite(score["score"]):
        return None
    return score["value"] / score["score"] * score["limit"]


def _metrics(run: RecordedRun, golden: RecordedRun | None, steps: Sequence[int]) -> Iterator[RLCurve]:
    own = _logged(run, steps)
    other = None if golden is None else _logged(golden, steps)
    names = sorted({name for of_step in own for name in of_step if is_result(name)})
    for name in names[:MOST_METRICS]:
        beside = None if other is None else [number(of_step.get(name)) for of_step in other]
        yield RLCurve("metrics", name, [number(of_step.get(name)) for of_step in own], beside)


def _logged(run: RecordedRun, steps: Sequence[int]) -> list[Mapping[str, Any]]:
    recorded = set(run.steps(RLStage.TRAINER.value))
    return [run.batch(step)[0].metrics if step in recorded else {} for step in steps]


def scale_of(outcome: Outcome | None) -> Number:
    """Return the largest difference of a token that rounding explains, over all steps; ``None`` if unknown."""
    steps = () if outcome is None else outcome.numbers["steps"].values()
    return number(max((limit for of_step in steps if (limit := _limit(of_step, "max"))), default=None))
