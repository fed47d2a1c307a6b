"""Tensors that ATB, Ascend's library of transformer operations, saves as ``.bin``.

The header is lines ``name=value``: ``$Version``, ``$Object.Count``, ``$Object.Length``, then ``format``, ``dtype`` and
``dims`` of the tensor, then ``$Object.NAME=offset,length`` for each object, and ``$End=1`` (``$END`` in some releases).
The objects follow; offsets count from the end of the header. Each writer saves one object, ``data``.

Sources: the readers of such files in the public repositories of msit and MindIE's atb_llm, and the writer in msit's
probe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msprobe_core.errors import clip
from msprobe_core.manifest.facts import Scalar
from msprobe_core.store.tensor_values import ACL_DTYPES
from msprobe_core.tensor_files.contents import FileContent, FileFormat, NamedTensor
from msprobe_core.tensor_files.files_codes import FilesCode
from msprobe_core.tensor_files.memory_formats import ND, name_of_format
from msprobe_core.tensor_files.opening import Opened, refuse_overlaps, stored_range
from msprobe_core.tensor_files.problems import ProblemError, attempted

MARK = b"$Version="
_END = "$end"
_OBJECT = "$object."
_MAX_HEADER_BYTES = 1 << 20
_MAX_OBJECTS = 10_000


@dataclass
class _Header:
    """The lines before the objects."""

    attributes: dict[str, str] = field(default_factory=dict[str, str])
    objects: dict[str, tuple[int, str]] = field(
        default_factory=dict[str, tuple[int, str]]
    )  # position of the line, value
    positions: dict[str, int] = field(default_factory=dict[str, int])
    end: int = 0


def read_atb(opened: Opened) -> FileContent:
    """Return the tensors of a file of ATB.

    Raises:
        ProblemError: its header is damaged.
    """
    header = _header_of(opened)
    values = {name.casefold(): value for name, value in header.attributes.items()}
    dtype = _dtype_of(header, values)
    shape = _shape_of(header, values)
    layout = _layout_of(values)
    attributes: dict[str, Scalar] = {
        name: value for name, value in header.attributes.items() if name.casefold() not in {"dtype", "dims", "format"}
    }
    places = {name: _place_of(position, value, header) for name, (position, value) in header.objects.items()}
    if not places:
        # What has one object without a name.
        places = {"data": (header.end, opened.size - header.end)}
    overlaps = refuse_overlaps([(begin, begin + length, name) for name, (begin, length) in places.items()])
    tensors: list[NamedTensor] = []
    for name, (begin, length) in places.items():

        def read(name: str = name, begin: int = begin, length: int = length):  # noqa: ANN202 - a StoredTensor
            if name in overlaps:
                raise overlaps[name]
            return stored_range(opened.path, name, begin, length, dtype, shape, opened.size)

        source, damage = attempted(read)
        tensors.append(
            NamedTensor(name=name, source=source, layout=layout, attributes={"offset": begin}, damage=damage)
        )
    return FileContent(
        path=opened.path,
        format=FileFormat.ATB,
        version=values.get("$version", ""),
        size_bytes=opened.size,
        tensors=tensors,
        attributes=attributes,
    )


def _header_of(opened: Opened) -> _Header:
    text = opened.head
    header = _Header()
    begin = 0
    while True:
        end = text.find(b"\n", begin)
        if end < 0:
            if len(text) < min(opened.size, _MAX_HEADER_BYTES):
                text = opened.read(0, min(opened.size, _MAX_HEADER_BYTES))
                continue
            raise ProblemError(FilesCode.NO_END, begin)
        line = text[begin:end].decode("utf-8", "replace").rstrip("\r")
        name, mark, value = line.partition("=")
        key = name.strip().casefold()
        if not mark and key != _END:
            raise ProblemError(FilesCode.HEADER, begin, line=clip(line, 80))
        if key == _END:
            header.end = end + 1
            return header
        if key.startswith(_OBJECT) and key not in {"$object.count", "$object.length"}:
            if len(header.objects) >= _MAX_OBJECTS:
                raise ProblemError(FilesCode.TOO_MANY, begin, most=_MAX_OBJECTS)
            header.objects[name.strip()[len(_OBJECT) :]] = begin, value.strip()
        else:
            header.attributes[name.strip()] = value.strip()
            header.positions[key] = begin
        begin = end + 1


def _dtype_of(header: _Header, values: dict[str, str]) -> str:
    text = values.get("dtype", "0")
    position = header.positions.get("dtype", 0)
    number = _number(text, position, "dtype")
    dtype = ACL_DTYPES.get(number)
    if dtype is None:
        raise ProblemError(FilesCode.DTYPE, position, dtype=str(number))
    return dtype


def _shape_of(header: _Header, values: dict[str, str]) -> tuple[int, ...]:
    text = values.get("dims", "")
    position = header.positions.get("dims", 0)
    return tuple(_number(part, position, "dims") for part in text.split(",") if part.strip())


def _layout_of(values: dict[str, str]) -> str:
    text = values.get("format", str(ND))
    return name_of_format(int(text)) if text.isdecimal() and len(text) <= 4 else clip(text, 40)


def _place_of(position: int, value: str, header: _Header) -> tuple[int, int]:
    parts = value.split(",")
    if len(parts) != 2:
        raise ProblemError(FilesCode.HEADER, position, line=clip(value, 80))
    offset, length = (_number(part, position, "offset") for part in parts)
    return header.end + offset, length


def _number(text: str, position: int, name: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise ProblemError(FilesCode.NUMBER, position, name=name)
    return int(text)
