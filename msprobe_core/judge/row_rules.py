"""The rules for findings about rows; `msprobe_core.judge.verdict` describes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from msprobe_core.findings import Level
from msprobe_core.judge import overrides, statistics_columns
from msprobe_core.judge.columns import EXTRA_ERROR, EXTRA_LIMIT, EXTRA_STATISTIC, SKETCH_ERROR, SKETCH_LOW, Match
from msprobe_core.judge.limits import LimitTable
from msprobe_core.judge.noise import model as noise_model
from msprobe_core.judge.row_codes import EXCUSES, RowCode
from msprobe_core.judge.row_conditions import (
    EXCUSE,
    EXCUSE_OF,
    both,
    differs_exactly,
    has_failed,
    is_default,
    is_moved,
    is_over_in_statistic,
    is_uncompared,
    lacks_statistics,
    other_grad,
    same_shape,
    scalars_agree,
)
from msprobe_core.judge.row_findings import RowRule
from msprobe_core.store.frame import RowKind


def rules_of(table: LimitTable, *, by_checksum: bool, is_foreign: bool, has_nesting: bool) -> list[RowRule]:
    """Return the rules, errors before warnings before notes.

    Args:
        table: The limits in force.
        by_checksum: Whether different checksums are an error.
        is_foreign: Whether the dumps are of different frameworks.
        has_nesting: Whether rows without values are calls.
    """
    terms = _Terms(table, by_checksum, is_foreign)
    is_pair = pl.col("match") == Match.BOTH.value
    is_ignored = pl.col("is_ignored") | pl.col(EXCUSE).is_not_null()
    of_pairs = [*_rules_of_presence(terms), *_rules_of_values(terms), *_warnings(terms), *_notes(terms)]
    of_pairs += _rules_of_nesting() if has_nesting else []
    side = pl.col("match").str.slice(5)
    return [
        *[RowRule(rule.code, rule.level, rule.condition & is_pair & ~is_ignored, rule.fields) for rule in of_pairs],
        RowRule(RowCode.LONE, Level.UNMATCHED, ~is_pair & ~is_ignored, {"side": side}),
        RowRule(RowCode.IGNORED, Level.NOTE, pl.col("is_ignored"), _GIVEN_BY),
        *_excuses(),
    ]


def _rules_of_nesting() -> list[RowRule]:
    is_outside = [pl.col(f"text_{side}").is_null() for side in ("target", "golden")]
    return [
        RowRule(RowCode.NESTING, Level.ERROR, is_moved() & ~is_outside[0] & ~is_outside[1], _sides("text")),
        RowRule(RowCode.NESTING_TARGET_OUTSIDE, Level.ERROR, is_moved() & is_outside[0], _sides("text")),
        RowRule(RowCode.NESTING_GOLDEN_OUTSIDE, Level.ERROR, is_moved() & is_outside[1], _sides("text")),
    ]


def _excuses() -> list[RowRule]:
    owner = pl.col(EXCUSE_OF)
    return [
        RowRule(code, Level.NOTE, pl.col(EXCUSE) == code.value, {"side": owner, "entry": owner}) for code in EXCUSES
    ]


@dataclass(frozen=True)
class _Terms:
    """Expressions that several rules share."""

    table: LimitTable
    by_checksum: bool
    is_foreign: bool

    @cached_property
    def tensors(self) -> pl.Expr:
        return both(RowKind.TENSOR)

    @cached_property
    def scalars(self) -> pl.Expr:
        return both(RowKind.SCALAR)

    @cached_property
    def numbers(self) -> pl.Expr:
        """Tensors whose memory was written."""
        return self.tensors & ~pl.col("is_uninitialised").fill_null(value=False)

    @cached_property
    def by_convention(self) -> pl.Expr:
        return ~pl.col("is_overridden")

    @cached_property
    def by_rule(self) -> pl.Expr:
        """Values that change between healthy repetitions, such as an expert's choice, may differ in the target too."""
        return self.by_convention & (pl.col("num_flips") == 0)

    @cached_property
    def other_bytes(self) -> pl.Expr:
        return self.numbers & (pl.col("checksum_target") != pl.col("checksum_golden")) & self.by_checksum

    @cached_property
    def other_integers(self) -> pl.Expr:
        return self.numbers & (pl.col("exact_target") != pl.col("exact_golden"))

    @cached_property
    def arguments_agree(self) -> pl.Expr:
        return scalars_agree(self.table, is_foreign=self.is_foreign)

    @cached_property
    def other_arguments(self) -> pl.Expr:
        return self.scalars & ~self.arguments_agree

    @cached_property
    def same_kind_of_dtype(self) -> pl.Expr:
        return pl.col("kind_of_target").eq_missing(pl.col("kind_of_golden"))

    @cached_property
    def falls_back(self) -> pl.Expr:
        """One side has a default value and the other has none."""
        return is_default() if self.is_foreign else pl.lit(value=False)


