"""The records of some calls, as a dump has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl

from msprobe_core.compare.reading import read_dump
from msprobe_core.errors import MsprobeError
from msprobe_core.model import Phase
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.frame import phase_of
from msprobe_core.store.json_reader import decode_record, read_document

_PARTS = {
    Phase.FORWARD: ("input_args", "input_kwargs", "output"),
    Phase.BACKWARD: ("input", "output"),
}


def records_of(directory: Path, entries: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return inputs and outputs of calls by entry; of gradients of parameters all there is.

    Args:
        directory: Of a rank, or its dump.
        entries: Of the calls; those that the dump does not have are left out, and all of them if it cannot be read.
    """
    try:
        dump = read_dump(directory)
        return {entry: _parts_of(entry, record) for entry, record in _records(dump, entries)}
    except (MsprobeError, ValueError, KeyError):  # it was read before, and may be gone since
        return {}


def _records(dump: Dump, entries: Collection[str]) -> Iterable[tuple[str, Any]]:
    if dump.path.suffix == ".json":
        data = read_document(dump.path, []).data
        return [(entry, decode_record(data[entry])) for entry in entries if entry in data]
    if dump.path.suffix == ".arrow":
        from msprobe_core.store import arrow_records  # needs pyarrow, which few have
        from msprobe_core.store.arrow_reader import NEEDED, BatchReader

        reader = BatchReader(dump.path, arrow_records.RECORD_COLUMNS, NEEDED)
        found = arrow_records.records_of(reader, reader.header.run.summary_mode)
        return [(entry, decode_record(msgspec.Raw(record))) for entry, record in found if entry in entries]
    rows = dump.frame.filter(pl.col("entry").is_in(list(entries)))
    return [(str(entry), _flat(own)) for (entry,), own in rows.group_by("entry", maintain_order=True)]


def _flat(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the values of a call of a dump in another format, side by side."""
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
