"""Values of the current step at a program's request; these wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msprobe_core.monitor.readings import Reading
from msprobe_core.monitor.step_buffer import Place, StepBuffer
from msprobe_core.monitor.training import Training
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.protocols.framework import Framework

Metrics = Mapping[str, Mapping[str, float]]
"""Numbers by operation, by the name that a value has in alarms."""


class Readout:
    """Reads values of a training."""

    def __init__(
        self,
        framework: Framework,
        training: Training,
        buffer: StepBuffer,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        """Read nothing yet.

        Args:
            framework: Computes statistics.
            training: Whose values are read.
            buffer: Has the step that is being collected.
            on_failure: Called with what could not be read, and why.
        """
        self._framework = framework
        self._training = training
        self._buffer = buffer
        self._on_failure = on_failure

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._training.rank

    def so_far(self, quantities: Iterable[Quantity]) -> Metrics:
        """Return values of the step that is being collected."""
        ops = self._training.plan.ops
        return _metrics(self._buffer.so_far(quantities), ops, self.rank)

    def gradients(self, given: Mapping[str, Any] | None) -> Metrics:
        """Return values of gradients.

        Args:
            given: By name; ``None`` for those that the parameters have.
        """
        training = self._training
        if given is None:
            places = {
                place: training.framework.gradient_of(parameter, is_main=training.has_main_grad)
                for place, parameter in training.parameters.items()
            }
        else:
            places = {(0, name): gradient for name, gradient in given.items()}
        tensors: dict[Place, Any] = {
            (Quantity.GRADIENT_REDUCED, stage, name, None): gradient
            for (stage, name), gradient in places.items()
            if gradient is not None
        }
        return self._read(tensors, training.plan.ops)

    def check(self, name: str, tensor: Any, ops: Sequence[Op]) -> Mapping[str, float]:
        """Return numbers about a tensor, which become part of the step too.

        Args:
            name: Of the tensor in files.
            tensor: Any.
            ops: Operations.
        """
        for found in self._read({(Quantity.ADHOC, 0, name, None): tensor}, ops).values():
            self._buffer.numbers(Quantity.ADHOC, name, {op: float(number) for op, number in found.items()}, stage=0)
            return found
        return {}

    def _read(self, tensors: Mapping[Place, Any], ops: Sequence[Op]) -> Metrics:
        readings: list[Reading] = []
        with self._framework.quiet(self._on_failure):
            readings = self._buffer.read_now(tensors, ops, self._training.plan.eps)
        return _metrics(readings, ops, self.rank)


def _metrics(readings: Sequence[Reading], ops: Sequence[Op], rank: int) -> Metrics:
    return {reading.tag(rank): {op.value: reading.value(op) for op in ops} for reading in readings}
