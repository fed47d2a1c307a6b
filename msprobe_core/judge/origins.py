"""Find, within one rank and step, the calls whose inputs are right and whose outputs are wrong.

A *source* is a call whose output exceeds what rounding explains, while its tensor inputs do not, nor, for a backward,
the values that its forward saved. A wrong parameter makes the call that gets it a source. A call that encloses a source
is not a source itself: the search descends as far as calls were recorded.

A wrong value without a recorded maker is explained, in this order, by calls that one side has alone, by the innermost
enclosing module that is a source, or else by calls outside of the recording.

A call that one side has alone is no suspect if the results of a module around it agree, as long as there is another
suspect: both sides compute the same there.

A fault may be weak where it arises and strong later. So from a source whose inputs differ noticeably, though within
rounding, the search goes back along the values, and selects the call at which the error grew most, in units of what
rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import SKETCH_ERROR
from msprobe_core.judge.joining import any_of, filtered, filtered_parts, of_entry
from msprobe_core.judge.nodes import INFINITE, is_module
from msprobe_core.judge.noise.operations import is_layer
from msprobe_core.judge.statistics_columns import has_inf_mismatch, has_nan_mismatch
from msprobe_core.model import Phase, Role
from msprobe_core.store.stored_rows import Rows, roots_of

Node: TypeAlias = dict[str, Any]
"""One row of the result of `msprobe_core.judge.nodes.nodes_of`."""

MAX_SOURCES = 40
"""Maximum number for one rank and step; later ones are hardly the first."""

MARGINAL_EXCESS = 1.2
"""Suspects below this excess are ordered after all others."""

_WEAK = 1.5
"""Input error, in multiples of the expected rounding, from which the search goes back to its origin."""

_GROWTH = 1.3
"""Factor by which the error must grow more at an earlier call for that call to become the source."""

_MAX_HOPS = 200
_MADE_GOOD = 10.0
"""Excess of an error that is not lost by chance in a value of its own size that it is part of; see `_is_lost_in`."""
_DISTANCES = ("euclidean", SKETCH_ERROR)
"""Columns that tell how far the elements of a row are from golden."""
_HANDED_OVER = 3.0
"""Error, in multiples of the expected rounding, of a gradient that something has changed on one side alone. Limits of
gradients are wider, as they differ by rounding; this one was equal on both sides."""
_MANY_ALONE = 4
"""If one side alone has more calls of a module, it computes the same by other calls."""


@dataclass(frozen=True)
class Source:
    """A suspected call.

    Attributes:
        node: The call.
        lone: The call that one side has alone and that explains it; ``None`` if there is none.
        made: Whether the call itself made the error, instead of getting it from outside of the recording. With
            ``seen_at``: the call's result is right, but changed before that call gets it.
        seen_at: The later call at which the error exceeds rounding, if any.
        changed_in: The side on which something changes the call's right result before ``seen_at`` gets it, if it is the
            golden one: what does so is missing in the target.
        was_right: Whether an earlier call of the same module in this step had right parameters, so that the wrong ones
            of this call come from an update between both.
    """

    node: Node
    lone: Node | None = None
    made: bool = True
    seen_at: Node | None = None
    changed_in: Literal["target", "golden"] = "target"
    was_right: bool = False

    def size(self, what: Literal["score", "excess"]) -> float:
        """Return how far the suspect exceeds rounding: the largest score, or excess, of the call."""
        node, seen_at = self.node, self.seen_at or self.node
        if node["is_lost"] or node["is_added_up"] or (what == "excess" and node["has_other_number"]):
            return INFINITE  # arguments are not rounded
        is_given_right = self.made and seen_at["input_excess"] <= 1
        parts = ("output", "parameter") if is_given_right else ("output", "parameter", "input")
        return max(float(each[f"{part}_{what}"]) for each in (node, seen_at) for part in parts)


def ancestors(entry: str, parents: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the enclosing calls of a call, innermost first."""
    seen = {entry}  # in a damaged file a call may enclose itself
    parent = parents.get(entry)
    while parent is not None and parent not in seen:
        yield parent
        seen.add(parent)
        parent = parents.get(parent)


