"""The columns of an Arrow dump: the only module that maps entries, tensors and digests to columns.

``dump.arrow`` has one row per value. A new field of `Entry`, `Stats` or `Digest` needs one more line in ``COLUMNS``; a
new field of `TensorMeta` needs nothing here: a tensor's description and an argument are stored as the JSON text that
they have in ``dump.json``, each distinct text once per batch. Missing columns are read as nulls and unknown ones are
ignored, so that files of older and newer releases can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from msprobe_core.extras import import_extra
from msprobe_core.fingerprint.distance import SIZE_BYTES
from msprobe_core.model import (
    Argument,
    Digest,
    Entry,
    Failure,
    GradientSlot,
    Phase,
    RunHeader,
    Stats,
    TensorMeta,
    TensorValue,
    Value,
)
from msprobe_core.store.json_records import exact_text
from msprobe_core.store.json_writer import clean_text, leaf_text

FORMAT_VERSION = 1
"""Incremented when a reader of an earlier version would misread the file; additional columns do not need that."""

HEADER_KEY = b"msprobe"
"""Key, in the metadata of a file's schema, of its `FileHeader` as JSON."""

END_KEY = b"msprobe.end"
"""Key, in the metadata of a last batch without rows, of an `Ending` as JSON, once it is known."""

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Last bytes of every complete file. Source: Arrow columnar format 1.4, IPC streaming format."""


class FileHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of an Arrow file.

    Attributes:
        version: ``FORMAT_VERSION`` of the writer.
        run: Header of the dump.
        others: For a file converted from JSON, the other members of that file's header, unchanged.
    """

    version: int
    run: RunHeader
    others: dict[str, Any] = {}


PyArrow: TypeAlias = Any
"""The module ``pyarrow`` or one of its objects: the library has no type annotations."""


def import_pyarrow() -> PyArrow:
    """Return ``pyarrow``, an optional library that JSON dumps do not need.

    Raises:
        PluginError: it is not installed, or cannot be imported.
    """
    return import_extra("pyarrow", "dumps in Arrow's format need", "arrow")


class Cell(Enum):
    """Type of the cells of a column."""

    TEXT = "text"
    """One of few texts: stored once per batch, and as a number in each row."""
    OWN_TEXT = "own text"
    """Text that is rarely shared between rows."""
    NUMBER = "number"
    COUNT = "count"
    SKETCH = "sketch"
    LINES = "lines"
    """A list of texts."""


class Source(Enum):
    """Object that provides a column's cells."""

    ENTRY = "entry"
    """The entry of a value; evaluated once per entry."""
    PLACE = "place"
    """A list of `Rows`, unchanged."""
    DIGEST = "digest"
    STATS = "stats"


class Column(NamedTuple):
    """A column of ``dump.arrow``.

    Attributes:
        name: Its name.
        cell: Type of its cells.
        source: Object that provides them.
        get: Returns a cell of the source; for ``PLACE`` the list.
        frame: The frame's column with these cells; ``None`` if the reader converts them.
    """

    name: str
    cell: Cell
    source: Source
    get: Callable[[Any], Any]
    frame: str | None = None


def _entry_name(entry: Entry) -> str:
    return clean_text(entry.name)


def _phase_name(entry: Entry) -> str:
    return entry.phase.value


def _recompute(entry: Entry) -> int | None:
    return 1 if entry.is_recomputed else None


def _exact(stats: Stats) -> str | None:
    """Return extremes that float64 cannot represent, as in the frame of ``dump.json``."""
    high, low = stats.max, stats.min
    if type(high) is float and type(low) is float:
        return None
    return exact_text(high, low)


_ENTRY, _PLACE, _DIGEST, _STATS = Source.ENTRY, Source.PLACE, Source.DIGEST, Source.STATS

