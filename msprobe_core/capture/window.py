"""A window: what `start` is given, and what is attached to it until `stop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from msprobe_core.capture.attachments import Attachments, watching
from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.features.feature import Feature
from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.recorder_adapters import ForwardWindow, SingleModuleRecorder, UnwrappingRecorder
from msprobe_core.config import Config, RiskLevel
from msprobe_core.model import Level
from msprobe_core.protocols.capabilities import CheckingFramework, CompilingFramework
from msprobe_core.protocols.framework import Framework


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


class WindowAttacher:
    """Attaches the recorder and the features to what runs, for one window after the other."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        attachments: Attachments,
        recorder: Recorder,
        custom_apis: CustomApis,
        *,
        unwraps: bool,
    ) -> None:
        """Begin with nothing attached; see `Session` for the arguments."""
        self._framework = framework
        self._attachments = attachments
        self._recorder = recorder
        self._custom_apis = custom_apis
        self._unwraps = unwraps
        # Who names entries wants those, whatever risk they are.
        names_entries = config.options.scope or config.options.list
        risk_level = RiskLevel.ALL if names_entries else config.risk_level
        self._options = Interception(config.level, risk_level.value, config.custom_op_namespaces, config.aten)
        self._records = False
        self._single: Model | None = None
        self._has_attached_single = False

    def check(self) -> None:
        """Have a framework that cannot record everything refuse what it cannot."""
        if isinstance(self._framework, CheckingFramework):
            with self._attachments.plugin_call("checking the configuration"):
                self._framework.check(self._options)

    def prepare(self, models: Sequence[Model]) -> None:
        """Tell a framework that compiles models of them."""
        if isinstance(self._framework, CompilingFramework):
            with self._attachments.plugin_call("preparing models"):
                self._framework.prepare(models, self._options)

    def attach(
        self,
        models: Sequence[Model],
        token_range: tuple[int, int] | None,
        features: Sequence[Feature],
        *,
        records: bool,
    ) -> None:
        """Attach everything for a window; if something fails, nothing stays attached.

        Args:
            models: Those that ``start`` was given.
            token_range: See `Window`.
            features: Those that take part in this window.
            records: Whether calls are recorded in it.
        """
        try:
            forwards = self._watch_forwards(models, token_range)
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
        attachment = self._attachments.put_in_place(self._framework.attach, models, self._options, seen)
        if self._options.level.has_apis:
            self._custom_apis.attach(attachment)
        if self._single is not None:
            self._attach_single(self._single)

    def detach(self) -> None:
        """Take out everything, also what is below something that fails."""
        self._records = self._has_attached_single = False
        try:
            self._custom_apis.detach()
        finally:
            self._attachments.detach()

    # --- one module alone -------------------------------------------------------------------------------------

    @property
    def single(self) -> Model | None:
        """The module that is recorded alone, under the name that the user has given it."""
        return self._single

    def begin_single(self, module: Model) -> None:
        """Record calls of this module and nothing else from now on."""
        self._single = module
        self._recorder.is_single = True
        if self._records:
            self._attach_single(module)

    def end_single(self) -> None:
        """Record again what was recorded before ``begin_single``."""
        is_attached, self._has_attached_single = self._has_attached_single, False
        self._single = None
        self._recorder.is_single = False
        if is_attached:
            self._attachments.detach_last()  # it is on top of all others

    def _attach_single(self, module: Model) -> None:
        recorder = SingleModuleRecorder(self._recorder, module.name)
        options = replace(self._options, level=Level.L0, aten=False)
        self._attachments.put_in_place(self._framework.attach, [module], options, recorder)
        self._has_attached_single = True
