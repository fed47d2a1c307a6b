"""Read tensors in ``.pt`` files without PyTorch and without executing code from the file.

Such a file is a zip archive: ``*/data.pkl`` is a pickle that describes the tensor, ``*/data/{key}`` has its bytes. The
pickle is parsed and not executed: see `msprobe_core.untrusted.pickles`. Any name beyond the few that such a description
needs is rejected, so a file made to run code is an error instead.

Source: the format that ``torch.save`` of PyTorch 1.6 and later writes.
"""

from __future__ import annotations

import dataclasses
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from msprobe_core.errors import DamagedDumpError, DumpError, clip
from msprobe_core.fingerprint.checksums import crc32
from msprobe_core.store.tensor_source import Storage, StoredTensor
from msprobe_core.store.tensor_values import DTYPES
from msprobe_core.untrusted.files import open_plain
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.pickles import Called, Entries, Named, Outside, read_pickle

_MAX_TENSOR_PICKLE_BYTES = 1 << 20
"""Of the description of one tensor."""

MAX_PICKLE_BYTES = 256 << 20
"""Of the description of many; each tensor takes about 150 bytes."""

ZIP_SIGNATURE = b"PK\x03\x04"

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, and the lengths of the name and the extra field. Source: PKWARE APPNOTE 6.3, 4.3.7."""

_ENCRYPTED = 1


def open_pt(path: Path) -> StoredTensor:
    """Return the tensor in a ``.pt`` file.

    Raises:
        DumpError: it is not a single tensor, or would run code.
        Exception: of any kind, if it is damaged.
    """
    with open_plain(path) as file:
        if file.read(4) != ZIP_SIGNATURE:
            raise DumpError(f"{path}: is not a tensor file of PyTorch 1.6 or later; load it there and save it again")
        with zipfile.ZipFile(file) as archive:
            return PtArchive(archive, file, path).tensor()


class PtArchive:
    """One opened archive of ``torch.save``, which is a file or a range of bytes in one."""

    def __init__(self, archive: zipfile.ZipFile, file: IO[bytes], path: Path, begin: int = 0) -> None:
        """Use an opened archive.

        Args:
            archive: The archive.
            file: What it is read from; its position 0 is the archive's start.
            path: The file that it is in.
            begin: Position of the archive in that file.
        """
        self._file = file
        self._path = path
        self._begin = begin
        self._directory = archive.start_dir
        self._members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        self._places: dict[str, Storage] = {}

    def pickled(self) -> bytes:
        """Return the pickle.

        Raises:
            DumpError: it is missing, damaged or too large, or the archive is of a big-endian machine.
        """
        self._check_order()
        return self._content("data.pkl", MAX_PICKLE_BYTES)

    @property
    def pickle_begin(self) -> int:
        """Position of the pickle in the file.

        Raises:
            DumpError: as `pickled`.
        """
        return self._begin + self._storage("data.pkl").begin

    def place(self, key: str) -> Storage:
        """Return the location of a storage.

        Raises:
            DumpError: it is missing or damaged.
        """
        if key not in self._places:
            place = self._storage(f"data/{key}")
            self._places[key] = dataclasses.replace(place, begin=place.begin + self._begin)
        return self._places[key]

    def _check_order(self) -> None:
        if "byteorder" in self._members and self._content("byteorder", 16) != b"little":
            raise DumpError(f"{self._path}: was written on a big-endian machine, which is not supported")

    def tensor(self) -> StoredTensor:
        """Return the tensor that the archive describes."""
        self._check_order()
        try:
            return self._evaluate(read_pickle(self._content("data.pkl", _MAX_TENSOR_PICKLE_BYTES), _check_name))
        except MalformedError as error:
            raise DumpError(f"{self._path}: {error}") from error
        except DumpError:
            raise
        except Exception as error:  # untrusted content may fail in any way
            raise DumpError(f"{self._path}: does not describe a tensor ({type(error).__name__})") from error

    def _evaluate(self, value: Any) -> StoredTensor:
        if not isinstance(value, Called):
            raise MalformedError(f"holds {type(value).__name__}, not one tensor")
        if value.function == PARAMETER:
            return self._evaluate(value.args[0])
        if value.function == FROM_TYPE:
            function, _, args, *_ = value.args
            if not isinstance(function, Named) or type(args) is not tuple:
                raise MalformedError("describes a tensor subclass with a constructor of its own")
            return self._evaluate(Called(function, cast("tuple[Any, ...]", args)))
        if value.function not in REBUILDING:
            raise MalformedError(f"calls {value.function.name}, not what makes one tensor")
        return self._view(*value.args)

    def _view(self, *args: Any) -> StoredTensor:
        return described_view(self._path, self.place, *args)

    def _storage(self, member: str) -> Storage:
        """Return the location of a member: after its own header, whose length is not in the archive's directory."""
        info = self._members.get(member)
        if info is None:
            raise DamagedDumpError(
                f"{self._path}: lacks the part {member!r}; it does not hold a tensor or is damaged",
                position=self._begin + self._directory,
            )
        position = self._begin + info.header_offset
        # torch.save never compresses; a compressed part could expand to any size.
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise self._refusal(member, position)
        if info.flag_bits & _ENCRYPTED:
            raise DumpError(
                f"{self._path}: the part {member!r} is encrypted; torch.save writes none such", position=position
            )
        self._file.seek(info.header_offset)
        signature, *lengths = LOCAL_HEADER.unpack(self._file.read(LOCAL_HEADER.size))
        begin = info.header_offset + LOCAL_HEADER.size + sum(lengths)
        if signature != ZIP_SIGNATURE or begin + info.file_size > self._file.seek(0, io.SEEK_END):
            raise DamagedDumpError(
                f"{self._path}: the part {member!r} is not where it should be; the file is damaged", position=position
            )
        # PyTorch can omit checksums; it then writes 0.
        return Storage(file=self._path, begin=begin, num_bytes=info.file_size, crc=info.CRC or None)

    def _content(self, member: str, max_bytes: int) -> bytes:
        place = self._storage(member)
        if place.num_bytes > max_bytes:
            raise self._refusal(member, self._begin + place.begin)
        self._file.seek(place.begin)
        content = self._file.read(place.num_bytes)
        if place.crc is not None and crc32(content) != place.crc:
            raise DamagedDumpError(
                f"{self._path}: the part {member!r} does not match its checksum; the file is damaged",
                position=self._begin + place.begin,
            )
        return content

    def _refusal(self, member: str, position: int) -> DumpError:
        return DumpError(
            f"{self._path}: the part {member!r} is compressed or too large; torch.save writes none such",
            position=position,
        )


