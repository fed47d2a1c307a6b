"""Legitimate differences between two frameworks: rows that one of them has alone, or has not recorded.

An excused row passes, with a note on why it is not judged:

* an argument, other than a tensor, that one side alone passes: an omitted argument has its default value, and
  frameworks have arguments of their own;
* a parameter of one framework that the other keeps without recording it, as running statistics of normalisations;
* a result of an API besides its first, if one side alone returns it, and its gradient;
* a module around the model of the other side, such as a network with its loss; also a module next to the model, such as
  the loss, if the other side has no unmatched module that could be its partner;
* a gradient with respect to an input that one framework alone computes: they differ in which inputs require a gradient.
  Gradients of parameters are not excused;
* a gradient of a parameter that one side alone has, if it is zero: the parameter was not used, for which one framework
  has zeros and the other nothing;
* a gradient with respect to a result besides the first, which one side alone has: it may be unused, or used only by the
  module itself, which a compiled graph does not count;
* all rows of a kind of which one side recorded none, as API calls at level L0;
* an unmatched API call inside a pair of modules whose results agree, or inside the optimizer: another way to compute
  the same;
* an unmatched module inside a pair of modules whose results agree, if the partner has no inner modules at all: a layer
  that is one module in one framework may consist of several in the other, as recurrent layers do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core import names
from msprobe_core.findings import Finding
from msprobe_core.judge.columns import Match
from msprobe_core.judge.joining import filtered, with_marks
from msprobe_core.judge.judge_codes import JudgeCode
from msprobe_core.judge.origins import ancestors
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_conditions import EXCUSE, EXCUSE_OF, FROM_END
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows, frame_of, narrowed, stored_as

_OWNERS = (names.OPTIMIZER, names.CLIP_GRAD)

_SIDES = ("target", "golden")


_READ = (
    *("entry", "entry_golden", "match", "phase", "role"),
    *(f"{name}_{side}" for name in ("place", "kind", "max", "min") for side in _SIDES),
)
"""Columns that excuses depend on."""


def with_excuses(
    aligned: Rows, buffers: Sequence[str], wrappers: tuple[str, str] = ("", "")
) -> tuple[Rows, list[Finding | str]]:
    """Return aligned rows of two frameworks with `EXCUSE`, `EXCUSE_OF` and `FROM_END`, and notes.

    Args:
        aligned: Aligned rows.
        buffers: Canonical names of parameters that a framework may keep without recording them.
        wrappers: For target and golden dump, the path of the module around those that the other side has too.
    """
    rows, notes = _with_unrecorded(frame_of(narrowed(aligned, _READ)))
    is_lone = pl.col("match") != Match.BOTH.value
    side = pl.col("match").str.strip_prefix("only ")
    has_partner = (pl.col("match") == Match.BOTH.value).any().over("entry")
    place = pl.coalesce("place_target", "place_golden") if "place_target" in rows.columns else pl.lit("")
    kind = pl.coalesce("kind_target", "kind_golden").cast(pl.String)
    is_gradient = (pl.col("phase") == Phase.BACKWARD.value) & (pl.col("role") == Role.OUTPUT.value)
    is_passed_on = (pl.col("phase") == Phase.BACKWARD.value) & (pl.col("role") == Role.INPUT.value)
    has_nothing = [(pl.col(f"kind_{name}") == RowKind.NONE.value).fill_null(False) for name in _SIDES]
    one_has_none = (pl.col("match") == Match.BOTH.value) & (has_nothing[0] != has_nothing[1])
    computed_by = pl.when(is_lone).then(side).when(has_nothing[0]).then(pl.lit("golden")).otherwise(pl.lit("target"))
    is_argument = (pl.col("role") == Role.INPUT.value) & (kind != RowKind.TENSOR.value)
    is_buffer = (pl.col("role") == Role.PARAMETERS.value) & place.is_in([f"parameters.{name}" for name in buffers])
    is_api = ~pl.col("entry").str.contains(names.MODULE)
    of_results = pl.when(pl.col("phase") == Phase.BACKWARD.value).then(pl.lit(Role.INPUT.value))
    is_further = is_api & (pl.col("role").cast(pl.String) == of_results.otherwise(pl.lit(Role.OUTPUT.value)))
    found = (
        pl.when(is_lone & has_partner & is_further)
        .then(_excuse(RowCode.EXCUSED_RESULT, side))
        .when(is_lone & ~has_partner & _is_around(rows, wrappers))
        .then(_excuse(RowCode.EXCUSED_AROUND))
        .when(is_lone & has_partner & is_argument)
        .then(_excuse(RowCode.EXCUSED_ARGUMENT, side))
        .when(is_lone & has_partner & is_buffer)
        .then(_excuse(RowCode.EXCUSED_BUFFER, side))
        .when(is_lone & (pl.col("role") == Role.PARAMETERS_GRAD.value) & _is_zero())
        .then(_excuse(RowCode.EXCUSED_ZERO_GRADIENT, side))
        .when((one_has_none | (is_lone & has_partner)) & is_passed_on & ~place.str.contains(r"^input\.0(\.|$)"))
        .then(_excuse(RowCode.EXCUSED_RESULT_GRADIENT, computed_by))
        .when((one_has_none | (is_lone & has_partner)) & is_gradient)
        .then(_excuse(RowCode.EXCUSED_GRADIENT, computed_by))
    )
    excused = _with_excuse(rows, found).select(EXCUSE, EXCUSE_OF)
    marked = with_marks(aligned.hstack(excused), FROM_END, _counted_from_end(aligned))
    return marked, [*notes, *_note_gradients(marked)]


def _excuse(code: RowCode, of: pl.Expr | None = None) -> pl.Expr:
    """Return an excuse with the side or the call that it names."""
    return pl.struct(pl.lit(code.value).alias(EXCUSE), (pl.lit(None, pl.String) if of is None else of).alias(EXCUSE_OF))


def _with_excuse(rows: pl.DataFrame, found: pl.Expr, *, replaces: bool = False) -> pl.DataFrame:
    """Return rows with the excuses found; an earlier excuse stays unless ``replaces``."""
    if EXCUSE not in rows.columns:
        rows = rows.with_columns(pl.lit(None, dtype=pl.String).alias(name) for name in (EXCUSE, EXCUSE_OF))
    is_found = found.struct.field(EXCUSE).is_not_null() & (replaces | pl.col(EXCUSE).is_null())
    return rows.with_columns(
        pl.when(is_found).then(found.struct.field(name)).otherwise(name).alias(name) for name in (EXCUSE, EXCUSE_OF)
    )


def with_excused_groups(rows: Rows) -> Rows:
    """Return aligned rows of two layouts with `EXCUSE` for groups of processes, whose ranks have other numbers."""
    are_groups = [pl.col(f"type_{side}").str.ends_with("ProcessGroup") for side in ("target", "golden")]
    frame = _with_excuse(frame_of(rows), pl.when(pl.all_horizontal(are_groups)).then(_excuse(RowCode.EXCUSED_GROUP)))
    return stored_as(rows, frame)


def _counted_from_end(rows: Rows) -> list[int]:
    """Return the indices of rows whose two integers mean the same size or dimension.

    A dimension counted from the end is less than the other by the number of dimensions of a tensor of the call. In
    place of a size, -1 means the remaining elements, or an unchanged size; the other side's value is then a size of the
    result.
    """
    are_integers = [(pl.col(f"type_{side}") == "int").fill_null(value=False) for side in _SIDES]
    has_other_sign = (pl.col("max_target") < 0) != (pl.col("max_golden") < 0)
    columns = ("entry", "name_target", "name_golden", "max_target", "max_golden")
    pairs = filtered(rows, columns, pl.all_horizontal(*are_integers, has_other_sign), "row")
    if not pairs.height:
        return []
    shapes: dict[str, tuple[set[int], set[int]]] = {}  # numbers of dimensions, and sizes of results
    is_own = pl.col("entry").is_in(pairs["entry"].unique().to_list())
    own = filtered(rows, ("entry", "role", "shape_target", "shape_golden"), is_own)
    for entry, role, *listed in own.rows():
        dimensions, sizes = shapes.setdefault(entry, (set(), set()))
        for shape in filter(None, listed):
            found = [int(size) for size in re.findall(r"\d+", shape)]
            is_result = role == Role.OUTPUT.value
            # A result with more dimensions, as of stacking, has a valid position for one more.
            if not is_result or len(found) > max(dimensions, default=0):
                dimensions.add(len(found))
            sizes.update(found if is_result else ())
    counted: list[int] = []
    for row, entry, own_name, other_name, *values in pairs.rows():
        dimensions, sizes = shapes[entry]
        low, high = sorted(int(value) for value in values)
        is_dimension = _DIMENSION.search(own_name) or _DIMENSION.search(other_name)
        is_size = low == -1 and high in sizes and not is_dimension
        if high - low in dimensions or is_size:
            counted.append(row)
    return counted


_DIMENSION = re.compile(names.DIMENSION_ARGUMENT)
"""Names of arguments that are dimensions, not sizes."""


def _is_zero() -> pl.Expr:
    """Whether a value that one side alone has is a tensor of zeros."""
    extremes = [pl.coalesce(f"{name}_target", f"{name}_golden") for name in ("max", "min")]
    return pl.all_horizontal(*[extreme == 0 for extreme in extremes]).fill_null(value=False)


def _is_around(rows: pl.DataFrame, wrappers: tuple[str, str]) -> pl.Expr:
    """Whether a module is outside of the part that the other side calls its model."""
    is_lone = ~(pl.col("match") == Match.BOTH.value).any().over("entry") & pl.col("entry").str.contains(names.MODULE)
    lone = rows.filter(is_lone).select("entry", "match", "entry_golden").unique(maintain_order=True)
    own = lone.filter(pl.col("match") == Match.TARGET.value)["entry"].to_list()
    other = lone.filter(pl.col("match") == Match.GOLDEN.value).select("entry", "entry_golden").rows()
    sides = ((wrappers[0], [(entry, entry) for entry in own]), (wrappers[1], other))
    # A module next to the model, without a possible partner on the other side, is the loss or similar.
    is_alone = not own or not other
    found = [
        entry
        for wrapper, entries in sides
        for entry, name in entries
        if wrapper and not _is_within(name, wrapper, and_beside=not is_alone)
    ]
    return pl.col("entry").is_in(found)


def _is_within(entry: str, wrapper: str, *, and_beside: bool) -> bool:
    stem = names.stem_of(entry)
    path = "" if stem is None else names.split_module(stem)[1]
    if and_beside:
        return bool(path) and not f"{wrapper}.".startswith(f"{path}.")
    return path.startswith(f"{wrapper}.")


_GROUP = ("is_module", "phase", "role")

_WORDS = {
    Role.INPUT.value: "inputs",
    Role.OUTPUT.value: "outputs",
    Role.PARAMETERS.value: "parameters",
    Role.PARAMETERS_GRAD.value: "parameters' gradients",
}
_BACKWARD_WORDS = {
    Role.INPUT.value: "gradients of outputs",
    Role.OUTPUT.value: "gradients of inputs",
}


def _with_unrecorded(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Add `EXCUSE` to rows of kinds of which one side recorded none."""
    is_saved = pl.col("phase") == Phase.DEBUG.value
    has = {name: pl.col(f"kind_{name}").is_not_null() for name in _SIDES}
    rows = rows.with_columns(is_module=pl.coalesce("entry_golden", "entry").str.contains(names.MODULE))
    counted = rows.group_by(_GROUP, maintain_order=True).agg(**{name: own.sum() for name, own in has.items()})
    absent = counted.filter((pl.col("target") == 0) != (pl.col("golden") == 0))
    absent = absent.with_columns(
        lacking=pl.when(pl.col("target") == 0).then(pl.lit("target")).otherwise(pl.lit("golden")),
        number=pl.max_horizontal(*_SIDES),
    )
    lacking = absent.select(*_GROUP, "lacking")
    rows = rows.join(lacking, on=list(_GROUP), how="left", maintain_order="left")
    is_absent = pl.col("lacking").is_not_null() & ~is_saved
    rows = _with_excuse(rows, pl.when(is_absent).then(_excuse(RowCode.EXCUSED_UNRECORDED_KIND, pl.col("lacking"))))
    listed: dict[str, list[str]] = {}
    for is_module, phase, role, side, number in absent.filter(~is_saved).select(*_GROUP, "lacking", "number").rows():
        listed.setdefault(side, []).append(f"{_words(is_module, phase, role)} ({number:,})")
    notes = [
        f"what the {side} has recorded none of, and is not compared: {', '.join(kinds)}"
        for side, kinds in listed.items()
    ]
    return rows.drop("is_module", "lacking"), notes


