"""The page ``docs/errors.md``: a section for each code of an error, of ``tests/data/site/errors.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from msprobe_core import errors

_DATA = Path(__file__).parents[1] / "data" / "site"
_TITLES = {
    "en": {"causes": "Usual causes:", "do": "What to do:"},
    "zh": {"causes": "常见原因：", "do": "处理方法："},  # noqa: RUF001
}


def codes() -> dict[str, list[str]]:
    """Return every code that a message may end with, and the names of the classes that have it."""
    found: dict[str, list[str]] = {errors.FILE_CODE: ["OSError"], errors.INTERNAL_CODE: []}
    for name, value in vars(errors).items():
        if isinstance(value, type) and "code" in vars(value):
            found.setdefault(value.code, []).append(name)
    return found


def sections() -> dict[str, dict[str, Any]]:
    """Return what the file says, by code and language: ``means``, ``causes`` and ``do``."""
    return yaml.safe_load((_DATA / "errors.yaml").read_text(encoding="utf-8"))


def errors_page() -> tuple[str, str]:
    """Return the page in English and in Chinese."""
    english, chinese = (_page(language) for language in ("en", "zh"))
    return english, chinese


def _page(language: str) -> str:
    head = (_DATA / ("errors.md" if language == "en" else "errors.zh.md")).read_text(encoding="utf-8")
    return head + "".join(_section(code, texts[language], language) for code, texts in sections().items())


def _section(code: str, texts: dict[str, Any], language: str) -> str:
    anchor = "" if language == "en" else f' <a id="{re.sub(r"[^a-z-]", "", code)}"></a>'
    classes = "".join(f" `{name}`" for name in codes()[code])
    lists = [
        f"{title}\n\n" + "".join(f"* {item}\n" for item in texts[kind]) for kind, title in _TITLES[language].items()
    ]
    return "\n".join([f"\n## {code}{anchor}\n", f"{texts['means']}{classes}\n", *lists])
