"""The dump of one step and rank during recording: its writer, its tensors, and its end mark."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msprobe_core.capture.tensors import TensorStore
from msprobe_core.errors import StoreError
from msprobe_core.guard import checked, kept, plugin_call
from msprobe_core.model import Batch, Ending, EndState, RunHeader, TensorValue
from msprobe_core.protocols.storage import EndingWriter, Writer, WriterFactory
from msprobe_core.store import layout
from msprobe_core.store.background import BackgroundQueue

_logger = logging.getLogger(__name__)


class UnitRecording:
    """Passes entries and tensors to the writing thread, in order, and closes the files.

    The end mark is written after each window and removed before the next one begins. So a partial step never looks
    complete, however the process ends.
    """

    def __init__(
        self, directory: Path, header: RunHeader, factory: WriterFactory, who: str, queue: BackgroundQueue
    ) -> None:
        """Begin a dump; replaces one of an earlier run in the same directory.

        Args:
            directory: Directory of the rank; created.
            header: Header of the dump.
            factory: Creates the writer.
            who: Name of the writer for messages.
            queue: Queue of the writing thread.

        Raises:
            StoreError: a file or directory cannot be created.
            PluginError: the writer belongs to a plugin and fails.
        """
        self.directory = directory
        self.tensors: TensorStore | None = None
        """Destination of whole tensors, if they are stored."""
        self._who = who
        self._queue = queue
        self._num_windows = 0
        self._break = ""
        layout.make_unit_directory(directory)
        shutil.rmtree(directory / layout.TENSOR_DIRECTORY, ignore_errors=True)  # of an earlier run in the same place
        with plugin_call(who, "opening a dump"):
            self._writer = checked(factory.open(directory, header), Writer, who, "opening a dump")

    def write(self, batch: Batch) -> None:
        """Enqueue a batch for writing."""

        def write() -> None:
            with plugin_call(self._who, "writing"):
                self._writer.write(batch)

        self._queue.submit(write)

    def begin_window(self) -> None:
        """Enqueue the removal of an earlier window's end mark."""
        self._mark(EndState.EARLY)

    def end_window(self, *, is_first_end: bool) -> None:
        """Enqueue an end mark after the windows so far.

        Args:
            is_first_end: Whether an open window has ended; false if only late entries were added.
        """
        self._num_windows += is_first_end
        self._mark(EndState.STOPPED)

    def conclude(self) -> None:
        """Mark the step as complete, unless a further window begins."""
        self._mark(EndState.COMPLETE)
        self.wait()

    def break_off(self, reason: str) -> None:
        """Set why the step does not complete; all later end marks contain the reason."""
        self._break = self._break or reason

    def _mark(self, state: EndState) -> None:
        if self._break and state is not EndState.EARLY:
            state = EndState.EARLY
        ending = Ending(state=state, num_windows=self._num_windows, reason=self._break, ended=time.time())

        def mark() -> None:
            if isinstance(self._writer, EndingWriter):
                with plugin_call(self._who, "marking the end"):
                    self._writer.end(ending)

        self._queue.submit(mark)

    def keep(
        self, snapshot: Any, stem: str, value: TensorValue, note_failure: Callable[[str, Exception], None]
    ) -> None:
        """Enqueue a tensor for storage; its value then gets the file name.

        Args:
            snapshot: A copy of the tensor.
            stem: Stem of its file name.
            value: Value of its record, which the same thread writes later.
            note_failure: Called if a framework cannot write the tensor.
        """
        tensors = self.tensors
        assert tensors is not None

        def save() -> None:
            try:
                value.file_name = tensors.save(snapshot, stem)
            except StoreError:
                raise
            except BaseException as error:  # noqa: BLE001  # raised by a framework
                note_failure(stem, kept(error))

        self._queue.submit(save, size_bytes=getattr(snapshot, "nbytes", 0))

    def wait(self) -> None:
        """Return when everything is on disk.

        Raises:
            Exception: the first error of a write since the last call.
        """
        self._queue.wait()

    def close(self, state: EndState) -> None:
        """Mark the end and close all files.

        Raises:
            Exception: the first error; the other files are closed anyway.
        """
        self._mark(state)
        try:
            self.wait()
        finally:
            tensors, self.tensors = self.tensors, None
            try:
                if tensors is not None:
                    tensors.close()
            finally:
                with plugin_call(self._who, "closing a dump"):
                    self._writer.close()

    def remove(self) -> None:
        """Remove the dump, whose files are closed, and directories that are then empty."""
        layout.remove_dump(self.directory)
        for directory in (self.directory / layout.TENSOR_DIRECTORY, self.directory, self.directory.parent):
            with suppress(OSError):  # missing, or not empty
                directory.rmdir()
