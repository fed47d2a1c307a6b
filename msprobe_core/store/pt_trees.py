"""Read files of ``torch.save`` with many tensors: state dicts, optimizers, checkpoints with arguments.

Nothing is executed, and no framework is needed: see `msprobe_core.untrusted.pickles`. Since nothing is imported either,
objects of any class are accepted, and are `Opaque`: their name and state, if it is simple.

Sources: the archives that ``torch.save`` of PyTorch 1.6 and later writes; for earlier files ``_legacy_save`` in
``torch/serialization.py``: a magic number, a protocol version, a description of the system, the object, and the keys of
its storages as five pickles, then each storage as the number of its elements in 8 bytes and its bytes.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import numpy as np

from msprobe_core.errors import DamagedDumpError, DumpError, LargeDumpError, clip
from msprobe_core.store.pt_files import (
    FROM_TYPE,
    MAX_PICKLE_BYTES,
    PARAMETER,
    REBUILDING,
    ZIP_SIGNATURE,
    PtArchive,
    described_view,
    storage_dtype,
)
from msprobe_core.store.tensor_source import Storage, StoredTensor
from msprobe_core.store.tensor_values import DTYPES
from msprobe_core.untrusted.files import open_plain
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.pickles import Built, Entries, Named, Outside, read_objects

Key: TypeAlias = "str | int | float | bool | bytes | tuple[Key, ...] | None"
"""Key of a dictionary."""

PathInTree: TypeAlias = tuple[Key, ...]
"""Keys and positions from the root to a value; attributes of objects are text."""

MAX_DEPTH = 96
"""Maximum nesting of values."""

_MAX_KEY_PARTS = 32
_FREE_VISITS = 10_000
_MOST_VISITS = 4
"""Maximum average number of places at which each value is found."""


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """An object that was not made.

    Attributes:
        name: Its class, or the function that makes it: ``numpy.ndarray``, ``megatron.core.enums.ModelType``.
        args: Arguments of the call that would make it.
        fields: Its state; empty if it has none, or none by name.
        reason: Why it is not a tensor, if it was to be one.
        position: Byte position in the file of what would make it, or of the pickle that refers to it.
    """

    name: str
    args: tuple[Any, ...] = ()
    fields: dict[Key, Any] = field(default_factory=dict[Key, Any])
    reason: str = ""
    position: int = 0


@dataclass(frozen=True, slots=True)
class PtTree:
    """The value that a file of ``torch.save`` holds.

    Attributes:
        path: The file.
        value: Dictionaries, lists and tuples of `StoredTensor`, `Opaque`, numbers, text, bytes and ``None``. A value
            that the file refers to twice is one object here; tied tensors have equal storages.
        size_bytes: Size of the file, or of its part that was read.
        num_values: Number of distinct values.
    """

    path: Path
    value: Any
    size_bytes: int
    num_values: int

    def leaves(self, *within: Key) -> Iterator[tuple[PathInTree, Any]]:
        """Yield every value that is no container, with its path, in the order of the file.

        Args:
            within: Keys that lead to the part of interest; paths begin there.

        Raises:
            DumpError: values are referred to more often than their number justifies.
        """
        left = _FREE_VISITS + _MOST_VISITS * self.num_values
        start = self.value
        for key in within:
            start = cast("dict[Key, Any]", start)[key]
        waiting: list[tuple[PathInTree, Any]] = [((), start)]
        while waiting:
            left -= 1
            if left < 0:
                raise DumpError(f"{self.path}: its values refer to each other more often than those of a checkpoint do")
            path, value = waiting.pop()
            if isinstance(value, dict):
                parts = list(cast("dict[Key, Any]", value).items())
            elif isinstance(value, (list, tuple)):
                parts = list(enumerate(cast("list[Any]", value)))
            else:
                yield path, value
                parts = list(value.fields.items()) if isinstance(value, Opaque) else []
            waiting += [((*path, key), part) for key, part in reversed(parts)]

    def tensors(self) -> Iterator[tuple[PathInTree, StoredTensor]]:
        """Yield every tensor with its path; see `leaves`."""
        for path, value in self.leaves():
            if isinstance(value, StoredTensor):
                yield path, value


def open_pt_tree(path: Path) -> PtTree:
    """Return all values in a file of ``torch.save``; elements of tensors are read on demand.

    A tensor that is described wrongly is `Opaque` with a reason; the others can be read.

    Raises:
        DumpError: it cannot be read, is not such a file, or is damaged.
    """
    return _opened(path, lambda file, size: _read(path, file, 0, size))


def open_pt_part(path: Path, begin: int, num_bytes: int) -> PtTree:
    """Return all values in a range of bytes of a file, which is a whole file of ``torch.save``.

    Raises:
        DumpError: as `open_pt_tree`; or the file ends before the range does.
    """

    def read(file: io.FileIO, size: int) -> PtTree:
        if min(begin, num_bytes) < 0 or begin + num_bytes > size:
            raise DamagedDumpError(
                f"{path}: is cut off: it ends before the {num_bytes} bytes from {begin} do", position=max(0, begin)
            )
        return _read(path, _Window(file, begin, num_bytes), begin, num_bytes)

    return _opened(path, read)


def path_text(path: PathInTree) -> str:
    """Return a path as text, with dots."""
    return ".".join(str(key) for key in path)


def _opened(path: Path, read: Callable[[io.FileIO, int], PtTree]) -> PtTree:
    try:
        with open_plain(path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            return read(file, size)
    except DumpError:
        raise
    except MalformedError as error:
        raise DumpError(f"{path}: {error}", position=error.position) from error
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise LargeDumpError(f"{path}: does not fit into memory") from error
    except Exception as error:  # untrusted bytes: archives and pickles may fail in any way
        raise DamagedDumpError(
            f"{path}: is not a whole file of torch.save ({error or type(error).__name__})"
        ) from error


def _read(path: Path, file: io.RawIOBase, begin: int, size: int) -> PtTree:
    start = file.read(4)
    if start != ZIP_SIGNATURE:
        return _read_legacy(path, file, begin, size, start or b"")
    whole = cast("IO[bytes]", file)
    with zipfile.ZipFile(whole) as archive:
        opened = PtArchive(archive, whole, path, begin)
        pickled, position = opened.pickled(), opened.pickle_begin
        maker = _Maker(path, opened.place, position)
        try:
            value = maker.made(read_objects(pickled), 0)
        except MalformedError as error:
            raise DumpError(f"{path}: {error}", position=position + (error.position or 0)) from error
        return PtTree(path, value, size, maker.num_values)


_LEGACY_MAGIC = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""``torch.serialization.MAGIC_NUMBER`` as a pickle of protocol 2, without its first two bytes."""

