"""Write the pages of reference that are made of the program: commands, what plugins import, keys, and errors.

python tests/support/reference_pages.py
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from configuration_tables import configuration
from error_page import errors_page

from msprobe_core import testing
from msprobe_core.plugins import registry

_DOCS = Path(__file__).parents[2] / "docs"
_HEADS = Path(__file__).parents[1] / "data" / "site"
_WIDTH = 100

MODULES = ("plugin", "interception", "fingerprint", "manifest", "recording", "store", "rl", "comparison", "testing")
"""The public modules of ``msprobe_core`` for plugins, in the order of ``docs/plugins.md``."""


def commands() -> tuple[str, str]:
    """Return the page of commands in English and in Chinese."""
    sections = [
        (name, f"\n\n```text\n{text}\n```\n")
        for command_name, command in sorted(registry().commands().items())
        for name, text in _helps(command, command_name, None)
    ]
    english, chinese = _heads("commands")
    english += "".join(f"\n## {name}{block}" for name, block in sections)
    chinese += "".join(f'\n## {name} <a id="{name.replace(" ", "-")}"></a>{block}' for name, block in sections)
    return english, chinese


def plugin_api() -> tuple[str, str]:
    """Return the page of what plugins import, in English and in Chinese."""
    english, chinese = _heads("plugin_api")
    for name in MODULES:
        module = importlib.import_module(f"msprobe_core.{name}")
        blocks = [_described(member, getattr(module, member)) for member in sorted(module.__all__)]
        code = "\n\n```python\n" + "\n\n".join(blocks) + "\n```\n"
        english += f"\n## msprobe_core.{name}{code}"
        chinese += f'\n## msprobe_core.{name} <a id="msprobe_core{name}"></a>{code}'
    return english, chinese


def _heads(name: str) -> tuple[str, str]:
    """Return how the page begins, in English and in Chinese."""
    english, chinese = (_HEADS / f"{name}{language}.md" for language in ("", ".zh"))
    return english.read_text(encoding="utf-8"), chinese.read_text(encoding="utf-8")


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    if parent is None:
        parent = click.Context(click.Group("msprobe"), info_name="msprobe", help_option_names=["-h", "--help"])
    last = name.rsplit(maxsplit=1)[-1]
    context = click.Context(command, parent, info_name=last, terminal_width=_WIDTH, max_content_width=_WIDTH)
    command._help_option = None  # click keeps that of the first use, which in a test may be of the command alone
    yield name, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield from _helps(found, f"{name} {inner}", context)


def _described(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return _class(name, value)
    if callable(value):
        return f"def {name}{_signature(value)}:\n{_summary(value)}"
    return f"{name}: {type(value).__name__}"


def _class(name: str, value: type) -> str:
    if issubclass(value, enum.Enum):
        members = "".join(f"\n    {member.name} = {member.value!r}" for member in value)
        return f"class {name}(Enum):\n{_summary(value)}{members}"
    parts = [base for base in value.__mro__[1:] if _is_part(base)]
    named = (base for base in value.__bases__ if base not in parts and base.__name__ not in {"object", "Struct"})
    bases = ", ".join(base.__name__ for base in named)
    head = f"class {name}({bases}):" if bases else f"class {name}:"
    fields = [f"    {field}: {_plain(kind)}" for field, kind in _fields(value).items() if not field.startswith("_")]
    methods = [
        f"    def {member}{_signature(function)}:\n{textwrap.indent(_summary(function), '    ')}"
        for owner in (*reversed(parts), value)
        for member, function in vars(owner).items()
        if inspect.isfunction(function) and not member.startswith("_")
    ]
    return "\n".join([head, _summary(value), *fields, *methods])


def _is_part(base: type) -> bool:
    """Whether a contract that plugins inherit is divided into this one, which they cannot import by itself."""
    return base.__module__.startswith("msprobe_core.testing.") and base.__name__ not in testing.__all__


def _fields(value: type) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: field.type for field in dataclasses.fields(value)}
    kinds: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        kinds |= vars(base).get("__annotations__", {})
    if getattr(value, "_is_protocol", False):
        return {name: kinds[name] for name in vars(value).get("__annotations__", {})}
    return {name: kinds.get(name, Any) for name in getattr(value, "__struct_fields__", ())}


def _summary(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split()).replace("``", "`").replace('"""', "'''")
    return f'    """{paragraph}"""' if paragraph else "    ..."


def _signature(function: Any) -> str:
    try:
        found = inspect.signature(function)
        # A default that describes this process, such as its environment, is none of the program's.
        shown = [
            each.replace(default=...) if each.default is os.environ else each for each in found.parameters.values()
        ]
        return _plain(str(found.replace(parameters=shown)).replace("= Ellipsis", "= ..."))
    except (TypeError, ValueError):
        return "(…)"


def _plain(text: Any) -> str:
    """Return an annotation or a signature without what differs from process to process."""
    text = text.__name__ if inspect.isclass(text) else str(text)
    text = re.sub(r"<(\w+\.\w+): [^<>]*>", r"\1", text)
    return re.sub(r"<(?:[^<>]|<[^<>]*>)*>", "…", text).replace("'", "").replace("typing.", "")


PAGES = {
    "commands.md": commands,
    "plugin_api.md": plugin_api,
    "configuration.md": configuration,
    "errors.md": errors_page,
}


if __name__ == "__main__":
    for name, make in PAGES.items():
        for folder, text in zip((_DOCS, _DOCS / "zh"), make(), strict=True):
            (folder / name).write_text(text, encoding="utf-8")
