"""Find, check and ask plugins: the only module that talks to pluggy's manager.

A plugin is found by its entry point in the group ``msprobe`` or, in a clone that is not installed, as
``msprobe.<name>.hooks`` on the import path. One that cannot be loaded is named, with the reason, and left out.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pluggy

from msprobe_core import hookspecs
from msprobe_core.errors import MsprobeError, PluginError

_logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = hookspecs.PROJECT
NAMESPACE = "msprobe"
CORE = "core"

_HOOK_PREFIX = "msprobe_"
_BUILT_IN = (
    "msprobe_core.capture.processors",
    "msprobe_core.store.json_writer",
    "msprobe_core.store.json_reader",
    "msprobe_core.cli.commands",
)


@dataclass(frozen=True)
class Plugin:
    """A plugin as ``msprobe plugins`` lists it.

    Attributes:
        name: Name of its entry point.
        version: Version of its distribution; ``None`` if it is not installed as one.
        source: Where it was found: a distribution, or ``not installed``.
        hooks: The hooks it implements.
        summary: What it says it is: the first line of its module.
        problem: Why it was left out; ``None`` if it works.
    """

    name: str
    version: str | None
    source: str
    hooks: tuple[str, ...] = ()
    summary: str = ""
    problem: str | None = None


@dataclass
class Registry:
    """All plugins of this process, and what they offer."""

    manager: pluggy.PluginManager
    _plugins: dict[str, Plugin] = field(default_factory=dict[str, Plugin])

    @property
    def plugins(self) -> Sequence[Plugin]:
        """Every plugin that was found, the core first."""
        return list(self._plugins.values())

    def frameworks(self) -> dict[str, hookspecs.Framework]:
        """Return the frameworks by name."""
        return self._offers("msprobe_register_frameworks")

    def processors(self) -> dict[str, hookspecs.Processor]:
        """Return the processors by name."""
        return self._offers("msprobe_register_processors")

    def writers(self) -> dict[str, hookspecs.WriterFactory]:
        """Return the writers by name."""
        return self._offers("msprobe_register_writers")

    def readers(self) -> list[hookspecs.Reader]:
        """Return the readers, the core's own last."""
        readers: dict[str, hookspecs.Reader] = self._offers("msprobe_register_readers")
        return list(reversed(readers.values()))

    def commands(self) -> dict[str, Any]:
        """Return the subcommands by name."""
        return self._offers("msprobe_register_commands")

    def add(self, plugin: Plugin, load: Callable[[], object]) -> None:
        """Load and register a plugin; one that fails is noted with its problem and left out."""
        try:
            module = load()
            hooks = _hooks_of(module)
            self.manager.register(module, plugin.name)
            self.manager.check_pending()
        except Exception as error:  # noqa: BLE001  # whatever a plugin of others raises must not end this program
            self._drop(plugin, str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}")
        else:
            summary = (module.__doc__ or "").strip().partition("\n")[0]
            self._plugins[plugin.name] = replace(plugin, hooks=hooks, summary=summary)

    def _offers(self, hook: str) -> dict[str, Any]:
        offers: dict[str, Any] = {}
        providers: dict[str, str] = {}
        for plugin, offered in self._ask(hook):
            for offer in offered:
                name = str(offer.name)
                if name in offers:
                    raise PluginError(
                        f"the plugins '{providers[name]}' and '{plugin}' both offer {name!r} ({hook}); "
                        "uninstall one of them"
                    )
                offers[name] = offer
                providers[name] = plugin
        return offers

    def _ask(self, hook: str) -> Iterable[tuple[str, Sequence[Any]]]:
        # Each implementation by itself, so that a failure is the failure of one plugin, with a name.
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        for implementation in caller.get_hookimpls():
            plugin = implementation.plugin_name
            try:
                offered = cast("Sequence[Any]", implementation.function() or ())
            except MsprobeError:
                raise
            except Exception as error:  # noqa: BLE001  # as above
                self._drop(self._plugins[plugin], f"{hook} failed: {type(error).__name__}: {error}")
            else:
                yield plugin, offered

    def _drop(self, plugin: Plugin, problem: str) -> None:
        if self.manager.get_plugin(plugin.name) is not None:
            self.manager.unregister(name=plugin.name)
        self._plugins[plugin.name] = replace(plugin, problem=problem)
        _logger.warning("the plugin '%s' (%s) is left out: %s", plugin.name, plugin.source, problem)