COLUMNS: tuple[Column, ...] = (
    Column("entry", Cell.TEXT, _ENTRY, _entry_name),
    Column("phase", Cell.TEXT, _ENTRY, _phase_name),
    Column("sequence", Cell.COUNT, _ENTRY, attrgetter("sequence")),
    Column("micro_step", Cell.COUNT, _ENTRY, attrgetter("micro_step")),
    Column("recompute", Cell.COUNT, _ENTRY, _recompute),
    Column("part", Cell.TEXT, _PLACE, attrgetter("parts")),
    Column("path", Cell.TEXT, _PLACE, attrgetter("paths")),
    Column("value", Cell.TEXT, _PLACE, attrgetter("leaves")),
    Column("max", Cell.NUMBER, _STATS, attrgetter("max"), "max"),
    Column("min", Cell.NUMBER, _STATS, attrgetter("min"), "min"),
    Column("mean", Cell.NUMBER, _STATS, attrgetter("mean"), "mean"),
    Column("norm", Cell.NUMBER, _STATS, attrgetter("l2_norm"), "norm"),
    Column("num_nan", Cell.COUNT, _STATS, attrgetter("num_nan"), "num_nan"),
    Column("num_inf", Cell.COUNT, _STATS, attrgetter("num_inf"), "num_inf"),
    Column("exact", Cell.OWN_TEXT, _STATS, _exact, "exact"),
    Column("checksum", Cell.OWN_TEXT, _DIGEST, attrgetter("checksum"), "checksum"),
    Column("sketch", Cell.SKETCH, _DIGEST, attrgetter("sketch"), "sketch"),
    Column("file_name", Cell.OWN_TEXT, _PLACE, attrgetter("file_names"), "file_name"),
)

STACK_COLUMNS = {"entry": Cell.OWN_TEXT, "stack": Cell.COUNT, "frames": Cell.LINES}
"""Columns of ``stack.arrow``: ``frames`` is set where the number ``stack`` is used first, and null elsewhere."""

CONSTRUCT_COLUMNS = {"entry": Cell.OWN_TEXT, "parent": Cell.TEXT}
"""Columns of ``construct.arrow``."""

DUMP_COLUMNS = {column.name: column.cell for column in COLUMNS}
"""Columns of ``dump.arrow``."""


# --- entries to columns -------------------------------------------------------------------------------------------


