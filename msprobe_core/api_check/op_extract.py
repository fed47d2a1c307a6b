"""Take the records of one API out of a dump: a small dump of its own, which can be given to others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.api_check.op_config import InputMode, OpConfig, Propagation, nearest
from msprobe_core.errors import ConfigError
from msprobe_core.store import layout
from msprobe_core.store.atomic_file import whole_file, write_json
from msprobe_core.store.json_reader import Document, read_document
from msprobe_core.untrusted.files import read_plain, reading


def dump_of(config: OpConfig) -> Path:
    """Return the dump that a script is written of; records of the API are extracted first if they are to be.

    Raises:
        ConfigError: a file is missing or no such file, or has no such API.
        DumpError: the dump is damaged.
        StoreError: the extracted records cannot be written.
    """
    source, target = config.dump, config.extracted
    if source is None:
        if not target.is_file():
            raise ConfigError(f"'extract_api_path' is {target}, where no file is; give 'dump_json_path' and 'api_name' "
                              "to extract the records from a dump")  # fmt: skip
        return target
    source = source / layout.DUMP_FILE if source.is_dir() else source
    if not source.is_file():
        hint = "convert it with `msprobe convert`" if source.with_name("dump.arrow").is_file() else "give a dump.json"
        raise ConfigError(f"'dump_json_path' is {source}, where no file is; {hint}")
    if target.suffix != ".json" or target.is_dir():
        raise ConfigError(f"'extract_api_path' is {target}; give the name of a file that ends in .json")
    if target.exists() and target.samefile(source):
        raise ConfigError(f"'extract_api_path' is {target}, the dump itself, which would be overwritten; give another")
    _extract(source, target, config)
    return source


def api_of_config(config: OpConfig, entries: Iterable[str]) -> str:
    """Return the name of the API, which may be left out for records of one API.

    Raises:
        ConfigError: the records are not of it, or of several.
    """
    apis = list(dict.fromkeys(api for entry in entries if (api := _api_of(entry))))
    if config.api_name in apis:
        return config.api_name
    if config.api_name:
        hint = nearest(config.api_name, apis, most=_FEW)
        raise ConfigError(f"'api_name' is {config.api_name!r}, of which there is no record; {hint}")
    if len(apis) == 1:
        return apis[0]
    raise ConfigError(f"'extract_api_path' has records of {len(apis)} APIs; give one of them as 'api_name'")


_FEW = 10
"""Number of APIs that a message lists."""


def _extract(source: Path, target: Path, config: OpConfig) -> None:
    document = read_document(source, [])
    api = api_of_config(config, document.data)
    records = {entry: _decoded(value) for entry, value in document.data.items() if _api_of(entry) == api}
    keeps = isinstance(document.dump_data_dir, str) and config.data_mode is InputMode.REAL
    directory = target.parent / layout.TENSOR_DIRECTORY
    header = {name: getattr(document, name) for name in Document.__struct_fields__ if name not in ("data", "end")}
    write_json(target, header | {"dump_data_dir": str(directory) if keeps else None, "data": records})
    if keeps and target.parent.resolve() != source.parent.resolve():
        for name in dict.fromkeys(_files(records)):
            _copy(source.parent / layout.TENSOR_DIRECTORY / name, directory / name)


def _api_of(entry: str) -> str:
    """Return the name without its direction; an empty text if it is not that of a call."""
    api, _, direction = entry.rpartition(".")
    return api if direction in tuple(Propagation) else ""


def _decoded(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def _files(value: Any) -> Iterator[str]:
    """Yield the names of tensor files; a member of a larger file is not copied."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        name = fields.get("data_name")
        if isinstance(name, str) and Path(name).name == name and layout.shard_member(name) is None:
            yield name
    inner = cast("Any", value)
    for each in inner.values() if isinstance(value, dict) else inner if isinstance(value, list) else ():
        yield from _files(each)


def _copy(source: Path, target: Path) -> None:
    layout.make_directory(target.parent)
    with reading(source):
        content = read_plain(source)
    with whole_file(target) as file:
        file.write(content)
