"""Paths, file names and tables of MindSpore's kernel dump.

::

    {root}/rank_{R}/{net}/{graph}/{iteration}/statistic.csv                          a line for each value, or
        {type}.{name}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}[.{dtype}].npy      a file
        mapping.csv                                                                  stored name, name that was too long
    {root}/rank_{R}/execution_order/ms_execution_order_graph_{graph}.csv             names of kernels, in order
    {root}/rank_{R}/graphs/ms_output_trace_code_graph_{graph}.ir                     kernels, and their source lines

Older releases name a rank's directory ``{R}``. Timestamps are in microseconds. Source: MindSpore 2.10, *Using Dump in
the Graph Mode*, and its output on the CPU.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from msprobe_core.errors import DumpError, clip
from msprobe_core.findings import Finding
from msprobe_core.store.reading_codes import ReadingCode
from msprobe_core.store.stored_dump import read_content
from msprobe_core.untrusted.files import reading

STATISTIC_FILE = "statistic.csv"
MAPPING_FILE = "mapping.csv"

_RANK = re.compile(r"rank_(0|[1-9]\d*)", re.ASCII)
_OLD_RANK = re.compile(r"0|[1-9]\d*", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_TENSOR_FILE = re.compile(
    r"([^.]+)\.(.+)\.(\d+)\.(\d+)\.(\d+)\.(input|output)\.(\d+)\.[^.]+(?:\.([^.]+))?\.npy", re.ASCII
)

_PARAMETER = "Parameter"

Number: TypeAlias = float | int | None

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class KernelUnit:
    """One run of one graph on one rank."""

    directory: Path
    rank: int
    iteration: int
    net: str
    graph: str


def find_kernel_units(root: Path) -> list[KernelUnit]:
    """Return the graph runs in the directory of a kernel dump, in order; empty if it is not one."""
    children = _directories(root)
    ranks = {int(found[1]): path for path in children if (found := _RANK.fullmatch(path.name))}
    ranks = ranks or {int(path.name): path for path in children if _OLD_RANK.fullmatch(path.name)}
    return [
        KernelUnit(iteration, rank, int(iteration.name), net.name, graph.name)
        for rank, path in sorted(ranks.items())
        for net in _directories(path)
        for graph in _numbered(net)
        for iteration in _numbered(graph)
    ]


def is_in_place(path: Path) -> bool:
    """Whether a directory is at the position of a kernel dump or has a graph run, whatever its content."""
    is_run = all(_NUMBER.fullmatch(name) for name in (path.name, path.parent.name))
    return is_run or bool(find_kernel_units(path))


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []


def _numbered(path: Path) -> list[Path]:
    found = [child for child in _directories(path) if _NUMBER.fullmatch(child.name)]
    return sorted(found, key=lambda child: int(child.name))


def holds_kernels(directory: Path) -> bool:
    """Whether a directory is that of one run of a graph."""
    if any((directory / name).is_file() for name in (STATISTIC_FILE, MAPPING_FILE)):
        return True
    try:
        with os.scandir(directory) as entries:
            return any(_TENSOR_FILE.fullmatch(entry.name) for entry in entries)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Place:
    """Identity of a kernel's value.

    Attributes:
        kernel: Name of the kernel in reports: name and number of the task, which is 0 on the CPU. A parameter of the
            network is marked as such.
        op_name: For example ``Default_network-Net_a-Dense_MatMul-op0``.
        side: ``input`` or ``output``.
        slot: Index of the input or output.
    """

    kernel: str
    op_name: str
    side: str
    slot: int


def _place(op_type: str, op_name: str, task: str, side: str, slot: str) -> Place:
    op_name = op_name.replace("/", "_")
    kernel = f"{op_name}.{task}"
    return Place(f"{_PARAMETER}.{kernel}" if op_type == _PARAMETER else kernel, op_name, side, int(slot))


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A value in a file.

    Attributes:
        place: Identity of the value.
        time: When it was written, in microseconds.
        dtype: From the file name, in lower case; ``None`` if it has none.
        file_name: Name of the existing file.
    """

    place: Place
    time: int
    dtype: str | None
    file_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A value in a table of statistics; columns that the table lacks are ``None``."""

    place: Place
    time: int
    dtype: str
    shape: tuple[int, ...]
    max: Number = None
    min: Number = None
    mean: Number = None
    norm: Number = None
    num_nan: int | None = None
    num_inf: int | None = None
    checksum: str | None = None


def is_tensor_name(name: str) -> bool:
    """Whether a file is called like a value of a kernel."""
    return _TENSOR_FILE.fullmatch(name) is not None


def tensor_file(name: str, stored_name: str | None = None) -> TensorFile | None:
    """Return the value in a file; ``None`` if it is not called like one.

    Args:
        name: The name that says what it is.
        stored_name: Name of the existing file, if that name was too long.
    """
    found = _TENSOR_FILE.fullmatch(name)
    if found is None:
        return None
    op_type, op_name, task, _, time, side, slot, dtype = found.groups()
    place = _place(op_type, op_name, task, side, slot)
    return TensorFile(place, int(time), None if dtype is None else dtype.lower(), stored_name or name)


def list_tensor_files(directory: Path, notes: list[Finding]) -> list[TensorFile]:
    """Return the values with their own files, in directory order.

    Raises:
        DumpError: the directory cannot be read.
    """
    long_names = _read_mapping(directory / MAPPING_FILE, notes)
    with reading(directory), os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(".npy") and entry.is_file()]
    files: list[TensorFile] = []
    others: list[str] = []
    for name in sorted(names):
        found = tensor_file(long_names.get(name, name), name)
        if found is None:
            others.append(name)
        else:
            files.append(found)
    if others:
        fields = {"path": str(directory), "count": len(others), "first": clip(others[0])}
        notes.append(Finding(ReadingCode.OTHER_FILES, fields=fields))
    return files


def _read_mapping(path: Path, notes: list[Finding]) -> Mapping[str, str]:
    """Return the original names, which were too long, by file name."""
    if not path.is_file():
        return {}
    mapping: dict[str, str] = {}
    try:
        for row in _rows_of(path):
            if len(row) >= 2:
                stored, name = (f"{Path(cell.strip()).name.removesuffix('.npy')}.npy" for cell in row[:2])
                mapping[stored] = name
    except DumpError as error:
        notes.append(Finding(ReadingCode.WITHOUT_LONG_NAMES, fields={"why": str(error)}))
    return mapping


def _rows_of(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a table.

    Raises:
        DumpError: it cannot be read.
    """
    text = read_content(path).decode("utf-8-sig", "replace").replace("\0", "\ufffd")
    try:
        yield from csv.reader(text.splitlines())
    except csv.Error as error:
        raise DumpError(f"{path}: is not a table ({error})") from error