def _sides(column: str) -> dict[str, pl.Expr | str]:
    return {"target": f"{column}_target", "golden": f"{column}_golden"}


_GIVEN_BY: dict[str, pl.Expr | str] = {"given_by": "override"}


def _rules_of_presence(terms: _Terms) -> list[RowRule]:
    """Return the rules about presence and kind of values."""
    other_kinds = (pl.col("kind_target") != pl.col("kind_golden")) & ~has_failed()
    return [
        *_kinds(Level.ERROR, other_kinds & ~terms.falls_back),
        RowRule(
            RowCode.SHAPE, Level.ERROR, terms.tensors & ~same_shape() & (pl.col("num_flips") == 0), _sides("shape")
        ),
        RowRule(
            RowCode.NAN,
            Level.ERROR,
            terms.numbers & statistics_columns.has_nan_mismatch(),
            {"target": _num_nan("target"), "golden": _num_nan("golden")},
        ),
        RowRule(
            RowCode.INF,
            Level.ERROR,
            terms.numbers & statistics_columns.has_inf_mismatch(),
            {f"{side}_{name}": f"{name}_{side}" for side in ("target", "golden") for name in ("max", "min")},
        ),
        RowRule(
            RowCode.NOT_COMPARABLE,
            Level.ERROR,
            terms.numbers & pl.col("problem").is_not_null() & same_shape(),
            {"reason": "problem"},
        ),
        RowRule(RowCode.UNREAD, Level.WARNING, terms.numbers & pl.col("unread").is_not_null(), {"reason": "unread"}),
    ]


def _rules_of_values(terms: _Terms) -> list[RowRule]:
    """Return the rules for values that differ by too much."""
    is_within = pl.col("judged_error") <= pl.col("limit")
    statistics_over = pl.col("own_error") > pl.col("limit")
    without_score = terms.by_rule & pl.col("score").is_null()
    over = terms.numbers & without_score & (pl.col("judged_error") > pl.col("limit"))
    error: dict[str, pl.Expr | str] = {"error": "judged_error", "limit": "limit"}
    return [
        RowRule(RowCode.CHECKSUM, Level.ERROR, without_score & terms.other_bytes & ~is_within.fill_null(value=False)),
        RowRule(RowCode.CHECKSUM_ALONE, Level.ERROR, without_score & terms.other_bytes & is_within, error),
        RowRule(RowCode.INTEGERS, Level.ERROR, terms.by_rule & terms.other_integers, _sides("exact")),
        RowRule(
            RowCode.ERROR,
            Level.ERROR,
            over & statistics_over & (pl.col("limit") > 0),
            {**error, "error": "own_error"},
        ),
        RowRule(
            RowCode.SKETCH_ERROR,
            Level.ERROR,
            over & ~statistics_over.fill_null(value=False) & (pl.col("limit") > 0),
            {"error": SKETCH_ERROR, "limit": "limit", "low": SKETCH_LOW},
        ),
        RowRule(RowCode.NOT_EQUAL, Level.ERROR, over & (pl.col("limit") == 0)),
        RowRule(
            RowCode.STATISTIC,
            Level.ERROR,
            terms.numbers & terms.by_rule & same_shape() & ~pl.col("is_exempt") & is_over_in_statistic(),
            {"statistic": EXTRA_STATISTIC, "error": EXTRA_ERROR, "limit": EXTRA_LIMIT},
        ),
        *_scores(terms.numbers & terms.by_convention & (pl.col("score") > pl.col("score_limit"))),
        *[
            RowRule(
                code,
                Level.ERROR,
                (terms.numbers | terms.scalars) & pl.col(f"fails_{term}"),
                {name: f"known_{term}", "limit": f"own_{term}", **_GIVEN_BY},
            )
            for term, (code, name) in _OF_TERMS.items()
        ],
        RowRule(RowCode.ARGUMENT, Level.ERROR, terms.by_rule & terms.other_arguments, _sides("text")),
    ]


