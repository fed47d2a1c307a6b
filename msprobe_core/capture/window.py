"""A window: the arguments of `start`, and everything attached until `stop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from msprobe_core.capture.attachments import Attachments, watching
from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.features.feature import Feature
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.recorder_adapters import SingleModuleRecorder, UnwrappingRecorder
from msprobe_core.capture.schedule import Schedule
from msprobe_core.capture.slices import Slices
from msprobe_core.capture.unit_output import UnitOutput
from msprobe_core.config import Config, RiskLevel
from msprobe_core.model import Level
from msprobe_core.plugins import registry
from msprobe_core.protocols.capabilities import CheckingFramework, CompilingFramework
from msprobe_core.protocols.framework import Attachment, Framework


@dataclass(frozen=True)
class Model:
    """One model given to ``start``; see `msprobe_core.plugin.NamedModel`."""

    name: str
    model: Any


@dataclass(frozen=True)
class Window:
    """The arguments of ``start``.

    Attributes:
        models: One model or several; empty for none.
        is_list: Whether they were given as a list. Module paths then begin with the position in the list, even in a
            list of one; with several models they always do.
        token_range: First and last forward of the models to record, both included; ``None`` records all.
        rank_id: The rank of this process; ``None`` uses the framework's rank.
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
    inside_graphs: bool = True


class Windows:
    """Begins and ends windows: attaches the recorder and the features to the program, and removes them."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        recorder: Recorder,
        output: UnitOutput,
        schedule: Schedule,
        features: Sequence[Feature],
        custom_apis: CustomApis,
        *,
        unwraps: bool,
    ) -> None:
        """Begin with nothing attached; see `Session` for the arguments."""
        self._framework = framework
        self._recorder = recorder
        self._output = output
        self._schedule = schedule
        self._features = features
        self._custom_apis = custom_apis
        self._unwraps = unwraps
        self._intercepts = config.level is not Level.DEBUG
        self._attachments = Attachments(registry().described("framework", framework.name))
        # Entries that the user names are recorded whatever their risk level.
        names_entries = config.options.scope or config.options.list
        risk_level = RiskLevel.ALL if names_entries else config.risk_level
        self._options = Interception(config.level, risk_level.value, config.custom_op_namespaces, config.aten)
        self.window: Window | None = None
        """The window that has begun, also in steps that are not selected; ``None`` if it has ended."""
        self._models: Sequence[Model] = ()
        self._records = False
        self._single: Model | None = None
        self._has_attached_single = False

    @property
    def is_running(self) -> bool:
        """Whether anything is attached."""
        return bool(self._attachments)

    def check(self) -> None:
        """Have the framework refuse settings that it cannot record."""
        if isinstance(self._framework, CheckingFramework):
            with self._attachments.plugin_call("checking the configuration"):
                self._framework.check(self._options)

    def begin(self, window: Window, models: Sequence[Model], slices: Slices, tokens: object) -> None:
        """Attach the recorder, if the step is selected, and the features that take part in this window.

        Args:
            window: The arguments of ``start``.
            models: Its models, named.
            slices: Decides whether the batch is recorded.
            tokens: See `Slices.follow`.
        """
        self.window, self._models = window, models
        schedule = self._schedule
        if models and self._intercepts and schedule.selects_rank:
            self._prepare(models)
        may_act = schedule.may_act
        joining = [one for one in self._features if may_act and one.begin_window(schedule.step, schedule.rank)]
        records = self._intercepts and schedule.selects_step and slices.follow(tokens)
        records = records and all(one.records_step(schedule.step) for one in self._features)
        if not records and not joining:
            return
        self._attachments.release()  # otherwise parameter gradients would be recorded twice
        if records:
            self._output.begin_window(schedule.step, schedule.rank)
            for feature in self._features:
                feature.begin_recording(models)
        self._attach(models, window.token_range, joining, records=records)

    def open_output(self) -> None:
        """Begin the dump of the step without a window, for values that the program saves; nothing if it has begun."""
        if self._output.is_open:
            return
        self._output.open(self._schedule.step, self._schedule.rank)
        for feature in self._features:
            feature.begin_recording(self._models)

    def _prepare(self, models: Sequence[Model]) -> None:
        """Have a framework that compiles models prepare them, also in a step that is not selected."""
        if isinstance(self._framework, CompilingFramework):
            with self._attachments.plugin_call("preparing models"):
                self._framework.prepare(models, self._options)

    def end(self) -> None:
        """Detach everything and write the recorded entries; returns when they are on disk."""
        self.window, self._models = None, ()
        was_running = self.is_running
        self.detach()
        if self._output.is_open:
            self._attachments.settle()
            self._output.flush(is_first_end=was_running)
        for feature in self._features:
            feature.end_window(was_running=was_running)
        if any(feature.is_over for feature in self._features):
            self._schedule.is_finished = True

    def release(self) -> None:
        """Ignore later gradients of recorded calls."""
        self._attachments.release()

    def _attach(
        self,
        models: Sequence[Model],
        token_range: tuple[int, int] | None,
        features: Sequence[Feature],
        *,
        records: bool,
    ) -> None:
        """Attach everything; after an error nothing stays attached."""
        try:
            forwards = self._watch_forwards(models, token_range)
            if records:
                for feature in self._features:
                    feature.attach_recording(self._attachments, models, forwards)
            for feature in features:
                feature.attach(self._attachments, models, forwards)
            if records:
                self._attach_recorder(models, forwards)
        except BaseException:
            self.detach()
            raise

    def _watch_forwards(self, models: Sequence[Model], token_range: tuple[int, int] | None) -> ForwardWindow | None:
        if token_range is None:
            return None
        forwards = ForwardWindow(*token_range, [model.name for model in models])
        self._attachments.put_in_place(watching("token_range", self._framework).watch, models, forwards)
        return forwards

    def _attach_recorder(self, models: Sequence[Model], forwards: ForwardWindow | None) -> None:
        self._records = True
        self._recorder.forwards = forwards
        seen = UnwrappingRecorder(self._recorder) if self._unwraps else self._recorder
        attachment = self._attachments.put_in_place(
            self._framework.attach, models, self._options, seen, expected=Attachment
        )
        if self._options.level.has_apis:
            self._custom_apis.attach(attachment)
        if self._single is not None:
            self._attach_single(self._single)

    def detach(self) -> None:
        """Detach everything, even after an error in one part."""
        self._records = self._has_attached_single = False
        try:
            self._custom_apis.detach()
        finally:
            self._attachments.detach()

    # --- a single module --------------------------------------------------------------------------------------

    @property
    def single(self) -> Model | None:
        """The only module to record, with the name that the user gave it; ``None`` without `dump_module`."""
        return self._single

    def begin_single(self, module: Model) -> None:
        """Record only calls of this module from now on."""
        self._single = module
        self._recorder.is_single = True
        if self._records:
            self._attach_single(module)

    def end_single(self) -> None:
        """Return to what was recorded before ``begin_single``."""
        is_attached, self._has_attached_single = self._has_attached_single, False
        self._single = None
        self._recorder.is_single = False
        if is_attached:
            self._attachments.detach_last()  # it was attached last

    def _attach_single(self, module: Model) -> None:
        recorder = SingleModuleRecorder(self._recorder, module.name)
        options = replace(self._options, level=Level.L0, aten=False)
        self._attachments.put_in_place(self._framework.attach, [module], options, recorder)
        self._has_attached_single = True
