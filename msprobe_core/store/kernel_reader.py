"""Read MindSpore's kernel dump: one run of one graph, as a dump like any other.

An entry is one execution of a kernel, ``{name}.{task}`` or, from the second in the run on, ``{name}.{task}.{n}``. Its
rows are ``{entry}.input.{slot}`` and ``{entry}.output.{slot}``. Names do not contain streams and times, which differ
from run to run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msprobe_core.errors import DumpError, MissingDumpError
from msprobe_core.findings import Finding
from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Level, Role, RunHeader, Task
from msprobe_core.protocols.storage import Dump, Reader, TensorSource
from msprobe_core.store import kernel_files
from msprobe_core.store.kernel_files import Line, Place, TensorFile
from msprobe_core.store.reading_codes import ReadingCode

if TYPE_CHECKING:
    import polars as pl


class KernelDump:
    """A dump read from a run's directory; see `msprobe_core.plugin.Dump`."""

    def __init__(
        self,
        path: Path,
        header: RunHeader,
        frame: pl.DataFrame,
        stacks: Mapping[str, Sequence[str]],
        notes: Sequence[Finding],
    ) -> None:
        self.path = path
        self.header = header
        self.frame = frame
        self.stacks = stacks
        """Source frames of kernels, by entry, from the compiled graph; empty if they were not recorded."""
        self.notes = notes

    @property
    def parents(self) -> Mapping[str, str | None]:
        """Always empty."""
        return {}

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a stored tensor; its elements are read on demand.

        Raises:
            DumpError: it is missing, damaged, not a tensor, or outside of the run's directory.
        """
        from msprobe_core.store.tensors import open_tensor  # not needed to compare statistics

        if Path(file_name).name != file_name:
            raise DumpError(f"{self.path}: the tensor file name {file_name!r} leads out of it")
        return open_tensor(self.path / file_name)


class KernelReader:
    """Reads the directory of one run of a graph."""

    name = "kernels"

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is such a directory, or the table in it."""
        return path.name == kernel_files.STATISTIC_FILE if path.is_file() else kernel_files.holds_kernels(path)

    def read(self, path: Path) -> Dump:
        """Read the dump at ``path``."""
        return read_kernel_dump(path.parent if path.is_file() else path)


def read_kernel_dump(directory: Path) -> KernelDump:
    """Return the dump of one run of a graph.

    Raises:
        DumpError: there is none, or its table cannot be read.
    """
    notes: list[Finding] = []
    files = kernel_files.list_tensor_files(directory, notes)
    table = directory / kernel_files.STATISTIC_FILE
    lines = kernel_files.read_lines(table, notes) if table.is_file() else []
    if not files and not table.is_file():
        raise MissingDumpError(f"{directory}: holds neither a {kernel_files.STATISTIC_FILE} nor tensors of kernels")
    values: dict[tuple[int, Place], _Value] = {}
    for number, line in _numbered(lines):
        values[number, line.place] = _Value(line.time, line=line)
    for number, file in _numbered(files):
        value = values.setdefault((number, file.place), _Value(file.time))
        value.file = file
    entries = _in_order(values, kernel_files.read_order(directory))
    codes = kernel_files.read_code(directory)
    frame = _frame_of(entries, directory, notes)
    has_checksums = frame["checksum"].null_count() < frame.height
    header = RunHeader(
        task=(Task.TENSOR if files else Task.STATISTICS).value,
        level=Level.L2.value,
        framework="mindspore",
        summary_mode="md5" if has_checksums else "statistics",
        has_extra_info=False,
        keeps_tensors=bool(files),
    )
    own = [
        f"{entry}.input.{place.slot}"
        for entry, parts in entries
        for place, _ in parts
        if place.side == "input" and (code := codes.get(place.op_name)) is not None and place.slot in code.own
    ]
    stacks = {entry: code.stack for entry, parts in entries if (code := codes.get(parts[0][0].op_name)) is not None}
    return KernelDump(directory, header, _with_own(frame, own), stacks, notes)


_Entry: TypeAlias = tuple[str, list[tuple[Place, "_Value"]]]
"""One execution of a kernel, and its values."""


