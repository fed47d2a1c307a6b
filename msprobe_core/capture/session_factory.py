"""Makes the sessions of a debugger: the first one when the framework is known, others for other configurations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeAlias

from msprobe_core.capture.custom_apis import CustomApis
from msprobe_core.capture.kernel_dump import KernelSession
from msprobe_core.capture.live_settings import LiveSettings
from msprobe_core.capture.manifests import Manifests
from msprobe_core.capture.measure import Measurement
from msprobe_core.capture.no_session import NoSession
from msprobe_core.capture.session import Session
from msprobe_core.config import Config
from msprobe_core.config.origin import Origin
from msprobe_core.errors import BrokenPluginError, ConfigError, MsprobeError
from msprobe_core.guard import kept, message_of
from msprobe_core.model import Level
from msprobe_core.protocols.capabilities import KernelDumper
from msprobe_core.protocols.framework import Framework

_logger = logging.getLogger(__name__)

AnySession: TypeAlias = Session | KernelSession | NoSession
"""What a debugger controls."""


class SessionFactory:
    """Makes sessions that share what belongs to the debugger."""

    def __init__(
        self,
        find_framework: Callable[[Any], Framework],
        settings: LiveSettings,
        measurement: Measurement | None,
        custom_apis: CustomApis,
        origin: Origin,
    ) -> None:
        """Keep what sessions need.

        Args:
            find_framework: Returns the framework of a model, or of the program for ``None``.
            settings: The configuration, which may be edited while the training runs.
            measurement: The measurement that ``msprobe estimate`` has requested.
            custom_apis: APIs that the user registers.
            origin: Where the settings were written, for errors.
        """
        self._find_framework = find_framework
        self._settings = settings
        self._measurement = measurement
        self._custom_apis = custom_apis
        self._origin = origin
        self._manifests = Manifests()

    def first(self, model: Any) -> AnySession:
        """Return a session for the framework of ``model``.

        Raises:
            MsprobeError: the configuration cannot be recorded. A plugin that is broken is none of these errors: it is
                logged, and nothing is recorded.
        """
        try:
            framework = self._find_framework(model)
            config = self._settings.config if self._measurement is None else self._measurement.config
            if config.level is Level.L2 and isinstance(framework, KernelDumper):
                return KernelSession(config, framework, framework)
            return self.make(config, framework)
        except BaseException as caught:
            error = kept(caught)
            if isinstance(error, MsprobeError) and not isinstance(error, BrokenPluginError):
                raise
            _logger.error("nothing is recorded, training goes on: %s", message_of(error))  # noqa: TRY400
            _logger.debug("where the recording failed:", exc_info=error)
            return NoSession()

    def make(self, config: Config, framework: Framework) -> Session:
        """Return a session for a configuration.

        Raises:
            MsprobeError: the configuration cannot be recorded.
        """
        if self._measurement is not None:
            self._measurement.framework = framework
        with self._placing(config):
            return Session(config, framework, self._custom_apis, self._manifests, on_failure=self._take_failure)

    @contextmanager
    def _placing(self, config: Config) -> Generator[None, None, None]:
        """Have errors about a setting that only a session can check, such as the name of an offer, say its place."""
        try:
            yield
        except ConfigError as error:
            placed = self._origin.placed(error, config)
            if placed is error:
                raise
            raise placed from error

    def _take_failure(self, session: Session, error: Exception) -> None:
        # The user can correct an edited file while the training runs, and recording then resumes.
        if self._settings.has_switched and isinstance(error, MsprobeError):
            self._settings.switch_off(str(error))
        else:
            session.log_failure(error)
