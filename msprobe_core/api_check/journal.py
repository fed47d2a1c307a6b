"""Verdicts that are on disk as soon as they are known, so that an interrupted check can be resumed."""

from __future__ import annotations

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
        path: The file; it is continued if it exists.
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
        if path.exists():
            self.verdicts, length = _read(path, digest)
            self._file: IO[bytes] = path.open("r+b")
            self._file.truncate(length)  # the last record of a process that was killed
            self._file.seek(length)
        else:
            self._file = create_file(path)
            self._append(msgspec.msgpack.encode(JournalHead(digest=digest)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

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
            reason = error.strerror or error
            raise StoreError(f"{self._path}: cannot be written ({reason}); free space and run again") from error


def _read(path: Path, digest: str) -> tuple[dict[str, CallVerdict], int]:
    """Return the complete verdicts by entry, and the number of bytes up to the end of the last one."""
    content = read_plain(path, path.stat().st_size)
    records: list[bytes] = []
    place = 0
    while place + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, place)
        end = place + _LENGTH.size + length
        if end > len(content):
            break
        records.append(content[place + _LENGTH.size : end])
        place = end
    try:
        head = msgspec.msgpack.decode(records[0], type=JournalHead) if records else None
        verdicts = [msgspec.msgpack.decode(record, type=CallVerdict) for record in records[1:]]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DumpError(f"{path}: is not the journal of a check ({error}); remove it and begin anew") from error
    if head is None or head.version != VERSION:
        raise DumpError(f"{path}: is not a journal that this release reads; remove it and begin anew")
    if head.digest != digest:
        raise CompareError(f"{path}: belongs to another dump, or to other settings; give -o another directory")
    return {verdict.entry: verdict for verdict in verdicts}, place