def _frame_of(entries: Sequence[_Entry], directory: Path, notes: list[Finding]) -> pl.DataFrame:
    from msprobe_core.store.frame import FrameBuilder  # imports polars, which the command line does not need

    builder = FrameBuilder()
    unreadable: list[tuple[str, str]] = []
    for entry, parts in entries:
        record: dict[str, dict[str, Any]] = {"input_args": {}, "output": {}}
        for place, value in sorted(parts, key=lambda part: part[0].slot):
            part = record["input_args" if place.side == "input" else "output"]
            part[str(place.slot)] = _leaf_of(value, directory, unreadable)
        builder.add_entry(entry, record)
    if unreadable:
        first, why = unreadable[0]
        fields = {"path": str(directory), "count": len(unreadable), "first": first, "why": why}
        notes.append(Finding(ReadingCode.UNREADABLE, fields=fields))
    # Rows of whole tensors would have their files' names, which contain the time.
    return builder.build().with_columns(name="key")


def _with_own(frame: pl.DataFrame, own: Sequence[str]) -> pl.DataFrame:
    """Return the rows with inputs that no kernel produced as parameters: the fault may begin there."""
    import polars as pl

    role = (
        pl.when(pl.col("key").is_in(own)).then(pl.lit(Role.PARAMETERS.value)).otherwise(pl.col("role").cast(pl.String))
    )
    return frame.with_columns(role.cast(frame.schema["role"]).alias("role"))


@dataclass(slots=True)
class _Value:
    """A value: its line in the table, its file, or both."""

    time: int
    line: Line | None = None
    file: TensorFile | None = None


_P = TypeVar("_P", Line, TensorFile)


def _numbered(values: Sequence[_P]) -> list[tuple[int, _P]]:
    """Return values with the number of earlier values of the same identity, by time."""
    seen: dict[Hashable, int] = defaultdict(int)
    numbered: list[tuple[int, _P]] = []
    for value in sorted(values, key=lambda value: value.time):
        numbered.append((seen[value.place], value))
        seen[value.place] += 1
    return numbered


def _in_order(values: Mapping[tuple[int, Place], _Value], order: Mapping[str, int]) -> list[_Entry]:
    """Return the entries in execution order, each with its values.

    This is the compiled order of the graph or, without it, that of time, in which concurrent kernels may change places.
    A kernel without a position in the former follows the kernel before it in time.
    """
    entries: dict[tuple[int, str], list[tuple[Place, _Value]]] = defaultdict(list)
    for (number, place), value in values.items():
        entries[number, place.kernel].append((place, value))
    by_time = sorted(entries, key=lambda entry: min(value.time for _, value in entries[entry]))
    last: dict[int, int] = {}
    keys: dict[tuple[int, str], tuple[int, int, int]] = {}
    for time, entry in enumerate(by_time):
        number = entry[0]
        position = order.get(entries[entry][0][0].op_name)
        if position is None:
            keys[entry] = (number, last.get(number, -1), time + 1)
        else:
            last[number] = max(position, last.get(number, -1))
            keys[entry] = (number, position, 0)
    ordered = sorted(by_time, key=keys.__getitem__) if order else by_time
    return [(f"{kernel}.{number}" if number else kernel, entries[number, kernel]) for number, kernel in ordered]


def _leaf_of(value: _Value, directory: Path, unreadable: list[tuple[str, str]]) -> dict[str, Any] | None:
    """Return a value in the structure of ``dump.json``; ``None`` if its file cannot be read."""
    leaf: dict[str, Any] = {"type": "mindspore.Tensor"}
    line, file = value.line, value.file
    if line is not None:
        leaf |= {
            "dtype": line.dtype, "shape": list(line.shape), "Max": line.max, "Min": line.min, "Mean": line.mean,
            "Norm": line.norm, "num_nan": line.num_nan, "num_inf": line.num_inf, "md5": line.checksum,
        }  # fmt: skip
    if file is not None:
        from msprobe_core.store.tensors import read_npy_header

        try:
            header = read_npy_header(directory / file.file_name)
        except (OSError, ValueError, MemoryError) as error:  # DumpError is a ValueError
            unreadable.append((file.file_name, str(error)))
            return None
        leaf |= {"dtype": file.dtype or header.dtype, "shape": list(header.shape), "data_name": file.file_name}
    return leaf


@hookimpl
def msprobe_register_readers() -> Sequence[Reader]:
    """Offer the reader of this module."""
    return [KernelReader()]