class Nesting:
    """Parents of calls on both sides."""

    def __init__(self, target: Mapping[str, str | None], golden: Mapping[str, str | None]) -> None:
        """Take the parents of all calls, by entry name."""
        self.target = target
        self._sides = (target, golden)

    def ancestors(self, entry: str, *, in_golden: bool = False) -> Iterator[str]:
        """Yield the names of the enclosing calls, innermost first."""
        return ancestors(entry, self._sides[in_golden])

    def of(self, node: Node) -> list[str]:
        """Return the names of the calls that enclose a node, innermost first, on the side that has it."""
        is_golden = node["only_on"] == "golden"
        entry: str = node["entry_golden"] if is_golden and node["entry_golden"] else node["entry"]
        found = list(self.ancestors(entry, in_golden=is_golden))
        if not found and (backward := names.backward_of_parameters(entry)) is not None:
            found = [backward, *self.ancestors(backward, in_golden=is_golden)]
        return found


def find_sources(rows: Rows, nodes: pl.DataFrame, nesting: Nesting, *, is_foreign: bool = False) -> list[Source]:
    """Return the sources of one rank and step, in execution order, at most `MAX_SOURCES`.

    Args:
        rows: Rows with scores, see `msprobe_core.judge.nodes.with_scores`.
        nodes: The nodes of the rows.
        nesting: Nesting on both sides.
        is_foreign: Whether the two are of different frameworks, which compute the same by different calls.
    """
    own = _without_old_state(nodes, nesting)
    if not _events(own) or not _has_consequence(nodes, rows) or _is_by_chance(nodes, rows):
        return []
    events = _events(
        own.with_columns(pl.max_horizontal(name, "roundings_excess") for name in ("output_excess", "local_excess"))
    )
    alone = _Alone(nodes, nesting, is_foreign=is_foreign)
    values, earlier = _Values(rows, nodes), _first_right_calls(nodes)
    by_entry = {node["entry"]: node for node in events}
    agreeing = _agreeing_modules(nodes)
    handed_over = _handed_over(rows, nodes, nesting)
    explained: set[str] = set()
    found: list[Source] = []
    made_good: list[Source] = []
    for node in events:
        if node["entry"] in explained:
            continue
        if handed_over is not None and is_of_update(node, nesting):
            source = handed_over  # the whole update follows from its gradients
        else:
            source = _source_at(node, by_entry, nesting, alone, values, earlier)
        around = _making_good(source, nesting, agreeing)
        if around is not None and _is_lost_in(around, source.seen_at or source.node, rows, nodes, nesting):
            around = None
        for each in (node, source.node, source.seen_at):
            if each is not None:
                explained.update((each["entry"], *_below(around, [each["entry"], *nesting.of(each)])))
        others = found if around is None else made_good
        if all(source.node["entry"] != other.node["entry"] for other in others):
            others.append(source)
        if len(found) == MAX_SOURCES:
            break
    return found or made_good[:MAX_SOURCES]


def _agreeing_modules(nodes: pl.DataFrame) -> AbstractSet[str]:
    """Return the modules that both sides call, and whose results agree."""
    is_right = (pl.col("output_excess") <= 1) & ~pl.col("parts_missing") & ~pl.col("is_lost")
    is_forward = pl.col("only_on").is_null() & (pl.col("phase") == Phase.FORWARD.value)
    return {*nodes.filter(is_module() & is_forward & is_right & pl.col("takes_values"))["entry"]}


