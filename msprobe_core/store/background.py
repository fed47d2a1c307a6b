"""A writer thread, so that recording does not wait for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class BackgroundQueue:
    """Runs jobs in order on its own thread; blocks the caller while too much data is queued.

    A failing job does not keep later jobs from running; ``wait`` raises the first error, once.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        """Begin idle; the thread starts with the first job.

        Args:
            max_bytes: How much data may be queued, in bytes; a larger job is accepted when the queue is empty.
        """
        self._max_bytes = max_bytes
        self._jobs: queue.SimpleQueue[tuple[Job, int] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._num_waiting = 0
        self._bytes_waiting = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a job has failed since the last ``wait``."""
        return self._error is not None

    def submit(self, job: Job, size_bytes: int = 0) -> None:
        """Queue a job that holds ``size_bytes`` of data until it is done."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._num_waiting == 0 or self._bytes_waiting + size_bytes <= self._max_bytes
            )
            self._num_waiting += 1
            self._bytes_waiting += size_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="msprobe-writer", daemon=True)
                self._thread.start()
        self._jobs.put((job, size_bytes))

    def wait(self) -> None:
        """Return when all jobs are done.

        Raises:
            Exception: the first error of a job since the last call.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._num_waiting == 0)
            error, self._error = self._error, None
        if isinstance(error, Exception):
            raise error
        if error is not None:  # such as sys.exit(): it was to end a thread, and this is another one
            raise RuntimeError(f"what was to be written raised {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Stop the thread once all jobs are done."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, size_bytes = item
            try:
                job()
            except BaseException as error:  # noqa: BLE001  # raised again by wait, on the calling thread
                self._error = self._error or error
            finally:
                del job, item
                with self._changed:
                    self._num_waiting -= 1
                    self._bytes_waiting -= size_bytes
                    self._changed.notify_all()
