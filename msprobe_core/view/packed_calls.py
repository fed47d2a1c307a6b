"""Serialise the calls of a unit, to pass them from the process that compared it to the one that builds the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import cast

import msgspec
import polars as pl

from msprobe_core.compare.result import UnitResult
from msprobe_core.findings import Finding, noted
from msprobe_core.store.ending import ending_of, sentence
from msprobe_core.store.reading import read_dump
from msprobe_core.untrusted.paths import all_shown
from msprobe_core.view.calls import Calls, calls_of_dump, calls_of_pair
from msprobe_core.view.unit_tasks import UnitTask


@dataclass(frozen=True)
class UnitCalls:
    """The calls of one unit, notes about it, and findings if its dump ended early or is damaged."""

    calls: Calls
    notes: Sequence[Finding]
    incomplete: Sequence[Finding] = ()


def packed_dump(task: UnitTask) -> bytes:
    """Read one dump, and return its calls as bytes.

    Raises:
        CompareError: no reader recognises it.
        DumpError: it cannot be read.
    """
    dump = read_dump(task.target)
    ending, notes = ending_of(dump), list(map(noted, dump.notes))
    return packed(UnitCalls(calls_of_dump(dump), notes, [] if ending.is_whole else [sentence(dump.path, ending)]))


def packed_pair(unit: UnitResult) -> bytes:
    """Return the calls of two dumps as bytes, without what ended early: the search for the divergence reports that."""
    return packed(UnitCalls(calls_of_pair(unit), [*unit.note_findings, *(each.finding for each in unit.replicas)]))


def packed(unit: UnitCalls) -> bytes:
    """Return a unit's calls as bytes: compressed frames in Arrow's format, and MessagePack."""
    try:
        return msgspec.msgpack.encode(unit, enc_hook=_encoded)
    except UnicodeEncodeError:  # a note names a file whose name is not UTF-8
        content = msgspec.to_builtins(unit, enc_hook=_encoded, builtin_types=(bytes,))
        return msgspec.msgpack.encode(all_shown(content))


def unpacked(content: bytes) -> UnitCalls:
    """Undo `packed`."""
    return msgspec.msgpack.decode(content, type=UnitCalls, dec_hook=_decoded)


def _encoded(value: object) -> bytes:
    buffer = BytesIO()
    cast("pl.DataFrame", value).write_ipc(buffer, compression="lz4")
    return buffer.getvalue()


def _decoded(kind: type[object], value: bytes) -> object:
    assert kind is pl.DataFrame
    return pl.read_ipc(value)