def _making_good(source: Source, nesting: Nesting, agreeing: AbstractSet[str]) -> str | None:
    """Return the module whose results agree around, or after, a call that one side makes alone; ``None`` without one.

    Both sides compute the same, and only divide it differently among the modules inside, as releases of a library do;
    or the module that gets what the call made computes the same of it, as of a mask in another form.
    An error that is small may also be lost in what is added to it, so only strong ones are taken to be made good.
    """
    if source.lone is None or source.seen_at is None or source.seen_at["phase"] != Phase.FORWARD.value:
        return None
    if source.size("excess") < _MADE_GOOD or names.OPTIMIZER in nesting.of(source.lone):
        return None
    seen_at: str = source.seen_at["entry"]
    return next((entry for entry in (seen_at, *nesting.of(source.seen_at)) if entry in agreeing), None)


def _is_lost_in(around: str, seen_at: Node, rows: Rows, nodes: pl.DataFrame, nesting: Nesting) -> bool:
    """Whether the last error inside a module, from ``seen_at`` on, is too small for its results to show it.

    Then it says nothing that they agree. A block of a network adds what it computes to a value that is often many times
    larger. An error ``e`` that is independent of a tensor of norm ``n`` is a distance of ``e``, but it moves the norm
    by ``e^2 / 2n`` only.
    """
    is_forward = (pl.col("phase") == Phase.FORWARD.value) & pl.col("only_on").is_null()
    later = nodes.filter(is_forward & (pl.col("position") > seen_at["position"]) & (pl.col("output_excess") > 1))
    inside = _within(later, nesting, {around})
    last: str = inside["entry"][-1] if inside.height else seen_at["entry"]
    wrong = of_entry(rows, last, ["excess", "judged_error", "norm_golden"]).filter(pl.col("excess") > 1)
    floors = [pl.col("noise_floor") * pl.col("score_limit")] if "noise_floor" in rows.columns else []
    allowed = pl.coalesce(*floors, pl.col("limit"))
    distances = [pl.col(name).is_not_null() for name in _DISTANCES if name in rows.columns]
    has_distance = pl.any_horizontal(pl.lit(value=False), *distances)
    shown = pl.when(has_distance).then(allowed).otherwise((2 * allowed).sqrt()) * pl.col("norm_golden")
    results = of_entry(rows, around, ["role", *roots_of(shown)]).filter(pl.col("role") == Role.OUTPUT.value)
    error = wrong.select((pl.col("judged_error") * pl.col("norm_golden")).max()).item()
    most = results.select(shown.max()).item()
    return error is not None and most is not None and math.isfinite(error) and error < most


def _below(around: str | None, entries: Sequence[str]) -> Sequence[str]:
    """Return the entries, innermost first, that come before a module; all if ``around`` is none, else none outside."""
    if around is None:
        return entries
    return entries[: entries.index(around)] if around in entries else ()


def is_flagged() -> pl.Expr:
    """Whether a node has a difference beyond what rounding explains."""
    excess = pl.max_horizontal("input_excess", "parameter_excess", "output_excess")
    is_pair = pl.col("only_on").is_null()
    return (is_pair & ((excess > 1) | pl.col("parts_missing") | pl.col("has_other_number"))) | pl.col("is_lost")


def _has_consequence(nodes: pl.DataFrame, rows: Rows) -> bool:
    """Whether more than the form of calls differs: numbers beyond rounding, results of modules, or gradients.

    For example, another kernel may get its mask as booleans instead of numbers to add; if the results agree, nothing is
    wrong.
    """
    is_number = (pl.col("excess") > 1) & pl.col("score").is_finite()
    is_made = pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])
    is_result = is_module() | (pl.col("phase") != Phase.FORWARD.value)
    has_nan = (has_nan_mismatch() | has_inf_mismatch()).fill_null(False)
    return any_of(rows, (pl.col("excess") > 1) & (is_number | has_nan | (is_made & is_result))) or bool(
        nodes.filter(pl.col("is_lost") | pl.col("parts_missing") | pl.col("has_other_number")).height
    )