_LEGACY_VERSION = 1001


def _read_legacy(path: Path, raw: io.RawIOBase, begin: int, size: int, start: bytes) -> PtTree:
    """Return what an earlier ``torch.save`` wrote: pickles, then storages.

    Storages are found only after the pickle that refers to them, so it is evaluated with what they refer to, and again.
    """
    if start[:1] != b"\x80":
        raise DumpError(f"{path}: is no file of torch.save: it is neither a zip archive nor a pickle")
    raw.seek(0)
    file = cast("IO[bytes]", io.BufferedReader(_Window(raw, 0, min(size, MAX_PICKLE_BYTES))))
    if file.read(2 + len(_LEGACY_MAGIC))[2:] != _LEGACY_MAGIC:
        raise DumpError(
            f"{path}: is a pickle that torch.save of PyTorch has not written; load it where it was made, and save it "
            "again with torch.save or as safetensors"
        )
    version, system, value = read_objects(file), read_objects(file), read_objects(file)
    order = dict(system).get("little_endian") if isinstance(system, Entries) else None
    if version != _LEGACY_VERSION or order is not True:
        raise DumpError(f"{path}: is of a version or byte order of torch.save that is not supported; save it again")
    keys = read_objects(file)
    if not isinstance(keys, list):
        raise MalformedError("has no list of storages")
    items = _legacy_items(value)
    places: dict[str, Storage] = {}
    position = file.tell()
    for key in cast("list[Any]", keys):
        if type(key) is not str or key not in items:
            raise MalformedError("lists a storage that no tensor uses")
        raw.seek(position)
        count = int.from_bytes(raw.read(8) or b"", "little")
        num_bytes = count * items[key]
        position += 8
        if position + num_bytes > size:
            raise DamagedDumpError(
                f"{path}: is cut off: it ends before the storage {clip(key)!r} does", position=begin + position
            )
        places[key] = Storage(file=path, begin=begin + position, num_bytes=num_bytes)
        position += num_bytes

    def place(key: str) -> Storage:
        if key not in places:
            raise DamagedDumpError(f"{path}: lacks the storage {clip(key)!r}; it is damaged", position=begin + position)
        return places[key]

    maker = _Maker(path, place, begin)
    return PtTree(path, maker.made(value, 0), size, maker.num_values)


