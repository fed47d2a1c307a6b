"""Result files have fixed names. A command replaces its own earlier result, and no other file unless forced."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import msgspec

from msprobe_core.errors import CompareError, ExistsError, StoreError, UnreadableResultError
from msprobe_core.findings import text_and_content
from msprobe_core.store.json_writer import finite_number
from msprobe_core.untrusted.files import MAX_BYTES, open_plain, read_plain

_MAX_BYTES = 256 << 20
"""Results are far smaller, because they have no rows."""
_HEAD_BYTES = 1 << 14


@dataclass(frozen=True)
class OwnFiles:
    """The files of a command's result, and how its own are recognised.

    Attributes:
        command: The command that writes them, for example ``msprobe compare``.
        marks: By name of a file, what every release has written: the top-level members of JSON, or text near the
            beginning of another file.
    """

    command: str
    marks: Mapping[str, Collection[str] | bytes]

    def refuse_foreign(self, directory: Path) -> None:
        """Check that writing the files will not replace others; to be called before the work begins.

        Raises:
            StoreError: the directory holds a file of one of their names that this command has not written.
        """
        for name, mark in self.marks.items():
            if isinstance(mark, bytes):
                refuse_foreign_text(directory / name, self.command, mark)
            else:
                refuse_foreign_json(directory / name, self.command, mark)


def refuse_foreign_json(path: Path, command: str, members: Collection[str]) -> None:
    """Raise if there is a file that a command's JSON result must not replace.

    Args:
        path: Path of the result.
        command: The command that writes it, for example ``msprobe compare``.
        members: Top-level members that every release has written.

    Raises:
        StoreError: there is a file that is not a result of this command.
    """
    if not _is_there(path):
        return
    try:
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            found = msgspec.json.decode(read_plain(path), type=dict[str, msgspec.Raw])
            if found.keys() >= {*members}:
                return
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        pass
    raise refusal(path, command)


def refuse_foreign_text(path: Path, command: str, mark: bytes) -> None:
    """Raise if there is a file that a command's result must not replace.

    Args:
        path: Path of the result.
        command: The command that writes it.
        mark: Text near the beginning of the file that every release has written.

    Raises:
        StoreError: there is a file that is not a result of this command.
    """
    if not _is_there(path):
        return
    try:
        if path.is_file():
            with open_plain(path) as file:
                if mark in file.read(_HEAD_BYTES):
                    return
    except OSError:
        pass
    raise refusal(path, command)


def refuse_foreign_parquet(path: Path, command: str, columns: Collection[str]) -> None:
    """Raise if there is a file that a command's table must not replace; every release has written these columns.

    Raises:
        StoreError: there is a file that is not a table of this command.
    """
    if not _is_there(path):
        return
    import polars as pl  # which other results do not need

    try:
        if pl.read_parquet_schema(path).keys() >= {*columns}:
            return
    except (OSError, pl.exceptions.PolarsError):
        pass
    raise refusal(path, command)


def _is_there(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):  # the writer reports it in more detail
        return False


def refusal(path: Path, command: str) -> StoreError:
    """Return the error that says why a file is not replaced, and how to replace it."""
    return ExistsError(
        f"{path}: exists, and `{command}` has not written it, so it is not replaced; move it away, choose another "
        "place, or give --overwrite"
    )


_Content = TypeVar("_Content")


class _HasVersion(Protocol):
    @property
    def version(self) -> int: ...


_Result = TypeVar("_Result", bound=_HasVersion)


def read_json(
    path: Path, kind: type[_Content], what: str, *, max_bytes: int = MAX_BYTES, has_texts: bool = False
) -> _Content:
    """Return the content of a JSON file, which anyone may have written.

    Args:
        path: The file.
        kind: Of its content.
        what: What the file has to be, for the message, with a place for ``error``.
        max_bytes: A larger file is rejected.
        has_texts: Whether numbers may be texts, as `plain_result` makes those that JSON has not.

    Raises:
        CompareError: it cannot be read, or is something else.
    """
    try:
        content = read_plain(path, max_bytes).removeprefix(b"\xef\xbb\xbf")  # a byte order mark, which editors add
        return msgspec.json.decode(content, type=kind, strict=not has_texts)
    except OSError as error:
        raise CompareError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableResultError(f"{path}: is not {what.format(error=error)}") from error


def read_result(
    path: Path, kind: type[_Result], command: str, version: int, *, max_bytes: int = MAX_BYTES, has_texts: bool = False
) -> _Result:
    """Return the content of a command's JSON result; see `read_json`.

    Raises:
        CompareError: it cannot be read, is damaged, or of a later version.
    """
    what = f"what {command} writes ({{error}}); run it again"
    found = read_json(path, kind, what, max_bytes=max_bytes, has_texts=has_texts)
    if found.version != version:
        raise UnreadableResultError(
            f"{path}: is of version {found.version}, and {version} is known; run {command} again"
        )
    return found


def plain_result(value: Any, texts: Collection[str] = ()) -> Any:
    """Return what a command has found in JSON's own types; numbers that JSON has not as text, as dumps have them.

    Args:
        value: Dataclasses, structs, mappings, sequences, enumerations, paths, numbers and texts, within each other.
        texts: Attributes that are findings: of these there are texts and codes, see `text_and_content`.
    """
    if is_dataclass(value) or isinstance(value, msgspec.Struct):
        found: dict[str, Any] = {}
        for name in [own.name for own in fields(value)] if is_dataclass(value) else value.__struct_fields__:
            item = getattr(value, name)
            found |= text_and_content(name, item) if name in texts else {name: plain_result(item, texts)}
        return found
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return finite_number(value)
    if isinstance(value, Mapping):
        return {str(key): plain_result(item, texts) for key, item in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain_result(item, texts) for item in cast("Sequence[Any]", value)]
    return str(value) if isinstance(value, Path) else value
