"""Judge rows.

A row's verdict is ``pass``, ``warning``, ``error`` or ``unmatched``. Rules, in words:

* A row that one side lacks is unmatched; it never passes.
* NaN or Inf that are not the same on both sides are an error, and so are different shapes, a tensor against
  nothing, and different scalar arguments.
* Otherwise the row's ``error`` is held against the limit of the coarsest precision that the value has come through on
  either side, see `msprobe_core.judge.inherited`: what a bfloat16 operation has made is no better than bfloat16,
  whatever is computed from it. A different dtype alone is therefore no error. Integers and booleans must be equal.
* Where both sides have sketches, what the relative error is at least by these takes part.
* Where checksums are compared, different ones are an error whatever the statistics say.
* Exempt are: memory that was not written, see `msprobe_core.judge.uninitialised`; the gradient of a bias that
  vanishes, on both sides, beside the gradient it is
  the sum of (zero in exact arithmetic, as that of the bias of an attention key); and a golden tensor of zeros where the
  target has a few unit round-offs of what it was computed from.
* A limit that is given for a row by name takes the place of the conventional one, of checksums and of equality; it does
  not excuse NaN, Inf, shapes or missing values. ``ignore`` excuses everything.
* Between two frameworks, what `msprobe_core.judge.cross_framework` excuses passes, and so do ``requires_grad``,
  numbers of another type, and sizes and dimensions that one side counts from the end.
* A value that a side could not record is a warning that says why; whatever else is known of it is judged.
* Different ``requires_grad``, dtypes of different kinds (float against int), and statistics that only one side has, are
  a warning.

Whatever looks for differences later reads ``judged_error``, which is null for rows that are exempt or not comparable.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import polars as pl

from msprobe_core import names
from msprobe_core.errors import CompareError
from msprobe_core.judge import activation_flips, overrides, statistics_columns
from msprobe_core.judge.columns import SKETCH_ERROR, SKETCH_LOW, Match
from msprobe_core.judge.formatting import formatted
from msprobe_core.judge.inherited import inherited_precision
from msprobe_core.judge.joining import joined, numbered
from msprobe_core.judge.limits import LOWEST_FINITE, LimitTable, Precision, conventional, kind_of, precision_of
from msprobe_core.judge.nesting import is_moved, moved_text
from msprobe_core.judge.noise import model as noise_model
from msprobe_core.judge.noise_gradients import is_vanishing_vector, noise_rows
from msprobe_core.judge.uninitialised import uninitialised_rows
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Scorer = Callable[[pl.DataFrame], pl.DataFrame]
    """Adds the columns of `msprobe_core.judge.noise.model.SCORES` and its helpers to judged rows."""

    Excuser = Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]
    """Takes rows of one side alone, and the pairs with their verdicts; returns the former with more in ``excuse``."""


class Verdict(str, Enum):
    """Of a row or a node."""

    PASS = "pass"  # noqa: S105  # not a password
    WARNING = "warning"
    ERROR = "error"
    UNMATCHED = "unmatched"


FROM_END = "is_counted_from_end"
"""Column that says of two numbers that they are one size or dimension, which one side counts from the end."""

UNRECORDED = "unrecorded"
"""How counts call the rows of values that a side could not record."""

DEVICE_TEXT = r"^(cpu|cuda|npu|gpu|xpu|mps|meta|ascend)(:(\d+|None))?$"
_DTYPE_TEXT = r"^(torch|mindspore)\.\w+$"

_FOREIGN_DTYPE = r"^((torch|mindspore|ms|mstype)\.)?(b?float|u?int|complex|bool)_?\d*$"

_HELPERS = (
    "row",
    "precision_target",
    "excuse",
    FROM_END,
    "precision_golden",
    "precision_limit",
    "own_error",
    "is_special",
    "is_uninitialised",
    "is_vanishing",
    "rounds_to_zero",
    *activation_flips.HELPERS,
    *overrides.HELPERS,
    *noise_model.HELPERS,
)


def judge(
    compared: pl.DataFrame,
    *,
    by_checksum: bool = False,
    limits: LimitTable | None = None,
    is_foreign: bool = False,
    has_nesting: bool = False,
    scorer: Scorer | None = None,
    excuser: Excuser | None = None,
    parents: Mapping[str, str | None] | None = None,
) -> pl.DataFrame:
    """Return ``compared`` with ``limit``, ``is_exempt``, ``judged_error``, ``verdict`` and ``messages`` (lists).

    ``limit`` is the largest relative error that passes; null where a limit given by name holds that says nothing of it.
    ``override`` says which one that is, in words, and is null elsewhere.

    Args:
        compared: Aligned rows with ``error``; where the tensors themselves were compared also ``problem``, text
            that says why a pair could not be.
        by_checksum: Whether different checksums are an error.
        limits: Those in force; the conventional ones if none are given.
        is_foreign: Whether the two are of different frameworks.
        has_nesting: Whether rows without values are calls, which are an error where they are nested in another way.
        scorer: What scores rows by the noise of healthy runs. With it there are the columns ``noise_floor``, ``score``,
            ``score_limit`` and ``score_measure``, and of a row that has a score, and no limit by name, that decides;
            its ``limit`` is null.
        excuser: What excuses rows of one side alone by the verdicts of the pairs, which are made first.
        parents: The enclosing call of each of the target's calls.
    """
    table = conventional() if limits is None else limits
    prepared = activation_flips.with_kinks(_with_precision(_with_absent_columns(compared), table, parents or {}), table)
    prepared = _with_source(prepared)
    prepared = overrides.with_overrides(_with_judged_error(prepared, table), table)
    prepared = _with_scores(prepared, scorer).with_row_index("row")
    # Texts are made for the rows that may need one; in a healthy pair those are few.
    is_plain = _is_plain(by_checksum=by_checksum, is_foreign=is_foreign)
    findings = _findings(table, by_checksum=by_checksum, is_foreign=is_foreign)
    if has_nesting:
        is_plain &= ~is_moved()
        findings.append((Verdict.ERROR, is_moved(), moved_text()))
    others = prepared.filter(~is_plain.fill_null(False))
    return (
        _with_verdicts(prepared, _described_in_turn(prepared, others, findings, excuser))
        .with_columns(limit=pl.when(_is_scored()).then(None).otherwise("limit"))
        .drop(*_HELPERS, *[name for name in (SKETCH_ERROR, SKETCH_LOW) if name not in compared.columns])
        .drop([] if scorer is not None else [*noise_model.SCORES])
    )


def _described_in_turn(
    prepared: pl.DataFrame, others: pl.DataFrame, findings: list[_Finding], excuser: Excuser | None
) -> pl.DataFrame:
    """Describe the rows of pairs, and then those of one side alone, which the verdicts of pairs may excuse."""
    if excuser is None:
        return _described(others, findings)
    is_pair = pl.col("match") == Match.BOTH.value
    of_pairs = _described(others.filter(is_pair), findings)
    lone = excuser(others.filter(~is_pair), _with_verdicts(prepared.filter(is_pair), of_pairs))
    columns = ("row", "messages", "verdict")
    return pl.concat([found.select(columns) for found in (of_pairs, _described(lone, findings))])


def _with_verdicts(rows: pl.DataFrame, described: pl.DataFrame) -> pl.DataFrame:
    return joined(rows, described, on="row").with_columns(
        pl.col("verdict").fill_null(Verdict.PASS.value),
        pl.coalesce("messages", pl.lit([], dtype=pl.List(pl.String))),
    )


def _with_scores(rows: pl.DataFrame, scorer: Scorer | None) -> pl.DataFrame:
    if scorer is not None:
        return scorer(rows)
    return rows.with_columns(pl.lit(None, kind).alias(name) for name, kind in noise_model.SCORES.items()).with_columns(
        **{name: pl.lit(None) for name in noise_model.HELPERS if name != "num_flips"}, num_flips=pl.lit(0)
    )


def _is_scored() -> pl.Expr:
    """Whether a row is judged by its score."""
    return pl.col("score").is_not_null() & ~pl.col("is_overridden")


_ABSENT = {
    "problem": pl.String,
    "excuse": pl.String,
    FROM_END: pl.Boolean,
    SKETCH_ERROR: pl.Float64,
    SKETCH_LOW: pl.Float64,
}
"""Columns that only some comparisons have."""


def _with_absent_columns(compared: pl.DataFrame) -> pl.DataFrame:
    absent = [pl.lit(None, dtype=kind).alias(name) for name, kind in _ABSENT.items() if name not in compared.columns]
    compared = compared.with_columns(absent)
    if "euclidean" in compared.columns:  # what is known needs no estimate
        return compared.with_columns(pl.when(pl.col("euclidean").is_null()).then(pl.col(SKETCH_LOW)).alias(SKETCH_LOW))
    return compared


def _with_precision(compared: pl.DataFrame, table: LimitTable, parents: Mapping[str, str | None]) -> pl.DataFrame:
    sides = ("target", "golden")
    # Texts are looked at once each; a dump has few dtypes.
    dtypes = [dtype for dtype in pl.concat([compared[f"dtype_{s}"] for s in sides]).unique().to_list() if dtype]
    precisions = {dtype: None if (found := precision_of(dtype)) is None else int(found) for dtype in dtypes}
    kinds = {dtype: kind_of(dtype) for dtype in dtypes}
    own = [pl.col(f"dtype_{side}").replace_strict(precisions, default=None, return_dtype=pl.Int8) for side in sides]
    is_tensor = (pl.col("kind_target") == RowKind.TENSOR.value).fill_null(False)
    own_precisions = compared.with_columns(
        precision=pl.when(is_tensor).then(_at_least_of_mask(pl.max_horizontal(own))),
        precision_target=own[0],
        precision_golden=own[1],
        kind_of_target=pl.col("dtype_target").replace_strict(kinds, default=None, return_dtype=pl.String),
        kind_of_golden=pl.col("dtype_golden").replace_strict(kinds, default=None, return_dtype=pl.String),
    )
    return (
        own_precisions.with_columns(inherited_precision(own_precisions, parents))
        .with_columns(precision_limit=table.limit_of(pl.col("precision")))
        .with_columns(limit=pl.col("precision_limit"))
    )


def _at_least_of_mask(own: pl.Expr) -> pl.Expr:
    """Return a precision, or that of a coarser format whose lowest number the tensor holds, as masks do."""
    for number, precision in ((LOWEST_FINITE[0], Precision.FLOAT16), (LOWEST_FINITE[1], Precision.BFLOAT16)):
        holds = pl.any_horizontal(pl.col(f"min_{side}") == number for side in ("target", "golden"))
        level = pl.max_horizontal(own, pl.lit(int(precision), dtype=pl.Int8))
        own = pl.when(own.is_not_null() & holds).then(level).otherwise(own)
    return own


def _with_source(compared: pl.DataFrame) -> pl.DataFrame:
    """Add the largest norm, magnitude and number of elements of golden tensors that the call was given.

    ``source_norm``, ``source_size`` and ``source_numel``; null for what it was given itself.
    """
    numbers = numbered(compared["entry"])
    sizes = compared.select(
        "role",
        is_tensor=_both(RowKind.TENSOR),
        source=numbers,
        source_norm="norm_golden",
        source_size=_size("golden"),
        source_numel="numel_golden",
    )
    is_given = (pl.col("role") == Role.INPUT.value) & pl.col("is_tensor")
    given = sizes.filter(is_given).group_by("source").agg(pl.col("source_norm", "source_size", "source_numel").max())
    is_made = pl.col("role") != Role.INPUT.value
    source = pl.when(is_made).then(pl.lit(numbers).replace(_sources(compared, numbers)))
    return joined(compared.with_columns(source=source), given, on="source").drop("source")


def _sources(compared: pl.DataFrame, numbers: pl.Series) -> dict[int, int | None]:
    """Return the number of the entry that gradients of parameters are computed in, by that of their own entry."""
    entries = compared.select("entry", number=numbers, is_own=pl.col("role") == Role.PARAMETERS_GRAD.value)
    own = dict(entries.filter("is_own").select("entry", "number").unique().rows())
    wanted = {entry: source for entry in own if (source := names.backward_of_parameters(entry)) is not None}
    is_wanted = pl.col("entry").is_in(list(wanted.values()))
    found = dict(entries.filter(is_wanted).select("entry", "number").unique().rows()) if wanted else {}
    return {own[entry]: found.get(source) for entry, source in wanted.items()}


def _with_judged_error(compared: pl.DataFrame, table: LimitTable) -> pl.DataFrame:
    grounds = ("is_uninitialised", "is_vanishing", "rounds_to_zero")
    comparable = (pl.col("match") == Match.BOTH.value) & _both(RowKind.TENSOR) & _same_shape() & ~pl.col("is_special")
    noise = noise_rows(compared, table)
    is_special = statistics_columns.has_nan_mismatch() | statistics_columns.has_inf_mismatch()
    differs = (
        is_special | (pl.col("error") > pl.col("limit")) | (pl.col("checksum_target") != pl.col("checksum_golden"))
    )
    unset = uninitialised_rows(compared, table.uninitialised, differs=differs)
    return (
        compared.with_columns(
            own_error=pl.when("is_behind_kink").then(pl.coalesce("whole_error", "error")).otherwise("error"),
            is_special=is_special,
            is_uninitialised=pl.int_range(pl.len()).is_in(unset),
            is_vanishing=is_vanishing_vector(table).fill_null(False) | pl.int_range(pl.len()).is_in(noise),
            rounds_to_zero=_rounds_to_zero(table),
        )
        .with_columns(is_exempt=pl.any_horizontal(*grounds, pl.col("excuse").is_not_null()).fill_null(False))
        .with_columns(
            judged_error=pl.when(comparable & ~pl.col("is_exempt")).then(pl.max_horizontal("own_error", SKETCH_LOW))
        )
    )


def _is_plain(*, by_checksum: bool, is_foreign: bool) -> pl.Expr:
    """Whether a row passes and there is nothing to say of it, as of nearly all rows of a healthy pair."""
    # Another framework's dtypes are spelled in another way; what its texts mean does not matter here.
    kinds = [pl.col("kind_of_target"), pl.col("kind_of_golden")]
    same_precision = pl.col("precision_golden").eq_missing(pl.col("precision_target"))
    same_dtype = pl.col("dtype_target") == pl.col("dtype_golden")
    if is_foreign:
        same_dtype = same_dtype | (kinds[0].eq_missing(kinds[1]) & same_precision)
    same_grad = ~_other_grad(is_foreign=is_foreign).fill_null(False)
    is_within = (
        pl.when(pl.col("score").is_null())
        .then(pl.max_horizontal("error", SKETCH_LOW) <= pl.col("precision_limit"))
        .otherwise(pl.col("score") <= pl.col("score_limit"))
    )
    is_number = ~pl.col("max_target").is_nan() & (pl.col("num_nan_target").fill_null(0) == 0)
    is_sound = ~has_failed() & pl.col("problem").is_null() & pl.col("exact_target").is_null()
    tensors = _both(RowKind.TENSOR) & same_dtype & _same_shape() & same_grad & is_within & is_number & is_sound
    if by_checksum:
        tensors &= pl.col("checksum_target") == pl.col("checksum_golden")
    scalars = _both(RowKind.SCALAR) & (pl.col("text_target") == pl.col("text_golden")) & ~has_failed()
    is_nothing = _both(RowKind.NONE) & ~has_failed()
    is_pair = (pl.col("match") == Match.BOTH.value) & pl.col("override").is_null()
    return is_pair & ~pl.col("is_special") & (tensors.fill_null(False) | scalars.fill_null(False) | is_nothing)


def _other_grad(*, is_foreign: bool) -> pl.Expr:
    """Whether ``requires_grad`` differs, which says nothing between two frameworks."""
    return pl.lit(value=False) if is_foreign else pl.col("requires_grad_target") != pl.col("requires_grad_golden")


def _same_shape() -> pl.Expr:
    return pl.col("shape_target") == pl.col("shape_golden")


def _size(side: str) -> pl.Expr:
    return pl.max_horizontal(pl.col(f"max_{side}").abs(), pl.col(f"min_{side}").abs())


def _rounds_to_zero(table: LimitTable) -> pl.Expr:
    share = table.vanishing_share_of(pl.col("precision"))
    return (_size("golden") == 0) & (_size("target") > 0) & (_size("target") <= share * pl.col("source_size"))


_Finding = tuple[Verdict, pl.Expr, pl.Expr]
"""Level, condition, text."""


def _findings(table: LimitTable, *, by_checksum: bool, is_foreign: bool) -> list[_Finding]:
    """Return what may be said of a row: errors before warnings before notes."""
    is_pair = pl.col("match") == Match.BOTH.value
    both_tensors = is_pair & _both(RowKind.TENSOR)
    both_scalars = is_pair & _both(RowKind.SCALAR)
    numbers = both_tensors & ~pl.col("is_uninitialised").fill_null(False)
    by_convention = ~pl.col("is_overridden")
    same_shape = _same_shape()
    same_dtype = pl.col("dtype_target") == pl.col("dtype_golden")
    same_kind = pl.col("kind_of_target").eq_missing(pl.col("kind_of_golden"))
    by_score = by_convention & pl.col("score").is_not_null()
    # What flips between healthy repetitions, such as the choice of an expert, may flip in the target too.
    by_rule = by_convention & (pl.col("num_flips") == 0)
    over = by_rule & pl.col("score").is_null() & (pl.col("judged_error") > pl.col("limit"))
    statistics_over = pl.col("own_error") > pl.col("limit")
    other_bytes = numbers & (pl.col("checksum_target") != pl.col("checksum_golden")) & by_checksum
    other_integers = numbers & (pl.col("exact_target") != pl.col("exact_golden"))
    agree = _scalars_agree(table, is_foreign=is_foreign)
    other_arguments = both_scalars & ~agree
    is_default = _is_default() if is_foreign else pl.lit(value=False)
    other_kinds = is_pair & (pl.col("kind_target") != pl.col("kind_golden")) & ~has_failed()
    is_excused = numbers & pl.col("is_exempt") & statistics_over
    keeps_not = pl.any_horizontal(*[pl.col(f"fails_{term}").fill_null(False) for term in overrides.TERMS])
    return [
        (
            Verdict.ERROR,
            other_kinds & ~is_default,
            formatted("error: the target has {}, the golden {}.", _what("target"), _what("golden")),
        ),
        (
            Verdict.ERROR,
            both_tensors & ~same_shape & (pl.col("num_flips") == 0),
            formatted("error: the shapes differ, {} and {}.", "shape_target", "shape_golden"),
        ),
        (
            Verdict.ERROR,
            numbers & statistics_columns.has_nan_mismatch(),
            formatted("error: NaN differs: the target has {}, the golden {}.", _num_nan("target"), _num_nan("golden")),
        ),
        (
            Verdict.ERROR,
            numbers & statistics_columns.has_inf_mismatch(),
            formatted("error: Inf differs: maximum and minimum are {} and {}, golden {} and {}.",
                      *[_known(f"{name}_{side}") for side in ("target", "golden") for name in ("max", "min")]),
        ),
        (
            Verdict.ERROR,
            numbers & pl.col("problem").is_not_null() & same_shape,
            formatted("error: the tensors could not be compared: {}.", "problem"),
        ),
        (
            Verdict.ERROR,
            by_rule & other_bytes & pl.col("score").is_null()
            & ~(pl.col("judged_error") <= pl.col("limit")).fill_null(False),
            pl.lit("error: the checksum differs."),
        ),
        (
            Verdict.ERROR,
            by_rule & other_bytes & pl.col("score").is_null() & (pl.col("judged_error") <= pl.col("limit")),
            formatted("error: the checksum differs; the relative error of the statistics, {}, is within the limit {}.",
                      _rounded("judged_error"), "limit"),
        ),
        (
            Verdict.ERROR,
            by_rule & other_integers,
            formatted("error: the integers differ: maximum and minimum are {}, golden {}.",
                      "exact_target", "exact_golden"),
        ),
        (
            Verdict.ERROR,
            numbers & over & statistics_over & (pl.col("limit") > 0),
            formatted("error: the relative error {} is over the limit {}.", _rounded("own_error"), _rounded("limit")),
        ),
        (
            Verdict.ERROR,
            numbers & over & ~statistics_over.fill_null(False) & (pl.col("limit") > 0),
            formatted("error: the relative error estimated from sketches, {}, is over the limit {} (in 97 of 100 cases "
                      "it is {} or more).", _rounded(SKETCH_ERROR), "limit", _rounded(SKETCH_LOW)),
        ),
        (
            Verdict.ERROR,
            numbers & over & (pl.col("limit") == 0),
            pl.lit("error: the values differ, and values of this dtype must be equal."),
        ),
        (Verdict.ERROR, numbers & by_score & (pl.col("score") > pl.col("score_limit")), _score_text()),
        *[
            (
                Verdict.ERROR,
                (numbers | both_scalars) & pl.col(f"fails_{term}"),
                formatted(f"error: {text}, set by {{}}.", _rounded(f"known_{term}"), f"own_{term}", "override"),
            )
            for term, text in _OVERRIDDEN.items()
        ],
        (
            Verdict.ERROR,
            by_rule & other_arguments,
            formatted("error: the arguments differ, {} and {}.", "text_target", "text_golden"),
        ),
        (
            Verdict.WARNING,
            is_pair & has_failed(),
            formatted("warning: not compared, because it was not recorded: {}.", failures()),
        ),
        (
            Verdict.WARNING,
            both_tensors & ~same_kind,
            formatted("warning: the dtypes are of different kinds, {} and {}.", "dtype_target", "dtype_golden"),
        ),
        (
            Verdict.WARNING,
            both_tensors & _other_grad(is_foreign=is_foreign),
            pl.lit("warning: requires_grad differs."),
        ),
        (
            Verdict.WARNING,
            numbers & same_shape & is_uncompared() & (_lacks_statistics("target") != _lacks_statistics("golden")),
            formatted("warning: the values were not compared: the {} has no statistics.",
                      pl.when(_lacks_statistics("target")).then(pl.lit("target")).otherwise(pl.lit("golden"))),
        ),
        (
            Verdict.PASS,
            numbers & same_shape & is_uncompared() & _lacks_statistics("target") & _lacks_statistics("golden"),
            pl.lit("note: the values were not compared: neither side has statistics."),
        ),
        (
            Verdict.PASS,
            both_tensors & ~same_dtype & same_kind,
            formatted("note: the dtypes are {} and {}; the coarser sets the limit.", "dtype_target", "dtype_golden"),
        ),
        (
            Verdict.PASS,
            numbers & ~pl.col("is_special") & (pl.col("num_nan_target") > 0).fill_null(pl.col("max_target").is_nan()),
            pl.lit("note: both sides hold NaN."),
        ),
        (
            Verdict.PASS,
            is_excused & pl.col("is_vanishing"),
            pl.lit("note: this gradient is rounding noise on both sides; it vanishes beside what it is computed from."),
        ),
        (
            Verdict.PASS,
            is_excused & pl.col("rounds_to_zero"),
            pl.lit("note: the golden tensor is zero and the target a few roundings of what it is computed from."),
        ),
        (
            Verdict.PASS,
            numbers & by_convention & pl.col("is_behind_kink") & (pl.col("judged_error") <= pl.col("limit"))
            & (pl.max_horizontal("error", SKETCH_LOW) > pl.col("precision_limit")),
            formatted("note: behind a rectifier, where rounding lets other elements of the gradient through; as a "
                      "whole it is {} off, the limit {}.", _rounded("judged_error"), _rounded("limit")),
        ),
        (
            Verdict.PASS,
            pl.col("is_overridden") & ~keeps_not
            & (other_bytes | other_integers | other_arguments | (pl.col("own_error") > pl.col("conventional_limit"))
               ).fill_null(False),
            formatted("note: within the limit set by {}, and not within the conventional one.", "override"),
        ),
        (
            Verdict.PASS,
            by_convention & (pl.col("num_flips") > 0)
            & ((both_tensors & ~same_shape) | (numbers & _differs_exactly(by_checksum=by_checksum)) | other_arguments),
            formatted("note: differs, as it does between healthy runs: in {} of {} repetitions.",
                      "num_flips", "num_repeats"),
        ),
        (
            Verdict.PASS,
            both_scalars & agree & (pl.col("text_target") != pl.col("text_golden")),
            formatted("note: the arguments are {} and {}.", "text_target", "text_golden"),
        ),
        (
            Verdict.PASS,
            other_kinds & is_default,
            formatted("note: the target has {}, the golden {}.", _what("target"), _what("golden")),
        ),
    ]  # fmt: skip


def _score_text() -> pl.Expr:
    where = (
        pl.when(pl.col("noise_source") == noise_model.NoiseSource.MEASURED.value)
        .then(formatted("measured on {} repetitions", "num_repeats"))
        .otherwise(pl.lit("by the closed form, not measured"))
    )
    return formatted(
        "error: {}x what rounding explains ({}; limit {}): {} is {} off, relative, where rounding explains {}; the "
        "evidence is {}.",
        pl.col("score").round_sig_figs(2), where, pl.col("score_limit").round_sig_figs(2), "score_word",
        _rounded("score_error"), _rounded("noise_floor"), "evidence",
    )  # fmt: skip


def _differs_exactly(*, by_checksum: bool) -> pl.Expr:
    """Whether a row breaks a rule that knows no size."""
    other_bytes = (pl.col("checksum_target") != pl.col("checksum_golden")) & by_checksum
    other_integers = (pl.col("judged_error") > 0) & pl.col("precision").is_null()
    return pl.any_horizontal(
        rule.fill_null(value=False)
        for rule in (other_bytes, other_integers, pl.col("exact_target") != pl.col("exact_golden"))
    )


_OVERRIDDEN = {
    "rel": "the relative error {} is over the limit {}",
    "abs": "the largest absolute difference, {} or more, is over the limit {}",
    "cos": "the cosine similarity {} is below the limit {}",
    "ulp": "the largest difference of {} units in the last place is over the limit {}",
}
"""What is said of a row that does not keep to a limit that it has by name."""


_RANKS = {level.value: rank for rank, level in enumerate(Verdict)}
"""The worst of what is said of a row is its verdict; members stand from the best to the worst."""


def _described(rows: pl.DataFrame, findings: list[_Finding]) -> pl.DataFrame:
    """Return ``row``, ``verdict`` and ``messages`` of the rows of which there is something to say."""
    is_pair = pl.col("match") == Match.BOTH.value
    is_excused = pl.col("excuse").is_not_null()
    is_ignored = pl.col("is_ignored") | is_excused
    lone = formatted("unmatched: this row is in the {} dump only.", pl.col("match").str.slice(5))
    said: list[_Finding] = [
        *[(level, condition & is_pair & ~is_ignored, text) for level, condition, text in findings],
        (Verdict.UNMATCHED, ~is_pair & ~is_ignored, lone),
        (Verdict.PASS, pl.col("is_ignored"), formatted("note: ignored, as {} says.", "override")),
        (Verdict.PASS, is_excused, formatted("note: {}.", "excuse")),
    ]
    holds = rows.select(condition.fill_null(False).alias(str(i)) for i, (_, condition, _) in enumerate(said))
    parts = [
        rows.filter(holds[str(i)]).select("row", rank=pl.lit(_RANKS[level.value]), messages=text)
        for i, (level, _, text) in enumerate(said)
        if holds[str(i)].any()
    ]
    if not parts:
        schema = {"row": rows.schema["row"], "verdict": pl.String, "messages": pl.List(pl.String)}
        return pl.DataFrame(schema=schema)
    by_rank = {rank: level for level, rank in _RANKS.items()}
    return (
        pl.concat(parts)
        .group_by("row", maintain_order=True)
        .agg("messages", verdict=pl.col("rank").max())
        .with_columns(pl.col("verdict").replace_strict(by_rank, return_dtype=pl.String))
    )


def _both(kind: RowKind) -> pl.Expr:
    return (pl.col("kind_target") == kind.value) & (pl.col("kind_golden") == kind.value)


def _what(side: str) -> pl.Expr:
    kind = pl.col(f"kind_{side}")
    return (
        pl.when(kind == RowKind.NONE.value).then(pl.lit("nothing"))
        .when(kind == RowKind.TENSOR.value).then(pl.lit("a tensor"))
        .otherwise(formatted("the value {}", f"text_{side}"))
    )  # fmt: skip


def _num_nan(side: str) -> pl.Expr:
    counted = pl.col(f"num_nan_{side}")
    has_some = pl.any_horizontal(
        *[pl.col(f"{name}_{side}").is_nan().fill_null(False) for name in statistics_columns.STATISTICS]
    )
    # A count of 0 beside a statistic that is NaN: the tool that recorded it may have computed that in low precision.
    return (
        pl.when(counted > 0).then(counted.cast(pl.String))
        .when(has_some).then(pl.lit("some"))
        .otherwise(pl.coalesce(counted.cast(pl.String), pl.lit("none")))
    )  # fmt: skip


def _known(column: str) -> pl.Expr:
    """Return numbers as text; a null would make the whole sentence null."""
    return pl.col(column).cast(pl.String).fill_null("unknown")


def _rounded(name: str) -> pl.Expr:
    return pl.col(name).round_sig_figs(3)


def _is_default() -> pl.Expr:
    """Whether one side has a value where the other has nothing, or a number where the other has a tensor of it."""
    kinds = [pl.col(f"kind_{side}").cast(pl.String) for side in ("target", "golden")]
    has_tensor = pl.any_horizontal(*[kind == RowKind.TENSOR.value for kind in kinds])
    is_number = pl.all_horizontal(*[kind != RowKind.NONE.value for kind in kinds])
    numels = [pl.col(f"numel_{side}").fill_null(1) for side in ("target", "golden")]
    is_same_number = (pl.max_horizontal(numels) == 1) & statistics_columns.is_equal("max") & is_number
    return (pl.col("role") == Role.INPUT.value) & (~has_tensor | is_same_number).fill_null(False)


def _scalars_agree(table: LimitTable, *, is_foreign: bool = False) -> pl.Expr:
    target, golden = pl.col("text_target"), pl.col("text_golden")
    same_text = target == golden
    are_numbers = pl.col("type_target").is_in(["int", "float"]) & pl.col("type_golden").is_in(["int", "float"])
    both_floats = are_numbers & ((pl.col("type_target") == "float") | (pl.col("type_golden") == "float"))
    difference = (pl.col("max_target") - pl.col("max_golden")).abs()
    is_within = difference <= table.scalar * pl.col("max_golden").abs()
    close = both_floats & (statistics_columns.is_equal("max") | is_within)
    lowest = pl.col("max_target").is_in(LOWEST_FINITE) & pl.col("max_golden").is_in(LOWEST_FINITE)
    # Which device a value is on, and which format it is cast to, is what two healthy runs may differ in.
    devices = target.str.contains(DEVICE_TEXT) & golden.str.contains(DEVICE_TEXT)
    dtypes = target.str.contains(_DTYPE_TEXT) & golden.str.contains(_DTYPE_TEXT)
    grounds = [same_text, close, lowest, devices, dtypes]
    if is_foreign:
        types = [pl.col(f"type_{side}") for side in ("target", "golden")]
        are_values = pl.all_horizontal(*[kind.is_in(["int", "float", "bool"]) for kind in types])
        named = [text.str.to_lowercase().str.contains(_FOREIGN_DTYPE) for text in (target, golden)]
        # One may write -1 where the other writes the size or the dimension that this is.
        grounds += [are_values & statistics_columns.is_equal("max"), pl.col(FROM_END), named[0] & named[1]]
    return pl.any_horizontal(ground.fill_null(False) for ground in grounds)


def differs() -> pl.Expr:
    """Whether the values of a pair differ at all, however little; of judged rows."""
    in_statistics = pl.any_horizontal(
        *[(pl.col(f"{name}_diff") != 0).fill_null(False) for name in statistics_columns.STATISTICS]
    )
    in_bytes = (pl.col("checksum_target") != pl.col("checksum_golden")).fill_null(False)
    in_tensors = (pl.col("judged_error") > 0).fill_null(False)
    is_error = pl.col("verdict") == Verdict.ERROR.value
    is_judged = (pl.col("match") == Match.BOTH.value) & ~pl.col("is_exempt")
    return is_judged & (in_statistics | in_bytes | in_tensors | is_error)


def has_failed() -> pl.Expr:
    """Whether a side could not record the value, and says why."""
    return pl.col("failure_target").is_not_null() | pl.col("failure_golden").is_not_null()


def check_recorded(dump: Dump) -> None:
    """Check that a dump holds a tensor, where it holds any that should have been recorded.

    Raises:
        CompareError: every tensor of it is a failed recording.
    """
    if dump.frame["failure"].null_count() == dump.frame.height:
        return
    failed = dump.frame.filter(pl.col("failure").is_not_null())
    recorded = (pl.col("kind") == RowKind.TENSOR.value) & pl.col("failure").is_null()
    if dump.frame.select(recorded.any()).item():
        return
    name, reason = failed.select("name", "failure").row(0)
    raise CompareError(
        f"{dump.path}: none of its {failed.height:,} tensors could be recorded, so there is nothing to compare; the "
        f"first is {name} ({reason}); record the run again"
    )


def failures() -> pl.Expr:
    """Return what the sides say that could not record the value."""
    sides = [
        pl.when(pl.col(f"failure_{side}").is_not_null()).then(formatted(f"{side} {{}}", f"failure_{side}"))
        for side in ("target", "golden")
    ]
    return pl.concat_str(sides, separator="; ", ignore_nulls=True)


def is_uncompared() -> pl.Expr:
    """Whether both sides have a tensor of the same shape with elements, and nothing of its values could be compared.

    Not where a side says why.
    """
    both_tensors = (pl.col("match") == Match.BOTH.value) & _both(RowKind.TENSOR)
    has_no_error = pl.col("error").is_null() & pl.col("judged_error").is_null()
    has_no_ground = has_no_error & ~pl.col("is_exempt") & pl.col("problem").is_null()
    has_checksums = pl.col("checksum_target").is_not_null() & pl.col("checksum_golden").is_not_null()
    is_special = statistics_columns.has_nan_mismatch() | statistics_columns.has_inf_mismatch() | _has_equal_specials()
    return both_tensors & ~has_failed() & has_no_ground & ~has_checksums & ~is_special & (pl.col("numel_golden") > 0)


def _has_equal_specials() -> pl.Expr:
    return pl.any_horizontal(
        *[statistics_columns.is_equal(name).fill_null(False) for name in statistics_columns.STATISTICS]
    )


def _lacks_statistics(side: str) -> pl.Expr:
    return pl.all_horizontal(*[pl.col(f"{name}_{side}").is_null() for name in statistics_columns.STATISTICS])
