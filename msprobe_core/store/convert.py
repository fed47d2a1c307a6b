"""Convert runs between ``dump.json`` and ``dump.arrow``: one rank, the ranks of a step, or all steps."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from msprobe_core.errors import DumpError, ExistsError, MsprobeError, StoreError, clip
from msprobe_core.findings import Finding
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import Ending, Level, RunHeader
from msprobe_core.store import layout
from msprobe_core.store.arrow_columns import (
    CONSTRUCT_COLUMNS,
    FORMAT_VERSION,
    STACK_COLUMNS,
    Cell,
    FileHeader,
    import_pyarrow,
    to_small_batch,
)
from msprobe_core.store.arrow_reader import NEEDED, BatchReader, stacks_in
from msprobe_core.store.arrow_records import RECORD_COLUMNS, RecordRows, records_of
from msprobe_core.store.arrow_writer import MAX_BATCH_ROWS, ArrowStream
from msprobe_core.store.ending import ending_in, sentence, sentence_of_empty
from msprobe_core.store.held_directory import SUFFIX, HeldDirectory, leftovers
from msprobe_core.store.json_reader import decode_record, read_document, read_json_dump, read_object, read_stacks
from msprobe_core.store.json_writer import DUMP_TAIL, JsonObjectStream, clean_text, dump_head, dump_tail
from msprobe_core.store.reading import format_of_plugin
from msprobe_core.store.reading_codes import DamageCode
from msprobe_core.store.stored_dump import notes_of, read_content
from msprobe_core.untrusted.files import open_plain, reading

ConvertProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of finished ranks, the total, and the next rank."""

_T = TypeVar("_T")

_BATCH_RECORDS = 1000
_MICRO_STEPS = "megatron_micro_step_number"
_CONSTRUCT_COLUMNS = CONSTRUCT_COLUMNS | {"micro_step": Cell.COUNT}
"""Other tools store the micro-step of a call in the nesting."""


class Format(str, Enum):
    """Storage format of a dump."""

    JSON = "json"
    ARROW = "arrow"

    @property
    def other(self) -> Format:
        """The other format."""
        return Format.ARROW if self is Format.JSON else Format.JSON


class TensorFiles(str, Enum):
    """How to transfer the files of whole tensors, which are the same for both formats."""

    COPY = "copy"
    LINK = "link"
    """Hard links: immediate and without disk space, but the files keep their original permissions."""


@dataclass
class Conversion:
    """The result of a conversion.

    Attributes:
        to: The new format.
        num_units: Number of ranks, over all steps.
        size_before: Size of their records, stacks and nesting, in bytes.
        size_after: Size of the converted ones.
        notes: Notes on single files.
        incomplete: Which dumps do not hold all of their step, in words.
    """

    to: Format
    num_units: int = 0
    size_before: int = 0
    size_after: int = 0
    notes: list[str] = field(default_factory=list[str])
    incomplete: list[str] = field(default_factory=list[str])


def convert(
    source: Path,
    destination: Path,
    *,
    to: Format | None = None,
    overwrite: bool = False,
    tensors: TensorFiles = TensorFiles.COPY,
    progress: ConvertProgress | None = None,
) -> Conversion:
    """Convert the dumps in ``source`` into ``destination``, which gets the same directory structure.

    ``destination`` appears when it is complete; if anything fails, or the process ends, it is unchanged. In addition to
    the file being read, one batch of records is in memory.

    Args:
        source: Directory of one rank, of a step, or of a run with its steps; or the file of a dump in the first.
        destination: Created.
        to: ``None`` for the format that the first dump does not have.
        overwrite: Whether an existing run is replaced. Anything else is never replaced.
        tensors: How to transfer the files of whole tensors.
        progress: Called before each rank, and at the end.

    Raises:
        DumpError: there is no dump in ``source``, or one that cannot be read.
        StoreError: ``destination`` exists, or cannot be written.
        PluginError: pyarrow is not installed.
    """
    import_pyarrow()
    source = source.parent if source.is_file() else source
    units = _units_in(source)
    found = next((form for unit in units if (form := _format_of(source / unit)) is not None), Format.JSON)
    done = Conversion(to or found.other)
    check_places(source, destination, overwrite=overwrite)
    _refuse_other_formats(source, units)
    with replaced_directory(destination) as scratch:
        for number, unit in enumerate(units):
            if progress is not None:
                progress(number, len(units), str(unit))
            if (empty := sentence_of_empty(source / unit)) is not None:
                layout.make_directory(scratch / unit)
                done.incomplete.append(empty)
                continue
            if _format_of(source / unit) is done.to:
                raise DumpError(f"{source / unit}: is {done.to.value} already; choose another directory, or format")
            one = _Unit(source / unit, scratch / unit, destination / unit, done)
            one.convert()
            one.add_tensors(tensors)
            raise_if_interrupted()
        if progress is not None:
            progress(len(units), len(units), "")
    return done


