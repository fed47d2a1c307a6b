"""Open ``.ckpt`` files of MindSpore without MindSpore.

The file is a message ``Checkpoint`` of Protocol Buffers, written in pieces: repeated values (field 1) of a tag (1) and
a tensor (2) or a map of tensors (3); a tensor has dimensions (1), a type as text (2), and content (3). A parameter of
more than 512 MiB is several values after one another, each with the tag and the dimensions of the whole. After the last
one there may be a checksum of everything before: ``crc_num`` and its value in 10 bytes.

Source: ``checkpoint_pb2.py`` and ``serialization.py`` in ``mindspore/train`` of MindSpore 2.10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from msprobe_core.errors import DumpError, clip
from msprobe_core.store.joined_tensor import JoinedTensor
from msprobe_core.store.tensor_source import MAX_DIMS, Storage, StoredTensor, c_strides
from msprobe_core.store.tensor_values import DTYPES
from msprobe_core.untrusted.files import open_plain, reading
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.protobuf_wire import Span, WireFile

_DTYPES = {
    "Int8": "int8", "UInt8": "uint8", "Int16": "int16", "UInt16": "uint16", "Int32": "int32", "UInt32": "uint32",
    "Int64": "int64", "UInt64": "uint64", "Float16": "float16", "Float32": "float32", "Float64": "float64",
    "Bool": "bool", "BFloat16": "bfloat16", "HiFloat8": "hifloat8", "Complex64": "complex64",
    "Complex128": "complex128", "Float8E4M3FN": "float8_e4m3fn", "Float8E5M2": "float8_e5m2",
}  # fmt: skip

_CHECKSUM = b"crc_num"
_CHECKSUM_BYTES = 17
_MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointValue:
    """One value of a checkpoint.

    Attributes:
        name: Its tag.
        dtype: Dtype without a framework's name, or the type as the file has it; ``text`` for a text.
        shape: Sizes of its dimensions.
        source: Its elements; ``None`` if it is a text or cannot be read.
        text: A text.
        reason: Why it cannot be read.
        position: Byte position of its bytes, or of what describes it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: StoredTensor | JoinedTensor | None = None
    text: str | None = None
    reason: str = ""
    position: int = 0


@dataclass(frozen=True, slots=True)
class MindSporeCheckpoint:
    """What a ``.ckpt`` file holds.

    Attributes:
        values: In the order of the file.
        damage: Why values after these could not be read; empty if all were.
        position: Byte position of the damage.
    """

    values: tuple[CheckpointValue, ...]
    damage: str = ""
    position: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    tag: str
    kind: str
    dims: tuple[int, ...]
    content: Span
    is_map: bool = False


def is_mindspore_checkpoint(path: Path) -> bool:
    """Whether a file begins as a ``.ckpt`` file of MindSpore does; false if it cannot be read."""
    try:
        with open_plain(path) as file:
            wire = WireFile(file)
            first = next(wire.fields(), None)
            return first is not None and first.number == 1 and bool(_part(wire, first.value).kind)
    except (OSError, MalformedError):
        return False


def open_mindspore_checkpoint(path: Path) -> MindSporeCheckpoint:
    """Return the values of a ``.ckpt`` file; tensors are read on demand.

    Raises:
        DumpError: it cannot be read, or not even its first value can.
    """
    with reading(path), open_plain(path) as file:
        parts, damage, position = _parts(file)
    if damage and not parts:
        raise DumpError(f"{path}: is no checkpoint of MindSpore: it {damage}", position=position)
    found: list[CheckpointValue] = []
    group: list[_Part] = []
    for part in parts:
        if group and (part.tag != group[0].tag or part.dims != group[0].dims or part.kind != group[0].kind):
            found.append(_value(path, group))
            group = []
        group.append(part)
    if group:
        found.append(_value(path, group))
    return MindSporeCheckpoint(tuple(found), f"it {damage}" if damage else "", position)


