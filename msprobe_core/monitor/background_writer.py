"""A writer in a thread of its own, so that making text and waiting for a disk take no time of the training's thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from msprobe_core.guard import kept
from msprobe_core.protocols.monitoring import MonitoredValue, MonitorWriter

_MOST_WAITING = 64
"""Steps that may wait; a training that is faster than its disk for longer waits for it."""


class BackgroundWriter:
    """Passes steps on to a writer, in their order; a `MonitorWriter`.

    What the writer raises is raised by the next call, as the step that it belongs to is over.
    """

    def __init__(self, writer: MonitorWriter, most_waiting: int = _MOST_WAITING) -> None:
        """Begin without a thread, which the first step starts.

        Args:
            writer: Called in the thread only.
            most_waiting: Steps that may wait.
        """
        self._writer = writer
        self._waiting: queue.Queue[tuple[int, Sequence[MonitoredValue]] | None] = queue.Queue(most_waiting)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def add(self, step: int, values: Sequence[MonitoredValue]) -> None:
        """Leave a step to the thread."""
        if self._thread is None or not self._thread.is_alive():  # in a forked child it is not
            # As a daemon it does not keep a program from ending, which closes the monitor.
            self._thread = threading.Thread(target=self._run, name="msprobe-monitor-writer", daemon=True)
            self._thread.start()
        self._waiting.put((step, values))
        self._raise()

    def close(self) -> None:
        """Wait for the steps that are left, and close the writer."""
        if self._thread is not None and self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()
        self._writer.close()
        self._raise()

    def _run(self) -> None:
        while (step := self._waiting.get()) is not None:
            self._pass_on(*step)

    def _pass_on(self, step: int, values: Sequence[MonitoredValue]) -> None:
        try:
            self._writer.add(step, values)
        except BaseException as error:  # noqa: BLE001  # of disks and plugins; steps that follow are written
            self._error = kept(error)

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
