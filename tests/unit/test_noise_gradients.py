"""Gradients that are rounding noise on both sides, and what is computed from them."""

import numpy as np
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, findings_of

ATTENTION, LINEAR = "Functional.scaled_dot_product_attention.0", "Functional.linear.0"
X = [[1.0, -2.0], [3.0, 4.0]]


def scaled(factor, **fields):
    return tensor([[v * factor for v in row] for row in X], **fields)


def dump(noise, *, dtype="torch.bfloat16", weight=1.0, other=None, downstream=1.0):
    """Return a call whose gradient is ``noise``, and one that computes another from it, and from ``other``."""
    received = [tensor([[noise, -noise / 2], [0.0, noise / 3]], dtype=dtype)]
    received += [] if other is None else [scaled(other, dtype=dtype)]
    further = tensor([[downstream * noise, -downstream * noise], [0.0, 0.0]], dtype=dtype)
    return {
        f"{ATTENTION}.forward": api(
            scaled(weight, dtype=dtype), scaled(1.0, dtype=dtype), output=scaled(1.0, dtype=dtype)
        ),
        f"{LINEAR}.forward": api(scaled(1.0, dtype=dtype), output=scaled(1.0, dtype=dtype)),
        f"{ATTENTION}.backward": {"input": [scaled(1.0, dtype=dtype)], "output": received[:1]},
        f"{LINEAR}.backward": {"input": received, "output": [further]},
    }


@pytest.fixture
def verdicts(tmp_path):
    def verdicts(target, golden):
        sides = [write_dump(tmp_path / side, data) for side, data in (("target", target), ("golden", golden))]
        rows = compare_dumps(*sides).units[0].rows
        return {
            name.removeprefix("Functional."): (verdict, [each.code for each in findings_of(cell)])
            for name, verdict, cell in rows.select("name_target", "verdict", FINDINGS).rows()
        }

    return verdicts


GOLDEN = {"dtype": "torch.float32"}
SEED, CONSEQUENCE = "scaled_dot_product_attention.0.backward.output.0", "linear.0.backward.output.0"


@pytest.mark.parametrize("noise", [0.0, 3e-8, 1e-3])
def test_noise_on_both_sides_and_its_effects(verdicts, noise):
    found = verdicts(dump(noise), dump(2e-8, **GOLDEN))
    for row in (SEED, "linear.0.backward.input.0", CONSEQUENCE):
        assert found[row][0] == "pass", row
        assert RowCode.VANISHING in found[row][1]


def test_what_is_larger_than_the_roundings_of_the_target_counts(verdicts):
    assert verdicts(dump(1.0), dump(2e-8, **GOLDEN))[SEED][0] == "error"
    found = verdicts(dump(3e-8, downstream=1e9), dump(2e-8, **GOLDEN))
    assert (found[SEED][0], found[CONSEQUENCE][0]) == ("pass", "error")


def test_what_is_small_because_a_weight_is_counts(verdicts):
    assert verdicts(dump(0.0, weight=1e-7), dump(2e-8, weight=1e-7, **GOLDEN))[SEED][0] == "error"
    assert verdicts(dump(0.0, weight=1e7), dump(2e-8, weight=1e7, **GOLDEN))[SEED][0] == "error"


def test_what_the_golden_run_can_tell_from_noise_counts(verdicts):
    assert verdicts(dump(0.0), dump(2e-5, **GOLDEN))[SEED][0] == "error"


def test_a_coarse_golden_run_cannot_tell(verdicts):
    assert verdicts(dump(0.0), dump(2e-8))[SEED][0] == "error"


def test_what_is_computed_from_more_than_noise_counts(verdicts):
    alone = verdicts(dump(3e-8, downstream=1e4), dump(2e-8, downstream=1e4, **GOLDEN))
    assert (alone[SEED][0], alone[CONSEQUENCE][0]) == ("pass", "pass")
    found = verdicts(dump(3e-8, downstream=1e4, other=1.0), dump(2e-8, downstream=1e4, other=1.0, **GOLDEN))
    assert (found[SEED][0], found[CONSEQUENCE][0]) == ("pass", "error")


# --- vectors ----------------------------------------------------------------------------------------------------


def biased(bias, *, num_terms, dtype="torch.float32"):
    received = tensor([[1.0, -1.0]] * num_terms, dtype=dtype)
    return {
        "Module.m.Linear.backward.0": {"input": [received], "output": [received]},
        "Module.m.Linear.parameters_grad.0": {"bias": [tensor([bias, -bias / 3], dtype=dtype)]},
    }


