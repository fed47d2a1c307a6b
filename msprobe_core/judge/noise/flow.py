"""How far rounding takes each value of a golden dump, followed from call to call.

A value is known again by its statistics: what a call was given is what another one has made. So the error of a result
is what its call rounds, and what it was given times what the call makes of that (see
`msprobe_core.judge.noise.effects`). A gradient is the sum of what all who were given the value pass on. Of what no
recorded call has made, as between modules at level L0, nothing is known but that it may hold what all calls before
have rounded, of which a part adds up as independent errors do.

What a formula says is an upper estimate, and would grow from call to call. So what is handed on is no more than `SEEN`
times what the two sides are seen to be apart: two extremes and two averages are four samples of that.
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

SPREAD, SHIFT = "flow_spread", "flow_shift"
"""Columns of what `with_flow` adds, in units of a tensor's norm; null where nothing is known."""

REACHES = 0.35
"""Share of what a call rounds that reaches a value further on; see `msprobe_core.judge.noise.closed_form`."""

SEEN = 4.0
"""How many times what was seen of a value's error its elements may be off: that four samples of a normal distribution
are all within a quarter of its deviation has a probability of 0.0015."""

_STATISTICS = ("norm", "mean", "max", "min")


class _Value(NamedTuple):
    """A tensor of floats of the golden dump; ``seen``: how far it may be off, by what was recorded of it."""

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
        """Return what others are given of an error that was estimated.

        An approximation may be off in few elements, as where a function saturates, and not show in statistics; what was
        only taken to be one does.
        """
        return Error(
            min(error.spread, self.seen.spread), error.shift if is_known else min(error.shift, self.seen.shift)
        )


_Identity = tuple[float, ...]


def with_flow(rows: pl.DataFrame, operations: Operations) -> pl.DataFrame:
    """Return aligned rows of two frameworks with `SPREAD` and `SHIFT`.

    Args:
        rows: In execution order, with ``roundoff`` and measures.
        operations: What the golden dump's calls compute.
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
    """Return the tensors of floats of the golden side by entry and phase, those of one entry together."""
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
            # What a mask has made infinite says nothing; the rest is taken to be as large as the largest that is
            # finite.
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
        dimensions = tuple(int(part) for part in shape.strip("[]").split(",") if part.strip().isdecimal())
        measured = Size(float(numel), norm, mean, high, low, dimensions)
        found.append(((entry, phase), _Value(row, role, place, measured, roundoff, Error(spread, shift))))
    return found


class _Flow:
    """What is known of errors so far."""

    def __init__(self, operations: Operations, parameters: Mapping[_Identity, Error]) -> None:
        """Begin a step; ``parameters``: how far they are seen to be off, as they are behind an update of two runs."""
        self._operations = operations
        self._parameters = parameters
        self._made: dict[_Identity, tuple[Error, Error]] = {}  # as estimated, and as handed on
        self._forwards: dict[str, Forward] = {}
        self._gradients: dict[str, Operand] = {}
        # Who was given a value in forward, and what each of those passes on in backward.
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
        """Return the error of a gradient that is the sum of what all who were given a value pass on."""
        users = self._users.get(forward.result.size[:5], [])
        calls = [each for each in users if not names.is_module(each[0])] or users
        parts = [self._passed_on[each] for each in calls if each in self._passed_on]
        if not parts or value.size.norm <= 0:
            return None
        return together([each.error.times(each.size.norm / value.size.norm) for each in parts])

    def _unknown(self, value: _Value, *given: Operand) -> Error:
        """Return the error of what no recorded call has made: of all that was recorded, and of a call that was not.

        That call may have added up as many terms as the tensor's largest dimension has, may have taken exponentials, as
        attention does, and was given what the call before has made.
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
                # What is inside of it may have been recorded, but not what makes this of it.
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
        """Keep the error of what a call made, for who is given it; return what is handed on."""
        handed_on = value.handed_on(error, is_known=is_known)
        if value.size.numel > 1:
            _, handed_on = self._made.setdefault(value.identity, (error, handed_on))
            self._last = handed_on
        return handed_on


def _place(value: _Value) -> str:
    return value.place.partition(".")[2]


def _is_container(entry: str, operation: str) -> bool:
    """Whether a module is one of the user's, of which nothing is known but what was recorded inside."""
    return names.is_module(entry) and not is_layer(operation)