def _is_by_chance(nodes: pl.DataFrame, rows: Rows) -> bool:
    """Whether a single value is barely beyond its limit, and nothing that is computed from it.

    Limits allow for the number of rows, but floors come from few repetitions: in one of some dozens of healthy runs a
    value is off by a little more. A fault has consequences.
    """
    if nodes.filter(pl.any_horizontal(pl.col(*_OTHER_EVIDENCE)) | (pl.max_horizontal(_OWN_EXCESS) > 1)).height:
        return False
    beyond = filtered(rows, ["excess", *_COLUMNS], pl.col("excess") > 1)
    if beyond.is_empty() or not beyond.select((pl.col("excess") < MARGINAL_EXCESS).all()).item():
        return False
    return beyond.select(_COLUMNS).unique().height == 1


_OTHER_EVIDENCE = ("parts_missing", "is_lost", "has_other_number", "is_added_up", "arguments_differ")
_OWN_EXCESS = ("local_excess", "roundings_excess")


def _without_old_state(nodes: pl.DataFrame, nesting: Nesting) -> pl.DataFrame:
    """Return nodes without optimizer calls whose state differs because of an earlier update.

    An earlier step made that state, and was judged by what its gradients allow; here nothing shows how far healthy
    states may differ. The effect of a wrong state on a parameter shows in the next step.
    """
    if nodes["parameters_equal"].all():
        return nodes
    given = nodes.filter((pl.col("input_excess") > 1) & pl.col("only_on").is_null())
    old = _within(given, nesting, {names.OPTIMIZER})["entry"].to_list()
    return nodes.filter(~pl.col("entry").is_in(old))


def _events(nodes: pl.DataFrame) -> list[Node]:
    """Return the nodes where something becomes wrong, and the first flagged node even if its inputs are wrong."""
    flagged = nodes.filter(is_flagged())
    if not flagged.height:
        return []
    makes = (
        (pl.max_horizontal("output_excess", "parameter_excess") > 1)
        | pl.col("parts_missing")
        | pl.col("is_lost")
        | pl.col("has_other_number")
    )
    is_clean = (pl.col("input_excess") <= 1) & (pl.col("saved_excess") <= 1)
    events = flagged.filter(makes & is_clean).head(4 * MAX_SOURCES).to_dicts()
    first: Node = flagged.row(0, named=True)
    return events if events and first["position"] >= events[0]["position"] else [first, *events]


_UPDATE = frozenset({names.OPTIMIZER, names.CLIP_GRAD})
"""Calls inside which parameters are updated."""


def is_of_update(node: Node, nesting: Nesting) -> bool:
    """Whether a call is inside an optimizer or a clipping of gradients."""
    return not _UPDATE.isdisjoint(nesting.of(node))


def _within(nodes: pl.DataFrame, nesting: Nesting, around: AbstractSet[str]) -> pl.DataFrame:
    """Return the nodes inside some calls. As Python objects all columns of each node would take 1 kB."""
    named = nodes.select("entry", "entry_golden", "only_on").iter_rows(named=True)
    return nodes.filter(pl.Series([not around.isdisjoint(nesting.of(node)) for node in named], dtype=pl.Boolean))


