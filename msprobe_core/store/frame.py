"""Many records as columns: the data structure that readers build and compare works on."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Any, cast

import msgspec
import polars as pl
from msgspec import UNSET

from msprobe_core import names
from msprobe_core.fingerprint.distance import SIZE_BYTES
from msprobe_core.model import Fp8Stats, Phase, Role
from msprobe_core.store import layout
from msprobe_core.store.json_records import Call, Leaf, Part, decode_call, decode_gradients, exact_text
from msprobe_core.store.stored_rows import Rows, RowsBuilder, frame_of
from msprobe_core.untrusted.files import most_unfolded
from msprobe_core.untrusted.json_text import MAX_NESTING, check_nesting, too_deep
from msprobe_core.untrusted.malformed import MalformedError


class RowKind(str, Enum):
    """Kind of a row."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    NONE = "none"


COLUMNS: dict[str, Any] = {
    "name": pl.String,  # name of the row in reports
    "key": pl.String,  # key for matching rows
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
    "fp8": pl.String,  # as JSON: the fields of msprobe_core.model.Fp8Stats
    "extra": pl.String,  # values of the statistics that plugins offer, as JSON: by name, numbers or null
    "distribution": pl.String,  # of a part, as JSON: device_mesh, placements, …; see msprobe_core.model.Distribution
    "failure": pl.String,  # why the value could not be recorded; null where it was
    "file_name": pl.String,
}
"""Columns of a dump's frame, one row per value, in execution order. Statistics are null where there are none."""

VALUE_COLUMNS = (
    "max", "min", "mean", "norm", "num_nan", "num_inf", "exact", "checksum", "sketch", "fp8", "extra", "file_name",
)  # fmt: skip
"""Columns that depend on the values of a tensor."""

_CELLS = dict(list(COLUMNS.items())[list(COLUMNS).index("kind") :])
"""Columns that come from the value; the others give its position."""

PARTS: tuple[tuple[str, Role], ...] = (
    ("input_args", Role.INPUT),
    ("input", Role.INPUT),
    ("input_kwargs", Role.INPUT),
    ("parameters", Role.PARAMETERS),
    ("output", Role.OUTPUT),
    ("output_kwargs", Role.OUTPUT),
)
"""Parts of a forward or backward record, in the order of their rows."""

ROLE_OF_PART = dict(PARTS) | {Phase.PARAMETERS_GRAD.value: Role.PARAMETERS_GRAD}
"""Role of the values in each part; gradients of parameters are a part by themselves."""

_BATCH_ROWS = 16_384
"""Maximum number of rows held as Python objects; columns take a tenth of that memory."""

_NOT_FINITE = {
    sign + word: float(sign + word) for sign in ("", "+", "-") for word in ("nan", "inf", "infinity")
}  # fmt: skip
"""Lower-case spellings of NaN and infinities. JSON has no such numbers, and tools spell them differently."""


