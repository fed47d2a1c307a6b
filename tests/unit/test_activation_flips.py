"""Round-off before a rectifier changes which elements of a gradient pass through it."""

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.activation_flips import FACTOR
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, findings_of

RANDOM = np.random.default_rng(0)
ACTIVATION = RANDOM.normal(size=(64, 64))
NOISE = RANDOM.normal(size=(64, 64))
GRADIENT = RANDOM.normal(size=(64, 64)) * RANDOM.lognormal(size=(64, 64))
FORWARD, BACKWARD, DOWNSTREAM = (
    "Functional.relu.0.forward",
    "Functional.relu.0.backward",
    "Functional.linear.0.backward",
)


def dump(e=0.0, *, before=1.0, downstream=1.0, api_name="relu", dtype="torch.bfloat16"):
    """Return one side: a rectifier whose input is off by ``e``, and the backward of it and of a layer before."""
    given = ACTIVATION + e * NOISE
    through = GRADIENT * (given > 0)
    entries = [entry.replace("relu", api_name) for entry in (FORWARD, BACKWARD, DOWNSTREAM)]
    return {
        "Functional.mse_loss.0.forward": api(tensor(given, dtype=dtype), output=tensor(given, dtype=dtype)),
        entries[0]: api(tensor(given, dtype=dtype), output=tensor(np.maximum(given, 0), dtype=dtype)),
        "Functional.mse_loss.0.backward": {"input": [tensor(GRADIENT, dtype=dtype)], "output": [
            tensor(before * GRADIENT, dtype=dtype, Max=GRADIENT.max() * (1 + 10 * (before - 1)))]},
        entries[1]: {"input": [tensor(before * GRADIENT, dtype=dtype)], "output": [tensor(through, dtype=dtype)]},
        entries[2]: {"input": [tensor(through, dtype=dtype)], "output": [tensor(downstream * through, dtype=dtype)]},
    }  # fmt: skip


@pytest.fixture
def compare(tmp_path):
    def compare(target, golden, **options):
        sides = [write_dump(tmp_path / s, d) for s, d in (("target", target), ("golden", golden))]
        return compare_dumps(*sides, options=CompareOptions(**options))

    return compare


def row(result, name=f"{DOWNSTREAM}.output.0"):
    return result.units[0].rows.filter(pl.col("name_target") == name).row(0, named=True)


def test_the_size_is_what_is_expected():
    """The formula that the limit is made of, on the elements themselves."""
    for e in (0.003, 0.01, 0.03):
        activation, noise, gradient = np.random.default_rng(1).normal(size=(3, 1_000_000))
        through, other = (gradient * (activation + share * noise > 0) for share in (0, e))
        error = np.linalg.norm(other - through) / np.linalg.norm(through)
        assert error == pytest.approx((0.64 * e) ** 0.5, rel=0.05)
        assert error < FACTOR * e**0.5


def test_an_extreme_that_one_element_has_does_not_count(compare):
    target = dump(e=0.01)
    (output,) = target[DOWNSTREAM]["output"]
    output["Max"] *= 1.2
    found = row(compare(target, dump()))
    assert found["verdict"] == "pass"
    assert findings_of(found[FINDINGS])[0].code is RowCode.RECTIFIER
    assert found["limit"] == pytest.approx(FACTOR * 0.01**0.5, rel=0.5)
    assert found["judged_error"] < 0.05 < found["error"]


def test_what_is_wrong_as_a_whole_counts(compare):
    for downstream in (1.5, -1.0):
        found = row(compare(dump(e=0.01, downstream=downstream), dump()))
        assert found["verdict"] == "error"


def test_a_fault_with_equal_inputs_counts_in_full(compare):
    target = dump()
    target[DOWNSTREAM]["output"][0]["Max"] *= 1.2
    found = row(compare(target, dump()))
    assert (found["verdict"], found["limit"]) == ("error", 0.05)


def test_before_the_rectifier_nothing_is_raised(compare):
    result = compare(dump(e=0.01, before=1.03), dump())
    found = row(result, "Functional.mse_loss.0.backward.output.0")
    assert (found["verdict"], found["limit"]) == ("error", 0.05)


def test_what_follows_from_a_fault_in_forward_is_seen(compare):
    target = dump(e=0.01)
    target[FORWARD]["input_args"][0]["Norm"] *= 1.3
    target[DOWNSTREAM]["output"][0]["Max"] *= 1.2
    assert row(compare(target, dump()))["verdict"] == "error"


def test_other_activations_raise_nothing(compare):
    sides = [dump(e=e, api_name="gelu") for e in (0.01, 0.0)]
    sides[0][DOWNSTREAM]["output"][0]["Max"] *= 1.2
    assert row(compare(*sides))["verdict"] == "error"


def test_modules_are_known_by_their_class(compare):
    def module(side):
        renamed = {"Functional.relu.0.forward": "Module.act.ReLU.forward.0",
                   "Functional.relu.0.backward": "Module.act.ReLU.backward.0"}  # fmt: skip
        return {renamed.get(entry, entry): record for entry, record in side.items()}

    target = dump(e=0.01)
    target[DOWNSTREAM]["output"][0]["Max"] *= 1.2
    assert row(compare(module(target), module(dump())))["verdict"] == "pass"


@pytest.mark.parametrize(("e", "largest", "is_within"), [(0.01, 1.2, True), (0.01, 3.0, False), (5e-4, 1.2, False)])
def test_the_closed_form_knows_that_more_than_a_few_elements_change_sides(compare, e, largest, is_within):
    """Of 4,096 elements, 13 or less than one."""
    target = dump(e=e)
    target[DOWNSTREAM]["output"][0]["Max"] *= largest
    found = row(compare(target, dump(), noise=NoiseModel()))
    assert (found["score"] <= found["score_limit"]) is is_within