def _words(is_module: bool, phase: str, role: str) -> str:
    words = (_BACKWARD_WORDS if phase == Phase.BACKWARD.value else _WORDS).get(role, role)
    return f"{words} of {'modules' if is_module else 'APIs'}"


def _note_gradients(rows: Rows) -> list[Finding]:
    alone = filtered(rows, ("name_target", "name_golden"), pl.col(EXCUSE) == RowCode.EXCUSED_GRADIENT.value)
    return [
        Finding(JudgeCode.LONE_GRADIENTS, fields={"count": alone.height, "first": name})
        for name in alone.select(pl.coalesce("name_target", "name_golden")).head(1).to_series()
    ]


def with_excused_inner_calls(
    lone: pl.DataFrame, pairs: pl.DataFrame, target: Dump, golden: Dump
) -> tuple[pl.DataFrame, list[str]]:
    """Return rows with `EXCUSE` for calls that compute the same in another way, and notes.

    Args:
        lone: Rows of two frameworks that one side has alone, with ``is_ignored``.
        pairs: The other rows, with their verdicts.
        target: The target dump, for its nesting.
        golden: The golden dump, for its nesting.
    """
    is_open = pl.col(EXCUSE).is_null() & ~pl.col("is_ignored")
    own = lone.filter(is_open & ~pl.col("entry").is_in(pairs["entry"].unique().to_list()))
    calls = own.group_by("entry", maintain_order=True).agg(pl.col("match").first(), pl.col("entry_golden").first())
    if not calls.height:
        return lone, []
    modules = _pairs_of_modules(pairs, target, golden)
    excused: dict[str, tuple[RowCode, str]] = {}
    for entry, match, own_golden in calls.rows():
        if match == Match.GOLDEN.value:
            reason = _reason(own_golden, golden, modules[1])
        else:
            reason = _reason(entry, target, modules[0])
        if reason is not None:
            excused[entry] = reason
    if not excused:
        return lone, []
    code, inside = (
        pl.col("entry").replace_strict(found, default=None, return_dtype=pl.String)
        for found in (
            {entry: code.value for entry, (code, _) in excused.items()},
            {entry: parent for entry, (_, parent) in excused.items()},
        )
    )
    found = pl.when(is_open).then(pl.struct(code.alias(EXCUSE), inside.alias(EXCUSE_OF)))
    first = next(iter(excused))
    note = "calls that one side alone makes inside modules whose results agree, or inside the optimizer, not judged"
    return (
        _with_excuse(lone, found),
        [f"{note}: {len(excused):,}; the first is {first}"],
    )


