"""One recording session: which rank and step, where to, and who is attached when."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.stacks import StackCache
from msprobe_core.capture.tensors import TensorStore, open_tensor_store
from msprobe_core.config import Config
from msprobe_core.errors import ConfigError, SessionError, StoreError
from msprobe_core.hookspecs import Attachment, Framework, Processor, Writer, WriterFactory
from msprobe_core.model import Level, RunHeader, Task, TensorValue
from msprobe_core.store import layout
from msprobe_core.store.background import BackgroundQueue

_logger = logging.getLogger(__name__)

_TASKS = (Task.STATISTICS, Task.TENSOR, Task.STRUCTURE)
_LEVELS = (Level.L0, Level.L1, Level.MIX)


@dataclass(frozen=True)
class Model:
    """One model given to ``start``; see `msprobe_core.hookspecs.NamedModel`."""

    name: str
    model: Any


@dataclass(frozen=True)
class Interception:
    """See `msprobe_core.hookspecs.AttachOptions`."""

    level: Level
    risk_level: str


class Session:
    """Owns everything that recording needs: the recorder, the attachment, the writer and the step counter."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        processors: dict[str, Processor],
        writers: dict[str, WriterFactory],
    ) -> None:
        """Prepare; nothing is attached and nothing is created on disk before ``start``.

        Raises:
            ConfigError: the configuration asks for what this version, or what is installed, does not offer.
            PluginError: something that the writer needs is not installed.
        """
        self._config = config
        self._framework = framework
        self._processor = _choose("summary_mode", str(config.options.summary_mode), processors)
        self._writer_factory: WriterFactory = _choose("writer", config.writer, writers)
        self._writer_factory.check()
        _check_supported(config)
        self._selection = Selection(config.options)
        self._queue = BackgroundQueue()
        self._attachment: Attachment | None = None
        self._detached: list[Attachment] = []
        self._models: Sequence[Model] = ()
        self._writer: Writer | None = None
        self._tensors: TensorStore | None = None
        self._directory: Path | None = None
        self._step = 0
        self._is_finished = False
        self._process = os.getpid()
        self._recorder = self._new_recorder()
        self._recorder.on_backlog = self._write_backlog

    def _new_recorder(self) -> Recorder:
        config = self._config
        return Recorder(
            self._framework,
            self._processor,
            self._selection,
            stacks=StackCache(self._framework.hidden_frames) if config.extra_info else None,
            tracks_parents=config.extra_info and config.level.has_modules,
            expands_modules=config.level is Level.MIX,
            keeps_values=config.task is not Task.STRUCTURE,
            keep_tensor=self._keep_tensor if config.task is Task.TENSOR else None,
        )

    @property
    def is_running(self) -> bool:
        """Whether calls are being recorded."""
        return self._attachment is not None

    @property
    def directory(self) -> Path | None:
        """Where the current step is being written, or the last one was; ``None`` before the first."""
        return self._directory

    def start(self, models: Sequence[Any]) -> None:
        """Begin to record, if this step and this rank are selected.

        A session that is already recording begins anew with the given models: an exception may have skipped its end.

        Raises:
            SessionError: the level needs a model and none is given, or something is not a model.
            StoreError: the dump cannot be created.
        """
        if self.is_running:
            self.stop()
        named = self._check_models(models)
        if not self._is_selected():
            return
        self._models = named
        if self._writer is None:
            self._open_writer()
        options = Interception(self._config.level, self._config.risk_level.value)
        self._attachment = self._framework.attach(named, options, self._recorder)

    def stop(self) -> None:
        """Stop recording and write what has been recorded; returns when it is on disk."""
        if self._attachment is not None:
            attachment, self._attachment = self._attachment, None
            attachment.detach()
            self._detached.append(attachment)
        self._flush()

    def step(self) -> None:
        """End the step: write, close its files, count on, and go on recording if it was."""
        was_running, models = self.is_running, [model.model for model in self._models]
        self.stop()
        if self._writer is not None and (complaint := self._selection.complaint()):
            _logger.warning("step %d: %s", self._step, complaint)
        self._close_writer()
        self._detached.clear()
        if self._recorder.num_failures:
            number, self._recorder.num_failures = self._recorder.num_failures, 0
            _logger.warning("step %d: %d values or calls were not recorded, or not wholly", self._step, number)
        self._recorder.next_step()
        self._step += 1
        last = self._config.last_step
        if last is not None and self._step > last and not self._is_finished:
            self._is_finished = True
            _logger.info("all selected steps are recorded under %s", self._config.directory)
        if was_running:
            self.start(models)

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._close_writer()
        self._recorder.shut()
        self._queue.close()
        self._is_finished = True

    def abandon(self) -> None:
        """Take nothing any more, touching neither threads nor files: for a forked child, which shares both."""
        self._recorder.shut()
        self._is_finished = True
        self._writer = self._tensors = None
        self._queue = BackgroundQueue()

    # --- what is selected, and where it goes ------------------------------------------------------------------

    def _check_models(self, models: Sequence[Any]) -> list[Model]:
        for model in models:
            if not self._framework.is_model(model):
                raise SessionError(
                    f"start() got {type(model).__name__}, which is not a model of {self._framework.name}; "
                    "give the model, or a list of models"
                )
        if not models and self._config.level.has_modules:
            raise SessionError(f"level {self._config.level.value} records modules: call start(model)")
        return [Model(str(i) if len(models) > 1 else "", model) for i, model in enumerate(models)]

    def _is_selected(self) -> bool:
        if self._is_finished or not self._config.dump_enable or os.getpid() != self._process:
            return False
        # A process outside of a job is rank 0 to the configuration.
        return self._config.selects_step(self._step) and self._config.selects_rank(self._framework.rank() or 0)

    def _open_writer(self) -> None:
        config = self._config
        directory = layout.unit_directory(config.directory, self._step, self._framework.rank())
        layout.make_directory(directory)
        tensors = directory / layout.TENSOR_DIRECTORY
        if tensors.is_dir() and not tensors.is_symlink():
            shutil.rmtree(tensors, ignore_errors=True)  # of an earlier run in the same place
        if config.task is Task.TENSOR:
            layout.make_directory(tensors)
            self._tensors = open_tensor_store(config.tensor_format, self._framework, tensors)
        header = RunHeader(
            task=config.task.value,
            level=config.level.value,
            framework=self._framework.name,
            summary_mode=self._processor.name,
            has_extra_info=config.extra_info,
        )
        self._writer = self._writer_factory.open(directory, header)
        self._directory = directory
        _logger.info("recording step %d to %s", self._step, directory)

    def _keep_tensor(self, tensor: Any, stem: str, value: TensorValue) -> None:
        tensors = self._tensors
        assert tensors is not None
        snapshot = self._framework.snapshot(tensor)
        if snapshot is None:
            return

        def save() -> None:
            try:
                value.file_name = tensors.save(snapshot, stem)  # the record is written later, by the same thread
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001  # of a framework
                self._recorder.note_failure(stem, error)

        self._queue.submit(save, size_bytes=getattr(snapshot, "nbytes", 0))

    def _flush(self) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            for attachment in self._detached:
                attachment.settle()
            batch = self._recorder.drain()
            self._queue.submit(lambda: writer.write(batch))
            self._queue.wait()
        except Exception as error:  # noqa: BLE001  # of a framework, a disk or a third party's writer
            self._give_up(error)

    def _write_backlog(self) -> None:
        """Hand over what is complete, without waiting: a process that is killed in a window loses a second of it."""
        writer = self._writer
        if writer is None:
            return
        batch = self._recorder.drain_complete()
        if batch.entries:
            self._queue.submit(lambda: writer.write(batch))

    def _give_up(self, error: Exception) -> None:
        """Stop recording for good; training goes on."""
        reason = error if isinstance(error, StoreError) else f"{self._directory}: {type(error).__name__}: {error}"
        _logger.error("recording ends at step %d: %s", self._step, reason)
        self._is_finished = True
        self._recorder.shut()
        self._close_writer()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._tensors is not None:
            self._tensors.close()
            self._tensors = None


def _choose(setting: str, name: str, offers: dict[str, Any]) -> Any:
    if name not in offers:
        raise ConfigError(f"'{setting}' is {name!r}; allowed: {', '.join(sorted(offers))}")
    return offers[name]


def _check_supported(config: Config) -> None:
    """Refuse what is valid but not built yet, rather than record less than was asked for."""
    options = config.options
    if config.task not in _TASKS:
        raise ConfigError(f"the task '{config.task.value}' is not available yet; available: {_listed(_TASKS)}")
    if config.level not in _LEVELS:
        raise ConfigError(f"the level '{config.level.value}' is not available yet; available: {_listed(_LEVELS)}")
    for name in ("tensor_list", "slice", "request_id", "bench_path"):
        if getattr(options, name):
            raise ConfigError(f"'{name}' is not available yet; remove it from the block '{config.task.value}'")
    if config.load is not None:
        raise ConfigError("'load' is not available yet; remove it")


def _listed(members: Sequence[Task | Level]) -> str:
    return ", ".join(member.value for member in members)
