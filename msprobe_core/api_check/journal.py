"""Verdicts that are on disk as soon as they are known, so that an interrupted check can be resumed."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from msprobe_core.api_check.verdict import CallVerdict
from msprobe_core.errors import CompareError, DumpError, StoreError
from msprobe_core.store.layout import create_file
from msprobe_core.untrusted.files import read_plain

VERSION = 1

_MAX_BYTES = 1 << 30

_LENGTH = struct.Struct("<I")


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first record of a journal.

    Attributes:
        digest: Of the dump and of the settings that decide the verdicts.
        version: Of the file.
    """

    digest: str
    version: int = VERSION


class Journal:
    """Appends verdicts to a file; each is one record with its length before it.

    Unlike JSON, MessagePack can represent NaN and Inf, which an error may be.

    Args:
        path: The file; it is continued if it exists. One with a part of the first record, or nothing, is begun
            again: a process was killed before it wrote more, or only the name has been taken.
        digest: See `JournalHead`.

    Raises:
        StoreError: the file cannot be written.
        DumpError: it exists, and is not a journal.
        CompareError: it exists, and is of another dump or other settings.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self._path = path
        self.verdicts: Mapping[str, CallVerdict] = {}
        """Of an earlier run, by entry."""
        head = msgspec.msgpack.encode(JournalHead(digest=digest))
        content = _content(path)
        if not (_LENGTH.pack(len(head)) + head)[:-1].startswith(content):
            records, length = _records(content)
            self.verdicts = _verdicts(path, records, digest)
            self._file: IO[bytes] = _reopened(path)
            self._file.truncate(length)  # the last record of a process that was killed
            self._file.seek(length)
        else:
            self._file = create_file(path)
            self._append(head)

    def close(self) -> None:
        """Close the file.

        Raises:
            StoreError: what could not be written before still cannot.
        """
        try:
            self._file.close()
        except OSError as error:
            raise self._not_written(error) from error

    def append(self, verdict: CallVerdict) -> None:
        """Write one verdict, so that it survives the end of this process.

        Raises:
            StoreError: the disk is full or not writable.
        """
        self._append(msgspec.msgpack.encode(verdict))

    def _append(self, record: bytes) -> None:
        try:
            self._file.write(_LENGTH.pack(len(record)) + record)
            self._file.flush()
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> StoreError:
        return StoreError(f"{self._path}: cannot be written ({error.strerror or error}); free space and run again")


def _content(path: Path) -> bytes:
    if not (path.exists() or path.is_symlink()):
        return b""
    try:
        return read_plain(path, _MAX_BYTES)
    except OSError as error:
        raise DumpError(f"{path}: the journal cannot be read ({error.strerror}); remove it and begin again") from error


def _records(content: bytes) -> tuple[list[bytes], int]:
    """Return the complete records, and the number of bytes up to the end of the last one."""
    records: list[bytes] = []
    place = 0
    while place + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, place)
        end = place + _LENGTH.size + length
        if end > len(content):
            break
        records.append(content[place + _LENGTH.size : end])
        place = end
    return records, place


def _verdicts(path: Path, records: list[bytes], digest: str) -> dict[str, CallVerdict]:
    """Return the verdicts of the records after the head by entry."""
    try:
        head = msgspec.msgpack.decode(records[0], type=JournalHead) if records else None
        verdicts = [msgspec.msgpack.decode(record, type=CallVerdict) for record in records[1:]]
        for verdict in verdicts:
            _check_findings(verdict)
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DumpError(f"{path}: is not the journal of a check ({error}); remove it and begin again") from error
    if head is None or head.version != VERSION:
        raise DumpError(f"{path}: is not a journal that this release reads; remove it and begin again")
    if head.digest != digest:
        raise CompareError(f"{path}: belongs to another dump, or to other settings; give -o another directory")
    return {verdict.entry: verdict for verdict in verdicts}


def _check_findings(verdict: CallVerdict) -> None:
    """Raise one of several errors if a finding lacks a field of its template; showing it would."""
    for finding in (verdict.reason, *verdict.notes, *(output.reason for output in verdict.outputs)):
        if finding is not None and not finding.text:
            raise ValueError("a finding says nothing")


def _reopened(path: Path) -> IO[bytes]:
    """Open the file for writing, but not what a symbolic link of this name leads to: others may write to the place."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)), "r+b")
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); remove it and begin again") from error