@dataclass(frozen=True)
class _ModulePair:
    """Properties of a pair of modules, from one side.

    Attributes:
        agrees: Whether their results agree.
        other_is_leaf: Whether the other side's module has no inner modules.
    """

    agrees: bool
    other_is_leaf: bool


_Pairs = Mapping[str, _ModulePair]
"""Module pairs by the entry of one side."""


def _pairs_of_modules(pairs: pl.DataFrame, target: Dump, golden: Dump) -> tuple[_Pairs, _Pairs]:
    """Return the pairs of modules by entry of the target, and by entry of the golden dump."""
    is_module = pl.col("entry").str.contains(names.MODULE)
    is_result = pl.col("role").is_in([Role.OUTPUT.value])
    modules = (
        pairs.filter(is_module)
        .group_by("entry")
        .agg(
            pl.col("entry_golden").drop_nulls().first(),
            agrees=~((pl.col("verdict") == Verdict.ERROR.value) & is_result).any(),
        )
    )
    enclosing = [
        {dump.parents.get(entry) for entry in dump.parents if names.is_module(entry)} for dump in (target, golden)
    ]
    of_target: dict[str, _ModulePair] = {}
    of_golden: dict[str, _ModulePair] = {}
    for own, other, agrees in modules.select("entry", "entry_golden", "agrees").rows():
        of_target[own] = _ModulePair(agrees, other not in enclosing[1])
        of_golden[other] = _ModulePair(agrees, own not in enclosing[0])
    return of_target, of_golden