_OF_TERMS = {
    "rel": (RowCode.LIMIT_REL, "error"),
    "abs": (RowCode.LIMIT_ABS, "error"),
    "cos": (RowCode.LIMIT_COS, "cosine"),
    "ulp": (RowCode.LIMIT_ULP, "ulps"),
}
"""Code for a row that violates a term of its limit by name, and the field of the known quantity."""


def _scores(over: pl.Expr) -> list[RowRule]:
    is_measured = (pl.col("noise_source") == noise_model.NoiseSource.MEASURED.value).fill_null(value=False)
    fields: dict[str, pl.Expr | str] = {
        **{name: name for name in ("score", "score_limit", "num_repeats", "evidence")},
        "measure": "score_word",
        "error": "score_error",
        "floor": "noise_floor",
    }
    return [
        RowRule(RowCode.SCORE, Level.ERROR, over & is_measured, fields),
        RowRule(RowCode.SCORE_CLOSED_FORM, Level.ERROR, over & ~is_measured, fields),
    ]


def _warnings(terms: _Terms) -> list[RowRule]:
    failed = [pl.col(f"failure_{side}").is_not_null() for side in ("target", "golden")]
    lacking = pl.when(lacks_statistics("target")).then(pl.lit("target")).otherwise(pl.lit("golden"))
    return [
        RowRule(
            RowCode.NOT_RECORDED,
            Level.WARNING,
            failed[0] != failed[1],
            {
                "side": pl.when(failed[0]).then(pl.lit("target")).otherwise(pl.lit("golden")),
                "reason": pl.coalesce("failure_target", "failure_golden"),
            },
        ),
        RowRule(RowCode.NOT_RECORDED_BOTH, Level.WARNING, failed[0] & failed[1], _sides("failure")),
        RowRule(RowCode.DTYPE_KIND, Level.WARNING, terms.tensors & ~terms.same_kind_of_dtype, _sides("dtype")),
        RowRule(RowCode.REQUIRES_GRAD, Level.WARNING, terms.tensors & other_grad(is_foreign=terms.is_foreign)),
        RowRule(
            RowCode.STATISTICS_ON_ONE_SIDE,
            Level.WARNING,
            _uncompared(terms) & (lacks_statistics("target") != lacks_statistics("golden")),
            {"side": lacking},
        ),
    ]


def _uncompared(terms: _Terms) -> pl.Expr:
    return terms.numbers & same_shape() & is_uncompared()


