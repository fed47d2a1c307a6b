"""Rounding error of each value of a golden dump, propagated from call to call.

A value is recognised by its statistics: an input of one call is the result of another. So the error of a result is the
call's own rounding plus the amplified errors of its inputs (see `msprobe_core.judge.noise.effects`). A gradient is the
sum of what all users of the value pass on. A value that no recorded call has made, as between modules at level L0, may
contain all roundings of earlier calls, of which a share adds up as independent errors do.

Formulas give upper estimates, which would grow from call to call. So the error passed on is at most `SEEN` times the
observed difference of the two sides: two extremes and two averages are four samples of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import Match
from msprobe_core.judge.noise.effects import (
    Backward,
    Error,
    Forward,
    Operand,
    Size,
    of_backward,
    of_forward,
    together,
)
from msprobe_core.judge.noise.measures import Measure
from msprobe_core.judge.noise.operations import Kind, Operations, is_layer, kind_of
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import sizes_in

SPREAD, SHIFT = "flow_spread", "flow_shift"
"""Columns that `with_flow` adds, in units of a tensor's norm; null if unknown."""

REACHES = 0.35
"""Share of a call's rounding that reaches later values; see `msprobe_core.judge.noise.closed_form`."""

SEEN = 4.0
"""Maximum ratio of an element's error to the observed one: four samples of a normal distribution are all within a
quarter of its deviation with a probability of 0.0015."""

_STATISTICS = ("norm", "mean", "max", "min")


class _Value(NamedTuple):
    """A floating-point tensor of the golden dump; ``seen``: how far it may be off, by its observed difference."""

    row: int
    role: str
    place: str
    size: Size
    roundoff: float
    seen: Error

    @property
    def identity(self) -> _Identity:
        return self.size[:5]

    def handed_on(self, error: Error, *, is_known: bool = True) -> Error:
        """Return the part of an estimated error that is passed on.

        A known approximation may be off in few elements, for example where a function saturates, and not show in
        statistics; a presumed one does show.
        """
        return Error(
            min(error.spread, self.seen.spread), error.shift if is_known else min(error.shift, self.seen.shift)
        )


_Identity = tuple[float, ...]


def with_flow(rows: pl.DataFrame, operations: Operations) -> pl.DataFrame:
    """Return aligned rows of two frameworks with `SPREAD` and `SHIFT`.

    Args:
        rows: Rows in execution order, with ``roundoff`` and measures.
        operations: Operations of the golden dump's calls.
    """
    listed = _values(rows)
    flow = _Flow(operations, {value.identity: value.seen for _, value in listed if value.role == Role.PARAMETERS.value})
    found: dict[int, Error] = {}
    for (entry, phase), values in groupby(listed, key=lambda each: each[0]):
        found.update(flow.errors(entry, phase, [value for _, value in values]))
    known = pl.DataFrame(
        {"row": list(found), SPREAD: [e.spread for e in found.values()], SHIFT: [e.shift for e in found.values()]},
        schema={"row": pl.UInt32, SPREAD: pl.Float64, SHIFT: pl.Float64},
    )
    return rows.with_row_index("row").join(known, on="row", how="left", maintain_order="left").drop("row")


