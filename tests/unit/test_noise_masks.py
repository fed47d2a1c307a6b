"""Tensors that a mask has filled: errors of their other elements are relative to what the masking call was given."""

import msgspec
import numpy as np
import polars as pl
import pytest

from msprobe_core.calibrate import calibrate
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.judge.noise import NoiseModel, load_noise
from msprobe_core.judge.noise.masks import with_masked_sizes
from msprobe_core.judge.noise.measures import with_measures
from msprobe_core.judge.noise.profile_file import PROFILE_FILE
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import frame_of
from tests.support.dumps import api, tensor, write_dump

ADD, SOFTMAX, LOG_SOFTMAX = (f"{name}.0.forward" for name in ("Tensor.__add__", "Torch.softmax", "Torch.log_softmax"))

FILLS = pytest.mark.parametrize("fill", [-np.inf, np.finfo(np.float32).min], ids=["infinite", "lowest"])


def run(directory, fill, *, is_reordered=False, seed=0, roundings=1, of_bias=1.0, of_result=1.0, shift=0.0):
    """Write scores that get a bias and a mask in one call, and what is computed from them."""
    rng = np.random.default_rng(0)
    scores = (rng.normal(size=(2, 32, 32)) * 3).astype(np.float32) + np.float32(shift)
    if is_reordered:
        signs = np.random.default_rng(seed).choice([-1, 0, 1], scores.shape).astype(np.float32)
        # As those of a product, whose terms are as large for a small element as for the largest.
        scores = scores + signs * np.float32(roundings * 2.0**-23) * np.abs(scores).max()
    bias = np.where(np.triu(np.ones((32, 32), bool), 1), np.float32(fill), np.float32(0))
    bias[np.tril_indices(32)] = np.linspace(-2, 2, len(np.tril_indices(32)[0]), dtype=np.float32)
    with np.errstate(over="ignore"):
        unmasked = np.where(bias > -1e30, bias * np.float32(of_bias), 0)
        added = np.where(bias > -1e30, scores + unmasked, np.float32(fill)).astype(np.float32)
    wide = added.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)
    result = (shares * of_result).astype(np.float32)
    data = {
        "Torch.matmul.0.forward": api(tensor(scores), output=tensor(scores)),
        ADD: api(tensor(scores), tensor(bias), output=tensor(added)),
        SOFTMAX: api(tensor(added), output=tensor(result)),
    }
    write_dump(directory, data)
    return directory


def fault_of(target, golden):
    return compare_dumps(target, golden, options=CompareOptions(noise=NoiseModel())).units[0].fault


@FILLS
def test_the_call_that_masks_is_named_if_it_computes_wrong_numbers(tmp_path, fill):
    fault = fault_of(run(tmp_path / "target", fill, of_bias=1.5), run(tmp_path / "golden", fill))
    assert fault is not None
    assert fault.entry == ADD


@FILLS
def test_the_call_after_it_is_named_if_that_is_wrong(tmp_path, fill):
    fault = fault_of(run(tmp_path / "target", fill, of_result=1.01), run(tmp_path / "golden", fill))
    assert fault is not None
    assert fault.entry == SOFTMAX


@FILLS
@pytest.mark.parametrize("shift", [0.0, -12.5], ids=["usual", "nearly all negative"])
def test_rounding_of_masked_scores_is_no_fault(tmp_path, fill, shift):
    golden = run(tmp_path / "golden", fill, shift=shift)
    assert fault_of(run(tmp_path / "target", fill, shift=shift, is_reordered=True), golden) is None


def calibrated(tmp_path, fill, roundings):
    golden = run(tmp_path / "run" / "step0" / "rank0", fill)
    repeats = [tmp_path / f"repeat{k}" for k in (1, 2, 3)]
    for k, repeat in enumerate(repeats):
        run(repeat / "step0" / "rank0", fill, is_reordered=True, seed=k, roundings=roundings)
    calibrate(tmp_path / "run", repeats)
    return golden


def measured_fault(target, golden):
    return compare_dumps(target, golden, options=CompareOptions(noise=load_noise(golden))).units[0].fault


@FILLS
def test_measured_floors_are_relative_to_the_other_elements_too(tmp_path, fill):
    golden = calibrated(tmp_path, fill, roundings=300)
    healthy = run(tmp_path / "healthy", fill, is_reordered=True, seed=7, roundings=300)
    assert measured_fault(healthy, golden) is None
    fault = measured_fault(run(tmp_path / "wrong", fill, is_reordered=True, seed=7, of_bias=1.5), golden)
    assert fault is not None
    assert fault.entry == ADD


