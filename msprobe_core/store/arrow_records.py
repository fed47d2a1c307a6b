"""Convert records of ``dump.json`` to rows of ``dump.arrow`` and back, without loss.

A row has what a reader needs. Everything else that is needed to restore the record from its rows is in one more column:
``record``, JSON text on an entry's first row. Its ``tree`` is the record with each value replaced by its row number;
its ``rest`` has the parts without rows. Files that were recorded in this format lack the column; the nesting of lists
and objects is then inferred from the positions of the values.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from msprobe_core.model import Phase
from msprobe_core.store.arrow_columns import DUMP_COLUMNS, Cell, PyArrow, to_small_batch
from msprobe_core.store.frame import PARTS, check_leaf, is_failure, is_leaf, phase_of
from msprobe_core.store.json_reader import without_surrogates
from msprobe_core.store.json_records import LARGEST_EXACT
from msprobe_core.store.json_writer import finite_number, json_number
from msprobe_core.untrusted.json_text import check_nesting

RECORD = "record"
RECORD_COLUMNS = DUMP_COLUMNS | {RECORD: Cell.TEXT}
"""Columns of a file that was converted from a ``dump.json``."""

_NUMBERS = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "norm"}
_COUNTS = ("num_nan", "num_inf")
_TEXTS = {"md5": "checksum", "data_name": "file_name"}
_EXECUTION = {"sequence", "micro_step", "recompute"}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LISTS = ("input_args", "input", "output")
_NAMES_OF_PARTS = tuple(part for part, _ in PARTS)

_encode = msgspec.json.Encoder().encode


class _Place(NamedTuple):
    """Position of a value in its record; both fields are ``None`` for a record without values."""

    part: str | None
    path: str | None


# --- records to rows ----------------------------------------------------------------------------------------------


class RecordRows:
    """The rows of some records, in order."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, entry: str, record: Any) -> None:
        """Append the rows of one record.

        Raises:
            TypeError, ValueError, KeyError, AttributeError, RecursionError: it does not have the structure of a record.
        """
        check_nesting(record)
        found: list[tuple[_Place, Any]] = []
        phase = phase_of(entry)
        tree, rest = _take_apart(phase, record, found)
        execution = rest.get("execution")
        sequence, micro_step, recompute = _columns_of(execution)
        if sequence is not None:
            del rest["execution"]
        if not found and phase is Phase.PARAMETERS_GRAD:
            return  # a frame has no row for it either
        if not found:
            found.append((_Place(None, None), None))
        text: str | None = _text({"tree": tree, "rest": rest})
        name = without_surrogates(entry)
        rows: list[tuple[Any, ...]] = []
        for place, leaf in found:
            check_leaf(leaf)
            cells = _cells_of(leaf)
            part, path = place if place.path is None else (place.part, without_surrogates(place.path))
            rows.append((name, phase.value, sequence, micro_step, recompute, part, path, *cells, text))
            text = None
        self._rows += rows

    def to_batch(self) -> PyArrow:
        """Return the rows as a ``pyarrow.RecordBatch``."""
        return to_small_batch(RECORD_COLUMNS, list(zip(*self._rows, strict=True)))


def _take_apart(phase: Phase, record: Any, found: list[tuple[_Place, Any]]) -> tuple[Any, dict[str, Any]]:
    """Return the tree and the rest of a record, and append its values to ``found``."""
    if is_failure(record):
        rest = {name: value for name, value in record.items() if name == "execution"}
        found.append((_Place(None, None), {name: value for name, value in record.items() if name not in rest}))
        return 0, rest
    tree: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    if phase is Phase.PARAMETERS_GRAD:
        for name, values in record.items():
            if name == "execution" and not isinstance(values, list):
                rest[name] = values
                continue
            first = len(found)
            tree[name] = _numbered(values, "", None, found)
            found[first:] = [
                (_Place(phase.value, name + (place.path or "").removeprefix("0")), leaf)
                for place, leaf in found[first:]
            ]
        return tree, rest
    for part in _NAMES_OF_PARTS:
        if values := record.get(part):
            tree[part] = _numbered(values, "", part, found)
    rest = {name: value for name, value in record.items() if name not in tree}
    return tree, rest