def _values(rows: pl.DataFrame) -> list[tuple[tuple[str, str], _Value]]:
    """Return the floating-point tensors of the golden side by entry and phase, those of one entry consecutively."""
    root = pl.col("numel_golden").cast(pl.Float64).sqrt()
    finite = [pl.when(pl.col(name).is_finite()).then(pl.col(name).abs()) for name in ("max_golden", "min_golden")]
    largest = pl.max_horizontal(finite)
    extremes = pl.max_horizontal(Measure.MAX.column, Measure.MIN.column)
    averaged = pl.max_horizontal(Measure.NORM.column, Measure.MEAN.column)
    of_elements = pl.max_horizontal(extremes * largest * root / pl.col("norm_golden"), averaged * root)
    listed = (
        rows.with_row_index("row")
        .filter(pl.col("roundoff").is_not_null() & (pl.col("match") != Match.TARGET.value))
        .filter((largest >= 0) & (pl.col("numel_golden") > 0))
        .with_columns(
            # Ignore elements that a mask has made infinite; assume the others to be as large as the largest finite one.
            norm_golden=pl.when(pl.col("norm_golden").is_finite()).then("norm_golden").otherwise(largest * root),
            mean_golden=pl.when(pl.col("mean_golden").is_finite()).then("mean_golden").otherwise(0.0),
            max_golden=pl.when(pl.col("max_golden").is_finite()).then("max_golden").otherwise(0.0),
            min_golden=pl.when(pl.col("min_golden").is_finite()).then("min_golden").otherwise(0.0),
            first=pl.col("row").min().over("entry_golden"),
            seen_spread=SEEN * pl.coalesce(Measure.REL_L2.column, of_elements).fill_nan(None).fill_null(1.0),
            seen_shift=SEEN * pl.max_horizontal(averaged, extremes).fill_nan(None).fill_null(1.0),
        )
        .sort("first", "row")
    )
    columns = ["entry_golden", "phase", "row", "role", "place_golden", "roundoff", "seen_spread", "seen_shift"]
    sizes = [f"{name}_golden" for name in ("numel", *_STATISTICS, "shape")]
    found: list[tuple[tuple[str, str], _Value]] = []
    for entry, phase, row, role, place, roundoff, spread, shift, *size in listed.select(*columns, *sizes).rows():
        numel, norm, mean, high, low, shape = size
        measured = Size(float(numel), norm, mean, high, low, sizes_in(shape))
        found.append(((entry, phase), _Value(row, role, place, measured, roundoff, Error(spread, shift))))
    return found


