"""The file that lists a user's own APIs: ``module.path: [api, …]``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import msgspec

from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError, UnreadableConfigError
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import load_yaml

_MODULE = re.compile(r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)*", re.ASCII)
_MAX_MODULE, _MAX_API, _MAX_FILE_BYTES = 4096, 255, 1024 * 1024


class ListedApi(msgspec.Struct, frozen=True):
    """One function: its module and its name there."""

    module: str
    name: str


def load_apis(path: Path, where: str) -> tuple[ListedApi, ...]:
    """Return the functions that the file lists.

    Args:
        path: YAML file.
        where: Prefix of every message: the setting that names the file.

    Raises:
        ConfigError: the file cannot be read, or has anything but module paths with names of functions.
    """
    where = f"{where}: {path}"
    advice = "give a YAML file such as 'my.module: [api]'"
    text = read_text(path, kind="a list of APIs", advice=advice, max_bytes=_MAX_FILE_BYTES, where=where)
    try:
        content = load_yaml(text)
    except MalformedError as error:
        raise UnreadableConfigError(f"{where}: cannot be read ({error}); {advice}") from error
    if content is None:
        return ()
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: holds {type(content).__name__}, but must hold lines such as 'my.module: [api]'")
    lines = cast("dict[object, object]", content)
    return tuple(
        dict.fromkeys(
            ListedApi(_checked_module(module, where), name)
            for module, names in lines.items()
            for name in _checked_names(names, f"{where}: '{module}'")
        )
    )


def _checked_module(module: object, where: str) -> str:
    if not isinstance(module, str) or len(module) > _MAX_MODULE or not _MODULE.fullmatch(module):
        raise ConfigError(f"{where}: {_shown(module)} is not the path of a module, such as 'my.module'")
    return module


def _checked_names(names: object, where: str) -> list[str]:
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list):
        raise ConfigError(f"{where} is {_shown(names)}, but must be the name of a function, or a list of names")
    for name in names:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(name, str) or len(name) > _MAX_API or not name.isidentifier():
            raise ConfigError(f"{where} lists {_shown(name)}, which is not the name of a function")  # pyright: ignore[reportUnknownArgumentType]
    return names  # pyright: ignore[reportUnknownVariableType]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
