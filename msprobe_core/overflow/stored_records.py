"""The records of some calls, as stored in a dump."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl

from msprobe_core.errors import MsprobeError
from msprobe_core.model import Phase
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import phase_of
from msprobe_core.store.json_reader import decode_record, read_document
from msprobe_core.store.reading import read_dump

_PARTS = {
    Phase.FORWARD: ("input_args", "input_kwargs", "output"),
    Phase.BACKWARD: ("input", "output"),
}


def records_of(directory: Path, entries: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return inputs and outputs of calls by entry; for gradients of parameters, the whole record.

    Args:
        directory: Directory of a rank, or its dump.
        entries: Entries of the calls; missing ones are omitted, and all of them if the dump cannot be read.
    """
    try:
        dump = read_dump(directory)
        return {entry: _parts_of(entry, record) for entry, record in _records(dump, entries)}
    except (MsprobeError, ValueError, KeyError):  # the dump was read before, but may have been removed since
        return {}


def _records(dump: Dump, entries: Collection[str]) -> Iterable[tuple[str, Any]]:
    if dump.path.suffix == ".json":
        data = read_document(dump.path, []).data
        return [(entry, decode_record(data[entry])) for entry in entries if entry in data]
    if dump.path.suffix == ".arrow":
        from msprobe_core.store import arrow_records  # needs pyarrow, an optional library
        from msprobe_core.store.arrow_reader import NEEDED, BatchReader

        reader = BatchReader(dump.path, arrow_records.RECORD_COLUMNS, NEEDED)
        found = arrow_records.records_of(reader, reader.header.run.summary_mode)
        return [(entry, decode_record(msgspec.Raw(record))) for entry, record in found if entry in entries]
    rows = dump.frame.filter(pl.col("entry").is_in(list(entries)))
    return [(str(entry), _flat(own)) for (entry,), own in rows.group_by("entry", maintain_order=True)]


def _flat(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the values of a call of a dump in another format, by role."""
    found: dict[str, list[Any]] = {}
    for row in rows.iter_rows(named=True):
        value = {"dtype": row["dtype"], "shape": row["shape"], "Max": row["max"], "Min": row["min"]}
        found.setdefault(row["role"], []).append(value)
    return found


def _parts_of(entry: str, record: Any) -> dict[str, Any]:
    if not isinstance(record, Mapping):
        return {"output": record}
    fields = cast("Mapping[str, Any]", record)
    parts = _PARTS.get(phase_of(entry))
    if parts is None:
        return {key: value for key, value in fields.items() if key != "execution"}
    return {part: fields[part] for part in parts if part in fields}
