"""Which differences of two configurations can cause what ``msprobe locate`` has found."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.config_check.differences import Difference
from msprobe_core.errors import ConfigError
from msprobe_core.untrusted.files import read_plain

_MAX_BYTES = 256 << 20


class _Suspect(msgspec.Struct):
    kind: str


class _Located(msgspec.Struct):
    suspects: list[_Suspect]


def located_kind(path: Path) -> str:
    """Return the kind of the first suspect in a ``locate.json``.

    Raises:
        ConfigError: the file cannot be read, is not one, or names no suspect.
    """
    try:
        found = msgspec.json.decode(read_plain(path, _MAX_BYTES), type=_Located)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is no result of `msprobe locate` ({error})") from error
    if not found.suspects:
        raise ConfigError(f"{path}: names no suspect, so there is nothing to explain; use `msprobe config_check -c`")
    return found.suspects[0].kind


def explanations(kind: str, differences: Sequence[Difference]) -> dict[int, Any]:
    """Return whether each difference explains a kind of fault, by its position.

    Raises:
        ConfigError: this release does not know it.
    """
    try:
        # locate is above this room.
        explains = import_module("msprobe_core.locate.explain").explains
    except ModuleNotFoundError as error:
        raise ConfigError("this release does not say which differences explain a fault") from error
    return {place: explains(kind, each) for place, each in enumerate(differences)}
