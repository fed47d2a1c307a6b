"""What a comparison has found of a row, as codes with fields."""

from collections.abc import Iterable, Sequence

import polars as pl

from msprobe_core.findings import Field, Finding
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, findings_of


def of_row(rows: pl.DataFrame, name: str) -> tuple[str, Sequence[Finding]]:
    """Return the verdict of a row, and what was found; its texts are those of the table."""
    row = rows.filter(pl.coalesce("name_target", "name_golden") == name).row(0, named=True)
    found = findings_of(row[FINDINGS])
    assert row["messages"] == [f"{each.level.value}: {each.text}" for each in found]
    return row["verdict"], found


def of_all(rows: pl.DataFrame) -> list[Finding]:
    """Return what was found of all rows."""
    return [found for cell in rows[FINDINGS].to_list() for found in findings_of(cell)]


def codes_of(found: Iterable[Finding]) -> list[RowCode]:
    return [RowCode(each.code) for each in found]


def has(found: Sequence[Finding], code: RowCode, **fields: Field) -> bool:
    """Whether there is a finding of a code with these fields, as far as they are named; numbers to six digits."""
    return any(
        each.code is code and all(_alike(each.fields[name], value) for name, value in fields.items()) for each in found
    )


def _alike(own: Field, expected: Field) -> bool:
    if isinstance(own, float) and isinstance(expected, (int, float)):
        return f"{own:.6g}" == f"{expected:.6g}"
    return own == expected
