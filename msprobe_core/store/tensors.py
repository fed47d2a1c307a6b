"""Open stored tensors, without any framework and without executing code from the file.

``.npy`` is read with pickling disabled. A ``.safetensors`` file is the length of its header in 8 bytes, the header in
JSON, and bytes: nothing in it can be executed. For ``.pt`` see `msprobe_core.store.pt_files`.

Sources: NumPy's documentation, ``numpy.lib.format``; https://github.com/huggingface/safetensors, section Format.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from msprobe_core.errors import DamagedDumpError, DumpError, LargeDumpError, clip
from msprobe_core.store import layout
from msprobe_core.store.pt_files import open_pt
from msprobe_core.store.tensor_source import MAX_DIMS, Storage, StoredTensor, c_strides
from msprobe_core.store.tensor_values import DTYPES, SAFETENSORS_DTYPES, Array
from msprobe_core.untrusted.files import open_plain

_T = TypeVar("_T")

_READABLE_KINDS = "biufcSU"
"""Kinds of NumPy dtypes that files may have: numbers, booleans, text."""


def open_tensor(path: Path, suffix: str | None = None) -> StoredTensor:
    """Return the tensor in ``path``; its elements are read on demand.

    Args:
        path: A ``.pt`` or ``.npy`` file with one tensor, or one tensor in a shard: see `layout.shard_reference`.
        suffix: Which of the two it is; ``None`` if its name says so.

    Raises:
        DumpError: the file is missing, damaged, not a single tensor, or would run code.
    """
    member = None if suffix else layout.shard_member(path.name)
    open_file = _OPENERS.get(suffix or path.suffix) if member is None else _open_safetensors
    if open_file is None:
        raise DumpError(f"{path}: unknown kind of tensor file; expected .pt, .npy, or a tensor of a .safetensors")
    return _opened(path, lambda: open_file(path))


def open_member(shard: Path, key: str) -> StoredTensor:
    """Return one tensor of a ``.safetensors`` file; its elements are read on demand.

    Raises:
        DumpError: the file is missing or damaged, or has no such tensor.
    """
    return _opened(shard, lambda: _open_member(shard, key))


def shard_keys(shard: Path) -> list[str]:
    """Return the keys of the tensors in a ``.safetensors`` file.

    Raises:
        DumpError: it cannot be read.
    """

    def read() -> list[str]:
        status = shard.stat()
        members = _read_shard_header(shard, status.st_size, status.st_mtime_ns)[1]
        return [key for key in members if key != "__metadata__"]

    return _opened(shard, read)


def shard_tensors(shard: Path) -> tuple[dict[str, StoredTensor | str], dict[str, str]]:
    """Return all tensors of a ``.safetensors`` file, and its metadata.

    Returns: by key each tensor, or why it cannot be read; the metadata is empty if it has none.

    Raises:
        DumpError: the file cannot be read, or is not such a file.
    """

    def read() -> tuple[dict[str, StoredTensor | str], dict[str, str]]:
        status = shard.stat()
        start, members = _read_shard_header(shard, status.st_size, status.st_mtime_ns)
        found: dict[str, StoredTensor | str] = {}
        metadata: dict[str, str] = {}
        for key, raw in members.items():
            try:
                if key == "__metadata__":
                    metadata = msgspec.json.decode(raw, type=dict[str, str])
                else:
                    found[key] = _member_tensor(
                        shard, key, start, msgspec.json.decode(raw, type=_Member), status.st_size
                    )
            except DumpError as error:  # noqa: PERF203 - one tensor must not hide the others
                found[key] = str(error)
            except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
                found[key] = f"{shard}: describes {clip(key)} wrongly ({error})"
        return found, metadata

    return _opened(shard, read)


def _opened(path: Path, read: Callable[[], _T]) -> _T:
    """Return the result of ``read``; any error names the file."""
    try:
        return read()
    except DumpError:
        raise
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise LargeDumpError(f"{path}: does not fit into memory") from error
    except Exception as error:  # untrusted bytes: zip archives and headers may fail in any way
        raise DamagedDumpError(f"{path}: is not a whole tensor file ({error or type(error).__name__})") from error


def read_tensor(path: Path) -> Array:
    """Return the tensor in ``path``; bfloat16 and float8 are widened to float32, which represents them exactly.

    Args:
        path: As for `open_tensor`.

    Raises:
        DumpError: as `open_tensor`, or it does not fit into memory.
    """
    return open_tensor(path).read()


def _open_npy(path: Path) -> StoredTensor:
    header = read_npy_header(path)
    # Do not trust the header before its size agrees with the file's.
    if header.num_bytes > path.stat().st_size - header.begin:
        raise DamagedDumpError(
            f"{path}: is cut off: its header says {header.num_bytes} bytes, and that is more than it has",
            position=header.begin,
        )
    return header.tensor_in(path, name=path)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The header of a ``.npy`` file.

    Attributes:
        shape: Sizes of the dimensions.
        is_fortran: Whether the first dimension is the innermost.
        stored: NumPy's dtype for the stored bytes.
        dtype: The actual dtype.
        begin: Position of the elements in the file.
    """

    shape: tuple[int, ...]
    is_fortran: bool
    stored: Any
    dtype: str
    begin: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.stored.itemsize

    def tensor_in(self, file: Path, name: Path, offset: int = 0) -> StoredTensor:
        """Return the tensor in a file whose ``.npy`` part starts at ``offset``; ``name`` is its name in messages."""
        return StoredTensor(
            name=name,
            storage=Storage(file=file, begin=offset + self.begin, num_bytes=self.num_bytes),
            stored=self.stored,
            dtype=self.dtype,
            shape=self.shape,
            strides=c_strides(self.shape[::-1])[::-1] if self.is_fortran else c_strides(self.shape),
        )


