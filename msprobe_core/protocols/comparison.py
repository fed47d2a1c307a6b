"""Extensions of a comparison: executors of units of work, and metrics of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msprobe_core.model import ExecutorOptions, TaskLost

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T")
_R = TypeVar("_R")


class Executor(Protocol):
    """Runs units of work, for example the comparison of one rank of one step."""

    @property
    def name(self) -> str:
        """Value of ``--executor`` that selects it."""
        ...

    def check(self, options: ExecutorOptions) -> None:
        """Raise if this executor cannot run here; called before any work is done.

        Raises:
            PluginError: something that it needs is missing; the message says what to do.
        """
        ...

    def run(
        self, function: Callable[[_T], _R], tasks: Sequence[_T], options: ExecutorOptions
    ) -> Iterator[tuple[int, _R | TaskLost]]:
        """Yield number and result of each task, in any order, as the tasks finish.

        Closing the iterator ends running tasks.

        Args:
            function: At module level, so that it can be imported elsewhere; never raises.
            tasks: Can be pickled, as can the results of ``function``.
            options: Number of workers and address.
        """
        ...


class Metric(Protocol):
    """An additional column in the table of compared tensors."""

    @property
    def name(self) -> str:
        """Title of the column."""
        ...

    def compare(self, target: NDArray[Any], golden: NDArray[Any]) -> float | int | str:
        """Return the cell of one pair. Several threads may call it at once.

        Args:
            target: In float32 if it was stored as float32 or narrower, else in float64 or complex128. NaN and Inf are
                as stored.
            golden: By the same rule, with as many elements; dimensions of size 1 may be missing in either shape.

        Raises:
            Exception: of any kind: the cell is then ``unsupported``, and a note says why.
        """
        ...
