"""The file of a manifest, beside the dump of the first step that a process records.

Later steps of the process have none: `find_manifest` returns that of the run's first step that has one. What differs in
each step is the data; beside the dumps of later recorded steps their rows are in a file of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from msprobe_core.errors import DamagedDumpError, NewerDumpError, StoreError
from msprobe_core.manifest.facts import SCHEMA, DataRows, Manifest
from msprobe_core.store import layout
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.untrusted.files import read_plain, reading

MANIFEST_FILE = layout.MANIFEST_FILE
DATA_ROWS_FILE = layout.DATA_ROWS_FILE

_MAX_BYTES = 256 << 20

_KERNEL_LEVELS = 4
"""Levels of directories below that of a process, ``rank_0``, in a dump of kernels by the framework."""


_Content = TypeVar("_Content")


class _Head(msgspec.Struct):
    schema: int


class _DataRowsFile(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    data: tuple[DataRows, ...]


def write_manifest(directory: Path, manifest: Manifest) -> Path:
    """Write the manifest of a process beside its dump; return its path.

    Args:
        directory: Directory of the dump.
        manifest: What it holds.

    Raises:
        StoreError: it cannot be written; no part of it is left.
    """
    path = directory / MANIFEST_FILE
    try:
        content = msgspec.json.encode(manifest)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:  # settings are what users put there
        raise StoreError(f"{path}: cannot be written ({error})") from error
    with whole_file(path) as file:
        file.write(content + b"\n")
    return path


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file.

    Raises:
        DumpError: it cannot be read, is damaged, or is of a later version.
    """
    with reading(path):
        content = read_plain(path, _MAX_BYTES)
    return decode_manifest(content, path)


def decode_manifest(content: bytes, path: Path) -> Manifest:
    """Return the manifest in the bytes of a file.

    Raises:
        DumpError: it is damaged, or of a later version; the message names ``path``.
    """
    return _decoded(content, path, Manifest, "is a manifest", "is no manifest, or a damaged one")


def _decoded(content: bytes, path: Path, kind: type[_Content], what: str, otherwise: str) -> _Content:
    try:
        schema = msgspec.json.decode(content, type=_Head).schema
        if schema > SCHEMA:
            raise NewerDumpError(f"{path}: {what} of version {schema}; {SCHEMA} is the latest known; update msprobe")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedDumpError(f"{path}: {otherwise} ({error})") from error


def find_manifest(unit: Path) -> Path | None:
    """Return the path of the manifest of a process; ``None`` if its run has none.

    Args:
        unit: Directory of its dump in one step, or the file of the dump.
    """
    directory = unit if unit.is_dir() else unit.parent
    if (directory / MANIFEST_FILE).is_file():
        return directory / MANIFEST_FILE
    for above in directory.parents[:_KERNEL_LEVELS]:
        if above.name.startswith("rank_") and (above / MANIFEST_FILE).is_file():
            return above / MANIFEST_FILE
    run = directory.parent.parent
    if not layout.is_unit(directory.name) or not directory.parent.name.startswith("step"):
        return None
    for step in layout.find_steps(run).values():
        path = step / directory.name / MANIFEST_FILE
        if path.is_file():
            return path
    return None


def write_data_rows(directory: Path, rows: Sequence[DataRows]) -> Path:
    """Write the rows of a step's data beside its dump; return the path of the file.

    Args:
        directory: Directory of the dump.
        rows: What it holds.

    Raises:
        StoreError: it cannot be written; no part of it is left.
    """
    path = directory / DATA_ROWS_FILE
    with whole_file(path) as file:
        file.write(msgspec.json.encode(_DataRowsFile(data=tuple(rows))) + b"\n")
    return path


def read_data_rows(unit: Path) -> list[DataRows]:
    """Return the rows of the data that a process was given in one step; empty if they were not recorded.

    Args:
        unit: Directory of its dump in this step, or the file of the dump.

    Raises:
        DumpError: they cannot be read, are damaged, or are of a later version.
    """
    directory = unit if unit.is_dir() else unit.parent
    path = directory / DATA_ROWS_FILE
    if path.exists() or path.is_symlink():  # also if it is no file, which is an error
        with reading(path):
            content = read_plain(path, _MAX_BYTES)
        return decode_data_rows(content, path)
    path = directory / MANIFEST_FILE
    return list(read_manifest(path).data) if path.is_file() else []


def decode_data_rows(content: bytes, path: Path) -> list[DataRows]:
    """Return the rows in the bytes of a file.

    Raises:
        DumpError: they are damaged, or of a later version; the message names ``path``.
    """
    otherwise = "holds no rows of data, or damaged ones"
    return list(_decoded(content, path, _DataRowsFile, "holds rows", otherwise).data)
