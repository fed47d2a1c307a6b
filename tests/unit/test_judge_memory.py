"""How much memory judging a large output takes, beyond the replays that it is judged by; slices change no verdict."""

import tracemalloc

import numpy as np
import pytest

from msprobe_core.api_check.call_check import _bias
from msprobe_core.model import ReplayTensor
from msprobe_core.replay import norms
from msprobe_core.replay.judge import judge_of, judge_outputs
from msprobe_core.replay.replays import Replays


def replays_of(exact, recorded, num_disturbed):
    random = np.random.default_rng(1)
    return Replays(
        oracle={"output": ReplayTensor(values=exact, dtype="float64")},
        own={"output": ReplayTensor(values=recorded.copy(), dtype="float32")},
        disturbed=[
            {"output": ReplayTensor(values=exact * (1 + 6e-8 * random.normal(size=exact.shape)), dtype="float64")}
            for _ in range(num_disturbed)
        ],
        roundoff=2.0**-24,
        num_summed=1,
    )


@pytest.mark.parametrize("num_disturbed", [0, 1, 4])
def test_it_is_less_than_the_output(num_disturbed):
    """The output is of float32; one copy of it in float64 would be twice as large."""
    exact = np.random.default_rng(0).normal(size=(1024, 2048))
    recorded = exact.astype(np.float32)
    replays = replays_of(exact, recorded, num_disturbed)
    outputs = {"output": ReplayTensor(values=recorded, dtype="float32")}
    judge_outputs(outputs, replays)
    tracemalloc.start()
    try:
        judge_outputs(outputs, replays)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < recorded.nbytes


@pytest.mark.parametrize("num_disturbed", [0, 2])
@pytest.mark.parametrize("change", [{}, {77: 3.0}, {3: np.nan, 99: np.inf}, {50: np.nan, 98: -9.0}], ids=str)
def test_slices_change_no_verdict(change, num_disturbed, monkeypatch):
    exact = np.random.default_rng(0).normal(size=(10, 10))
    exact.flat[[3, 40]] = np.nan
    recorded = exact.astype(np.float32)
    replays = replays_of(exact, recorded, num_disturbed)
    for place, value in change.items():
        recorded.flat[place] = value
    output = ReplayTensor(values=recorded, dtype="float32")
    whole = judge_of("output", output, replays)
    bias = _bias(output, exact)
    monkeypatch.setattr(norms, "_LENGTH", 7)
    parts = judge_of("output", output, replays)
    assert whole.judgement.worst == parts.judgement.worst
    assert (whole.judgement.held, whole.judgement.reason.code) == (parts.judgement.held, parts.judgement.reason.code)
    for name in ("error", "own_error", "rounding", "last_digit", "condition", "element", "amplification", "scale"):
        assert getattr(parts.judgement, name) == pytest.approx(getattr(whole.judgement, name), rel=1e-12), name
    assert parts.limits.absolute == pytest.approx(whole.limits.absolute, rel=1e-12)
    assert parts.limits.relative == pytest.approx(whole.limits.relative, rel=1e-12)
    assert _bias(output, exact) == pytest.approx(bias, rel=1e-9)
    for factor in (0.0, 1.0, 1 + 1e-7, 1.01):
        with np.errstate(invalid="ignore"):
            changed = recorded * np.float32(factor)
        assert parts.accepts(changed) == whole.accepts(changed)