@FILLS
def test_a_masked_tensor_whose_other_elements_vary_is_one_that_varies(tmp_path, fill):
    golden, repeat = tmp_path / "run", tmp_path / "repeat"
    run(golden / "step0" / "rank0", fill)
    run(repeat / "step0" / "rank0", fill, is_reordered=True, roundings=300)
    [found] = calibrate(golden, [repeat]).dumps
    assert (found.num_measured, found.num_varying) == (7, 6)  # all but the mask


@FILLS
def test_profiles_of_former_versions_call_no_healthy_run_faulty(tmp_path, fill):
    golden = calibrated(tmp_path, fill, roundings=300)
    path = tmp_path / "run" / PROFILE_FILE
    profile = pl.read_parquet(path)
    about = msgspec.json.decode(profile["about"][0])
    assert about.pop("masked_sizes")
    is_masked = pl.col("name").str.starts_with("Tensor.__add__.0.forward.output") | pl.col("name").str.starts_with(
        "Torch.softmax.0.forward.input"
    )
    former = profile.with_columns(
        about=pl.lit(msgspec.json.encode(about).decode()),
        **{name: pl.when(is_masked).then(2.0**-24).otherwise(name).cast(pl.Float32) for name in ("max", "min")},
    )
    former.write_parquet(path)
    healthy = run(tmp_path / "healthy", fill, is_reordered=True, seed=7, roundings=300)
    assert measured_fault(healthy, golden) is None


@FILLS
def test_small_results_of_large_arguments_are_judged_by_the_arguments(tmp_path, fill):
    def write(directory, off):
        logits = np.linspace(-20, 20, 64, dtype=np.float32).reshape(2, 32)
        logits[:, ::4] = fill
        logs = np.where(logits > -1e30, logits - 20 - np.float32(off), np.float32(fill)).astype(np.float32)
        logs[1, -1] = -1e-6 - off  # the most probable of all
        write_dump(directory, {LOG_SOFTMAX: api(tensor(logits), output=tensor(logs))})
        return directory

    assert fault_of(write(tmp_path / "target", 1e-6), write(tmp_path / "golden", 0)) is None
    assert fault_of(write(tmp_path / "wrong", 1e-2), write(tmp_path / "golden again", 0)) is not None


def test_what_a_mask_filled_in_is_relative_to_itself():
    lowest, coarser = float(np.finfo(np.float32).min), -3.3895313892515355e38
    columns = {
        "entry": ["Tensor.masked_fill.0.forward"] * 2,
        "role": [Role.INPUT.value, Role.OUTPUT.value],
        "numel_golden": [64, 64],
        "norm_golden": [20.0, 1e39],
        "max_golden": [4.0, 4.0],
        "min_golden": [-8.0, lowest],
        "max_target": [4.0, 5.0],
        "min_target": [-8.0, coarser],
    }
    zero = dict.fromkeys(("norm_diff", "mean_diff"), 0.0)
    rows = pl.DataFrame(columns).with_columns(max_diff=pl.Series([0.0, 1.0]), min_diff=coarser - pl.col("min_golden"))
    found = with_measures(frame_of(with_masked_sizes(rows.with_columns(**{k: pl.lit(v) for k, v in zero.items()}))))
    assert found["masked_size"].to_list() == [None, 8.0]
    assert found["measure_max"][1] == 1 / 8
    assert found["measure_min"][1] == pytest.approx(1 - coarser / lowest)


def test_inputs_of_another_size_say_nothing_of_a_masked_product():
    columns = {
        "entry": ["Torch.baddbmm.0.forward"] * 2,
        "role": [Role.INPUT.value, Role.OUTPUT.value],
        "numel_golden": [32, 64],
        "norm_golden": [20.0, np.inf],
        "max_golden": [4.0, 0.5],
        "min_golden": [-8.0, -np.inf],
    }
    assert frame_of(with_masked_sizes(pl.DataFrame(columns)))["masked_size"].to_list() == [None, None]


def test_rows_without_masks_are_as_they_were():
    columns = {"entry": ["Torch.add.0.forward"], "role": ["output"], "numel_golden": [4], "norm_golden": [2.0]}
    rows = pl.DataFrame({**columns, "max_golden": [1.0], "min_golden": [-1.0]})
    assert with_masked_sizes(rows) is rows
