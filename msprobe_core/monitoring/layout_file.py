"""``layout.json``: how a monitored training is laid out over ranks. One file for each rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.monitoring import Part, Size
from msprobe_core.store.struct_files import load_struct

FILE = "layout.json"
OF_UPDATES = (Quantity.GRADIENT_REDUCED.value, Quantity.EXP_AVG.value, Quantity.EXP_AVG_SQ.value)
"""Quantities of which a rank has `Parts.update`."""

OF_VALUES = (Quantity.PARAM_ORIGIN.value, Quantity.PARAM_UPDATED.value)
"""Quantities of which it has `Parts.value`."""


class Parts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank has of one parameter, and with whom it reduces the gradient.

    Attributes:
        value: Of its values; ``None`` for all of them.
        update: Of its reduced gradient and moments.
        is_tensor_parallel: Whether the parameter is itself a part of one that a tensor-parallel group has together.
        ranks: That reduce its gradient together; empty for all of them, or if that is not known.
    """

    value: Part | None = None
    update: Part | None = None
    is_tensor_parallel: bool = False
    ranks: tuple[Size, ...] = ()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group.

    Attributes:
        ranks: Its members, in its order.
        index: Of this rank among them.
    """

    ranks: tuple[Size, ...]
    index: Size


class Layouts(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of one rank.

    Attributes:
        rank: Of this process.
        trainers: Names of the trainers that were recognised, apart from the plain one.
        groups: Process groups that ``set_monitor`` was given: ``pp``, ``tp``, ``dp``.
        parts: What this rank has, by ``stage:name``, of parameters that it does not have whole or not alone.
    """

    rank: Size
    trainers: tuple[str, ...] = ()
    groups: Mapping[str, Group] = {}
    parts: Mapping[str, Parts] = {}

    def index_in(self, group: str) -> int:
        """Return the position of this rank in a group; 0 without one."""
        found = self.groups.get(group)
        return 0 if found is None else found.index

    def reducing(self, place: str) -> tuple[int, ...]:
        """Return the ranks that reduce a gradient together, of the parameter ``stage:name``; empty if not known."""
        own = self.parts.get(place)
        if own is not None and own.ranks:
            return own.ranks
        return self.groups["dp"].ranks if "dp" in self.groups else ()


def read_layout(directory: Path) -> Layouts | None:
    """Return the layout in the directory of a rank; ``None`` if there is none, as of other monitors.

    Raises:
        DumpError: the file cannot be read, or is not one of a monitor.
    """
    path = directory / FILE
    if not path.exists():
        return None
    return load_struct(path, Layouts, otherwise="is no layout of a monitored rank")
