"""Read stored tensors as NumPy arrays, without any framework and without running code from the file.

A ``.pt`` file is a zip archive: ``*/data.pkl`` is a pickle that describes the tensor, ``*/data/{key}`` its bytes.
The pickle is read by an unpickler that knows the handful of names such a description needs and refuses all
others, so a file made to run code is an error instead. ``.npy`` is read with pickling switched off. A ``.safetensors``
file is the length of its header in 8 bytes, the header in JSON, and bytes: it holds nothing that could run.
Sources: the format that ``torch.save`` of PyTorch 1.6 and later writes; https://github.com/huggingface/safetensors,
section Format.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import DumpError
from msprobe_core.store import layout

Array: TypeAlias = NDArray[Any]

_MAX_PICKLE_BYTES = 1 << 20
_MAX_TENSOR_BYTES = 64 << 30
"""Largest tensor that is unfolded from its file; one with strides of 0 may be any size."""

_READABLE_KINDS = "biufcSU"
"""Kinds of NumPy dtypes that files may hold: numbers, booleans, text."""


def read_tensor(path: Path) -> Array:
    """Return the tensor in ``path``; bfloat16 and float8 are widened to float32, which holds them exactly.

    Args:
        path: A ``.pt`` or ``.npy`` file that holds one tensor, or one tensor in a shard: see `layout.shard_reference`.

    Raises:
        DumpError: the file is missing, damaged, holds something else than one tensor, or would run code.
    """
    member = layout.shard_member(path.name)
    read = _READERS.get(path.suffix) if member is None else _read_safetensors
    if read is None:
        raise DumpError(f"{path}: unknown kind of tensor file; expected .pt, .npy, or a tensor of a .safetensors")
    try:
        return read(path)
    except DumpError:
        raise
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise DumpError(f"{path}: does not fit into memory") from error
    except Exception as error:  # foreign bytes: there is no list of the ways in which zip archives and headers break
        raise DumpError(f"{path}: is not a whole tensor file ({error or type(error).__name__})") from error


def _read_npy(path: Path) -> Array:
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        if dtype.kind not in _READABLE_KINDS:
            raise DumpError(f"{path}: holds values of the type {dtype}, not numbers")
        # NumPy would make room for what the header claims before it looks at the file.
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > path.stat().st_size - file.tell():
            raise DumpError(f"{path}: is cut off: its header says {num_bytes} bytes, and that is more than it has")
        file.seek(0)
        return np.load(file, allow_pickle=False)


def _read_pt(path: Path) -> Array:
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise DumpError(f"{path}: is not a tensor file of PyTorch 1.6 or later; load it there and save it again")
        with zipfile.ZipFile(file) as archive:
            return _Archive(archive, path).read()


_READERS = {".npy": _read_npy, ".pt": _read_pt}


class _Member(msgspec.Struct):
    """One tensor in a shard's header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _read_safetensors(path: Path) -> Array:
    """Return one tensor of a shard. The library would need types that NumPy lacks for bfloat16 and float8."""
    member = layout.shard_member(path.name)
    assert member is not None
    shard, key = path.parent / member[0], member[1]
    with shard.open("rb") as file:
        status = os.fstat(file.fileno())
        start, members = _read_shard_header(shard, status.st_size, status.st_mtime_ns)
        if key not in members:
            raise DumpError(f"{shard}: does not hold the tensor {key!r}; the file is damaged or of another run")
        found = msgspec.json.decode(members[key], type=_Member)
        dtype = SAFETENSORS_DTYPES.get(found.dtype)
        if dtype is None:
            raise DumpError(f"{path}: holds values of the type {found.dtype}, which is not known here")
        begin, end = found.data_offsets
        stored = np.dtype(_DTYPES[dtype])
        if min(begin, *found.shape, 0) < 0 or end - begin != math.prod(found.shape) * stored.itemsize:
            raise DumpError(f"{path}: its place in the file does not fit its shape; the file is damaged")
        if start + end > status.st_size:
            raise DumpError(f"{path}: is cut off: the file ends before it")
        file.seek(start + begin)
        content = file.read(end - begin)
    return _widen(np.reshape(np.frombuffer(content, stored), found.shape), dtype)


@lru_cache(maxsize=16)
def _read_shard_header(shard: Path, size: int, _modified: int) -> tuple[int, dict[str, msgspec.Raw]]:
    """Return where the data begins, and the description of each tensor; kept, because a shard has many."""
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_SHARD_HEADER_BYTES):
            raise DumpError(f"{shard}: is not a safetensors file, or is cut off in its header")
        header = file.read(length)
    try:
        return 8 + length, msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        # A process that is killed while it adds a tensor leaves half a description behind the others.
        return 8 + length, msgspec.json.decode(header[: header.rindex(b"}") + 1] + b"}", type=dict[str, msgspec.Raw])


