"""Patches: they take the place of a function while something watches it, and give the place back as it was."""

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
"""Gets the original and the arguments of a call, and returns its result."""

_ABSENT = object()


def never() -> bool:
    """Return false: nobody compiles."""
    return False


class Patch:
    """Takes the place of an attribute between ``install`` and ``remove``."""

    _lock: ClassVar[threading.RLock] = threading.RLock()  # one for all: places may be stacked upon each other

    def __init__(self, owner: Any, attribute: str) -> None:
        """Prepare; ``install`` begins."""
        self._owner = owner
        self._attribute = attribute
        self._original: Any = None
        self._own: Any = _ABSENT
        self._visible: Any = self
        self.is_on = False

    def install(self) -> None:
        """Take the place.

        Raises:
            AttributeError: there is no such attribute.
            TypeError: the owner does not let it be set, as built-in types.
        """
        with self._lock:
            self._original = getattr(self._owner, self._attribute)
            self._own = _namespace_of(self._owner).get(self._attribute, _ABSENT)
            is_class = isinstance(self._owner, type)
            self._visible = self._dress(inspect.getattr_static(self._owner, self._attribute) if is_class else self._own)
            setattr(self._owner, self._attribute, self._visible)
            self.is_on = True

    def remove(self) -> None:
        """Give the place back, unless somebody else has taken it since; whoever still holds it gets the original."""
        with self._lock:
            if not self.is_on:
                return
            self.is_on = False
            if not self._is_in_place():
                return
            own = self._own
            while isinstance(own, Patch) and not own.is_on:
                own = own._own  # one below, that has been removed before this
            if own is not _ABSENT:
                setattr(self._owner, self._attribute, own)
            elif self._attribute in _namespace_of(self._owner):
                delattr(self._owner, self._attribute)  # it was inherited, or made on demand
            else:
                setattr(self._owner, self._attribute, self._original)

    def _is_in_place(self) -> bool:
        own = _namespace_of(self._owner).get(self._attribute, _ABSENT)
        return (getattr(self._owner, self._attribute, _ABSENT) if own is _ABSENT else own) is self._visible

    def _dress(self, raw: Any) -> Any:  # noqa: ARG002  # functions of classes need it
        """Return what is put in the place of ``raw``, the attribute as a namespace holds it."""
        return self


class FunctionPatch(Patch):
    """Stands for a function: called, it hands the original and the arguments to a handler.

    Everything else that is asked of it, such as its name, its signature or an overload, the original answers. It is
    pickled as the name of the original, so files written meanwhile hold nothing of it.
    """

    def __init__(self, owner: Any, attribute: str, handler: Handler, steps_aside: Callable[[], bool] = never) -> None:
        """Prepare; ``install`` begins.

        Args:
            owner: Module, class or other object whose attribute the function is.
            attribute: Its name there.
            handler: Is given each call.
            steps_aside: Whether a call goes straight to the original, as where a framework compiles the calling code.
        """
        super().__init__(owner, attribute)
        self._handler = handler
        self._steps_aside = steps_aside

    def install(self) -> None:
        """Take the place."""
        dressed_as = self._original
        super().install()
        if self._original is not dressed_as:  # there may be a window in every step
            functools.update_wrapper(self, self._original, updated=())

    @property
    def original(self) -> Function:
        """What is stood for."""
        return self._original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
        if name == "_original":  # before __init__: of an object that copying or unpickling has just made
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
    """Functions that are watched together, also under the names by which other modules have imported them."""

    def __init__(
        self,
        patches: Iterable[FunctionPatch] = (),
        *,
        are_imported: bool = True,
        search: AliasSearch | None = None,
    ) -> None:
        """Prepare; ``install`` begins.

        Args:
            patches: One for each place. Where several stand for the same function, its other names get the first.
            are_imported: Whether modules may have imported the functions, as they never have methods.
            search: What others found who stood for the same functions; new if not given.
        """
        self._patches = list(patches)
        self._aliases: list[_Alias] = []
        self._search = (search or AliasSearch()) if are_imported else None
        self._modules: frozenset[str] = frozenset()

    def install(self) -> None:
        """Take all places, or none if one of them cannot be taken."""
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
        """Give all places back, the last first."""
        for patch in reversed(self._patches):
            patch.remove()
        while self._aliases:
            namespace, name, patch = self._aliases.pop()
            if namespace.get(name) is patch:
                namespace[name] = _below(patch.original)
        self._clear_new_modules()
        # Whoever else has taken hold of a patch keeps it; it calls the original from now on.

    def _clear_new_modules(self) -> None:
        """Put the originals into modules that were imported meanwhile, and found patches to import by name."""
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
"""Of a module, with what they name."""

_Alias = tuple[Names, str, FunctionPatch]
"""The names of a module, one that a function has there, and what stands for the function."""


class AliasSearch:
    """Finds the names by which modules have imported functions.

    Modules have ten thousands of names, and there may be a window in every step: it is remembered what was found, and
    a module is searched again only when it has come, or has got more or fewer names.
    """

    def __init__(self) -> None:
        self._originals: list[Function] = []
        self._found: list[tuple[str, Names, str, Function]] = []
        self._sizes: dict[str, tuple[int, int]] = {}

    def run(self, patches: list[FunctionPatch]) -> list[_Alias]:
        """Return where the originals of some functions are now, whoever stands for them this time."""
        if not patches:
            return []
        originals = [patch.original for patch in patches]
        if not self._is_about(originals):
            self._originals, self._found, self._sizes = originals, [], {}
        by_id = {id(patch.original): patch for patch in reversed(patches)}
        modules = dict(sys.modules)
        # What has been unloaded is not kept.
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
    """Tells, for each thread, whether a call is inside of another one: ``with`` it gives whether it is not."""

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
    """Return what a place held before patches that have been removed in another order than they came."""
    while isinstance(value, FunctionPatch) and not value.is_on:
        value = value.original
    return value


def original_of(value: Any) -> Any:
    """Return the function that ``value`` stands for; anything else as it is."""
    while isinstance(value, FunctionPatch):
        value = value.original
    return value


def _look_up(module: str | None, path: str) -> Any:
    found: Any = sys.modules.get(module or "")
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
