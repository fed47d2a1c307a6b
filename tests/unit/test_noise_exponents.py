"""Exponentials of large arguments: the round-off of an argument is a relative error of the result."""

import numpy as np
import pytest

from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.judge.rounding_rules import RoundingRule, without
from tests.support.dumps import api, tensor, write_dump

LENGTH = 64


def run(directory, *, order, is_masked=True, times=1.0):
    """Write a step that computes decays as linear attention does, with sums of logarithms in another order."""
    rng = np.random.default_rng(0)
    single = np.float32
    gates = -rng.uniform(0, 0.01, (4, LENGTH)).astype(single)
    gates[:, 0] = -80
    sums = order(gates)
    spread = np.repeat(sums[:, None, :], LENGTH, axis=1)
    above = np.triu(np.ones((LENGTH, LENGTH), bool), 1)
    masked = np.where(above, single(-np.inf), spread) if is_masked else spread
    decay = np.exp(masked) * single(times)
    data = {
        "Tensor.cumsum.0.forward": api(tensor(gates), output=tensor(sums)),
        "Tensor.repeat.0.forward": api(tensor(sums), output=tensor(spread)),
        "Tensor.masked_fill.0.forward": api(tensor(spread), tensor(above), output=tensor(masked)),
        "Tensor.exp.0.forward": api(tensor(masked), output=tensor(decay)),
        "Tensor.view.0.forward": api(tensor(decay), output=tensor(decay)),
    }
    write_dump(directory, data)
    return directory


def one_by_one(gates):
    return np.cumsum(gates, axis=-1, dtype=np.float32)


def exactly(gates):
    return np.cumsum(gates, axis=-1, dtype=np.float64).astype(np.float32)


def judged(target, golden):
    return compare_dumps(target, golden, options=CompareOptions(noise=NoiseModel())).units[0]


@pytest.mark.parametrize("is_masked", [True, False], ids=["masked", "whole"])
def test_sums_in_another_order_pass_and_a_wrong_decay_does_not(tmp_path, is_masked):
    golden = run(tmp_path / "golden", order=exactly, is_masked=is_masked)
    target = run(tmp_path / "target", order=one_by_one, is_masked=is_masked)
    wrong = run(tmp_path / "wrong", order=one_by_one, is_masked=is_masked, times=1.01)
    assert judged(target, golden).fault is None
    fault = judged(wrong, golden).fault
    assert fault is not None
    assert fault.entry == "Tensor.exp.0.forward"
    with without(RoundingRule.EXPONENTS):
        assert judged(target, golden).fault is not None


def test_small_arguments_change_nothing(tmp_path):
    golden = run(tmp_path / "golden", order=lambda gates: exactly(gates) / np.float32(1e4))
    wrong = run(tmp_path / "wrong", order=lambda gates: exactly(gates) / np.float32(1e4), times=1 + 1e-5)
    fault = judged(wrong, golden).fault
    assert fault is not None
    assert fault.entry == "Tensor.exp.0.forward"
