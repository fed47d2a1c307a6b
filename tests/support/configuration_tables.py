"""The tables of ``docs/configuration.md``: every key of the schema, and what it means in both languages.

Types, allowed values, defaults and tasks of a key are those of the schema. Its meaning, and what the schema cannot say,
such as that a text is a path, are in ``tests/data/site/configuration.yaml``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from msprobe_core.config.schema import (
    TASK_FIELDS,
    CommonFields,
    LoadOptions,
    SliceRule,
    TaskOptions,
    TwinOptions,
)
from msprobe_core.model import Perturbation
from msprobe_core.plugins import registry

_REPOSITORY = Path(__file__).parents[2]
_PAGES = {"en": _REPOSITORY / "docs" / "configuration.md", "zh": _REPOSITORY / "docs" / "zh" / "configuration.md"}
_MEANINGS = _REPOSITORY / "tests" / "data" / "site" / "configuration.yaml"
_REGION = re.compile(r"(<!-- keys of (\w+), written by `make reference` -->\n).*?(<!-- end of keys -->)", re.DOTALL)

BLOCKS: Mapping[str, type[msgspec.Struct]] = {
    "common": CommonFields,
    "task": TaskOptions,
    "slice": SliceRule,
    "load": LoadOptions,
    "perturb": Perturbation,
    "twin": TwinOptions,
}
"""The tables by their names on the page, each with the struct of its keys."""

_COLUMNS = ("key", "task", "type", "allowed", "default", "meaning")
_NAMES = {str: "text", bool: "bool", int: "integer", float: "number", dict: "object"}


@dataclass(frozen=True)
class Key:
    """One key of a table; its default is `msgspec.NODEFAULT` if it has none."""

    block: str
    name: str
    kind: Any
    default: Any
    tasks: tuple[str, ...]


def keys() -> Iterator[Key]:
    """Yield every key of the schema, in the order of the schema."""
    for block, struct in BLOCKS.items():
        kinds = get_type_hints(struct)
        for field in msgspec.structs.fields(struct):
            tasks = tuple(task.value for task, names in TASK_FIELDS.items() if field.name in names)
            yield Key(block, field.name, kinds[field.name], field.default, tasks if block == "task" else ())


def meanings() -> dict[str, dict[str, dict[str, str]]]:
    """Return what the file says, by table and key: ``en``, ``zh``, and maybe ``en_allowed``, ``zh_allowed``."""
    return {block: said for block, said in _file().items() if block != "words"}


def configuration() -> tuple[str, str]:
    """Return the page with its tables as they are now, in English and in Chinese."""
    return _page("en"), _page("zh")


def _file() -> dict[str, Any]:
    return yaml.safe_load(_MEANINGS.read_text(encoding="utf-8"))


def _page(language: str) -> str:
    text = _PAGES[language].read_text(encoding="utf-8")
    return _REGION.sub(lambda found: f"{found[1]}\n{_table(found[2], language)}\n{found[3]}", text)


def _table(block: str, language: str) -> str:
    said, words = _file()[block], _file()["words"][language]
    rows = [_cells(key, said[key.name], words, language) for key in keys() if key.block == block]
    columns = [column for column in _COLUMNS if block == "task" or column != "task"]
    lines = [[words[column] for column in columns], *([row[column] for column in columns] for row in rows)]
    head, *body = (f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)
    return f"{head}|{'---|' * len(columns)}\n{''.join(body)}"


def _cells(key: Key, said: Mapping[str, str], words: Mapping[str, str], language: str) -> dict[str, str]:
    comma = words["comma"]
    return {
        "key": f"`{key.name}`",
        "task": comma.join(f"`{task}`" for task in key.tasks),
        "type": _type(key, words),
        "allowed": said.get(f"{language}_allowed") or comma.join(f"`{value}`" for value in _allowed(key)),
        "default": _default(key, words),
        "meaning": said[language].strip(),
    }


def _type(key: Key, words: Mapping[str, str]) -> str:
    if key.name in {"step", "rank"}:
        return words["numbers_of_steps"]
    single, listed = "", ""
    for kind in _parts(key.kind):
        is_list = get_origin(kind) is tuple
        inner = get_args(kind)[0] if is_list else kind
        base = str if issubclass(inner, Enum) else dict if issubclass(inner, msgspec.Struct) else inner
        if is_list:
            listed = words["list_of"].format(words[_NAMES[base]])
        else:
            single = words[_NAMES[base]]
    return words["or"].join(filter(None, (single, listed)))


def _parts(kind: Any) -> list[Any]:
    """Return the kinds of a union without ``None``."""
    is_union = get_origin(kind) in {Union, UnionType}
    return [part for part in get_args(kind) if part is not NoneType] if is_union else [kind]


def _allowed(key: Key) -> list[str]:
    offered = {"writer": registry().writers, "summary_mode": registry().processors}.get(key.name)
    if offered is not None:
        return list(offered())
    for kind in (key.kind, *get_args(key.kind)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            return [str(member.value) for member in kind]
    return []


def _default(key: Key, words: Mapping[str, str]) -> str:
    if key.default is msgspec.NODEFAULT:
        return words["required"]
    if key.default is None:
        return words["absent"]
    if key.default == () and key.name in {"step", "rank", "list", "white_list", "param_list"}:
        return words["all"]
    value = msgspec.to_builtins(key.default)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
