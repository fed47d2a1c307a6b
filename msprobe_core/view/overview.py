"""An overview of all units: severity by layer, and statistics over steps and ranks.

A layer is a part of a model in the usual sense: an item of a list of modules, such as ``model.layers.3``, or a module
next to such a list, such as ``model.embed_tokens``. Units are added one by one, and not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import polars as pl

from msprobe_core import names
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.model import Role
from msprobe_core.view.calls import SIDES, Calls
from msprobe_core.view.data import Heat, Layer, MicroHeat, NodeKind, Number, Severity, Trend, number
from msprobe_core.view.graph import UnitGraph

OUTSIDE = "(outside of modules)"
OPTIMIZER = "optimizer"

_PARTS = ("forward", "backward", "parameters")
_PART_OF_PHASE = {"forward": 0, "backward": 1, "parameters_grad": 2, "optimizer": 2, "": 0}
_DEPTH = 2
"""Number of leading path parts that name a layer, in paths without a number."""

_MAX_FOLLOWED = 150
"""Number of values whose statistics are followed over steps and ranks."""

_MAX_NUMBERS = 400_000
"""Maximum number of numbers in all trends together; if it is exceeded, only norms are followed."""


def layer_of(path: str) -> str:
    """Return the layer that a module's path belongs to.

    Args:
        path: Dotted; empty for the outermost module.
    """
    parts = path.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    if not numbered:
        return ".".join(parts[:_DEPTH])
    # In a model given as an item of a list, the first number is its index in the list.
    inner = [i for i in numbered if i > 0]
    return ".".join(parts[: (inner or numbered)[0] + 1])


_Cells: TypeAlias = tuple[dict[str, float], dict[str, float], dict[str, float]]
"""Largest severity by layer, for each of `_PARTS`."""


def _worst(several: Iterable[_Cells]) -> _Cells:
    """Return the largest severity of several for each part and layer."""
    found: _Cells = ({}, {}, {})
    for cells in several:
        for part, own in zip(found, cells, strict=True):
            for layer, severity in own.items():
                part[layer] = max(part.get(layer, 0.0), severity)
    return found


@dataclass
class _Followed:
    """Statistics of one value of one call, by side, rank and step."""

    phase: str
    found: dict[str, dict[str, dict[int, list[Number]]]] = field(
        default_factory=dict[str, dict[str, dict[int, list[Number]]]]
    )


class Overview:
    """Collects the content of an overview, unit by unit.

    Attributes:
        culprits: Names of calls whose values are all followed over steps, besides those that represent layers.
    """

    def __init__(self) -> None:
        self.culprits: frozenset[str] = frozenset()
        self._layers: dict[str, None] = {}
        self._cells: list[dict[int, _Cells]] = []
        self._followed: dict[tuple[str, str], _Followed] = {}
        self._steps: dict[int, None] = {}
        self._ranks: dict[str, None] = {}
        self._is_pair = False

    def add(self, own: Calls, unit: UnitGraph, step: int | None, rank: int | None) -> None:
        """Add a unit."""
        layers = _layers(unit)
        cells: dict[int, _Cells] = {micro_step: ({}, {}, {}) for micro_step in sorted({*unit.tree.micro_steps})}
        # An enclosing layer completes after the layers in it, so the first wrong layer precedes those around it.
        completed: dict[str, int] = {}
        for node, call in enumerate(unit.tree.calls):
            if call != -1:
                completed.setdefault(layers[node], call)  # the layer's outermost call, which precedes those inside it
        for layer in sorted(completed, key=completed.__getitem__):
            self._layers.setdefault(layer)
        for node, layer in enumerate(layers):
            if unit.tree.calls[node] == -1:
                continue
            severity = unit.graph.own[node]
            if isinstance(severity, float):
                part = cells[unit.tree.micro_steps[node]][_PART_OF_PHASE.get(unit.graph.phase[node], 0)]
                part[layer] = max(part.get(layer, 0.0), severity)
        self._cells.append(cells)
        self._is_pair = self._is_pair or own.is_pair
        self._follow(own, unit, layers, step or 0, "-" if rank is None else str(rank))

    def layers(self) -> list[Layer]:
        """Return the rows of the overview."""
        return [Layer(name, i) for i, name in enumerate(self._layers)]

    def heat(self) -> Heat | None:
        """Return the severities; ``None`` if there are none."""
        if not any(part for by_micro_step in self._cells for cells in by_micro_step.values() for part in cells):
            return None
        merged = [_worst(by_micro_step.values()) for by_micro_step in self._cells]
        return Heat(len(self._layers), len(self._cells), *self._tables(merged), micro_steps=self._micro_heat())

    def _micro_heat(self) -> MicroHeat | None:
        if all(len(by_micro_step) < 2 for by_micro_step in self._cells):
            return None
        columns = [(unit, micro_step) for unit, found in enumerate(self._cells) for micro_step in found]
        return MicroHeat(columns, *self._tables([self._cells[unit][micro_step] for unit, micro_step in columns]))

    def _tables(self, columns: Sequence[_Cells]) -> list[list[list[Severity]]]:
        """Return a table, by layer and column, for each part."""
        return [
            [[cells[part].get(layer) for cells in columns] for layer in self._layers] for part in range(len(_PARTS))
        ]

    # --- trends -------------------------------------------------------------------------------------------------------

    def _follow(self, own: Calls, unit: UnitGraph, layers: Sequence[str], step: int, rank: str) -> None:
        self._steps[step] = self._ranks[rank] = None
        nodes = {unit.tree.calls[node]: node for node in _telling(unit, layers)}
        suspects = {unit.tree.calls[i]: i for i, name in enumerate(unit.graph.name) if name in self.culprits}
        nodes |= suspects
        is_suspect = pl.col("call").is_in(list(suspects))
        is_telling = pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value]) | is_suspect
        rows = own.values.filter(pl.col("call").is_in(list(nodes)) & is_telling & (pl.col("kind") == "tensor"))
        # Suspects first, so that they are followed even if there are too many values.
        rows = rows.sort(~is_suspect, maintain_order=True)
        sides = SIDES if own.is_pair else SIDES[:1]
        columns = [f"{name}_{side}" for side in sides for name in STATISTICS]
        for call, slot, *values in rows.select("call", "slot", *columns).iter_rows():
            node = nodes[call]
            key = (unit.graph.name[node], slot)
            if key not in self._followed and len(self._followed) >= _MAX_FOLLOWED:
                continue
            followed = self._followed.setdefault(key, _Followed(unit.graph.phase[node]))
            for i, side in enumerate(sides):
                shown = [number(value) for value in values[i * len(STATISTICS) : (i + 1) * len(STATISTICS)]]
                followed.found.setdefault(side, {}).setdefault(rank, {})[step] = shown

    def trends(self) -> list[Trend]:
        """Return the statistics over steps and ranks; none if there is only one step of one rank."""
        if len(self._steps) * len(self._ranks) < 2:
            return []
        total = len(self._followed) * len(self._steps) * len(self._ranks) * len(STATISTICS) * (1 + self._is_pair)
        shown = STATISTICS if total <= _MAX_NUMBERS else ("norm",)
        steps = sorted(self._steps)

        def series(of_rank: dict[int, list[Number]], statistic: str) -> list[Number]:
            place = STATISTICS.index(statistic)
            return [of_rank[step][place] if step in of_rank else None for step in steps]

        def table(followed: _Followed, side: str, statistic: str) -> dict[str, Sequence[Number]]:
            return {rank: series(found, statistic) for rank, found in followed.found.get(side, {}).items()}

        return [
            Trend(
                name=name,
                slot=slot,
                statistic=statistic,
                phase=followed.phase,
                steps=steps,
                target=table(followed, "target", statistic),
                golden=table(followed, "golden", statistic) if self._is_pair else None,
            )
            for (name, slot), followed in self._followed.items()
            for statistic in shown
        ]


def _layers(unit: UnitGraph) -> list[str]:
    """Return the layer of each node."""
    tree = unit.tree
    found: list[str] = []
    for node, name in enumerate(tree.names):
        parent = tree.parents[node]
        stem = names.stem_of(name) if names.is_module(name) else None
        if tree.is_stepping[node]:
            found.append(OPTIMIZER)
        elif stem is not None:
            _, path, class_name = names.split_module(stem)
            found.append(layer_of(path) if path else class_name)
        else:
            found.append(OUTSIDE if parent == -1 else found[parent])
    return found


def _telling(unit: UnitGraph, layers: Sequence[str]) -> list[int]:
    """Return the nodes that represent layers: the outermost of each, and gradients of the parameters directly in it."""
    tree, seen = unit.tree, set[tuple[str, str, int]]()
    found: list[int] = []
    for node, layer in enumerate(layers):
        if tree.calls[node] == -1 or layer == OPTIMIZER:
            continue
        is_scalar_loss = layer == OUTSIDE and tree.kinds[node] is NodeKind.API
        key = (layer, unit.graph.phase[node], tree.micro_steps[node])
        if is_scalar_loss or key not in seen:
            seen.add(key)
            found.append(node)
    return found