def _handed_over(rows: Rows, nodes: pl.DataFrame, nesting: Nesting) -> Source | None:
    """Return the first gradient that both sides made equally, and that the optimizer of one side alone gets unchanged.

    If that is the target's, what changes it in the golden run is missing: a reduction over ranks or a hook, or a call
    that the golden run has alone, such as one that clips gradients or divides them by the number of ranks. One that the
    target has alone is found where the gradient changes.
    """
    given_other = nodes.filter((pl.col("input_score") > _HANDED_OVER) & pl.col("only_on").is_null())
    updates = _within(given_other, nesting, _UPDATE)
    if not updates.height:
        return None
    columns = ["entry", *_COLUMNS]
    is_made = (pl.col("role") == Role.PARAMETERS_GRAD.value) & pl.col("is_equal") & (pl.col("norm_golden") > 0)
    made = filtered(rows, columns, is_made & (pl.col("numel_golden") > 1))
    is_given = (pl.col("role") == Role.INPUT.value) & (pl.col("score") > _HANDED_OVER) & (pl.col("numel_golden") > 1)
    given = filtered(rows, columns, is_given & pl.col("entry").is_in(updates["entry"].to_list()))
    keys = {side: [f"{name}_{side}" for name in _IDENTITY if name != "num_nan"] for side in ("target", "golden")}
    results = filtered(rows, columns, pl.col("role") == Role.OUTPUT.value)
    sides: tuple[Literal["golden"], Literal["target"]] = "golden", "target"
    is_equal = (pl.col("role") == Role.OUTPUT.value) & pl.col("is_equal") & (pl.col("norm_golden") > 0)
    right = pl.concat([made, filtered(rows, columns, is_equal)])
    for node in updates.iter_rows(named=True):
        own = given.filter(pl.col("entry") == node["entry"])
        unchanged = own.join(right, on=keys["target"], how="semi")
        changes = results.join(unchanged, on=keys["golden"], how="semi")["entry"].to_list()
        is_missing = (pl.col("only_on") == "golden") & (pl.col("position") < node["position"])
        missing = nodes.filter(is_missing & pl.col("entry").is_in(changes))
        if missing.height:
            lone = missing.row(0, named=True)
            return Source(lone, lone, seen_at=node)
        for changed, kept in (sides, sides[::-1]):
            is_kept = own.join(made, on=keys[kept], how="semi").join(made, on=keys[changed], how="anti")
            is_kept = is_kept.join(results, on=keys[changed], how="anti")
            if is_kept.height:
                maker = made.join(is_kept.select(keys[kept]), on=keys[kept], how="semi")["entry"][0]
                origin = nodes.filter((pl.col("entry") == maker) & (pl.col("position") < node["position"]))
                if origin.height:
                    return Source(origin.row(0, named=True), made=False, seen_at=node, changed_in=changed)
    return None


def _first_right_calls(nodes: pl.DataFrame) -> Mapping[str, int]:
    """Return the position of the first forward of each module if its parameters are right there, by stem."""
    is_forward = is_module() & (pl.col("phase") == Phase.FORWARD.value) & pl.col("only_on").is_null()
    first = (
        nodes.filter(is_forward)
        .select("position", "parameter_excess", stem=pl.col("entry").str.extract(names.CALLED_MODULE))
        .unique("stem", keep="first", maintain_order=True)
    )
    right = first.filter((pl.col("parameter_excess") <= 1) & pl.col("stem").is_not_null())
    return dict(zip(right["stem"].to_list(), right["position"].to_list(), strict=True))


def _source_at(
    node: Node,
    by_entry: Mapping[str, Node],
    nesting: Nesting,
    alone: _Alone,
    values: _Values,
    earlier: Mapping[str, int],
) -> Source:
    if node["input_excess"] > 1 or node["saved_excess"] > 1:
        # A wrong value without a recorded maker.
        if (lone := alone.before(node)) is not None:
            return Source(lone, lone, seen_at=node)
        enclosing = (by_entry.get(entry) for entry in nesting.of(node))
        module = next((each for each in enclosing if each is not None), None)
        if module is not None:
            return Source(module, seen_at=node)
        maker = values.maker_of(node)
        if maker is not None:
            return Source(maker, seen_at=node)
        origin = values.changed_behind(node)
        return Source(node, made=False) if origin is None else Source(origin, made=False, seen_at=node)
    is_wrong_parameter = node["parameter_excess"] > 1
    if not is_wrong_parameter and names.is_module(node["entry"]) and (lone := alone.inside(node)) is not None:
        return Source(lone, lone, seen_at=node)
    if is_wrong_parameter or node["arguments_differ"]:
        module = by_entry.get(next(iter(nesting.of(node)), ""))
        is_named = module is not None and node["parameter_excess"] > 1 and module["parameter_excess"] > 1
        named = module if is_named and module is not None else node
        start = earlier.get(names.stem_of(named["entry"]) or "") if is_wrong_parameter else None
        if start is None or start >= node["position"]:
            return Source(named)
        lone = alone.update_between(start, node["position"])
        return Source(named, was_right=True) if lone is None else Source(lone, lone, seen_at=named)
    origin = values.origin_of(node)
    if origin is not node:
        return Source(origin, seen_at=node)
    return Source(node)


