"""Metrics, statuses and filled cells are those that mindstudio-probe computed for the same results."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from msprobe_core.api_check.published import published_columns
from msprobe_core.api_check.verdict import CallVerdict, OutputVerdict, Verdict
from msprobe_core.compat.published_tables import BLANK, DETAIL_COLUMNS, detail_rows
from msprobe_core.findings import Finding, NoteCode
from msprobe_core.model import Phase, ReplayTensor

DATA = Path(__file__).parents[1] / "data" / "acc_check_details"
METRICS = DETAIL_COLUMNS[4:21]


def published_rows(kind):
    with (DATA / f"details{kind}.csv").open(encoding="utf-8-sig", newline="") as file:
        return {row["API Name"]: row for row in csv.DictReader(file)}


KINDS = ("", "_disturbed")
ROWS = {(kind, name): row for kind in KINDS for name, row in published_rows(kind).items()}


@pytest.fixture(scope="module")
def results():
    found: dict[tuple[str, str], np.ndarray] = {}
    for kind in KINDS:
        with np.load(DATA / f"results{kind}.npz") as file:
            found |= {(kind, name): file[name] for name in file.files}
    return found


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_a_row_is_that_of_the_published_tool(results, kind, name):
    row = ROWS[kind, name]
    dtype, api = row["DEVICE Dtype"].removeprefix("torch."), name.rsplit(".", 3)[0]
    result = ReplayTensor(values=results[kind, f"{name}|d"], dtype=dtype)
    columns = published_columns(result, results[kind, f"{name}|b"], own=None, api=api)
    assert columns.plain_status == row["Status"]
    output = OutputVerdict(
        path="0", side="recorded", dtype=dtype, shape=result.values.shape, verdict=Verdict.RIGHT,
        reason=Finding(NoteCode.TEXT, fields={"text": ""}), error=0.0, rounding=0.0, condition=0.0, own_error=None,
        times=0.0, amplification=None, worst_index=None, bias=None, published=columns,
    )  # fmt: skip
    phase = Phase(name.rsplit(".", 3)[1])
    call = CallVerdict(entry=api, api=api, phase=phase, verdict=Verdict.RIGHT, outputs=(output,))
    (cells,) = detail_rows(call)
    ours = dict(zip(DETAIL_COLUMNS, cells, strict=True))
    assert ours["API Name"].rsplit(".", 1)[0] == name.rsplit(".", 1)[0]
    assert (ours["DEVICE Dtype"], ours["Shape"]) == (row["DEVICE Dtype"], row["Shape"])
    for column in METRICS:
        assert (ours[column] == BLANK) == (row[column] == BLANK), column
        if row[column] != BLANK and not (math.isnan(float(ours[column])) and math.isnan(float(row[column]))):
            # Its arithmetic is in float32 for half precision; of fixed decimals the last may differ.
            assert float(ours[column]) == pytest.approx(float(row[column]), rel=1e-6, abs=1.1e-14), column


def test_the_sample_has_every_kind_of_row():
    assert {row["Status"] for row in ROWS.values()} == {"pass", "warning", "error"}
    dtypes = {row["DEVICE Dtype"].removeprefix("torch.") for row in ROWS.values()}
    assert dtypes == {"float16", "bfloat16", "float32", "float64", "int64"}
    assert any(row["最大绝对误差"] == "inf" for row in ROWS.values())
    assert any("zero in device" in row["Message"] for row in ROWS.values())