# --- directories --------------------------------------------------------------------------------------------------


def _units_in(source: Path) -> Sequence[Path]:
    """Return the directories of all ranks, relative to ``source``."""
    if _format_of(source) is not None or format_of_plugin(source) is not None:
        return [Path()]
    steps = layout.find_steps(source)
    roots = list(steps.values()) if steps else [source]
    return [unit.directory.relative_to(source) for root in roots for unit in layout.find_units(root)]


def _refuse_other_formats(source: Path, units: Sequence[Path]) -> None:
    """Raise if one of the dumps is of a plugin's format.

    Raises:
        DumpError: there is one.
    """
    for unit in units:
        if _format_of(source / unit) is None and (name := format_of_plugin(source / unit)) is not None:
            raise DumpError(
                f"{source / unit}: is a dump of the format {name!r}, which a plugin reads; only json and arrow are "
                "converted into each other, and every other command takes the dump as it is"
            )


def _format_of(directory: Path) -> Format | None:
    if (directory / layout.ARROW_DUMP_FILE).is_file():
        return Format.ARROW
    has_json = any((directory / name).is_file() for name in (layout.DUMP_FILE, layout.DEBUG_FILE))
    return Format.JSON if has_json else None


def check_places(source: Path, destination: Path, *, overwrite: bool) -> None:
    """Raise if a run in ``source`` cannot be converted into ``destination``.

    Args:
        source: Is not changed.
        destination: A new directory or, with ``overwrite``, one with a run; neither contains the other.
        overwrite: Whether an existing run is replaced.

    Raises:
        StoreError: it cannot.
    """
    if destination.is_symlink():
        raise StoreError(f"{destination}: is a symbolic link; give the directory itself")
    places = source.resolve(), destination.resolve()
    if places[0] == places[1] or places[0] in places[1].parents or places[1] in places[0].parents:
        raise StoreError(f"{destination}: is not apart from {source}; choose a directory beside it")
    if not destination.exists():
        return
    if not destination.is_dir():
        raise ExistsError(f"{destination}: is there and no directory; choose another")
    if not any(destination.iterdir()):
        return
    if not overwrite:
        raise ExistsError(f"{destination}: is there already; choose another directory, or give --overwrite")
    try:
        _units_in(destination)
    except DumpError as error:
        raise ExistsError(f"{destination}: is there and holds no dump, so it is not overwritten; remove it") from error


@contextmanager
def replaced_directory(destination: Path) -> Generator[Path, None, None]:
    """Provide a new directory that replaces ``destination`` at the end, or is removed on an error."""
    destination = destination.absolute()
    _remove_leftovers(destination)
    scratch = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}{SUFFIX}")
    former = _former_of(scratch)
    layout.make_directory(scratch)
    held = HeldDirectory(scratch)
    try:
        yield scratch
        with _saying(destination):
            if destination.exists():
                destination.rename(former)
            try:
                scratch.rename(destination)
            except OSError:
                if former.exists():
                    former.rename(destination)
                raise
    except BaseException:
        held.remove()
        raise
    shutil.rmtree(former, ignore_errors=True)
    held.release()


def _former_of(scratch: Path) -> Path:
    """Return where the directory that is replaced is for a moment."""
    return scratch.with_name(f"{scratch.name.removesuffix(SUFFIX)}.old")


