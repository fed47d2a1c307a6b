"""Verdicts of rows.

A row's verdict is ``pass``, ``warning``, ``error`` or ``unmatched``. The rules:

* A row that one side lacks is unmatched; it never passes.
* NaN or Inf that differ between the sides are an error, and so are different shapes, a tensor against nothing, and
  different scalar arguments.
* Otherwise the row's ``error`` is compared with the limit of the coarsest precision that contributed to the value on
  either side, see `msprobe_core.judge.inherited_precision`: the result of a bfloat16 operation is no better than
  bfloat16, and neither is anything computed from it. So a different dtype alone is not an error. Integers and booleans
  must be equal.
* If both sides have sketches, the lower bound of the relative error that they give is used too.
* A statistic of a plugin that differs by more than its own limit is an error too, whatever the measure of noise.
* If checksums are compared, different ones are an error whatever the statistics.
* Exempt are: uninitialized memory, see `msprobe_core.judge.uninitialized`; the gradient of a bias, or of what an
  addition has broadcast, that is negligible on both sides relative to the gradient it is the sum of (zero in exact
  arithmetic, as that of the bias of an attention key); and a golden tensor of zeros where the target has a few unit
  round-offs of its sources.
* A limit given for a row by name replaces the conventional one, and the rules for checksums and equality; it does not
  excuse NaN, Inf, shapes or missing values. ``ignore`` excuses everything.
* Between two frameworks, rows excused by `msprobe_core.judge.cross_framework` pass, and so do ``requires_grad``,
  numbers of another type, and sizes and dimensions that one side counts from the end.
* A value that a side could not record is a warning with the reason; all that is known of it is judged.
* Different ``requires_grad``, dtypes of different kinds (float against int), and statistics on one side only are a
  warning.

All later stages read ``judged_error``, which is null for rows that are exempt or not comparable.
"""

from __future__ import annotations

from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

import polars as pl

from msprobe_core import names
from msprobe_core.errors import NoValuesError
from msprobe_core.findings import Level
from msprobe_core.judge import activation_flips, overrides, statistics_columns
from msprobe_core.judge.columns import EXTRA_ERROR, EXTRA_LIMIT, EXTRA_STATISTIC, SKETCH_ERROR, SKETCH_LOW, Match
from msprobe_core.judge.inherited_precision import inherited_precision
from msprobe_core.judge.joining import (
    any_of,
    filtered,
    filtered_parts,
    joined,
    numbered,
    parts_of,
    with_added,
    with_marks,
)
from msprobe_core.judge.limits import LOWEST_FINITE, LimitTable, Precision, conventional, kind_of, precision_of
from msprobe_core.judge.noise import model as noise_model
from msprobe_core.judge.noise_gradients import is_vanishing_sum, noise_rows, summed
from msprobe_core.judge.noise_in_updates import rows_of_noise
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.judge.row_conditions import (
    EXCUSE,
    EXCUSE_OF,
    FROM_END,
    both,
    has_failed,
    is_moved,
    is_over_in_statistic,
    other_grad,
    same_shape,
)
from msprobe_core.judge.row_findings import SCHEMA, RowRule, described
from msprobe_core.judge.row_rules import rules_of
from msprobe_core.judge.uninitialized import uninitialised_rows
from msprobe_core.model import Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_dump import rows_of
from msprobe_core.store.stored_rows import Rows, roots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Scorer = Callable[[Rows], Rows]
    """Adds the columns of `msprobe_core.judge.noise.model.SCORES` and its helpers to judged rows."""

    Excuser = Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]
    """Gets rows of one side alone, and the pairs with their verdicts; returns the former with more in ``excuse``."""


class Verdict(str, Enum):
    """Verdict of a row or a node."""

    PASS = "pass"  # noqa: S105  # not a password
    WARNING = "warning"
    ERROR = "error"
    UNMATCHED = "unmatched"


UNRECORDED = "unrecorded"
"""Name, in counts, of rows with values that a side could not record."""

