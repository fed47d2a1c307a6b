"""Patches: replace a function while it is observed, and restore the original afterwards."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias, cast

Function = Callable[..., Any]

Handler = Callable[[Function, tuple[Any, ...], Mapping[str, Any]], Any]
"""Called with the original function and the arguments of a call; returns the result."""

_ABSENT = object()


def never() -> bool:
    """Return false: the framework is never compiling."""
    return False


class Patch:
    """Replaces an attribute between ``install`` and ``remove``."""

    # One for all patches, because several may patch the same attribute.
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, owner: Any, attribute: str) -> None:
        """Prepare; nothing is replaced before ``install``."""
        self._owner = owner
        self._attribute = attribute
        self._original: Any = None
        self._own: Any = _ABSENT
        self._visible: Any = self
        self.is_on = False

    def install(self) -> None:
        """Replace the attribute.

        Raises:
            AttributeError: there is no such attribute.
            TypeError: the owner does not allow assignment, as built-in types.
        """
        with self._lock:
            self._original = getattr(self._owner, self._attribute)
            self._own = _namespace_of(self._owner).get(self._attribute, _ABSENT)
            is_class = isinstance(self._owner, type)
            self._visible = self._dress(inspect.getattr_static(self._owner, self._attribute) if is_class else self._own)
            setattr(self._owner, self._attribute, self._visible)
            self.is_on = True

    def remove(self) -> None:
        """Restore the attribute, unless other code has replaced it since; remaining references call the original."""
        with self._lock:
            if not self.is_on:
                return
            self.is_on = False
            if not self._is_in_place():
                return
            own = self._own
            while isinstance(own, Patch) and not own.is_on:
                own = own._own  # an earlier patch that was removed before this one
            if own is not _ABSENT:
                setattr(self._owner, self._attribute, own)
            elif self._attribute in _namespace_of(self._owner):
                delattr(self._owner, self._attribute)  # the attribute was inherited, or created on demand
            else:
                setattr(self._owner, self._attribute, self._original)

    def _is_in_place(self) -> bool:
        own = _namespace_of(self._owner).get(self._attribute, _ABSENT)
        return (getattr(self._owner, self._attribute, _ABSENT) if own is _ABSENT else own) is self._visible

    def _dress(self, raw: Any) -> Any:  # noqa: ARG002  # functions of classes need it
        """Return the replacement for ``raw``, the attribute as stored in its namespace."""
        return self


class FunctionPatch(Patch):
    """Replaces a function; each call is passed to a handler with the original and the arguments.

    All other attributes, such as its name, signature or overloads, are those of the original. It is pickled by the
    original's name, so files written meanwhile contain no reference to it.
    """

    def __init__(self, owner: Any, attribute: str, handler: Handler, steps_aside: Callable[[], bool] = never) -> None:
        """Prepare; nothing is replaced before ``install``.

        Args:
            owner: Module, class or other object that has the function as an attribute.
            attribute: Name of the attribute.
            handler: Handles each call.
            steps_aside: Whether a call goes directly to the original, for example while a framework compiles the
                calling code.
        """
        super().__init__(owner, attribute)
        self._handler = handler
        self._steps_aside = steps_aside

    def install(self) -> None:
        """Replace the attribute."""
        dressed_as = self._original
        super().install()
        if self._original is not dressed_as:  # skip the copy of metadata if possible: each step may open a window
            functools.update_wrapper(self, self._original, updated=())

    @property
    def original(self) -> Function:
        """The original function."""
        return self._original

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the original, through the handler while installed."""
        if not self.is_on or self._steps_aside():
            return self._original(*args, **kwargs)
        return self._handler(self._original, args, kwargs)

    def _dress(self, raw: Any) -> Any:
        kind: Any
        for kind in (staticmethod, classmethod):
            if isinstance(raw, kind):
                self._original = raw.__func__
                return kind(self)
        return self

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # before __init__: the object is being copied or unpickled
            raise AttributeError(name)
        return getattr(self._original, name)

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> Any:
        module, path = getattr(self, "__module__", None), getattr(self, "__qualname__", "")
        if _look_up(module, path) is self:
            return path
        owner = getattr(self._owner, "__name__", None)
        if _look_up(owner, self._attribute) is self:
            return pkgutil.resolve_name, (f"{owner}:{self._attribute}",)
        return pkgutil.resolve_name, (f"{module}:{path}",)

    def __copy__(self) -> FunctionPatch:
        return self

    def __deepcopy__(self, memo: object) -> FunctionPatch:
        return self


