"""What a monitor has read of a step: one reading for each tensor, filled in when the results have arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msprobe_core.model import Digest, TensorMeta
from msprobe_core.monitoring.quantities import Op, Quantity


@dataclass(slots=True)
class Reading:
    """One tensor.

    Attributes:
        quantity: What it is of the step.
        stage: Position of its model in a list of models, 0 of a single model.
        name: Of the parameter, or of the module with ``.input`` or ``.output``.
        micro_step: Micro-batch; ``None`` if the value belongs to the whole step.
        meta: Shape and dtype.
        digest: Statistics, there after `Step.collect`.
        zeros: Share of elements below ``eps``, a 0-d tensor until `Step.collect`; ``None`` if not requested.
        identity: Of the tensor's object.
    """

    quantity: Quantity
    stage: int
    name: str
    micro_step: int | None
    meta: TensorMeta
    digest: Digest
    zeros: Any = None
    identity: int = 0

    def value(self, op: Op) -> float | int:
        """Return the result of an operation; NaN if the tensor has none, as one without elements."""
        return _VALUES[op](self)


def _num_nan(reading: Reading) -> float | int:
    stats = reading.digest.stats
    if stats is not None and stats.num_nan is None and stats.l2_norm is not None and math.isfinite(stats.l2_norm):
        return 0  # counted only where there may be any
    return _number(stats and stats.num_nan)


def _number(value: Any) -> float | int:
    if isinstance(value, bool):  # extremes of booleans
        return int(value)
    return float("nan") if value is None else value


_VALUES: Mapping[Op, Callable[[Reading], float | int]] = {
    Op.NORM: lambda reading: _number(reading.digest.stats and reading.digest.stats.l2_norm),
    Op.MIN: lambda reading: _number(reading.digest.stats and reading.digest.stats.min),
    Op.MAX: lambda reading: _number(reading.digest.stats and reading.digest.stats.max),
    Op.MEAN: lambda reading: _number(reading.digest.stats and reading.digest.stats.mean),
    Op.ZEROS: lambda reading: _number(reading.zeros),
    Op.NANS: _num_nan,
    Op.ID: lambda reading: reading.identity,
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
        """Take a reading."""
        self.readings[reading.quantity, reading.stage, reading.name, reading.micro_step] = reading

    def collect(self, floats: Callable[[Sequence[Any]], Sequence[float]]) -> None:
        """Fetch what is still a tensor.

        Args:
            floats: Returns the numbers of 0-d tensors, in one transfer.
        """
        waiting = [reading for reading in self.readings.values() if reading.zeros is not None]
        for reading, number in zip(waiting, floats([each.zeros for each in waiting]), strict=True):
            reading.zeros = number