def described_view(
    name: Path, place: Callable[[str], Storage], storage: Any, offset: Any, size: Any, stride: Any, *rest: Any
) -> StoredTensor:
    """Return a tensor by the arguments of the function that would make it.

    Args:
        name: Name in messages.
        place: Returns the location of a storage by its key.
        storage: What the pickle says of its storage; the other arguments as PyTorch's ``_rebuild_tensor_v2`` has them.
        offset: Index of the first element.
        size: Sizes of its dimensions.
        stride: In elements.
        rest: Flags, hooks, a dtype.

    Raises:
        DumpError: its storage is missing or too small.
        MalformedError, TypeError: the arguments describe no tensor.
    """
    if type(size) is not tuple or type(stride) is not tuple or not isinstance(storage, Outside):
        raise TypeError
    numbers = cast("tuple[Any, ...]", (*size, *stride, offset))
    if any(type(number) is not int for number in numbers):
        raise TypeError
    kind, key = _storage_of(storage)
    dtype = _dtype_of(kind, rest)
    return StoredTensor(
        name=name,
        storage=place(key),
        stored=np.dtype(DTYPES[dtype]),
        dtype=dtype,
        shape=cast("tuple[int, ...]", size),
        strides=cast("tuple[int, ...]", stride),
        offset=offset,
        # Lazy negation and conjugation are flags next to the bytes.
        is_negated=_has_flag("neg", rest),
        is_conjugated=_has_flag("conj", rest),
    )


def _has_flag(name: str, rest: tuple[Any, ...]) -> bool:
    for argument in rest:
        if type(argument) is dict and cast("dict[object, object]", argument).get(name) is True:
            return True
        if isinstance(argument, Entries) and any(
            type(key) is str and key == name and on is True for key, on in argument
        ):
            return True
    return False


def _check_name(named: Named) -> None:
    """Raise if a pickle refers to a name that the description of a tensor does not need."""
    module, name = named
    if named in _FUNCTIONS or named in _TYPES or named == ("collections", "OrderedDict"):
        return
    if module == "torch" and (name.removesuffix("Storage") in STORAGES or name in DTYPES):
        return
    raise MalformedError(f"refers to {clip(f'{module}.{name}')}, which no tensor needs; it was not run")


def _storage_of(outside: Outside) -> tuple[object, str]:
    """Return type and key of ``("storage", type, key, location, number of elements)``."""
    kind, storage_type, key, *_ = outside.id
    if kind != "storage" or not isinstance(key, str):
        raise MalformedError("refers to something outside of the pickle that is no storage")
    return storage_type, key


def storage_dtype(kind: object) -> str | None:
    """Return the dtype of a typed storage class; ``None`` for bytes, or what is no such class."""
    return STORAGES.get(kind.name.removesuffix("Storage")) if isinstance(kind, Named) else None


def _dtype_of(kind: object, rest: tuple[Any, ...]) -> str:
    """Return the dtype of the storage's type or, if it has none, the description's last argument that is not a flag."""
    dtype = storage_dtype(kind)
    if dtype is not None:
        return dtype
    named = [argument.name for argument in rest if isinstance(argument, Named) and argument.name in DTYPES]
    if len(named) != 1:
        raise MalformedError("describes a tensor of an unknown dtype")
    return named[0]


STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool",
}  # fmt: skip
"""Dtype of each typed storage class of PyTorch, without its suffix ``Storage``."""

PARAMETER = Named("torch._utils", "_rebuild_parameter")
FROM_TYPE = Named("torch._tensor", "_rebuild_from_type_v2")
REBUILDING = frozenset({Named("torch._utils", "_rebuild_tensor_v2"), Named("torch._utils", "_rebuild_tensor_v3")})

_FUNCTIONS = frozenset({*REBUILDING, PARAMETER, FROM_TYPE})
"""Functions that the description of a tensor may name."""

_TYPES = frozenset({
    Named("torch.nn.parameter", "Parameter"), Named("torch", "Tensor"), Named("torch.storage", "UntypedStorage"),
})  # fmt: skip
"""Types that it may name."""
