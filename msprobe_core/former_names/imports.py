"""Let Python find names of mindstudio-probe's package ``msprobe`` that are elsewhere here, or say what to use instead.

``msprobe`` is a namespace that several distributions share, so what is not a file of one of them is looked up in the
table of `msprobe_core.former_names`, by a finder that stands last: files always win.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from msprobe_core.former_names.table import ABSENT, MOVED, PROGRAMS


def offer_former_names() -> None:
    """Let this process import former names; called by each package of the namespace that had modules of its own."""
    if not any(isinstance(finder, _FormerNames) for finder in sys.meta_path):
        sys.meta_path.append(_FormerNames())


def former_attribute(module: str, name: str) -> Any:
    """Return what ``name`` in ``module`` has become: for the module's ``__getattr__``.

    Raises:
        AttributeError: there is no such name, or it has no counterpart; then it says what to use instead.
    """
    full = f"{module}.{name}"
    if full in _MODULES:
        return importlib.import_module(full)
    if full in MOVED:
        return _load(MOVED[full])
    advice = None if name.startswith("__") else advice_for(full)
    raise AttributeError(f"module {module!r} has no attribute {name!r}" + (f": {advice}" if advice else ""))


def former_module(name: str) -> tuple[list[str], Callable[[str], Any]]:
    """Return ``__path__`` and ``__getattr__`` of a module that only stands for former names.

    Python looks for modules below a module with a ``__path__``; an empty one has no files of its own.
    """
    offer_former_names()
    return [], partial(former_attribute, name)


def advice_for(name: str) -> str | None:
    """Return what to use instead of a dotted name that has no counterpart; ``None`` for names of no former part."""
    return next((ABSENT[known] for known in (name, *_parents_of(name)) if known in ABSENT), None)


class _FormerModule(ModuleType):
    """A module of the table. Where a function had the name as well, it can be called as that function."""

    def __getattr__(self, name: str) -> Any:
        return former_attribute(self.__name__, name)

    def __dir__(self) -> Iterable[str]:
        stem = f"{self.__name__}."
        return sorted({known.removeprefix(stem).partition(".")[0] for known in MOVED if known.startswith(stem)})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        place = MOVED.get(self.__name__)
        if place is None:
            raise TypeError(f"the module {self.__name__!r} is not callable")
        return _load(place)(*args, **kwargs)


class _FormerNames(MetaPathFinder, Loader):
    """Finds the modules of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname in _MODULES:
            return ModuleSpec(fullname, self, is_package=True)
        if fullname in PROGRAMS:
            found = find_spec(PROGRAMS[fullname])
            # `python -m` asks the loader for the code by the former name.
            return found and spec_from_file_location(fullname, found.origin)
        advice = advice_for(fullname)
        if advice is None:
            return None
        # An AttributeError of the module would be replaced by one without advice. So would one that has a name.
        raise ModuleNotFoundError(f"{fullname}: {advice}")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _FormerModule(spec.name, f"A former place of names; see {__name__}.")

    def exec_module(self, module: ModuleType) -> None:
        pass


def _parents_of(name: str) -> Iterable[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


# Modules that names which have moved were in. Not the packages of the namespace: those are there, or not installed.
_MODULES = frozenset(parent for known in (*MOVED, *PROGRAMS) for parent in _parents_of(known) if parent.count(".") > 1)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
