"""Run tasks in separate processes on this machine."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import TypeVar

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import ExecutorOptions, TaskLost
from msprobe_core.protocols.comparison import Executor

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 2
"""Tasks submitted per worker, so that a worker that finishes one need not wait for the next."""


class Processes:
    """Runs tasks in a pool of processes.

    If the operating system kills a process, for example because memory is short, the whole pool breaks. The tasks that
    were under way are then repeated in another process, one after the other, so that only the task that causes the
    failure is lost.
    """

    name = "processes"

    def check(self, options: ExecutorOptions) -> None:
        """Accept any options."""

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], options: ExecutorOptions
    ) -> Iterator[tuple[int, R | TaskLost]]:
        """Yield each task's number and result as they finish."""
        workers = min(options.workers or os.cpu_count() or 1, len(tasks))
        waiting = list(range(len(tasks)))[::-1]
        while waiting:
            suspects: list[int] = []
            yield from _pooled(function, tasks, waiting, workers, workers * _AHEAD, suspects)
            suspects.reverse()
            while suspects:
                lost: list[int] = []
                yield from _pooled(function, tasks, suspects, 1, 1, lost)
                for number in lost:
                    yield (
                        number,
                        TaskLost(
                            "its process was ended from outside, most likely for want of memory; do it by itself, "
                            "or give fewer --workers"
                        ),
                    )


def _pooled(
    function: Callable[[T], R],
    tasks: Sequence[T],
    waiting: list[int],
    workers: int,
    most: int,
    suspects: list[int],
) -> Iterator[tuple[int, R]]:
    """Yield results until all tasks are done or the pool breaks; add the unfinished ones to ``suspects``.

    No more than ``most`` are under way at a time; they are taken from the end of ``waiting``.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    # A forked child would copy locks that this process's threads hold, and could deadlock.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(threads,))
    under_way: dict[Future[R], int] = {}
    try:
        while waiting or under_way:
            while waiting and len(under_way) < most:
                with _held_interrupts():  # submit may start a process, which inherits the signal mask
                    future = pool.submit(function, tasks[waiting[-1]])  # raises if the pool has just broken
                under_way[future] = waiting.pop()
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                yield under_way.pop(future), result
    except BrokenProcessPool:
        suspects += sorted(under_way.values())
    finally:
        # Before Python 3.14 there is no public way to terminate a worker.
        running: dict[int, BaseProcess] | None = getattr(pool, "_processes", None)
        workers_left = list((running or {}).values())
        pool.shutdown(wait=not under_way, cancel_futures=True)
        if under_way:  # interrupted: the running tasks' results are no longer needed
            for process in workers_left:
                process.terminate()


@contextmanager
def _held_interrupts() -> Generator[None, None, None]:
    """Block Ctrl-C while a process is started: a process that is still importing would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows has no signal mask
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(num_threads: int) -> None:
    # The parent terminates its workers. Ctrl-C in the terminal reaches them as well and would print a traceback each.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Polars reads this when it is imported, which happens later. Its default would start more threads than there are
    # cores.
    os.environ.setdefault("POLARS_MAX_THREADS", str(num_threads))
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))  # the same for what frameworks compute with
    threading.Thread(target=_end_with_parent, name="msprobe-parent", daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the parent is killed: it holds the pipe of the tasks itself, and would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


@hookimpl
def msprobe_register_executors() -> Sequence[Executor]:
    """Register the executor of this module."""
    return [Processes()]