def _numbered(value: Any, path: str, part: str | None, found: list[tuple[_Place, Any]]) -> Any:
    if isinstance(value, dict) and not is_leaf(members := cast("dict[str, Any]", value)):
        return {key: _numbered(item, f"{path}.{key}" if path else key, part, found) for key, item in members.items()}
    if isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
        return [_numbered(item, f"{path}.{i}" if path else str(i), part, found) for i, item in items]
    found.append((_Place(part, path), cast("Any", value)))
    return len(found) - 1


def _columns_of(execution: Any) -> tuple[int | None, int | None, int | None]:
    """Return the cells for the execution fields; three times ``None`` if there are other fields."""
    if not isinstance(execution, dict) or not execution or not set(cast("dict[str, Any]", execution)) <= _EXECUTION:
        return None, None, None
    fields = cast("dict[str, Any]", execution)
    sequence, micro_step = fields.get("sequence"), fields.get("micro_step")
    if not _is_count(sequence) or not (micro_step is None or (_is_count(micro_step) and micro_step)):
        return None, None, None
    recompute = fields.get("recompute")
    if recompute not in {None, True} or (recompute is None and "recompute" in fields):
        return None, None, None
    return sequence, micro_step, 1 if recompute else None


def _cells_of(leaf: Any) -> tuple[Any, ...]:
    """Return the cells from ``value`` on; fields that do not fit their column stay in the text of ``value``."""
    if leaf is None:
        return (None,) * 11
    if not (isinstance(leaf, dict) and "shape" in leaf and "dtype" in leaf and not is_failure(leaf)):
        return (_text(leaf), *(None,) * 10)
    rest = dict(cast("dict[str, Any]", leaf))
    cells: dict[str, Any] = {}
    # If float64 cannot represent an extreme, both extremes stay there: a reader shows them together.
    are_exact = all(type(rest.get(name)) is not int or abs(rest[name]) <= LARGEST_EXACT for name in ("Max", "Min"))
    for name, column in _NUMBERS.items() if are_exact else ():
        if (number := _as_number(rest.get(name))) is not None:
            cells[column] = number
            del rest[name]
    for name in _COUNTS:
        if _is_count(rest.get(name)):
            cells[name] = rest.pop(name)
    for name, column in _TEXTS.items():
        if isinstance(rest.get(name), str):
            cells[column] = without_surrogates(rest.pop(name))
    if isinstance(sketch := rest.get("sketch"), str):
        cells["sketch"] = base64.b64decode(sketch, validate=True)
        del rest["sketch"]
    names = ("max", "min", "mean", "norm", *_COUNTS, "exact", "checksum", "sketch", "file_name")
    return (_text(rest), *(cells.get(name) for name in names))


def _as_number(value: Any) -> float | None:
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, float):
        return value
    return float(value) if type(value) is int and abs(value) <= LARGEST_EXACT else None


