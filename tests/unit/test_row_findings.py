"""What is found of rows, over whole frames and one by one."""

import polars as pl
import pytest
from row_findings import of_row
from wording import worded_samples

from msprobe_core.findings import Finding, Level, Place, template_of
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, RowRule, codes, described, findings_of, said

CODES = [code for code in RowCode if code is not RowCode.SAID]
NUMBERS = {
    "error": 0.0123, "limit": 1e-5, "low": 2.0, "cosine": 0.5, "ulps": 1234.0, "score": 3.4e6, "score_limit": 7.9,
    "floor": 5.96e-8, "num_flips": 2, "num_repeats": 3,
    "target_max": float("inf"), "target_min": float("nan"), "golden_max": None, "golden_min": -2.0,
}  # fmt: skip


def fields_of(code):
    names = {part.field for part in template_of(code) if isinstance(part, Place)}
    return {
        name: NUMBERS.get(
            name, "a tensor" if name in ("target", "golden") else "target" if name == "side" else f"the {name}"
        )
        for name in names
    }


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.value)
def test_a_message_is_the_text_of_the_finding(code):
    """However many rows there are, and whatever is unknown of them."""
    fields = fields_of(code)
    rows = pl.DataFrame({"name_target": ["a", "b", "c"], "name_golden": [None] * 3, "odd": [True, False, None]})
    rows = rows.with_row_index("row").with_columns(pl.lit(value).alias(name) for name, value in fields.items())
    found = described(rows, [RowRule(code, Level.WARNING, pl.col("odd"), {name: name for name in fields})])
    assert found["row"].to_list() == [0]
    verdict, (finding,) = of_row(rows.join(found, on="row").with_columns(verdict="level"), "a")
    assert (verdict, finding.code, finding.level) == ("warning", code, Level.WARNING)
    assert {name: repr(value) for name, value in finding.fields.items()} == {
        name: repr(value) for name, value in fields.items()
    }
    assert said(finding).text == f"warning: {finding.text}"


def test_the_worst_finding_is_the_level_and_all_stand_in_order():
    rows = pl.DataFrame({"row": [0, 1], "error": [1.0, 0.5], "limit": [0.1, 0.1]})
    rules = [
        RowRule(RowCode.ERROR, Level.ERROR, pl.col("error") > 0.7, {"error": "error", "limit": "limit"}),
        RowRule(RowCode.REQUIRES_GRAD, Level.WARNING, pl.col("error") > 0),
        RowRule(RowCode.NAN_ON_BOTH, Level.NOTE, pl.lit(value=True)),
    ]
    found = described(rows, rules).sort("row")
    assert found["level"].to_list() == ["error", "warning"]
    assert found.select(codes()).to_series().to_list() == [
        ["row.error", "row.requires-grad", "row.nan-on-both"],
        ["row.requires-grad", "row.nan-on-both"],
    ]
    assert found["messages"][0][0] == "error: the relative error 1 is over the limit 0.1."
    assert [each.level for each in findings_of(found[FINDINGS].to_list()[1])] == [Level.WARNING, Level.NOTE]


def test_rows_of_which_there_is_nothing_to_say():
    found = described(pl.DataFrame({"row": [0]}), [RowRule(RowCode.CHECKSUM, Level.ERROR, pl.lit(value=False))])
    assert found.height == 0
    assert findings_of(None) == []


def test_wording(wording_snapshot):
    samples = {code: fields_of(code) for code in CODES}
    samples[RowCode.SAID] = {"level": Level.NOTE, "finding": Finding(RowCode.CHECKSUM)}
    wording_snapshot.check("compare", worded_samples(RowCode, samples))
