"""Tensors in ``.pt`` files, found without PyTorch and without running code from the file.

Such a file is a zip archive: ``*/data.pkl`` is a pickle that describes the tensor, ``*/data/{key}`` its bytes. The
pickle is read by an unpickler that knows the handful of names such a description needs and refuses all others, so a
file made to run code is an error instead. What it yields is a description and nothing more; it is checked, and acted
on, after the pickle has come to its end.
Source: the format that ``torch.save`` of PyTorch 1.6 and later writes.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from msprobe_core.errors import DumpError
from msprobe_core.fingerprint.checksums import crc32
from msprobe_core.store.tensor_source import Storage, StoredTensor
from msprobe_core.store.tensor_values import DTYPES
from msprobe_core.untrusted.files import open_plain

_MAX_PICKLE_BYTES = 1 << 20

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, and the lengths of the name and the extra field. Source: PKWARE APPNOTE 6.3, 4.3.7."""

_ENCRYPTED = 1


def open_pt(path: Path) -> StoredTensor:
    """Return the tensor in a ``.pt`` file.

    Raises:
        DumpError: it holds something else than one tensor, or would run code.
        Exception: of any kind, where it is damaged.
    """
    with open_plain(path) as file:
        if file.read(4) != b"PK\x03\x04":
            raise DumpError(f"{path}: is not a tensor file of PyTorch 1.6 or later; load it there and save it again")
        with zipfile.ZipFile(file) as archive:
            return _Archive(archive, file, path).tensor()


class _Global:
    """A name in the pickle that stands for a type.

    Made anew for each mention, as is everything below: a pickle can write to the objects that it is given.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Function:
    """A name in the pickle that stands for a function; called, it takes note of its arguments."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> _Call:
        return _Call(self.name, args)


class _Call:
    """What a function of the pickle's was called with."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: tuple[Any, ...]) -> None:
        self.name, self.args = name, args


class _StorageName:
    """A storage as the pickle refers to it."""

    __slots__ = ("key", "kind")

    def __init__(self, kind: object, key: object) -> None:
        self.kind, self.key = kind, key


class _Archive:
    """One opened ``.pt`` file."""

    def __init__(self, archive: zipfile.ZipFile, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._members = {info.filename.partition("/")[2]: info for info in archive.infolist()}

    def tensor(self) -> StoredTensor:
        """Return the tensor that the archive describes."""
        if "byteorder" in self._members and self._content("byteorder", 16) != b"little":
            raise DumpError(f"{self._path}: was written on a big-endian machine, which is not supported")
        unpickler = _Unpickler(io.BytesIO(self._content("data.pkl", _MAX_PICKLE_BYTES)))
        try:
            return self._evaluate(unpickler.load())
        except _NoTensorError as error:
            raise DumpError(f"{self._path}: {error}") from error
        except DumpError:
            raise
        except Exception as error:  # a pickle is a program: there is no list of the ways in which it can fail
            raise DumpError(f"{self._path}: does not describe a tensor ({type(error).__name__}: {error})") from error

    def _evaluate(self, value: Any) -> StoredTensor:
        if not isinstance(value, _Call):
            raise _NoTensorError(f"holds {type(value).__name__}, not one tensor")
        if value.name == _PARAMETER:
            return self._evaluate(value.args[0])
        if value.name == _FROM_TYPE:
            function, _, args, *_ = value.args
            if not isinstance(function, _Function):
                raise _NoTensorError("describes a tensor subclass with a constructor of its own")
            return self._evaluate(function(*args))
        return self._view(*value.args)

    def _view(
        self, storage: _StorageName, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *rest: Any
    ) -> StoredTensor:
        numbers = (*size, *stride, offset)
        if any(type(number) is not int for number in numbers):
            raise TypeError(f"the sizes {numbers!r:.100}")
        dtype = _dtype_of(storage, rest)
        flags = [cast("dict[object, object]", argument) for argument in rest if type(argument) is dict]
        return StoredTensor(
            name=self._path,
            storage=self._storage(f"data/{storage.key}"),
            stored=np.dtype(DTYPES[dtype]),
            dtype=dtype,
            shape=tuple(size),
            strides=tuple(stride),
            offset=offset,
            # What PyTorch has put off is said beside the bytes.
            is_negated=any(each.get("neg") is True for each in flags),
            is_conjugated=any(each.get("conj") is True for each in flags),
        )

    def _storage(self, member: str) -> Storage:
        """Return where a part lies: behind its own header, whose length the archive's directory does not tell."""
        info = self._members.get(member)
        if info is None:
            raise DumpError(f"{self._path}: lacks the part {member!r}; it does not hold a tensor or is damaged")
        # torch.save never compresses; a compressed part could unfold to any size.
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise self._refusal(member)
        if info.flag_bits & _ENCRYPTED:
            raise DumpError(f"{self._path}: the part {member!r} is encrypted; torch.save writes none such")
        self._file.seek(info.header_offset)
        signature, *lengths = _LOCAL_HEADER.unpack(self._file.read(_LOCAL_HEADER.size))
        begin = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
        if signature != b"PK\x03\x04" or begin + info.file_size > self._file.seek(0, io.SEEK_END):
            raise DumpError(f"{self._path}: the part {member!r} is not where it should be; the file is damaged")
        # PyTorch can be told to write no checksums; it then writes 0.
        return Storage(file=self._path, begin=begin, num_bytes=info.file_size, crc=info.CRC or None)

    def _content(self, member: str, max_bytes: int) -> bytes:
        place = self._storage(member)
        if place.num_bytes > max_bytes:
            raise self._refusal(member)
        self._file.seek(place.begin)
        content = self._file.read(place.num_bytes)
        if place.crc is not None and crc32(content) != place.crc:
            raise DumpError(f"{self._path}: the part {member!r} does not match its checksum; the file is damaged")
        return content

    def _refusal(self, member: str) -> DumpError:
        return DumpError(f"{self._path}: the part {member!r} is compressed or too large; torch.save writes none such")


