"""The plugins of a process and what they offer; the only module that calls pluggy's manager."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pluggy

from msprobe_core import hookspecs
from msprobe_core._version import __version__
from msprobe_core.errors import BrokenPluginError
from msprobe_core.findings import Finding, Level
from msprobe_core.guard import GuardedOffer, shown
from msprobe_core.plugins.api_maps import extended_maps
from msprobe_core.plugins.offers import KINDS, problem_of
from msprobe_core.plugins.plugin_codes import PluginCode
from msprobe_core.plugins.plugin_list import CORE, Plugin, PluginList, reason_of_failure
from msprobe_core.protocols.checks import ComparisonCheck, DumpCheck, LiveCheck
from msprobe_core.protocols.checkups import Checkup
from msprobe_core.protocols.comparison import Executor, Metric
from msprobe_core.protocols.framework import FrameworkOffer
from msprobe_core.protocols.monitoring import MonitorWriterFactory
from msprobe_core.protocols.presentation import Export, ReportFormat, TableFormat
from msprobe_core.protocols.recording import FeatureOffer
from msprobe_core.protocols.statistics import Statistic
from msprobe_core.protocols.storage import Processor, Reader, WriterFactory
from msprobe_core.protocols.trainers import ApiMap, ModuleMap, RunSettings, TrainerStages

_logger = logging.getLogger(__name__)

_SLOW_S = 3.0
"""A hook that takes longer, in seconds, is named: whoever waits for it should know for what."""


@dataclass
class Registry(PluginList):
    """All plugins of this process and their offers."""

    _providers: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    _asked: dict[str, tuple[Sequence[object], dict[str, Any]]] = field(
        default_factory=dict[str, tuple[Sequence[object], dict[str, Any]]]
    )
    """By hook, the implementations that have been asked, and their offers by name."""

    def frameworks(self) -> dict[str, FrameworkOffer]:
        """Return the frameworks by name, including those whose package is not installed."""
        return self.offers("msprobe_register_frameworks")

    def processors(self) -> dict[str, Processor]:
        """Return the processors by name."""
        return self.offers("msprobe_register_processors")

    def statistics(self) -> dict[str, Statistic]:
        """Return the statistics by name."""
        return self.offers("msprobe_register_statistics")

    def writers(self) -> dict[str, WriterFactory]:
        """Return the writers by name."""
        return self.offers("msprobe_register_writers")

    def monitor_writers(self) -> dict[str, MonitorWriterFactory]:
        """Return the writers of the training monitor by name."""
        return self.offers("msprobe_register_monitor_writers")

    def readers(self) -> list[Reader]:
        """Return the readers, the core's own last."""
        readers: dict[str, Reader] = self.offers("msprobe_register_readers")
        return list(reversed(readers.values()))

    def executors(self) -> dict[str, Executor]:
        """Return the executors by name."""
        return self.offers("msprobe_register_executors")

    def tables(self) -> dict[str, TableFormat]:
        """Return the formats of result tables by name."""
        return self.offers("msprobe_register_tables")

    def exports(self) -> dict[str, Export]:
        """Return the formats of other viewers by name."""
        return self.offers("msprobe_register_exports")

    def reports(self) -> dict[str, ReportFormat]:
        """Return the formats of reports by name."""
        return self.offers("msprobe_register_reports")

    def dump_checks(self) -> dict[str, DumpCheck]:
        """Return the checks of dumps by name."""
        return self.offers("msprobe_register_dump_checks")

    def comparison_checks(self) -> dict[str, ComparisonCheck]:
        """Return the checks of compared pairs by name."""
        return self.offers("msprobe_register_comparison_checks")

    def live_checks(self) -> dict[str, LiveCheck]:
        """Return the checks of calls while they are recorded, by name."""
        return self.offers("msprobe_register_live_checks")

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics by name."""
        return self.offers("msprobe_register_metrics")

    def api_maps(self) -> dict[str, ApiMap]:
        """Return the maps to canonical names by framework, each with what other maps add to it."""
        return extended_maps(self.offers("msprobe_register_api_maps").values())

    def module_maps(self) -> dict[str, ModuleMap]:
        """Return the maps of training backends' module names, by backend."""
        return self.offers("msprobe_register_module_maps")

    def commands(self) -> dict[str, Any]:
        """Return the subcommands by name."""
        return self.offers("msprobe_register_commands")

    def trainer_stages(self) -> dict[str, TrainerStages]:
        """Return the stages of trainers by trainer."""
        return self.offers("msprobe_register_stages")

    def run_settings(self) -> dict[str, RunSettings]:
        """Return what trainers were told, by trainer."""
        return self.offers("msprobe_register_run_settings")

    def checkups(self) -> dict[str, Checkup]:
        """Return the checkups of frameworks and trainers by name."""
        return self.offers("msprobe_register_checkups")

    def features(self) -> dict[str, FeatureOffer]:
        """Return the features of recordings by name."""
        return self.offers("msprobe_register_features")

    def provider_of(self, hook: str, name: str) -> str | None:
        """Return the plugin that offered ``name`` through ``hook``; ``None`` if it was the core."""
        plugin = self._providers.get((hook, name))
        return None if plugin is None or plugin.startswith(f"{CORE}:") else plugin

    def described(self, kind: str, name: str) -> str:
        """Return the name of an offer in messages, for example ``the writer 'csv' of the plugin 'tables'``.

        Args:
            kind: ``writer``, ``reader``, ``processor``, ``dump check``, …: the hook's name in the singular.
            name: Its name.
        """
        return _described(kind, name, self.provider_of(f"msprobe_register_{kind.replace(' ', '_')}s", name))

    def problems_of(self, hook: str) -> Sequence[tuple[Plugin, Finding]]:
        """Return why offers of a hook are missing: its own problems, and plugins that could not be loaded at all."""
        return [
            (plugin, problem)
            for plugin in self.plugins
            for problem in plugin.problems
            if problem.level is Level.ERROR and problem.fields.get("hook", hook) == hook
        ]

    def refuse_missing(self, hook: str, name: str) -> None:
        """Raise if a name that no plugin offers through a hook may be one of a broken plugin.

        Raises:
            BrokenPluginError: there is such a plugin.
        """
        self.offers(hook)
        reasons = [f"{plugin.name}: {problem.text}" for plugin, problem in self.problems_of(hook)]
        if reasons:
            raise BrokenPluginError(f"no plugin offers {name!r}, as one is broken ({'; '.join(reasons)})")

    def offers(self, hook: str) -> dict[str, Any]:
        """Return what all plugins offer through a hook, by name."""
        caller: pluggy.HookCaller = getattr(self.manager.hook, hook)
        rank = {name: place for place, name in enumerate(self._plugins)}
        # Plugins do not choose their place: of two offers of one name, that of this project stays.
        implementations = sorted(caller.get_hookimpls(), key=lambda each: rank[each.plugin_name])
        functions = [each.function for each in implementations]
        asked = self._asked.get(hook)
        if asked is None or asked[0] != functions:
            # Each implementation is called separately, so that a failure can be attributed to one plugin.
            offers: dict[str, Any] = {}
            for each in implementations:
                if self._is_for_this_release(hook, each.plugin_name, each.function):
                    self._take(hook, each.plugin_name, each.function, offers)
            asked = self._asked[hook] = functions, offers
        return dict(asked[1])

    def _is_for_this_release(self, hook: str, plugin: str, function: Callable[..., object]) -> bool:
        """Whether an implementation works with this core; see `msprobe_core.hookspecs.requires_api`."""
        needed = hookspecs.required_api(function)
        if needed is None:
            return True
        from packaging.version import InvalidVersion, Version  # hardly any hook names a release

        try:
            # Of a development release, what counts is the release that it precedes.
            is_there = Version(__version__).release >= Version(needed).release
        except (InvalidVersion, TypeError) as error:
            self.note(plugin, PluginCode.HOOK_FAILED, {"hook": hook, "reason": reason_of_failure(error)}, error)
            return False
        if not is_there:
            fields = {"hook": hook, "requirement": needed, "version": __version__}
            self.note(plugin, PluginCode.HOOK_NEEDS_LATER_CORE, fields, level=Level.WARNING)
        return is_there

    def _take(self, hook: str, plugin: str, function: Callable[[], object], offers: dict[str, Any]) -> None:
        """Add the offers of one implementation that can be used; problems of the others are noted."""
        for offer in self._answer(hook, plugin, function):
            if (problem := problem_of(hook, offer)) is not None:
                self.note_finding(plugin, problem)
                continue
            name = str(offer.name)
            if name in offers:
                self._note_clash(hook, plugin, name)
                continue
            self._providers[hook, name] = plugin
            kind = KINDS[hook]
            is_guarded = kind.is_guarded and not kind.is_data and not self._plugins[plugin].is_of_core
            who = _described(kind.noun, name, plugin)
            offers[name] = GuardedOffer(offer, who, kind.results) if is_guarded else offer

    def _answer(self, hook: str, plugin: str, function: Callable[[], object]) -> Sequence[Any]:
        began = time.monotonic()
        try:
            answer = function()
            is_list = isinstance(answer, Iterable)
            offered: list[Any] = list(cast("Iterable[Any]", answer)) if is_list else []
        except BaseException as error:  # noqa: BLE001  # as in `add`
            self.note(plugin, PluginCode.HOOK_FAILED, {"hook": hook, "reason": reason_of_failure(error)}, error)
            return ()
        seconds = time.monotonic() - began
        if seconds > _SLOW_S:
            self.note(plugin, PluginCode.SLOW, {"hook": hook, "seconds": round(seconds, 1)}, level=Level.WARNING)
        if not is_list:
            self.note(plugin, PluginCode.NO_LIST, {"hook": hook, "answer": shown(answer)})
        return offered

    def _note_clash(self, hook: str, plugin: str, name: str) -> None:
        other = self._providers[hook, name]
        if other == plugin:
            self.note(plugin, PluginCode.OFFERED_TWICE, {"hook": hook, "name": name}, level=Level.WARNING)
        else:
            self.note(
                plugin, PluginCode.NAME_TAKEN, {"hook": hook, "name": name, "other": other}, level=Level.WARNING
            )  # fmt: skip


def _described(kind: str, name: str, plugin: str | None) -> str:
    return f"the {kind} '{name}'" + (f" of the plugin '{plugin}'" if plugin is not None else "")
