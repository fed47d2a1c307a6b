"""Comparison of a dump of whole tensors with one of statistics or checksums, which are computed from the tensors.

Missing statistics are computed. Checksums are computed only if the other dump has nothing else, because that requires
reading every tensor, while statistics are in the records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
import polars as pl

from msprobe_core.compare.derived import DerivedDump
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.fingerprint.checksums import crc32, word_text, xor_words
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.place import Place
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.model import RunHeader, Task
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.store.frame import RowKind
from msprobe_core.store.tensor_statistics import statistics_of

Cells: TypeAlias = Mapping[str, float | int | str | None]

_CHUNK = 1 << 18
_MAX_WORKERS = 8
_COUNTED = (*STATISTICS, "num_nan", "num_inf")


def completed(target: Dump, golden: Dump) -> tuple[Dump, Dump]:
    """Return both dumps, completed by values computed from tensors; unchanged if nothing has to be computed."""
    return _completed(target, golden), _completed(golden, target)


def _completed(dump: Dump, other: Dump) -> Dump:
    if dump.header.task != Task.TENSOR.value or other.header.task in {Task.TENSOR.value, Task.STRUCTURE.value}:
        return dump
    if other.frame.select(_has_statistics().any()).item():
        return _with(dump, other, _has_statistics(), _COUNTED, statistics_of, "statistics", dump.header)
    checksum = _checksum_of(other)
    if checksum is None or dump.frame["checksum"].null_count() < dump.frame.height:
        return dump
    header = msgspec.structs.replace(dump.header, summary_mode=other.header.summary_mode)
    return _with(dump, other, pl.col("checksum").is_not_null(), ("checksum",), checksum, "checksums", header)


def _has_statistics() -> pl.Expr:
    is_tensor = pl.col("kind") == RowKind.TENSOR.value
    return is_tensor & pl.any_horizontal(pl.col(name).is_not_null() for name in STATISTICS)


def _with(
    dump: Dump,
    other: Dump,
    has: pl.Expr,
    columns: Sequence[str],
    compute: Callable[[TensorSource], Cells],
    what: str,
    header: RunHeader,
) -> Dump:
    """Return ``dump`` with ``columns`` computed for rows that lack them and that the other dump has."""
    wanted = dump.frame.with_row_index("row").filter(pl.col("file_name").is_not_null() & ~has.fill_null(value=False))
    wanted = wanted.join(other.frame.filter(has), on="key", how="semi").sort("row")
    if not wanted.height:
        return dump
    names = wanted["file_name"].to_list()
    with ThreadPoolExecutor(min(_MAX_WORKERS, os.cpu_count() or 1), "msprobe-compare") as pool:
        try:
            found = list(pool.map(partial(_cells_of, dump, compute), names))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    count = sum(isinstance(each, dict) for each in found)
    notes = [Finding(MadeAlikeCode.COMPUTED, fields={"what": what, "path": str(dump.path), "count": count})]
    failed = [(name, reason) for name, reason in zip(names, found, strict=True) if isinstance(reason, str)]
    if failed:
        first = {"first": failed[0][0], "why": failed[0][1]}
        notes.append(Finding(MadeAlikeCode.NOT_COMPUTED, fields={"what": what, "count": len(failed), **first}))
    schema = {name: dump.frame.schema[name] for name in columns}
    cells = [cells if isinstance(cells, dict) else {} for cells in found]
    computed = pl.DataFrame([[each.get(name) for each in cells] for name in columns], schema=schema)
    computed = computed.with_columns(row=wanted["row"])
    frame = dump.frame.with_row_index("row").join(computed, on="row", how="left", suffix="_computed").sort("row")
    filled = [pl.coalesce(name, f"{name}_computed").alias(name) for name in columns]
    return DerivedDump(dump, frame.with_columns(filled).select(dump.frame.columns), header, notes)


def _cells_of(dump: Dump, compute: Callable[[TensorSource], Cells], file_name: str) -> Cells | str:
    try:
        return dict(compute(dump.open_tensor(file_name)))
    except DumpError as error:
        return str(error)


# --- Checksums --------------------------------------------------------------------------------------------------


def _checksum_of(other: Dump) -> Callable[[TensorSource], Cells] | None:
    """Return the function for a dump's kind of checksums; ``None`` if it has none, or of an unknown kind."""
    first = other.frame["checksum"].drop_nulls().head(1).to_list()
    if not first:
        return None
    mode = other.header.summary_mode
    if mode not in _CHECKSUMS:
        mode = "md5" if len(first[0]) == _CRC_DIGITS else ""
    return _CHECKSUMS.get(mode)


_CRC_DIGITS = 8


def _crc_of(source: TensorSource) -> Cells:
    crc = 0
    for values, _ in _stored_bits(source):
        crc = crc32(values, crc)
    return {"checksum": f"{crc:08x}"}


def _xor_of(source: TensorSource) -> Cells:
    word, rest = 0, np.empty(0, np.uint8)
    for values, _ in _stored_bits(source):
        content = np.concatenate([rest, values.view(np.uint8)])
        whole = content.size // 8 * 8
        word ^= xor_words(content[:whole])
        rest = content[whole:]
    return {"checksum": word_text(word ^ xor_words(rest))}


def _hash_of(source: TensorSource) -> Cells:
    parts = (hash_of(values, place=Place.of_whole(values.shape, begin)) for values, begin in _stored_bits(source))
    return {"checksum": word_text(sum(int(part[0]) for part in parts))}


_CHECKSUMS: dict[str, Callable[[TensorSource], Cells]] = {"md5": _crc_of, "xor": _xor_of, "hash": _hash_of}
"""Checksum functions by ``summary_mode``; see `msprobe_core.plugin.Reducer`."""


def _stored_bits(source: TensorSource) -> Iterator[tuple[Any, int]]:
    """Yield the elements as stored before widening, each vector with the index of its first element.

    Raises:
        DumpError: their stored form cannot be determined from the values.
    """
    begin = 0
    for values in source.chunks(_CHUNK):
        stored: Any = np.ascontiguousarray(values)
        if source.dtype == "bfloat16":
            stored = (stored.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        elif source.dtype != stored.dtype.name:
            raise DumpError(f"checksums of {source.dtype} are not computed here")
        if stored.size:
            yield stored, begin
        begin += stored.size
