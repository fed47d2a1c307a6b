"""The step that is being collected, and those whose results a device still computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from msprobe_core.model import Digest
from msprobe_core.monitor.measures import Measures
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitor.training import NO_LABELS, Finish
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.protocols.capabilities import (
    ArrivingNumbers,
    FetchingFramework,
    LateReducer,
    MeasuringFramework,
    MonitoringFramework,
)
from msprobe_core.protocols.framework import Framework, Reducer

_GRADIENTS = frozenset({Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED})

Place = tuple[Quantity, int, str, int | None]
"""Quantity, position of the model, name and micro-batch of a value."""


_MOST_WAITING = 8
"""Steps whose results may be on their way; a host that is farther ahead of its device waits for the oldest."""


@dataclass
class _Pending:
    """A step, and what computes its statistics."""

    step: Step
    reducer: Reducer
    is_on_host: bool = False
    is_reduced: Callable[[], bool] | None = None
    arriving: ArrivingNumbers | None = None

    def seal(self, tools: MonitoringFramework) -> None:
        """Begin to copy the results of a complete step to the host, where a device does that by itself."""
        waiting, reducer = self.step.waiting, self.reducer
        knows = isinstance(tools, MeasuringFramework)
        self.is_on_host = reducer.is_complete and (not knows or tools.are_on_host(waiting))
        if not self.is_on_host and isinstance(reducer, LateReducer) and isinstance(tools, FetchingFramework):
            self.arriving = tools.fetch(waiting)
            self.is_reduced = reducer.seal()

    def has_arrived(self, *, is_last: bool) -> bool:
        """Whether the results are there; where that is not known, they count as arrived a step later."""
        if self.is_reduced is None or self.arriving is None:
            return self.is_on_host or not is_last
        return self.is_reduced() and self.arriving.has_arrived()

    def collect(self, floats: Callable[[Sequence[Any]], Sequence[float]]) -> None:
        """Wait for the results, and fill them in."""
        self.reducer.collect()
        arriving = self.arriving
        self.step.collect(floats if arriving is None else lambda _: arriving.floats())


class StepBuffer:
    """Takes the readings of a step; a `msprobe_core.monitor.training.Take`.

    Statistics are computed where tensors are; results on a device are read when they have arrived on the host, so that
    no step waits.
    """

    def __init__(
        self, framework: Framework, tools: MonitoringFramework, plan: MonitorPlan, name_of: Callable[[str], str]
    ) -> None:
        """Begin without a step.

        Args:
            framework: Computes statistics.
            tools: The same framework.
            plan: Names the operations.
            name_of: Returns the name that results have.
        """
        self._framework = framework
        self._tools = tools
        self._name_of = name_of
        self._selects = plan.selects if plan.selections else None
        self._sketched = _GRADIENTS if plan.extensions.sketch == "grad" else frozenset[Quantity]()
        self._measures = Measures(tools, plan.ops, plan.eps)
        self._open: _Pending | None = None
        self._sealed: list[_Pending] = []
        self._free: list[Reducer] = []  # what they have proven of a device's kernels holds for later steps too

    @property
    def is_open(self) -> bool:
        """Whether a step is being collected."""
        return self._open is not None

    def begin(self, step: int) -> None:
        """Begin to collect a step."""
        self._open = _Pending(Step(step), self._free.pop() if self._free else self._framework.reducer())

    def drop(self) -> None:
        """Forget the step that is being collected."""
        self._open = None

    def tensor(
        self,
        quantity: Quantity,
        name: str,
        tensor: Any,
        *,
        stage: int,
        micro_step: int | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        adds: bool = False,
    ) -> None:
        """Enqueue the statistics of one tensor."""
        pending = self._open
        if pending is None or (self._selects is not None and not self._selects(quantity, name)):
            return
        reading = self._enqueue(pending, (quantity, stage, name, micro_step), tensor, self._measures, adds=adds)
        reading.labels = labels

    def _enqueue(
        self, pending: _Pending, place: Place, tensor: Any, measures: Measures, *, adds: bool = False
    ) -> Reading:
        quantity, stage, name, micro_step = place
        meta, digest = self._framework.describe(tensor), Digest()
        reading = Reading(
            quantity, stage, self._name_of(name), micro_step, meta, digest, identity=id(tensor), adds=adds
        )
        pending.reducer.statistics(tensor, digest)
        if quantity in self._sketched:
            pending.reducer.sketch(tensor, digest)
        measures.add(tensor, digest, pending.reducer, reading.numbers)
        pending.step.add(reading)
        return reading

    def numbers(
        self,
        quantity: Quantity,
        name: str,
        numbers: Mapping[str, Any],
        *,
        stage: int,
        micro_step: int | None = None,
        finish: Finish | None = None,
    ) -> None:
        """Take 0-d tensors or numbers."""
        if self._open is not None:
            self._open.step.add(
                Reading(quantity, stage, self._name_of(name), micro_step, None, Digest(), dict(numbers), finish=finish)
            )

    def follow(self, plan: MonitorPlan) -> None:
        """Compute the operations of another plan from now on."""
        self._measures = Measures(self._tools, plan.ops, plan.eps)

    def so_far(self, quantities: Iterable[Quantity]) -> list[Reading]:
        """Wait for the device, and return the readings of some quantities in the step that is being collected."""
        if self._open is None:
            return []
        self._collect(self._open)
        wanted = frozenset(quantities)
        return [reading for reading in self._open.step.readings.values() if reading.quantity in wanted]

    def read_now(self, tensors: Mapping[Place, Any], ops: Sequence[Op], eps: float) -> list[Reading]:
        """Wait for the device, and return readings of some tensors, which become part of no step.

        Args:
            tensors: By quantity, position of the model, name and micro-batch.
            ops: Operations.
            eps: Magnitude below which an element counts as zero.
        """
        pending, measures = _Pending(Step(0), self._framework.reducer()), Measures(self._tools, ops, eps)
        found = [self._enqueue(pending, place, tensor, measures) for place, tensor in tensors.items()]
        self._collect(pending)
        return found

    def finish(self) -> list[Step]:
        """End the step that is being collected, and return the steps whose results have arrived, in their order."""
        current, self._open = self._open, None
        if current is not None:
            current.seal(self._tools)
            self._sealed.append(current)
        there = takewhile(lambda pending: pending.has_arrived(is_last=pending is current), self._sealed)
        return self._fetch(max(len(list(there)), len(self._sealed) - _MOST_WAITING))

    def finish_all(self) -> list[Step]:
        """Wait for the device, and return the remaining steps."""
        return self._fetch(len(self._sealed))

    def _fetch(self, number: int) -> list[Step]:
        done, self._sealed = self._sealed[:number], self._sealed[number:]
        for pending in done:
            self._collect(pending)
            self._free.append(pending.reducer)
        return [pending.step for pending in done]

    def _collect(self, pending: _Pending) -> None:
        pending.collect(self._tools.floats)
