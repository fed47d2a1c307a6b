"""Rows with uninitialized memory, whose values are arbitrary and say nothing about the program.

Memory is unset from its allocation until the program has written all of it. The rules:

* A call that overwrites its first argument or ``out`` does not read it, so the row of that argument is exempt.
* A receiving call of communication overwrites its destination.
* A call that writes a part, as ``x[:4] = y`` does, or selects a part, returns memory of which the rest may still be
  unset. Its rows are exempt if its first argument is unset, unless another call reads its result: a correct program has
  written all of that by then.
* Other tools record neither allocations nor all writes. If no recorded call made the first argument, its rows are
  exempt only if there is a sign that it was memory to be filled: the call's result is written to later, or a later call
  reads a tensor of the same shape that no recorded call made. If a call reads the result of a writing call, that result
  is judged and the destination is exempt.

Values are recognised by their statistics on both sides, because dumps do not record data flow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import any_of, filtered_parts
from msprobe_core.model import Phase, Role
from msprobe_core.order.communication_calls import is_communication, kind_of
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows

OVERWRITING = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_", "cauchy_", "geometric_",
     "log_normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_",
     "orthogonal_", "zeros_", "ones_", "constant_", "eye_", "assign"}
)  # fmt: skip
"""APIs that overwrite all of their first argument without reading it."""

WRITING = frozenset(
    {"__setitem__", "index_copy_", "index_fill_", "index_put_", "masked_fill_", "masked_scatter_", "scatter_", "put_",
     "fill_diagonal_"}
)  # fmt: skip
"""APIs that write a part of their first argument."""

SELECTING = frozenset(
    {"__getitem__", "narrow", "select", "split", "split_with_sizes", "tensor_split", "chunk", "unbind", "view",
     "view_as", "reshape", "flatten", "unflatten", "transpose", "permute", "t", "swapaxes", "movedim", "moveaxis",
     "squeeze", "unsqueeze", "expand", "expand_as", "unfold", "diagonal", "as_strided", "detach"}
)  # fmt: skip
"""APIs that return their first argument, or a part of it, without computing anything."""

_DESTINATIONS = {"all_gather_copy_in": "1"}
"""Writing operators whose destination has another place than 0, among arguments and results: FSDP2 copies the shards of
a rank into the buffer that the next collective fills."""

_IN_PLACE = frozenset({"broadcast", "recv", "irecv", "receive"})
"""Communication calls that may overwrite their only tensor; others have a destination besides their input."""

_SIDES = ("target", "golden")
_API = re.compile(names.FUNCTION_OF_FORWARD)


class _Row(NamedTuple):
    row: int
    role: str
    place: str
    shape: str
    value: str | None


def uninitialised_rows(rows: Rows, allocating: Sequence[str], *, differs: pl.Expr) -> list[int]:
    """Return the indices of the rows whose values are exempt; empty if no row needs an excuse.

    Args:
        rows: Aligned rows in execution order.
        allocating: APIs that return unset memory.
        differs: Whether a row differs by more than rounding.
    """
    involved = names.forward_of_any([*allocating, *OVERWRITING, *WRITING, *SELECTING])
    is_involved = pl.col("entry").str.contains(rf"{involved}|^\w*Distributed\.|^Primitive\.")
    has_destination = pl.col("name_target").str.contains(names.OUT_ARGUMENT)
    if not any_of(rows, (is_involved | has_destination) & differs):
        return []
    memory = _Memory(frozenset(allocating))
    for entry, own in groupby(_forward_rows(rows), key=lambda each: each[0]):
        memory.follow(entry, [row for _, row in own])
    return memory.exempt


def _forward_rows(rows: Rows) -> Iterator[tuple[str, _Row]]:
    are_tensors = [(pl.col(f"kind_{side}") == RowKind.TENSOR.value).fill_null(value=False) for side in _SIDES]
    statistics = [f"{name}_{side}" for name in ("max", "min", "mean", "norm", "checksum") for side in _SIDES]
    known = [pl.col(f"{name}_{side}").is_not_null() for name in ("max", "checksum") for side in _SIDES]
    shape = pl.col("shape_target")
    is_forward = (pl.col("phase") == Phase.FORWARD.value) & pl.all_horizontal(are_tensors)
    columns = ("entry", "role", "name_target", "shape_target", *statistics)
    for part in filtered_parts(rows, columns, is_forward, "row"):
        listed = part.select(
            "entry", "row", pl.col("role").cast(pl.String),
            pl.col("name_target").str.extract(names.VALUE_PLACE).fill_null(""),
            shape.fill_null(""),
            pl.when(pl.any_horizontal(known)).then(
                pl.concat_str(shape, *statistics, separator=" ", ignore_nulls=True)
            ).alias("value"),
        )  # fmt: skip
        for entry, *row in listed.rows():
            yield entry, _Row(*row)


class _Unknown(NamedTuple):
    """Result of a call on memory that no recorded call made.

    Attributes:
        shape: Shape of that memory.
        rows: Exempt once there is a sign that the memory was to be filled.
        written: Those of ``rows`` that the call wrote to; exempt also if its result is read.
    """

    shape: str
    rows: Sequence[int]
    written: Sequence[int]


class _Memory:
    """Tracks unset memory, call by call.

    Attributes:
        exempt: Indices of the exempt rows; complete after the last call.
    """

    def __init__(self, allocating: frozenset[str]) -> None:
        self._allocating = allocating
        self._exempt: set[int] = set()
        self._unset: dict[str, list[int]] = {}  # rows to judge once something reads the value
        self._unknown: dict[str, _Unknown] = {}
        self._made: set[str] = set()

    @property
    def exempt(self) -> list[int]:
        return sorted(self._exempt)

    def follow(self, entry: str, rows: Sequence[_Row]) -> None:
        """Process one call."""
        found = _API.match(entry)
        api = found[1] if found else ""
        given = [row for row in rows if row.role == Role.INPUT.value]
        made = [row for row in rows if row.role == Role.OUTPUT.value]
        place = _DESTINATIONS.get(api, "0")
        first = [row for row in given if row.place.partition(".")[0] == place]
        written = [row for row in given if row.place.partition(".")[0] == "out"]
        if api in OVERWRITING or (is_communication(entry) and self._is_destination(entry, first, given, made)):
            written += first
        self._exempt.update(row.row for row in written)
        if api in self._allocating:
            self._exempt.update(row.row for row in made)
            self._unset.update({row.value: [] for row in made if row.value})
        elif api in _DESTINATIONS and first and self._may_be_unset(first[0]):
            self._read(row for row in given if row not in first)
            self._hand_on(first[0], [row for row in made if row.place == place], is_written=True)
        elif api in SELECTING | WRITING and first and self._may_be_unset(first[0]):
            self._hand_on(first[0], made, is_written=api in WRITING)
        else:
            self._read(row for row in rows if row not in written)
        if api in WRITING or written:
            self._confirm(row.value for row in [*written, *first])
        self._made.update(row.value for row in made if row.value)

    def _is_destination(self, entry: str, first: Sequence[_Row], given: Sequence[_Row], made: Sequence[_Row]) -> bool:
        if not all(self._may_be_unset(row) for row in first):
            return False
        if kind_of(entry) in _IN_PLACE:
            # The tensor of a sender is unchanged by the call.
            return not {row.value for row in first} & {row.value for row in made}
        return any(row.place.partition(".")[0] == "1" for row in given)

    def _may_be_unset(self, row: _Row) -> bool:
        if row.value is None or row.value in self._unset or row.value in self._unknown:
            return True
        return row.value not in self._made

    def _hand_on(self, first: _Row, made: Sequence[_Row], *, is_written: bool) -> None:
        """Track the result of a call on memory that is unset, or that no recorded call made."""
        values = [row.value for row in made if row.value]
        if first.value is None or first.value in self._unset:
            self._exempt.update([first.row, *(row.row for row in made)])
            self._unset |= {value: self._unset.get(value, []) + [row.row for row in made] for value in values}
            return
        before = self._unknown.get(first.value)
        rows = [first.row, *(row.row for row in made), *(before.rows if before else ())]
        # Some tools record no result for a call that writes; its destination then takes the result's place.
        for value in values or [f"row {first.row}" if is_written else first.value]:
            self._unknown[value] = _Unknown(first.shape, rows, [first.row] if is_written else [])

    def _read(self, rows: Iterable[_Row]) -> None:
        """Judge values that are read; one without a recorded maker shows that some writes were not recorded."""
        for row in rows:
            self._exempt.difference_update(self._unset.pop(row.value or "", ()))
            if unknown := self._unknown.pop(row.value or "", None):
                self._exempt.update(unknown.written)
            elif row.value not in self._made:
                self._confirm([value for value, each in self._unknown.items() if each.shape == row.shape])

    def _confirm(self, values: Iterable[str | None]) -> None:
        for value in values:
            if unknown := self._unknown.pop(value or "", None):
                self._exempt.update(unknown.rows)
