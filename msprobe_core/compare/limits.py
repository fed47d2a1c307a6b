"""How large a difference may be: conventional limits by precision, and what is exempt from them.

The limits are conventions, not measurements of a particular model; ``docs/compare.md`` says how they were chosen
and what they flag on healthy pairs of runs.
"""

from __future__ import annotations

from enum import IntEnum

import polars as pl


class Precision(IntEnum):
    """Floating-point formats, from the finest to the coarsest."""

    FLOAT64 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8 = 4


LIMITS: dict[Precision, float] = {
    Precision.FLOAT64: 1e-6,
    Precision.FLOAT32: 1e-3,
    Precision.FLOAT16: 2e-2,
    Precision.BFLOAT16: 5e-2,
    Precision.FLOAT8: 2.5e-1,
}
"""Largest relative error, dimensionless, that passes; see `msprobe_core.compare.metrics` for how it is measured."""

UNIT_ROUNDOFF: dict[Precision, float] = {
    Precision.FLOAT64: 2.0**-53,
    Precision.FLOAT32: 2.0**-24,
    Precision.FLOAT16: 2.0**-11,
    Precision.BFLOAT16: 2.0**-8,
    Precision.FLOAT8: 2.0**-4,
}
"""Largest relative error of one rounding to nearest. Source: Higham, *Accuracy and Stability*, 2nd ed., sec. 2.1."""

VANISHING = 16
"""What is below this many unit round-offs of what it is computed from is zero but for rounding.

Measured: gradients of the biases of attention keys, which are zero in exact arithmetic, have norms of up to 6 unit
round-offs of the norm of the gradient they are sums of, in float32 and in bfloat16; those of other biases, 28 and more.
"""

SCALAR_LIMIT = 1e-6
"""Largest relative difference of two Python floats given as arguments."""

LOWEST_FINITE = (-65504.0, -3.3895313892515355e38, -3.4028234663852886e38, -1.7976931348623157e308)
"""Smallest finite number of float16, bfloat16, float32 and float64: what masks use for minus infinity."""

UNINITIALISED = (
    "empty", "empty_like", "empty_strided", "empty_permuted", "empty_with_format", "new_empty", "new_empty_strided",
)  # fmt: skip
"""APIs whose result is whatever the memory held before; their outputs are not judged."""

_PATTERNS: tuple[tuple[str, Precision], ...] = (
    ("float64|double", Precision.FLOAT64),
    ("bfloat16", Precision.BFLOAT16),
    ("float16|half", Precision.FLOAT16),
    ("float8|float4|hifloat8|fp8|fp4|hif8", Precision.FLOAT8),
    ("float32|float|complex64|complex128", Precision.FLOAT32),
)
"""The first pattern that a lower-case dtype contains decides; frameworks spell dtypes differently."""


def precision_of(dtype: pl.Expr) -> pl.Expr:
    """Return the `Precision` of a dtype column as an integer; null where it is no floating-point dtype."""
    lowered = dtype.str.to_lowercase()
    found = pl.lit(None, dtype=pl.Int8)
    for pattern, precision in reversed(_PATTERNS):
        found = pl.when(lowered.str.contains(pattern)).then(pl.lit(int(precision), dtype=pl.Int8)).otherwise(found)
    return found


def kind_of(dtype: pl.Expr) -> pl.Expr:
    """Return ``float``, ``complex``, ``int`` or ``bool`` for a dtype column; null for any other."""
    lowered = dtype.str.to_lowercase()
    return (
        pl.when(lowered.str.contains("complex"))
        .then(pl.lit("complex"))
        .when(lowered.str.contains("float|half|double|fp8|fp4|hif8"))
        .then(pl.lit("float"))
        .when(lowered.str.contains("bool"))
        .then(pl.lit("bool"))
        .when(lowered.str.contains("int|long|short|byte|char"))
        .then(pl.lit("int"))
    )


def limit_of(precision: pl.Expr) -> pl.Expr:
    """Return the limit for a column of `Precision` integers; 0 where it is null: other dtypes are exact."""
    return _look_up(precision, LIMITS)


def vanishing_share_of(precision: pl.Expr) -> pl.Expr:
    """Return the share of what a value is computed from, below which it is rounding; never more than the limit."""
    return pl.min_horizontal(VANISHING * roundoff_of(precision), limit_of(precision))


def roundoff_of(precision: pl.Expr) -> pl.Expr:
    """Return the unit round-off for a column of `Precision` integers; 0 where it is null."""
    return _look_up(precision, UNIT_ROUNDOFF)


def _look_up(precision: pl.Expr, table: dict[Precision, float]) -> pl.Expr:
    return precision.replace_strict({int(p): n for p, n in table.items()}, default=0.0, return_dtype=pl.Float64)
