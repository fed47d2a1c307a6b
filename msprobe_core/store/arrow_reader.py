"""Read ``dump.arrow`` and the files next to it: all complete batches, even if the rest is damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import polars as pl

from msprobe_core.errors import DamagedDumpError, DumpError, NewerDumpError
from msprobe_core.findings import Finding
from msprobe_core.model import Phase, Role, RunHeader
from msprobe_core.store import frame, layout
from msprobe_core.store.arrow_columns import (
    COLUMNS,
    CONSTRUCT_COLUMNS,
    DUMP_COLUMNS,
    END_KEY,
    END_OF_STREAM,
    FORMAT_VERSION,
    HEADER_KEY,
    STACK_COLUMNS,
    Cell,
    FileHeader,
    PyArrow,
    import_pyarrow,
    types,
)
from msprobe_core.store.ending import ending_in
from msprobe_core.store.reading_codes import DamageCode
from msprobe_core.store.stored_dump import StoredDump, notes_of, read_content
from msprobe_core.untrusted.arrow import unpacked
from msprobe_core.untrusted.files import most_unfolded
from msprobe_core.untrusted.malformed import MalformedError

NEEDED = frozenset({"entry", "phase", "part", "path", "value"})
"""Columns that a frame requires; the others may be missing."""


class ArrowDump(StoredDump):
    """A dump read from ``dump.arrow`` and the files next to it."""

    stack_file = layout.ARROW_STACK_FILE
    construct_file = layout.ARROW_CONSTRUCT_FILE

    @property
    def recomputed(self) -> frozenset[str]:
        """Entries of forward calls that ran inside a backward pass."""
        columns = {name: DUMP_COLUMNS[name] for name in ("entry", "recompute")}
        table = read_stream(self.path, columns, needed=("entry",)).table
        if "recompute" not in table.schema.names:
            return frozenset()
        # A filter is cheaper than converting every row to Python.
        found = table.filter(table["recompute"].is_valid())
        return frozenset(found["entry"].unique().to_pylist())

    def _read_stacks(self, path: Path) -> Mapping[str, Sequence[str]]:
        return stacks_in(self._columns_of(path, STACK_COLUMNS))

    def _read_parents(self, path: Path) -> Mapping[str, str | None]:
        names, parents = self._columns_of(path, CONSTRUCT_COLUMNS)
        return dict(zip(names, parents, strict=True))

    def _columns_of(self, path: Path, columns: Mapping[str, Cell]) -> list[list[Any]]:
        stream = read_stream(path, columns, needed=columns)
        self.notes += notes_of(path, stream.damage)
        return stream.columns()


def micro_steps_in(path: Path) -> Mapping[str, int]:
    """Return the micro-steps of the calls of a dump.

    Raises:
        DumpError: the file cannot be read.
        PluginError: pyarrow is not installed.
    """
    columns = {name: DUMP_COLUMNS[name] for name in ("entry", "micro_step")}
    table = read_stream(path, columns, needed=("entry",)).table
    if "micro_step" not in table.schema.names:
        return dict.fromkeys(table["entry"].unique().to_pylist(), 0)
    rows = table.group_by("entry").aggregate([("micro_step", "max")])
    return dict(zip(rows["entry"].to_pylist(), rows["micro_step_max"].fill_null(0).to_pylist(), strict=True))


def stacks_in(columns: Sequence[list[Any]]) -> Mapping[str, Sequence[str]]:
    """Return the frames of each entry, given the columns of a ``stack.arrow``."""
    known: dict[int, Sequence[str]] = {}
    stacks: dict[str, Sequence[str]] = {}
    for entry, number, frames in zip(*columns, strict=True):
        if frames is not None:
            known[number] = [frame or "" for frame in frames]
        if number in known and entry is not None:
            stacks[entry] = known[number]
    return stacks


def read_arrow_dump(path: Path) -> ArrowDump:
    """Return the dump in the file ``path``.

    Args:
        path: A ``dump.arrow``.

    Raises:
        DumpError: the file is missing, not a dump, or damaged before its first whole batch.
        PluginError: pyarrow is not installed.
    """
    stream = read_stream(path, DUMP_COLUMNS, needed=NEEDED)
    try:
        rows = _frame_of(stream.table)
    except Exception as error:  # untrusted content may fail in any way
        raise DamagedDumpError(f"{path}: is not a sound dump ({error or type(error).__name__})") from error
    ending = ending_in(stream.header, stream.mark, rows["entry"].n_unique(), stream.damage)
    return ArrowDump(path, stream.header, rows, stream.damage, ending)


# --- the file -----------------------------------------------------------------------------------------------------


class Stream(NamedTuple):
    """The readable part of a file."""

    header: RunHeader
    table: PyArrow
    damage: list[Finding]
    mark: Any

    def columns(self) -> list[list[Any]]:
        """Return each column as a list."""
        return [column.to_pylist() for column in self.table.columns]


class BatchReader:
    """Iterates over the complete batches of a file, restricted to known columns.

    Attributes:
        path: Path of the file.
        header: Header of the file.
        damage: After iteration, what was lost at its end.
        mark: After iteration, its end mark, decoded; ``None`` if it has none.
    """

    def __init__(
        self, path: Path, columns: Mapping[str, Cell], needed: Collection[str], others: Cell | None = None
    ) -> None:
        """Open a file.

        Args:
            path: Path of the file.
            columns: Known columns.
            needed: Required columns.
            others: Type of columns with other names that are read too; ``None`` to leave them out.

        Raises:
            DumpError: there is no such file, or it is of another kind.
            PluginError: pyarrow is not installed.
        """
        pyarrow = import_pyarrow()
        self.path = path
        content = read_content(path)
        self._most = most_unfolded(len(content))
        try:
            _check_unpacked(pyarrow, content, self._most)
            self._stream = pyarrow.ipc.open_stream(pyarrow.py_buffer(content))
            self.header = _header_of(path, self._stream.schema)
            self._known = _known_columns(path, self._stream.schema, columns, needed)
            if others is not None:
                self._known += _others_in(self._stream.schema, columns, others)
        except DumpError:
            raise
        except MalformedError as error:
            raise DumpError(f"{path}: {error}") from error
        except Exception as error:  # untrusted bytes may fail in any way
            reason = f"is not an Arrow stream ({_said(error)}); the file is damaged or of another kind"
            raise DumpError(f"{path}: {reason}") from error
        self.schema: PyArrow = pyarrow.schema([self._stream.schema.field(name) for name in self._known])
        self.damage: list[Finding] = []
        self.mark: Any = None
        self._has_end = content.endswith(END_OF_STREAM)

    def __iter__(self) -> Iterator[PyArrow]:
        """Yield each batch.

        Raises:
            DumpError: not even the first one is complete.
        """
        num_batches = num_rows = num_text_bytes = 0
        problem: str | None = None
        while True:
            try:
                found, metadata = self._stream.read_next_batch_with_custom_metadata()
                if metadata is not None and END_KEY in metadata:
                    self.mark = msgspec.json.decode(metadata[END_KEY])
                    continue
                found = found.select(self._known)
                found.validate(full=True)  # before any access: indices and lengths may be out of bounds
                num_text_bytes += _text_bytes(found)
                if num_text_bytes > self._most:
                    raise MalformedError("its rows refer to longer texts than those of a file of its length should")  # noqa: TRY301
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001  # untrusted bytes
                problem = _said(error)
                break
            num_batches += 1
            num_rows += found.num_rows
            yield found
        if problem is None and not self._has_end:
            problem = "its end is missing"
        if problem is not None and not num_batches:
            raise DamagedDumpError(f"{self.path}: is cut off or damaged before its first whole batch ({problem})")
        if problem is not None:
            fields = {"batches": num_batches, "rows": num_rows, "why": problem}
            self.damage.append(Finding(DamageCode.BATCHES, fields=fields))


def _check_unpacked(pyarrow: PyArrow, content: bytes, most: int) -> None:
    """Raise if the messages of a stream expand to more than ``most`` bytes; stops at the first damaged message.

    Raises:
        MalformedError: they do.
    """
    num_bytes = num_rows = 0
    messages = pyarrow.ipc.MessageReader.open_stream(pyarrow.py_buffer(content))
    while True:
        try:
            message = messages.read_next_message()
        except (StopIteration, EOFError, OSError, pyarrow.ArrowException):
            return
        own = unpacked(memoryview(message.metadata), memoryview(message.body))
        num_bytes, num_rows = num_bytes + own.num_bytes, num_rows + own.num_rows
        if num_bytes > most or num_rows * _BYTES_PER_ROW > most:
            raise MalformedError(f"its {len(content):,} bytes stand for more than a file of its length should")


_BYTES_PER_ROW = 128
"""Minimum size of a row in a frame."""


def _text_bytes(batch: PyArrow) -> int:
    """Return the total length of the texts of all rows, counted as often as rows refer to them."""
    texts = [column for column in batch.columns if isinstance(column, import_pyarrow().DictionaryArray)]
    lengths = [_series(text.dictionary, pl.String).str.len_bytes() for text in texts]
    used: list[Any] = [own.gather(_series(text.indices, pl.UInt32)) for own, text in zip(lengths, texts, strict=True)]
    return sum(own.cast(pl.UInt64).sum() for own in used)


def read_stream(path: Path, columns: Mapping[str, Cell], needed: Collection[str], others: Cell | None = None) -> Stream:
    """Return the columns of a file that are known here, of all its whole batches; see `BatchReader`.

    Raises:
        DumpError: there is no such file, or nothing whole in it.
        PluginError: pyarrow is not installed.
    """
    reader = BatchReader(path, columns, needed, others)
    table = import_pyarrow().Table.from_batches(list(reader), reader.schema)
    return Stream(reader.header.run, table.unify_dictionaries(), reader.damage, reader.mark)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _header_of(path: Path, schema: PyArrow) -> FileHeader:
    metadata: dict[bytes, bytes] = schema.metadata or {}
    content = metadata.get(HEADER_KEY)
    if content is None:
        raise DumpError(f"{path}: is an Arrow stream, but not a dump; give the path of a {layout.ARROW_DUMP_FILE}")
    try:
        header = msgspec.json.decode(content, type=FileHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DumpError(f"{path}: its header is not that of a dump ({error})") from error
    if header.version > FORMAT_VERSION:
        raise NewerDumpError(
            f"{path}: has version {header.version} of the format, and this release reads {FORMAT_VERSION}; "
            "update msprobe-core"
        )
    return header


def _known_columns(path: Path, schema: PyArrow, columns: Mapping[str, Cell], needed: Collection[str]) -> list[str]:
    known = [name for name in columns if name in schema.names]
    if missing := sorted(set(needed) - set(known)):
        raise DumpError(f"{path}: lacks the columns {', '.join(missing)}; give the path of a {layout.ARROW_DUMP_FILE}")
    for name in known:
        if schema.names.count(name) != 1 or schema.field(name).type != types()[columns[name]]:
            raise DumpError(f"{path}: its column {name!r} does not hold what it does in a dump")
    return known


def _others_in(schema: PyArrow, columns: Collection[str], cell: Cell) -> list[str]:
    kind = types()[cell]
    return [
        name for name in schema.names
        if name not in columns and schema.names.count(name) == 1 and schema.field(name).type == kind
    ]  # fmt: skip


# --- the frame ----------------------------------------------------------------------------------------------------


def _frame_of(table: PyArrow) -> pl.DataFrame:
    """Return the same frame as `FrameBuilder` builds from these entries in ``dump.json``."""
    texts = {name: _Texts.of(table[name]) for name in NEEDED}
    if texts["entry"].indices.null_count() or texts["phase"].indices.null_count():
        raise ValueError("a value belongs to no entry")
    is_call = texts["path"].indices.is_null() | texts["part"].indices.is_null()
    rows = pl.DataFrame(
        {
            "entry": texts["entry"].gather(texts["entry"].distinct),
            "path": texts["path"].gather(texts["path"].distinct),
            "role": texts["part"].gather([frame.ROLE_OF_PART[part].value for part in texts["part"].distinct], _ROLE),
            "phase": texts["phase"].gather([Phase(phase).value for phase in texts["phase"].distinct], _PHASE),
        }
    ).with_columns(role=pl.when(is_call).then(pl.lit(Role.OUTPUT.value, _ROLE)).otherwise("role"))
    leaves = texts["value"]
    decoded = [msgspec.json.decode(text) for text in leaves.distinct]
    # The row after the last one is used for missing values.
    number = leaves.indices.fill_null(len(decoded))
    rows = rows.hstack(frame.leaf_frame([*decoded, None])[number])
    own = {
        column.frame: _series(table[column.name], frame.COLUMNS[column.frame])
        for column in COLUMNS
        if column.frame is not None and column.name in table.schema.names
    }
    rows = rows.with_columns(
        pl.coalesce(cells, pl.col(name)).alias(name) if name in rows.columns else cells.alias(name)
        for name, cells in own.items()
    )
    return frame.with_names(rows).select(frame.COLUMNS.keys())


def _series(column: PyArrow, dtype: Any) -> pl.Series:
    return cast("Any", pl).from_arrow(column).cast(dtype)


_ROLE, _PHASE = frame.COLUMNS["role"], frame.COLUMNS["phase"]


class _Texts(NamedTuple):
    """A column of texts: the distinct texts, and the index of the text in each row."""

    distinct: list[str]
    indices: pl.Series

    @staticmethod
    def of(column: PyArrow) -> _Texts:
        """Return a column whose chunks share one dictionary."""
        if not column.num_chunks:
            return _Texts([], pl.Series([], dtype=pl.Int32))
        indices = import_pyarrow().chunked_array([chunk.indices for chunk in column.chunks])
        return _Texts(column.chunk(0).dictionary.to_pylist(), _series(indices, pl.Int32))

    def gather(self, values: Sequence[str], dtype: Any = pl.String) -> pl.Series:
        """Return a column with ``values``, one for each distinct text, in place of the texts."""
        return pl.Series(values, dtype=dtype).gather(self.indices)
