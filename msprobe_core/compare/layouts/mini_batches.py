"""Comparison of stages of which each side cuts and orders the samples of its mini-batches in its own way.

A call of one side then holds other samples than that of the other, but those of a mini-batch together hold the same.
Statistics over all calls of a mini-batch do not depend on the order of their tokens, and the gradients of parameters
after its last call are sums over all samples. So the calls of the first mini-batch are joined to one call. Later ones
begin with parameters that were updated with other roundings, as the next step does, whose parameters show all updates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from msprobe_core import names
from msprobe_core.compare.layouts.layout_view import LayoutView, Row
from msprobe_core.errors import DumpError, NothingInCommonError
from msprobe_core.judge.limits import precision_of
from msprobe_core.model import Phase, Role, Task
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import COLUMNS, RowKind, sizes_in
from msprobe_core.store.samples import SAMPLES_FILE, BatchLayout, MicroBatch, load_samples

_OF_ELEMENTS = ("exact", "checksum", "sketch", "fp8", "extra", "distribution", "file_name")
"""Columns that depend on the order of elements, or belong to one call."""

_COUNTS = ("num_nan", "num_inf")
_VALUES = (Role.INPUT.value, Role.OUTPUT.value)
_MADE = (Role.OUTPUT.value, Role.PARAMETERS_GRAD.value)


def samples_of(path: Path) -> Sequence[MicroBatch] | None:
    """Return the micro-batches of a dump by its directory or file; ``None`` if nothing says which samples it holds."""
    directory = path if path.is_dir() else path.parent
    if not (directory / SAMPLES_FILE).exists():
        return None
    try:
        return load_samples(directory).micro_batches
    except DumpError:
        return None


def have_same_mini_batches(target: Sequence[MicroBatch], golden: Sequence[MicroBatch]) -> bool:
    """Whether the mini-batches of both sides hold the same samples, in the same order of mini-batches."""
    own, other = (list(map(_tokens_of, _by_mini(calls).values())) for calls in (target, golden))
    return own == other and {call.layout for call in target} == {call.layout for call in golden}


def _by_mini(calls: Sequence[MicroBatch]) -> dict[int, list[MicroBatch]]:
    found: dict[int, list[MicroBatch]] = {}
    for call in calls:
        found.setdefault(call.mini, []).append(call)
    return found


def _tokens_of(calls: Sequence[MicroBatch]) -> Counter[tuple[str, int, int]]:
    return Counter((row.id, row.start, row.length) for call in calls for row in call.rows)


class Joined(NamedTuple):
    """Two dumps whose modules have one call, the first mini-batch."""

    target: Dump
    golden: Dump


def join_mini_batches(target: Dump, golden: Dump) -> Joined:
    """Return both dumps with the calls of their first mini-batch joined, and without values that only one of them has.

    The joined calls have the names of the target's last call of that mini-batch.

    Args:
        target: A dump with ``samples.json``.
        golden: One whose mini-batches hold the same samples; see `have_same_mini_batches`.

    Raises:
        DumpError: one has no ``samples.json``.
        CompareError: nothing that the calls made can be compared.
    """
    calls = [samples_of(dump.path) for dump in (target, golden)]
    if not calls[0] or not calls[1]:
        raise DumpError(f"{(golden if calls[0] else target).path}: has no readable {SAMPLES_FILE} with samples")
    firsts = [next(iter(_by_mini(own).values())) for own in (calls[0], calls[1])]
    sides = [_Side(dump, own, firsts[0][-1].call) for dump, own in zip((target, golden), firsts, strict=True)]
    if sides[0].padded != sides[1].padded:  # padding has values too
        for side in sides:
            side.rows = [row for row in side.rows if row["role"] not in _VALUES]
    sizes = [{row["key"]: row["numel"] for row in side.rows} for side in sides]
    common = {key for key, count in sizes[0].items() if sizes[1].get(key, -1) == count}
    if not any(row["key"] in common and row["role"] in _MADE for row in sides[0].rows):
        raise NothingInCommonError(
            f"{target.path} and {golden.path} have padding in other places, so statistics of their calls cannot be "
            'compared; record whole tensors ("task": "tensor"), and compare sample by sample with `msprobe rl compare '
            "runs`"
        )
    own, other = (side.view([row for row in side.rows if row["key"] in common]) for side in sides)
    return Joined(own, other)


@dataclass(frozen=True)
class _Width:
    """What of a tensor's dimensions are tokens, in one call."""

    rows: int
    positions: int

    def rest(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the dimensions after those of the tokens; ``None`` for a tensor without an element per token."""
        if shape[:2] == (self.rows, self.positions):
            return shape[2:]
        return shape[1:] if shape[:1] == (self.rows * self.positions,) else None


class _Side:
    """One dump.

    Attributes:
        rows: Rows of the joined call, in the order in which its last call made them.
        padded: Each sample with the place that padding leaves it.
    """

    def __init__(self, dump: Dump, calls: Sequence[MicroBatch], called: int) -> None:
        self._dump = dump
        self._calls = [call.call for call in calls]
        self._called = called
        self._entries: dict[str, str] = {}
        rows = [
            (row, *found)
            for row in dump.frame.iter_rows(named=True)
            if (found := _call_in(row)) is not None and found[1] in self._calls
        ]
        self._widths = _widths_of(calls, [row for row, _, _ in rows])
        self.padded = Counter(
            (row.id, row.start, row.offset, width.positions)
            for call in calls
            if call.layout is BatchLayout.PADDED and (width := self._widths.get(call.call)) is not None
            for row in call.rows
        )
        values: dict[str, dict[int, Row]] = {}
        for row, key, call in rows:
            if row["role"] in _VALUES:
                values.setdefault(key, {})[call] = row
        last = [(row, key) for row, key, call in rows if call == self._calls[-1]]
        self.rows = [found for row, key in last if (found := self._joined(row, values.get(key, {})))]

    def _joined(self, row: Row, own: Mapping[int, Row]) -> Row | None:
        """Return the row of the joined call, made of the row of its last one."""
        together: Row | None = {}
        if row["role"] in _VALUES:
            is_whole = row["kind"] == RowKind.TENSOR.value and sorted(own) == sorted(self._calls)
            together = self._together(own) if is_whole else None
        if together is None:
            return None
        return {**self._renamed({**row, **together}), **dict.fromkeys(_OF_ELEMENTS)}

    def _together(self, own: Mapping[int, Row]) -> Row | None:
        rests = {self._rest(row, call) for call, row in own.items()}
        (rest,) = rests if len(rests) == 1 else (None,)
        rows = list(own.values())
        count = sum(row["numel"] or 0 for row in rows)
        known = [row[name] for row in rows for name in ("max", "min", "mean", "norm")]
        if rest is None or not count or any(value is None for value in known):
            return None
        totals, squares = [row["mean"] * row["numel"] for row in rows], [row["norm"] ** 2 for row in rows]
        if precision_of(str(rows[0]["dtype"])) is None:  # of integers, which are judged exactly
            totals, squares = list(map(_whole, totals)), list(map(_whole, squares))
        return {
            "shape": str([count // math.prod(rest), *rest]),
            "numel": count,
            "max": _extreme(max, [row["max"] for row in rows]),
            "min": _extreme(min, [row["min"] for row in rows]),
            "mean": sum(totals) / count,
            "norm": math.sqrt(sum(squares)),
            **{name: sum(row[name] or 0 for row in rows) for name in _COUNTS},
        }

    def _rest(self, row: Row, call: int) -> tuple[int, ...] | None:
        width = self._widths.get(call)
        return None if width is None or not row["shape"] else width.rest(sizes_in(row["shape"]))

    def _renamed(self, row: Row) -> Row:
        old = str(row["entry"])
        new = names.format_entry(msgspec.structs.replace(names.parse_entry(old), index=self._called))
        if new == old:
            return row
        self._entries[old] = new
        return {**row, "entry": new, **{name: new + str(row[name]).removeprefix(old) for name in ("name", "key")}}

    def view(self, rows: Sequence[Row]) -> LayoutView:
        """Return a dump with these rows, of which statistics are compared, whatever was recorded."""
        frame = pl.DataFrame(list(rows), schema=COLUMNS, strict=False)
        header = msgspec.structs.replace(self._dump.header, task=Task.STATISTICS.value)
        return LayoutView(self._dump, frame, header, self._entries)


def _call_in(row: Row) -> tuple[str, int] | None:
    """Return a module's value without the number of its call, and that number; ``None`` for other calls."""
    entry = str(row["entry"])
    if not names.is_module(entry) or (stem := names.stem_of(entry)) is None:
        return None
    site = names.parse_entry(entry)
    return f"{stem}.{row['phase']}.{site.backward_pass}{str(row['key']).removeprefix(entry)}", site.index


def _widths_of(calls: Sequence[MicroBatch], rows: Sequence[Row]) -> Mapping[int, _Width]:
    """Return which dimensions of tensors are tokens, by call.

    Padded rows have the length of the model's token ids, of which some is padding.
    """
    padded = dict(_lengths_of_ids(rows))
    found: dict[int, _Width] = {}
    for call in calls:
        if call.layout is BatchLayout.PADDED and call.call in padded:
            num_rows, length = padded[call.call]
            if num_rows == len(call.rows):
                found[call.call] = _Width(num_rows, length)
        elif call.layout is not BatchLayout.PADDED:
            found[call.call] = _Width(1, sum(row.length for row in call.rows))
    return found


def _lengths_of_ids(rows: Sequence[Row]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield for each call of a model the shape of the first matrix of integers that a module was given."""
    seen: set[int] = set()
    for row in rows:
        if row["phase"] != Phase.FORWARD.value or row["role"] != Role.INPUT.value or row["shape"] is None:
            continue
        index = names.parse_entry(str(row["entry"])).index
        shape = sizes_in(row["shape"])
        if index not in seen and len(shape) == 2 and "int" in str(row["dtype"]).lower():
            seen.add(index)
            yield index, (shape[0], shape[1])


def _extreme(choose: Callable[[list[float]], float], values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else choose(values)


def _whole(value: float) -> float:
    return float(round(value)) if math.isfinite(value) else value
