"""Apply rules to rows, render their findings as text, and create findings of the few rows that are shown.

Rules are applied to whole frames. The result is two columns of lists: ``messages``, in English with the level, and
`FINDINGS`, the codes with the values of their fields, from which `findings_of` creates findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import polars as pl

from msprobe_core.findings import Field, Finding, Level, Place, template_of
from msprobe_core.judge.formatting import rendered
from msprobe_core.judge.row_codes import RowCode

FINDINGS = "findings"
"""Column of a row's findings, in the order of ``messages``."""

_NUMBERS: dict[str, type[int | float]] = {
    "num_flips": int,
    "num_repeats": int,
    **dict.fromkeys(("target_max", "target_min", "golden_max", "golden_min"), float),
    **dict.fromkeys(("error", "limit", "low", "cosine", "ulps", "score", "score_limit", "floor"), float),
}
"""Fields that are numbers; all others are text."""

_FINDING = pl.Struct(
    {
        "code": pl.Enum([code.value for code in RowCode]),
        "level": pl.Enum([level.value for level in Level]),
        "texts": pl.List(pl.String),
        "numbers": pl.List(pl.Float64),
    }
)
"""A finding in a frame: the values of its fields in the order of `_fields_of`, without their names."""

SCHEMA = {"messages": pl.List(pl.String), FINDINGS: pl.List(_FINDING)}
"""Columns for the findings of rows."""


@dataclass(frozen=True, slots=True)
class RowRule:
    """The finding for rows that meet a condition.

    Attributes:
        code: Code of the finding.
        level: Its severity.
        condition: Selects the rows; null counts as false.
        fields: Columns or expressions for the fields of the finding.
    """

    code: RowCode
    level: Level
    condition: pl.Expr
    fields: Mapping[str, pl.Expr | str] = field(default_factory=dict[str, pl.Expr | str])

    @property
    def expressions(self) -> Sequence[pl.Expr]:
        """The condition, and all fields."""
        return [self.condition, *map(_expression, self.fields.values())]


def described(rows: pl.DataFrame, rules: Sequence[RowRule]) -> pl.DataFrame:
    """Return ``row``, ``level`` (of the worst finding) and `SCHEMA` for the rows that have findings.

    Args:
        rows: Rows with their index in ``row``.
        rules: Rules in the order of their findings.
    """
    holds = rows.select(rule.condition.fill_null(value=False).alias(str(i)) for i, rule in enumerate(rules))
    parts = [_found(rows.filter(holds[str(i)]), rule) for i, rule in enumerate(rules) if holds[str(i)].any()]
    if not parts:
        return pl.DataFrame(schema={"row": rows.schema["row"], "level": pl.String, **SCHEMA})
    levels = [level.value for level in Level]  # worst first
    return (
        pl.concat(parts)
        .group_by("row", maintain_order=True)
        .agg("messages", FINDINGS, level=pl.col("rank").min())
        .select("row", pl.col("level").replace_strict(dict(enumerate(levels)), return_dtype=pl.String), *SCHEMA)
    )


def codes() -> pl.Expr:
    """Return the codes of a row's findings, in the order of ``messages``."""
    return pl.col(FINDINGS).list.eval(pl.element().struct.field("code").cast(pl.String))


def findings_of(cell: Sequence[Mapping[str, Any]] | None) -> list[Finding]:
    """Return the findings of a row.

    Args:
        cell: The row's value in `FINDINGS`.
    """
    return [_finding(each) for each in cell or ()]


def said(finding: Finding) -> Finding:
    """Return a finding that shows another one with its level before it."""
    return Finding(RowCode.SAID, finding.level, {"level": finding.level, "finding": finding})


def _found(rows: pl.DataFrame, rule: RowRule) -> pl.DataFrame:
    """Return ``row``, ``rank`` of the level, ``messages`` and `FINDINGS` for rows that meet a rule's condition."""
    texts, numbers = _fields_of(rule.code)
    fields = rows.select(
        "row",
        *[_expression(rule.fields[name]).cast(pl.String).alias(name) for name in texts],
        *[_expression(rule.fields[name]).cast(pl.Float64).alias(name) for name in numbers],
    )
    kinds = _FINDING.to_schema()
    finding = pl.struct(
        code=pl.lit(rule.code.value, dtype=kinds["code"]),
        level=pl.lit(rule.level.value, dtype=kinds["level"]),
        texts=pl.concat_list(texts) if texts else pl.lit([], dtype=kinds["texts"]),
        numbers=pl.concat_list(numbers) if numbers else pl.lit([], dtype=kinds["numbers"]),
    )
    counts = [pl.col(name).cast(pl.Int64) for name in numbers if _NUMBERS[name] is int]
    text = rendered(rule.code, fields.with_columns(counts), rows.height)
    worded = pl.DataFrame({"finding": text}).with_columns(level=pl.lit(rule.level.value))
    messages = rendered(RowCode.SAID, worded, rows.height).alias("messages")
    return fields.select("row", messages, finding.alias(FINDINGS), rank=pl.lit([*Level].index(rule.level)))


def _expression(value: pl.Expr | str) -> pl.Expr:
    return pl.col(value) if isinstance(value, str) else value


@cache
def _fields_of(code: RowCode) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a code that are text, and those that are numbers."""
    names = sorted({part.field for part in template_of(code) if isinstance(part, Place)})
    return tuple(n for n in names if n not in _NUMBERS), tuple(n for n in names if n in _NUMBERS)


def _finding(cell: Mapping[str, Any]) -> Finding:
    code = RowCode(cell["code"])
    texts, numbers = _fields_of(code)
    fields: dict[str, Field] = dict(zip(texts, cell["texts"], strict=True))
    fields |= {
        name: None if number is None else _NUMBERS[name](number)
        for name, number in zip(numbers, cell["numbers"], strict=True)
    }
    return Finding(code, Level(cell["level"]), fields)