def _hooks_of(module: object) -> tuple[str, ...]:
    """Return the names of the hooks that ``module`` implements.

    Raises:
        PluginError: a function is called like a hook but there is none of that name.
    """
    known = {name for name in vars(hookspecs.HookSpecs) if name.startswith(_HOOK_PREFIX)}
    found = {name for name in dir(module) if name.startswith(_HOOK_PREFIX) and callable(getattr(module, name))}
    for name in sorted(found - known):
        raise PluginError(f"there is no hook {name!r}; known: {', '.join(sorted(known))}")
    return tuple(sorted(found))


@cache
def registry() -> Registry:
    """Return the plugins of this process; looked for at the first call."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.HookSpecs)
    found = Registry(manager)
    for module in _BUILT_IN:
        found.add(Plugin(_built_in_name(module), _version_of_core(), "msprobe-core"), _importer(module))
    shadow = shadowing_package()
    for plugin, module in _discover():
        # Importing it would run the other distribution's package.
        is_hidden = shadow is not None and module.startswith(f"{NAMESPACE}.")
        found.add(plugin, refuse_shadowing if is_hidden else _importer(module))
    return found


def _importer(module: str) -> Callable[[], ModuleType]:
    return lambda: importlib.import_module(module)


def _built_in_name(module: str) -> str:
    return f"{CORE}:{module.rpartition('.')[2]}"


def _version_of_core() -> str:
    from msprobe_core import __version__

    return __version__


def _discover() -> Iterable[tuple[Plugin, str]]:
    seen: set[str] = set()
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
        if point.name in seen:
            continue  # an editable install beside its wheel lists itself twice
        seen.add(point.name)
        version, source = (point.dist.version, point.dist.name) if point.dist else (None, "unknown distribution")
        yield Plugin(point.name, version, source), point.value
    for name in _namespace_members():
        if name not in seen:
            yield Plugin(name, None, "not installed"), f"{NAMESPACE}.{name}.hooks"


def _namespace_members() -> Iterable[str]:
    spec = importlib.util.find_spec(NAMESPACE)
    if spec is None or spec.submodule_search_locations is None or spec.origin is not None:
        return []
    members = {member.name for member in pkgutil.iter_modules(spec.submodule_search_locations) if member.ispkg}
    return sorted(name for name in members if importlib.util.find_spec(f"{NAMESPACE}.{name}.hooks"))


def shadowing_package() -> Path | None:
    """Return the file of a regular package ``msprobe`` that hides ours; ``None`` if there is none.

    ``mindstudio-probe`` installs such a package. Ours is a namespace, which Python ignores as soon as it finds a
    package with an ``__init__.py`` of the same name.
    """
    spec = importlib.util.find_spec(NAMESPACE)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def shadowing_advice(package: Path) -> str:
    """Return what to tell a user about a shadowing package."""
    return (
        f"the package 'msprobe' in {package.parent} hides the plugins of msprobe-core: it belongs to another "
        "distribution, most likely mindstudio-probe. Uninstall that one (pip uninstall mindstudio-probe), reinstall "
        "the msprobe plugins, or keep the two in virtual environments of their own"
    )


def refuse_shadowing() -> None:
    """Raise if a plugin of ours has been imported as part of another distribution's package ``msprobe``.

    Raises:
        PluginError: with what to do about it.
    """
    package = shadowing_package()
    if package is not None:
        raise PluginError(shadowing_advice(package))