def _parts(file: FileIO) -> tuple[list[_Part], str, int]:
    wire = WireFile(file)
    parts: list[_Part] = []
    end = wire.size
    try:
        if wire.size >= _CHECKSUM_BYTES:
            tail = wire.content(Span(end - _CHECKSUM_BYTES, end))
            end -= _CHECKSUM_BYTES if tail.startswith(_CHECKSUM) else 0
        for number, value in wire.fields(Span(0, end)):
            if number != 1:
                return parts, "has a field that no checkpoint has", value.begin if isinstance(value, Span) else 0
            parts.append(_part(wire, value))
    except MalformedError as error:
        return parts, error.reason, error.position or 0
    return parts, "" if parts else "has no values", 0


def _part(wire: WireFile, value: int | Span) -> _Part:
    tag, tensor, is_map = "", None, False
    for number, content in wire.fields(_span(value)):
        if number == 1:
            tag = wire.text(_span(content))
        elif number == 2:
            tensor = _span(content)
        elif number == 3:
            is_map = True
    if is_map or tensor is None:
        at = _span(value).begin
        return _Part(tag, "MapTensor" if is_map else "nothing", (), Span(at, at), is_map=True)
    kind, dims, content_span = "", list[int](), Span(0, 0)
    for number, content in wire.fields(tensor):
        if number == 1:
            dims += wire.integers(content)
        elif number == 2:
            kind = wire.text(_span(content))
        elif number == 3:
            content_span = _span(content)
        if len(dims) > MAX_DIMS:
            raise MalformedError(
                f"has a tensor of more than {MAX_DIMS} dimensions at byte {tensor.begin}", position=tensor.begin
            )
    return _Part(tag, kind, tuple(dims), content_span)


def _span(value: int | Span) -> Span:
    if not isinstance(value, Span):
        raise MalformedError("has a number where a text or message is expected")
    return value


def _value(path: Path, parts: list[_Part]) -> CheckpointValue:
    first = parts[0]
    dtype = _DTYPES.get(first.kind, first.kind)
    num_bytes = sum(part.content.num_bytes for part in parts)
    if first.is_map:
        return _refused(first, dtype, "is a map of tensors, which is not read")
    if first.kind == "str":
        return _text(path, first)
    if dtype not in DTYPES:
        return _refused(first, dtype, f"has values of the type {clip(first.kind)!r}, which is not known here")
    stored = np.dtype(DTYPES[dtype])
    # A scalar has no dimensions, or one of size 0.
    shape = () if first.dims == (0,) and num_bytes == stored.itemsize else first.dims
    if any(size < 0 for size in shape) or num_bytes != math.prod(shape) * stored.itemsize:
        return _refused(first, dtype, f"has {num_bytes:,} bytes, which do not fit its shape {list(shape)}")
    name = Path(f"{path}#{first.tag}")
    try:
        views = [
            StoredTensor(
                name=name,
                storage=Storage(file=path, begin=part.content.begin, num_bytes=part.content.num_bytes),
                stored=stored,
                dtype=dtype,
                shape=shape if len(parts) == 1 else (part.content.num_bytes // stored.itemsize,),
                strides=c_strides(shape) if len(parts) == 1 else (1,),
            )
            for part in parts
        ]
    except DumpError as error:
        return _refused(first, dtype, str(error))
    source = views[0] if len(views) == 1 else JoinedTensor(name, tuple(views), shape, dtype)
    return CheckpointValue(name=first.tag, dtype=dtype, shape=shape, source=source)


def _refused(part: _Part, dtype: str, reason: str) -> CheckpointValue:
    return CheckpointValue(name=part.tag, dtype=dtype, shape=part.dims, reason=reason, position=part.content.begin)


def _text(path: Path, part: _Part) -> CheckpointValue:
    """Return a text, which is stored as 4 bytes for each character."""
    if part.content.num_bytes > _MAX_TEXT_BYTES:
        return _refused(part, "text", f"is a text of {part.content.num_bytes:,} bytes, which is too long")
    try:
        with open_plain(path) as file:
            text = WireFile(file).content(part.content, _MAX_TEXT_BYTES).decode("utf-32-le")
    except (OSError, MalformedError, UnicodeDecodeError) as error:
        return _refused(part, "text", f"is no text ({error})")
    return CheckpointValue(name=part.tag, dtype="text", shape=(), text=text.rstrip("\0"))
