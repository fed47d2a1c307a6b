"""Destination of a session's entries: the dump of the current step."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msprobe_core.capture.features.feature import Feature
from msprobe_core.capture.identity import own_identity
from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.run_directory import RunPlace
from msprobe_core.capture.tensors import open_tensor_store
from msprobe_core.capture.unit import UnitRecording
from msprobe_core.config import Config
from msprobe_core.model import Batch, EndState, Level, RunHeader, Task, TensorValue
from msprobe_core.plugins import registry
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.storage import Processor, WriterFactory
from msprobe_core.store import layout
from msprobe_core.store.background import BackgroundQueue

_logger = logging.getLogger(__name__)


class UnitOutput:
    """Passes entries from the recorder to the dump of the current step."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        processor: Processor,
        factory: WriterFactory,
        recorder: Recorder,
    ) -> None:
        """Begin without a dump; nothing is created on disk before ``open``."""
        self._config = config
        self._framework = framework
        self._processor_name = processor.name
        self._factory = factory
        self._who = registry().described("writer", config.writer)
        self._recorder = recorder
        self._place = RunPlace(config.directory)
        self._unit: UnitRecording | None = None
        self._rank: int | None = None
        self._step = 0
        is_saving = config.level is Level.DEBUG
        has_list = bool(config.options.tensor_list) and not is_saving
        self.keeps_tensors = config.task not in {Task.STATISTICS, Task.STRUCTURE, Task.GRAD_PROBE} or has_list
        """Whether whole tensors are written."""
        self._has_extra_info = config.extra_info and not is_saving
        self.features: Sequence[Feature] = ()
        self.queue = BackgroundQueue()
        self.directory: Path | None = None
        """Directory of the current step, or of the last one; ``None`` before the first."""
        self.num_entries = 0
        """Number of entries of the current step that have been passed to the dump."""
        self.num_entries_of_last_step = 0
        """The same number of the step before."""

    @property
    def is_open(self) -> bool:
        """Whether the current step has a dump."""
        return self._unit is not None

    def open(self, step: int, rank: int | None) -> None:
        """Begin the dump of a step.

        Raises:
            StoreError: a file or directory cannot be created.
            PluginError: the writer belongs to a plugin and fails.
        """
        config = self._config
        self._step, self._rank = step, rank
        directory = layout.unit_directory(self._place.directory(rank), step, rank)
        header = RunHeader(
            task=config.task.value,
            level=config.level.value,
            framework=self._framework.name,
            summary_mode=self._processor_name,
            has_extra_info=self._has_extra_info,
            keeps_tensors=self.keeps_tensors,
            run=own_identity(),
        )
        unit = UnitRecording(directory, header, self._factory, self._who, self.queue)
        self._unit, self.directory = unit, directory
        if self.keeps_tensors:
            tensors = directory / layout.TENSOR_DIRECTORY
            layout.make_directory(tensors)
            unit.tensors = open_tensor_store(config.tensor_format, self._framework, tensors)
        for feature in self.features:
            feature.begin_unit(step, rank)
        _logger.info("recording step %d to %s", step, directory)

    def begin_window(self, step: int, rank: int | None) -> None:
        """Begin the dump of a step or, in a further window of the step, continue it."""
        if self._unit is None:
            self.open(step, rank)
            return
        self._unit.begin_window()
        if self._rank != rank:
            _logger.warning("this step is being recorded to %s and goes on there, whatever rank_id is", self.directory)

    # --- writing ----------------------------------------------------------------------------------------------

    def keep_tensor(self, tensor: Any, stem: str, value: TensorValue) -> None:
        """Copy a tensor and enqueue it for writing; see `TensorSink`."""
        snapshot = self._framework.snapshot(tensor)
        if snapshot is not None:
            self.save(snapshot, stem, value)

    def save(self, snapshot: Any, stem: str, value: TensorValue) -> None:
        """Enqueue a copy of a tensor for writing."""
        with self._recorder.record.lock:
            if self._unit is not None:  # otherwise another thread has ended the step
                self._unit.keep(snapshot, stem, value, self._recorder.note_failure)

    def write_backlog(self) -> None:
        """Pass complete entries on without waiting, so that a process killed in a window loses about a second of it."""
        unit = self._unit
        if unit is None:
            return
        batch = self._sifted(self._recorder.drain_complete())
        if batch.entries or batch.parents:
            self.num_entries += len(batch.entries)
            unit.write(batch)

    def flush(self, *, is_first_end: bool) -> None:
        """Write all entries, and wait until they are on disk; see `UnitRecording.end_window`."""
        unit = self._unit
        if unit is None:
            return
        batch = self._sifted(self._recorder.drain())
        self.num_entries += len(batch.entries)
        unit.write(batch)
        unit.end_window(is_first_end=is_first_end)
        unit.wait()

    def _sifted(self, batch: Batch) -> Batch:
        for feature in self.features:
            batch = feature.sift(batch, self._step)
        return batch

    # --- the end ----------------------------------------------------------------------------------------------

    def break_off(self, reason: str) -> None:
        """Record why the step does not complete, for the dump's end mark."""
        if self._unit is not None:
            self._unit.break_off(reason)

    def conclude(self) -> None:
        """Mark the dump as complete for its step, although the step may have further windows."""
        if self._unit is not None:
            self._unit.conclude()

    def discard_if_empty(self) -> None:
        """Remove the dump if it has no entries."""
        unit = self._unit
        if unit is not None and not self.num_entries:
            self.close_unit()
            unit.remove()

    def discard(self) -> None:
        """Remove the dump of the current step, whatever it has."""
        unit = self._unit
        if unit is not None:
            self.close_unit()
            shutil.rmtree(unit.directory / layout.TENSOR_DIRECTORY, ignore_errors=True)
            unit.remove()

    def close_unit(self, state: EndState = EndState.COMPLETE) -> None:
        """End the dump of the current step."""
        with self._recorder.record.lock:  # otherwise hooks on other threads could write to closed files
            unit, self._unit = self._unit, None
        if unit is None:
            return
        for feature in self.features:
            feature.end_unit(self._step)
        unit.close(state)

    def close(self) -> None:
        """End the writing thread and release the directory."""
        self.queue.close()
        self._place.close()

    def abandon(self) -> None:
        """Stop using threads and files, in a forked child that shares them with its parent."""
        self._unit = None
        self._place.abandon()
        self.queue = BackgroundQueue()
