"""Many records as columns: what readers make and compare works on."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, cast

import polars as pl

from msprobe_core import names
from msprobe_core.fingerprint.distance import SIZE_BYTES
from msprobe_core.model import Phase, Role
from msprobe_core.store import layout


class RowKind(str, Enum):
    """What a row holds."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    NONE = "none"


COLUMNS: dict[str, Any] = {
    "name": pl.String,  # what reports call the row
    "key": pl.String,  # what rows are matched by
    "entry": pl.String,
    "role": pl.Enum([role.value for role in Role]),
    "phase": pl.Enum([phase.value for phase in Phase]),
    "kind": pl.Enum([kind.value for kind in RowKind]),
    "type": pl.String,  # as the dump has it
    "dtype": pl.String,  # as reports show it
    "shape": pl.String,
    "numel": pl.Int64,
    "requires_grad": pl.Boolean,
    "max": pl.Float64,
    "min": pl.Float64,
    "mean": pl.Float64,
    "norm": pl.Float64,
    "num_nan": pl.Int64,
    "num_inf": pl.Int64,
    "text": pl.String,  # a scalar as it was written; null for tensors
    "exact": pl.String,  # maximum and minimum of integers beyond what float64 holds exactly; null for others
    "checksum": pl.String,
    "sketch": pl.Binary,  # 64 little-endian float32; see msprobe_core.fingerprint.sketch
    "failure": pl.String,  # why the value could not be recorded; null where it was
    "file_name": pl.String,
}
"""Columns of a dump's frame, one row per value, in execution order. Statistics are null where there are none."""

_PARTS: tuple[tuple[str, Role], ...] = (
    ("input_args", Role.INPUT),
    ("input", Role.INPUT),
    ("input_kwargs", Role.INPUT),
    ("parameters", Role.PARAMETERS),
    ("output", Role.OUTPUT),
    ("output_kwargs", Role.OUTPUT),
)
"""Parts of a forward or backward record, in the order of their rows."""

