"""Ranks as declared in a layout file: which are compared together, and how their dumps are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from msprobe_core.compare.layouts.numbering import holds_experts, holds_layers, number_in_path, offset_at
from msprobe_core.compare.layouts.rows import BUILT_IN, called_in, enclosing_module, names_of, placements_of
from msprobe_core.compare.layouts.rules import LayoutRules, Ranks, Side
from msprobe_core.compare.shards.assembly import Array
from msprobe_core.compare.shards.placement import AxisPlacement, MeshCoordinate
from msprobe_core.compare.shards.rank_rows import Part, Union, renamed
from msprobe_core.errors import CompareError
from msprobe_core.judge.origins import ancestors
from msprobe_core.model import Phase, Role
from msprobe_core.names import api_call, forward_of, with_number_in_path
from msprobe_core.store.layout import Unit


@dataclass(frozen=True)
class Group:
    """Ranks of both sides that are compared together.

    Attributes:
        label: Name in reports: ``rank0``; ``replica0`` for one of several; ``all ranks``.
        target: Ranks of the target; several are merged.
        golden: Ranks of the golden run.
    """

    label: str
    target: tuple[Unit, ...]
    golden: tuple[Unit, ...]


def plan_groups(target: Sequence[Unit], golden: Sequence[Unit], rules: LayoutRules | None = None) -> list[Group]:
    """Return the groups of ranks of two sides that are compared.

    Without a declaration, ranks are compared by number; if one side is a single process, it is compared with all ranks
    of the other. With a declaration, all ranks of a data parallel replica form a group, and as many replicas are
    compared as both sides have.

    Args:
        target: Ranks or processes of one step.
        golden: The same for the golden run.
        rules: The declared layouts.

    Raises:
        CompareError: the sides have different numbers of ranks without a declaration, or it does not match them.
    """
    declared: Mapping[Side, Ranks] = {} if rules is None else rules.ranks
    if not declared:
        if len(target) == len(golden) == 1:
            return [Group(target[0].label, tuple(target), tuple(golden))]
        if 1 in (len(target), len(golden)):
            return [Group("all ranks", tuple(target), tuple(golden))]
        by_rank = {unit.rank: unit for unit in golden}
        if {unit.rank for unit in target} != set(by_rank):
            raise CompareError(
                f"the target has {len(target)} ranks and the golden run {len(golden)}; say how they are arranged with "
                "--layout, for example parallel: {target: {tp: 2}, golden: {tp: 1}}, or choose some with --ranks"
            )
        return [Group(unit.label, (unit,), (by_rank[unit.rank],)) for unit in target]
    replicas = [_replicas(units, declared.get(side), side) for side, units in zip(Side, (target, golden), strict=True)]
    pairs = list(zip(*(found.values() for found in replicas), strict=False))
    one = len(pairs) == 1
    return [Group("all ranks" if one else f"replica{i}", own, other) for i, (own, other) in enumerate(pairs)]


def _replicas(units: Sequence[Unit], ranks: Ranks | None, side: Side) -> dict[int, tuple[Unit, ...]]:
    if ranks is None:
        if len(units) > 1:
            raise CompareError(
                f"the {side.value} has {len(units)} ranks, and nothing is declared of them; add '{side.value}' under "
                "'parallel', for example {tp: 2}"
            )
        return {0: tuple(units)}
    sizes = dict(ranks.sizes)
    total = 1
    for size in sizes.values():
        total *= size
    fits = len(units) == total or ("dp" not in sizes and "pp" not in sizes and len(units) % total == 0)
    if not ranks.groups and not fits:
        shown = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise CompareError(
            f"parallel: {side.value}: {shown} makes {total} ranks, but there are {len(units)}; give the size of each "
            "axis"
        )
    found: dict[int, list[Unit]] = {}
    for i, unit in enumerate(units):
        found.setdefault(ranks.replica_of(i if unit.rank is None else unit.rank), []).append(unit)
    return {replica: tuple(members) for replica, members in sorted(found.items())}


class DeclaredRanks:
    """The ranks of one side as declared; see `msprobe_core.compare.shards.merged.Declaration`."""

    def __init__(self, rules: LayoutRules, side: Side) -> None:
        self._rules = rules
        self._ranks = rules.ranks.get(side, Ranks())
        self._order: dict[str, tuple[int, ...]] = {}

    @property
    def axes(self) -> Sequence[str]:
        """Axes with more than one rank, except the pipeline axis, whose stages have different layers."""
        return [axis for axis in self._ranks.axes if axis != "pp"]

    @property
    def divides_calls(self) -> bool:
        """Whether ranks are stages of a pipeline, or have different experts."""
        return bool({"pp", "ep"} & set(self._ranks.axes))

    def place_of(self, rank: int) -> MeshCoordinate:
        """Return the mesh coordinate of a rank."""
        return self._ranks.place_of(rank)

    def placements(
        self, rows: pl.DataFrame, parents: Callable[[], Mapping[str, str | None]]
    ) -> Sequence[Sequence[AxisPlacement] | None]:
        """Return the placement of each value over the axes; rules of the file precede built-in ones."""
        rules, enclosing = (*self._rules.placements, *BUILT_IN), parents()
        found: list[Sequence[AxisPlacement] | None] = []
        for entry, role, phase, key in rows.select("entry", "role", "phase", "key").iter_rows():
            module = enclosing_module(entry, enclosing)
            found.append(placements_of(rules, self.axes, entry, names_of(entry, role, phase, key), module))
        return found

    def named(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts with global numbers of layers and experts, and calls of APIs numbered across all stages."""
        ordered = sorted(parts, key=lambda part: self.place_of(part.rank).on("pp"))
        for axis, is_container in (("ep", holds_experts), ("pp", holds_layers)):
            if axis in self._ranks.axes:
                first = self._ranks.first_layers if axis == "pp" else ()
                ordered = self._numbered(ordered, axis, is_container, first)
        if "pp" in self._ranks.axes:
            ordered = self._staged(ordered)
        return ordered

    def order(self, union: Union) -> Array | None:
        """Return the order in which a single process would make the calls of all stages."""
        if not self._order:
            return None
        last = (len(self._order) + 1,) * 4
        # For a module around all stages, the first stage has the inputs and the last one the outputs.
        roles = {role.value: i for i, role in enumerate((Role.INPUT, Role.PARAMETERS, Role.OUTPUT))}
        keys = [
            (*self._order.get(entry, last), roles.get(role, 0))
            for entry, role in union.rows.select("entry", "role").iter_rows()
        ]
        return np.array(sorted(range(len(keys)), key=lambda i: keys[i]), np.int64)

    # layers and experts

    def _numbered(
        self, parts: Sequence[Part], axis: str, is_container: Callable[[str], bool], first: Sequence[int]
    ) -> list[Part]:
        """Return the parts with consecutive module numbers in numbered containers along an axis."""
        have: dict[str, dict[int, set[int]]] = {}
        for part in parts:
            place = self.place_of(part.rank).on(axis)
            for entry in part.frame["entry"].unique().to_list():
                found = _number_in(entry, is_container)
                if found is not None:
                    have.setdefault(found[0], {}).setdefault(place, set()).add(found[1])
        named: list[Part] = []
        for part in parts:
            place = self.place_of(part.rank).on(axis)
            changed: dict[str, str] = {}
            for entry in part.frame["entry"].unique().to_list():
                found = _number_in(entry, is_container)
                if found is not None:
                    offset = offset_at(have[found[0]], place, first)
                    changed[entry] = with_number_in_path(entry, found[2], found[1] + offset)
            named.append(_renamed_part(part, changed))
        return named

    # stages

    def _staged(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts of all stages with calls numbered as in a single process."""
        stages: dict[int, list[Part]] = {}
        for part in parts:
            stages.setdefault(self.place_of(part.rank).on("pp"), []).append(part)
        calls = [
            (call, stage, entry) for stage, members in stages.items() for call, entry in _calls_of(members[0], stage)
        ]
        calls.sort()
        shared = _shared(calls)
        numbers: dict[str, dict[tuple[int, str], int]] = {}
        for _, stage, entry in calls:
            api = api_call(entry)
            if api is not None and api.phase == Phase.FORWARD.value:
                counted = numbers.setdefault(api.family, {})
                counted.setdefault((stage, api.index), len(counted))
        names: dict[int, dict[str, str]] = {}
        for call, stage, entry in calls:
            api = api_call(entry)
            own = entry
            if api is not None:
                counted = numbers.setdefault(api.family, {})
                own = f"{api.family}.{counted.setdefault((stage, api.index), len(counted))}.{api.phase}"
            names.setdefault(stage, {})[entry] = own
            self._order[own] = call  # a module around all stages ends with its last stage
        first, last = min(stages), max(stages)
        return [
            _renamed_part(_ends_of(part, shared, is_first=stage == first, is_last=stage == last), names.get(stage, {}))
            for stage, members in stages.items()
            for part in members
        ]


def _number_in(entry: str, is_container: Callable[[str], bool]) -> tuple[str, int, int] | None:
    path = called_in(entry).path
    return None if path is None else number_in_path(path, is_container)


def _renamed_part(part: Part, changed: Mapping[str, str]) -> Part:
    changed = {old: new for old, new in changed.items() if old != new}
    if not changed:
        return part
    names = {own: changed.get(new, new) for own, new in part.names.items()}
    known = set(part.names.values())
    names |= {old: new for old, new in changed.items() if old not in known}
    return replace(part, frame=renamed(part.frame, changed), names=names)


def _calls_of(part: Part, stage: int) -> Iterable[tuple[tuple[int, ...], str]]:
    """Yield the calls of a stage, each with its position in the order of a single process.

    The order is by micro-batch: forwards from the first stage to the last, then backwards from the last to the first.
    """
    parents = {part.names.get(entry, entry): parent for entry, parent in part.dump.parents.items()}
    own = {entry: None if parent is None else part.names.get(parent, parent) for entry, parent in parents.items()}
    micro = 0
    for position, entry in enumerate(part.frame["entry"].unique(maintain_order=True).to_list()):
        forward = forward_of(entry) or entry
        outer = [forward, *ancestors(forward, own)][-1]
        called = called_in(outer)
        if called.path is not None:
            micro = int(outer.rsplit(".", 1)[-1]) if outer.rsplit(".", 1)[-1].isdecimal() else micro
        is_forward = f".{Phase.FORWARD.value}" in entry[-len(".forward.000000") :]
        yield (micro, 0 if is_forward else 1, stage if is_forward else -stage, position), entry


def _shared(calls: Sequence[tuple[Any, int, str]]) -> set[str]:
    """Return modules that several stages call: those around all stages."""
    stages: dict[str, set[int]] = {}
    for _, stage, entry in calls:
        if called_in(entry).path is not None:
            stages.setdefault(entry, set()).add(stage)
    return {entry for entry, found in stages.items() if len(found) > 1}


def _ends_of(part: Part, shared: set[str], *, is_first: bool, is_last: bool) -> Part:
    """Return a stage without the values that outer modules pass between stages: they are neither inputs nor outputs."""
    is_forward = pl.col("phase") == Phase.FORWARD.value
    is_input = pl.col("role") == Role.INPUT.value
    is_output = pl.col("role") == Role.OUTPUT.value
    is_begin = (is_forward & is_input) | (~is_forward & is_output)
    is_end = (is_forward & is_output) | (~is_forward & is_input)
    inner = (is_begin & (not is_first)) | (is_end & (not is_last))
    keep = ~(pl.col("entry").is_in(list(shared)) & inner)
    return replace(part, frame=part.frame.filter(keep))