_HELPERS = (
    "row",
    "precision_target",
    EXCUSE,
    EXCUSE_OF,
    FROM_END,
    "precision_golden",
    "source_precision",
    "is_sum",
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
    compared: Rows,
    *,
    by_checksum: bool = False,
    limits: LimitTable | None = None,
    is_foreign: bool = False,
    has_nesting: bool = False,
    scorer: Scorer | None = None,
    excuser: Excuser | None = None,
    parents: Mapping[str, str | None] | None = None,
) -> Rows:
    """Return ``compared`` with ``limit``, ``is_exempt``, ``judged_error``, ``verdict`` and the findings of rows.

    Findings are ``messages`` and ``findings``, see `msprobe_core.judge.row_findings`. ``limit`` is the largest relative
    error that passes; null if a limit by name applies that has none. ``override`` names that limit, and is null
    elsewhere.

    Args:
        compared: Aligned rows with ``error``; if the tensors themselves were compared also ``problem`` and ``unread``,
            the reasons why a pair could not be, or not be read.
        by_checksum: Whether different checksums are an error.
        limits: The limits in force; ``None`` uses the conventional ones.
        is_foreign: Whether the dumps are of different frameworks.
        has_nesting: Whether rows without values are calls; different nesting is then an error.
        scorer: Scores rows by the noise of healthy runs. It adds the columns ``noise_floor``, ``score``,
            ``score_limit`` and ``score_measure``. The score decides about rows that have one and no limit by name;
            their ``limit`` is null.
        excuser: Excuses rows of one side alone by the verdicts of the pairs, which are judged first.
        parents: The enclosing calls of the target's calls.
    """
    table = conventional() if limits is None else limits
    prepared = activation_flips.with_kinks(_with_precision(_with_absent_columns(compared), table, parents or {}), table)
    prepared = _with_judged_error(_with_source(prepared), table)
    prepared = overrides.with_overrides(prepared, table)
    prepared = _with_scores(prepared, scorer).with_row_index("row")
    # Texts are rendered only for rows that may need one; in a healthy pair those are few.
    is_plain = _is_plain(by_checksum=by_checksum, is_foreign=is_foreign)
    rules = rules_of(table, by_checksum=by_checksum, is_foreign=is_foreign, has_nesting=has_nesting)
    if has_nesting:
        is_plain &= ~is_moved()
    is_other = ~is_plain.fill_null(False)
    if excuser is None:
        reads = roots_of(is_other, _is_scored(), *chain.from_iterable(rule.expressions for rule in rules))
        judged = with_added(
            prepared,
            lambda part: _verdicts(part, described(part.filter(is_other), rules)),
            dict.fromkeys(["row", "limit", *reads]),
        )
    else:
        found = _described_in_turn(prepared, is_other, rules, excuser)
        judged = with_added(prepared, lambda part: _verdicts(part, found), ["row", "limit", *roots_of(_is_scored())])
    own = (SKETCH_ERROR, SKETCH_LOW, EXTRA_STATISTIC, EXTRA_ERROR, EXTRA_LIMIT)
    absent = [name for name in own if name not in compared.columns]
    return judged.drop(*_HELPERS, *absent).drop([] if scorer is not None else [*noise_model.SCORES])


_OF_PAIRS, _OF_LONE = (
    ("entry", "entry_golden", "role"),
    ("entry", "entry_golden", "match", "is_ignored", EXCUSE, EXCUSE_OF),
)
"""Columns from which rows are excused by verdicts: of pairs, and of rows of one side alone."""


def _described_in_turn(prepared: Rows, is_other: pl.Expr, rules: list[RowRule], excuser: Excuser) -> pl.DataFrame:
    """Describe the rows of pairs first, then those of one side alone, which the verdicts of pairs may excuse."""
    is_pair = pl.col("match") == Match.BOTH.value
    reads = roots_of(is_other, is_pair, _is_scored(), *chain.from_iterable(rule.expressions for rule in rules))
    names = dict.fromkeys([*_OF_PAIRS, *_OF_LONE, "row", "limit", *reads])
    lone: list[pl.DataFrame] = []
    judged: list[pl.DataFrame] = []
    of_pairs: list[pl.DataFrame] = []
    for part in parts_of(prepared, names):
        lone.append(part.filter(is_other & ~is_pair))
        pairs = part.filter(is_pair)
        of_pairs.append(described(pairs.filter(is_other), rules))
        judged.append(pairs.with_columns(_verdicts(pairs, of_pairs[-1]).get_columns()).select(*_OF_PAIRS, "verdict"))
    found = [*of_pairs, described(excuser(pl.concat(lone), pl.concat(judged)), rules)]
    return pl.concat(found, rechunk=True)  # polars 1.30 panics at findings in several chunks