def _legacy_items(value: Any) -> dict[str, int]:
    """Return the size of an element of each storage, in bytes."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[Any] = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Outside):
            kind, key = _storage_parts(part.id)
            dtype = storage_dtype(kind)
            if key is not None:
                found[key] = 1 if dtype is None else np.dtype(DTYPES[dtype]).itemsize
        elif id(part) not in seen and isinstance(part, (Built, list, tuple)):
            seen.add(id(cast("object", part)))
            if isinstance(part, Built):
                waiting += [part.args, part.state, part.items, part.entries, part.function]
            elif not isinstance(part, Named):
                waiting += cast("list[Any]", part)
    return found


def _storage_parts(identity: Any) -> tuple[Any, str | None]:
    """Return class and key of ``("storage", class, key, …)``; ``None`` as the key if it is something else."""
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", identity) if type(identity) is tuple else ()
    if len(parts) < 3 or parts[0] != "storage" or type(parts[2]) is not str:
        return None, None
    return parts[1], parts[2]


class _Maker:
    """Makes plain values of what a pickle describes, each once."""

    def __init__(self, path: Path, place: Callable[[str], Storage], begin: int = 0) -> None:
        self._path = path
        self._begin = begin
        self._place = place
        self._known: dict[int, Any] = {}
        self._begun: set[int] = set()
        self.num_values = 0

    def made(self, value: Any, depth: int) -> Any:
        """Return a plain value.

        Raises:
            MalformedError: values are nested too deeply.
        """
        if value is None or type(value) in (str, int, float, bool, bytes):
            self.num_values += 1
            return value
        identity = id(value)
        if identity in self._known:
            return self._known[identity]
        if depth > MAX_DEPTH:
            raise MalformedError(f"its values are nested more than {MAX_DEPTH} deep")
        if identity in self._begun:
            return Opaque("a reference to what it is a part of", position=self._begin)
        self._begun.add(identity)
        self.num_values += 1
        made = self._known[identity] = self._new(value, depth + 1)
        self._begun.discard(identity)
        return made

    def _new(self, value: Any, depth: int) -> Any:
        if isinstance(value, Entries):
            return self._mapping(value, depth)
        if isinstance(value, Built):
            return self._object(value, depth)
        if isinstance(value, Named):
            return Opaque(named_text(value), position=self._begin)
        if isinstance(value, Outside):
            return Opaque("a storage without a tensor", position=self._begin)
        if isinstance(value, list):
            return self._list(cast("list[Any]", value), depth)
        if type(value) is tuple:
            return tuple(self.made(each, depth) for each in cast("tuple[Any, ...]", value))
        return Opaque(type(value).__name__, position=self._begin)

    def _list(self, parts: list[Any], depth: int) -> list[Any]:
        return [self.made(each, depth) for each in parts]

    def _mapping(self, entries: Entries, depth: int) -> dict[Key, Any]:
        return {key_of(key): self.made(each, depth) for key, each in entries}

    def _object(self, value: Built, depth: int) -> Any:
        name = value.name
        if name in _MAPPINGS:
            return self._mapping(_given(value), depth)
        if name in _LISTS:
            given = value.args[0] if value.args else None
            parts = cast("list[Any]", given) if isinstance(given, (list, tuple)) else []
            return self._list([*parts, *(value.items or [])], depth)
        if name == _SIZE:
            return self.made(value.args[0], depth) if value.args else ()
        if name in _NAMESPACES and isinstance(value.state, Entries):
            return self._mapping(value.state, depth)
        if name in _TENSORS:
            return self._tensor(value)
        text = named_text(name) if name is not None else "an object"
        args = tuple(self.made(each, depth) for each in value.args)
        return Opaque(text, args, self._fields(value, depth), position=self._begin + value.position)

    def _fields(self, value: Built, depth: int) -> dict[Key, Any]:
        state: Any = value.state
        # Objects with slots have a pair: their dictionary, and that of their slots.
        states: tuple[Any, ...] = cast("tuple[Any, ...]", state) if type(state) is tuple else (state,)
        found: dict[Key, Any] = {}
        for each in (*states[:2], value.entries):
            if isinstance(each, Entries):
                found |= self._mapping(each, depth)
        return found

    def _tensor(self, value: Built) -> StoredTensor | Opaque:
        try:
            name, args = value.name, value.args
            for _ in range(MAX_DEPTH):
                if name in _PARAMETERS and isinstance(args[0], Built):
                    name, args = args[0].name, args[0].args
                elif name == FROM_TYPE and type(args[2]) is tuple and isinstance(args[0], Named):
                    name, args = args[0], cast("tuple[Any, ...]", args[2])
                else:
                    break
            if name not in REBUILDING:
                text = named_text(name) if name else "an object"
                return Opaque(text, reason="a tensor of a kind that is not read", position=self._begin + value.position)
            return described_view(self._path, self._place, *args)
        except DumpError as error:
            known = self._begin + value.position if error.position is None else error.position
            return Opaque("torch.Tensor", reason=str(error), position=known)
        except (TypeError, ValueError, IndexError, AttributeError, KeyError, OverflowError) as error:
            reason = f"{self._path}: describes no tensor ({type(error).__name__})"
            return Opaque("torch.Tensor", reason=reason, position=self._begin + value.position)


def key_of(key: Any) -> Key:
    """Return a key of a dictionary; text for one that is an object.

    Raises:
        MalformedError: it has too many parts.
    """
    if key is None or type(key) in (str, bytes, int, bool, float):
        return key
    made, left = _key(key, _MAX_KEY_PARTS)
    if left < 0:
        raise MalformedError("has keys of too many parts")
    return made


def _key(key: Any, left: int) -> tuple[Key, int]:
    left -= 1
    if left < 0 or key is None or type(key) in (str, bytes, int, bool, float):
        return key if left >= 0 else None, left
    if isinstance(key, Named):
        return named_text(key), left
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", key) if type(key) is tuple else ()
    if isinstance(key, Built):
        parts = (key.function, *key.args)
    elif not parts:
        return (), left
    made: list[Key] = []
    for part in parts:
        own, left = _key(part, left)
        made.append(own)
    return tuple(made), left


def _given(value: Built) -> Entries:
    """Return the entries of an object that is a dictionary: those of its constructor, and those added later."""
    found = Entries()
    for argument in value.args:
        if isinstance(argument, Entries):
            found += argument
        elif isinstance(argument, list):
            pairs = [cast("list[Any]", each) for each in cast("list[Any]", argument) if isinstance(each, (list, tuple))]
            found += [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    return Entries([*found, *(value.entries or [])])


def named_text(named: Named) -> str:
    """Return a name as text."""
    return clip(f"{named.module}.{named.name}")


_MAPPINGS = frozenset({
    Named("collections", "OrderedDict"), Named("collections", "defaultdict"), Named("collections", "Counter"),
    Named("builtins", "dict"), Named("__builtin__", "dict"),
})  # fmt: skip

_LISTS = frozenset(
    Named(module, name) for module in ("builtins", "__builtin__") for name in ("set", "frozenset", "list", "tuple")
) | {Named("collections", "deque")}

_NAMESPACES = frozenset({Named("argparse", "Namespace"), Named("types", "SimpleNamespace")})

_SIZE = Named("torch", "Size")

_PARAMETERS = frozenset({PARAMETER, Named("torch._utils", "_rebuild_parameter_with_state")})

_TENSORS = frozenset({*REBUILDING, *_PARAMETERS, FROM_TYPE}) | {
    Named("torch._utils", name)
    for name in ("_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_nested_tensor", "_rebuild_wrapper_subclass",
                 "_rebuild_meta_tensor_no_storage", "_rebuild_device_tensor_from_numpy",
                 "_rebuild_device_tensor_from_cpu_tensor")
}  # fmt: skip


class _Window(io.RawIOBase):
    """A range of bytes of a file, as a file."""

    def __init__(self, file: io.RawIOBase, begin: int, num_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._begin = begin
        self._num_bytes = num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, origin: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[origin]
        if base + offset < 0:
            raise OSError(22, "a position before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer)[: max(0, self._num_bytes - self._position)]
        if not room:
            return 0
        self._file.seek(self._begin + self._position)
        content = self._file.read(len(room)) or b""
        room[: len(content)] = content
        self._position += len(content)
        return len(content)
