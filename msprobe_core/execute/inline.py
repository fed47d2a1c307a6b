"""Run tasks one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import ExecutorOptions, TaskLost
from msprobe_core.protocols.comparison import Executor

T = TypeVar("T")
R = TypeVar("R")


class Inline:
    """Runs tasks in this process."""

    name = "inline"

    def check(self, options: ExecutorOptions) -> None:
        """Accept any options."""

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], options: ExecutorOptions
    ) -> Iterator[tuple[int, R | TaskLost]]:
        """Yield each task's number and result, in order."""
        del options
        for number, task in enumerate(tasks):
            yield number, function(task)


@hookimpl
def msprobe_register_executors() -> Sequence[Executor]:
    """Register the executor of this module."""
    return [Inline()]