def _verdicts(rows: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Return the findings of rows, the level of the worst as verdict, and the limit that decided."""
    verdict = pl.col("level").replace({Level.NOTE.value: Verdict.PASS.value}).fill_null(Verdict.PASS.value)
    empty = [pl.coalesce(name, pl.lit([], dtype=kind)).alias(name) for name, kind in SCHEMA.items()]
    own = rows.select("row", limit=pl.when(_is_scored()).then(None).otherwise("limit"))
    beside = own.join(found, on="row", how="left", maintain_order="left")
    return beside.select("limit", *empty, verdict=verdict)


def _with_scores(rows: Rows, scorer: Scorer | None) -> Rows:
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
    "unread": pl.String,
    EXCUSE: pl.String,
    EXCUSE_OF: pl.String,
    FROM_END: pl.Boolean,
    SKETCH_ERROR: pl.Float64,
    SKETCH_LOW: pl.Float64,
    EXTRA_STATISTIC: pl.String,
    EXTRA_ERROR: pl.Float64,
    EXTRA_LIMIT: pl.Float64,
}
"""Columns that only some comparisons have."""


def _with_absent_columns(compared: Rows) -> Rows:
    absent = [pl.lit(None, dtype=kind).alias(name) for name, kind in _ABSENT.items() if name not in compared.columns]
    compared = compared.with_columns(absent)
    if "euclidean" in compared.columns:  # known values need no estimate
        return compared.with_columns(pl.when(pl.col("euclidean").is_null()).then(pl.col(SKETCH_LOW)).alias(SKETCH_LOW))
    return compared


def _with_precision(compared: Rows, table: LimitTable, parents: Mapping[str, str | None]) -> Rows:
    sides = ("target", "golden")
    # Parse each distinct text once; a dump has few dtypes.
    texts = [part[f"dtype_{s}"].unique() for s in sides for part in parts_of(compared, [f"dtype_{s}"])]
    dtypes = [dtype for dtype in pl.concat(texts).unique().to_list() if dtype]
    precisions = {dtype: None if (found := precision_of(dtype)) is None else int(found) for dtype in dtypes}
    kinds = {dtype: kind_of(dtype) for dtype in dtypes}
    own = [pl.col(f"dtype_{side}").replace_strict(precisions, default=None, return_dtype=pl.Int8) for side in sides]
    is_tensor = (pl.col("kind_target") == RowKind.TENSOR.value).fill_null(False)
    added = {
        "precision": pl.when(is_tensor).then(_at_least_of_mask(pl.max_horizontal(own))),
        "precision_target": own[0],
        "precision_golden": own[1],
        "kind_of_target": pl.col("dtype_target").replace_strict(kinds, default=None, return_dtype=pl.String),
        "kind_of_golden": pl.col("dtype_golden").replace_strict(kinds, default=None, return_dtype=pl.String),
    }
    own_precisions = with_added(compared, lambda part: part.select(**added), roots_of(*added.values()))
    limit = table.limit_of(pl.col("precision"))
    return with_added(
        own_precisions.with_columns(inherited_precision(own_precisions, parents)),
        lambda part: part.select(precision_limit=limit, limit=limit),
        ["precision"],
    )


def _at_least_of_mask(own: pl.Expr) -> pl.Expr:
    """Return a precision, or the coarser format whose lowest number the tensor contains, as masks do."""
    for number, precision in ((LOWEST_FINITE[0], Precision.FLOAT16), (LOWEST_FINITE[1], Precision.BFLOAT16)):
        holds = pl.any_horizontal(pl.col(f"min_{side}") == number for side in ("target", "golden"))
        level = pl.max_horizontal(own, pl.lit(int(precision), dtype=pl.Int8))
        own = pl.when(own.is_not_null() & holds).then(level).otherwise(own)
    return own


def _with_source(compared: Rows) -> Rows:
    """Add the largest norm, magnitude and number of elements of the golden tensors among a call's inputs.

    The columns are ``source_norm``, ``source_size``, ``source_numel``, and ``source_precision`` of the input with the
    largest norm; null for the inputs themselves. ``is_sum`` is that of `msprobe_core.judge.noise_gradients.summed`.
    """
    numbers = numbered(compared["entry"])
    rows = compared.with_columns(numbers.alias("number"))
    sizes = {
        "source_norm": pl.col("norm_golden"),
        "source_size": _size("golden"),
        "source_numel": pl.col("numel_golden"),
    }
    of_largest = {
        "source_precision": pl.col("precision_golden").sort_by("norm_golden").last(),
        "source_shape": pl.col("shape_golden").sort_by("norm_golden").last(),
    }
    is_given = (pl.col("role") == Role.INPUT.value) & both(RowKind.TENSOR)
    parts = filtered_parts(rows, ["number", *roots_of(*sizes.values(), *of_largest.values())], is_given)
    largest = {name: size.max() for name, size in sizes.items()}
    of_parts = pl.concat([part.group_by(source="number").agg(**largest, **of_largest) for part in parts])
    of_largest_part = pl.col(*of_largest).sort_by("source_norm").last()
    given = of_parts.group_by("source").agg(pl.col(*sizes).max(), of_largest_part)
    is_made = pl.col("role") != Role.INPUT.value
    source = pl.when(is_made).then(pl.col("number").replace(_sources(rows)))
    made = with_added(rows, lambda part: part.select(source=source), ["role", "number"])
    beside = joined(made, given, on="source")
    reads = ["entry", "phase", "shape_golden", "source_shape"]
    return with_added(beside, summed, reads).drop("source", "number", "source_shape")


def _sources(rows: Rows) -> dict[int, int | None]:
    """Return the number of the entry that computes a parameter gradient, by the number of the gradient's own entry."""
    is_own = pl.col("role") == Role.PARAMETERS_GRAD.value
    own = dict(filtered(rows, ["entry", "number"], is_own).unique().rows())
    wanted = {entry: source for entry in own if (source := names.backward_of_parameters(entry)) is not None}
    is_wanted = pl.col("entry").is_in(list(wanted.values()))
    found = dict(filtered(rows, ["entry", "number"], is_wanted).unique().rows()) if wanted else {}
    return {own[entry]: found.get(source) for entry, source in wanted.items()}


def _with_judged_error(compared: Rows, table: LimitTable) -> Rows:
    grounds = ("is_uninitialised", "is_vanishing", "rounds_to_zero")
    comparable = (pl.col("match") == Match.BOTH.value) & both(RowKind.TENSOR) & same_shape() & ~pl.col("is_special")
    compared = with_marks(compared, "is_noise", noise_rows(compared, table))
    is_noise = is_vanishing_sum(table).fill_null(False) | pl.col("is_noise")
    noise = rows_of_noise(compared, is_noise, table)
    is_special = statistics_columns.has_nan_mismatch() | statistics_columns.has_inf_mismatch()
    differs = (
        is_special | (pl.col("error") > pl.col("limit")) | (pl.col("checksum_target") != pl.col("checksum_golden"))
    )
    unset = uninitialised_rows(compared, table.uninitialised, differs=differs)
    marked = with_marks(with_marks(compared, "is_uninitialised", unset), "is_vanishing", noise)
    first = {
        "own_error": pl.when("is_behind_kink").then(pl.coalesce("whole_error", "error")).otherwise("error"),
        "is_special": is_special,
        "is_vanishing": is_noise | pl.col("is_vanishing"),
        "rounds_to_zero": _rounds_to_zero(table),
    }
    is_exempt = pl.any_horizontal(*grounds, pl.col(EXCUSE).is_not_null()).fill_null(False)
    error = pl.when(comparable & ~pl.col("is_exempt")).then(pl.max_horizontal("own_error", SKETCH_LOW))

    def judged(part: pl.DataFrame) -> pl.DataFrame:
        told = part.with_columns(**first).with_columns(is_exempt=is_exempt)
        return told.select(*first, "is_exempt", judged_error=error)

    reads = roots_of(*first.values(), is_exempt, comparable, error)
    return with_added(marked, judged, [name for name in reads if name in marked.columns]).drop("is_noise")


def _is_plain(*, by_checksum: bool, is_foreign: bool) -> pl.Expr:
    """Whether a row passes without findings, as nearly all rows of a healthy pair do."""
    # Frameworks spell dtypes differently; only kind and precision matter.
    kinds = [pl.col("kind_of_target"), pl.col("kind_of_golden")]
    same_precision = pl.col("precision_golden").eq_missing(pl.col("precision_target"))
    same_dtype = pl.col("dtype_target") == pl.col("dtype_golden")
    if is_foreign:
        same_dtype = same_dtype | (kinds[0].eq_missing(kinds[1]) & same_precision)
    same_grad = ~other_grad(is_foreign=is_foreign).fill_null(False)
    is_within = (
        pl.when(pl.col("score").is_null())
        .then(pl.max_horizontal("error", SKETCH_LOW) <= pl.col("precision_limit"))
        .otherwise(pl.col("score") <= pl.col("score_limit"))
    )
    is_number = ~pl.col("max_target").is_nan() & (pl.col("num_nan_target").fill_null(0) == 0)
    is_sound = (
        ~is_over_in_statistic().fill_null(False)
        & ~has_failed()
        & pl.coalesce("problem", "unread").is_null()
        & pl.col("exact_target").is_null()
    )
    tensors = both(RowKind.TENSOR) & same_dtype & same_shape() & same_grad & is_within & is_number & is_sound
    if by_checksum:
        tensors &= pl.col("checksum_target") == pl.col("checksum_golden")
    scalars = both(RowKind.SCALAR) & (pl.col("text_target") == pl.col("text_golden")) & ~has_failed()
    is_nothing = both(RowKind.NONE) & ~has_failed()
    is_pair = (pl.col("match") == Match.BOTH.value) & pl.col("override").is_null()
    return is_pair & ~pl.col("is_special") & (tensors.fill_null(False) | scalars.fill_null(False) | is_nothing)


def _size(side: str) -> pl.Expr:
    return pl.max_horizontal(pl.col(f"max_{side}").abs(), pl.col(f"min_{side}").abs())


def _rounds_to_zero(table: LimitTable) -> pl.Expr:
    if not RoundingRule.ROUNDS_TO_ZERO.is_on:
        return pl.lit(value=False)
    share = table.vanishing_share_of(pl.col("precision"))
    return (_size("golden") == 0) & (_size("target") > 0) & (_size("target") <= share * pl.col("source_size"))


def differs() -> pl.Expr:
    """Whether the values of a pair differ at all, however little; for judged rows."""
    in_statistics = pl.any_horizontal(
        *[(pl.col(f"{name}_diff") != 0).fill_null(False) for name in statistics_columns.STATISTICS]
    )
    in_bytes = (pl.col("checksum_target") != pl.col("checksum_golden")).fill_null(False)
    in_tensors = (pl.col("judged_error") > 0).fill_null(False)
    is_error = pl.col("verdict") == Verdict.ERROR.value
    is_judged = (pl.col("match") == Match.BOTH.value) & ~pl.col("is_exempt")
    return is_judged & (in_statistics | in_bytes | in_tensors | is_error)


def check_recorded(dump: Dump) -> None:
    """Check that a dump contains a tensor, if it should contain any.

    Raises:
        CompareError: the recording of each of its tensors failed.
    """
    rows = rows_of(dump)
    if not any_of(rows, pl.col("failure").is_not_null()):
        return
    recorded = (pl.col("kind") == RowKind.TENSOR.value) & pl.col("failure").is_null()
    if any_of(rows, recorded):
        return
    failed = filtered(rows, ["name", "failure"], pl.col("failure").is_not_null())
    name, reason = failed.select("name", "failure").row(0)
    raise NoValuesError(
        f"{dump.path}: none of its {failed.height:,} tensors could be recorded, so there is nothing to compare; the "
        f"first is {name} ({reason}); record the run again"
    )
