"""One recording session: which rank and step, where to, and who is attached when."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_core.capture.custom import CustomApis
from msprobe_core.capture.overflow import OverflowWatch
from msprobe_core.capture.recorder import Recorder, TensorSink
from msprobe_core.capture.saved import SavedRecorder
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.slices import Slices
from msprobe_core.capture.stacks import StackCache
from msprobe_core.config import Config, RiskLevel
from msprobe_core.errors import ConfigError, SessionError, StoreError
from msprobe_core.hookspecs import Attachment, Framework, Processor, Writer, WriterFactory
from msprobe_core.model import Batch, Level, RunHeader, Task, TensorValue
from msprobe_core.store import layout
from msprobe_core.store.background import BackgroundQueue

_logger = logging.getLogger(__name__)

_TASKS = (Task.STATISTICS, Task.TENSOR, Task.STRUCTURE, Task.OVERFLOW_CHECK)
_LEVELS = (Level.L0, Level.L1, Level.MIX, Level.DEBUG)


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
    custom_op_namespaces: Sequence[str]


class Session:
    """Owns everything that recording needs: the recorder, the attachment, the writer and the step counter."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        processors: dict[str, Processor],
        writers: dict[str, WriterFactory],
        custom_apis: CustomApis | None = None,
    ) -> None:
        """Prepare; nothing is attached and nothing is created on disk before ``start``.

        Args:
            config: What to record.
            framework: What is recorded.
            processors: Offers for ``summary_mode``.
            writers: Offers for ``writer``.
            custom_apis: APIs that the user registers; ``None`` takes those of the configuration.

        Raises:
            ConfigError: the configuration asks for what this version, or what is installed, does not offer.
        """
        self._config = config
        self._framework = framework
        self._processor = _choose("summary_mode", str(config.options.summary_mode), processors)
        self._writer_factory = _choose("writer", config.writer, writers)
        _check_supported(config)
        self._selection = Selection(config.options)
        self._slices = Slices(config.options)
        self._queue = BackgroundQueue()
        self._overflow: OverflowWatch | None = None
        if config.task is Task.OVERFLOW_CHECK:
            self._overflow = OverflowWatch(framework, self._save, config.options.overflow_nums)
            self._overflow.on_pressure = self._write_backlog
        self.custom_apis = custom_apis if custom_apis is not None else CustomApis(config.listed_apis)
        """Functions that are recorded because the user has named them."""
        self._attachment: Attachment | None = None
        self._detached: list[Attachment] = []
        self._models: Sequence[Model] = ()
        self._writer: Writer | None = None
        self._directory: Path | None = None
        self._step = 0
        self._is_finished = False
        self._process = os.getpid()
        self._recorder = self._new_recorder()
        self._recorder.on_backlog = self._write_backlog

    def _new_recorder(self) -> Recorder:
        config = self._config
        if config.level is Level.DEBUG:
            return SavedRecorder(self._framework, self._processor, keep_tensor=self._tensor_sink)
        return Recorder(
            self._framework,
            self._processor,
            self._selection,
            stacks=StackCache(self._framework.hidden_frames) if config.extra_info else None,
            tracks_parents=config.extra_info and config.level.has_modules,
            expands_modules=config.level is Level.MIX,
            keeps_values=config.task is not Task.STRUCTURE,
            keep_tensor=self._tensor_sink,
            slices=self._slices if config.options.slice or config.options.request_id else None,
        )

    @property
    def _keeps_tensors(self) -> bool:
        has_list = bool(self._config.options.tensor_list) and self._config.level is not Level.DEBUG
        return self._config.task in {Task.TENSOR, Task.OVERFLOW_CHECK} or has_list

    @property
    def _tensor_sink(self) -> TensorSink | None:
        if self._overflow is not None:
            return self._overflow.hold
        return self._keep_tensor if self._keeps_tensors else None

    @property
    def is_running(self) -> bool:
        """Whether calls are being recorded."""
        return self._attachment is not None

    @property
    def is_finished(self) -> bool:
        """Whether nothing will be recorded any more: all selected steps are, or recording had to be given up."""
        return self._is_finished

    @property
    def directory(self) -> Path | None:
        """Where the current step is being written, or the last one was; ``None`` before the first."""
        return self._directory

    def start(self, models: Sequence[Any], scheduled_tokens: object = None) -> None:
        """Begin to record, if this step and this rank are selected.

        A session that is already recording begins anew with the given models: an exception may have skipped its end.

        Args:
            models: The models to record.
            scheduled_tokens: See `Slices.follow`.

        Raises:
            SessionError: the level needs a model and none is given, or something is not a model.
            StoreError: the dump cannot be created.
        """
        if self.is_running:
            self.stop()
        named = self._check_models(models)
        if self._config.level is Level.DEBUG or not self._is_selected() or not self._slices.follow(scheduled_tokens):
            return
        self._release()  # or the gradients of parameters would be seen twice
        self._models = named
        if self._writer is None:
            self._open_writer()
        attachment = self._attachment = self._framework.attach(named, self._interception(), self._recorder)
        if self._config.level.has_apis:
            try:
                self.custom_apis.attach(attachment)
            except BaseException:
                self.stop()
                raise

    def _interception(self) -> Interception:
        config = self._config
        # Who names entries wants those, whatever risk they are.
        names_entries = config.options.scope or config.options.list
        risk_level = RiskLevel.ALL if names_entries else config.risk_level
        return Interception(config.level, risk_level.value, config.custom_op_namespaces)

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Record one value at level debug, if this step and this rank are selected; see `SavedRecorder.save`."""
        recorder = self._recorder
        if not isinstance(recorder, SavedRecorder) or not self._is_selected():
            return
        if self._writer is None:
            try:
                self._open_writer()
            except StoreError as error:
                self._give_up(error)
                return
        recorder.save(variable, name, save_backward=save_backward)

    def stop(self) -> None:
        """Stop recording and write what has been recorded; returns when it is on disk."""
        if self._attachment is not None:
            attachment, self._attachment = self._attachment, None
            self.custom_apis.detach()
            attachment.detach()
            self._detached.append(attachment)
        self._flush()
        if self._overflow is not None:
            self._overflow.forget()
            self._is_finished = self._is_finished or self._overflow.is_over

    def step(self) -> None:
        """End the step: write, close its files, count on, and go on recording if it was."""
        was_running, models = self.is_running, [model.model for model in self._models]
        self._end_saving()
        self.stop()
        if self._writer is not None and (complaint := self._selection.complaint()):
            _logger.warning("step %d: %s", self._step, complaint)
        self._close_writer()
        self._release()
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
        self._end_saving()
        self.stop()
        self._release()
        self._close_writer()
        self.custom_apis.complain()
        self._recorder.shut()
        self._queue.close()
        if self._overflow is not None:
            self._overflow.end()
        self._is_finished = True

    def _end_saving(self) -> None:
        if isinstance(self._recorder, SavedRecorder):
            self._recorder.end_step()

    def abandon(self) -> None:
        """Take nothing any more, touching neither threads nor files: for a forked child, which shares both."""
        self._recorder.shut()
        self._is_finished = True
        self._writer = None
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
        if self._keeps_tensors:
            layout.make_directory(tensors)
        header = RunHeader(
            task=config.task.value,
            level=config.level.value,
            framework=self._framework.name,
            summary_mode=self._processor.name,
            has_extra_info=config.extra_info and config.level is not Level.DEBUG,
            keeps_tensors=self._keeps_tensors,
        )
        self._writer = self._writer_factory.open(directory, header)
        self._directory = directory
        _logger.info("recording step %d to %s", self._step, directory)

    def _keep_tensor(self, tensor: Any, stem: str, value: TensorValue) -> None:
        snapshot = self._framework.snapshot(tensor)
        if snapshot is not None:
            self._save(snapshot, stem, value)

    def _save(self, snapshot: Any, stem: str, value: TensorValue) -> None:
        assert self._directory is not None
        name = layout.tensor_file_name(stem, self._framework.tensor_suffix)
        path = self._directory / layout.TENSOR_DIRECTORY / name
        value.file_name = name

        def save() -> None:
            try:
                self._framework.save(snapshot, path)
            except Exception as error:
                value.file_name = None  # the record is written later, by the same thread
                path.unlink(missing_ok=True)
                if (full := _os_error_in(error)) is not None:
                    raise StoreError(f"{path}: cannot be written ({full.strerror or full})") from error
                self._recorder.note_failure(name, error)

        self._queue.submit(save, size_bytes=getattr(snapshot, "nbytes", 0))

    def _flush(self) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            for attachment in self._detached:
                attachment.settle()
            batch = self._sifted(self._recorder.drain())
            self._queue.submit(lambda: writer.write(batch))
            self._queue.wait()
        except Exception as error:  # noqa: BLE001  # of a framework, a disk or a third party's writer
            self._give_up(error)

    def _sifted(self, batch: Batch) -> Batch:
        return batch if self._overflow is None else self._overflow.sift(batch, self._step)

    def _write_backlog(self) -> None:
        """Hand over what is complete, without waiting: a process that is killed in a window loses a second of it."""
        writer = self._writer
        if writer is None:
            return
        batch = self._sifted(self._recorder.drain_complete())
        if batch.entries or batch.parents:
            self._queue.submit(lambda: writer.write(batch))

    def _give_up(self, error: Exception) -> None:
        """Stop recording for good; training goes on."""
        reason = error if isinstance(error, StoreError) else f"{self._directory}: {type(error).__name__}: {error}"
        _logger.error("recording ends at step %d: %s", self._step, reason)
        self._is_finished = True
        self._recorder.shut()
        self._close_writer()

    def _release(self) -> None:
        while self._detached:
            self._detached.pop().release()

    def _close_writer(self) -> None:
        if self._writer is not None:
            if self._overflow is not None:
                self._overflow.end_step(self._step)
            self._writer.close()
            self._writer = None


def _os_error_in(error: BaseException | None) -> OSError | None:
    """Return the `OSError` behind ``error``: PyTorch turns a full disk into a RuntimeError."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


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
    if config.level is Level.DEBUG:
        _check_saving(config)
    for name in ("bench_path",):
        if getattr(options, name):
            raise ConfigError(f"'{name}' is not available yet; remove it from the block '{config.task.value}'")
    if config.load is not None:
        raise ConfigError("'load' is not available yet; remove it")


def _check_saving(config: Config) -> None:
    """Say which settings have no meaning for values that the program saves itself."""
    if config.task not in {Task.STATISTICS, Task.TENSOR}:
        raise ConfigError(f"the task '{config.task.value}' does not apply at level debug; use statistics or tensor")
    ignored = ("scope", "list", "tensor_list", "slice", "request_id")
    for name in ignored:
        if getattr(config.options, name):
            _logger.warning("'%s' has no meaning at level debug and is ignored", name)


def _listed(members: Sequence[Task | Level]) -> str:
    return ", ".join(member.value for member in members)