class _Alone:
    """The calls that one side has alone."""

    def __init__(self, nodes: pl.DataFrame, nesting: Nesting, *, is_foreign: bool) -> None:
        own = nodes.filter(pl.col("only_on").is_not_null() & (pl.col("phase") == Phase.FORWARD.value))
        pairs = nodes.filter(pl.col("only_on").is_null() & is_module()).select("entry_golden", "entry").rows()
        partners = dict(pairs) if is_foreign else {}
        self._nodes = own.to_dicts()
        self._around = [[partners.get(entry, entry) for entry in nesting.of(node)] for node in self._nodes]
        self._nesting = nesting
        self._entries = {node["entry"] for node in self._nodes}
        self._is_foreign = is_foreign

    def inside(self, module: Node) -> Node | None:
        """Return the first call of a module, unless so many are alone that the module computes the same in another way.

        Between frameworks, calls inside inner modules are no sign of a fault, and neither are the calls that implement
        a framework's layer: both may compute the same in another way.
        """
        if self._is_foreign and any(_is_layer(module[name]) for name in ("entry", "entry_golden")):
            return None
        around = [outer[:1] for outer in self._around] if self._is_foreign else self._around
        return self._first([i for i, outer in enumerate(around) if module["entry"] in outer])

    def before(self, node: Node) -> Node | None:
        """Return the nearest call before a node, in a module that encloses both."""
        enclosing = {*self._nesting.of(node)}
        places = [
            i
            for i, each in enumerate(self._nodes)
            if each["position"] < node["position"] and (not enclosing or enclosing.intersection(self._around[i][:1]))
        ]
        return self._first(places[-_MANY_ALONE - 1 :])

    def update_between(self, start: int, end: int) -> Node | None:
        """Return the first call of an optimizer between two positions."""
        return next(
            (
                node
                for node, around in zip(self._nodes, self._around, strict=True)
                if start < node["position"] < end and names.OPTIMIZER in around
            ),
            None,
        )

    def _first(self, places: Sequence[int]) -> Node | None:
        # An unmatched module stands for the calls in it.
        outermost = [i for i in places if not self._entries.intersection(self._around[i])]
        if self._is_foreign and len({self._nodes[i]["only_on"] for i in outermost}) > 1:
            return None  # both sides make calls of their own: another way to compute the same
        return self._nodes[outermost[0]] if 0 < len(outermost) <= _MANY_ALONE else None


def _is_layer(entry: str | None) -> bool:
    stem = names.stem_of(entry or "")
    return stem is not None and is_layer(names.split_module(stem)[2])


_IDENTITY = ("numel", "max", "min", "mean", "norm", "num_nan")


