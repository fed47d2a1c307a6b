"""Write ``dump.arrow``, ``stack.arrow`` and ``construct.arrow`` as appended record batches."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from msprobe_core.errors import StoreError
from msprobe_core.model import Batch, Ending, Entry, Phase, RunHeader, Task
from msprobe_core.store import layout
from msprobe_core.store.append_file import GrowingFile
from msprobe_core.store.arrow_columns import (
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
    Rows,
    import_pyarrow,
    to_batch,
    to_small_batch,
    types,
)
from msprobe_core.store.ending import says_anything
from msprobe_core.store.json_writer import clean_text

MAX_BATCH_ROWS = 16_384
"""A batch ends with the entry that reaches this number of rows. A truncated file loses at most one batch."""


class ArrowStream:
    """An append-only Arrow IPC stream that is complete after every append; see `GrowingFile`.

    Dictionaries belong to one batch and are replaced by the next, so that a batch costs the same at any position.
    """

    def __init__(self, path: Path, columns: Mapping[str, Cell], header: FileHeader) -> None:
        """Create the file without batches.

        Args:
            path: An existing file is replaced.
            columns: Its columns.
            header: Stored in the schema's metadata.

        Raises:
            StoreError: the file cannot be created or written.
        """
        pyarrow = import_pyarrow()
        fields = [pyarrow.field(name, types()[cell]) for name, cell in columns.items()]
        schema = pyarrow.schema(fields, {HEADER_KEY: msgspec.json.encode(header)})
        self._schema = schema
        self._written = io.BytesIO()
        self._stream = _open_stream(pyarrow, self._written, schema)
        with io.BytesIO() as empty:
            _open_stream(pyarrow, empty, schema).close()
            head = empty.getvalue().removesuffix(END_OF_STREAM)
        self._schema_bytes = head
        self._head: bytes | None = head
        self._file = GrowingFile(path, head, END_OF_STREAM)
        self._failure: StoreError | None = None

    def append(self, batch: PyArrow) -> None:
        """Append a record batch.

        Raises:
            StoreError: it cannot be written, or an earlier one could not: the library omits dictionaries that the
                previous batch already contained. The file then has all earlier batches and is valid.
        """
        if self._failure is not None:
            raise self._failure
        self._stream.write_batch(batch)
        content = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        if self._head is not None:  # the library writes the schema before the first batch
            content = content.removeprefix(self._head)
            self._head = None
        try:
            self._file.append(content)
        except StoreError as error:
            self._failure = error
            raise

    def end_with(self, ending: Ending) -> None:
        """Store how the recording ended in a last batch without rows, which the next append replaces.

        Raises:
            StoreError: it cannot be written; the file then has its usual end.
        """
        if not says_anything(ending):
            self._file.end_with(None)
            return
        pyarrow = import_pyarrow()
        # Use a separate library stream: this one would later omit dictionaries that this batch already contained.
        with io.BytesIO() as written:
            stream = _open_stream(pyarrow, written, self._schema)
            stream.write_batch(
                pyarrow.RecordBatch.from_pylist([], schema=self._schema),
                custom_metadata={END_KEY: msgspec.json.encode(ending)},
            )
            stream.close()
            self._file.end_with(written.getvalue().removeprefix(self._schema_bytes))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open_stream(pyarrow: PyArrow, target: io.BytesIO, schema: PyArrow) -> PyArrow:
    # A value takes 28 bytes (40 with four random float64), 46 (54) with lz4 and 107 uncompressed, for 0.1 µs more: zstd
    # also encodes the trailing zeros of numbers that were float32.
    options = pyarrow.ipc.IpcWriteOptions(compression=pyarrow.Codec("zstd", 1), use_threads=False)
    return pyarrow.ipc.new_stream(target, schema, options=options)


def _has_rows(entry: Entry) -> bool:
    return entry.phase is not Phase.PARAMETERS_GRAD or bool(entry.parameters)


class ArrowWriter:
    """The writer of one step of one rank."""

    def __init__(self, directory: Path, header: RunHeader) -> None:
        """Begin a dump in ``directory``.

        Raises:
            PluginError: pyarrow is not installed.
            StoreError: a file cannot be created.
        """
        # Before the first entries, which may be written as the program ends: the first array imports pandas where it is
        # installed, and that is refused once threads have been joined.
        import_pyarrow().array([None])
        layout.remove_dump(directory)
        head = FileHeader(FORMAT_VERSION, header)
        self._dump = ArrowStream(directory / layout.ARROW_DUMP_FILE, DUMP_COLUMNS, head)
        self._stacks: ArrowStream | None = None
        self._construct: ArrowStream | None = None
        if header.has_extra_info:
            self._stacks = ArrowStream(directory / layout.ARROW_STACK_FILE, STACK_COLUMNS, head)
            self._construct = ArrowStream(directory / layout.ARROW_CONSTRUCT_FILE, CONSTRUCT_COLUMNS, head)
        self._stack_numbers: dict[tuple[str, ...], int] = {}
        self._num_calls = 0
        self._keeps_values = header.task != Task.STRUCTURE.value

    def write(self, batch: Batch) -> None:
        """Append a batch to all files, values last: every value in the file has its stack and its nesting."""
        if self._stacks is not None:
            self._write_stacks(self._stacks, batch.entries)
        if self._construct is not None and batch.parents:
            names = [clean_text(name) for name in batch.parents]
            parents = [None if parent is None else clean_text(parent) for parent in batch.parents.values()]
            self._construct.append(to_small_batch(CONSTRUCT_COLUMNS, [names, parents]))
        if self._keeps_values:
            self._write_values(batch.entries)
        self._num_calls += sum(map(_has_rows, batch.entries))

    def end(self, ending: Ending) -> None:
        """Store how the recording ended; see `msprobe_core.plugin.EndingWriter`."""
        reason = clean_text(ending.reason)
        self._dump.end_with(msgspec.structs.replace(ending, num_calls=self._num_calls, reason=reason))

    def close(self) -> None:
        """Close all files."""
        for stream in (self._dump, self._stacks, self._construct):
            if stream is not None:
                stream.close()

    def _write_values(self, entries: Sequence[Entry]) -> None:
        rows = Rows()
        for entry in entries:
            rows.add(entry)
            if len(rows) >= MAX_BATCH_ROWS:
                self._dump.append(to_batch(rows))
                rows = Rows()
        if len(rows):
            self._dump.append(to_batch(rows))

    def _write_stacks(self, stream: ArrowStream, entries: Sequence[Entry]) -> None:
        names: list[str] = []
        numbers: list[int] = []
        frames: list[list[str] | None] = []
        for entry in entries:
            if entry.stack is not None:
                number = self._stack_numbers.get(entry.stack)
                frames.append([clean_text(frame) for frame in entry.stack] if number is None else None)
                if number is None:
                    number = self._stack_numbers[entry.stack] = len(self._stack_numbers)
                names.append(clean_text(entry.name))
                numbers.append(number)
        if names:
            stream.append(to_small_batch(STACK_COLUMNS, [names, numbers, frames]))
