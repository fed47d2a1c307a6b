"""The step that is being collected, and those whose results a device still computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msprobe_core.model import Digest
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.protocols.capabilities import MonitoringFramework
from msprobe_core.protocols.framework import Framework, Reducer

_GRADIENTS = frozenset({Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED})


@dataclass
class _Pending:
    """A step, and what computes its statistics."""

    step: Step
    reducer: Reducer


class StepBuffer:
    """Takes the readings of a step; a `msprobe_core.monitor.training.Take`.

    Statistics are computed where tensors are; results on a device are fetched a step later, so that no step waits.
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
        self._eps = plan.eps if Op.ZEROS in plan.ops else None
        self._sketched = _GRADIENTS if plan.extensions.sketch == "grad" else frozenset[Quantity]()
        self._open: _Pending | None = None
        self._sealed: list[_Pending] = []

    @property
    def is_open(self) -> bool:
        """Whether a step is being collected."""
        return self._open is not None

    def begin(self, step: int) -> None:
        """Begin to collect a step."""
        self._open = _Pending(Step(step), self._framework.reducer())

    def drop(self) -> None:
        """Forget the step that is being collected."""
        self._open = None

    def tensor(self, quantity: Quantity, name: str, tensor: Any, *, stage: int, micro_step: int | None = None) -> None:
        """Enqueue the statistics of one tensor."""
        pending = self._open
        if pending is None or (self._selects is not None and not self._selects(quantity, name)):
            return
        meta, digest = self._framework.describe(tensor), Digest()
        reading = Reading(quantity, stage, self._name_of(name), micro_step, meta, digest, identity=id(tensor))
        pending.reducer.statistics(tensor, digest)
        if quantity in self._sketched:
            pending.reducer.sketch(tensor, digest)
        if self._eps is not None and (share := self._tools.share_below(tensor, self._eps)) is not None:
            reading.numbers[Op.ZEROS.value] = share
        pending.step.add(reading)

    def numbers(
        self, quantity: Quantity, name: str, numbers: Mapping[str, Any], *, stage: int, micro_step: int | None = None
    ) -> None:
        """Take 0-d tensors."""
        if self._open is not None:
            self._open.step.add(
                Reading(quantity, stage, self._name_of(name), micro_step, None, Digest(), dict(numbers))
            )

    def finish(self) -> list[Step]:
        """End the step that is being collected, and return the steps whose results have arrived, in their order."""
        current, self._open = self._open, None
        if current is not None:
            self._sealed.append(current)
        # What a device still computes is read a step later.
        return self._fetch(keeps_last=current is not None and not current.reducer.is_complete)

    def finish_all(self) -> list[Step]:
        """Wait for the device, and return the remaining steps."""
        return self._fetch(keeps_last=False)

    def _fetch(self, *, keeps_last: bool) -> list[Step]:
        done = self._sealed[:-1] if keeps_last else self._sealed[:]
        del self._sealed[: len(done)]
        for pending in done:
            pending.reducer.collect()
            pending.step.collect(self._tools.floats)
        return [pending.step for pending in done]
