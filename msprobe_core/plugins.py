"""Find, check and call plugins: the only module that uses pluggy's manager.

A plugin is found by its entry point in the group ``msprobe`` or, in a clone that is not installed, as
``msprobe.<name>.hooks`` on the import path. A plugin that cannot be loaded is reported with the reason and disabled.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

import pluggy

from msprobe_core import hookspecs
from msprobe_core._version import __version__
from msprobe_core.errors import MsprobeError, PluginError
from msprobe_core.protocols.comparison import Executor, Metric
from msprobe_core.protocols.framework import FrameworkOffer
from msprobe_core.protocols.monitoring import MonitorWriterFactory
from msprobe_core.protocols.presentation import Export, TableFormat
from msprobe_core.protocols.recording import FeatureOffer
from msprobe_core.protocols.storage import Processor, Reader, WriterFactory
from msprobe_core.protocols.trainers import ApiMap, ModuleMap, RunSettings, TrainerStages

_logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = hookspecs.PROJECT
NAMESPACE = "msprobe"
CORE = "core"

_HOOK_PREFIX = "msprobe_"
_BUILT_IN = (
    "msprobe_core.capture.processors",
    "msprobe_core.compat.features",
    "msprobe_core.free_benchmark.perturbing",
    "msprobe_core.gradients.probe_offer",
    "msprobe_core.twin.follower_offer",
    "msprobe_core.store.json_writer",
    "msprobe_core.store.folder_reader",
    "msprobe_core.store.json_reader",
    "msprobe_core.store.kernel_reader",
    "msprobe_core.store.arrow",
    "msprobe_core.execute.inline",
    "msprobe_core.execute.processes",
    "msprobe_core.execute.ray_cluster",
    "msprobe_core.monitor.arrow_table",
    "msprobe_core.monitor.csv_tree",
    "msprobe_core.monitor.csv_tree_v2",
    "msprobe_core.monitor.event_files",
    "msprobe_core.report.own_format",
    "msprobe_core.compat.formats",
    "msprobe_core.exports.offers",
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
        summary: The first line of its module's docstring.
        problem: Why it was disabled; ``None`` if it works.
    """

    name: str
    version: str | None
    source: str
    hooks: tuple[str, ...] = ()
    summary: str = ""
    problem: str | None = None


