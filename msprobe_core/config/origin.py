"""Where the settings of a configuration were written, for errors that only the recording can find."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import dataclass

from msprobe_core.config.schema import TASK_FIELDS, Config
from msprobe_core.errors import ConfigError

ARGUMENTS = "the arguments of PrecisionDebugger"

_SETTING = re.compile(r"'(\w+)'")


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of a configuration, and which settings were given by name instead.

    Attributes:
        path: The file; ``None`` without one.
        given: Names of the settings that override it.
    """

    path: str | os.PathLike[str] | None
    given: Container[str]

    def placed(self, error: ConfigError, config: Config) -> ConfigError:
        """Return an error whose message begins with a setting with the place of that setting in front."""
        setting = _SETTING.match(str(error))
        if setting is None:
            return error
        return type(error)(f"{self._place_of(setting[1], config)}: {error}")

    def _place_of(self, setting: str, config: Config) -> str:
        if self.path is None or setting in self.given:
            return ARGUMENTS
        block = f": '{config.task.value}'" if setting in TASK_FIELDS[config.task] else ""
        return f"{os.fspath(self.path)}{block}"