ROLE_OF_PART = dict(_PARTS) | {Phase.PARAMETERS_GRAD.value: Role.PARAMETERS_GRAD}
"""Role of the values in each part; gradients of parameters are a part by themselves."""

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class FrameBuilder:
    """Collects rows; the only place that knows the shape of a record in ``dump.json``."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add_entry(self, entry: str, record: Any) -> None:
        """Append the rows of one entry.

        Raises:
            TypeError, ValueError, KeyError, AttributeError: the record does not have the shape of a record.
        """
        num_rows = len(self._rows)
        try:
            self._add_rows(entry, record)
        except BaseException:
            del self._rows[num_rows:]
            raise

    def _add_rows(self, entry: str, record: Any) -> None:
        phase = _phase_of(entry)
        if phase is Phase.DEBUG:
            self._add_saved(entry, record)
            return
        if phase is Phase.PARAMETERS_GRAD:
            for name, values in record.items():
                if name != "execution" or isinstance(values, list):
                    self._add_gradient(entry, name, values)
            return
        if _is_failure(record):
            self._rows.append((entry, entry, entry, Role.OUTPUT, phase, *_failed_cells(record)))
            return
        num_rows = len(self._rows)
        for part, role in _PARTS:
            values = record.get(part)
            if values:
                for path, leaf in _leaves(values, ""):
                    self._add(entry, phase, role, path, leaf)
        if len(self._rows) == num_rows:
            # A call without values is a call all the same: its row, named like the entry, tells that it was made.
            self._rows.append((entry, entry, entry, Role.OUTPUT, phase, *_NONE_CELLS))

    def build(self) -> pl.DataFrame:
        """Return the frame."""
        # Series by Series: polars takes several times as long when it is handed all of them at once.
        columns = zip(*self._rows, strict=True) if self._rows else [() for _ in COLUMNS]
        return pl.DataFrame(
            [_series(name, column, dtype) for (name, dtype), column in zip(COLUMNS.items(), columns, strict=True)]
        )

    def _add_gradient(self, entry: str, name: str, values: Any) -> None:
        # The list has one element; if a tool ever writes more, they get a number of their own.
        numbered = names.numbered_gradients(entry)
        for path, leaf in _leaves(values, ""):
            place = name + path.removeprefix("0")
            key = names.row_name(numbered, Role.PARAMETERS_GRAD, place)
            self._add(entry, Phase.PARAMETERS_GRAD, Role.PARAMETERS_GRAD, place, leaf, key)

    def _add_saved(self, entry: str, value: Any) -> None:
        for path, leaf in list(_leaves(value, "")) or [("", None)]:
            name = f"{entry}.{path}" if path else entry
            self._rows.append((name, name, entry, Role.OUTPUT, Phase.DEBUG, *_leaf_cells(leaf)))

    def _add(self, entry: str, phase: Phase, role: Role, path: str, leaf: Any, key: str | None = None) -> None:
        name = names.row_name(entry, role, path)
        cells = _leaf_cells(leaf)
        file_name = cells[-1]
        # A file is called like its row; a tensor in a shard like the first row that had these values.
        has_own = isinstance(file_name, str) and layout.shard_member(file_name) is None
        shown = names.row_of_file(str(file_name)) if has_own else name
        # Enum members are strings; their .value is a slow property.
        self._rows.append((shown, key or name, entry, role, phase, *cells))


def leaf_frame(leaves: Sequence[Any]) -> pl.DataFrame:
    """Return the columns from ``kind`` on, one row per leaf of a record.

    Args:
        leaves: As they stand in ``dump.json``, decoded.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: one of them is no leaf.
    """
    columns = list(COLUMNS.items())[-len(_NONE_CELLS) :]
    rows = [_leaf_cells(leaf) for leaf in leaves]
    cells = zip(*rows, strict=True) if rows else [() for _ in columns]
    return pl.DataFrame([_series(name, column, dtype) for (name, dtype), column in zip(columns, cells, strict=True)])


def with_names(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` with ``name`` and ``key``, as `FrameBuilder` names them.

    Args:
        rows: Has ``entry``, ``role``, ``file_name`` and ``path``: its place, null in a call without values.
    """
    entry, path = pl.col("entry"), pl.col("path")
    is_gradient = pl.col("role") == Role.PARAMETERS_GRAD.value
    key = (
        pl.when(path.is_null())
        .then(entry)
        .when(is_gradient)
        .then(pl.concat_str(entry, path, separator="."))
        .otherwise(pl.concat_str(entry, pl.col("role").cast(pl.String), path, separator="."))
    )
    rows = rows.with_columns(key=key)
    if rows["file_name"].null_count() == rows.height:
        return rows.with_columns(name=pl.col("key"))
    files = [file for file in rows["file_name"].unique().drop_nulls() if layout.shard_member(file) is None]
    shown = pl.Series([names.row_of_file(file) for file in files], dtype=pl.String)
    return rows.with_columns(
        name=pl.coalesce(pl.col("file_name").replace_strict(files, shown, default=None), pl.col("key"))
    )


def _series(name: str, column: Sequence[Any], dtype: Any) -> pl.Series:
    try:
        return pl.Series(name, column, dtype=dtype, strict=False)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON allows and text does not
        cleaned = [cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell for cell in column]
        return pl.Series(name, cleaned, dtype=dtype, strict=False)


def _phase_of(entry: str) -> Phase:
    # Not parse_entry: dumps of other tools may hold names outside of the grammar, and they are shown all the same.
    parts = entry.rsplit(".", 2)
    if len(parts) == 3 and parts[1] in _PHASES:
        return _PHASES[parts[1]]
    if parts[-1] == Phase.PARAMETERS_GRAD.value:  # older tools give it no number
        return Phase.PARAMETERS_GRAD
    if names.is_saved(entry):
        return Phase.DEBUG
    return Phase.BACKWARD if parts[-1] == Phase.BACKWARD.value else Phase.FORWARD


_PHASES = {phase.value: phase for phase in Phase if phase is not Phase.DEBUG}


