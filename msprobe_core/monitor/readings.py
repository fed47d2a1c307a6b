"""What a monitor has read of a step: one reading for each tensor, filled in when the results have arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from msprobe_core.model import Digest, TensorMeta
from msprobe_core.monitor.measures import FP8
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.protocols.monitoring import MonitoredValue


@dataclass(slots=True)
class Reading:
    """One tensor.

    Attributes:
        quantity: What it is of the step.
        stage: Position of its model in a list of models, 0 of a single model.
        name: Of the parameter, or of the module with ``.input`` or ``.output``.
        micro_step: Micro-batch; ``None`` if the value belongs to the whole step.
        meta: Shape and dtype; ``None`` of a quantity with columns of its own, which is not of one tensor.
        digest: Statistics, there after `Step.collect`.
        numbers: Further numbers by column, 0-d tensors until `Step.collect`.
        identity: Of the tensor's object.
        finish: Computes the columns from the numbers when these have arrived.
        labels: Texts by column, of a quantity that has any.
        adds: Whether it is one of several summands in a step, as what a trainer reduces in each micro-batch.
        summands: Of earlier readings that it replaces, if it adds to them.
    """

    quantity: Quantity
    stage: int
    name: str
    micro_step: int | None
    meta: TensorMeta | None
    digest: Digest
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])
    identity: int = 0
    finish: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    adds: bool = False
    summands: tuple[Digest, ...] = ()

    def tag(self, rank: int) -> str:
        """Return the name of the value in alarms and in results of `TrainerMon`'s methods."""
        micro_step = 0 if self.micro_step is None else self.micro_step
        return f"{self.stage}:{self.name}:{micro_step}/rank{rank}/{self.quantity.value}"

    def value(self, op: Op) -> float | int:
        """Return the result of an operation; NaN if the tensor has none, as one without elements."""
        return _column_of(op)[1](self)


_Column = tuple[str, Callable[[Reading], float | int]]
"""Name of an operation, and what returns its result."""


@cache
def _column_of(op: Op) -> _Column:
    """Return the column of an operation, which a step asks for thousands of times."""
    name = op.value
    return name, _VALUES.get(op) or (lambda reading: _number(reading.numbers.get(name)))


def _num_nan(reading: Reading) -> float | int:
    stats = reading.digest.stats
    if stats is not None and stats.num_nan is None and stats.l2_norm is not None and math.isfinite(stats.l2_norm):
        return 0  # counted only where there may be any
    return _number(stats and stats.num_nan)


def _number(value: Any) -> float | int:
    if isinstance(value, bool):  # extremes of booleans
        return int(value)
    return float("nan") if value is None else value


def _lost(reading: Reading, field: str) -> float | int:
    fp8 = reading.digest.fp8
    return _number(fp8 and getattr(fp8, field))


_VALUES: Mapping[Op, Callable[[Reading], float | int]] = {
    Op.NORM: lambda reading: _number(reading.digest.stats and reading.digest.stats.l2_norm),
    Op.MIN: lambda reading: _number(reading.digest.stats and reading.digest.stats.min),
    Op.MAX: lambda reading: _number(reading.digest.stats and reading.digest.stats.max),
    Op.MEAN: lambda reading: _number(reading.digest.stats and reading.digest.stats.mean),
    Op.NANS: _num_nan,
    Op.ID: lambda reading: reading.identity,
    **{op: partial(_lost, field=name) for op, name in FP8.items()},
}


@dataclass
class Step:
    """The readings of one step, in the order in which they were made.

    Attributes:
        number: Of the step.
        readings: By place: a later reading of the same place replaces an earlier one.
    """

    number: int
    readings: dict[tuple[Quantity, int, str, int | None], Reading] = field(
        default_factory=dict[tuple[Quantity, int, str, "int | None"], Reading]
    )

    def add(self, reading: Reading) -> None:
        """Take a reading, which replaces an earlier one of the same place, and is later in the order."""
        place = reading.quantity, reading.stage, reading.name, reading.micro_step
        earlier = self.readings.pop(place, None)
        if earlier is not None and reading.adds:
            reading.summands = *earlier.summands, earlier.digest
        self.readings[place] = reading

    @property
    def waiting(self) -> list[Any]:
        """The 0-d tensors that are to be fetched."""
        return [reading.numbers[column] for reading, column in self._waiting()]

    def _waiting(self) -> list[tuple[Reading, str]]:
        return [
            (reading, column)
            for reading in self.readings.values()
            for column, number in reading.numbers.items()
            if not isinstance(number, float)
        ]

    def collect(self, floats: Callable[[Sequence[Any]], Sequence[float]]) -> None:
        """Fetch what is still a tensor.

        Args:
            floats: Returns the numbers of 0-d tensors, in one transfer.
        """
        waiting = self._waiting()
        found = floats([reading.numbers[column] for reading, column in waiting])
        for (reading, column), number in zip(waiting, found, strict=True):
            reading.numbers[column] = number
        for reading in self.readings.values():
            if reading.finish is not None:
                reading.numbers, reading.finish = dict(reading.finish(reading.numbers)), None

    def values(self, ops_of: Callable[[Quantity], Sequence[Op]]) -> list[MonitoredValue]:
        """Return the collected step as writers receive it.

        Args:
            ops_of: Returns the columns of a quantity that has none of its own.
        """
        quantities = {reading.quantity for reading in self.readings.values()}
        found = {each: (each.value, [_column_of(op) for op in ops_of(each)]) for each in quantities}
        return [_value_of(self.number, reading, *found[reading.quantity]) for reading in self.readings.values()]


def _value_of(step: int, reading: Reading, quantity: str, columns: Sequence[_Column]) -> MonitoredValue:
    meta = reading.meta
    return MonitoredValue(
        step=step,
        quantity=quantity,
        stage=reading.stage,
        name=reading.name,
        micro_step=reading.micro_step,
        numbers=reading.numbers if meta is None else {name: value(reading) for name, value in columns},
        shape=None if meta is None else _shape_of(meta),
        dtype="" if meta is None else meta.dtype,
        labels=reading.labels,
    )


def _shape_of(meta: TensorMeta) -> tuple[int, ...]:
    """Return the shape of what this rank has, of which the numbers are."""
    return meta.shape if meta.distribution is None else meta.distribution.local_shape