class Rows:
    """The values of some entries, in the order of the frame of ``dump.json``.

    Attributes:
        entries: The entries.
        ends: Number of rows up to the end of each of them.
        parts: Name of the part of the record, as in ``dump.json``.
        paths: Position in the part; ``None`` for an entry without values, which still has one row.
        leaves: JSON text of an argument, or of a tensor without its digest; ``None`` if there is no value.
        digests: Digest of the tensor's values; empty if there is no tensor.
        file_names: File of the whole tensor.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ends: list[int] = []
        self.parts: list[str | None] = []
        self.paths: list[str | None] = []
        self.leaves: list[str | None] = []
        self.digests: list[Digest] = []
        self.file_names: list[str | None] = []
        self._metas: dict[tuple[TensorMeta, tuple[int, ...] | None, str | None], str] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def add(self, entry: Entry) -> None:
        """Append the values of one entry; for an entry that cannot be stored, append the reason."""
        num_rows = len(self)
        try:
            for part, values in _parts(entry):
                if values:
                    self._add(part, "", values)
        except Exception as error:  # noqa: BLE001  # arguments are objects of the user
            for column in (self.parts, self.paths, self.leaves, self.digests, self.file_names):
                del column[num_rows:]
            self._append(None, None, f'{{"type":"error","error":"{type(error).__name__}"}}')
        if len(self) == num_rows and entry.phase is not Phase.PARAMETERS_GRAD:
            self._append(None, None, None)
        self.entries.append(entry)
        self.ends.append(len(self))

    def _add(self, part: str, path: str, value: Value) -> None:
        if isinstance(value, TensorValue):
            digest = Digest(fp8=value.digest.fp8, extra=value.digest.extra)  # what has no column
            described = value.meta, value.sliced_from, value.failure
            is_usual = digest == _NO_DIGEST
            leaf = self._metas.get(described) if is_usual else None
            if leaf is None:
                leaf = leaf_text(TensorValue(value.meta, digest, sliced_from=value.sliced_from, failure=value.failure))
                if is_usual:
                    self._metas[described] = leaf
            self._append(part, path, leaf, value.digest, value.file_name)
        elif isinstance(value, list):
            for i, item in enumerate(value):
                self._add(part, f"{path}.{i}" if path else str(i), item)
        elif isinstance(value, dict):
            for key, item in value.items():
                name = clean_text(key)
                self._add(part, f"{path}.{name}" if path else name, item)
        elif isinstance(value, GradientSlot):
            self._add(part, path, value.value)
        else:
            self._append(part, path, leaf_text(value) if isinstance(value, Argument | Failure) else None)

    def _append(
        self,
        part: str | None,
        path: str | None,
        leaf: str | None,
        digest: Digest | None = None,
        file_name: str | None = None,
    ) -> None:
        self.parts.append(part)
        self.paths.append(path)
        self.leaves.append(leaf)
        self.digests.append(digest or _NO_DIGEST)
        self.file_names.append(file_name)


_NO_DIGEST, _NO_STATS = Digest(), Stats()


def _parts(entry: Entry) -> Sequence[tuple[str, list[Value] | dict[str, Value] | None]]:
    if entry.phase is Phase.PARAMETERS_GRAD:
        return ((Phase.PARAMETERS_GRAD.value, entry.parameters),)
    if entry.phase is Phase.BACKWARD:
        return ("input", entry.inputs), ("output", entry.outputs), ("output_kwargs", entry.output_kwargs)
    return (
        ("input_args", entry.inputs),
        ("input_kwargs", entry.input_kwargs),
        ("parameters", entry.parameters),
        ("output", entry.outputs),
    )


def to_batch(rows: Rows) -> PyArrow:
    """Return rows as a ``pyarrow.RecordBatch``."""
    pyarrow = import_pyarrow()
    stats = [digest.stats or _NO_STATS for digest in rows.digests]
    num_rows = np.diff(np.array([0, *rows.ends]))
    entry_of_row = pyarrow.array(np.repeat(np.arange(len(rows.entries), dtype=np.int32), num_rows))
    arrays: list[PyArrow] = []
    for _, cell, source, get, _ in COLUMNS:
        if source is Source.ENTRY:
            array = _array(pyarrow, cell, list(map(get, rows.entries))).take(entry_of_row)
        elif source is Source.PLACE:
            array = _array(pyarrow, cell, get(rows))
        else:
            array = _array(pyarrow, cell, list(map(get, rows.digests if source is Source.DIGEST else stats)))
        arrays.append(array)
    return pyarrow.RecordBatch.from_arrays(arrays, [column.name for column in COLUMNS])


def to_small_batch(columns: Mapping[str, Cell], cells: Sequence[Sequence[Any]]) -> PyArrow:
    """Return a ``pyarrow.RecordBatch`` of one of the smaller files.

    Args:
        columns: ``STACK_COLUMNS`` or ``CONSTRUCT_COLUMNS``.
        cells: Cells of each column.
    """
    pyarrow = import_pyarrow()
    arrays = [_array(pyarrow, cell, part) for cell, part in zip(columns.values(), cells, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, list(columns))


def _array(pyarrow: PyArrow, cell: Cell, cells: Sequence[Any]) -> PyArrow:
    kind = pyarrow.string() if cell is Cell.TEXT else types()[cell]
    try:
        array = pyarrow.array(cells, kind)
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
        # Extremes of integers and booleans among floats; anything that a plugin's processor put into a digest.
        array = pyarrow.array([None if part is None else _converted(cell, part) for part in cells], kind)
    return array.dictionary_encode() if cell is Cell.TEXT else array


def _converted(cell: Cell, part: Any) -> Any:
    """Return a cell in its column's type; ``None`` if it cannot be converted."""
    try:
        if cell is Cell.NUMBER:
            return float(part)
        if cell is Cell.COUNT:
            number = int(part)
            return number if abs(number) < 2**63 else None
        if cell is Cell.SKETCH:
            return part if isinstance(part, bytes) and len(part) == SIZE_BYTES else None
        return clean_text(part if isinstance(part, str) else str(part))
    except (ValueError, TypeError, OverflowError):
        return None


@cache
def types() -> dict[Cell, PyArrow]:
    """Return the Arrow type for each type of cell."""
    pyarrow = import_pyarrow()
    return {
        Cell.TEXT: pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        Cell.OWN_TEXT: pyarrow.string(),
        Cell.NUMBER: pyarrow.float64(),
        Cell.COUNT: pyarrow.int64(),
        Cell.SKETCH: pyarrow.binary(SIZE_BYTES),
        Cell.LINES: pyarrow.list_(pyarrow.string()),
    }
