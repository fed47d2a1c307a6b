"""Change a configuration file atomically: readers see either the old file or the new one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from msprobe_core.config.atomic import locked, stamp_of, write_whole
from msprobe_core.config.load import check_config, read_fields
from msprobe_core.config.schema import Config
from msprobe_core.config.text import read_text
from msprobe_core.errors import ConfigError, StoreError
from msprobe_core.untrusted.yaml_text import load_yaml

_TRIES = 5


@dataclass(frozen=True)
class Edit:
    """The result of `edit_config`.

    Attributes:
        before: Whether the file had ``dump_enable`` before, so that running jobs watch it.
        config: Configuration in the file now.
        lost_comments: Whether comments of a YAML file were lost because the whole file had to be rewritten.
    """

    before: bool
    config: Config
    lost_comments: bool


def edit_config(path: Path, changes: Mapping[str, Any]) -> Edit:
    """Set values in a configuration file; its other keys, its format, its owner and its permissions stay.

    Concurrent calls, also from other processes, run one after the other, and none is lost.

    Args:
        path: JSON or YAML file. For a symbolic link, the file that it points to is changed.
        changes: Values by key; ``task.key`` is a key in the block of a task.

    Raises:
        ConfigError: the file is not a valid configuration, or would not be one afterwards; it is then unchanged.
        StoreError: it cannot be written.
    """
    path = path.resolve()
    with locked(path):
        for _ in range(_TRIES):
            before = stamp_of(path) if changes else None
            edit, text = _edited(path, changes)
            if before is None:
                return edit
            if stamp_of(path) == before:  # otherwise an editor, which does not lock it, has saved it meanwhile
                write_whole(path, text)
                return edit
    raise StoreError(f"{path}: keeps being changed by another program; nothing was written, try again")


def _edited(path: Path, changes: Mapping[str, Any]) -> tuple[Edit, str]:
    """Return the effect of a change, and the text of the file afterwards."""
    fields = read_fields(path)
    before = check_config(fields, str(path)).is_live
    text = read_text(path, kind="a configuration", advice="give a JSON or YAML file")
    lost_comments = False
    for key, value in changes.items():
        block, _, name = key.rpartition(".")
        wanted = _with(fields, block, name, value, str(path))
        if name in fields or block or not _is_yaml(path):
            smallest = _replaced(text, name, value, path)
        else:
            smallest = f"{text.rstrip()}\n{name}: {json.dumps(value)}\n"
        if smallest is None or _decoded(smallest, path) != wanted:
            lost_comments = lost_comments or (_is_yaml(path) and "#" in text)
            smallest = _encoded(wanted, text, path)
        fields, text = wanted, smallest
    return Edit(before, check_config(fields, str(path)), lost_comments), text


def text_with(text: str, wanted: Mapping[str, Any], name: str, path: Path) -> str:
    """Return the text of a file in which one field differs, otherwise as it is written, where that is possible.

    Args:
        text: Of the file.
        wanted: All fields afterwards.
        name: Of the field that differs.
        path: Of the file; its suffix tells the format.
    """
    smallest = _replaced(text, name, wanted[name], path)
    return smallest if smallest is not None and _decoded(smallest, path) == wanted else _encoded(wanted, text, path)


def parse_value(text: str) -> Any:
    """Return the value of a word on the command line: JSON if it parses, otherwise the word itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with(fields: Mapping[str, Any], block: str, name: str, value: Any, where: str) -> dict[str, Any]:
    if not block:
        return {**fields, name: value}
    inner = fields.get(block, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{where}: '{block}' is {inner!r}, but must be an object")
    return {**fields, block: {**cast("dict[str, Any]", inner), name: value}}


def _is_yaml(path: Path) -> bool:
    return path.suffix.lower() in {".yaml", ".yml"}


def _replaced(text: str, name: str, value: Any, path: Path) -> str | None:
    """Return the text with the single value after ``name`` replaced; ``None`` if there is not exactly one such place.

    The caller must check the result: the name may be in another block.
    """
    if _is_yaml(path):
        pattern = rf"(?m)^([ \t]*{re.escape(name)}[ \t]*:[ \t]+)[^\s#\[{{&|>*](?:[^#\n]*[^#\s])?([ \t]*(?:#.*)?)$"
    else:
        pattern = rf'("{re.escape(name)}"\s*:\s*)(?:true|false|null|-?\d[\d.eE+-]*|"[^"\\]*"|\[[^\[\]{{}}]*\])()'
    if len(re.findall(pattern, text)) != 1:
        return None
    return re.sub(pattern, lambda found: found.group(1) + json.dumps(value) + found.group(2), text)


def _decoded(text: str, path: Path) -> Any:
    try:
        return load_yaml(text) if _is_yaml(path) else json.loads(text)
    except (ValueError, RecursionError):  # MalformedError is a ValueError
        return None


def _encoded(fields: Mapping[str, Any], text: str, path: Path) -> str:
    if _is_yaml(path):
        return yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True)
    indent = re.search(r"\n([ \t]+)\S", text)
    width = indent.group(1) if indent else 2
    has_halves = re.search("[\ud800-\udfff]", json.dumps(fields, ensure_ascii=False))  # of surrogates
    return json.dumps(fields, indent=width, ensure_ascii=has_halves is not None) + "\n"
