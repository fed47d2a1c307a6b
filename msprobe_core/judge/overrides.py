"""Limits given for rows by name: which row has which limit, and whether it complies.

A row has the last limit whose pattern matches its name. All terms of the limit whose quantity is known for the row must
hold; if none is known, the conventional limit decides. The known quantities depend on what was compared:

* ``rel``: the relative error by which the row is judged; for an argument, that of the number; not for integers;
* ``abs``: the largest absolute difference, if the tensors themselves were compared; otherwise the largest difference of
  maximum, minimum and mean, a lower bound that exceeds the limit only if the unknown difference does too;
* ``cos`` and ``ulp``: if the tensors themselves were compared, and are not integers.
"""

from __future__ import annotations

import polars as pl

from msprobe_core.findings import Finding, Level
from msprobe_core.judge.joining import any_of, parts_of, with_added
from msprobe_core.judge.judge_codes import JudgeCode
from msprobe_core.judge.limits import LimitOverride, LimitTable
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows

TERMS = ("rel", "abs", "cos", "ulp")

COSINE = "cosine"
LARGEST_ABS = "largest_abs"
LARGEST_ULP = "ulp_max"

HELPERS = ("is_ignored", "is_overridden", "conventional_limit", *(f"own_{term}" for term in TERMS),
           *(f"fails_{term}" for term in TERMS), *(f"known_{term}" for term in TERMS))  # fmt: skip
"""Columns that `with_overrides` adds for the verdict only."""


def with_overrides(rows: Rows, table: LimitTable) -> Rows:
    """Return ``rows`` with ``override``, the name in messages of a row's limit by name, and the `HELPERS`.

    ``limit`` becomes that limit's ``rel`` if one of its terms is known for the row.
    """
    if not table.overrides:
        return rows.with_columns(
            override=pl.lit(None, pl.String),
            is_ignored=pl.lit(value=False),
            **{f"own_{term}": pl.lit(None, pl.Float64) for term in TERMS},
            conventional_limit=pl.col("limit"),
            is_overridden=pl.lit(value=False),
            **{f"{kind}_{term}": pl.lit(None, kind_type) for kind, kind_type in _KINDS for term in TERMS},
        )
    return with_added(rows, lambda part: _overridden(part, table))


def _overridden(rows: pl.DataFrame, table: LimitTable) -> pl.DataFrame:
    rows = _with_own(rows, table)
    known = {term: _known(term, rows.columns) for term in TERMS}
    rows = rows.with_columns(
        conventional_limit=pl.col("limit"), **{f"known_{t}": known[t] for t in TERMS}
    ).with_columns(
        **{
            f"fails_{term}": ~(
                # NaN, if one side is all zero, would compare as the largest number.
                (pl.col(f"known_{term}") >= pl.col(f"own_{term}")) & pl.col(f"known_{term}").is_not_nan()
                if term == "cos"
                else pl.col(f"known_{term}") <= pl.col(f"own_{term}")
            )
            for term in TERMS
        }
    )
    is_overridden = pl.any_horizontal(*[pl.col(f"fails_{term}").is_not_null() for term in TERMS])
    limit = pl.when(is_overridden).then(pl.col("own_rel")).otherwise(pl.col("limit"))
    return rows.with_columns(is_overridden=is_overridden, limit=limit).select("override", *HELPERS, "limit")


_KINDS = (("fails", pl.Boolean), ("known", pl.Float64))


def _with_own(rows: pl.DataFrame, table: LimitTable) -> pl.DataFrame:
    """Add the terms of the last limit whose pattern matches each row."""
    found = pl.lit(None, dtype=pl.Int32)
    for i, override in enumerate(table.overrides):
        found = pl.when(_reaches(override)).then(pl.lit(i, dtype=pl.Int32)).otherwise(found)
    terms = pl.DataFrame(
        {
            "override": [override.origin for override in table.overrides],
            "is_ignored": [override.is_ignored for override in table.overrides],
            **{f"own_{term}": [getattr(override, term) for override in table.overrides] for term in TERMS},
        },
        schema={"override": pl.String, "is_ignored": pl.Boolean, **{f"own_{term}": pl.Float64 for term in TERMS}},
    )
    numbered = terms.with_row_index("found").with_columns(pl.col("found").cast(pl.Int32))
    found_rows = rows.with_columns(found=found).join(numbered, on="found", how="left", maintain_order="left")
    return found_rows.drop("found").with_columns(pl.col("is_ignored").fill_null(False))


_SIDES = ("target", "golden")


def _reaches(override: LimitOverride) -> pl.Expr:
    """Whether the pattern matches the row's name on either side."""
    names = [pl.col(f"name_{side}") for side in _SIDES]
    return pl.any_horizontal([name.str.contains(override.pattern).fill_null(False) for name in names])


def note_idle(rows: Rows, table: LimitTable) -> list[Finding]:
    """Return a note on limits in whose pattern's reach no row is, most likely because the pattern is mistaken.

    Args:
        rows: Result of `with_overrides`.
        table: The limits in force.
    """
    used = {text for part in parts_of(rows, ["override"]) for text in part["override"].unique()}
    unused = [each for each in table.overrides if each.origin not in used]  # or overridden by later limits
    idle = [each for each in unused if not any_of(rows, _reaches(each))]
    if not idle:
        return []
    return [Finding(JudgeCode.IDLE_LIMITS, Level.WARNING, {"count": len(idle), "first": idle[0].origin})]


def _known(term: str, columns: list[str]) -> pl.Expr:
    """Return the known value of the quantity that ``term`` bounds; null if it is unknown."""
    unknown = pl.lit(None, dtype=pl.Float64)
    both_tensors = pl.all_horizontal(*[pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in _SIDES])
    # Integers must be equal whatever relative error is allowed; only an absolute limit applies to them.
    is_float = pl.col("precision").is_not_null()
    if term in {"cos", "ulp"}:
        column = COSINE if term == "cos" else LARGEST_ULP
        return pl.when(is_float).then(pl.col(column).cast(pl.Float64)) if column in columns else unknown
    types = [pl.col(f"type_{side}") for side in _SIDES]
    are_numbers = pl.all_horizontal(*[kind.is_in(["int", "float"]) for kind in types])
    if term == "rel":
        has_float = pl.any_horizontal(*[kind == "float" for kind in types])
        scalar = pl.when(are_numbers & has_float).then(pl.col("max_rel").abs())
        return pl.when(both_tensors).then(pl.when(is_float).then(pl.col("judged_error"))).otherwise(scalar)
    # Skip differences of NaN and Inf, which have their own rules.
    parts = [pl.col(f"{name}_diff").abs() for name in ("max", "min", "mean")]
    at_least = pl.max_horizontal(*[pl.when(part.is_finite()).then(part) for part in parts])
    exact = pl.col(LARGEST_ABS) if LARGEST_ABS in columns else unknown
    tensors = pl.when(pl.col("judged_error").is_not_null()).then(pl.coalesce(exact, at_least))
    return pl.when(both_tensors).then(tensors).otherwise(pl.when(are_numbers).then(pl.col("max_diff").abs()))
