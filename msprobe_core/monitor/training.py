"""The training that is monitored, and how quantities of it are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msprobe_core.monitor.parameters import LiveParameters
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.capabilities import MonitoringFramework
from msprobe_core.protocols.trainer_tools import TrainerTools


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is monitored.

    Attributes:
        plan: What to collect of it.
        framework: Knows its tensors, and where its trainer keeps what; `trainer` if it knows trainers.
        trainer: Knows trainers that keep gradients, moments or parameters in places of their own, if any does.
        models: With their position in the list that was given, without parts that are on other ranks.
        parameters: Those that are selected, by position of the model and name.
        optimizer: Updates them.
        grad_acc_steps: Micro-batches of a step.
        has_main_grad: Whether gradients are in ``main_grad`` where parameters have one.
        rank: Of this process.
        groups: Process groups that the training was given, by what is parallel in them.
    """

    plan: MonitorPlan
    framework: MonitoringFramework
    trainer: TrainerTools | None = None
    models: Sequence[tuple[int, Any]]
    parameters: LiveParameters
    optimizer: Any
    grad_acc_steps: int
    has_main_grad: bool
    rank: int
    groups: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def value_of(self, parameter: Any) -> Any:
        """Return what this rank has of a parameter's values; ``None`` if it has nothing."""
        return parameter if self.trainer is None else self.trainer.value_of(parameter)


class Take(Protocol):
    """Takes quantities of the current step; does nothing in steps that are not collected."""

    def tensor(self, quantity: Quantity, name: str, tensor: Any, *, stage: int, micro_step: int | None = None) -> None:
        """Enqueue the statistics of one tensor; see `msprobe_core.monitor.readings.Reading`."""
        ...

    def numbers(
        self, quantity: Quantity, name: str, numbers: Mapping[str, Any], *, stage: int, micro_step: int | None = None
    ) -> None:
        """Take 0-d tensors, of a quantity with columns of its own."""
        ...