# --- statistic.csv --------------------------------------------------------------------------------------------------

_NEEDED = ("op type", "op name", "task id", "timestamp", "io", "slot", "data type", "shape")
_STATISTICS = {"max value": "max", "min value": "min", "avg value": "mean", "l2norm value": "norm"}
_INFINITIES = ("negative inf count", "positive inf count")
_DTYPES = {"bool_": "bool", "float": "float32", "int": "int32", "half": "float16", "double": "float64"}


def read_lines(path: Path, notes: list[Finding]) -> list[Line]:
    """Return the lines of a table of statistics, in file order.

    Raises:
        DumpError: it cannot be read, or lacks a column.
    """
    rows = _rows_of(path)
    header = [title.strip().casefold() for title in next(rows, list[str]())]
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise DumpError(f"{path}: is no table of a dump of kernels: it has no column {missing[0].title()!r}")
    lines: list[Line] = []
    malformed, first = 0, dict[str, int | str]()
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        try:
            if len(row) < len(header):
                raise ValueError(f"it has {len(row)} cells of {len(header)}")  # noqa: TRY301
            lines.append(_line_of(dict(zip(header, row, strict=False))))
        except (ValueError, OverflowError) as error:
            malformed += 1
            first = first or {"line": number, "why": clip(str(error))}
    if malformed:
        notes.append(Finding(ReadingCode.LINES, fields={"path": str(path), "count": malformed, **first}))
    return lines


def _line_of(cells: Mapping[str, str]) -> Line:
    """Parse a line.

    Raises:
        ValueError, OverflowError: a cell is invalid for its column.
    """
    side = cells["io"].strip().lower()
    if side not in {"input", "output"}:
        raise ValueError(f"IO is {cells['io']!r}")
    dtype = cells["data type"].strip().lower()
    infinities = [_count(cells.get(name)) for name in _INFINITIES]
    checksums = [cell.strip() for name, cell in cells.items() if "md5" in name or "hash" in name]
    op_type, op_name, task = (cells[name].strip() for name in ("op type", "op name", "task id"))
    return Line(
        place=_place(op_type, op_name, task, side, cells["slot"]),
        time=int(cells["timestamp"]),
        dtype=_DTYPES.get(dtype, dtype),
        shape=tuple(int(size) for size in _NUMBER.findall(cells["shape"])),
        num_nan=_count(cells.get("nan count")),
        num_inf=None if None in infinities else sum(number or 0 for number in infinities),
        checksum=next((checksum for checksum in checksums if checksum), None),
        **{name: _number(cells.get(column)) for column, name in _STATISTICS.items()},
    )


def _number(cell: str | None) -> Number:
    text = (cell or "").strip().lower()
    if text in _NOTHING:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _count(cell: str | None) -> int | None:
    number = _number(cell)
    return None if number is None else int(number)


_NOTHING = ("", "none", "null", "n/a", "-")
_TRUTH = {"true": 1, "false": 0}


