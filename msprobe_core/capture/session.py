"""One recording session: coordinates schedule, windows, output and features at start, stop and step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msprobe_core.capture import checks
from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.manifests import Manifests
from msprobe_core.capture.session_parts import put_together
from msprobe_core.capture.window import Model, Window
from msprobe_core.config import Config
from msprobe_core.guard import message_of
from msprobe_core.model import EndState
from msprobe_core.protocols.framework import Framework

_logger = logging.getLogger(__name__)


class Session:
    """Records the selected steps of a program; see `Schedule`, `Windows`, `UnitOutput` and `Feature`."""

    def __init__(
        self,
        config: Config,
        framework: Framework,
        custom_apis: CustomApis | None = None,
        manifests: Manifests | None = None,
        *,
        unwraps: bool = False,
        on_failure: Callable[[Session, Exception], None] | None = None,
    ) -> None:
        """Prepare; nothing is attached and nothing is created on disk before ``start``.

        Args:
            config: The configuration.
            framework: The framework to record.
            custom_apis: APIs that the user registered; ``None`` uses those of the configuration.
            manifests: The manifests that sessions before this one have written.
            unwraps: Whether module names omit wrappers such as FSDP.
            on_failure: Called with the error that ended recording, instead of `log_failure`; may raise.

        Raises:
            ConfigError: the configuration needs a feature that this version or installation does not offer.
            PluginError: a library that the writer needs is not installed.
        """
        self._config = config
        self.framework = framework
        """The framework that is recorded."""
        self._on_failure = on_failure or Session.log_failure
        parts = put_together(config, framework, custom_apis, manifests, unwraps=unwraps)
        self._parts = parts
        self._recorder, self._output, self._windows, self._features = (
            parts.recorder, parts.output, parts.windows, parts.features
        )  # fmt: skip
        self.schedule = parts.schedule
        """Which steps and ranks are recorded, and the step that has come."""
        self.custom_apis = parts.custom_apis
        """Functions that are recorded because the user registered them."""
        self._has_given_up = False
        self._monitored: list[tuple[Sequence[Any], Any]] = []

    def fix_parameters(self, *, are_fixed: bool) -> None:
        """Set whether parameters do not change within a step, so that each module's are recorded once."""
        self._recorder.has_fixed_parameters = are_fixed

    def begin_micro_step(self, number: int) -> None:
        """Set the micro-step, from 0, of the following calls; without it, calls of the model are counted."""
        self._recorder.begin_micro_step(number)

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether calls are being recorded."""
        return self._windows.is_running

    @property
    def running_window(self) -> Window | None:
        """Arguments of ``start`` until ``stop``, also in steps that are not selected; ``None`` otherwise."""
        return self._windows.window

    @property
    def is_between_steps(self) -> bool:
        """Whether nothing of the current step has been recorded yet."""
        return self._parts.is_between_steps

    @property
    def step_number(self) -> int:
        """The current step, from 0."""
        return self.schedule.step

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be recorded: all selected steps are complete, or an error ended recording."""
        return self.schedule.is_finished

    @property
    def has_given_up(self) -> bool:
        """Whether an error has ended recording."""
        return self._has_given_up

    @property
    def directory(self) -> Path | None:
        """Directory of the current step, or of the last one; ``None`` before the first."""
        return self._output.directory

    @property
    def num_entries_of_last_step(self) -> int:
        """How many entries the step before the current one has."""
        return self._output.num_entries_of_last_step

    def continue_from(self, earlier: Session, step: int | None = None) -> None:
        """Replace a session with another configuration, at its step or at ``step``."""
        self.begin_at(earlier.step_number if step is None else step)
        if (single := earlier._windows.single) is not None:
            self.dump_module(single.model, single.name)
        for targets, optimizer in earlier._monitored:
            self.monitor(targets, optimizer)

    def begin_at(self, step: int) -> None:
        """See `SessionParts.begin_at`."""
        self._parts.begin_at(step)

    # --- windows ----------------------------------------------------------------------------------------------

    def start(
        self,
        models: Sequence[Any],
        *,
        is_list: bool = False,
        token_range: Any = None,
        rank_id: Any = None,
        scheduled_tokens: object = None,
    ) -> None:
        """Open a window, if this step and this rank are selected.

        A session that is already recording closes its window first: an exception may have skipped its end.

        Args:
            models: See `Window`.
            is_list: See `Window`.
            token_range: A list of two numbers; see `Window`.
            rank_id: Overrides the framework's rank, for the directory and for the setting ``rank``.
            scheduled_tokens: See `Slices.follow`.

        Raises:
            SessionError: an argument is wrong, the level needs a model and none is given, or an object is not a model.
        """
        with self._guarded():
            window = checks.checked_window(models, is_list=is_list, token_range=token_range, rank_id=rank_id)
            if self._has_given_up:
                return
            if self.is_running:
                self.stop()
            self.schedule.rank_id = window.rank_id
            models = checks.check_models(window, self._config, self.framework)
            self._windows.begin(window, models, self._parts.slices, scheduled_tokens)

    def stop(self) -> None:
        """Close the window and write its entries; returns when they are on disk."""
        with self._guarded():
            self._windows.end()

    def set_aside(self) -> None:
        """Stop, and ignore later gradients of recorded calls, so that they can be repeated in another session."""
        with self._guarded():
            self._windows.end()
            self._windows.release()

    def conclude(self) -> None:
        """Stop, and mark the dump as complete for its step, although the step may have further windows."""
        with self._guarded():
            self._windows.end()
            self._output.conclude()

    def discard_if_empty(self) -> None:
        """Remove the dump of the current step if it has no entries."""
        with self._guarded():
            self._windows.end()
            self._output.discard_if_empty()

    def break_off(self, reason: str) -> None:
        """Record why the current step does not complete; the dump's end mark contains the reason."""
        self._output.break_off(reason)

    # --- single modules and values ----------------------------------------------------------------------------

    def dump_module(self, module: Any, name: str) -> None:
        """Record only calls of ``module``, under ``name``, until ``end_module_dump``.

        Raises:
            SessionError: ``module`` is not a module, or ``name`` is not a valid name.
        """
        with self._guarded():
            checks.check_single(module, name, self.framework)
        self.end_module_dump()
        with self._guarded():
            self._windows.begin_single(Model(name, module))

    def end_module_dump(self) -> None:
        """Return to what was recorded before ``dump_module``."""
        with self._guarded():
            self._windows.end_single()

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Record one value at level debug, if this step and this rank are selected; see `SavedValues.save`."""
        with self._guarded():
            saved = self._parts.saved
            if saved is None or not self.schedule.selects_step:
                return
            self._windows.open_output()
            saved.save(variable, name, save_backward=save_backward)

    def monitor(self, targets: Sequence[Any], optimizer: Any) -> None:
        """Let features observe the steps of an optimizer; see `Feature.monitor`."""
        with self._guarded():
            self._monitored.append((targets, optimizer))
            for feature in self._features:
                if self.schedule.may_act:
                    feature.monitor(targets, optimizer, self.schedule.step)

    # --- steps and the end ------------------------------------------------------------------------------------

    def step(self) -> None:
        """End the step: write and close its files, count the step, and continue recording if a window was open."""
        window = self.running_window
        with self._guarded():
            self._parts.end_step()
        self._parts.count_step()
        if window is not None:
            self.start(window.models, is_list=window.is_list, token_range=window.token_range, rank_id=window.rank_id)

    def forget_step(self) -> None:
        """Remove what the current step has recorded, and begin it again."""
        with self._guarded():
            self._windows.end()
            self._output.discard()
        self.step()
        self.schedule.begin_at(self.schedule.step - 1, can_record=self._recorder.is_open)

    def close(self, state: EndState = EndState.COMPLETE) -> None:
        """Stop permanently.

        Args:
            state: State for the end mark of the current step's dump.
        """
        with self._guarded():
            self._parts.end_step(state)
        self.custom_apis.complain()
        self._recorder.shut()
        for end in (self._output.close, *(feature.close for feature in self._features)):
            with self._guarded():
                end()
        self.schedule.is_finished = True

    def abandon(self) -> None:
        """See `SessionParts.abandon`."""
        self._parts.abandon()

    def _guarded(self) -> AbstractContextManager[None]:
        return self._parts.guarded(self._fail)

    def _fail(self, error: Exception) -> None:
        self._has_given_up = True
        self._on_failure(self, error)

    def log_failure(self, error: Exception) -> None:
        """Log that recording has ended, and why."""
        reason = message_of(error, str(self.directory or self._config.directory))
        _logger.error("recording ends at step %d, training goes on: %s", self.step_number, reason)
