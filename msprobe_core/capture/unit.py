"""The dump of one step of one rank while it is recorded: its writer, its tensors, and the mark of how it ended."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msprobe_core.capture.tensors import TensorStore
from msprobe_core.errors import PluginError, StoreError
from msprobe_core.guard import kept, plugin_call
from msprobe_core.model import Batch, Ending, EndState, RunHeader, TensorValue
from msprobe_core.protocols.storage import EndingWriter, Writer, WriterFactory
from msprobe_core.store import layout
from msprobe_core.store.background import BackgroundQueue

_logger = logging.getLogger(__name__)


class UnitRecording:
    """Hands entries and tensors to the writing thread, in order, and closes what was opened.

    The mark at the end of the files is put back behind each window, and taken away before the next one begins, so that
    whatever kills the process, half a step never looks whole.
    """

    def __init__(
        self, directory: Path, header: RunHeader, factory: WriterFactory, who: str, queue: BackgroundQueue
    ) -> None:
        """Begin a dump; one of an earlier run in the same place is replaced.

        Args:
            directory: Of the rank; created.
            header: What the dump says about itself.
            factory: Makes the writer.
            who: The writer in words, for messages.
            queue: Its thread writes.

        Raises:
            StoreError: something cannot be created.
            PluginError: the writer is a plugin's and fails.
        """
        self.directory = directory
        self.tensors: TensorStore | None = None
        """Where whole tensors go, if they are kept."""
        self._who = who
        self._queue = queue
        self._num_windows = 0
        self._break = ""
        layout.make_unit_directory(directory)
        shutil.rmtree(directory / layout.TENSOR_DIRECTORY, ignore_errors=True)  # of an earlier run in the same place
        with plugin_call(who, "opening a dump"):
            self._writer = _checked(factory.open(directory, header), who)

    def write(self, batch: Batch) -> None:
        """Have a batch appended."""

        def write() -> None:
            with plugin_call(self._who, "writing"):
                self._writer.write(batch)

        self._queue.submit(write)

    def begin_window(self) -> None:
        """Have the mark of an earlier window taken back."""
        self._mark(EndState.EARLY)

    def end_window(self, *, is_first_end: bool) -> None:
        """Have what is written say that it is all of the windows so far.

        Args:
            is_first_end: Whether a window has ended that was open; others only had something come in late.
        """
        self._num_windows += is_first_end
        self._mark(EndState.STOPPED)

    def conclude(self) -> None:
        """Have what is written say that it is all of the step, unless a further window begins."""
        self._mark(EndState.COMPLETE)
        self.wait()

    def break_off(self, reason: str) -> None:
        """Take note of what keeps the step from being done to its end; every mark says so from now on."""
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
        """Have a tensor stored, and its value say where.

        Args:
            snapshot: A copy of the tensor.
            stem: What its file is called.
            value: Its record is written later, by the same thread.
            note_failure: Is told if a framework cannot write it.
        """
        tensors = self.tensors
        assert tensors is not None

        def save() -> None:
            try:
                value.file_name = tensors.save(snapshot, stem)
            except StoreError:
                raise
            except BaseException as error:  # noqa: BLE001  # of a framework
                note_failure(stem, kept(error))

        self._queue.submit(save, size_bytes=getattr(snapshot, "nbytes", 0))

    def wait(self) -> None:
        """Return when everything is on disk.

        Raises:
            Exception: the first error of anything that was to be written.
        """
        self._queue.wait()

    def close(self, state: EndState) -> None:
        """Mark the end and close all files.

        Raises:
            Exception: the first error; what can be closed is closed all the same.
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
        """Remove the dump, whose files are closed, and the directories that are empty then."""
        layout.remove_dump(self.directory)
        for directory in (self.directory / layout.TENSOR_DIRECTORY, self.directory, self.directory.parent):
            with suppress(OSError):  # not there, or something else lies in it
                directory.rmdir()


def _checked(writer: Writer | None, who: str) -> Writer:
    if not (hasattr(writer, "write") and hasattr(writer, "close")):
        raise PluginError(f"{who} returned {writer!r}, which is no writer: it lacks write() or close()")
    assert writer is not None
    return writer