# --- files next to the ranks' iterations ----------------------------------------------------------------------------


def read_order(unit_directory: Path) -> Mapping[str, int]:
    """Return the position of kernels in execution order, by name; empty if it was not recorded.

    Names are those in file names; the last part of a scope is used instead if it is unique.
    """
    path = _beside_ranks_nets(unit_directory, "execution_order/ms_execution_order_graph_{}.csv")
    if not path.is_file():
        return {}
    try:
        names = [row[0].strip() for row in _rows_of(path) if row][1:]
    except DumpError:
        return {}
    return _by_name(names, range(len(names)))


@dataclass(frozen=True, slots=True)
class KernelCode:
    """Source information on a kernel from the compiled graph.

    Attributes:
        stack: Source frames, innermost first.
        own: Inputs that no kernel produced: weights and constants, by slot.
    """

    stack: Sequence[str]
    own: frozenset[int]


def read_code(unit_directory: Path) -> Mapping[str, KernelCode]:
    """Return the source information of each kernel, by name as in `read_order`; empty if it was not recorded."""
    path = _beside_ranks_nets(unit_directory, "graphs/ms_output_trace_code_graph_{}.ir")
    if not path.is_file():
        return {}
    try:
        text = read_content(path).decode("utf-8", "replace")
    except DumpError:
        return {}
    weights = {found[1] for line in text.splitlines() if (found := _WEIGHT.match(line))}
    names: list[str] = []
    codes: list[KernelCode] = []
    for definition in _DEFINITION.split(text)[1:]:
        scope, frames = _comments(definition)
        if scope is None:
            continue
        operands = _operands(definition)
        if (loaded := _LOAD.match(definition)) and operands and operands[0] in weights:
            weights.add(loaded[1])
        names.append(scope)
        own = (slot for slot, operand in enumerate(operands) if not operand.startswith("%") or operand in weights)
        codes.append(KernelCode(frames[::-1], frozenset(own)))
    return _by_name(names, codes)


_WEIGHT = re.compile(r"(%para\w[^:\s]*): .*IsWeight: true")
_DEFINITION = re.compile(r"^  (?=%\d+\()", re.MULTILINE)
_LOAD = re.compile(r"(%\d+)\(.*?\) = Load\(")
_SCOPE = re.compile(r"# Fullname with scope: \((.+)\)")
_CODE = re.compile(r"# In file (.+):(\d+), \d+~\d+/(.*)", re.ASCII | re.DOTALL)
"""A call, without the slash at its end; definitions of functions have two line numbers."""


def _comments(definition: str) -> tuple[str | None, list[str]]:
    """Return name and frames of a kernel, each of which is on a separate line."""
    lines = [line.partition("# ") for line in definition.splitlines()]
    # Only at the beginning of a line, or after code: the words may occur many times elsewhere.
    comments = [f"# {comment}".strip() for _, mark, comment in lines if mark]
    scope = next((found[1] for comment in comments if (found := _SCOPE.fullmatch(comment))), None)
    # Without its last slash, so that the pattern need not search for it after the code, in quadratic time.
    codes = [comment[:-1] for comment in comments if comment.endswith("/")]
    calls = [found.groups() for code in codes if (found := _CODE.fullmatch(code))]
    return scope, [f"File {file}, line {line}, {code.strip()}" for file, line, code in calls]


_BRACKET = re.compile(r"[()\[\]{},]")
_MAX_OPERANDS = 1 << 16
"""Maximum number of characters to parse: constants may be long."""


def _operands(definition: str) -> list[str]:
    """Return the operands of ``%2(name) = Function(%0, F32(1), …)``, as text; only the first of many."""
    begin = definition.find("(", definition.find(" = ")) + 1
    operands: list[str] = []
    depth, start = 0, begin
    for found in _BRACKET.finditer(definition, begin, begin + _MAX_OPERANDS):
        if found[0] in "([{":
            depth += 1
        elif found[0] != ",":
            depth -= 1
        if depth < 0 or (depth == 0 and found[0] == ","):
            operands.append(definition[start : found.start()].strip())
            start = found.end()
        if depth < 0:
            break
    return operands


def _by_name(names: Sequence[str], values: Sequence[_V]) -> dict[str, _V]:
    """Return ``values`` by the kernels' names in file names; the first of several is used."""
    found: dict[str, _V] = {}
    for name, value in zip(names, values, strict=True):
        found.setdefault(name.replace("/", "_"), value)
    last = [name.rpartition("/")[2] for name in names]
    counts = Counter(last)
    for name, value in zip(last, values, strict=True):
        if counts[name] == 1:
            found.setdefault(name, value)
    return found


def _beside_ranks_nets(unit_directory: Path, place: str) -> Path:
    """Return a file of the graph in the unit's rank; ``{}`` in ``place`` is its number."""
    return unit_directory / "../../.." / place.format(unit_directory.absolute().parent.name)