def _remove_leftovers(destination: Path) -> None:
    """Remove what processes left that were killed while they replaced a directory; the directory itself is put back."""
    for scratch in leftovers(destination.parent, f".{destination.name}."):
        former = _former_of(scratch)
        with suppress(OSError):  # nothing was there, or another process was faster
            if not destination.exists():
                former.rename(destination)
        shutil.rmtree(former, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
    ours = re.compile(re.escape(f".{destination.name}.") + r"[0-9a-f]{8}\.old")
    for each in sorted(destination.parent.iterdir()) if destination.parent.is_dir() else ():
        # Killed just after the new directory was in place. A process that still replaces it has both.
        if ours.fullmatch(each.name) and not each.with_name(f"{each.stem}{SUFFIX}").exists() and destination.exists():
            shutil.rmtree(each, ignore_errors=True)


@contextmanager
def _saying(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror}); free space or choose another directory"
        ) from error


# --- one rank -----------------------------------------------------------------------------------------------------


class _Unit:
    """One rank's directory of one step."""

    def __init__(self, source: Path, target: Path, final: Path, done: Conversion) -> None:
        """Prepare the conversion.

        Args:
            source: Its directory.
            target: Where it is written.
            final: Its final location.
            done: Result to update.
        """
        self._source = source
        self._target = target
        self._final = final
        self._done = done

    def convert(self) -> None:
        """Convert the records and the files next to them."""
        layout.make_directory(self._target)
        try:
            if self._done.to is Format.ARROW:
                self._to_arrow()
            else:
                self._to_json()
        except StoreError as error:
            raise StoreError(str(error).replace(str(self._target), str(self._final))) from error
        except (MsprobeError, MemoryError):
            raise
        except OSError as error:
            raise StoreError(f"{self._final}: cannot be written ({error.strerror or error})") from error
        except Exception as error:  # foreign content: there is no list of the ways in which it is no dump
            raise DumpError(
                f"{self._source}: cannot be converted ({type(error).__name__}: {clip(str(error))})"
            ) from error
        self._done.num_units += 1
        names = {path.name for path in self._source.iterdir()} - {layout.TENSOR_DIRECTORY}
        self._done.size_before += sum((self._source / name).stat().st_size for name in names & _CONVERTED)
        self._done.size_after += sum(path.stat().st_size for path in self._target.iterdir())
        for name in sorted(names & _CARRIED):
            self._carry(name)
        if others := sorted(names - _CONVERTED - _CARRIED):
            self._note(f"{self._source}: left out {len(others)} files that are of no dump; the first is {others[0]}")

    def _carry(self, name: str) -> None:
        try:
            with _saying(self._final):
                _copy(self._source / name, self._target / name)
        except DumpError as error:
            self._note(f"{error}; converted without it")

    def _note(self, note: str) -> None:
        self._done.notes.append(note)

    def _note_damage(self, path: Path, damage: Sequence[Finding]) -> None:
        self._done.notes += [note.text for note in notes_of(path, damage)]

    # --- json to arrow ---

    def _to_arrow(self) -> None:
        path = self._source / layout.DUMP_FILE
        if not path.exists():
            self._keep_saved_values()
            return
        damage: list[Finding] = []
        document = read_document(path, damage)
        mode = document.summary_mode
        header = document.header(mode) if isinstance(mode, str) and mode else read_json_dump(path).header
        extra = [(self._source / name).exists() for name in (layout.STACK_FILE, layout.CONSTRUCT_FILE)]
        header = msgspec.structs.replace(header, has_extra_info=any(extra))
        with closing(
            ArrowStream(
                self._target / layout.ARROW_DUMP_FILE,
                RECORD_COLUMNS,
                FileHeader(FORMAT_VERSION, header, _other_fields(path)),
            )
        ) as stream:
            rows = RecordRows()
            malformed: Mapping[str, str] = {}
            num_malformed = num_calls = 0
            for entry, record in document.data.items():
                before = len(rows)
                try:
                    rows.add(entry, decode_record(record))
                except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
                    malformed = malformed or {"record": repr(clip(entry)), "why": clip(str(error))}
                    num_malformed += 1
                num_calls += len(rows) > before
                if len(rows) >= MAX_BATCH_ROWS:
                    stream.append(rows.to_batch())
                    rows = RecordRows()
            if len(rows):
                stream.append(rows.to_batch())
            if malformed:
                damage.append(Finding(DamageCode.MALFORMED, fields={**malformed, "count": num_malformed}))
            self._note_damage(path, damage)
            self._end(stream, path, document.ending(header, len(document.data), damage), num_calls)
        self._beside(layout.STACK_FILE, lambda path: self._stacks_to_arrow(path, header))
        self._beside(layout.CONSTRUCT_FILE, lambda path: self._construct_to_arrow(path, header))

    def _end(self, stream: JsonObjectStream | ArrowStream, path: Path, ending: Ending, num_calls: int) -> None:
        """Copy the source's end mark to the converted file, and note if the source is incomplete."""
        if not ending.is_whole:
            self._done.incomplete.append(sentence(path, ending).text)
        # Of a reader's finding the text is stored.
        ending = Ending(
            state=ending.state, num_calls=num_calls, num_windows=ending.num_windows, reason=ending.reason,
            ended=ending.ended,
        )  # fmt: skip
        if isinstance(stream, ArrowStream):
            stream.end_with(ending)
        else:
            stream.end_with(dump_tail(ending))

    def _keep_saved_values(self) -> None:
        with layout.create_file(self._target / layout.DEBUG_FILE) as file:
            file.write(read_content(self._source / layout.DEBUG_FILE))
        self._note(f"{self._source}: {layout.DEBUG_FILE} stays as it is; saved values are always kept as json")

    def _beside(self, name: str, convert_file: Callable[[Path], None]) -> None:
        """Convert an optional file: a damaged one becomes a note."""
        path = self._source / name
        if not path.exists():
            return
        try:
            convert_file(path)
        except DumpError as error:
            self._note(f"{error}; converted without it")

    def _stacks_to_arrow(self, path: Path, header: RunHeader) -> None:
        stacks = read_stacks(path)
        numbers: dict[tuple[str, ...], int] = {}
        with closing(
            ArrowStream(self._target / layout.ARROW_STACK_FILE, STACK_COLUMNS, FileHeader(FORMAT_VERSION, header))
        ) as stream:
            for part in _parts(stacks.items(), MAX_BATCH_ROWS):
                cells: list[tuple[str, int, list[str] | None]] = []
                for entry, frames in part:
                    stack = tuple(map(clean_text, frames))
                    is_new = stack not in numbers
                    number = numbers.setdefault(stack, len(numbers))
                    cells.append((clean_text(entry), number, list(stack) if is_new else None))
                stream.append(to_small_batch(STACK_COLUMNS, list(zip(*cells, strict=True))))

    def _construct_to_arrow(self, path: Path, header: RunHeader) -> None:
        content = read_object(path)
        others = {_MICRO_STEPS: content.pop(_MICRO_STEPS)} if _MICRO_STEPS in content else {}
        with closing(
            ArrowStream(
                self._target / layout.ARROW_CONSTRUCT_FILE,
                _CONSTRUCT_COLUMNS,
                FileHeader(FORMAT_VERSION, header, others),
            )
        ) as stream:
            for part in _parts(content.items(), MAX_BATCH_ROWS):
                cells: list[tuple[str, str | None, int | None]] = []
                for entry, value in part:
                    parent, micro_step = cast("list[Any]", value) if _is_numbered(value) else (value, None)
                    if isinstance(parent, str | None):  # a reader also skips parents that are not calls
                        cells.append((clean_text(entry), None if parent is None else clean_text(parent), micro_step))
                if cells:
                    stream.append(to_small_batch(_CONSTRUCT_COLUMNS, list(zip(*cells, strict=True))))

    # --- arrow to json ---

    def _to_json(self) -> None:
        reader = BatchReader(self._source / layout.ARROW_DUMP_FILE, RECORD_COLUMNS, NEEDED)
        header = reader.header.run
        name = layout.DEBUG_FILE if header.level == Level.DEBUG.value else layout.DUMP_FILE
        with closing(
            JsonObjectStream(self._target / name, dump_head(self._final, header, reader.header.others), DUMP_TAIL)
        ) as stream:
            num_calls = 0
            for part in _parts(records_of(reader, header.summary_mode), _BATCH_RECORDS):
                stream.append(part)
                num_calls += len(part)
            self._end(stream, reader.path, ending_in(header, reader.mark, num_calls, reader.damage), num_calls)
        self._note_damage(reader.path, reader.damage)
        self._beside(layout.ARROW_STACK_FILE, self._stacks_to_json)
        self._beside(layout.ARROW_CONSTRUCT_FILE, self._construct_to_json)

    def _stacks_to_json(self, path: Path) -> None:
        reader = BatchReader(path, STACK_COLUMNS, STACK_COLUMNS)
        groups: dict[tuple[str, ...], list[str]] = {}
        columns: list[list[Any]] = [[] for _ in STACK_COLUMNS]
        for batch in reader:
            for number, column in enumerate(batch.columns):
                columns[number] += column.to_pylist()
        for entry, frames in stacks_in(columns).items():
            groups.setdefault(tuple(frames), []).append(entry)
        with closing(JsonObjectStream(self._target / layout.STACK_FILE, b"{\n", b"\n}\n")) as stream:
            members = (
                (str(i), msgspec.json.encode([names, frames])) for i, (frames, names) in enumerate(groups.items())
            )
            for part in _parts(members, _BATCH_RECORDS):
                stream.append(part)
        self._note_damage(path, reader.damage)

    def _construct_to_json(self, path: Path) -> None:
        reader = BatchReader(path, _CONSTRUCT_COLUMNS, CONSTRUCT_COLUMNS)
        with closing(JsonObjectStream(self._target / layout.CONSTRUCT_FILE, b"{\n", b"\n}\n")) as stream:
            for batch in reader:
                rows = batch.to_pylist()
                stream.append(
                    [
                        (row["entry"], msgspec.json.encode(_with_number(row["parent"], row.get("micro_step"))))
                        for row in rows
                        if row["entry"] is not None
                    ]
                )
            stream.append([(name, msgspec.json.encode(value)) for name, value in reader.header.others.items()])
        self._note_damage(path, reader.damage)

    # --- tensors ---

    def add_tensors(self, how: TensorFiles) -> None:
        """Copy or link the files of whole tensors. Only regular files: targets of links do not belong to this dump."""
        source, target = self._source / layout.TENSOR_DIRECTORY, self._target / layout.TENSOR_DIRECTORY
        if not source.is_dir() or source.is_symlink():
            return
        layout.make_directory(target)
        left_out: list[str] = []
        for path in sorted(source.iterdir()):
            if not stat.S_ISREG(path.lstat().st_mode):
                left_out.append(path.name)
                continue
            with _saying(self._final):
                if how is TensorFiles.COPY or not _linked(path, target / path.name):
                    _copy(path, target / path.name)
        if left_out:
            self._note(f"{source}: left out {len(left_out)} that are no plain files; the first is {clip(left_out[0])}")


