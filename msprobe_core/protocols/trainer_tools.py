"""What the training monitor asks of trainers that keep gradients, moments or parameters in places of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from msprobe_core.protocols.capabilities import MonitoringFramework
from msprobe_core.protocols.monitoring import Part


class Reductions(Protocol):
    """Reports gradients before a trainer reduces them, until it is detached."""

    def claims(self, name: str) -> bool:
        """Whether the gradients of a parameter are reported here; where they are accumulated, they are reduced."""
        ...

    def detach(self) -> None:
        """End."""
        ...


class TrainerTools(MonitoringFramework, Protocol):
    """A framework that knows one training: its trainer may keep gradients, moments and parameters in places of its own.

    What `MonitoringFramework` says of an optimizer holds for the one that this was made for.
    """

    @property
    def trainers(self) -> Sequence[str]:
        """Names of the trainers that were recognised, apart from the plain one."""
        ...

    def watch_reductions(
        self, model: Any, report: Callable[[str, Any], None], on_failure: Callable[[str, Exception], None]
    ) -> Reductions:
        """Watch the trainers of a model.

        Args:
            model: One of the models.
            report: Called with name and gradient of a parameter that is about to be reduced.
            on_failure: Called with what could not be read, and why.
        """
        ...

    def value_of(self, parameter: Any) -> Any:
        """Return what this rank has of a parameter's values; ``None`` if it has nothing."""
        ...

    def part_of(self, parameter: Any, *, is_updated: bool) -> Part | None:
        """Return which part of a parameter this rank has; ``None`` for all of it.

        Args:
            parameter: A parameter of the model.
            is_updated: What the optimizer of this rank has of its gradient and moments, instead of its values.
        """
        ...

    def is_tensor_parallel(self, parameter: Any) -> bool:
        """Whether a parameter is a part of one that the ranks of a tensor-parallel group have together."""
        ...

    def reducing_ranks(self, parameter: Any) -> tuple[int, ...]:
        """Return the ranks that reduce the gradient of a parameter together; empty for all, or if it is not known."""
        ...

    def ranks_of(self, group: Any) -> tuple[int, ...]:
        """Return the ranks of a process group, in its order."""
        ...


@runtime_checkable
class TrainerFramework(Protocol):
    """Optional, for a `MonitoringFramework`."""

    def for_training(self, models: Sequence[Any], optimizer: Any) -> TrainerTools:
        """Return what knows the trainer of these models."""
        ...
