"""Single elements that a rectifier lets through in one run alone, and runs that are off as a whole."""

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.calibrate import calibrate
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.noise import load_noise
from msprobe_core.judge.noise.rounding import with_sizes

SIZE, NUM_LAYERS = (16, 32), 4
LAST_DIGIT = 1e-7


def values(seed):
    return np.random.default_rng(seed).normal(size=SIZE)


def off(x, seed, by=LAST_DIGIT):
    return x * (1 + by * np.random.default_rng([seed, 9]).normal(size=x.shape)) if seed else x


def run(place, seed, *, turns=(), wrong=1.0, given_wrong=1.0, by=LAST_DIGIT):
    """Write layers with a rectifier, forward and backward; ``turns``: elements whose gradient is let through or not."""
    data = {}
    for i in range(NUM_LAYERS):
        given = off(values(i), seed, by) * (given_wrong if i == 2 else 1.0)
        data[f"Functional.relu.{i}.forward"] = api(tensor(given), output=tensor(np.maximum(given, 0)))
    for i in reversed(range(NUM_LAYERS)):
        came = off(values(50 + i), seed, by)
        passed = np.where(values(i) > 0, came, 0.0) * (wrong if i == 2 else 1.0)
        if i == 2:
            for place_of in turns:
                passed[place_of] = 0.0 if passed[place_of] else came[place_of]
        data[f"Functional.relu.{i}.backward"] = {"input": [tensor(came)], "output": [tensor(passed)]}
        # A sum over the rows, which an element that is let through changes in one place.
        made = passed.sum(axis=0) if i <= 2 else off(values(70 + i), seed, by)
        data[f"Tensor.sum.{i}.backward"] = {"input": [tensor(passed)], "output": [tensor(made)]}
    write_dump(place / "step0" / "rank0", data)


def wrong_rows(golden, target):
    unit = compare_dumps(
        target / "step0" / "rank0", golden / "step0" / "rank0", options=CompareOptions(noise=load_noise(golden))
    ).units[0]
    return unit.rows.filter(pl.col("verdict") == "error")["name_target"].to_list(), unit.notes


@pytest.fixture
def golden(tmp_path):
    place = tmp_path / "golden"
    for seed in range(4):
        run(place / "calibration" / f"run{seed}" if seed else place, seed)
    calibrate(place)
    return place


TURNED = [(3, 3)]
MANY = [tuple(place) for place in np.argwhere(values(2) > 0)[:150]]


def test_neither_a_turned_element_nor_values_computed_from_it_are_errors(tmp_path, golden):
    run(tmp_path / "target", 7, turns=TURNED)
    wrong, notes = wrong_rows(golden, tmp_path / "target")
    assert wrong == []
    assert any("Functional.relu.2.backward lets other elements of the gradient through" in note for note in notes)


def test_healthy_runs_have_nothing_to_note(tmp_path, golden):
    run(tmp_path / "target", 7)
    wrong, notes = wrong_rows(golden, tmp_path / "target")
    assert wrong == []
    assert not any("lets other elements" in note for note in notes)


@pytest.mark.parametrize(
    "fault", [{"turns": MANY}, {"wrong": 1.5}], ids=["many elements are stopped", "the gradient is scaled"]
)
def test_what_single_elements_do_not_explain_is_an_error(tmp_path, golden, fault):
    run(tmp_path / "target", 7, **fault)
    wrong, _ = wrong_rows(golden, tmp_path / "target")
    assert "Functional.relu.2.backward.output.0" in wrong


def test_where_the_rectifier_was_given_what_is_wrong_it_excuses_nothing(tmp_path, golden):
    run(tmp_path / "target", 7, turns=TURNED, given_wrong=1.0001)
    wrong, _ = wrong_rows(golden, tmp_path / "target")
    assert {"Functional.relu.2.forward.input.0", "Functional.relu.2.backward.output.0"} <= set(wrong)


# --- later steps, whose errors have a size that is the run's own ---------------------------------------------------

NUM_CALLS = 60


def later(place, seed, *, by, scaled=None):
    """Write calls of a step after an update: each run has its own parameters, and values that are off by ``by``."""
    data = {"Module.fc.Linear.forward.0": {
        "input_args": [tensor(values(0))], "input_kwargs": {}, "output": [tensor(values(1))],
        "parameters": {"weight": tensor(off(values(2), seed))},
    }}  # fmt: skip
    for i in range(NUM_CALLS):
        # One factor for all of a tensor, as of what an element far up has gone into.
        error = 1 + by * (1 + i / NUM_CALLS) * np.random.default_rng([seed, i]).choice([-1, 1]) if seed else 1.0
        made = values(100 + i) * error * (1.003 if i == scaled else 1.0)
        data[f"Torch.mul.{i}.forward"] = api(tensor(values(i)), output=tensor(made))
    write_dump(place / "step0" / "rank0", data)


@pytest.fixture
def later_golden(tmp_path):
    place = tmp_path / "later"
    for seed in range(4):
        later(place / "calibration" / f"run{seed}" if seed else place, seed, by=1e-5)
    calibrate(place)
    return place


def test_a_run_that_is_farther_off_as_a_whole_is_healthy(tmp_path, later_golden):
    later(tmp_path / "target", 7, by=1e-4)
    assert wrong_rows(later_golden, tmp_path / "target")[0] == []


def test_a_run_that_is_by_far_too_far_off_is_not(tmp_path, later_golden):
    later(tmp_path / "target", 7, by=2e-3)
    assert len(wrong_rows(later_golden, tmp_path / "target")[0]) > NUM_CALLS / 2


def test_a_single_wrong_call_is_found(tmp_path, later_golden):
    later(tmp_path / "target", 7, by=1e-5, scaled=30)
    assert wrong_rows(later_golden, tmp_path / "target")[0] == ["Torch.mul.30.forward.output.0"]


# --- what averages out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "numel", "num_rows"),
    [([4, 16, 64], 4096, 64), ([64], 64, 1), ([], 1, 1), ([4, 16, 1], 64, 1), ([1], 1, 1)],
    ids=str,
)
def test_what_a_reduction_leaves_is_a_vector(shape, numel, num_rows):
    row = {
        "dtype_target": "torch.float32", "dtype_golden": "torch.float32",
        "shape_golden": str(shape), "numel_golden": numel, "precision": 2, "norm_golden": numel**0.5,
        "max_golden": 1.0, "min_golden": -1.0,
    }  # fmt: skip
    assert with_sizes(pl.DataFrame([row]))["num_rows"].to_list() == [num_rows]
