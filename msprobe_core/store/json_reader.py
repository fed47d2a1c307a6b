"""Read dumps in ``dump.json`` form: ours, and those that ``mindstudio-probe`` 8.x and 26.x wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from json.decoder import scanstring  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from msprobe_core.errors import DumpError
from msprobe_core.hookspecs import Dump, Reader, hookimpl
from msprobe_core.model import RunHeader
from msprobe_core.store import layout
from msprobe_core.store.dumped import StoredDump, read_content

if TYPE_CHECKING:
    pass


class JsonDump(StoredDump):
    """A dump read from ``dump.json`` and the files beside it."""

    stack_file = layout.STACK_FILE
    construct_file = layout.CONSTRUCT_FILE

    def _read_stacks(self, path: Path) -> Mapping[str, Sequence[str]]:
        return read_stacks(path)

    def _read_parents(self, path: Path) -> Mapping[str, str | None]:
        return read_parents(path)


class JsonReader:
    """Reads ``dump.json``."""

    name = "json"

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a JSON file or a directory with a ``dump.json`` or ``debug.json``."""
        return path.suffix == ".json" if path.is_file() else _file_in(path).is_file()

    def read(self, path: Path) -> Dump:
        """Read the dump at ``path``, a file or a rank's directory."""
        return read_json_dump(_file_in(path) if path.is_dir() else path)


def _file_in(directory: Path) -> Path:
    """Return the file that holds the records of a rank's directory."""
    saved = directory / layout.DEBUG_FILE
    return saved if saved.is_file() and not (directory / layout.DUMP_FILE).exists() else directory / layout.DUMP_FILE


def read_stacks(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the frames of each entry in a ``stack.json`` of either layout.

    Raises:
        DumpError: the file is missing or is no such file.
    """
    content = _read_object(path)
    groups = content.values() if _is_grouped(content) else [[[entry], frames] for entry, frames in content.items()]
    stacks: dict[str, Sequence[str]] = {}
    for group in groups:
        try:
            entries, frames = msgspec.convert(group, tuple[list[str], list[str]])
        except msgspec.ValidationError as error:
            raise DumpError(f"{path}: is not a {layout.STACK_FILE} ({error})") from error
        stacks.update(dict.fromkeys(entries, frames))
    return stacks


def _is_grouped(content: Mapping[str, Any]) -> bool:
    """Whether entries with one stack are listed together; older releases write one list per entry."""
    first = cast("Any", content.get("0"))
    return isinstance(first, list) and len(cast("list[Any]", first)) == 2


def read_parents(path: Path) -> Mapping[str, str | None]:
    """Return the enclosing call of each entry in a ``construct.json``.

    Raises:
        DumpError: the file is missing or is no such file.
    """
    parents: dict[str, str | None] = {}
    for entry, value in _read_object(path).items():
        # Under Megatron a value is [parent, micro step], and one key holds their number.
        parent = cast("Any", value[0] if isinstance(value, list) and value else value)
        if isinstance(parent, str | None):
            parents[entry] = parent
    return parents


def read_json_dump(path: Path) -> JsonDump:
    """Return the dump in the file ``path``.

    Args:
        path: A ``dump.json`` or ``debug.json``.

    Raises:
        DumpError: the file is missing, not a dump, or damaged before its first record.
    """
    from msprobe_core.store.frame import FrameBuilder  # brings polars, which the command line does without

    notes: list[str] = []
    malformed: list[str] = []
    content = _read_object(path, notes)
    data = content.get("data")
    if not isinstance(data, dict) or not isinstance(content.get("task"), str):
        raise DumpError(f"{path}: is not a dump: it has no 'task' and 'data'; give the path of a {layout.DUMP_FILE}")
    builder = FrameBuilder()
    records = cast("dict[str, Any]", data)
    for entry in list(records):
        # Taken out one by one: the columns grow while the records go, so that memory holds one of the two.
        record = records.pop(entry)
        try:
            builder.add_entry(entry, record)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            malformed.append(f"the record {entry!r} is malformed ({error})")
    frame = builder.build()
    if malformed and not frame.height:
        raise DumpError(f"{path}: {malformed[0]}; no other record is sound")
    if malformed:
        notes.append(f"{path}: {malformed[0]}; malformed records, which are left out: {len(malformed)}")
    header = RunHeader(
        task=content["task"],
        level=str(content.get("level", "")),
        framework=str(content.get("framework", "")),
        summary_mode="md5" if frame["checksum"].null_count() < frame.height else "statistics",
    )
    return JsonDump(path=path, header=header, frame=frame, notes=notes)


def _read_object(path: Path, notes: list[str] | None = None) -> dict[str, Any]:
    """Return the JSON object in ``path``; what is left of it if the file is cut off and ``notes`` may say so."""
    decoded = _decode(path, read_content(path), notes)
    if not isinstance(decoded, dict):
        raise DumpError(f"{path}: holds {type(decoded).__name__}, not an object; give the path of a {layout.DUMP_FILE}")
    return cast("dict[str, Any]", decoded)


def _decode(path: Path, content: bytes, notes: list[str] | None) -> Any:
    content = content.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, which editors add
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # Other tools write NaN and Infinity as bare words, which strict JSON does not have.
    text = content.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        recovered = _recover(text)
        if notes is None or not recovered.get("data"):
            raise DumpError(f"{path}: is not valid JSON ({error}); the file is damaged or of another kind") from error
        notes.append(
            f"{path}: the file is cut off or damaged after {len(recovered['data'])} whole records, which were "
            "recovered; rows behind them are missing"
        )
        return recovered


def _recover(text: str) -> dict[str, Any]:
    """Return the members of a damaged dump up to the first that is not whole."""
    found: dict[str, Any] = {}
    for key, start in _members(text, _skip(text, 0) + 1):
        if key == "data":
            found[key] = dict(_whole_members(text, start + 1))
            break
        found[key] = _value_at(text, start)[0]
    return found


def _members(text: str, position: int) -> Iterator[tuple[str, int]]:
    """Yield key and position of the value for each member of the object whose brace is before ``position``.

    Ends at the first member that is not whole, but still yields a last ``data``, whose own members may be.
    """
    while (position := _skip(text, position, ",")) < len(text) and text[position] == '"':
        key, start = "", position
        try:
            key, start = cast("tuple[str, int]", scanstring(text, position + 1))
            start = _skip(text, start, ":")
            _, position = _value_at(text, start)
        except (ValueError, StopIteration, RecursionError):
            if key == "data" and text[start : start + 1] == "{":
                yield key, start
            return
        yield key, start


def _whole_members(text: str, position: int) -> Iterator[tuple[str, Any]]:
    for key, start in _members(text, position):
        yield key, _value_at(text, start)[0]


_scan = json.JSONDecoder().raw_decode


def _value_at(text: str, position: int) -> tuple[Any, int]:
    return _scan(text, position)


def _skip(text: str, position: int, separator: str = "") -> int:
    while position < len(text) and (text[position].isspace() or text[position] in separator):
        position += 1
    return position


@hookimpl
def msprobe_register_readers() -> Sequence[Reader]:
    """Offer the reader of this module."""
    return [JsonReader()]
