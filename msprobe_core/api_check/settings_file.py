"""The file of settings that ``msprobe acc_check -config`` takes, in the published form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings, all of which may be left out.

    Attributes:
        white_list: See `msprobe_core.api_check.dump_check.CheckOptions`.
        black_list: Likewise.
        error_data_path: Directory for the tensors of calls that are not right; empty for the results' directory.
        precision: Of the published tool's numbers: decimals, 0 to 20.
        quantization_api_list: Of the published tool: APIs whose results may differ by 1.
    """

    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: str = ""
    precision: int = 14
    quantization_api_list: tuple[str, ...] = (
        "npu_rms_norm_dynamic_quant", "npu_dynamic_quant", "npu_quant_lightning_indexer",
    )  # fmt: skip


def read_settings(path: Path) -> CheckSettings:
    """Read a file of settings, JSON or YAML; those of the task ``acc_check`` of a ``config.json`` are taken as well.

    Raises:
        ConfigError: it cannot be read, or a field is unknown or of the wrong type.
    """
    text = read_text(path, kind="a file of settings", advice="give a JSON or YAML file")
    try:
        content: Any = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: is neither JSON nor YAML ({' '.join(str(error).split())[:200]})") from error
    if isinstance(content, dict) and "acc_check" in content:
        content = cast("dict[str, Any]", content)["acc_check"]
    try:
        settings = msgspec.convert(content or {}, CheckSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; known are {', '.join(CheckSettings.__struct_fields__)}") from error
    if not 0 <= settings.precision <= _MOST_DECIMALS:
        raise ConfigError(f"{path}: 'precision' is {settings.precision}; give 0 to {_MOST_DECIMALS} decimals")
    return settings


_MOST_DECIMALS = 20
