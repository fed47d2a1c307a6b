"""Run an action when a module has been imported, or at once if it already was."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

AfterImport = Callable[[ModuleType], None]


def after_import(actions: Mapping[str, AfterImport]) -> ImportWatch:
    """Call each action with its module once that has been imported; at once for modules that already are.

    Args:
        actions: By the module's name. They must not raise.
    """
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is not None and not _is_being_imported(module):
            action(module)
    watch = ImportWatch({name: action for name, action in actions.items() if not _is_imported(name)})
    sys.meta_path.insert(0, watch)
    return watch


class ImportWatch(importlib.abc.MetaPathFinder):
    """Finds no module itself: asks the other finders, and wraps the loader that they return."""

    def __init__(self, actions: dict[str, AfterImport]) -> None:
        self._actions = actions

    @property
    def waiting(self) -> Sequence[str]:
        """Modules with an action that have not been imported yet."""
        return list(self._actions)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that other finders find for a module with an action, with a loader that runs the action."""
        # Removed before the search below, which asks this finder again.
        action = self._actions.pop(fullname, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, action)
        return spec

    def remove(self) -> None:
        """Stop waiting."""
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """Loads with another loader, then calls an action."""

    def __init__(self, loader: importlib.abc.Loader, action: AfterImport) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must show its original loader, through which other code reads its source.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not _is_being_imported(module)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))
