"""Archives of NumPy: zip files whose members are ``.npy`` files, stored or deflated.

A stored member is read in place. A deflated one is unfolded in memory when its elements are read, and refused if it
would become larger than `most_unfolded` allows for its bytes.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_core.errors import DumpError, LargeDumpError, clip
from msprobe_core.model import TensorContent
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.pt_files import LOCAL_HEADER
from msprobe_core.store.tensor_source import MAX_DIMS, Array
from msprobe_core.store.tensor_values import widen
from msprobe_core.store.tensors import MAX_NPY_HEADER_BYTES, NpyHeader, npy_header_in
from msprobe_core.tensor_files.contents import FileContent, FileFormat, NamedTensor
from msprobe_core.tensor_files.files_codes import FilesCode
from msprobe_core.tensor_files.opening import Opened
from msprobe_core.tensor_files.problems import ProblemError, attempted
from msprobe_core.untrusted.files import most_unfolded, open_plain
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.zip_members import MAX_MEMBERS, check_table

_ENCRYPTED = 1
_READ_BYTES = 1 << 20


def member_names(opened: Opened) -> list[str]:
    """Return the names in a zip archive.

    Raises:
        ProblemError: it has too many, or its table of contents is damaged.
    """
    return [info.filename for info in _infos(opened)]


def read_npz(opened: Opened) -> FileContent:
    """Return the tensors of an archive of NumPy.

    Raises:
        ProblemError: its table of contents is damaged.
    """
    tensors: list[NamedTensor] = []
    for info in _infos(opened):
        if info.is_dir():
            continue
        name = info.filename.removesuffix(".npy")

        def read(info: zipfile.ZipInfo = info) -> TensorSource:
            return _member(opened, info)

        source, damage = attempted(read, info.header_offset)
        tensors.append(NamedTensor(name=name, source=source, attributes={"offset": info.header_offset}, damage=damage))
    return FileContent(path=opened.path, format=FileFormat.NPZ, size_bytes=opened.size, tensors=tensors)


def _infos(opened: Opened) -> list[zipfile.ZipInfo]:
    try:
        check_table(opened.file, opened.size)
    except MalformedError as error:
        if f"{MAX_MEMBERS:,}" in error.reason:
            raise ProblemError(FilesCode.TOO_MANY, opened.size, most=MAX_MEMBERS) from error
        raise ProblemError(FilesCode.NO_END, opened.size) from error
    try:
        with zipfile.ZipFile(opened.file) as archive:
            return archive.infolist()
    except Exception as error:  # untrusted bytes: the library may fail in any way
        raise ProblemError(FilesCode.DAMAGED, opened.size, why=clip(str(error) or type(error).__name__)) from error


def _member(opened: Opened, info: zipfile.ZipInfo) -> TensorSource:
    begin = _start_of(opened, info)
    if info.flag_bits & _ENCRYPTED:
        raise ProblemError(FilesCode.ENCRYPTED, info.header_offset)
    if not info.filename.endswith(".npy"):
        raise ProblemError(FilesCode.UNKNOWN, begin)
    name = Path(f"{opened.path}#{clip(info.filename, 100)}")
    if info.compress_type == zipfile.ZIP_STORED:
        header = _header_in(name, opened.read(begin, min(info.file_size, MAX_NPY_HEADER_BYTES)), begin)
        room = min(info.file_size, info.compress_size) - header.begin
        _check_size(header, room, begin)
        return header.tensor_in(opened.path, name, begin)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise ProblemError(FilesCode.UNFOLDS, begin, method=info.compress_type)
    if info.file_size > most_unfolded(info.compress_size):
        raise ProblemError(FilesCode.TOO_LARGE, begin, num_bytes=info.file_size)
    start = next(_unfolded(opened.path, begin, info.compress_size, MAX_NPY_HEADER_BYTES), b"")
    header = _header_in(name, start[:MAX_NPY_HEADER_BYTES], begin)
    _check_size(header, info.file_size - header.begin, begin)
    return DeflatedTensor(name, opened.path, begin, info.compress_size, header)


def _start_of(opened: Opened, info: zipfile.ZipInfo) -> int:
    """Return the position of a member's bytes, after its own header."""
    place = info.header_offset
    signature, *lengths = LOCAL_HEADER.unpack(opened.read(place, LOCAL_HEADER.size))
    begin = place + LOCAL_HEADER.size + sum(lengths)
    if signature != b"PK\x03\x04":
        raise ProblemError(FilesCode.HEADER, place, line=clip(info.filename, 80))
    if begin + info.compress_size > opened.size:
        raise ProblemError(FilesCode.CUT_OFF, begin, needed=begin + info.compress_size, size=opened.size)
    return begin


