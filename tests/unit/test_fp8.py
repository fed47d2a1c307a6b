"""What quantisation to FP8 would lose: the arithmetic, and what comparisons and pages make of it."""

import json

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump
from numpy_rig import record_step

from msprobe_core.compare import compare_dumps
from msprobe_core.config import load_config
from msprobe_core.fingerprint import fp8
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.report.default_table import own_table
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.view.calls import calls_of_dump

ENTRY = "Functional.linear.0.forward"


def losses(values):
    array = np.asarray(values, np.float32)
    return fp8.losses(fp8.quantised(array, NumpyArrays()).tolist(), array.size)


def test_shares_and_error_of_numbers_that_can_be_done_by_hand():
    # With the scale 1, subnormals of e4m3 are 2**-9 apart: half of that is rounded to the even neighbour, which is 0.
    found = losses([448.0, 2.0**-10, 1.5 * 2.0**-10, -(2.0**-12), 0.0, 17.0, 500.0 * 0, 3.0])
    assert (found.amax, found.e4m3_scale, found.e4m3_underflow) == (448.0, 1.0, 2 / 8)
    # 17 is halfway between 16 and 18, and goes to 16, whose fraction is even; 1.5 * 2**-10 goes up to 2**-9.
    error = 1.0 + (2.0**-10) ** 2 + (2.0**-11) ** 2 + (2.0**-12) ** 2
    assert found.e4m3_mse == pytest.approx(error / 8, rel=1e-6)
    assert found.e5m2_scale == 128.0
    assert found.e5m2_underflow == 0.0


def test_overflow_is_counted_without_scaling_and_beyond_the_largest_value():
    found = losses([448.0, 449.0, -1000.0, 57344.0, 57345.0, np.inf, np.nan, 1.0])
    assert (found.amax, found.e4m3_overflow, found.e5m2_overflow) == (57345.0, 4 / 8, 1 / 8)
    assert found.e4m3_scale == pytest.approx(448 / 57345)
    assert found.e4m3_mse is not None


@pytest.mark.parametrize(
    ("values", "amax", "scale"), [([0.0, -0.0], 0.0, 1.0), ([np.nan, np.inf], 0.0, 1.0), ([1e-42], 1e-42, 3.4028e38)]
)
def test_values_without_a_usual_scale(values, amax, scale):
    found = losses(values)
    assert (found.amax, found.e4m3_scale) == pytest.approx((amax, scale), rel=1e-3)
    assert (found.e4m3_mse is None) is bool(np.isnan(values[0]))


def test_elements_beyond_a_chunk_count():
    values = np.full(2 * NumpyArrays.chunk + 5, 1.0, np.float32)
    values[-1], values[0] = 448.0, 2.0**-12
    assert (losses(values).amax, losses(values).e4m3_underflow) == (448.0, 1 / values.size)


def test_a_run_records_them_and_a_comparison_shows_both_sides(tmp_path):
    for name in ("target", "golden"):
        record_step(config_of(tmp_path, dump_path=str(tmp_path / name), level="mix"))
    (unit,) = compare_dumps(tmp_path / "target" / "step0", tmp_path / "golden" / "step0").units
    row = unit.rows.filter(pl.col("fp8_amax_target").is_not_null()).row(0, named=True)
    assert (
        row["fp8_amax_target"]
        == row["fp8_amax_golden"]
        == pytest.approx(max(abs(row["max_target"]), abs(row["min_target"])), rel=1e-6)
    )
    assert row["fp8_e4m3_scale_target"] == pytest.approx(448 / row["fp8_amax_target"], rel=1e-6)
    assert unit.agrees


def config_of(tmp_path, **fields):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields | {"statistics": {"summary_mode": "fp8"}}))
    return load_config(path)


def dump_of(path, **fields):
    return write_dump(path, {ENTRY: api(tensor(**fields), output=tensor())})


LOSSES = {"amax": 2.0, "e4m3_scale": 224.0, "e4m3_underflow": 0.5}


@pytest.mark.parametrize(
    ("golden", "columns"),
    [(LOSSES | {"amax": 3.0}, ["amax", "e4m3_scale", "e4m3_underflow"]), ({"amax": 3.0}, ["amax"]), (None, [])],
)
def test_columns_are_those_that_both_sides_have(tmp_path, golden, columns):
    dump_of(tmp_path / "target", fp8=LOSSES)
    dump_of(tmp_path / "golden", **({} if golden is None else {"fp8": golden}))
    (unit,) = compare_dumps(tmp_path / "target", tmp_path / "golden").units
    headers = [column.header for column in own_table(unit, has_stacks=False).columns if "fp8" in column.header]
    assert headers == [f"{side}_fp8_{name}" for name in columns for side in ("target", "golden")]
    if columns:
        row = unit.rows.row(0, named=True)
        assert (row["fp8_amax_target"], row["fp8_amax_golden"]) == (2.0, 3.0)


def test_a_page_shows_them_for_each_value(tmp_path):
    calls = calls_of_dump(read_json_dump(dump_of(tmp_path, fp8=LOSSES)))
    assert {"fp8_amax", "fp8_e4m3_underflow"} <= set(calls.statistics)
    assert calls.values.filter(pl.col("fp8_amax_target") == 2.0)["fp8_e4m3_underflow_target"].to_list() == [0.5]
