"""Dumps of CANN: inputs, outputs and buffers of an operator, from ``adump`` or of an exception, without CANN.

A file is the length of its header in 8 bytes, the header, a message ``DumpData`` in Protocol Buffers, and then the
bytes of all inputs, all outputs, all buffers, and what releases add after them, such as ``space``. Fields of the
messages, by their numbers:

=============  =====================================================================================================
``DumpData``   1 version, 2 time of the dump, 3 outputs, 4 inputs, 5 buffers, 6 name of the operator
input          1 dtype, 2 memory format, 3 shape, 5 number of bytes, 6 shape before the memory format, 7 sub-format
output         the same, but 4 the operator it was before fusion, 6 number of bytes, 7 shape before the memory format
buffer         1 kind, 3 number of bytes
shape          1 sizes, packed or not
=============  =====================================================================================================

Whether an output's number of bytes is field 5 or 6 shows from its wire type. Other fields are passed over.

Sources: the message definitions that CANN's analysis tools are published with, and their checks of such files.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from msprobe_core.errors import clip
from msprobe_core.findings import Finding
from msprobe_core.manifest.facts import Scalar
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensor_source import MAX_DIMS
from msprobe_core.store.tensor_values import DUMP_DTYPES
from msprobe_core.tensor_files.contents import FileContent, FileFormat, NamedTensor
from msprobe_core.tensor_files.files_codes import FilesCode
from msprobe_core.tensor_files.memory_formats import PLAIN, name_of_format, relaid
from msprobe_core.tensor_files.opening import Opened, stored_range
from msprobe_core.tensor_files.problems import ProblemError, attempted
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.protobuf_wire import Span, WireFile

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 64 << 20
_MAX_TENSORS = 100_000
_UNDEFINED = 0
_LOOKED_AT = 8
"""Number of fields by which a file is recognised."""

_VERSION, _TIME, _OUTPUT, _INPUT, _BUFFER, _OP_NAME = 1, 2, 3, 4, 5, 6
_KINDS: Mapping[int, type[int | Span]] = {
    _VERSION: Span, _TIME: int, _OUTPUT: Span, _INPUT: Span, _BUFFER: Span, _OP_NAME: Span,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What the header says of one input, output or buffer."""

    role: str
    index: int
    dtype: int = _UNDEFINED
    format: int = 2
    shape: tuple[int, ...] = ()
    plain: tuple[int, ...] = ()
    num_bytes: int = 0
    sub_format: int = 0
    position: int = 0


