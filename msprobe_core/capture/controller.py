"""The debugger's session: opened when the framework is known, replaced when the configuration file is edited."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.live_settings import LiveSettings
from msprobe_core.capture.measure import Measurement, end_process, requested_measurement
from msprobe_core.capture.session import Session
from msprobe_core.capture.session_factory import AnySession, SessionFactory
from msprobe_core.capture.unselected import SeenSteps
from msprobe_core.capture.window import Window
from msprobe_core.config import Config, ConfigWatch, load_config
from msprobe_core.config.origin import Origin
from msprobe_core.config.requested_windows import requested_window
from msprobe_core.errors import ConfigError, MsprobeError
from msprobe_core.guard import message_of
from msprobe_core.model import EndState
from msprobe_core.protocols.framework import Framework
from msprobe_core.store.layout import check_place

_logger = logging.getLogger(__name__)


class Controller:
    """Starts, stops and steps consecutive sessions with the configuration that is currently valid.

    Callers hold ``lock``, so that threads take turns. The lock is reentrant, because a signal handler may call in the
    middle of another call.
    """

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None,
        given: Mapping[str, Any],
        find_framework: Callable[[Any], Framework],
        on_forked: Callable[[], None],
    ) -> None:
        """Read the configuration; nothing is recorded before ``start``.

        Args:
            config_path: The configuration file, if there is one.
            given: Fields that override the file.
            find_framework: Returns the framework of a model, or of the program for ``None``.
            on_forked: Called in a forked child, which must not record into its parent's dump.

        Raises:
            ConfigError: the configuration is wrong.
            StoreError: the directory of the dump cannot be created.
        """
        config = load_config(config_path, **given)
        request = requested_measurement()
        if request is None and config.dump_enable and not config.rank:  # otherwise nothing may ever be written here
            check_place(config.directory)
        self.lock = threading.RLock()
        self.session: AnySession | None = None
        self.custom_apis = CustomApis(config.listed_apis)
        self.is_in_window: bool = False
        is_watched = config_path is not None and config.is_live and request is None
        watch = ConfigWatch(config_path, given, config) if config_path and is_watched else None
        self.settings = LiveSettings(config, watch)
        self._on_forked = on_forked
        self._measurement = None if request is None else Measurement(request, config_path, given)
        origin = Origin(config_path, given)
        self._sessions = SessionFactory(find_framework, self.settings, self._measurement, self.custom_apis, origin)
        self._requested_window = requested_window()
        self._seen = SeenSteps(is_requested=request is not None or self._requested_window is not None)
        if config.perturb is not None:
            _logger.warning(
                "perturb: in its windows this run computes something else than it would without: last digits "
                "are others (seed %d); it is recorded to %s", config.perturb.seed, config.directory,
            )  # fmt: skip

    @property
    def config(self) -> Config:
        """The configuration that counts now."""
        return self.settings.config

    def has_configuration(self, config_path: str | os.PathLike[str] | None, given: Mapping[str, Any]) -> bool:
        """Whether a debugger with these arguments would record the same, or the arguments are all defaults."""
        watch = self.settings.watch
        if watch is not None and watch.is_of(config_path, given):
            return True  # the file may have been edited since it was read
        if config_path is None and all(value is None for value in given.values()):
            return True
        try:
            return load_config(config_path, **given) == self.config
        except ConfigError:  # ignored like the other arguments: an error must not end a training that is being recorded
            return False

    def opened(self, model: Any = None) -> AnySession:
        """Return the session, created for the framework of ``model`` if there is none yet.

        Raises:
            MsprobeError: see `SessionFactory.first`.
        """
        if self.session is None:
            self.session = self._sessions.first(model)
            if self._requested_window is not None:
                self.session.begin_at(self._requested_window.begin)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._abandon)
        return self.session

    # --- windows and steps ------------------------------------------------------------------------------------

    def start(self, window: Window, scheduled_tokens: object) -> None:
        """Begin a window; see `Session.start`."""
        self.opened(window.models[0] if window.models else None)
        self.settings.look()
        self._take_over()
        self._start(window, scheduled_tokens)
        self.is_in_window = True

    def _start(self, window: Window, scheduled_tokens: object) -> None:
        try:
            self.opened().start(
                window.models,
                is_list=window.is_list,
                token_range=window.token_range,
                rank_id=window.rank_id,
                scheduled_tokens=scheduled_tokens,
            )
        except MsprobeError as error:
            if not self.settings.has_switched:
                raise
            self.settings.switch_off(str(error))
            self._take_over()

    def stop(self) -> None:
        """End the window."""
        self.is_in_window = False
        self._seen.note(self.session)
        if self.session is not None:
            self.session.stop()
        self.settings.look()

    def step(self) -> None:
        """End the step, and continue recording if a window is open."""
        session = self.opened()
        self._seen.note(session)
        self.settings.look()
        if self.settings.edited is None:
            session.step()
            if self._measurement is not None:
                self._measurement.end_step(session.num_entries_of_last_step, has_given_up=session.is_finished)
            if self._requested_window is not None and session.is_finished:
                self.close()
                end_process()  # what follows in the program, such as saving a checkpoint, belongs to no requested step
            return
        window = session.running_window
        session.stop()
        session.step()
        self._take_over()
        if window is not None:
            self._start(window, None)

    # --- a configuration file that is edited while the training runs ------------------------------------------

    def reload(self) -> None:
        """Read the configuration file now; what has changed counts from the next step on."""
        self.settings.look(is_urgent=True)

    def redirect(self, dump_path: Path) -> None:
        """Record to another directory: from the next step on, or now if nothing of this one has been recorded."""
        self.settings.redirect(dump_path)
        if self.session is None:
            self.settings.count_at_once()
        else:
            self._take_over()

    def restart(self) -> None:
        """End the step, and count steps from 0 again."""
        self.stop()
        if isinstance(self.session, Session):
            self.session.step()
            self.session.begin_at(0)
            self._take_over()

    def forget_step(self) -> None:
        """Remove what this step has recorded; the next forward belongs to it."""
        self.settings.look()
        if isinstance(self.session, Session):
            self.session.forget_step()
            self._take_over()

    def _take_over(self) -> None:
        """Switch to the edited configuration, unless a part of the current step has been recorded."""
        settings = self.settings
        old, edited = self.session, settings.edited
        if edited is None or not isinstance(old, Session) or not old.is_between_steps:
            return
        settings.edited = None
        try:
            new = self._sessions.make(edited, old.framework)
        except Exception as error:  # noqa: BLE001  # an edited file may hold anything
            settings.switch_off(message_of(error))
            self._take_over()
            return
        new.continue_from(old)
        settings.switch_to(edited)
        self.session = new
        self._seen.forget()
        old.close()
        self.custom_apis.relist(edited.listed_apis)
        _logger.info(
            "step %d: the edited configuration counts: %s", new.step_number,
            f"task {edited.task.value}, level {edited.level.value}, to {edited.directory}"
            if edited.dump_enable else "nothing is recorded",
        )  # fmt: skip

    # --- a repeated step --------------------------------------------------------------------------------------

    @property
    def can_repeat(self) -> bool:
        """Whether a step may be repeated: not while `msprobe estimate` measures its cost."""
        return self._measurement is None and self.config.dump_enable

    @property
    def directory(self) -> Path | None:
        """Directory of the current step, or of the last one; ``None`` before the first."""
        return self.session.directory if isinstance(self.session, Session) else None

    @contextmanager
    def diverted(self, config: Config, step: int) -> Generator[None, None, None]:
        """Record with another configuration, as the step with the given number, until the block ends.

        Raises:
            MsprobeError: that configuration cannot be recorded.
        """
        session, is_in_window = self.session, self.is_in_window
        assert isinstance(session, Session)
        diverted = self._sessions.make(config, session.framework)
        diverted.continue_from(session, step)
        self.session, self.is_in_window = diverted, False
        try:
            with self.settings.unwatched():
                yield
        finally:
            self.session, self.is_in_window = session, is_in_window
            diverted.close()

    # --- the end ----------------------------------------------------------------------------------------------

    def break_off(self, reason: str) -> None:
        """Record in the dump's end mark why the step did not complete."""
        if isinstance(self.session, Session):
            self.session.break_off(reason)

    def close(self) -> None:
        """Stop permanently."""
        self._seen.warn(self.config, self.session)
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def close_at_exit(self) -> None:
        """Stop, and record in the dump how the program ended: an interrupted step is not complete."""
        session = self.session
        if not isinstance(session, Session):
            self.close()
            return
        error = getattr(sys, "last_value", None)  # the exception whose traceback the interpreter has just printed
        if error is None:
            self._seen.warn(self.config, session)
        self.session = None
        is_inside = session.running_window is not None
        if is_inside and error is not None:
            session.break_off(f"the program ended with {type(error).__name__}")
        if is_inside:
            session.discard_if_empty()
        session.close(EndState.STOPPED if is_inside or error is not None else EndState.COMPLETE)

    def _abandon(self) -> None:
        """Keep a forked child (a data-loader worker) from recording into its parent's dump."""
        self._on_forked()
        self.lock = threading.RLock()  # another thread of the parent may have held it
        if self.session is not None:
            self.session.abandon()