@dataclass
class Registry:
    """All plugins of this process and their offers."""

    manager: pluggy.PluginManager
    _plugins: dict[str, Plugin] = field(default_factory=dict[str, Plugin])
    _providers: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    @property
    def plugins(self) -> Sequence[Plugin]:
        """Every plugin that was found, the core first."""
        return list(self._plugins.values())

    def frameworks(self) -> dict[str, FrameworkOffer]:
        """Return the frameworks by name, including those whose package is not installed."""
        return self._offers("msprobe_register_frameworks")

    def processors(self) -> dict[str, Processor]:
        """Return the processors by name."""
        return self._offers("msprobe_register_processors")

    def writers(self) -> dict[str, WriterFactory]:
        """Return the writers by name."""
        return self._offers("msprobe_register_writers")

    def monitor_writers(self) -> dict[str, MonitorWriterFactory]:
        """Return the writers of the training monitor by name."""
        return self._offers("msprobe_register_monitor_writers")

    def readers(self) -> list[Reader]:
        """Return the readers, the core's own last."""
        readers: dict[str, Reader] = self._offers("msprobe_register_readers")
        return list(reversed(readers.values()))

    def executors(self) -> dict[str, Executor]:
        """Return the executors by name."""
        return self._offers("msprobe_register_executors")

    def tables(self) -> dict[str, TableFormat]:
        """Return the formats of result tables by name."""
        return self._offers("msprobe_register_tables")

    def exports(self) -> dict[str, Export]:
        """Return the formats of other viewers by name."""
        return self._offers("msprobe_register_exports")

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics by name."""
        return self._offers("msprobe_register_metrics")

    def api_maps(self) -> dict[str, ApiMap]:
        """Return the maps to canonical names by framework."""
        return self._offers("msprobe_register_api_maps")

    def module_maps(self) -> dict[str, ModuleMap]:
        """Return the maps of training backends' module names, by backend."""
        return self._offers("msprobe_register_module_maps")

    def commands(self) -> dict[str, Any]:
        """Return the subcommands by name."""
        return self._offers("msprobe_register_commands")

    def trainer_stages(self) -> dict[str, TrainerStages]:
        """Return the stages of trainers by trainer."""
        return self._offers("msprobe_register_stages")

    def run_settings(self) -> dict[str, RunSettings]:
        """Return what trainers were told, by trainer."""
        return self._offers("msprobe_register_run_settings")

    def features(self) -> dict[str, FeatureOffer]:
        """Return the features of recordings by name."""
        return self._offers("msprobe_register_features")

    def provider_of(self, hook: str, name: str) -> str | None:
        """Return the plugin that offered ``name`` through ``hook``; ``None`` if it was the core."""
        plugin = self._providers.get((hook, name))
        return None if plugin is None or plugin.startswith(f"{CORE}:") else plugin

    def described(self, kind: str, name: str) -> str:
        """Return the name of an offer in messages, for example ``the writer 'csv' of the plugin 'tables'``.

        Args:
            kind: ``writer``, ``reader``, ``processor``, ``framework`` or ``table``.
            name: Its name.
        """
        plugin = self.provider_of(f"msprobe_register_{kind}s", name)
        return f"the {kind} '{name}'" + (f" of the plugin '{plugin}'" if plugin is not None else "")

    def add(self, plugin: Plugin, load: Callable[[], object]) -> None:
        """Load and register a plugin; one that fails is listed with its problem and disabled."""
        try:
            module = load()
            hooks = _hooks_of(module)
            self.manager.register(module, plugin.name)
            self.manager.check_pending()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a plugin raises must not end this program
            self._drop(plugin, str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}")
        else:
            summary = (module.__doc__ or "").strip().partition("\n")[0]
            self._plugins[plugin.name] = replace(plugin, hooks=hooks, summary=summary)

    def _offers(self, hook: str) -> dict[str, Any]:
        # Call each implementation separately, so that a failure can be attributed to one plugin.
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        offers: dict[str, Any] = {}
        providers: dict[str, str] = {}
        for implementation in caller.get_hookimpls():
            plugin = self._plugins[implementation.plugin_name]
            try:
                offered = _checked_offers(hook, implementation.function(), providers)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # as above
                reason = str(error) if isinstance(error, MsprobeError) else f"{type(error).__name__}: {error}"
                self._drop(plugin, f"{hook}: {reason}")
            else:
                offers |= offered
                providers |= dict.fromkeys(offered, plugin.name)
        self._providers |= {(hook, name): plugin for name, plugin in providers.items()}
        return offers

    def _drop(self, plugin: Plugin, problem: str) -> None:
        if self.manager.get_plugin(plugin.name) is not None:
            self.manager.unregister(name=plugin.name)
        self._plugins[plugin.name] = replace(plugin, problem=problem)
        _logger.warning("the plugin '%s' (%s) is left out: %s", plugin.name, plugin.source, problem)


def _checked_offers(hook: str, offered: object, providers: Mapping[str, str]) -> dict[str, Any]:
    """Return the offers of an implementation of ``hook``, by name; ``providers`` maps names already taken to plugins.

    Raises:
        PluginError: an offer lacks members of its protocol, or a name is taken.
    """
    protocol = _OFFERED[hook]
    offers: dict[str, Any] = {}
    for offer in cast("Iterable[Any]", offered or ()):
        missing = sorted(name for name in _members_of(protocol) if not hasattr(offer, name))
        if missing:
            raise PluginError(f"it returned {offer!r}, which is no {protocol.__name__}: it lacks {', '.join(missing)}")
        name = str(offer.name)
        if name in providers:
            raise PluginError(f"it offers {name!r}, and so does the plugin '{providers[name]}'; uninstall one of them")
        if name in offers:
            raise PluginError(f"it offers {name!r} twice")
        offers[name] = offer
    return offers


class _Command(Protocol):
    """The members that identify a click.Command, so that click is not imported for this check."""

    name: str

    def main(self) -> Any: ...


_OFFERED: dict[str, type] = {
    "msprobe_register_frameworks": FrameworkOffer,
    "msprobe_register_processors": Processor,
    "msprobe_register_writers": WriterFactory,
    "msprobe_register_monitor_writers": MonitorWriterFactory,
    "msprobe_register_readers": Reader,
    "msprobe_register_executors": Executor,
    "msprobe_register_tables": TableFormat,
    "msprobe_register_exports": Export,
    "msprobe_register_metrics": Metric,
    "msprobe_register_api_maps": ApiMap,
    "msprobe_register_module_maps": ModuleMap,
    "msprobe_register_commands": _Command,
    "msprobe_register_stages": TrainerStages,
    "msprobe_register_features": FeatureOffer,
    "msprobe_register_run_settings": RunSettings,
}