_CONVERTED = frozenset(
    {
        layout.DUMP_FILE, layout.DEBUG_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE, layout.ARROW_DUMP_FILE,
        layout.ARROW_STACK_FILE, layout.ARROW_CONSTRUCT_FILE,
    }
)  # fmt: skip


_CARRIED = frozenset({layout.MANIFEST_FILE, layout.DATA_ROWS_FILE, layout.LIVE_CHECKS_FILE})
"""Files beside the records that are the same in every format."""


def _other_fields(path: Path) -> dict[str, Any]:
    """Return the members of a dump's header beyond our own."""
    try:
        fields = msgspec.json.decode(read_content(path), type=dict[str, msgspec.Raw])
        known = {*RunHeader.__struct_fields__, "dump_data_dir", "data", "end"}
        return {name: msgspec.json.decode(value) for name, value in fields.items() if name not in known}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}  # a damaged dump, or one with bare NaN, whose other members are unknown


def _is_numbered(value: Any) -> bool:
    """Whether a call's parent is stored with the number of the micro-step."""
    if not isinstance(value, list) or len(cast("list[Any]", value)) != 2:
        return False
    number = cast("list[Any]", value)[1]
    return type(number) is int and abs(number) < 2**63


def _with_number(parent: str | None, micro_step: int | None) -> Any:
    return parent if micro_step is None else [parent, micro_step]


def _parts(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    part: list[_T] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def _linked(source: Path, target: Path) -> bool:
    """Whether a hard link could be created, which is impossible across file systems and on some of them."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    with reading(source):
        opened = open_plain(source)
    with opened, layout.create_file(target) as copy:
        shutil.copyfileobj(opened, copy, 1 << 20)