class Patches:
    """Patches that are installed together, also under the names by which other modules have imported the functions."""

    def __init__(
        self,
        patches: Iterable[FunctionPatch] = (),
        *,
        are_imported: bool = True,
        search: AliasSearch | None = None,
    ) -> None:
        """Prepare; nothing is replaced before ``install``.

        Args:
            patches: One for each attribute. If several replace the same function, its other names get the first one.
            are_imported: Whether modules may have imported the functions by name; methods are never imported.
            search: Search results shared with other patches of the same functions; ``None`` creates one.
        """
        self._patches = list(patches)
        self._aliases: list[_Alias] = []
        self._search = (search or AliasSearch()) if are_imported else None
        self._modules: frozenset[str] = frozenset()

    def install(self) -> None:
        """Install all patches, or none if one of them fails."""
        try:
            for patch in self._patches:
                patch.install()
        except BaseException:
            self.remove()
            raise
        for namespace, name, patch in self._search.run(self._patches) if self._search else ():
            namespace[name] = patch
            self._aliases.append((namespace, name, patch))
        if self._search is not None:
            self._modules = frozenset(sys.modules)

    def remove(self) -> None:
        """Remove all patches, in reverse order."""
        for patch in reversed(self._patches):
            patch.remove()
        while self._aliases:
            namespace, name, patch = self._aliases.pop()
            if namespace.get(name) is patch:
                namespace[name] = _below(patch.original)
        self._clear_new_modules()
        # Other references to a patch remain; it calls the original from now on.

    def _clear_new_modules(self) -> None:
        """Restore the originals in modules that were imported meanwhile and imported patches by name."""
        if not self._modules:
            return
        new, self._modules = sys.modules.keys() - self._modules, frozenset()
        ours = {id(patch): patch for patch in self._patches}
        for module_name in new:
            namespace: dict[str, Any] = getattr(sys.modules.get(module_name), "__dict__", {})
            for name, value in tuple(namespace.items()):
                if type(value) is FunctionPatch and id(value) in ours:
                    namespace[name] = _below(value.original)


Names: TypeAlias = dict[str, Any]
"""Namespace of a module."""

_Alias = tuple[Names, str, FunctionPatch]
"""Namespace of a module, a name of a function in it, and the patch of that function."""


class AliasSearch:
    """Finds the names by which modules have imported functions.

    Modules have tens of thousands of names, and each step may open a window. So results are kept, and a module is
    searched again only if it is new, or its number of names has changed.
    """

    def __init__(self) -> None:
        self._originals: list[Function] = []
        self._found: list[tuple[str, Names, str, Function]] = []
        self._sizes: dict[str, tuple[int, int]] = {}

    def run(self, patches: list[FunctionPatch]) -> list[_Alias]:
        """Return where the originals of ``patches`` are imported now; earlier searches may have had other patches."""
        if not patches:
            return []
        originals = [patch.original for patch in patches]
        if not self._is_about(originals):
            self._originals, self._found, self._sizes = originals, [], {}
        by_id = {id(patch.original): patch for patch in reversed(patches)}
        modules = dict(sys.modules)
        # Drop results in modules that have been unloaded.
        self._found = [found for found in self._found if getattr(modules.get(found[0]), "__dict__", None) is found[1]]
        known = {(id(namespace), name) for _, namespace, name, _ in self._found}
        for module_name, module in modules.items():
            content: Any = getattr(module, "__dict__", None)
            if type(content) is not dict:
                continue
            namespace = cast("Names", content)
            size = id(namespace), len(namespace)
            if self._sizes.get(module_name) != size:
                self._sizes[module_name] = size
                self._found += [
                    (module_name, namespace, name, value)
                    for name, value in tuple(namespace.items())
                    if id(value) in by_id and by_id[id(value)].original is value and (id(namespace), name) not in known
                ]
        return [
            (namespace, name, by_id[id(original)])
            for _, namespace, name, original in self._found
            if namespace.get(name) is original
        ]

    def _is_about(self, originals: list[Function]) -> bool:
        return len(originals) == len(self._originals) and all(
            one is other for one, other in zip(originals, self._originals, strict=True)
        )


class Outermost(threading.local):
    """Context manager per thread; its value tells whether the call is not inside another one."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> bool:
        self.depth += 1
        return self.depth == 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


def _namespace_of(owner: Any) -> Mapping[str, Any]:
    return getattr(owner, "__dict__", {})


def _below(value: Any) -> Any:
    """Return the value below removed patches; they may be removed in any order."""
    while isinstance(value, FunctionPatch) and not value.is_on:
        value = value.original
    return value


def original_of(value: Any) -> Any:
    """Return the original of a patched function; any other value unchanged."""
    while isinstance(value, FunctionPatch):
        value = value.original
    return value


def _look_up(module: str | None, path: str) -> Any:
    found: Any = sys.modules.get(module or "")
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
