"""The parts of a session, put together for a configuration: what records, where it goes, and when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msprobe_core.capture import checks
from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.features import make_features
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.features.manual_save import SavedValues
from msprobe_core.capture.manifests import Manifests
from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.schedule import Schedule, checked_step
from msprobe_core.capture.selection import Selection
from msprobe_core.capture.slices import Slices
from msprobe_core.capture.unit_output import UnitOutput
from msprobe_core.capture.window import Windows
from msprobe_core.config import Config, TaskOptions
from msprobe_core.errors import SessionError, clip
from msprobe_core.guard import described, kept, message_of
from msprobe_core.interception.stacks import StackCache
from msprobe_core.model import EndState, Level, Task
from msprobe_core.plugins import registry
from msprobe_core.plugins.chosen import choose
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.storage import Processor

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionParts:
    """What a session coordinates.

    Attributes:
        schedule: Which steps and ranks are recorded.
        selection: Which calls are.
        slices: Which part of each tensor is.
        recorder: Receives calls.
        output: Dump of the current step.
        features: What is attached beside the recorder.
        saved: Values that the program gives itself; at level debug only.
        custom_apis: Functions that the user registered.
        windows: What is in place between start and stop.
    """

    schedule: Schedule
    selection: Selection
    slices: Slices
    recorder: Recorder
    output: UnitOutput
    features: Sequence[Feature]
    saved: SavedValues | None
    custom_apis: CustomApis
    windows: Windows

    @property
    def is_between_steps(self) -> bool:
        """Whether nothing of the current step has been recorded yet."""
        return not self.output.is_open and not self.windows.is_running

    def begin_at(self, step: int) -> None:
        """Continue at ``step``.

        Raises:
            SessionError: ``step`` is not an integer >= 0, or the current step is being recorded.
        """
        step = checked_step(step)
        if not self.is_between_steps:
            raise SessionError(
                f"set_init_step({step}) comes too late: step {self.schedule.step} is being recorded; "
                "call it before start()"
            )
        self.schedule.begin_at(step, can_record=self.recorder.is_open)

    def end_step(self, state: EndState = EndState.COMPLETE) -> None:
        """Close the window, and end the dump of the current step with ``state``."""
        for feature in self.features:
            feature.finish_step()
        self.windows.end()
        if self.output.is_open and self.saved is None:
            self.selection.report(self.schedule.step, self.output.directory, num_calls=self.recorder.clock)
        self.output.close_unit(state)
        self.windows.release()

    def count_step(self) -> None:
        """Go on to the next step, after the files of this one were closed."""
        self.recorder.reader.report_failures(self.schedule.step)
        self.recorder.next_step()
        self.schedule.count_on()
        self.output.num_entries_of_last_step, self.output.num_entries = self.output.num_entries, 0

    def end_recording(self, reason: str) -> None:
        """Stop recording; entries so far are written when the window ends."""
        self.output.break_off(reason)
        self.schedule.is_finished = True
        self.recorder.shut()

    @contextmanager
    def guarded(self, on_failure: Callable[[Exception], None]) -> Generator[None, None, None]:
        """Give up recording if the block raises: no error of ours ends a training. Only wrong arguments raise."""
        try:
            yield
        except SessionError:
            raise
        except BaseException as error:  # noqa: BLE001  # from plugins, frameworks or disks
            failure = kept(error)
            self.give_up(failure)
            on_failure(failure)

    def give_up(self, error: Exception) -> None:
        """Stop recording after a failure: remove what is attached, and end the dump with the reason."""
        self.end_recording(f"recording was given up: {clip(message_of(error))}")
        for end in (self.windows.detach, self.windows.release, self.output.close_unit):
            try:
                end()
            except Exception as further:  # noqa: BLE001, PERF203  # one reason is enough; close the rest anyway
                _logger.debug("while recording was given up: %s", described(further))

    def abandon(self) -> None:
        """Stop recording without touching threads or files, in a forked child that shares them with its parent."""
        self.recorder.shut()
        self.schedule.is_finished = True
        self.output.abandon()


def put_together(
    config: Config,
    framework: Framework,
    custom_apis: CustomApis | None = None,
    manifests: Manifests | None = None,
    *,
    unwraps: bool = False,
) -> SessionParts:
    """Return the parts of a session; nothing is attached and nothing is created on disk.

    See `msprobe_core.capture.session.Session` for arguments and errors.
    """
    processor = checks.processor_for(config)
    writer = choose("writer", config.writer, registry().writers(), "msprobe_register_writers")
    writer.check()
    checks.check_config(config)
    checks.check_framework(config, framework, processor)
    intercepts = config.level is not Level.DEBUG
    selection = Selection(config.options if intercepts else TaskOptions())
    slices = Slices(config.options)
    schedule = Schedule(config, framework)
    recorder = _new_recorder(config, framework, processor, selection, slices)
    output = UnitOutput(config, framework, processor, writer, recorder)

    def end_recording(reason: str) -> None:
        parts.end_recording(reason)  # features, which call this, are among the parts

    host = Host(
        config, framework, output.save, output.write_backlog, end_recording, lambda: output.directory,
        Manifests() if manifests is None else manifests,
    )  # fmt: skip
    features = make_features(host)
    saved = None if intercepts else SavedValues(framework, recorder.record, recorder.reader)
    if saved is not None:
        features.append(saved)
    output.features = features
    _connect(recorder, output, features)
    selection.sample = next((feature.sample for feature in features if feature.sample is not None), None)
    apis = custom_apis if custom_apis is not None else CustomApis(config.listed_apis)
    windows = Windows(config, framework, recorder, output, schedule, features, apis, unwraps=unwraps)
    parts = SessionParts(schedule, selection, slices, recorder, output, features, saved, apis, windows)
    if schedule.may_act:
        windows.check()
    return parts


def _new_recorder(
    config: Config, framework: Framework, processor: Processor, selection: Selection, slices: Slices
) -> Recorder:
    is_saving = config.level is Level.DEBUG
    takes_stacks = config.extra_info and not is_saving
    takes_parts = not is_saving and (config.options.slice or config.options.request_id)
    return Recorder(
        framework,
        processor,
        selection,
        stacks=StackCache([*framework.hidden_frames, *_frames_of_trainers()]) if takes_stacks else None,
        tracks_parents=takes_stacks and (config.level.has_modules or config.aten),
        expands_modules=config.level is Level.MIX,
        keeps_values=config.task is not Task.STRUCTURE,
        keep_tensor=None,
        slices=slices if takes_parts else None,
    )


def _connect(recorder: Recorder, output: UnitOutput, features: Sequence[Feature]) -> None:
    """Connect the recorder's backlog and tensors to the dump, or tensors to a feature that takes them."""
    reader = recorder.reader
    own_sink = output.keep_tensor if output.keeps_tensors else None
    reader.keep_tensor = next((feature.tensor_sink for feature in features if feature.tensor_sink), own_sink)
    reader.check = next((feature.call_check for feature in features if feature.call_check), None)
    recorder.record.on_backlog = output.write_backlog


def _frames_of_trainers() -> list[str]:
    """Return the prefixes of the frames that plugins for trainers hide."""
    return [prefix for each in registry().trainer_stages().values() for prefix in each.hidden_frames]
