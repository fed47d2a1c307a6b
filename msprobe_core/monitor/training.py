"""The training that is monitored, and how quantities of it are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msprobe_core.errors import SessionError
from msprobe_core.monitor.parameters import LiveParameters
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.capabilities import MeasuringFramework, MonitoringFramework
from msprobe_core.protocols.trainer_tools import TrainerTools

NO_LABELS: Mapping[str, str] = {}


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
        directory: Of the results of this rank; may not exist yet.
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
    directory: Path
    groups: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def value_of(self, parameter: Any) -> Any:
        """Return what this rank has of a parameter's values; ``None`` if it has nothing."""
        return parameter if self.trainer is None else self.trainer.value_of(parameter)


def measuring(framework: MonitoringFramework, what: str) -> MeasuringFramework:
    """Return the framework, if it can compute from elements.

    Args:
        framework: Of the training.
        what: To be monitored, for the message.

    Raises:
        SessionError: it cannot.
    """
    if isinstance(framework, MeasuringFramework):
        return framework
    raise SessionError(f"the training monitor has no {what} for this framework; leave them out of the configuration")


Finish = Callable[[Mapping[str, float]], Mapping[str, float]]
"""Returns columns from numbers; does not raise."""


class Take(Protocol):
    """Takes quantities of the current step; does nothing in steps that are not collected."""

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
        """Enqueue the statistics of one tensor; see `msprobe_core.monitor.readings.Reading`."""
        ...

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
        """Take 0-d tensors or numbers, of a quantity with columns of its own.

        Args:
            quantity: Which one.
            name: Of the parameter or module.
            numbers: By column.
            stage: Position of the model.
            micro_step: Micro-batch; ``None`` if they belong to the whole step.
            finish: Computes the columns from the numbers when these have arrived on the host.
        """
        ...


class Source:
    """Takes some quantities, in each collected step. What it raises is logged, and the training goes on."""

    def before_update(self, take: Take) -> None:
        """Take what is there before the optimizer's step; nothing by default.

        Called several times in a step if parameters are updated in several parts; ``training.parameters`` then shows
        those of the part.
        """

    def after_update(self, take: Take) -> None:
        """Take what is there after it; nothing by default."""