def _notes(terms: _Terms) -> list[RowRule]:
    is_excused = terms.numbers & pl.col("is_exempt") & (pl.col("own_error") > pl.col("limit"))
    same_dtype = pl.col("dtype_target") == pl.col("dtype_golden")
    has_nan = (pl.col("num_nan_target") > 0).fill_null(pl.col("max_target").is_nan())
    is_let_through = (pl.col("judged_error") <= pl.col("limit")) & (
        pl.max_horizontal("error", SKETCH_LOW) > pl.col("precision_limit")
    )
    fails = pl.any_horizontal(*[pl.col(f"fails_{term}").fill_null(value=False) for term in overrides.TERMS])
    would_fail = terms.other_bytes | terms.other_integers | terms.other_arguments
    would_fail = (would_fail | (pl.col("own_error") > pl.col("conventional_limit"))).fill_null(value=False)
    flipped = terms.tensors & ~same_shape()
    flipped |= (terms.numbers & differs_exactly(by_checksum=terms.by_checksum)) | terms.other_arguments
    other_text = pl.col("text_target") != pl.col("text_golden")
    other_kinds = (pl.col("kind_target") != pl.col("kind_golden")) & ~has_failed()
    return [
        RowRule(
            RowCode.NO_STATISTICS,
            Level.NOTE,
            _uncompared(terms) & lacks_statistics("target") & lacks_statistics("golden"),
        ),
        RowRule(RowCode.DTYPE, Level.NOTE, terms.tensors & ~same_dtype & terms.same_kind_of_dtype, _sides("dtype")),
        RowRule(RowCode.NAN_ON_BOTH, Level.NOTE, terms.numbers & ~pl.col("is_special") & has_nan),
        RowRule(RowCode.VANISHING, Level.NOTE, is_excused & pl.col("is_vanishing")),
        RowRule(RowCode.ZERO, Level.NOTE, is_excused & pl.col("rounds_to_zero")),
        RowRule(
            RowCode.RECTIFIER,
            Level.NOTE,
            terms.numbers & terms.by_convention & pl.col("is_behind_kink") & is_let_through,
            {"error": "judged_error", "limit": "limit"},
        ),
        RowRule(RowCode.WITHIN_GIVEN_LIMIT, Level.NOTE, pl.col("is_overridden") & ~fails & would_fail, _GIVEN_BY),
        RowRule(
            RowCode.FLIPS,
            Level.NOTE,
            terms.by_convention & (pl.col("num_flips") > 0) & flipped,
            {"num_flips": "num_flips", "num_repeats": "num_repeats"},
        ),
        RowRule(
            RowCode.ARGUMENT_SPELLING, Level.NOTE, terms.scalars & terms.arguments_agree & other_text, _sides("text")
        ),
        *_kinds(Level.NOTE, other_kinds & terms.falls_back),
    ]


def _kinds(level: Level, condition: pl.Expr) -> list[RowRule]:
    """Return the rules for a kind, tensor, value or nothing, that differs between the sides."""
    is_value = [pl.col(f"kind_{side}") == RowKind.SCALAR.value for side in ("target", "golden")]
    held = {"target": _held("target"), "golden": _held("golden")}
    return [
        RowRule(RowCode.KIND, level, condition & ~is_value[0] & ~is_value[1], held),
        RowRule(RowCode.KIND_VALUE_IN_TARGET, level, condition & is_value[0], {**held, "value": "text_target"}),
        RowRule(RowCode.KIND_VALUE_IN_GOLDEN, level, condition & is_value[1], {**held, "value": "text_golden"}),
    ]


def _held(side: str) -> pl.Expr:
    is_tensor = pl.col(f"kind_{side}") == RowKind.TENSOR.value
    return pl.when(is_tensor).then(pl.lit("a tensor")).otherwise(pl.lit("nothing"))


def _num_nan(side: str) -> pl.Expr:
    """Return the number of NaN of a side; ``some`` or ``none`` if they were not counted."""
    counted = pl.col(f"num_nan_{side}")
    has_some = pl.any_horizontal(
        *[pl.col(f"{name}_{side}").is_nan().fill_null(value=False) for name in statistics_columns.STATISTICS]
    )
    # With a count of 0 and a NaN statistic, the recording tool may have computed the statistic in low precision.
    return (
        pl.when(counted > 0).then(counted.cast(pl.String))
        .when(has_some).then(pl.lit("some"))
        .otherwise(pl.coalesce(counted.cast(pl.String), pl.lit("none")))
    )  # fmt: skip
