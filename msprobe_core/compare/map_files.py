"""Load a framework's map of names from the data files of its plugin.

A directory may have these files; ``docs/plugins.md`` describes them:

* ``apis.yaml``: by prefix, the canonical name of each API;
* ``arguments.yaml``: by prefix, the parameters of each API in their order;
* ``modules.yaml``: ``prefixes``, ``types``, ``parameters``, ``buffers``, ``unit_dimensions`` and ``permuted``;
* ``inexact.yaml``: by operation, the error of the framework's approximation of a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.config.text import read_yaml
from msprobe_core.errors import ConfigError
from msprobe_core.protocols.trainers import ApiMap

SPREAD = "*"
"""Key, among an API's arguments, of the position from which on a list is equivalent to its elements."""

_MAX_FILE_BYTES = 1 << 22


class MappedApi(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Canonical name of an API.

    Attributes:
        to: The canonical name.
        ascend: Whether one of the two exists on Ascend only, so that it cannot be checked elsewhere.
    """

    to: str
    ascend: bool = False


class _Modules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefixes: dict[str, str] = {}
    types: dict[str, str] = {}
    parameters: dict[str, dict[str, str]] = {}
    buffers: tuple[str, ...] = ()
    unit_dimensions: dict[str, tuple[str, ...]] = {}
    permuted: dict[str, dict[str, tuple[int, ...]]] = {}


_Inexact = dict[str, dict[float, float]]


def load_api_map(name: str, directory: Path, *, extends: str = "") -> ApiMap:
    """Return the map from the files of a directory.

    Args:
        name: The framework.
        directory: Directory of the files; all are optional.
        extends: The framework to whose map this one adds; empty for a map of its own.

    Raises:
        ConfigError: a file cannot be read, or is malformed; the message names it.
    """
    modules = _converted(directory / "modules.yaml", _Modules)
    return ApiMap(
        name=name,
        apis={own: mapped.to for own, mapped in load_apis(directory / "apis.yaml").items()},
        prefixes=modules.prefixes,
        module_types=modules.types,
        parameters=modules.parameters,
        arguments={own: _places(listed) for own, listed in load_parameters(directory / "arguments.yaml").items()},
        buffers=modules.buffers,
        unit_dimensions=modules.unit_dimensions,
        permuted=modules.permuted,
        extends=extends,
        inexact={
            name: tuple(sorted(steps.items()))
            for name, steps in _converted(directory / "inexact.yaml", _Inexact).items()
        },
    )


def load_apis(path: Path) -> Mapping[str, MappedApi]:
    """Return the canonical API by own name; empty without the file.

    Raises:
        ConfigError: see `load_api_map`.
    """
    found: dict[str, MappedApi] = {}
    for own, value in _members(path):
        if not isinstance(value, str | dict):
            raise ConfigError(f"{path}: {own!r} is {value!r}; expected is a name, or an object with 'to' and 'ascend'")
        found[own] = MappedApi(value) if isinstance(value, str) else _as(path, value, MappedApi)
    return found


def load_parameters(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the parameters of each API as in the file; empty without the file.

    Raises:
        ConfigError: see `load_api_map`.
    """
    return {own: _as(path, value, tuple[str, ...]) for own, value in _members(path)}


def _places(listed: Sequence[str]) -> Mapping[str, str]:
    """Return the canonical place by own place, for parameters such as ``input``, ``axis=1`` and ``*shape``."""
    found: dict[str, str] = {}
    for position, text in enumerate(listed):
        own = str(position)
        if text.startswith("*"):
            found[SPREAD] = own
        for number, alternative in enumerate(text.removeprefix("*").split("|")):
            name, _, place = alternative.partition("=")
            found[name] = place or own
            if not number and place and place != own:
                found[own] = place
    return found


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield names, with a prefix if they are below one, and their values."""
    for key, value in _read(path).items():
        if isinstance(value, dict) and not set(cast("dict[str, Any]", value)) <= set(MappedApi.__struct_fields__):
            for name, inner in cast("dict[str, Any]", value).items():
                yield f"{key}.{name}", inner
        else:
            yield key, value


def _converted(path: Path, kind: Any) -> Any:
    return _as(path, _read(path), kind)


def _as(path: Path, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)  # the YAML reader returns `true` as text
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; see docs/plugins.md for the form of such files") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    loaded = read_yaml(
        path, kind="a map of names", advice="install the plugin again", max_bytes=_MAX_FILE_BYTES, has_types=False
    )
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: must hold names, each with what it is canonically")
    return cast("dict[str, Any]", loaded)
