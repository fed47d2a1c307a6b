"""Where the settings of a configuration were written, for errors that only the recording can find."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msprobe_core.config.schema import TASK_FIELDS, Config
from msprobe_core.errors import ConfigError

ARGUMENTS = "the arguments of PrecisionDebugger"


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of a configuration, and the settings that were given by name instead.

    Attributes:
        path: The file; ``None`` without one.
        given: The settings that override it, unless they are ``None``.
    """

    path: str | os.PathLike[str] | None
    given: Mapping[str, Any]

    def placed(self, error: ConfigError, config: Config) -> ConfigError:
        """Return an error with the place of its setting in front; the same error if it names no setting."""
        if error.setting is None:
            return error
        return type(error)(f"{self._place_of(error.setting, config)}: {error}")

    def _place_of(self, setting: str, config: Config) -> str:
        if self.path is None or self.given.get(setting) is not None:
            return ARGUMENTS
        block = f": '{config.task.value}'" if setting in TASK_FIELDS[config.task] else ""
        return f"{os.fspath(self.path)}{block}"
