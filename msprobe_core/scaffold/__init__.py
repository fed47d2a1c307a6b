"""Packages of new plugins, made of templates, whose contract tests pass as they are."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from string import Template

from msprobe_core._version import __version__
from msprobe_core.errors import ConfigError, ExistsError, StoreError

_TEMPLATES = Path(__file__).parent / "templates"
_EVERY = "every"
_SUFFIX = ".txt"
_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_OURS = frozenset({"core", "mindspore", "pytorch", "verl"})
"""Names of our own distributions after ``msprobe-``: pip would install another package in their place."""


def kinds() -> list[str]:
    """Return what a new plugin may be."""
    return sorted(each.name for each in _TEMPLATES.iterdir() if each.is_dir() and each.name != _EVERY)


def new_plugin(name: str, kind: str, directory: Path | None = None) -> list[Path]:
    """Write the package of a new plugin; return its files.

    Args:
        name: Of the plugin; the distribution is ``msprobe-NAME``.
        kind: One of `kinds`.
        directory: Where to write it; ``None`` takes ``msprobe-NAME``. It must not exist.

    Raises:
        ConfigError: the name cannot be that of a package, or is that of one of ours.
        StoreError: the directory exists, or cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a plugin; give letters in lower case, digits, and '-' or '_' between them"
        )
    if name in _OURS:
        raise ConfigError(f"msprobe-{name} is a package of msprobe itself, which pip would replace; give another name")
    module = name.replace("-", "_")
    title = "".join(part.capitalize() for part in re.split(r"[-_]", name))
    fields = {"name": name, "module": module, "title": title, "kind": kind, "version": __version__}
    root = directory or Path(f"msprobe-{name}")
    written: list[Path] = []
    is_made = False
    try:
        root.mkdir(parents=True)
        is_made = True
        for template in (*_files(_EVERY), *_files(kind)):
            path = root / _place(template.name.removesuffix(_SUFFIX), module)
            path.parent.mkdir(exist_ok=True)
            path.write_text(Template(template.read_text(encoding="utf-8")).substitute(fields), encoding="utf-8")
            written.append(path)
        (root / f"msprobe_{module}" / "__init__.py").write_text(f'"""See `msprobe_{module}.hooks`."""\n')
    except FileExistsError as error:
        raise ExistsError(f"{root} exists already; give another name, or another directory with -o") from error
    except OSError as error:
        if is_made:  # or the command could not be repeated
            shutil.rmtree(root, ignore_errors=True)
        raise StoreError(f"{root} cannot be written ({error.strerror}); give another directory with -o") from error
    return written


def _place(file: str, module: str) -> str:
    if file.startswith("test_"):
        return f"tests/{file}"
    return f"msprobe_{module}/{file}" if file.endswith(".py") else file


def _files(kind: str) -> list[Path]:
    return sorted((_TEMPLATES / kind).iterdir())