_MAX_SHARD_HEADER_BYTES = 100_000_000
"""As the library has it."""


@dataclass(frozen=True)
class _Storage:
    """Bytes of a tensor, and the dtype they were declared with; ``None`` for an untyped storage."""

    content: bytes
    dtype: str | None


class _Global:
    """A name in the pickle that stands for a type.

    Made anew for each mention, as are the functions below: a pickle can write to the objects that it is given.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Function:
    """A name in the pickle that stands for a function."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Array]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Array:
        return self.call(*args)


class _Archive:
    """One opened ``.pt`` file."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive = archive
        self._path = path
        self._members = {name.partition("/")[2]: name for name in archive.namelist()}

    def read(self) -> Array:
        """Return the tensor."""
        if "byteorder" in self._members and self._content("byteorder", 16) != b"little":
            raise DumpError(f"{self._path}: was written on a big-endian machine, which is not supported")
        description = self._content("data.pkl", _MAX_PICKLE_BYTES)
        unpickler = _Unpickler(io.BytesIO(description), self._load_storage)
        try:
            value = unpickler.load()
        except DumpError as error:
            raise DumpError(f"{self._path}: {error}") from error
        except Exception as error:  # a pickle is a program: there is no list of the ways in which it can fail
            raise DumpError(f"{self._path}: does not describe a tensor ({type(error).__name__}: {error})") from error
        if not isinstance(value, np.ndarray):
            raise DumpError(f"{self._path}: holds {type(value).__name__}, not one tensor")
        return cast("Array", value)

    def _load_storage(self, key: object) -> bytes:
        return self._content(f"data/{key}", None)

    def _content(self, member: str, max_bytes: int | None) -> bytes:
        name = self._members.get(member)
        if name is None:
            raise DumpError(f"{self._path}: lacks the part {member!r}; it does not hold a tensor or is damaged")
        info = self._archive.getinfo(name)
        # torch.save never compresses; a compressed member could unfold to any size.
        if info.compress_type != zipfile.ZIP_STORED or (max_bytes is not None and info.file_size > max_bytes):
            raise DumpError(
                f"{self._path}: the part {member!r} is compressed or too large; torch.save writes none such"
            )
        return self._archive.read(name)


class _Unpickler(pickle.Unpickler):
    """Rebuilds one tensor; every global that a tensor's description does not need is refused."""

    def __init__(self, file: io.BytesIO, load_storage: Any) -> None:
        super().__init__(file)
        self._load_storage = load_storage

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a global."""
        function = _FUNCTIONS.get((module, name))
        if function is not None:
            return _Function(function)
        if (module, name) in _TYPES:
            return _Global(name)
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and (name.removesuffix("Storage") in _STORAGES or name in _DTYPES):
            return _Global(name)
        raise DumpError(f"refers to {module}.{name}, which no tensor needs; it was not run")

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage that ``pid`` names: ``("storage", type, key, location, number of elements)``."""
        kind, storage_type, key, *_ = pid
        if kind != "storage":
            raise DumpError(f"refers to a {kind!r} outside of the pickle")
        dtype = _STORAGES.get(storage_type.name.removesuffix("Storage")) if isinstance(storage_type, _Global) else None
        return _Storage(self._load_storage(key), dtype)


def _rebuild(storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *rest: Any) -> Array:
    dtype = storage.dtype
    if dtype is None:
        last = rest[-1] if rest else None
        if not isinstance(last, _Global) or last.name not in _DTYPES:
            raise DumpError("describes a tensor of an unknown dtype")
        dtype = last.name
    flat = np.frombuffer(storage.content, dtype=_DTYPES[dtype])
    if len(size) != len(stride) or min((*size, *stride, offset), default=0) < 0:
        raise DumpError("describes a tensor with impossible sizes or strides")
    last_element = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and last_element >= flat.size:
        raise DumpError(f"describes a tensor larger than its {len(storage.content)} bytes; the file is damaged")
    if math.prod(size) * flat.itemsize > _MAX_TENSOR_BYTES:
        raise DumpError(f"describes a tensor of the shape {size}, which is too large to unfold")
    strides = tuple(step * flat.itemsize for step in stride)
    view = np.lib.stride_tricks.as_strided(flat[offset:], size, strides, writeable=False)
    return _resolve(_widen(view, dtype), rest)


