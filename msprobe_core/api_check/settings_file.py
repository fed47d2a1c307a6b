"""The file of settings that ``msprobe acc_check -config`` takes, in the published form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.config.text import read_yaml
from msprobe_core.errors import ConfigError
from msprobe_core.untrusted.paths import shown


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings, all of which may be left out.

    Attributes:
        white_list: See `msprobe_core.api_check.dump_check.CheckOptions`.
        black_list: See there.
        error_data_path: Directory for the tensors of calls that are not right; ``None`` or empty for the results'
            directory.
        precision: Of the published tool's numbers: decimals, 0 to 20.
        quantization_api_list: Of the published tool: APIs whose results may differ by 1 in the published tables;
            ``None`` for those of the published standard.
    """

    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: str | None = None
    precision: int = 14
    quantization_api_list: tuple[str, ...] | None = None


def read_settings(path: Path) -> CheckSettings:
    """Read a file of settings, JSON or YAML; those of the task ``acc_check`` of a ``config.json`` are taken as well.

    Raises:
        ConfigError: it cannot be read, or a field is unknown or of the wrong type.
    """
    advice = "give a JSON or YAML file"
    content = read_yaml(path, kind="a file of settings", advice=advice, fault="is neither JSON nor YAML")
    if isinstance(content, dict) and ("task" in content or "acc_check" in content):
        content = _of_task(path, cast("dict[str, Any]", content))
    try:
        settings = msgspec.convert(content or {}, CheckSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; known are {_KNOWN}") from error
    if not 0 <= settings.precision <= _MOST_DECIMALS:
        raise ConfigError(f"{path}: 'precision' is {settings.precision}; give 0 to {_MOST_DECIMALS} decimals")
    return settings


_MOST_DECIMALS = 20

_KNOWN = ", ".join(CheckSettings.__struct_fields__)
_OF_TRAINING = ("budget", "sample", "seed")
"""Fields of the task ``acc_check`` that have no meaning for a dump."""


def _of_task(path: Path, config: dict[str, Any]) -> Any:
    """Return the section of the task ``acc_check`` in a ``config.json``.

    Raises:
        ConfigError: it is of another task.
    """
    if config.get("task", "acc_check") != "acc_check":
        task = shown(str(config["task"]))
        raise ConfigError(f"{path}: is of the task {task!r}, not 'acc_check'; give a file of {_KNOWN}")
    section: Any = config.get("acc_check")
    if not isinstance(section, dict):
        return section
    fields = cast("dict[str, Any]", section)
    return {name: value for name, value in fields.items() if name not in _OF_TRAINING}