def is_cann_dump(opened: Opened) -> bool:
    """Whether a file begins like a dump of CANN: a length within it, and a message with known fields of known kinds."""
    length = int.from_bytes(opened.head[:_LENGTH_BYTES], "little")
    if len(opened.head) < _LENGTH_BYTES or not 0 < length <= min(opened.size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
        return False
    seen: set[int] = set()
    try:
        fields = WireFile(opened.file).fields(Span(_LENGTH_BYTES, _LENGTH_BYTES + length))
        for each in itertools.islice(fields, _LOOKED_AT):
            if each.number in _KINDS and not isinstance(each.value, _KINDS[each.number]):
                return False
            seen.add(each.number)
    except MalformedError:
        return bool(seen & {3, 4, 5})  # a damaged one, whose damage is reported
    return bool(seen & _KINDS.keys())


def read_cann_dump(opened: Opened) -> FileContent:
    """Return the tensors of a dump of CANN.

    Raises:
        ProblemError: its header is damaged.
    """
    length = int.from_bytes(opened.read(0, _LENGTH_BYTES), "little")
    begin = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES:
        raise ProblemError(FilesCode.TOO_LARGE, 0, num_bytes=length)
    if begin > opened.size:
        raise ProblemError(FilesCode.CUT_OFF, _LENGTH_BYTES, needed=begin, size=opened.size)
    header = _Header(WireFile(opened.file))
    try:
        header.read(Span(_LENGTH_BYTES, begin))
    except MalformedError as error:
        raise ProblemError(FilesCode.DAMAGED, header.position, why=error.reason) from error
    tensors: list[NamedTensor] = []
    for part in [*header.inputs, *header.outputs, *header.buffers]:
        tensors.append(_tensor_of(opened, part, begin))
        begin += part.num_bytes
    damage: Finding | None = None
    if begin > opened.size:
        damage = ProblemError(FilesCode.CUT_OFF, opened.size, needed=begin, size=opened.size).finding
    attributes: dict[str, Scalar] = {"op_name": clip(header.op_name), "dump_time": header.time}
    if begin < opened.size:
        attributes["space_bytes"] = opened.size - begin
    return FileContent(
        path=opened.path,
        format=FileFormat.ADUMP,
        version=clip(header.version, 40),
        size_bytes=opened.size,
        tensors=tensors,
        damage=damage,
        attributes=attributes,
    )


class _Header:
    """What the header says.

    Attributes:
        position: Where the field that is being read begins.
    """

    def __init__(self, wire: WireFile) -> None:
        self._wire = wire
        self.version = ""
        self.time = 0
        self.op_name = ""
        self.inputs: list[_Part] = []
        self.outputs: list[_Part] = []
        self.buffers: list[_Part] = []
        self.position = _LENGTH_BYTES

    def read(self, span: Span) -> None:
        """Read the message at a place.

        Raises:
            MalformedError: it is none.
            ProblemError: it has more parts or dimensions than are read.
        """
        num_parts = 0
        for number, value in self._wire.fields(span):
            if not isinstance(value, Span):
                self.time = value if number == _TIME else self.time
                continue
            self.position = value.begin
            if number in {_OUTPUT, _INPUT, _BUFFER}:
                num_parts += 1
                if num_parts > _MAX_TENSORS:
                    raise ProblemError(FilesCode.TOO_MANY, value.begin, most=_MAX_TENSORS)
            if number == _VERSION:
                self.version = self._wire.text(value)
            elif number == _OP_NAME:
                self.op_name = self._wire.text(value)
            elif number == _OUTPUT:
                self.outputs.append(self._tensor("output", len(self.outputs), value))
            elif number == _INPUT:
                self.inputs.append(self._tensor("input", len(self.inputs), value))
            elif number == _BUFFER:
                self.buffers.append(self._buffer(len(self.buffers), value))

    def _tensor(self, role: str, index: int, span: Span) -> _Part:
        numbers: dict[int, int] = {}
        messages: dict[int, Span] = {}
        for number, value in self._wire.fields(span):
            if isinstance(value, Span):
                messages[number] = value
            else:
                numbers[number] = value
        # An output has one more field before its bytes.
        size = 6 if role == "output" and 5 not in numbers else 5
        return _Part(
            role=role,
            index=index,
            dtype=numbers.get(1, _UNDEFINED),
            format=numbers.get(2, 0),
            shape=self._shape(messages.get(3)),
            plain=self._shape(messages.get(size + 1)),
            num_bytes=numbers.get(size, 0),
            sub_format=numbers.get(size + 2, 0),
            position=span.begin,
        )

    def _buffer(self, index: int, span: Span) -> _Part:
        sizes = {number: value for number, value in self._wire.fields(span) if not isinstance(value, Span)}
        num_bytes = sizes.get(3, 0)
        return _Part(role="buffer", index=index, num_bytes=num_bytes, shape=(num_bytes,), position=span.begin)

    def _shape(self, span: Span | None) -> tuple[int, ...]:
        sizes: list[int] = []
        for field in () if span is None else self._wire.fields(span):
            if field.number == 1:
                sizes += self._wire.integers(field.value)
            if len(sizes) > MAX_DIMS:
                raise ProblemError(FilesCode.NUMBER, self.position, name="shape")
        return tuple(sizes)


def _tensor_of(opened: Opened, part: _Part, begin: int) -> NamedTensor:
    layout = name_of_format(part.format)
    attributes: dict[str, Scalar] = {"offset": begin}
    if part.sub_format:
        attributes["sub_format"] = part.sub_format
    if part.plain and part.plain != part.shape:
        attributes["original_shape"] = str(list(part.plain))

    def read() -> TensorSource:
        dtype = "uint8" if part.role == "buffer" else DUMP_DTYPES.get(part.dtype)
        if dtype is None:
            raise ProblemError(FilesCode.DTYPE, part.position, dtype=str(part.dtype))
        name = f"{part.role}.{part.index}"
        stored = stored_range(opened.path, name, begin, part.num_bytes, dtype, part.shape, opened.size)
        plain = None if layout in PLAIN else relaid(stored, layout, part.plain)
        if plain is not None:
            attributes["relaid"] = layout
        return plain or stored

    source, damage = attempted(read)
    return NamedTensor(
        name=f"{part.role}.{part.index}",
        source=source,
        role=part.role,
        layout="" if "relaid" in attributes or part.role == "buffer" else layout,
        attributes=attributes,
        damage=damage,
    )
