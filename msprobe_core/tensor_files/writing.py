"""Write one tensor into a file of its own: ``.npy``, ``.pt`` or ``.safetensors``, without a framework.

A ``.pt`` file is an archive with a pickle of fixed operations, which ``torch.load`` reads with ``weights_only``. NumPy
has no bfloat16, float8 and complex32: in a ``.npy`` file these are float32 and complex64, which hold their values
exactly.

Sources: NumPy's documentation, ``numpy.lib.format``; https://github.com/huggingface/safetensors, section Format; the
archives that ``torch.save`` of PyTorch 1.6 and later writes.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zipfile
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.model import TensorContent
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.pt_files import STORAGES
from msprobe_core.store.tensor_source import c_strides
from msprobe_core.store.tensor_values import DTYPES, SAFETENSORS_DTYPES, widen
from msprobe_core.tensor_files.files_codes import FilesCode

_SAFETENSORS_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
_STORAGE_NAMES = {dtype: name for name, dtype in STORAGES.items()}
_ALIGNMENT = 64
"""Of a tensor's bytes in a ``.pt`` file, as PyTorch writes them, so that it can map them into memory."""


class FileType(str, Enum):
    """Format of a written file; its suffix without the dot."""

    PT = "pt"
    NPY = "npy"
    SAFETENSORS = "safetensors"


class UnsupportedDtypeError(DumpError):
    """A format has no such dtype.

    Attributes:
        finding: Which.
    """

    def __init__(self, kind: FileType, dtype: str) -> None:
        self.finding = Finding(FilesCode.NOT_IN_FORMAT, Level.ERROR, {"kind": kind.value, "dtype": dtype})
        super().__init__(self.finding.text)


def write_tensor(path: Path, content: TensorContent, kind: FileType) -> TensorContent:
    """Write a tensor, and return the elements as they were written.

    Args:
        path: A new file; its directory exists.
        content: The elements.
        kind: The format.

    Raises:
        UnsupportedDtypeError: the format has no such dtype.
        StoreError: the file cannot be written.
    """
    written, parts = _WRITERS[kind](content)
    with whole_file(path) as file:
        parts(file)
    return written


def digest_of(content: TensorContent) -> str:
    """Return the BLAKE2b hash of a tensor's elements, in hexadecimal digits; 16 bytes."""
    return hashlib.blake2b(content.data, digest_size=16).hexdigest()


_Write = Callable[[BinaryIO], object]


def _npy(content: TensorContent) -> tuple[TensorContent, _Write]:
    stored: Any = np.frombuffer(content.data, _stored_dtype(content, FileType.NPY))
    values: Any = widen(stored, content.dtype)
    written = content
    if values.dtype != stored.dtype:
        written = TensorContent(values.dtype.name, content.shape, memoryview(values.reshape(-1).view(np.uint8)))

    def write(file: BinaryIO) -> None:
        header = {"descr": values.dtype.str, "fortran_order": False, "shape": content.shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(written.data)

    return written, write


def _safetensors(content: TensorContent) -> tuple[TensorContent, _Write]:
    name = _SAFETENSORS_NAMES.get(content.dtype)
    if name is None:
        raise UnsupportedDtypeError(FileType.SAFETENSORS, content.dtype)
    offsets = (0, content.data.nbytes)
    header = msgspec.json.encode({"tensor": {"dtype": name, "shape": content.shape, "data_offsets": offsets}})
    header += b" " * (-len(header) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(content.data)

    return content, write


def _pt(content: TensorContent) -> tuple[TensorContent, _Write]:
    if content.dtype not in DTYPES:
        raise UnsupportedDtypeError(FileType.PT, content.dtype)
    pickle = _pickled(content)

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            _add(archive, file, "archive/data.pkl", pickle)
            _add(archive, file, "archive/byteorder", b"little")
            _add(archive, file, "archive/data/0", content.data)
            _add(archive, file, "archive/version", b"3\n")

    return content, write


def _add(archive: zipfile.ZipFile, file: BinaryIO, name: str, content: bytes | memoryview) -> None:
    info = zipfile.ZipInfo(name)
    # An extra field of zeros moves the bytes to a multiple of the alignment; PyTorch names it so too.
    begin = file.tell() + 30 + len(name) + 4
    info.extra = struct.pack("<2sH", b"FB", -begin % _ALIGNMENT) + bytes(-begin % _ALIGNMENT)
    # Not writestr, which would copy the bytes.
    info.file_size = len(content) if isinstance(content, bytes) else content.nbytes
    with archive.open(info, "w", force_zip64=False) as member:
        member.write(content)


def _pickled(content: TensorContent) -> bytes:
    """Return the pickle of a tensor: a call of the function that rebuilds one, with a reference to its storage."""
    numel = math.prod(content.shape)
    storage = _STORAGE_NAMES.get(content.dtype)
    if storage is None:
        kind, function = b"ctorch.storage\nUntypedStorage\n", b"ctorch._utils\n_rebuild_tensor_v3\n"
        last = b"ctorch\n" + content.dtype.encode() + b"\n"
        length = content.data.nbytes
    else:
        kind, function = b"ctorch\n" + storage.encode() + b"Storage\n", b"ctorch._utils\n_rebuild_tensor_v2\n"
        last, length = b"", numel
    reference = b"(" + _text("storage") + kind + _text("0") + _text("cpu") + _integer(length) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    sizes = _tuple(content.shape) + _tuple(c_strides(content.shape))
    return b"\x80\x02" + function + b"(" + reference + _integer(0) + sizes + b"\x89" + hooks + last + b"tR."


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _integer(number: int) -> bytes:
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    content = number.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def _tuple(numbers: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_integer, numbers)) + b"t"


def _stored_dtype(content: TensorContent, kind: FileType) -> Any:
    if content.dtype not in DTYPES:
        raise UnsupportedDtypeError(kind, content.dtype)
    return np.dtype(DTYPES[content.dtype])


_WRITERS: Mapping[FileType, Callable[[TensorContent], tuple[TensorContent, _Write]]] = {
    FileType.PT: _pt,
    FileType.NPY: _npy,
    FileType.SAFETENSORS: _safetensors,
}