def _reason(entry: str, dump: Dump, pairs: _Pairs) -> tuple[RowCode, str] | None:
    """Return why an unmatched call is not judged, and the enclosing call that excuses it; ``None`` if it is judged."""
    for parent in ancestors(entry, dump.parents):
        if parent in _OWNERS:
            return RowCode.EXCUSED_OWNER, parent
        if (pair := pairs.get(parent)) is not None:
            if not pair.agrees or (names.is_module(entry) and not pair.other_is_leaf):
                return None
            return RowCode.EXCUSED_INSIDE, parent
    return None


def with_excuses_between_tools(aligned: Rows, *, have_apis: bool) -> tuple[Rows, list[str]]:
    """Return aligned rows with ``excuse`` set where two tools record differently, and notes.

    Args:
        aligned: Aligned rows.
        have_apis: Whether both tools recorded APIs.
    """
    rows = frame_of(narrowed(aligned, (*_READ, EXCUSE, EXCUSE_OF)))
    entry = pl.coalesce("entry_golden", "entry")
    is_lone = pl.col("match") != Match.BOTH.value
    has_partner = (~is_lone).any().over("entry")
    is_api = ~entry.str.contains(names.MODULE) & have_apis
    is_uncalled = _is_of_uncalled_module(rows, entry)
    is_unrecorded = (~has_partner & is_api) | _is_never_recorded(entry.str.contains(names.OUTERMOST_MODULE))
    is_backward = pl.col("phase") == Phase.BACKWARD.value
    is_nothing = pl.coalesce("kind_target", "kind_golden") == RowKind.NONE.value
    side = pl.col("match").str.slice(5)
    reason = (
        pl.when(is_unrecorded)
        .then(_excuse(RowCode.EXCUSED_CALL, side))
        .when(_is_never_recorded(is_uncalled))
        .then(_excuse(RowCode.EXCUSED_UNCALLED_MODULE, side))
        .when(is_lone & has_partner & is_backward & is_nothing)
        .then(_excuse(RowCode.EXCUSED_ABSENT_GRADIENT, side))
        .when(is_api & is_backward & (pl.col("role") == Role.OUTPUT.value))
        .then(_excuse(RowCode.EXCUSED_GRADIENT_ORDER))
    )
    rows = _with_excuse(rows, reason, replaces=True)
    excused = aligned.with_columns(rows.select(EXCUSE, EXCUSE_OF).get_columns())
    return excused, _note_tools(rows.filter(is_unrecorded)["entry"].n_unique(), have_apis=have_apis)