class _Flow:
    """Tracks the known errors call by call."""

    def __init__(self, operations: Operations, parameters: Mapping[_Identity, Error]) -> None:
        """Begin a step; ``parameters``: how far they are observed to be off, for example after an update."""
        self._operations = operations
        self._parameters = parameters
        self._made: dict[_Identity, tuple[Error, Error]] = {}  # as estimated, and as passed on
        self._forwards: dict[str, Forward] = {}
        self._gradients: dict[str, Operand] = {}
        # Users of each value in forward, and the gradient that each of them passes on in backward.
        self._users: dict[_Identity, list[tuple[str, str]]] = {}
        self._passed_on: dict[tuple[str, str], Operand] = {}
        self._squares = 0.0
        self._last = Error()

    def errors(self, entry: str, phase: str, values: Sequence[_Value]) -> dict[int, Error]:
        """Return the errors of an entry's values by row."""
        found: dict[int, Error] = {}
        operands: list[Operand] = []
        forward_of = names.forward_of(entry) if phase == Phase.BACKWARD.value else None
        for value in values:
            if value.role in {Role.INPUT.value, Role.PARAMETERS.value}:
                found[value.row], handed_on = self._given(value, self._forwards.get(forward_of or ""))
                is_parameter = value.role == Role.PARAMETERS.value
                operands.append(Operand(value.size, handed_on, _place(value), is_parameter))
                if phase == Phase.FORWARD.value:
                    self._users.setdefault(value.identity, []).append((entry, _place(value)))
        made = [value for value in values if value.role in {Role.OUTPUT.value, Role.PARAMETERS_GRAD.value}]
        if phase == Phase.FORWARD.value:
            return found | self._forward(entry, operands, made)
        if phase == Phase.BACKWARD.value:
            if operands:
                self._gradients[entry] = max(operands, key=lambda each: each.size.norm)
            return found | self._backward(entry, made)
        return found | self._backward(names.backward_of_parameters(entry) or "", made, are_parameters=True)

    def _given(self, value: _Value, forward: Forward | None) -> tuple[Error, Error]:
        if value.role == Role.PARAMETERS.value or value.identity in self._parameters:
            return Error(), self._parameters[value.identity]
        known = self._made.get(value.identity)
        if known is not None:
            return known
        error = None if forward is None else self._added_up(value, forward)
        if error is not None:
            return error, value.handed_on(error)
        error = self._unknown(value)
        return error, value.handed_on(error, is_known=False)

    def _added_up(self, value: _Value, forward: Forward) -> Error | None:
        """Return the error of a gradient that is the sum of the gradients from all users of a value."""
        users = self._users.get(forward.result.size[:5], [])
        calls = [each for each in users if not names.is_module(each[0])] or users
        parts = [self._passed_on[each] for each in calls if each in self._passed_on]
        if not parts or value.size.norm <= 0:
            return None
        return together([each.error.times(each.size.norm / value.size.norm) for each in parts])

    def _unknown(self, value: _Value, *given: Operand) -> Error:
        """Return the error of a value that no recorded call has made: that of recorded calls and of an unrecorded one.

        The unrecorded call may have summed as many terms as the tensor's largest dimension, may have computed
        exponentials, as attention does, and had the previous call's result as input.
        """
        own = of_forward(Forward("", [Operand(value.size)], Operand(value.size)), self._operations).own
        shift = self._operations.approximation("softmax", value.size.largest)
        before = Error(REACHES * math.sqrt(self._squares), shift)
        return together([before, own, Error(value.roundoff), self._last, *[each.error for each in given]])

    def _forward(self, entry: str, given: Sequence[Operand], made: Sequence[_Value]) -> dict[int, Error]:
        operation = self._operations.names.get(entry, "")
        found: dict[int, Error] = {}
        for value in made:
            known = self._made.get(value.identity)
            is_inside = _is_container(entry, operation)
            if known is not None:
                error = known[0]
            elif is_inside:
                # Its inner calls may be recorded, but not the computation of this result from theirs.
                error = self._unknown(value, *given)
            else:
                effect = of_forward(Forward(operation, given, Operand(value.size)), self._operations)
                error = self._rounded(operation, effect.own, effect.inherited, value)
            found[value.row] = error
            handed_on = self._remember(value, error, is_known=not is_inside)
            if entry not in self._forwards:
                self._forwards[entry] = Forward(operation, given, Operand(value.size, handed_on))
        return found

    def _backward(self, entry: str, made: Sequence[_Value], *, are_parameters: bool = False) -> dict[int, Error]:
        name = names.forward_of(entry) or ""
        forward, gradient = self._forwards.get(name), self._gradients.get(entry)
        found: dict[int, Error] = {}
        for value in made:
            place = value.place if are_parameters else _place(value)
            known = self._made.get(value.identity)
            is_inside = forward is None or gradient is None or _is_container(name, forward.operation)
            if known is not None:
                error = known[0]
            elif forward is None or gradient is None or is_inside:
                error = self._unknown(value, *([] if gradient is None else [gradient]))
            else:
                effect = of_backward(Backward(forward, gradient, place, value.size), self._operations)
                error = self._rounded(
                    forward.operation, effect.own, effect.inherited, value, is_counted=not are_parameters
                )
            found[value.row] = error
            if not are_parameters:
                self._passed_on[name, place] = Operand(value.size, self._remember(value, error, is_known=not is_inside))
        return found

    def _rounded(
        self, operation: str, own: Error, inherited: Error, value: _Value, *, is_counted: bool = True
    ) -> Error:
        own = own if kind_of(operation) is Kind.COPY else together([own, Error(value.roundoff)])
        if is_counted and value.size.numel > 1:
            self._squares += own.spread**2
        return together([own, inherited])

    def _remember(self, value: _Value, error: Error, *, is_known: bool) -> Error:
        """Store the error of a call's result for its users; return the part that is passed on."""
        handed_on = value.handed_on(error, is_known=is_known)
        if value.size.numel > 1:
            _, handed_on = self._made.setdefault(value.identity, (error, handed_on))
            self._last = handed_on
        return handed_on


def _place(value: _Value) -> str:
    return value.place.partition(".")[2]


def _is_container(entry: str, operation: str) -> bool:
    """Whether a module is defined by the user, so that only the calls recorded inside are known."""
    return names.is_module(entry) and not is_layer(operation)