def _leaves(values: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a tree with its dotted path. A leaf is null, or an object that says its type."""
    if isinstance(values, dict):
        tree = cast("dict[str, Any]", values)
        if isinstance(tree.get("type"), str):
            yield path, tree
            return
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(values, list):
        for i, value in enumerate(cast("list[Any]", values)):
            yield from _leaves(value, f"{path}.{i}" if path else str(i))
    else:
        yield path, values


_NONE_CELLS = (RowKind.NONE, *[None] * 17)


def _is_failure(record: Any) -> bool:
    return isinstance(record, dict) and cast("dict[str, Any]", record).get("type") == "error"


def _failed_cells(fields: dict[str, Any]) -> tuple[Any, ...]:
    return (*_NONE_CELLS[:-2], str(fields.get("error")), None)


_LARGEST_EXACT = 2**53
"""Float64 holds all integers up to this one."""


def _leaf_cells(leaf: Any) -> tuple[Any, ...]:
    """Return the cells from ``kind`` on, in the order of `COLUMNS`."""
    if leaf is None:
        return _NONE_CELLS
    if not isinstance(leaf, dict):
        return _scalar_cells(type(leaf).__name__, leaf)
    fields = cast("dict[str, Any]", leaf)
    if _is_failure(fields):
        return _failed_cells(fields)
    if "shape" in fields and "dtype" in fields:
        return _tensor_cells(fields)
    return _scalar_cells(fields["type"], _scalar_value(fields))


def _tensor_cells(fields: dict[str, Any]) -> tuple[Any, ...]:
    numel = 1
    shape = fields["shape"]
    if not isinstance(shape, list):
        raise ValueError(f"its shape is {shape!r}")  # noqa: TRY004  # a value in a file, not an argument
    for size in cast("list[int]", shape):
        numel *= size
    get = fields.get
    return (
        RowKind.TENSOR,
        get("type"),
        str(fields["dtype"]),
        str(cast("list[int]", shape)),
        numel,
        get("requires_grad"),
        _number(get("Max")),
        _number(get("Min")),
        _number(get("Mean")),
        _number(get("Norm")),
        get("num_nan"),
        get("num_inf"),
        None,
        _exact_text(get("Max"), get("Min")),
        get("md5"),
        None if (sketch := get("sketch")) is None else _sketch_bytes(sketch),
        get("error"),
        file_name if isinstance(file_name := get("data_name"), str) else None,  # other tools write -1 for no file
    )


def _sketch_bytes(text: Any) -> bytes:
    sketch = base64.b64decode(text, validate=True)  # of anything else a ValueError or TypeError
    if len(sketch) != SIZE_BYTES:
        raise ValueError(f"its sketch has {len(sketch)} bytes")
    return sketch


def _exact_text(*values: Any) -> str | None:
    if any(isinstance(value, int) and abs(value) > _LARGEST_EXACT for value in values):
        return " and ".join(map(str, values))
    return None


def _scalar_value(fields: dict[str, Any]) -> Any:
    if "value" in fields:
        return fields["value"]
    if "group_ranks" in fields:
        return fields["group_ranks"]
    return {key: value for key, value in fields.items() if key != "type"}


def _scalar_cells(kind: str, value: Any) -> tuple[Any, ...]:
    number = _number(value) if kind in _NUMERIC or isinstance(value, int | float) else None
    dtype = f"<class '{kind}'>" if kind in _PYTHON else "<class 'str'>" if isinstance(value, str) else kind
    text = str(number) if kind == "float" and isinstance(value, str) else str(value)  # "Infinity" is inf to Python
    return (
        RowKind.SCALAR, kind, dtype, "[]", None, None, number, number, number, number, None, None, text, None, None,
        None, None, None,
    )  # fmt: skip


_NUMERIC = frozenset({"int", "float", "bool"})
_PYTHON = _NUMERIC | {"str", "slice"}


def _number(value: Any) -> float | None:
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return _NOT_FINITE.get(value) if isinstance(value, str) else None