class _NoTensorError(Exception):
    """The pickle describes something else; the message goes behind the file's name."""


class _Unpickler(pickle.Unpickler):
    """Reads the description of one tensor; every global that it does not need is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a global."""
        if (module, name) in _FUNCTIONS:
            return _Function(name)
        if (module, name) in _TYPES:
            return _Global(name)
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and (name.removesuffix("Storage") in _STORAGES or name in DTYPES):
            return _Global(name)
        raise _NoTensorError(f"refers to {module}.{name}, which no tensor needs; it was not run")

    def persistent_load(self, pid: Any) -> _StorageName:
        """Return the storage that ``pid`` names: ``("storage", type, key, location, number of elements)``."""
        kind, storage_type, key, *_ = pid
        if kind != "storage":
            raise _NoTensorError(f"refers to a {kind!r} outside of the pickle")
        return _StorageName(storage_type, key)


def _dtype_of(storage: _StorageName, rest: tuple[Any, ...]) -> str:
    """Return the dtype that the storage's type says or, if it says none, the description's last argument but flags."""
    kind = storage.kind
    dtype = _STORAGES.get(kind.name.removesuffix("Storage")) if isinstance(kind, _Global) else None
    if dtype is not None:
        return dtype
    named = [argument.name for argument in rest if isinstance(argument, _Global) and argument.name in DTYPES]
    if len(named) != 1:
        raise _NoTensorError("describes a tensor of an unknown dtype")
    return named[0]


_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool",
}  # fmt: skip
"""Dtype of each typed storage class of PyTorch, without its ending ``Storage``."""

_PARAMETER = "_rebuild_parameter"
_FROM_TYPE = "_rebuild_from_type_v2"

_FUNCTIONS = frozenset({
    ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3"), ("torch._utils", _PARAMETER),
    ("torch._tensor", _FROM_TYPE),
})  # fmt: skip
"""Functions that the description of a tensor may name."""

_TYPES = frozenset({("torch.nn.parameter", "Parameter"), ("torch", "Tensor"), ("torch.storage", "UntypedStorage")})
"""Types that it may name."""