def _is_count(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _strict(value: Any) -> Any:
    """Return a JSON value without NaN, infinities and half surrogate pairs."""
    if isinstance(value, float):
        return finite_number(value)
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {without_surrogates(key): _strict(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_strict(item) for item in cast("list[Any]", value)]
    return value


def _text(value: Any) -> str:
    value = _strict(value)
    try:
        return _encode(value).decode()
    except (OverflowError, msgspec.EncodeError):  # an integer of more than 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- rows to records ----------------------------------------------------------------------------------------------


def records_of(batches: Iterable[PyArrow], summary_mode: str) -> Iterator[tuple[str, bytes]]:
    """Yield entry and record, as JSON, for each entry of some record batches.

    Args:
        batches: Checked batches of a ``dump.arrow``; entries may continue across the end of a batch.
        summary_mode: From its header.

    Raises:
        ValueError, KeyError: a row is not valid for a dump.
    """
    has_statistics = summary_mode not in _WITHOUT_STATISTICS
    pending: list[Mapping[str, Any]] = []
    for batch in batches:
        for row in batch.to_pylist():
            if pending and row["entry"] != pending[0]["entry"]:
                yield _made(pending, has_statistics=has_statistics)
                pending = []
            pending.append(row)
    if pending:
        yield _made(pending, has_statistics=has_statistics)


_WITHOUT_STATISTICS = {"xor", "hash"}


def _made(rows: Sequence[Mapping[str, Any]], *, has_statistics: bool) -> tuple[str, bytes]:
    entry, phase = rows[0]["entry"], Phase(rows[0]["phase"])
    text = rows[0].get(RECORD)
    leaves = [_leaf_of(row, has_all=has_statistics and text is None) for row in rows]
    if text is not None:
        skeleton = msgspec.json.decode(text, type=_Skeleton)
        record = _filled(skeleton.tree, leaves) | skeleton.rest
    else:
        record = _nested(phase, rows, leaves)
    if (sequence := rows[0].get("sequence")) is not None:
        execution: dict[str, Any] = {"sequence": sequence}
        if micro_step := rows[0].get("micro_step"):
            execution["micro_step"] = micro_step
        if rows[0].get("recompute"):
            execution["recompute"] = True
        record.setdefault("execution", execution)
    return entry, _encode(_numeric(record))


def _numeric(value: Any) -> Any:
    """Return a JSON value with its numbers as `json_number` writes them, also those in a column of texts."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        kind, text = fields.get("type"), fields.get("value")
        if isinstance(kind, str) and kind != "str" and isinstance(text, str) and text in _NOT_FINITE:
            return {**fields, "value": json_number(_NOT_FINITE[text])}
        return {without_surrogates(key): _numeric(item) for key, item in fields.items()}
    if isinstance(value, list):
        return [_numeric(item) for item in cast("list[Any]", value)]
    return without_surrogates(value) if isinstance(value, str) else json_number(value)


class _Skeleton(msgspec.Struct):
    tree: Any
    rest: dict[str, Any]


def _filled(tree: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _filled(item, leaves) for key, item in cast("dict[str, Any]", tree).items()}
    if isinstance(tree, list):
        return [_filled(item, leaves) for item in cast("list[Any]", tree)]
    return leaves[tree]


def _leaf_of(row: Mapping[str, Any], *, has_all: bool) -> Any:
    if row["value"] is None:
        return None
    base: Any = msgspec.json.decode(row["value"])
    if not isinstance(base, dict) or "shape" not in base:
        return cast("Any", base)
    fields = cast("dict[str, Any]", base)
    leaf = {name: fields.pop(name) for name in ("type", "dtype", "shape") if name in fields}
    exact = _exact_of(row)
    for name, column in _NUMBERS.items():
        number = exact.get(name, row.get(column))
        if number is not None or (has_all and name not in fields):
            leaf[name] = number
    leaf |= fields
    leaf |= {name: row[name] for name in _COUNTS if row.get(name) is not None}
    leaf |= {name: row[column] for name, column in _TEXTS.items() if row.get(column) is not None}
    if row.get("sketch") is not None:
        leaf["sketch"] = base64.b64encode(row["sketch"]).decode()
    return leaf


def _exact_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Return extremes that float64 cannot represent; empty if it can."""
    high, _, low = (row.get("exact") or "").partition(" and ")
    try:
        return {"Max": int(high), "Min": int(low)}
    except ValueError:
        return {}


def _nested(phase: Phase, rows: Sequence[Mapping[str, Any]], leaves: Sequence[Any]) -> dict[str, Any]:
    """Return a record whose values have the same rows, inferred from the positions of the values."""
    parts: dict[str, dict[str, Any]] = {}
    for row, leaf in zip(rows, leaves, strict=True):
        if row["part"] is not None and row["path"] is not None:
            parts.setdefault(row["part"], {})[row["path"]] = leaf
        elif is_failure(leaf):
            return dict(leaf)
    if phase is Phase.PARAMETERS_GRAD:
        return {path: [leaf] for part in parts.values() for path, leaf in part.items()}
    return {part: _nested_part(part, values) for part, values in parts.items()}


def _nested_part(part: str, values: Mapping[str, Any]) -> Any:
    tree: dict[str, Any] = {}
    for path, leaf in values.items():
        *keys, last = path.split(".")
        place = tree
        for key in keys:
            place = place.setdefault(key, _Inner())
            if type(place) is not _Inner:
                return dict(values)  # a name that contains dots: keep it flat, which reads the same
        if last in place:
            return dict(values)
        place[last] = leaf
    return _with_lists(tree, may_be_list=part in _LISTS)


class _Inner(dict[str, Any]):
    """An object that is not a value itself."""


def _with_lists(tree: dict[str, Any], *, may_be_list: bool = True) -> Any:
    made = {key: _with_lists(item) if type(item) is _Inner else item for key, item in tree.items()}
    if may_be_list and list(made) == [str(i) for i in range(len(made))]:
        return list(made.values())
    return made