def read_npy_header(path: Path) -> NpyHeader:
    """Return the header of a ``.npy`` file, even if the file is truncated.

    Raises:
        DumpError: it has values that are not numbers.
        OSError, ValueError: it cannot be read, or is not such a file.
    """
    with open_plain(path) as file:
        return npy_header_in(path, file.read(MAX_NPY_HEADER_BYTES))


def npy_header_in(path: Path, start: bytes) -> NpyHeader:
    """Return the header of a ``.npy`` file, given its first bytes: as many as it has, or `MAX_NPY_HEADER_BYTES`.

    Raises:
        DumpError: it has values that are not numbers.
        OSError, ValueError: it is not such a file.
    """
    is_bfloat16 = _BFLOAT16 in start.partition(b"}")[0]
    content = io.BytesIO(start.replace(_BFLOAT16, _UINT16, 1) if is_bfloat16 else start)
    version = np.lib.format.read_magic(content)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, stored = read_header(content)
    if stored.kind not in _READABLE_KINDS or stored.itemsize == 0:
        raise DumpError(f"{path}: holds values of the type {stored}, not numbers")
    dtype = "bfloat16" if is_bfloat16 else "text" if stored.kind in "SU" else str(cast("Any", stored).name)
    return NpyHeader(shape, is_fortran, stored, dtype, content.tell())


MAX_NPY_HEADER_BYTES = 1 << 14
"""NumPy rejects longer ones."""

_BFLOAT16, _UINT16 = b"'descr': '<E2'", b"'descr': '<u2'"
"""MindSpore 2.10 writes bfloat16 with a type code that NumPy does not know."""

_OPENERS = {".npy": _open_npy, ".pt": open_pt}


_STORED = {dtype: np.dtype(DTYPES[dtype]) for dtype in SAFETENSORS_DTYPES.values()}


class _Member(msgspec.Struct):
    """One tensor in a shard's header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _open_safetensors(path: Path) -> StoredTensor:
    """Return one tensor of a shard, without the library, which needs NumPy dtypes for bfloat16 and float8."""
    member = layout.shard_member(path.name)
    assert member is not None
    return _open_member(path.parent / member[0], member[1])


def _open_member(shard: Path, key: str) -> StoredTensor:
    status = shard.stat()
    start, members = _read_shard_header(shard, status.st_size, status.st_mtime_ns)
    if key not in members:
        raise DamagedDumpError(f"{shard}: does not hold the tensor {key!r}; the file is damaged or of another run")
    return _member_tensor(shard, key, start, msgspec.json.decode(members[key], type=_Member), status.st_size)


def _member_tensor(shard: Path, key: str, start: int, found: _Member, size: int) -> StoredTensor:
    # A text: a file may have 100,000 tensors, and a Path takes longer to make than all the rest of one.
    name = layout.shard_reference(str(shard), key)
    dtype = SAFETENSORS_DTYPES.get(found.dtype)
    if dtype is None:
        position = start + max(0, min(found.data_offsets))
        raise DumpError(f"{name}: holds values of the type {found.dtype}, which is not known here", position=position)
    begin, end = found.data_offsets
    position = start + max(0, begin)
    stored = _STORED[dtype]
    if (
        len(found.shape) > MAX_DIMS
        or min((begin, *found.shape)) < 0
        or end - begin != math.prod(found.shape) * stored.itemsize
    ):
        raise DamagedDumpError(
            f"{name}: its place in the file does not fit its shape; the file is damaged", position=position
        )
    if start + end > size:
        raise DamagedDumpError(
            f"{name}: is cut off: the file ends before it, at byte {size:,} instead of {start + end:,}",
            position=position,
        )
    return StoredTensor(
        name=name,
        storage=Storage(file=shard, begin=start + begin, num_bytes=end - begin),
        stored=stored,
        dtype=dtype,
        shape=found.shape,
        strides=c_strides(found.shape),
    )


@lru_cache(maxsize=16)
def _read_shard_header(shard: Path, size: int, _modified: int) -> tuple[int, dict[str, msgspec.Raw]]:
    """Return the start of the data, and the description of each tensor; cached, because a shard has many."""
    with open_plain(shard) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_SHARD_HEADER_BYTES):
            raise DamagedDumpError(
                f"{shard}: is not a safetensors file, or is cut off in its header, which would end at byte "
                f"{8 + length:,} of {size:,}"
            )
        header = file.read(length)
    try:
        return 8 + length, msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        # A process killed while it adds a tensor leaves half a description after the others.
        whole = header[: header.rindex(b"}") + 1] + b"}"
    try:
        return 8 + length, msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        place = _AT_BYTE.search(str(error))
        position = 8 + (int(place[1]) if place else 0)
        raise DamagedDumpError(f"{shard}: is not a whole tensor file ({error})", position=position) from error


_AT_BYTE = re.compile(r"\(byte (\d{1,12})\)", re.ASCII)


_MAX_SHARD_HEADER_BYTES = 100_000_000
"""The limit of the library."""