def _header_in(name: Path, start: bytes, position: int) -> NpyHeader:
    try:
        return npy_header_in(name, start)
    except DumpError:
        raise
    except Exception as error:  # untrusted bytes
        raise ProblemError(FilesCode.DAMAGED, position, why=clip(str(error) or type(error).__name__)) from error


def _check_size(header: NpyHeader, room: int, position: int) -> None:
    if len(header.shape) > MAX_DIMS or min((*header.shape, 0)) < 0 or header.num_bytes > room:
        raise ProblemError(
            FilesCode.SIZE, position, dtype=header.dtype, shape=str(list(header.shape[: MAX_DIMS + 1])), found=room
        )


@dataclass(frozen=True, slots=True)
class DeflatedTensor:
    """A tensor in a compressed member; see `msprobe_core.plugin.TensorSource`.

    Attributes:
        name: Name in messages.
        file: The archive.
        begin: Position of the compressed bytes.
        num_bytes: Their number.
        header: Header of the member.
    """

    name: Path
    file: Path
    begin: int
    num_bytes: int
    header: NpyHeader

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.header.shape

    @property
    def dtype(self) -> str:
        """The actual dtype."""
        return self.header.dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order as vectors of at most ``num_elements``; the whole is in memory.

        Raises:
            DumpError: the file cannot be read or is damaged.
        """
        flat = self._elements()
        for begin in range(0, flat.size, num_elements):
            values: Any = flat[begin : begin + num_elements]
            yield widen(values.astype(self.header.stored.newbyteorder("=")), self.dtype)

    def content(self) -> TensorContent:
        """Return the elements as stored, in C order.

        Raises:
            DumpError: the file cannot be read or is damaged.
        """
        return TensorContent(self.dtype, self.shape, memoryview(self._elements().view(np.uint8)))

    def _elements(self) -> Any:
        room = bytearray()
        needed = self.header.begin + self.header.num_bytes
        try:
            for part in _unfolded(self.file, self.begin, self.num_bytes, _READ_BYTES):
                room += part
                if len(room) >= needed:
                    break
        except OSError as error:
            raise DumpError(f"{self.name}: cannot be read ({error.strerror or error})") from error
        except MemoryError as error:
            raise LargeDumpError(f"{self.name}: does not fit into memory") from error
        if len(room) < needed:
            raise ProblemError(FilesCode.CUT_OFF, self.begin, needed=needed, size=len(room))
        stored: Any = np.frombuffer(room, self.header.stored, count=math.prod(self.shape), offset=self.header.begin)
        if self.header.is_fortran:
            stored = np.ravel(stored.reshape(self.shape[::-1]).T)
        return stored


def _unfolded(path: Path, begin: int, num_bytes: int, most: int) -> Iterator[bytes]:
    """Yield what deflated bytes become, in parts of at most ``most`` bytes."""
    unfold = zlib.decompressobj(-zlib.MAX_WBITS)
    left = num_bytes
    try:
        with open_plain(path) as file:
            file.seek(begin)
            while left > 0 and not unfold.eof:
                part = file.read(min(left, _READ_BYTES))
                if not part:
                    return
                left -= len(part)
                while part and not unfold.eof:
                    yield unfold.decompress(part, most)
                    part = unfold.unconsumed_tail
        yield unfold.flush()
    except zlib.error as error:
        raise ProblemError(FilesCode.DAMAGED, begin, why=str(error)) from error
