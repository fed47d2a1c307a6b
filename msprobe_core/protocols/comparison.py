"""What a comparison can be extended with: places where units of work run, and metrics of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msprobe_core.model import ExecutorOptions, TaskLost

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T")
_R = TypeVar("_R")


class Executor(Protocol):
    """A place where units of work run, for example the comparison of one rank of one step."""

    @property
    def name(self) -> str:
        """Value of ``--executor`` that selects it."""
        ...

    def check(self, options: ExecutorOptions) -> None:
        """Raise if nothing can be run here; called before any work is done.

        Raises:
            PluginError: something that it needs is missing; the message says what to do.
        """
        ...

    def run(
        self, function: Callable[[_T], _R], tasks: Sequence[_T], options: ExecutorOptions
    ) -> Iterator[tuple[int, _R | TaskLost]]:
        """Yield number and result of each task, in any order, as they are finished.

        Closing the iterator ends what is still under way.

        Args:
            function: At the top of a module, so that it can be found again elsewhere; raises nothing.
            tasks: Can be pickled, and so can what ``function`` returns.
            options: How.
        """
        ...


class Metric(Protocol):
    """A column of one's own in the table of compared tensors."""

    @property
    def name(self) -> str:
        """Title of the column."""
        ...

    def compare(self, target: NDArray[Any], golden: NDArray[Any]) -> float | int | str:
        """Return the cell of one pair. May be called by several threads at once.

        Args:
            target: In float32 if it was stored in no wider float, else in float64 or complex128. NaN and Inf are as
                they were stored.
            golden: Likewise, with as many elements; sizes of 1 may be missing in either shape.

        Raises:
            Exception: of any kind: the cell then is ``unsupported``, and a note says why.
        """
        ...
