"""What a training monitor passes to plugins while the training runs: events and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec

Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The block of a whole tensor that a rank has. Ranks with equal parts have replicas of it.

    Attributes:
        whole: Shape of the whole tensor, or its number of elements if trainers cut it after flattening.
        offset: Index of the first element; ``None`` if the part is no block.
        shape: Of the part; has a 0 where the rank has nothing of it.
    """

    whole: tuple[Size, ...]
    offset: tuple[Size, ...] | None
    shape: tuple[Size, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the rank has nothing of the tensor."""
        return 0 in self.shape


class BeforeUpdate(Protocol):
    """Called before parameters are updated."""

    def __call__(self, is_updated: Callable[[Any], bool] | None = None) -> None:
        """Look at the gradients.

        Args:
            is_updated: Whether a parameter is among those that are about to be updated; ``None`` for all.
        """
        ...


class MonitoredValue(msgspec.Struct, frozen=True, kw_only=True):
    """What a monitor measured of one tensor in one step.

    Attributes:
        step: Number of the step.
        quantity: What the tensor is of the step; a `msprobe_core.monitoring.quantities.Quantity`.
        stage: Position of its model in a list of models, 0 of a single model.
        name: Of the parameter, or of the module with ``.input`` or ``.output``.
        micro_step: Micro-batch; ``None`` if the value belongs to the whole step.
        numbers: By column: the requested operations, or the columns that this quantity has of its own. NaN where there
            is no value.
        shape: Of what this rank has of the tensor; ``None`` if the numbers are not of one tensor.
        dtype: Of its elements, as the framework writes it; empty if the numbers are not of one tensor.
        labels: Texts by column, the same columns in all values of a quantity; of communication, its place and caller.
    """

    step: int
    quantity: str
    stage: int
    name: str
    micro_step: int | None
    numbers: Mapping[str, float | int]
    shape: tuple[int, ...] | None
    dtype: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class MonitorWriter(Protocol):
    """Receives the values of one rank, step by step. What it raises is logged once, and the training goes on."""

    def add(self, step: int, values: Sequence[MonitoredValue]) -> None:
        """Take a complete step; called after the step, in its order, on the thread that trains."""
        ...

    def close(self) -> None:
        """Write what is left; called once, when the training ends."""
        ...


class MonitorWriterFactory(Protocol):
    """Something that values of a monitor can be sent to."""

    @property
    def name(self) -> str:
        """Name in ``"msprobe": {"writers": […]}`` that selects it."""
        ...

    def open(self, directory: Path, rank: int, *, steps_per_file: int, ndigits: int) -> MonitorWriter:
        """Begin; creates no file yet.

        Args:
            directory: Of this rank's results; may not exist yet.
            rank: Of this process.
            steps_per_file: Steps in a file of formats that have several.
            ndigits: Decimals of numbers that are written as text.

        Raises:
            PluginError: a required library is not installed; the message says how to install it.
        """
        ...