def _members_of(protocol: type) -> set[str]:
    names = vars(protocol).keys() | inspect.get_annotations(protocol).keys()
    return {name for name in names if not name.startswith("_")}


def _hooks_of(module: object) -> tuple[str, ...]:
    """Return the names of the hooks that ``module`` implements.

    Raises:
        PluginError: a function is named like a hook but there is no hook of that name.
    """
    known = {name for name in vars(hookspecs.HookSpecs) if name.startswith(_HOOK_PREFIX)}
    found = {name for name in dir(module) if name.startswith(_HOOK_PREFIX) and callable(getattr(module, name))}
    for name in sorted(found - known):
        raise PluginError(f"there is no hook {name!r}; known: {', '.join(sorted(known))}")
    return tuple(sorted(found))


@cache
def registry() -> Registry:
    """Return the plugins of this process; found at the first call."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.HookSpecs)
    found = Registry(manager)
    for module in _BUILT_IN:
        found.add(Plugin(_built_in_name(module), _version_of_core(), "msprobe-core"), _importer(module))
    shadow = shadowing_package()
    for plugin, load, module in _discover():
        # Importing it would run the other distribution's package.
        is_hidden = shadow is not None and module.startswith(f"{NAMESPACE}.")
        found.add(plugin, refuse_shadowing if is_hidden else load)
    return found


def _importer(value: str) -> Callable[[], object]:
    """Return a function that loads ``package.module`` or ``package.module:object``."""
    module, _, path = value.partition(":")

    def load() -> object:
        loaded = importlib.import_module(module)
        return operator.attrgetter(path)(loaded) if path else loaded

    return load


def _built_in_name(module: str) -> str:
    return f"{CORE}:{module.rpartition('.')[2]}"


def _version_of_core() -> str:
    return __version__


def _discover() -> Iterable[tuple[Plugin, Callable[[], object], str]]:
    """Yield each plugin with a function that loads it and the module that this function imports."""
    seen: dict[str, str] = {}
    points = [
        (point.name, point.dist.name if point.dist else "unknown distribution", point)
        for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    ]
    # If two have the same name, the distribution of this project comes first.
    for name, source, point in sorted(points, key=lambda p: (p[0], p[1] != f"{NAMESPACE}-{p[0]}", p[1])):
        version = point.dist.version if point.dist else None
        if name not in seen:
            seen[name] = source
            yield Plugin(name, version, source), _importer(point.value), point.module
        elif seen[name] != source:  # an editable install next to its wheel is listed twice
            reason = f"its name {name!r} is that of the plugin of {seen[name]}; uninstall one of them"
            yield Plugin(f"{name} ({source})", version, source), _refuser(reason), point.module
    for name in _namespace_members():
        if name not in seen:
            module = f"{NAMESPACE}.{name}.hooks"
            yield Plugin(name, None, "not installed"), _importer(module), module


def _refuser(reason: str) -> Callable[[], object]:
    def refuse() -> object:
        raise PluginError(reason)

    return refuse


def _namespace_members() -> Iterable[str]:
    """Return the packages of the namespace that have a hook module, without importing any of them."""
    spec = importlib.util.find_spec(NAMESPACE)
    if spec is None or spec.submodule_search_locations is None or spec.origin is not None:
        return []
    return sorted(
        {hooks.parent.name for root in spec.submodule_search_locations for hooks in Path(root).glob("*/hooks.py")}
    )


def shadowing_package() -> Path | None:
    """Return the file of a regular package ``msprobe`` that hides ours; ``None`` if there is none.

    ``mindstudio-probe`` installs such a package. Ours is a namespace package, which Python ignores if it finds a
    package with an ``__init__.py`` of the same name.
    """
    spec = importlib.util.find_spec(NAMESPACE)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def shadowing_advice(package: Path) -> str:
    """Return the message to a user about a shadowing package."""
    return (
        f"the package 'msprobe' in {package.parent} hides the plugins of msprobe-core: it belongs to another "
        "distribution, most likely mindstudio-probe. Uninstall that one (pip uninstall mindstudio-probe), reinstall "
        "the msprobe plugins, or keep the two in virtual environments of their own"
    )


def refuse_shadowing() -> None:
    """Raise if another distribution's package ``msprobe`` hides ours.

    Raises:
        PluginError: with instructions to resolve it.
    """
    package = shadowing_package()
    if package is not None:
        raise PluginError(shadowing_advice(package))
