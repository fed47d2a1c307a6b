"""Do something with a module as soon as somebody has imported it, or now if it is imported already."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

AfterImport = Callable[[ModuleType], None]


def after_import(actions: Mapping[str, AfterImport]) -> ImportWatch:
    """Call each action with its module once that is imported; those that are imported already come at once.

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
    """Finds nothing itself: it asks the others, and puts an action behind what they found."""

    def __init__(self, actions: dict[str, AfterImport]) -> None:
        self._actions = actions

    @property
    def waiting(self) -> Sequence[str]:
        """Modules that nobody has imported yet."""
        return list(self._actions)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that others find for a module that is waited for, with a loader that calls the action."""
        action = self._actions.pop(fullname, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, action)
        return spec

    def remove(self) -> None:
        """Wait no more."""
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """Loads as another loader does, then calls an action."""

    def __init__(self, loader: importlib.abc.Loader, action: AfterImport) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module is to show the loader that it has: others read its source through it.
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
