"""Find the plugins of this process.

A plugin is found by its entry point in the group ``msprobe`` or, in a clone that is not installed, as
``msprobe.<name>.hooks`` on the import path. A plugin that cannot be loaded is reported with the reason and disabled.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path

import pluggy

from msprobe_core import hookspecs
from msprobe_core._version import __version__
from msprobe_core.errors import HiddenPackageError, PluginError
from msprobe_core.findings import Finding, Level
from msprobe_core.plugins.plugin_codes import PluginCode
from msprobe_core.plugins.plugin_list import CORE, Plugin
from msprobe_core.plugins.registry import Registry

_logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = hookspecs.PROJECT
NAMESPACE = "msprobe"
DISTRIBUTION = "msprobe-core"

DISABLE_VARIABLE = "MSPROBE_DISABLE_PLUGINS"
"""Environment variable with the names of plugins to leave out, with commas between them."""

_NOT_INSTALLED = "not installed"

OFFICIAL = ("pytorch", "mindspore", "verl")
"""Plugins of this project. Of two offers of one name, theirs is taken."""

_BUILT_IN = (
    "msprobe_core.capture.processors",
    "msprobe_core.compat.acc_check_offer",
    "msprobe_core.free_benchmark.free_benchmark_offer",
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
    "msprobe_core.exports.exports_offer",
    "msprobe_core.cli.commands",
)


@cache
def registry() -> Registry:
    """Return the plugins of this process; found at the first call."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.HookSpecs)
    found = Registry(manager)
    for module in _BUILT_IN:
        found.add(Plugin(_built_in_name(module), __version__, "msprobe-core"), _importer(module))
    shadow, disabled = shadowing_package(), disabled_names()
    for each in sorted(_discover(), key=lambda each: not _is_official(each.plugin)):
        if each.plugin.name in disabled:
            found.leave_out(each.plugin, Finding(PluginCode.DISABLED, Level.NOTE, {"how": DISABLE_VARIABLE}))
        elif each.requirement is not None:
            fields = {"requirement": each.requirement, "version": __version__}
            found.leave_out(each.plugin, Finding(PluginCode.NEEDS_OTHER_CORE, Level.ERROR, fields))
        else:
            # Importing it would run the other distribution's package.
            is_hidden = shadow is not None and each.module.startswith(f"{NAMESPACE}.")
            found.add(each.plugin, refuse_shadowing if is_hidden else each.load)
    for name in sorted(disabled - {plugin.name for plugin in found.plugins}):
        _logger.warning("%s: there is no plugin %r; known: see `msprobe plugins`", DISABLE_VARIABLE, name)
    return found


def disabled_names() -> frozenset[str]:
    """Return the names of the plugins that the user wants to leave out."""
    return frozenset(name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name.strip())


def _is_official(plugin: Plugin) -> bool:
    return plugin.name in OFFICIAL and plugin.source in (f"{NAMESPACE}-{plugin.name}", _NOT_INSTALLED)


def _importer(value: str) -> Callable[[], object]:
    """Return a function that loads ``package.module`` or ``package.module:object``."""
    module, _, path = value.partition(":")

    def load() -> object:
        loaded = importlib.import_module(module)
        return operator.attrgetter(path)(loaded) if path else loaded

    return load


def _built_in_name(module: str) -> str:
    return f"{CORE}:{module.rpartition('.')[2]}"


@dataclass(frozen=True)
class _Found:
    """A plugin that may be loaded.

    Attributes:
        plugin: Its name, version and source.
        load: Imports it.
        module: The module that ``load`` imports.
        requirement: What it needs of the core, if this core is not that.
    """

    plugin: Plugin
    load: Callable[[], object]
    module: str
    requirement: str | None = None


def _discover() -> Iterable[_Found]:
    """Yield each plugin once; a second of the same name has another one, and refuses to be loaded."""
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
            plugin = Plugin(name, version, source)
            yield _Found(plugin, _importer(point.value), point.module, _unmet_requirement(point.dist))
        elif seen[name] != source:  # an editable install next to its wheel is listed twice
            reason = f"its name {name!r} is that of the plugin of {seen[name]}; uninstall one of them"
            yield _Found(Plugin(f"{name} ({source})", version, source), _refuser(reason), point.module)
    for name in _namespace_members():
        if name not in seen:
            module = f"{NAMESPACE}.{name}.hooks"
            yield _Found(Plugin(name, None, _NOT_INSTALLED), _importer(module), module)


def _unmet_requirement(distribution: Distribution | None) -> str | None:
    """Return what a distribution needs of the core, if this core is not that; ``None`` if it is, or nothing is said."""
    stated = [text for text in (distribution and distribution.requires) or () if text.startswith(DISTRIBUTION)]
    if not stated:
        return None
    from packaging.requirements import InvalidRequirement, Requirement  # not needed where no plugin is installed

    for text in stated:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name == DISTRIBUTION and not requirement.specifier.contains(__version__, prereleases=True):
            return f"{requirement.name}{requirement.specifier}"
    return None


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
        raise HiddenPackageError(shadowing_advice(package))