def _resolve(values: Array, rest: tuple[Any, ...]) -> Array:
    """Apply what PyTorch has put off: a view that is to be conjugated, or negated, says so beside its bytes."""
    for argument in rest:
        if type(argument) is dict:
            flags = cast("dict[object, object]", argument)
            if flags.get("neg") is True:
                values = np.negative(values)
            if flags.get("conj") is True:
                values = np.conjugate(values)
    return values


def _rebuild_parameter(data: Array, *_: Any) -> Array:
    return data


def _rebuild_from_type(function: Any, _type: Any, args: tuple[Any, ...], _state: Any) -> Array:
    if not isinstance(function, _Function):
        raise DumpError("describes a tensor subclass with a constructor of its own")
    return function(*args)


def _widen(values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        # asarray: NumPy turns a 0-d array into a scalar under way.
        bits: Any = np.asarray(values.astype(np.uint32) << np.uint32(16))
        return bits.view(np.float32)
    if dtype in _FLOAT8:
        return np.asarray(_float8_table(*_FLOAT8[dtype])[values])
    if dtype == "float8_e8m0fnu":  # an exponent and nothing else; source: OCP Microscaling Formats 1.0, 5.4.1
        return np.asarray(np.where(values == 255, np.nan, np.ldexp(1.0, values.astype(np.int32) - 127)), np.float32)
    if dtype == "complex32":
        codes = cast("Any", np.ravel(np.ascontiguousarray(values)))
        return np.reshape(codes.view(np.float16).astype(np.float32).view(np.complex64), values.shape)
    return values


class _Special(Enum):
    """What the codes that are no numbers look like."""

    IEEE = "infinities and NaN at the largest exponent"
    FINITE = "NaN at the largest code of either sign"
    UNSIGNED_ZERO = "NaN in the place of negative zero, and a bias one larger"


@cache
def _float8_table(num_exponent_bits: int, num_mantissa_bits: int, special: _Special) -> NDArray[np.float32]:
    """Return the value of each code.

    Sources: Micikevicius et al., FP8 Formats for Deep Learning, 2022, table 1; for the formats without a negative zero
    Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022.
    """
    codes = np.arange(256)
    exponent = (codes >> num_mantissa_bits) & (2**num_exponent_bits - 1)
    mantissa = codes & (2**num_mantissa_bits - 1)
    bias = 2 ** (num_exponent_bits - 1) - (special is not _Special.UNSIGNED_ZERO)
    is_normal = exponent > 0
    fraction = mantissa / 2.0**num_mantissa_bits + is_normal
    value = fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
    is_top = exponent == 2**num_exponent_bits - 1
    if special is _Special.IEEE:
        value[is_top] = np.where(mantissa[is_top] == 0, np.inf, np.nan)
    elif special is _Special.FINITE:
        value[is_top & (mantissa == 2**num_mantissa_bits - 1)] = np.nan
    else:
        value[128] = np.nan
    value[codes >= 128] *= -1
    return value.astype(np.float32)


_FLOAT8 = {
    "float8_e4m3fn": (4, 3, _Special.FINITE), "float8_e5m2": (5, 2, _Special.IEEE),
    "float8_e4m3fnuz": (4, 3, _Special.UNSIGNED_ZERO), "float8_e5m2fnuz": (5, 2, _Special.UNSIGNED_ZERO),
}  # fmt: skip

_DTYPES: dict[str, str] = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "complex128": "<c16",
    "complex64": "<c8", "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1", "uint64": "<u8",
    "uint32": "<u4", "uint16": "<u2", "uint8": "|u1", "bool": "|b1", "float8_e4m3fn": "|u1", "float8_e5m2": "|u1",
    "float8_e4m3fnuz": "|u1", "float8_e5m2fnuz": "|u1", "float8_e8m0fnu": "|u1", "complex32": "<u4",
}  # fmt: skip
"""How NumPy reads the bytes of each dtype."""

SAFETENSORS_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""Dtype of each of the names in a shard's header. Source: safetensors 0.8."""

_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool",
}  # fmt: skip
"""Dtype of each typed storage class of PyTorch, without its ending ``Storage``."""

_FUNCTIONS: dict[tuple[str, str], Callable[..., Array]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
}
"""What stands in for each function that the description of a tensor may name."""

_TYPES = frozenset({("torch.nn.parameter", "Parameter"), ("torch", "Tensor"), ("torch.storage", "UntypedStorage")})
"""Types that it may name."""
