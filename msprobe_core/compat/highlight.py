"""Colour suspicious rows as ``mindstudio-probe`` up to 8.x does on ``-hl``.

A rule checks one row by itself, or compares an output with all inputs and parameters of its call. Red outranks yellow;
rows that are red by themselves are not compared with others.
"""

from __future__ import annotations

from enum import Enum

import polars as pl

from msprobe_core.model import Role


class Colour(str, Enum):
    """The colour of a suspicious row."""

    RED = "red"
    YELLOW = "yellow"


FILLS = {Colour.RED.value: "FFFF0000", Colour.YELLOW.value: "FFFF00"}
"""Fill of a row by its colour, in hexadecimal, as in the original tables."""

COLOUR, MESSAGES = "colour", "colour_messages"
"""The columns that `add_highlights` adds."""

MAX_ROWS = 1_048_500
"""The original does not colour tables with more rows."""

_LARGEST = 1e10

_Rule = tuple[pl.Expr, str]


def add_highlights(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` with ``colour``, null where nothing is suspicious, and ``colour_messages``, a list of texts.

    Args:
        rows: Judged rows; those of compared tensors have ``cosine``, ``largest_abs`` and ``within_1e3``.
    """
    is_tensor_mode = "within_1e3" in rows.columns
    size = pl.col("largest_abs") if is_tensor_mode else pl.col("max_diff").abs()
    is_output = pl.col("role") == Role.OUTPUT.value
    alone = _red_alone(size)
    prepared = rows.with_columns(h_size=size, h_red=_any(alone))
    given = prepared.filter(pl.col("role").is_in([Role.INPUT.value, Role.PARAMETERS.value]) & ~pl.col("h_red"))
    prepared = prepared.join(
        given.group_by("entry").agg(**_of_given(is_tensor_mode=is_tensor_mode)),
        on="entry",
        how="left",
        maintain_order="left",
    )
    red, yellow = _tensor_rules() if is_tensor_mode else _statistics_rules()
    is_held = is_output & ~pl.col("h_red")
    grew = (pl.col("h_size") > 1) & (pl.col("h_size") / pl.col("given_size") >= 10)
    reds = [*alone, *_where(is_held, red)]
    yellows = [
        *_where(is_held & ~_any(red), [(grew, _GREW), *yellow]),
        (pl.col("requires_grad_target") != pl.col("requires_grad_golden"), "requires_grad is inconsistent"),
    ]
    texts = [pl.when(condition.fill_null(False)).then(pl.lit(text)) for condition, text in (*reds, *yellows)]
    coloured = prepared.select(
        pl.when(_any(reds))
        .then(pl.lit(Colour.RED.value))
        .when(_any(yellows))
        .then(pl.lit(Colour.YELLOW.value))
        .alias(COLOUR),
        pl.concat_list(texts).list.drop_nulls().alias(MESSAGES),
    )
    return rows.hstack(coloured)


def _any(rules: list[_Rule]) -> pl.Expr:
    return pl.any_horizontal(*[condition.fill_null(False) for condition, _ in rules])


def _where(holds: pl.Expr, rules: list[_Rule]) -> list[_Rule]:
    return [(holds & condition, text) for condition, text in rules]


def _red_alone(size: pl.Expr) -> list[_Rule]:
    is_special = pl.any_horizontal(*[~pl.col(f"{name}_target").is_finite() for name in ("max", "min")])
    return [
        (is_special, "maximum or minimum is nan, -inf, or inf"),
        (size.is_finite() & (size > _LARGEST), "maximum absolute error exceeds 1e+10"),
    ]


def _of_given(*, is_tensor_mode: bool) -> dict[str, pl.Expr]:
    """Return aggregates over the inputs and parameters of a call; a rule applies if it holds for any one of them."""
    size = pl.col("h_size").filter(pl.col("h_size") > 1).min()
    if is_tensor_mode:
        return {
            "given_size": size,
            "given_within": _number("within_1e3").max(),
            "given_cosine": _number("cosine").max(),
        }
    return {"given_size": size, "given_rel": _number("max_rel").abs().min()}


def _number(name: str) -> pl.Expr:
    """Return a column with NaN as null, because polars orders NaN above all numbers."""
    return pl.when(~pl.col(name).is_nan()).then(pl.col(name))


_GREW = (
    "maximum absolute error of both input/parameters and output exceed 1, "
    "with the output larger by an order of magnitude"
)


def _tensor_rules() -> tuple[list[_Rule], list[_Rule]]:
    within, cosine = _number("within_1e3"), _number("cosine")
    red = (
        (pl.col("given_within") > 0.9) & (within < 0.6),
        "The input/parameter's one thousandth err ratio exceeds 0.9, while the output's is below 0.6",
    )
    return [red], [
        (
            pl.col("given_within") - within > 0.1,
            "The output's one thousandth err ratio decreases by more than 0.1 compared to the input/parameter's",
        ),
        (
            pl.col("given_cosine") - cosine > 0.1,
            "The output's cosine decreases by more than 0.1 compared to the input/parameter's",
        ),
    ]


def _statistics_rules() -> tuple[list[_Rule], list[_Rule]]:
    relative = _number("max_rel").abs()
    yellow = (
        (relative > 0.1) & (pl.col("given_rel") < 0.01),
        "The output's maximum relative error exceeds 0.1, while the input/parameter's is below 0.01",
    )
    return [(relative > 0.5, "maximum relative error exceeds 0.5")], [yellow]
