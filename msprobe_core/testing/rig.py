"""What the contract tests need from a framework: tensors from arrays, and a small model to train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.protocols.framework import Framework

Array: TypeAlias = NDArray[Any]


class TrainingRig(Protocol):
    """A framework under test, with a model of at least two layers with parameters, one of them called with a keyword.

    Everything is deterministic: two models created from one seed and trained on the same step numbers are bitwise
    equal.
    """

    @property
    def framework(self) -> Framework:
        """The plugin's framework."""
        ...

    def make_tensor(self, values: Array) -> Any:
        """Return a tensor with these values and the corresponding dtype; 0-d and empty arrays too."""
        ...

    def make_bfloat16(self, values: NDArray[np.float32]) -> Any:
        """Return a bfloat16 tensor; called only if the contract's ``supports_bfloat16`` is set."""
        ...

    def overwrite(self, tensor: Any, value: float) -> None:
        """Set all elements in place."""
        ...

    def make_model(self, seed: int) -> Any:
        """Return a new model."""
        ...

    def train_step(self, model: Any, step: int) -> float:
        """Run forward, backward and update on the data of this step; return the loss."""
        ...

    def fail_in_step(self, model: Any) -> None:
        """Run a forward in which a layer inside the model raises ``ArithmeticError``, and let it propagate."""
        ...

    def state_of(self, model: Any) -> Mapping[str, Array]:
        """Return copies of all parameters and their gradients by name."""
        ...

    def traces_in(self, model: Any) -> object:
        """Return an object that compares equal as long as nothing is hooked or patched, in the model or elsewhere."""
        ...


class MonitoredRig(TrainingRig, Protocol):
    """A framework whose trainings can be monitored; see `msprobe_core.plugin.MonitoringFramework`."""

    def make_adam(self, model: Any) -> Any:
        """Return Adam for a model's parameters: learning rate 0.01, decay rates 0.9 and 0.999, nothing else."""
        ...

    def train_with(self, model: Any, optimizer: Any, step: int) -> float:
        """Run forward, backward and the optimizer's step on the data of this step; return the loss."""
        ...
