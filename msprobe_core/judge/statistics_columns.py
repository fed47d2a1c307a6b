"""Differences between the statistics of two sides, as columns of the whole frame.

For a statistic with target value ``t`` and golden value ``g`` the difference is ``t - g`` and the relative error
``|t - g| / |g|``; both are 0 if the two are equal, where NaN equals NaN.

``error`` is the number by which a row is judged. The relative error of a mean near 0 is meaningless, so each
difference is divided by the size of the tensor instead: the norm by the golden norm, maximum and minimum by
the golden tensor's largest magnitude, the mean by its root mean square; the largest of the four counts.
"""

from __future__ import annotations

import polars as pl

STATISTICS = ("max", "min", "mean", "norm")


READ = (*(f"{name}_{side}" for name in STATISTICS for side in ("target", "golden")), "numel_golden")
"""The columns from which `add_statistics` computes others."""


def add_statistics(aligned: pl.DataFrame) -> pl.DataFrame:
    """Return ``aligned`` with ``{statistic}_diff``, ``{statistic}_rel`` and ``error``; the last two are dimensionless.

    Null if a side lacks the statistic; ``error`` is +Inf if the golden tensor is all zero and the target's is not.
    """
    differences = [_difference(name).alias(f"{name}_diff") for name in STATISTICS]
    relative = [_relative(name).alias(f"{name}_rel") for name in STATISTICS]
    return aligned.with_columns(*differences).with_columns(*relative).with_columns(error=_error())


def is_equal(name: str) -> pl.Expr:
    """Whether a statistic is equal on both sides; NaN equals NaN here."""
    # Not eq_missing, which treats two nulls as equal: a missing statistic is unknown.
    target, golden = pl.col(f"{name}_target"), pl.col(f"{name}_golden")
    return (target == golden) | (target.is_nan() & golden.is_nan())


def added_statistics(aligned: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that `add_statistics` adds, alone."""
    added = [f"{name}_{what}" for what in ("diff", "rel") for name in STATISTICS]
    return add_statistics(aligned).select(*added, "error")


def _difference(name: str) -> pl.Expr:
    target, golden = pl.col(f"{name}_target"), pl.col(f"{name}_golden")
    return pl.when(is_equal(name)).then(0.0).otherwise(target - golden)


def _relative(name: str) -> pl.Expr:
    difference = pl.col(f"{name}_diff")
    ratio = (difference / pl.col(f"{name}_golden")).abs()
    # Tables show the sign of an infinite difference, which a ratio would lose.
    return pl.when(is_equal(name)).then(0.0).when(difference.is_infinite()).then(difference).otherwise(ratio)


def _error() -> pl.Expr:
    size = pl.max_horizontal(pl.col("max_golden").abs(), pl.col("min_golden").abs())
    rms = pl.col("norm_golden") / pl.col("numel_golden").cast(pl.Float64).sqrt()
    parts = [
        _in_relation("norm", pl.col("norm_golden")),
        _in_relation("max", size),
        _in_relation("min", size),
        _in_relation("mean", rms),
    ]
    return pl.max_horizontal(parts)


def _in_relation(name: str, size: pl.Expr) -> pl.Expr:
    difference = pl.col(f"{name}_diff").abs()
    # NaN and Inf have their own rules; null leaves the maximum to the other parts.
    return pl.when(difference == 0.0).then(0.0).when(difference.is_finite() & size.is_finite()).then(difference / size)


def has_nan_mismatch() -> pl.Expr:
    """Whether NaN is on one side only, or in another number of elements."""
    sides = [pl.col(f"{name}_target").is_nan() != pl.col(f"{name}_golden").is_nan() for name in STATISTICS]
    counts = pl.col("num_nan_target") != pl.col("num_nan_golden")
    return pl.any_horizontal(*[side.fill_null(False) for side in sides], counts.fill_null(False))


def has_inf_mismatch() -> pl.Expr:
    """Whether infinities differ in presence, sign or number.

    Only extremes are used: a sum may overflow in the recording tool although the tensor is finite.
    """
    sides = [
        (pl.col(f"{name}_target").is_infinite() | pl.col(f"{name}_golden").is_infinite()) & ~is_equal(name)
        for name in ("max", "min")
    ]
    counts = pl.col("num_inf_target") != pl.col("num_inf_golden")
    return pl.any_horizontal(*[side.fill_null(False) for side in sides], counts.fill_null(False))