def _is_of_uncalled_module(rows: pl.DataFrame, entry: pl.Expr) -> pl.Expr:
    """Whether a row is the gradient of a parameter whose module is not called itself.

    The enclosing module uses the parameter directly, as attention uses the weights of its output projection.
    """
    called = rows.select(entry.str.extract(names.CALLED_MODULE)).to_series().drop_nulls().unique().to_list()
    is_gradient = pl.col("phase") == Phase.PARAMETERS_GRAD.value
    return is_gradient & entry.str.contains(names.MODULE) & ~entry.str.extract(names.OWNER_OF_GRADIENTS).is_in(called)


def _is_never_recorded(kind: pl.Expr) -> pl.Expr:
    """Whether a row is of a kind of which the other side has none in this phase."""
    match = pl.col("match")
    sides = (Match.TARGET.value, Match.GOLDEN.value)
    found = [(match == own) & ~(kind & (match != own)).any().over("phase") for own in sides]
    return kind & pl.any_horizontal(*found)


def _note_tools(num_calls: int, *, have_apis: bool) -> list[str]:
    if not num_calls and not have_apis:
        return []
    advice = ", or at level L0, to compare all APIs" if have_apis else " to compare all calls"
    return [
        (
            "the two dumps were recorded by different tools, which record different calls; calls that only one of them "
            f"has, and that are not judged: {num_calls:,}. Record both with one tool{advice}"
        )
    ]
