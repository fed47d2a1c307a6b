"""One recording session: which rank and step, where to, and who is attached when."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.features.input_replay import InputLoader
from msprobe_core.capture.features.manual_save import SavedValues
from msprobe_core.capture.features.overflow import OverflowWatch
from msprobe_core.capture.features.reference_check import BenchCheck
from msprobe_core.capture.identity import own_identity
from msprobe_core.capture.perturbation import seed_of
from msprobe_core.capture.place import RunPlace
from msprobe_core.capture.processors import Fp8Processor, GuardedProcessor
from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.recorder_adapters import ForwardWindow, SingleModuleRecorder, UnwrappingRecorder
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.slices import Slices
from msprobe_core.capture.stacks import StackCache
from msprobe_core.capture.tensor_reader import TensorSink
from msprobe_core.capture.tensors import open_tensor_store
from msprobe_core.capture.unit import UnitRecording
from msprobe_core.config import Config, RiskLevel, TaskOptions
from msprobe_core.errors import ConfigError, MsprobeError, PluginError, SessionError
from msprobe_core.guard import described, kept, plugin_call
from msprobe_core.model import Batch, EndState, Level, RunHeader, Task, TensorValue
from msprobe_core.plugins import registry
from msprobe_core.protocols.capabilities import (
    CheckingFramework,
    CompilingFramework,
    Fp8Reducer,
    OperatorFramework,
    PerturbingFramework,
    WatchingFramework,
)
from msprobe_core.protocols.framework import Framework, Removable
from msprobe_core.protocols.storage import Processor, WriterFactory
from msprobe_core.store import layout
from msprobe_core.store.background import BackgroundQueue
from msprobe_core.store.stored_dump import clip

_logger = logging.getLogger(__name__)

_Placed = TypeVar("_Placed", bound=Removable)

_LEVELS = (Level.L0, Level.L1, Level.MIX, Level.DEBUG)


@dataclass(frozen=True)
class Model:
    """One model given to ``start``; see `msprobe_core.plugin.NamedModel`."""

    name: str
    model: Any


@dataclass(frozen=True)
class Window:
    """What is given to ``start``.

    Attributes:
        models: One model or several; empty for none.
        is_list: Whether they were given as a list. Paths of modules then begin with the position in it, also in a list
            of one; of several models they always do.
        token_range: First and last forward of the models that are recorded, both included; ``None`` records all.
        rank_id: The rank of this process; ``None`` asks the framework.
    """

    models: Sequence[Any] = ()
    is_list: bool = False
    token_range: tuple[int, int] | None = None
    rank_id: int | None = None


@dataclass(frozen=True)
class Interception:
    """See `msprobe_core.plugin.AttachOptions`."""

    level: Level
    risk_level: str
    custom_op_namespaces: Sequence[str]
    aten: bool = False


class Session:
    """Owns everything that recording needs: the recorder, the attachment, the writer and the step counter."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        processors: dict[str, Processor],
        writers: dict[str, WriterFactory],
        custom_apis: CustomApis | None = None,
        *,
        unwraps: bool = False,
        on_failure: Callable[[Session, Exception], None] | None = None,
    ) -> None:
        """Prepare; nothing is attached and nothing is created on disk before ``start``.

        Args:
            config: What to record.
            framework: What is recorded.
            processors: Offers for ``summary_mode``.
            writers: Offers for ``writer``.
            custom_apis: APIs that the user registers; ``None`` takes those of the configuration.
            unwraps: Whether modules are called as they are without wrappers of FSDP and the like.
            on_failure: Is told why recording has been given up, in the place of `log_failure`; may raise.

        Raises:
            ConfigError: the configuration asks for what this version, or what is installed, does not offer.
            PluginError: something that the writer needs is not installed.
        """
        self._config = config
        self._framework = framework
        self._unwraps = unwraps
        self._on_failure = on_failure or Session.log_failure
        self._processor = _guarded_processor(_choose("summary_mode", str(config.options.summary_mode), processors))
        self._writer_factory: WriterFactory = _choose("writer", config.writer, writers)
        self._writer_factory.check()
        self._writer_name = registry().described("writer", config.writer)
        self._framework_name = registry().described("framework", framework.name)
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
        self._attachments: list[Removable] = []
        self._sole: Model | None = None
        self._records = False
        self._has_attached_sole = False
        self._loader = (
            InputLoader(config.load, framework, _watching("load", framework)) if config.load is not None else None
        )
        if config.aten and not (isinstance(framework, OperatorFramework) and framework.sees_operators):
            raise PluginError(
                f"'aten' is not available for {framework.name}: its plugin does not see what runs below the APIs; "
                "leave 'aten' out"
            )
        if self._processor.name == Fp8Processor.name and not isinstance(framework.reducer(), Fp8Reducer):
            raise PluginError(
                f"the summary mode 'fp8' is not available for {framework.name}: its plugin does not compute it; "
                "choose another 'summary_mode'"
            )
        if config.perturb is not None:
            self._perturbing()  # or say now that it cannot be
        self._num_windows = 0
        self._window = Window()
        self._complaint: str | None = None
        self._is_started = False
        self._detached: list[Removable] = []
        self._unit: UnitRecording | None = None
        self._unit_rank: int | None = None
        self._place = RunPlace(config.directory)
        self._directory: Path | None = None
        self._step = 0
        self._has_recorded = False
        self._is_finished = False
        self._has_given_up = False
        self._process = os.getpid()
        self._recorder = self._new_recorder()
        self._check = self._recorder.reader.check = self._new_check()
        self._saved = (
            SavedValues(framework, self._recorder.record, self._recorder.reader)
            if config.level is Level.DEBUG
            else None
        )
        self._recorder.record.on_backlog = self._write_backlog
        if self._may_act() and isinstance(framework, CheckingFramework):
            with self._plugin_call("checking the configuration"):
                framework.check(self._interception())

    def _new_recorder(self) -> Recorder:
        config = self._config
        if config.level is Level.DEBUG:
            return Recorder(
                self._framework,
                self._processor,
                Selection(TaskOptions()),
                stacks=None,
                tracks_parents=False,
                expands_modules=False,
                keep_tensor=self._tensor_sink,
            )
        return Recorder(
            self._framework,
            self._processor,
            self._selection,
            stacks=StackCache(self._framework.hidden_frames) if config.extra_info else None,
            tracks_parents=config.extra_info and (config.level.has_modules or config.aten),
            expands_modules=config.level is Level.MIX,
            keeps_values=config.task is not Task.STRUCTURE,
            keep_tensor=self._tensor_sink,
            slices=self._slices if config.options.slice or config.options.request_id else None,
        )

    def _new_check(self) -> BenchCheck | None:
        options = self._config.options
        if not options.bench_path or self._config.level is Level.DEBUG:
            return None
        root = Path(options.bench_path).expanduser().absolute()
        return BenchCheck(
            root, options.diff_nums, snapshot=self._framework.snapshot, save=self._save, end=self._end_recording
        )

    def _end_recording(self) -> None:
        """Take nothing any more; what has been recorded is written when the window ends."""
        self.break_off("the check against 'bench_path' ended it")
        self._is_finished = True
        self._recorder.shut()

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
        return bool(self._attachments)

    @property
    def framework(self) -> Framework:
        """What is recorded."""
        return self._framework

    @property
    def running_window(self) -> Window | None:
        """What was given to ``start``, until ``stop``, also in steps that are not selected; ``None`` otherwise."""
        return self._window if self._is_started else None

    @property
    def is_between_steps(self) -> bool:
        """Whether nothing of the current step has been recorded yet."""
        return self._unit is None and not self.is_running

    @property
    def step_number(self) -> int:
        """The current step, from 0."""
        return self._step

    def continue_from(self, earlier: Session, step: int | None = None) -> None:
        """Take the place of a session with another configuration, at its step or at another."""
        self.begin_at(earlier._step if step is None else step)
        if earlier._sole is not None:
            self.dump_module(earlier._sole.model, earlier._sole.name)

    def begin_at(self, step: int) -> None:
        """Count on from ``step``.

        Raises:
            SessionError: ``step`` is no number of a step, or the current step is being recorded.
        """
        if not _is_number(step):
            raise SessionError(f"set_init_step() got {step!r}; give an integer from 0")
        if not self.is_between_steps:
            raise SessionError(
                f"set_init_step({step}) comes too late: step {self._step} is being recorded; call it before start()"
            )
        self._step = step
        if self._recorder.is_open:  # an error has not ended recording
            last = self._config.last_step
            self._is_finished = last is not None and step > last

    @property
    def is_finished(self) -> bool:
        """Whether nothing will be recorded any more: all selected steps are, or recording had to be given up."""
        return self._is_finished

    @property
    def directory(self) -> Path | None:
        """Where the current step is being written, or the last one was; ``None`` before the first."""
        return self._directory

    def start(
        self,
        models: Sequence[Any],
        *,
        is_list: bool = False,
        token_range: Any = None,
        rank_id: Any = None,
        scheduled_tokens: object = None,
    ) -> None:
        """Begin to record, if this step and this rank are selected.

        A session that is already recording begins anew with the given models: an exception may have skipped its end.

        Args:
            models: See `Window`, as the next three.
            is_list: See `Window`.
            token_range: A list of two numbers.
            rank_id: Wins over the framework's rank, for the directory and for what ``rank`` selects.
            scheduled_tokens: See `Slices.follow`.

        Raises:
            SessionError: an argument is wrong, the level needs a model and none is given, or something is not a model.
        """
        with self._guarded():
            window = Window(models, is_list, _checked_range(token_range), _checked_rank(rank_id))
            self._start(window, scheduled_tokens)

    def _start(self, window: Window, scheduled_tokens: object) -> None:
        if self._has_given_up:
            return
        if self.is_running:
            self.stop()
        self._window = window
        named = self._check_models(window.models, is_list=window.is_list)
        self._is_started = True
        self._prepare(named)
        loads = self._loader is not None and self._may_act() and self._loader.begin(self._step, self._rank())
        is_wanted = self._config.level is not Level.DEBUG and self._is_selected()
        records = is_wanted and self._slices.follow(scheduled_tokens)
        if records or loads:
            self._release()  # or the gradients of parameters would be seen twice
        if records:
            self._prepare_unit()
        if loads or records or self._perturbs():
            self._attach(named, records=records, loads=loads)

    def _prepare(self, models: Sequence[Model]) -> None:
        """Tell a framework that compiles models of them, also in a step that is not selected."""
        framework, config = self._framework, self._config
        may_record = not self._is_finished and self._may_act() and config.selects_rank(self._rank() or 0)
        if may_record and models and config.level is not Level.DEBUG and isinstance(framework, CompilingFramework):
            with self._plugin_call("preparing models"):
                framework.prepare(models, self._interception())

    def _prepare_unit(self) -> None:
        if self._unit is None:
            self._open_unit()
            return
        self._unit.begin_window()
        if self._unit_rank != self._rank():
            _logger.warning("this step is being recorded to %s and goes on there, whatever rank_id is", self._directory)

    def _attach(self, models: Sequence[Model], *, records: bool, loads: bool) -> None:
        try:
            if self._perturbs():
                self._perturb(models)
            forwards = self._watch_forwards(models)
            if loads:
                assert self._loader is not None
                self._loader.forwards = forwards
                self._put_in_place(_watching("load", self._framework).watch, models, self._loader)
            if not records:
                return
            self._records = True
            self._recorder.forwards = forwards
            seen = UnwrappingRecorder(self._recorder) if self._unwraps else self._recorder
            attachment = self._put_in_place(self._framework.attach, models, self._interception(), seen)
            if self._config.level.has_apis:
                self.custom_apis.attach(attachment)
            if self._sole is not None:
                self._attach_sole(self._sole)
        except BaseException:
            self._detach()
            raise

    def _plugin_call(self, doing: str) -> AbstractContextManager[None]:
        return plugin_call(self._framework_name, doing)

    def _put_in_place(self, place: Callable[..., _Placed], *arguments: Any) -> _Placed:
        """Return what a framework has put in place, to be taken out when the window ends."""
        with self._plugin_call("attaching"):
            placed = place(*arguments)
        if not all(hasattr(placed, name) for name in ("detach", "settle", "release")):
            raise PluginError(f"{self._framework_name} returned {placed!r} from attaching, which cannot be detached")
        self._attachments.append(placed)
        return placed

    def _perturbs(self) -> bool:
        # Also on ranks that are not recorded: what they compute reaches those that are.
        return self._config.perturb is not None and self._may_act() and self._config.selects_step(self._step)

    def _perturb(self, models: Sequence[Model]) -> None:
        perturbation = self._config.perturb
        assert perturbation is not None
        seed = seed_of(perturbation, self._step, self._num_windows)
        self._num_windows += 1
        self._put_in_place(self._perturbing().perturb, models, perturbation, seed)

    def _perturbing(self) -> PerturbingFramework:
        if not isinstance(self._framework, PerturbingFramework):
            raise PluginError(f"'perturb' is not available for {self._framework.name}: its plugin does not offer it")
        return self._framework

    def _interception(self) -> Interception:
        config = self._config
        # Who names entries wants those, whatever risk they are.
        names_entries = config.options.scope or config.options.list
        risk_level = RiskLevel.ALL if names_entries else config.risk_level
        return Interception(config.level, risk_level.value, config.custom_op_namespaces, config.aten)

    def _watch_forwards(self, models: Sequence[Model]) -> ForwardWindow | None:
        if self._window.token_range is None:
            return None
        forwards = ForwardWindow(*self._window.token_range, [model.name for model in models])
        self._put_in_place(_watching("token_range", self._framework).watch, models, forwards)
        return forwards

    def _attach_sole(self, module: Model) -> None:
        recorder = SingleModuleRecorder(self._recorder, module.name)
        options = replace(self._interception(), level=Level.L0, aten=False)
        self._put_in_place(self._framework.attach, [module], options, recorder)
        self._has_attached_sole = True

    def _detach(self) -> None:
        """Take out everything, also what comes behind something that fails."""
        self._records = self._has_attached_sole = False
        with ExitStack() as stack:
            for _ in self._attachments:
                stack.callback(self._detach_last)
            stack.callback(self.custom_apis.detach)

    def _detach_last(self) -> None:
        attachment = self._attachments.pop()
        self._detached.append(attachment)
        with self._plugin_call("detaching"):
            attachment.detach()

    def dump_module(self, module: Any, name: str) -> None:
        """Record calls of ``module`` under ``name``, and nothing else, until ``end_module_dump``.

        Raises:
            SessionError: ``module`` is none, or ``name`` is no name.
        """
        (sole,) = self._check_models([module])
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's argument
            raise SessionError(f"module_dump() got the name {name!r}; give a text, such as 'decoder'")
        self.end_module_dump()
        self._sole = Model(name, sole.model)
        self._recorder.is_single = True
        if self._records:
            with self._guarded():
                self._attach_sole(self._sole)

    def end_module_dump(self) -> None:
        """Record again what was recorded before ``dump_module``."""
        if self._has_attached_sole:
            self._has_attached_sole = False
            with self._guarded():
                self._detach_last()  # it is on top of all others
        self._sole = None
        self._recorder.is_single = False

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Record one value at level debug, if this step and this rank are selected; see `SavedValues.save`."""
        with self._guarded():
            if self._saved is None or not self._is_selected():
                return
            if self._unit is None:
                self._open_unit()
            self._saved.save(variable, name, save_backward=save_backward)

    def break_off(self, reason: str) -> None:
        """Take note that something keeps the current step from being done to its end; its dump then says so."""
        if self._unit is not None:
            self._unit.break_off(reason)

    def stop(self) -> None:
        """Stop recording and write what has been recorded; returns when it is on disk."""
        with self._guarded():
            self._stop()

    def _stop(self) -> None:
        was_running = self.is_running
        self._is_started = False
        self._detach()
        self._flush(is_first_end=was_running)
        if was_running and self._loader is not None:
            self._loader.report()
        if self._overflow is not None:
            self._overflow.forget()
            self._is_finished = self._is_finished or self._overflow.is_over

    def set_aside(self) -> None:
        """Stop, and hear no more of calls that were recorded, so that they can be repeated for another session."""
        with self._guarded():
            self._stop()
            self._release()

    def conclude(self) -> None:
        """Stop, and let the dump say that it is all of its step, although that may have further windows."""
        with self._guarded():
            self._stop()
            if self._unit is not None:
                self._unit.conclude()

    def discard_if_empty(self) -> None:
        """Remove the dump of the current step if no call was recorded into it: its window was opened for none."""
        with self._guarded():
            self._stop()
            unit = self._unit
            if unit is not None and not self._has_recorded:
                self._close_unit()
                unit.remove()

    def step(self) -> None:
        """End the step: write, close its files, count on, and go on recording if it was."""
        window = self.running_window
        with self._guarded():
            self._end_saving()
            self._stop()
            self._end_step()
        self._count_on()
        if window is not None:
            self.start(window.models, is_list=window.is_list, token_range=window.token_range, rank_id=window.rank_id)

    def _end_step(self) -> None:
        self._complain()
        if self._unit is not None and self._check is not None:
            self._check.end_step()
        self._close_unit()
        self._release()

    def _count_on(self) -> None:
        if self._recorder.reader.num_failures:
            number, self._recorder.reader.num_failures = self._recorder.reader.num_failures, 0
            _logger.warning("step %d: %d values or calls were not recorded, or not wholly", self._step, number)
        self._recorder.next_step()
        self._step += 1
        self._has_recorded = False
        last = self._config.last_step
        if last is not None and self._step > last and not self._is_finished:
            self._is_finished = True
            _logger.info("all selected steps are recorded under %s", self._config.directory)

    def close(self, state: EndState = EndState.COMPLETE) -> None:
        """Stop for good.

        Args:
            state: What the dump of the current step says of its end.
        """
        with self._guarded():
            self._end_saving()
            self._stop()
            self._complain()
            self._release()
            self._close_unit(state)
        self.custom_apis.complain()
        self._recorder.shut()
        self._queue.close()
        self._place.close()
        if self._overflow is not None:
            self._overflow.end()
        self._is_finished = True

    def _complain(self) -> None:
        """Say what the selection of this step came to, unless the last complaint said the same."""
        if self._unit is None or self._config.level is Level.DEBUG:
            return
        complaint = self._selection.complaint()
        if complaint and complaint != self._complaint:
            _logger.warning("step %d: %s", self._step, complaint)
        self._complaint = complaint

    def _end_saving(self) -> None:
        if self._saved is not None:
            self._saved.end_step()

    def abandon(self) -> None:
        """Take nothing any more, touching neither threads nor files: for a forked child, which shares both."""
        self._recorder.shut()
        self._is_finished = True
        self._unit = None
        self._place.abandon()
        self._queue = BackgroundQueue()

    # --- what is selected, and where it goes ------------------------------------------------------------------

    def _check_models(self, models: Sequence[Any], *, is_list: bool = False) -> list[Model]:
        for model in models:
            if not self._framework.is_model(model):
                raise SessionError(
                    f"start() got {type(model).__name__}, which is not a model of {self._framework.name}; "
                    "give the model, or a list of models"
                )
        if not models and self._config.level.has_modules:
            raise SessionError(f"level {self._config.level.value} records modules: call start(model)")
        if not models and self._loader is not None:
            raise SessionError("'load' replaces inputs of modules: call start(model)")
        if self._window.token_range is not None:
            if not models:
                raise SessionError("token_range counts the forwards of a model: call start(model, token_range=[a, b])")
            if not isinstance(self._framework, WatchingFramework):
                raise SessionError(_not_watched("token_range", self._framework))
        is_numbered = is_list or len(models) > 1
        return [Model(str(i) if is_numbered else "", model) for i, model in enumerate(models)]

    def _is_selected(self) -> bool:
        load = self._config.load
        if self._is_finished or not self._may_act() or (load is not None and not load.dump_after_load):
            return False
        # A process outside of a job is rank 0 to the configuration.
        return self._config.selects_step(self._step) and self._config.selects_rank(self._rank() or 0)

    def _may_act(self) -> bool:
        return self._config.dump_enable and os.getpid() == self._process

    def _rank(self) -> int | None:
        return self._framework.rank() if self._window.rank_id is None else self._window.rank_id

    def _open_unit(self) -> None:
        config = self._config
        self._unit_rank = self._rank()
        directory = layout.unit_directory(self._place.directory(self._unit_rank), self._step, self._unit_rank)
        header = RunHeader(
            task=config.task.value,
            level=config.level.value,
            framework=self._framework.name,
            summary_mode=self._processor.name,
            has_extra_info=config.extra_info and config.level is not Level.DEBUG,
            keeps_tensors=self._keeps_tensors,
            run=own_identity(),
        )
        unit = UnitRecording(directory, header, self._writer_factory, self._writer_name, self._queue)
        self._unit, self._directory = unit, directory
        if self._keeps_tensors:
            tensors = directory / layout.TENSOR_DIRECTORY
            layout.make_directory(tensors)
            unit.tensors = open_tensor_store(config.tensor_format, self._framework, tensors)
        if self._check is not None:
            self._check.begin(self._step, self._rank())
        _logger.info("recording step %d to %s", self._step, directory)

    def _keep_tensor(self, tensor: Any, stem: str, value: TensorValue) -> None:
        snapshot = self._framework.snapshot(tensor)
        if snapshot is not None:
            self._save(snapshot, stem, value)

    def _save(self, snapshot: Any, stem: str, value: TensorValue) -> None:
        with self._recorder.record.lock:
            if self._unit is not None:  # the step has ended meanwhile, on another thread
                self._unit.keep(snapshot, stem, value, self._recorder.note_failure)

    def _flush(self, *, is_first_end: bool) -> None:
        """Write what is there; see `UnitRecording.end_window`."""
        unit = self._unit
        if unit is None:
            return
        for attachment in self._detached:
            with self._plugin_call("settling"):
                attachment.settle()
        batch = self._sifted(self._recorder.drain())
        self._has_recorded |= bool(batch.entries)
        unit.write(batch)
        unit.end_window(is_first_end=is_first_end)
        unit.wait()

    def _sifted(self, batch: Batch) -> Batch:
        return batch if self._overflow is None else self._overflow.sift(batch, self._step)

    def _write_backlog(self) -> None:
        """Hand over what is complete, without waiting: a process that is killed in a window loses a second of it."""
        unit = self._unit
        if unit is None:
            return
        batch = self._sifted(self._recorder.drain_complete())
        if batch.entries or batch.parents:
            self._has_recorded |= bool(batch.entries)
            unit.write(batch)

    @contextmanager
    def _guarded(self) -> Generator[None, None, None]:
        """Give up if the block raises: nothing of ours ends a training. Only wrong arguments are said to the caller."""
        try:
            yield
        except SessionError:
            raise
        except BaseException as error:  # noqa: BLE001  # of plugins, frameworks and disks
            self._give_up(kept(error))

    def _give_up(self, error: Exception) -> None:
        """Stop recording for good; training goes on."""
        self._is_finished = self._has_given_up = True
        self._recorder.shut()
        self.break_off(f"recording was given up: {clip(str(error) if _is_ours(error) else described(error))}")
        for end in (self._detach, self._release, self._close_unit):
            try:
                end()
            except Exception as further:  # noqa: BLE001, PERF203  # one reason is enough, and what can be closed is
                _logger.debug("while recording was given up: %s", described(further))
        self._on_failure(self, error)

    def log_failure(self, error: Exception) -> None:
        """Say that recording has been given up, and why."""
        where = self._directory or self._config.directory
        reason = str(error) if _is_ours(error) else f"{where}: {described(error)}"
        _logger.error("recording ends at step %d, training goes on: %s", self._step, reason)

    def _release(self) -> None:
        with ExitStack() as stack:
            for _ in self._detached:
                stack.callback(self._release_last)

    def _release_last(self) -> None:
        with self._plugin_call("releasing"):
            self._detached.pop().release()

    def _close_unit(self, state: EndState = EndState.COMPLETE) -> None:
        with self._recorder.record.lock:  # or hooks of other threads would hand over to files that are closed
            unit, self._unit = self._unit, None
        if unit is None:
            return
        if self._overflow is not None:
            self._overflow.end_step(self._step)
        unit.close(state)


def _guarded_processor(processor: Processor) -> Processor:
    """Return a processor whose failures name the plugin that offers it; the core's own has none to name."""
    if registry().provider_of("msprobe_register_processors", processor.name) is None:
        return processor
    return GuardedProcessor(processor, registry().described("processor", processor.name))