class FrameBuilder:
    """Collects rows; the only place that knows the meaning of records of ``dump.json``."""

    def __init__(self, num_bytes: int | None = None, *, part_rows: int | None = None) -> None:
        """Begin with no rows.

        Args:
            num_bytes: Length of the file with the records, which bounds the total length of the rows' names; ``None``
                if they are trusted.
            part_rows: Number of rows from which they are written to files; ``None`` keeps all in memory.
        """
        self._names: list[str] = []
        self._keys: list[str] = []
        self._entries: list[str] = []
        self._roles: list[Role] = []
        self._phases: list[Phase] = []
        self._cells: list[Leaf | tuple[Any, ...]] = []
        self._text_left: float = math.inf if num_bytes is None else most_unfolded(num_bytes)
        self._batches: list[pl.DataFrame] = []
        self._part_rows: float = math.inf if part_rows is None else part_rows
        self._parts: RowsBuilder | None = None

    def add_json(self, entry: str, content: bytes | msgspec.Raw) -> None:
        """Append the rows of one entry whose record is still JSON.

        Raises:
            msgspec.MsgspecError, UnicodeDecodeError, RecursionError: it is not valid JSON; see `add_entry`.
            TypeError, ValueError, KeyError, AttributeError: see `add_entry`.
        """
        self._make_room()
        num_rows = len(self._cells)
        phase = phase_of(entry)
        try:
            if phase is Phase.PARAMETERS_GRAD:
                self._add_gradients(entry, decode_gradients(content))
                return
            if phase is not Phase.DEBUG:
                self._add_call(entry, phase, decode_call(content))
                return
        except (_UnusualError, TypeError, ValueError, KeyError, AttributeError, RecursionError):
            self._forget(num_rows)  # most errors of msgspec are ValueErrors
        self.add_entry(entry, msgspec.json.decode(content))

    def add_entry(self, entry: str, record: Any) -> None:
        """Append the rows of one entry.

        Raises:
            TypeError, ValueError, KeyError, AttributeError: the record does not have the structure of a record.
        """
        self._make_room()
        num_rows = len(self._cells)
        check_nesting(record)
        try:
            self._add_rows(entry, record)
        except BaseException:
            self._forget(num_rows)
            raise

    def build(self) -> pl.DataFrame:
        """Return the frame and empty the builder."""
        return frame_of(self.rows())

    def rows(self, *, has_whole_entries: bool = False) -> Rows:
        """Return the rows and empty the builder.

        Args:
            has_whole_entries: Whether no entry was added twice.
        """
        if self._parts is None:
            return self._pop_part()
        parts, self._parts = self._parts, None
        if self._batches or self._cells:
            parts.add(self._pop_part())
        return parts.rows(has_whole_entries=has_whole_entries)

    def _pop_part(self) -> pl.DataFrame:
        if not self._batches:
            return self._pop_batch()
        batches = [*self._batches, *([self._pop_batch()] if self._cells else [])]
        self._batches.clear()
        # Column by column, so that at most one column exists twice.
        frame = pl.DataFrame([_joined([batch.drop_in_place(name) for batch in batches]) for name in COLUMNS])
        return _with_shared_names(frame)

    def _make_room(self) -> None:
        if len(self._cells) < _BATCH_ROWS:
            return
        self._batches.append(self._pop_batch())
        if sum(batch.height for batch in self._batches) > self._part_rows:
            self._parts = self._parts or RowsBuilder()
            self._parts.add(self._pop_part())

    def _pop_batch(self) -> pl.DataFrame:
        # Series by Series: polars is several times slower with all of them at once.
        places = (self._names, self._keys, self._entries, self._roles, self._phases)
        columns = zip(COLUMNS.items(), places, strict=False)
        rows = pl.DataFrame([_series(name, column, dtype) for (name, dtype), column in columns])
        batch = _with_shared_names(rows.hstack(_frame_of_cells(self._cells)))
        self._forget(0)
        return batch

    def _forget(self, num_rows: int) -> None:
        for column in (self._names, self._keys, self._entries, self._roles, self._phases, self._cells):
            del column[num_rows:]

    def _add_rows(self, entry: str, record: Any) -> None:
        phase = phase_of(entry)
        if phase is Phase.DEBUG:
            self._add_saved(entry, record)
        elif phase is Phase.PARAMETERS_GRAD:
            self._add_gradients(entry, record)
        elif is_failure(record):
            self._append(entry, entry, entry, Role.OUTPUT, phase, _failed_cells(record))
        else:
            num_rows = len(self._cells)
            for part, role in PARTS:
                if values := record.get(part):
                    for path, leaf in self._leaves(entry, values, "", 1):
                        self._add(entry, phase, role, path, leaf)
            self._add_empty_call(entry, phase, num_rows)

    def _add_call(self, entry: str, phase: Phase, call: Call) -> None:
        """Append the rows of a record with the usual structure, of which there may be a million."""
        if call.type is not UNSET:
            raise _UnusualError
        num_rows = len(self._cells)
        if call.input_args:
            self._add_part(entry, Role.INPUT, call.input_args)
        if call.input:
            self._add_part(entry, Role.INPUT, call.input)
        if call.input_kwargs:
            self._add_part(entry, Role.INPUT, call.input_kwargs)
        if call.parameters:
            self._add_part(entry, Role.PARAMETERS, call.parameters)
        if call.output:
            self._add_part(entry, Role.OUTPUT, call.output)
        if call.output_kwargs:
            self._add_part(entry, Role.OUTPUT, call.output_kwargs)
        self._entries += [entry] * (len(self._cells) - num_rows)
        self._phases += [phase] * (len(self._cells) - num_rows)
        self._add_empty_call(entry, phase, num_rows)

    def _add_part(self, entry: str, role: Role, values: Part) -> None:
        """Append the rows of a part, except for the columns that all parts of the call share."""
        add_name, add_key, add_cells = self._names.append, self._keys.append, self._cells.append
        num_rows = len(self._cells)
        stem = names.row_name(entry, role, "")
        self._check_text(len(stem) * len(values))
        self._text_left -= len(stem) * len(values)
        for place, leaf in values.items() if isinstance(values, dict) else enumerate(values):
            if type(leaf) is Leaf:
                key = f"{stem}{place}"
                add_cells(_usual_cells(leaf))
                add_key(key)
                add_name(key if leaf.data_name is None else _shown(leaf.data_name) or key)
            else:
                for path, inner in self._leaves(entry, leaf, str(place), 2):
                    cells = _leaf_cells(inner)
                    add_cells(cells)
                    add_key(stem + path)
                    add_name(_shown(_file_name(cells)) or stem + path)
        self._roles += [role] * (len(self._cells) - num_rows)

    def _add_empty_call(self, entry: str, phase: Phase, num_rows: int) -> None:
        """Append a row for a call without rows. It has the entry's name, so that the call itself is visible."""
        if len(self._cells) == num_rows:
            self._append(entry, entry, entry, Role.OUTPUT, phase, _NONE_CELLS)

    def _add_gradients(self, entry: str, record: Any) -> None:
        for name, values in record.items():
            if name != "execution" or isinstance(values, list):
                self._add_gradient(entry, name, values)

    def _add_gradient(self, entry: str, name: str, values: Any) -> None:
        # The list has one element; if a tool ever writes more, each gets its own number.
        numbered = names.numbered_gradients(entry)
        for path, leaf in self._leaves(entry + name, values, "", 1):
            place = name + path.removeprefix("0")
            key = names.row_name(numbered, Role.PARAMETERS_GRAD, place)
            self._add(entry, Phase.PARAMETERS_GRAD, Role.PARAMETERS_GRAD, place, leaf, key)

    def _add_saved(self, entry: str, value: Any) -> None:
        for path, leaf in list(self._leaves(entry, value, "", 0)) or [("", None)]:
            name = f"{entry}.{path}" if path else entry
            self._append(name, name, entry, Role.OUTPUT, Phase.DEBUG, _leaf_cells(leaf))

    def _leaves(self, entry: str, values: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield every leaf of a tree with its dotted path; ``depth``: lists and objects of the record around it.

        A leaf is null, or an object with a type.
        """
        length = len(entry) + len(path)
        self._text_left -= length
        if isinstance(values, dict | list):
            tree = cast("dict[str, Any] | list[Any]", values)
            if depth >= MAX_NESTING:
                raise too_deep()
            self._check_text(length * len(tree))
            if isinstance(tree, dict) and is_leaf(tree):
                yield path, tree
                return
            for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
                yield from self._leaves(entry, value, f"{path}.{key}" if path else str(key), depth + 1)
        else:
            yield path, values

    def _check_text(self, num_chars: int) -> None:
        """Raise if the total length of names exceeds what a file of this size can have: each row has its full name."""
        if num_chars > self._text_left:
            raise MalformedError("the names of its values are longer than those of a file of its length should be")

    def _add(self, entry: str, phase: Phase, role: Role, path: str, leaf: Any, key: str | None = None) -> None:
        name = names.row_name(entry, role, path)
        cells = _leaf_cells(leaf)
        self._append(_shown(_file_name(cells)) or name, key or name, entry, role, phase, cells)

    def _append(self, name: str, key: str, entry: str, role: Role, phase: Phase, cells: Leaf | tuple[Any, ...]) -> None:
        # Enum members are strings; their .value is a slow property.
        self._names.append(name)
        self._keys.append(key)
        self._entries.append(entry)
        self._roles.append(role)
        self._phases.append(phase)
        self._cells.append(cells)


class _UnusualError(Exception):
    """A record does not have the usual structure and must be decoded without expectations."""


def _file_name(cells: Leaf | tuple[Any, ...]) -> Any:
    return cells.data_name if isinstance(cells, Leaf) else cells[-1]


def _shown(file_name: Any) -> str | None:
    """Return the row name of a tensor with its own file, which has the same name; ``None`` for others.

    A tensor in a shard may have the name of another tensor that had these values first.
    """
    if isinstance(file_name, str) and layout.shard_member(file_name) is None:
        return names.row_of_file(file_name)
    return None


def leaf_frame(leaves: Sequence[Any]) -> pl.DataFrame:
    """Return the columns from ``kind`` on, one row per leaf of a record.

    Args:
        leaves: Decoded, as in ``dump.json``.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: one of them is not a leaf.
    """
    return _frame_of_cells([_leaf_cells(leaf) for leaf in leaves])


def _frame_of_cells(cells: Sequence[Leaf | tuple[Any, ...]]) -> pl.DataFrame:
    tensors = [cell for cell in cells if isinstance(cell, Leaf)]
    if len(tensors) == len(cells):
        return _frame_of_tensors(tensors)
    others = _frame_of_tuples([cell for cell in cells if not isinstance(cell, Leaf)])
    if not tensors:
        return others
    next_tensor, next_other = count(), count(len(tensors))
    number = pl.Series([next(next_tensor if isinstance(cell, Leaf) else next_other) for cell in cells])
    return pl.concat([_frame_of_tensors(tensors), others])[number]


def _frame_of_tuples(rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    columns = zip(_CELLS.items(), zip(*rows, strict=True), strict=True)
    return pl.DataFrame([_series(name, column, dtype) for (name, dtype), column in columns])


def _frame_of_tensors(leaves: Sequence[Leaf]) -> pl.DataFrame:
    """Return the columns from ``kind`` on; built column by column, which takes a fraction of the time of rows."""
    shapes = {shape: _shape_cells(shape) for shape in {leaf.shape for leaf in leaves if leaf.shape is not UNSET}}
    shape_cells = [shapes[leaf.shape] for leaf in leaves if leaf.shape is not UNSET]
    extremes = [leaf.high for leaf in leaves], [leaf.low for leaf in leaves]
    has_integers = any(int in set(map(type, column)) for column in extremes)
    columns: dict[str, Sequence[Any]] = {
        "type": [leaf.type for leaf in leaves],
        "dtype": [leaf.dtype for leaf in leaves],
        "shape": [text for text, _ in shape_cells],
        "numel": [numel for _, numel in shape_cells],
        "requires_grad": [leaf.requires_grad for leaf in leaves],
        "max": _numbers(extremes[0]),
        "min": _numbers(extremes[1]),
        "mean": _numbers([leaf.mean for leaf in leaves]),
        "norm": _numbers([leaf.norm for leaf in leaves]),
        "num_nan": [leaf.num_nan for leaf in leaves],
        "num_inf": [leaf.num_inf for leaf in leaves],
        "exact": [exact_text(*pair) for pair in zip(*extremes, strict=True)] if has_integers else (),
        "checksum": [leaf.checksum for leaf in leaves],
        "sketch": [leaf.sketch for leaf in leaves],
        "fp8": [None if leaf.fp8 is None else _fp8_text(leaf.fp8) for leaf in leaves],
        "extra": [None if leaf.extra is None else _extra_text(leaf.extra) for leaf in leaves],
        "failure": [leaf.error for leaf in leaves],
        "file_name": [leaf.data_name if isinstance(leaf.data_name, str) else None for leaf in leaves],
    }
    series: list[pl.Series] = []
    for name, dtype in _CELLS.items():
        if column := columns.get(name):
            series.append(_series(name, column, dtype))
        else:
            value = RowKind.TENSOR if name == "kind" else None
            series.append(_series(name, [value] * len(leaves), dtype))
    return pl.DataFrame(series)


def _numbers(values: Sequence[Any]) -> Sequence[float | None]:
    if set(map(type, values)) <= {float, type(None)}:
        return values
    return [_number(value) for value in values]


def sizes_in(shape: str) -> tuple[int, ...]:
    """Return the sizes in a text of the column ``shape``; what is no size, as in a damaged file, is left out."""
    return tuple(int(size) for size in shape.strip("[]").split(",") if size.strip().isdecimal())


def _shape_cells(shape: Sequence[Any]) -> tuple[str, int | None]:
    """Return a shape as text, and the number of elements; ``None`` for a shape that no tensor can have."""
    if any(type(size) is not int for size in shape):
        raise ValueError("its shape has sizes that are no integers")
    # The product of many sizes takes quadratic time.
    numel = math.prod(shape) if len(shape) <= _MAX_DIMS else -1
    return str(list(shape)), numel if 0 <= numel < 2**63 else None


_MAX_DIMS = 64
"""The maximum of NumPy 2 and of PyTorch."""


def with_names(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` with ``name`` and ``key``, as `FrameBuilder` names them.

    Args:
        rows: Has ``entry``, ``role``, ``file_name`` and ``path``, which is null for a call without values.
    """
    entry, path = pl.col("entry"), pl.col("path")
    is_gradient = pl.col("role") == Role.PARAMETERS_GRAD.value

    def joined(entry: pl.Expr) -> pl.Expr:
        return (
            pl.when(path.is_null())
            .then(entry)
            .when(is_gradient)
            .then(pl.concat_str(entry, path, separator="."))
            .otherwise(pl.concat_str(entry, pl.col("role").cast(pl.String), path, separator="."))
        )

    lacks_number = is_gradient & entry.str.ends_with(f".{Phase.PARAMETERS_GRAD.value}")
    rows = rows.with_columns(name=joined(entry))
    if rows.select(lacks_number.any()).item():
        rows = rows.with_columns(key=joined(pl.when(lacks_number).then(entry + ".0").otherwise(entry)))
    else:
        rows = rows.with_columns(key=pl.col("name"))
    if rows["file_name"].null_count() == rows.height:
        return rows
    files = [file for file in rows["file_name"].unique().drop_nulls() if layout.shard_member(file) is None]
    shown = pl.Series([names.row_of_file(file) for file in files], dtype=pl.String)
    return rows.with_columns(
        name=pl.coalesce(pl.col("file_name").replace_strict(files, shown, default=None), pl.col("name"))
    )


_REPEATED = frozenset({"entry", "type", "dtype", "shape"})
"""Columns of few texts that many rows share."""


def _with_shared_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose keys, which nearly always equal its names, take no additional memory."""
    return frame.with_columns(key=pl.col("name")) if frame["key"].equals(frame["name"]) else frame


def _joined(parts: Sequence[pl.Series]) -> pl.Series:
    if all(part.null_count() == len(part) for part in parts):
        return parts[0].clear(sum(map(len, parts)))
    return pl.concat(parts, rechunk=True)


def _series(name: str, column: Sequence[Any], dtype: Any) -> pl.Series:
    try:
        if name in _REPEATED and set(map(type, column)) <= {str, type(None)}:
            places = {text: place for place, text in enumerate(dict.fromkeys(column))}
            texts = pl.Series(name, list(places), dtype=dtype)
            return texts.gather(pl.Series([places[text] for text in column], dtype=pl.UInt32))
        if len(column) > 0 and column[0] is None and column.count(None) == len(column):
            return pl.Series(name, [], dtype=dtype).clear(len(column))  # takes no memory
        return pl.Series(name, column, dtype=dtype, strict=False)
    except UnicodeEncodeError:  # half a surrogate pair, valid in JSON but not in text
        cleaned = [cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell for cell in column]
        return pl.Series(name, cleaned, dtype=dtype, strict=False)


def phase_of(entry: str) -> Phase:
    """Return the phase of an entry, also of one outside of the grammar."""
    # Not parse_entry: dumps of other tools may have names outside of the grammar, which are shown as well.
    head, _, last = entry.rpartition(".")
    phase = _LAST.get(last) or _CALLS.get(head.rpartition(".")[2])
    return phase or Phase.FORWARD


_CALLS = {phase.value: phase for phase in Phase if phase is not Phase.DEBUG}
_LAST = _CALLS | {Phase.DEBUG.value: Phase.DEBUG}


def is_leaf(tree: Mapping[str, Any]) -> bool:
    """Whether an object is a single value, with a type, and not a container of values."""
    return isinstance(tree.get("type"), str)


def check_leaf(leaf: Any) -> None:
    """Raise if ``leaf``, decoded, is not a value.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: it is not.
    """
    _leaf_cells(leaf)


_NONE_CELLS = (RowKind.NONE, *[None] * (len(_CELLS) - 1))


_FAILURE = "error"


def is_failure(record: Any) -> bool:
    """Whether this replaces a record or value that could not be recorded."""
    return isinstance(record, dict) and cast("dict[str, Any]", record).get("type") == _FAILURE


def _failed_cells(fields: dict[str, Any]) -> tuple[Any, ...]:
    return (*_NONE_CELLS[:-2], str(fields.get("error")), None)


_AROUND_VALUE = 3
"""Levels around a value: the record, its part, and the leaf."""


def _usual_cells(leaf: Leaf) -> Leaf | tuple[Any, ...]:
    """Return the cells of a leaf with the usual structure; a tensor's are built column by column later.

    Raises:
        _UnusualError: it has another structure.
    """
    if leaf.type != _FAILURE and leaf.placements is UNSET:
        if leaf.shape is not UNSET and leaf.dtype is not UNSET:
            return leaf
        if leaf.value is not UNSET:
            check_nesting(leaf.value, MAX_NESTING - _AROUND_VALUE)
            return _scalar_cells(leaf.type, leaf.value)
    raise _UnusualError


def _leaf_cells(leaf: Any) -> Leaf | tuple[Any, ...]:
    """Return the cells from ``kind`` on, in the order of `COLUMNS`."""
    if leaf is None:
        return _NONE_CELLS
    if isinstance(leaf, Leaf):
        return _usual_cells(leaf)
    if not isinstance(leaf, dict):
        return _scalar_cells(type(leaf).__name__, leaf)
    fields = cast("dict[str, Any]", leaf)
    if is_failure(fields):
        return _failed_cells(fields)
    if "shape" in fields and "dtype" in fields:
        return _tensor_cells(fields)
    return _scalar_cells(fields["type"], _scalar_value(fields))


def _tensor_cells(fields: dict[str, Any]) -> tuple[Any, ...]:
    if not isinstance(shape := fields["shape"], list):
        raise ValueError(f"its shape is {shape!r}")  # noqa: TRY004  # a value in a file, not an argument
    text, numel = _shape_cells(cast("list[Any]", shape))
    if isinstance(own := fields.get("md5"), float) and numel == 1:  # the representation of 0-d tensors in other tools
        fields = {"Max": own, "Min": own, "Mean": own, "Norm": abs(own)} | fields
    get = fields.get
    return (
        RowKind.TENSOR,
        get("type"),
        str(fields["dtype"]),
        text,
        numel,
        get("requires_grad"),
        _number(get("Max")),
        _number(get("Min")),
        _number(get("Mean")),
        _number(get("Norm")),
        get("num_nan"),
        get("num_inf"),
        None,
        exact_text(get("Max"), get("Min")),
        checksum if isinstance(checksum := get("md5"), str) else None,
        None if (sketch := get("sketch")) is None else _sketch_bytes(sketch),
        None if (fp8 := get("fp8")) is None else _fp8_text(_fp8_of(fp8)),
        None if (extra := get("extra_statistics")) is None else _extra_text(extra),
        _distribution_text(fields) if "placements" in fields else None,
        get("error"),
        file_name if isinstance(file_name := get("data_name"), str) else None,  # other tools write -1 for no file
    )


_DISTRIBUTION_FIELDS = ("device_mesh", "placements", "local_shape", "local_offset")


def _distribution_text(fields: dict[str, Any]) -> str:
    return msgspec.json.encode({name: fields[name] for name in _DISTRIBUTION_FIELDS if name in fields}).decode()


def _sketch_bytes(text: Any) -> bytes:
    sketch = base64.b64decode(text, validate=True)  # of anything else a ValueError or TypeError
    if len(sketch) != SIZE_BYTES:
        raise ValueError(f"its sketch has {len(sketch)} bytes")
    return sketch


def _fp8_of(fields: Any) -> Fp8Stats:
    try:
        return msgspec.convert(fields, Fp8Stats)
    except msgspec.ValidationError as error:
        raise ValueError(f"its FP8 statistics are malformed ({error})") from error


def _fp8_text(stats: Fp8Stats) -> str:
    return msgspec.json.encode(stats).decode()


def _extra_text(values: Any) -> str:
    """Return the values as JSON in which NaN and infinities are text, as `numbers_of` reads them."""
    if not isinstance(values, dict):
        raise ValueError(f"its extra statistics are {values!r}")  # noqa: TRY004  # a value in a file, not an argument
    numbers = {name: _number(value) for name, value in cast("dict[str, Any]", values).items()}
    return msgspec.json.encode({n: v if v is None or math.isfinite(v) else str(v) for n, v in numbers.items()}).decode()


def numbers_of(text: str) -> dict[str, float]:
    """Return the extra statistics in a cell of the frame, by name; those without a value are left out."""
    values = cast("dict[str, Any]", msgspec.json.decode(text))
    return {name: number for name, value in values.items() if (number := _number(value)) is not None}


def _scalar_value(fields: dict[str, Any]) -> Any:
    if "value" in fields:
        return fields["value"]
    if "group_ranks" in fields:
        return fields["group_ranks"]
    return {key: value for key, value in fields.items() if key != "type"}


def _scalar_cells(kind: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) and kind != "str":
        value = _NOT_FINITE.get(value.strip().lower(), value)
    number = _number(value) if kind in _NUMERIC or isinstance(value, int | float) else None
    dtype = f"<class '{kind}'>" if kind in _PYTHON else "<class 'str'>" if isinstance(value, str) else kind
    return (
        RowKind.SCALAR, kind, dtype, "[]", None, None, number, number, number, number, None, None, str(value), None,
        None, None, None, None, None, None, None,
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
    return _NOT_FINITE.get(value.strip().lower()) if isinstance(value, str) else None
