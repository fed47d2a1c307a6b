"""Maps of tensors of two dumps: those of culprits first, then those with the largest errors."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from msprobe_core.compare.pairs import UnitPair
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.reading import read_dump
from msprobe_core.view.calls import Calls
from msprobe_core.view.data import TensorMap
from msprobe_core.view.heatmaps import axes_of, map_of
from msprobe_core.view.view_codes import ViewCode

_MAX_MAPS = 24
_MAX_MAPS_OF_CULPRITS, _MAX_MAPS_OF_OTHERS = 8, 2


class TensorMaps:
    """Draws a limited number of maps."""

    def __init__(self) -> None:
        self.made: list[TensorMap] = []

    def add(self, number: int, pair: UnitPair, calls: Calls, culprits: Sequence[str | None]) -> list[Finding]:
        """Draw the maps of a unit, and return what prevented some.

        Args:
            number: The unit.
            pair: Its dumps.
            calls: Its calls.
            culprits: Nodes of the unit whose maps are drawn first.
        """
        room = min(_MAX_MAPS_OF_CULPRITS if culprits else _MAX_MAPS_OF_OTHERS, _MAX_MAPS - len(self.made))
        wanted = _worth_a_map(calls, culprits, room)
        if not wanted or pair.target_parts or pair.golden_parts:
            return []
        target, golden = read_dump(pair.target), read_dump(pair.golden)
        notes: list[Finding] = []
        for node, slot, target_file, golden_file in wanted:
            try:
                self.made += _maps(number, node, slot, (target, target_file), (golden, golden_file))
            except DumpError as error:  # noqa: PERF203  # reading a tensor costs more than the try
                notes.append(Finding(ViewCode.NO_MAP, fields={"entry": node, "slot": slot, "why": str(error)}))
        return notes


def has_files(calls: Calls) -> bool:
    """Whether the target keeps any tensor."""
    column = calls.values["file_target"]
    return column.null_count() < column.len()


def _worth_a_map(calls: Calls, culprits: Sequence[str | None], room: int) -> list[tuple[str, str, str, str]]:
    """Return node, slot and files of the values most worth a map: those of culprits, then those with largest error."""
    if room <= 0:
        return []
    names = calls.calls.select("name", "excess").with_row_index("call")
    has_files = pl.all_horizontal(*[pl.col(f"file_{side}").is_not_null() for side in ("target", "golden")])
    own = calls.values.filter(has_files & (pl.col("verdict") == "error")).join(names, on="call", how="left")
    is_culprit = pl.col("name").is_in([name for name in culprits if name is not None])
    is_made = pl.col("role").cast(pl.String) != "input"
    ordered = own.sort(is_culprit & is_made, is_culprit, is_made, "error", descending=True, nulls_last=True)
    return ordered.head(room).select("name", "slot", "file_target", "file_golden").rows()


def _maps(unit: int, node: str, slot: str, target: tuple[Dump, str], golden: tuple[Dump, str]) -> list[TensorMap]:
    sources = [dump.open_tensor(file) for dump, file in (target, golden)]
    made = [map_of(unit, node, slot, sources[0], sources[1], axes) for axes in axes_of(sources[0].shape)]
    return [each for each in made if each is not None]