def _is_ours(error: Exception) -> bool:
    return isinstance(error, MsprobeError)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _checked_rank(value: Any) -> int | None:
    if value is None or _is_number(value):
        return value
    raise SessionError(f"start() got rank_id={value!r}; give an integer from 0")


def _checked_range(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    numbers: list[Any] = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or not all(map(_is_number, numbers)) or numbers[0] > numbers[1]:
        raise SessionError(f"start() got token_range={value!r}; give the first and the last forward, such as [0, 3]")
    return numbers[0], numbers[1]


def _watching(what: str, framework: Framework) -> WatchingFramework:
    if not isinstance(framework, WatchingFramework):
        raise PluginError(_not_watched(what, framework))
    return framework


def _not_watched(what: str, framework: Framework) -> str:
    return f"{what!r} is not available for {framework.name}: its plugin does not offer to watch calls"


def _choose(setting: str, name: str, offers: dict[str, Any]) -> Any:
    if name not in offers:
        raise ConfigError(f"'{setting}' is {name!r}; allowed: {', '.join(sorted(offers))}")
    return offers[name]


def _check_supported(config: Config) -> None:
    """Refuse what is valid but not built yet, rather than record less than was asked for."""
    if config.level not in _LEVELS:
        raise ConfigError(
            f"the level '{config.level.value}' is not available yet; available: {_listed(_LEVELS)} (kernels, level L2, "
            "are dumped by MindSpore only, for all of a program)"
        )
    if config.level is Level.DEBUG:
        _check_saving(config)
    _check_earlier_run(config)


def _check_earlier_run(config: Config) -> None:
    """Refuse to write over the run that is read."""
    load, bench = config.load, config.options.bench_path
    loaded = load.path if load is not None and load.dump_after_load else None
    for setting, path in (("load.path", loaded), ("bench_path", bench)):
        if path and Path(path).expanduser().resolve() == config.directory.resolve():
            raise ConfigError(
                f"'{setting}' and 'dump_path' are both {path}: that run would be lost; give another 'dump_path'"
            )


def _check_saving(config: Config) -> None:
    """Say which settings have no meaning for values that the program saves itself."""
    if config.task not in {Task.STATISTICS, Task.TENSOR}:
        raise ConfigError(f"the task '{config.task.value}' does not apply at level debug; use statistics or tensor")
    if config.writer != "json":
        raise ConfigError(f"'writer' is {config.writer!r}, but level debug writes debug.json; remove one of them")
    ignored = ("scope", "list", "tensor_list", "slice", "request_id", "bench_path")
    for name in ignored:
        if getattr(config.options, name):
            _logger.warning("'%s' has no meaning at level debug and is ignored", name)


def _listed(members: Sequence[Level]) -> str:
    return ", ".join(member.value for member in members)