class _Values:
    """Maker of each value; a value is recognised by its statistics on both sides."""

    def __init__(self, rows: Rows, nodes: pl.DataFrame) -> None:
        self._rows = rows
        self._nodes = nodes

    def origin_of(self, node: Node) -> Node:
        """Return the call on the path to ``node`` at which the error grew most."""
        # A discrete decision may change because of an input that differs by rounding only; that is not growth.
        best, best_growth, current = node, 1.0 if node["turns"] else _growth(node), node
        for _ in range(_MAX_HOPS):
            if not _WEAK <= current["input_score"] < INFINITE:
                break
            producer = self._producer_of(current)
            if producer is None:
                break
            current = producer
            if current["output_score"] >= _WEAK and _growth(current) > _GROWTH * best_growth:
                best, best_growth = current, _growth(current)
        return best

    def maker_of(self, node: Node) -> Node | None:
        """Return the call that made the wrong value a node was given, although that call shows no error.

        An example are integers that rounding may change: their error has a size only where they are used as numbers.
        """
        maker, current = None, node
        for _ in range(_MAX_HOPS):
            producer = self._producer_of(current)
            if producer is None:
                break
            maker = current = producer
            if current["input_excess"] <= 1:
                break
        return maker

    def changed_behind(self, node: Node) -> Node | None:
        """Return the call that made, equally in both runs, a gradient that ``node`` got in the golden run only.

        In the target something has changed it in between, such as a hook on a parameter's gradient.
        """
        is_wrong = (pl.col("role") == Role.INPUT.value) & (pl.col("excess") > 1) & (pl.col("norm_golden") > 0)
        given = of_entry(self._rows, node["entry"]).filter(is_wrong & (pl.col("numel_golden") > 1))
        worst = given.sort("score", descending=True, maintain_order=True).head(1)
        keys = [f"{name}_golden" for name in _IDENTITY if name != "num_nan"]  # older dumps lack it
        is_made = pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])
        made = filtered(self._rows, [*keys, "entry"], is_made & (pl.col("phase") != Phase.FORWARD.value))
        found = worst.select(keys).join(made, on=keys, how="inner")
        earlier = self._nodes.filter(
            (pl.col("position") < node["position"]) & pl.col("entry").is_in(found["entry"].to_list())
        )
        right = earlier.filter((pl.col("output_excess") <= 1) & pl.col("only_on").is_null())
        return right.row(-1, named=True) if right.height == earlier.height > 0 else None

    def _producer_of(self, node: Node) -> Node | None:
        is_given = (pl.col("role") == Role.INPUT.value) & ~pl.col("is_parameter")
        own = of_entry(self._rows, node["entry"], ["role", "is_parameter", "score", *_COLUMNS]).filter(is_given)
        worst = own.sort("score", descending=True, nulls_last=True).head(1)
        identity = worst.select(_identity()).to_series()
        if not len(identity) or identity[0] is None:
            return None
        earlier = self._made.filter((pl.col("identity") == identity[0]) & (pl.col("position") < node["position"]))
        if not earlier.height:
            return None
        return self._nodes.row(by_predicate=pl.col("position") == earlier["position"][0], named=True)

    @cached_property
    def _made(self) -> pl.DataFrame:
        """The identities of all results, in execution order, each with the position of the call that made it."""
        places = self._nodes.select("entry", "position")
        parts = filtered_parts(self._rows, ["entry", *_COLUMNS], pl.col("role") == Role.OUTPUT.value)
        return pl.concat(
            part.select("entry", identity=_identity())
            .drop_nulls("identity")
            .join(places, on="entry", how="left", maintain_order="left")
            .drop("entry")
            for part in parts
        )


_COLUMNS = [f"{name}_{side}" for name in _IDENTITY for side in ("target", "golden")]


def _identity() -> pl.Expr:
    """Return a number shared by values with equal statistics; null if a statistic is NaN, which equals nothing."""
    floats = [pl.col(name) for name in _COLUMNS if not name.startswith("num")]
    # Negative and positive zero are equal.
    own = pl.struct([pl.col(name) if name.startswith("num") else pl.col(name) + 0.0 for name in _COLUMNS]).hash()
    return pl.when(~pl.any_horizontal(each.is_nan().fill_null(value=False) for each in floats)).then(own)


def _growth(node: Node) -> float:
    return float(node["output_score"]) / max(float(node["input_score"]), float(node["saved_score"]), 1.0)
