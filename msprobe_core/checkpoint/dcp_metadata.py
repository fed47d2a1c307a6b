"""Read ``.metadata`` of PyTorch's distributed checkpoints, a pickle, without executing it.

Source: ``metadata.py`` and ``filesystem.py`` in ``torch/distributed/checkpoint`` of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from msprobe_core.errors import DumpError
from msprobe_core.store.pt_files import MAX_PICKLE_BYTES
from msprobe_core.store.tensor_values import DTYPES
from msprobe_core.untrusted.files import read_plain
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.pickles import Built, Entries, Named, read_objects

_MODULES = ("torch.distributed.checkpoint.", "torch.distributed._shard.")


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Where a chunk or value is stored.

    Attributes:
        file: Name of its file, as the metadata has it.
        begin: Start of the range.
        num_bytes: Its length.
        transforms: What was done to the bytes, such as compression; empty if nothing.
    """

    file: str
    begin: int
    num_bytes: int
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """One chunk of a tensor.

    Attributes:
        begin: Position of its first element in the whole.
        shape: Its shape.
        place: Where it is stored; ``None`` if the metadata does not say.
    """

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    place: StoredRange | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor.

    Attributes:
        dtype: Dtype without a framework's name.
        shape: Shape of the whole.
        chunks: Its chunks.
    """

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[ChunkInfo, ...]


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """What the metadata says.

    Attributes:
        tensors: By the key in the state dict.
        values: Where other values are stored, by key.
        paths: Keys that lead to each value in the nested state dict, by the joined key.
        wrong: Keys of tensors that are described wrongly, and why.
    """

    tensors: Mapping[str, TensorInfo]
    values: Mapping[str, StoredRange | None]
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict[str, tuple[str | int, ...]])
    wrong: Mapping[str, str] = field(default_factory=dict[str, str])


_PlaceKey = tuple[str, "tuple[int, ...] | None"]


def read_metadata(path: Path) -> DcpMetadata:
    """Return the content of ``.metadata``.

    Raises:
        DumpError: it cannot be read, or is no such file.
    """
    try:
        root = _fields(read_objects(read_plain(path, MAX_PICKLE_BYTES)), "Metadata")
        described = _entries(root.get("state_dict_metadata"))
        places = _places(_entries(root.get("storage_data")))
        tensors, values, wrong = dict[str, TensorInfo](), dict[str, StoredRange | None](), dict[str, str]()
        for key, value in ((_text(key), value) for key, value in described):
            try:
                if _class_of(value) == "BytesStorageMetadata":
                    values[key] = places.get((key, None))
                else:
                    tensors[key] = _tensor(key, _fields(value, "TensorStorageMetadata"), places)
            except MalformedError as problem:  # noqa: PERF203 - one tensor must not hide the others
                wrong[key] = problem.reason
    except OSError as problem:
        raise DumpError(f"{path}: cannot be read ({problem.strerror or problem})") from problem
    except MalformedError as problem:
        raise DumpError(f"{path}: is no metadata of a distributed checkpoint of PyTorch: it {problem}") from problem
    return DcpMetadata(tensors, values, _paths(root.get("planner_data")), wrong)


def _text(key: Any) -> str:
    if type(key) is not str:
        raise MalformedError("has a key that is no text")
    return key


def _class_of(value: Any) -> str:
    """Return the name of an object's class, of those that metadata has."""
    name = value.name if isinstance(value, Built) else None
    if name is None or not name.module.startswith(_MODULES):
        raise MalformedError("has something else in the place of an object of a distributed checkpoint")
    return name.name


def _fields(value: Any, kind: str) -> dict[str, Any]:
    if _class_of(value) != kind:
        raise MalformedError(f"has something else in the place of {kind}")
    return {key: each for key, each in _entries(cast("Built", value).state) if type(key) is str}


def _entries(value: Any) -> Entries:
    if isinstance(value, Built) and value.entries is not None:  # an ordered or other dictionary
        return value.entries
    return value if isinstance(value, Entries) else Entries()


def _sizes(value: Any) -> tuple[int, ...]:
    """Return a ``torch.Size``, or a tuple or list of integers."""
    if isinstance(value, Built) and value.name == Named("torch", "Size") and value.args:
        value = value.args[0]
    parts = cast("tuple[Any, ...]", value) if isinstance(value, (tuple, list)) else None
    if parts is None or any(type(each) is not int or each < 0 for each in parts) or len(parts) > 64:
        raise MalformedError("has sizes that are no numbers")
    return tuple(parts)


def _tensor(key: str, found: Mapping[str, Any], places: Mapping[_PlaceKey, StoredRange]) -> TensorInfo:
    properties = found.get("properties")
    state: Any = properties.state if isinstance(properties, Built) else None
    first = cast("tuple[Any, ...]", state)[0] if type(state) is tuple and state else None
    if isinstance(state, Entries):
        first = next((each for name, each in state if name == "dtype"), None)
    if not isinstance(first, Named) or first.module != "torch" or first.name not in DTYPES:
        raise MalformedError("has a dtype that is not known")
    shape = _sizes(found.get("size"))
    chunks: list[ChunkInfo] = []
    listed = found.get("chunks")
    for each in cast("list[Any]", listed) if isinstance(listed, list) else []:
        own = _fields(each, "ChunkStorageMetadata")
        begin, sizes = _sizes(own.get("offsets")), _sizes(own.get("sizes"))
        chunks.append(ChunkInfo(begin, sizes, places.get((key, begin))))
    return TensorInfo(first.name, shape, tuple(chunks))


def _places(entries: Entries) -> dict[_PlaceKey, StoredRange]:
    found: dict[_PlaceKey, StoredRange] = {}
    for key, value in entries:
        index, info = _fields(key, "MetadataIndex"), _fields(value, "_StorageInfo")
        name, file = index.get("fqn"), info.get("relative_path")
        begin, length = info.get("offset"), info.get("length")
        transforms: Any = info.get("transform_descriptors")
        if type(name) is not str or type(file) is not str or type(begin) is not int or type(length) is not int:
            raise MalformedError("has a place in a file that is none")
        offset = index.get("offset")
        listed = cast("Sequence[object]", transforms) if isinstance(transforms, (list, tuple)) else ()
        names = tuple(str(each)[:40] for each in listed)
        found[name, None if offset is None else _sizes(offset)] = StoredRange(file, begin, length, names)
    return found


def _paths(value: Any) -> dict[str, tuple[str | int, ...]]:
    found: dict[str, tuple[str | int, ...]] = {}
    for key, each in _entries(value):
        if type(key) is not str or type(each) is not tuple:
            continue
        parts = cast("tuple[str | int, ...]", each)
        if all(type(part) in (str, int) for part in parts):
            found[key] = parts
    return found