@pytest.mark.parametrize(
    ("num_terms", "dtype", "noise", "expected"),
    [
        (4, "torch.float32", 8e-6, "error"),  # 50 unit round-offs of what it is the sum of
        (4096, "torch.float32", 1e-4, "pass"),  # 19, of a sum of more terms
        (4096, "torch.float32", 8e-3, "error"),
        (4096, "torch.bfloat16", 20.0, "error"),  # 40 of bfloat16's: a lost gradient, not a rounding
    ],
)
def test_sums_of_many_terms_may_be_further_from_zero(verdicts, num_terms, dtype, noise, expected):
    target, golden = (biased(each, num_terms=num_terms, dtype=dtype) for each in (noise / 2, noise))
    found = verdicts(target, golden)["Module.m.Linear.parameters_grad.0.bias"]
    assert found[0] == expected
    assert (RowCode.VANISHING in found[1]) == (expected == "pass")


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [(0.06, 0.03, "pass"), (0.09, 0.045, "pass"), (0.11, 0.045, "error"), (0.03, 0.06, "error")],
)
def test_roundings_of_the_target_may_be_twice_as_large(verdicts, target, golden, expected):
    """Shares of what the gradient is the sum of; 0.05 is negligible in bfloat16."""
    norm = (2 * 4096) ** 0.5 / (1 + 1 / 9) ** 0.5
    sides = [biased(each * norm, num_terms=4096, dtype="torch.bfloat16") for each in (target, golden)]
    assert verdicts(*sides)["Module.m.Linear.parameters_grad.0.bias"][0] == expected


@pytest.mark.parametrize(
    ("dtype", "expected"), [("torch.float32", "error"), ("torch.float16", "pass"), ("torch.bfloat16", "pass")]
)
def test_a_sum_is_as_fine_as_its_terms(verdicts, dtype, expected):
    """In an autocast context, the gradient of a bias in float32 is the sum of gradients in float16."""

    def mixed(noise):
        data = biased(noise, num_terms=64)
        data["Module.m.Linear.backward.0"]["input"] = [tensor([[1.0, -1.0]] * 64, dtype=dtype)]
        return data

    assert verdicts(mixed(2e-3), mixed(4e-3))["Module.m.Linear.parameters_grad.0.bias"][0] == expected


# --- what was broadcast -----------------------------------------------------------------------------------------


CANCELLED, FURTHER = "Tensor.__sub__.0.backward.output.1", "Tensor.max.0.backward.output.0"


def softmax_of(noise, *, call="Tensor.__sub__.0", shape=(4, 1), passed_on=1.0):
    """Return backwards of a subtraction of the largest logit, whose gradient a softmax cancels, and of its maximum."""
    received = tensor([[1e-2, -1e-2]] * 4)
    cancelled = tensor((noise * np.arange(1.0, 5.0)).reshape(shape))
    further = tensor([[passed_on * noise * row, 0.0] for row in range(1, 5)])
    return {
        f"{call}.backward": {"input": [received], "output": [received, cancelled]},
        "Tensor.max.0.backward": {"input": [cancelled], "output": [further]},
    }


def test_a_gradient_of_what_was_broadcast_may_be_nothing_but_roundings(verdicts):
    found = verdicts(softmax_of(3e-10), softmax_of(1e-10))
    for row in (
        "Tensor.__sub__.0.backward.output.1",
        "Tensor.max.0.backward.input.0",
        "Tensor.max.0.backward.output.0",
    ):
        assert found[row] == ("pass", [RowCode.VANISHING]), row


@pytest.mark.parametrize(
    "changed", [{"call": "Tensor.__mul__.0"}, {"shape": (1, 4)}], ids=["of a factor", "of another shape"]
)
def test_other_gradients_of_the_same_size_count(verdicts, changed):
    found = verdicts(softmax_of(3e-10, **changed), softmax_of(1e-10, **changed))
    assert found[CANCELLED.replace("Tensor.__sub__.0", changed.get("call", "Tensor.__sub__.0"))][0] == "error"


def test_what_was_broadcast_counts_if_it_or_what_follows_is_larger(verdicts):
    assert verdicts(softmax_of(3e-6), softmax_of(1e-6))[CANCELLED][0] == "error"
    found = verdicts(softmax_of(3e-10, passed_on=1e6), softmax_of(1e-10))
    assert (found[CANCELLED][0], found[FURTHER][0]) == ("pass", "error")
