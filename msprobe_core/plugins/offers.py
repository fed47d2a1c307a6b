"""What each hook returns, and checks of it: every offer is checked by itself, so that a wrong one costs no other."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from msprobe_core.findings import Finding, Level
from msprobe_core.guard import members_of, missing_members, shown
from msprobe_core.plugins.plugin_codes import PluginCode
from msprobe_core.protocols.checks import ComparisonCheck, DumpCheck, LiveCheck
from msprobe_core.protocols.checkups import Checkup
from msprobe_core.protocols.comparison import Executor, Metric
from msprobe_core.protocols.framework import Framework, FrameworkOffer
from msprobe_core.protocols.monitoring import MonitorWriter, MonitorWriterFactory
from msprobe_core.protocols.presentation import Export, ReportFormat, Table, TableFormat
from msprobe_core.protocols.recording import FeatureOffer
from msprobe_core.protocols.statistics import Statistic
from msprobe_core.protocols.storage import Dump, Processor, Reader, Writer, WriterFactory
from msprobe_core.protocols.trainers import ApiMap, ModuleMap, RunSettings, TrainerStages

HOOK_PREFIX = "msprobe_"


class _Command(Protocol):
    """The members that identify a click.Command, so that click is not imported for this check."""

    name: str

    def main(self) -> Any: ...


@dataclass(frozen=True)
class Kind:
    """What a hook offers.

    Attributes:
        noun: Of an offer, for messages.
        protocol: What an offer must be.
        results: By name of a method, what it must return; see `msprobe_core.guard.GuardedOffer`.
        is_data: Whether offers are data without methods, whose fields are checked.
        is_guarded: Whether calls of an offer's methods are guarded one by one.
    """

    noun: str
    protocol: type
    results: Mapping[str, type] = field(default_factory=dict[str, type])
    is_data: bool = False
    is_guarded: bool = True


KINDS: Mapping[str, Kind] = {
    "msprobe_register_frameworks": Kind("framework", FrameworkOffer, {"load": Framework}),
    "msprobe_register_processors": Kind("processor", Processor),
    "msprobe_register_statistics": Kind("statistic", Statistic, is_data=True),  # guarded where it is called
    "msprobe_register_writers": Kind("writer", WriterFactory, {"open": Writer}),
    "msprobe_register_monitor_writers": Kind("monitor's writer", MonitorWriterFactory, {"open": MonitorWriter}),
    "msprobe_register_readers": Kind("reader", Reader, {"read": Dump}),
    "msprobe_register_executors": Kind("executor", Executor, {"run": Iterable}),
    "msprobe_register_tables": Kind("table", TableFormat, {"table": Table, "titles": Iterable}),
    "msprobe_register_reports": Kind("report", ReportFormat, {"comparison": str, "location": str}),
    "msprobe_register_exports": Kind("export", Export, {"write": Iterable}),
    "msprobe_register_dump_checks": Kind("dump check", DumpCheck),
    "msprobe_register_comparison_checks": Kind("comparison check", ComparisonCheck),
    "msprobe_register_live_checks": Kind("live check", LiveCheck),
    "msprobe_register_metrics": Kind("metric", Metric),
    "msprobe_register_api_maps": Kind("map of names of", ApiMap, is_data=True),
    "msprobe_register_module_maps": Kind("map of modules of", ModuleMap, is_data=True),
    "msprobe_register_commands": Kind("command", _Command, is_guarded=False),  # by the command line
    "msprobe_register_stages": Kind("stages of", TrainerStages, is_data=True),
    "msprobe_register_features": Kind("feature", FeatureOffer),
    "msprobe_register_run_settings": Kind("settings of", RunSettings),
    "msprobe_register_checkups": Kind("checkup of", Checkup, {"examine": Iterable}),
}
"""By hook."""


def problem_of(hook: str, offer: object) -> Finding | None:
    """Return what is wrong with an offer by itself; ``None`` if nothing is."""
    kind = KINDS[hook]
    about = {"hook": hook, "offer": shown(offer), "protocol": kind.protocol.__name__}
    if missing := missing_members(offer, kind.protocol):
        return Finding(PluginCode.INCOMPLETE, Level.ERROR, about | {"missing": missing})
    reason = _wrong_field(offer, kind.protocol) if kind.is_data else _wrong_text(offer, kind.protocol)
    return None if reason is None else Finding(PluginCode.WRONG_MEMBER, Level.ERROR, about | {"reason": reason})


def _wrong_text(offer: object, protocol: type) -> str | None:
    """Return which member that the protocol declares as text is none."""
    for name, member in members_of(protocol).items():
        getter: Any = member.fget if isinstance(member, property) else None
        declared = member if getter is None else inspect.get_annotations(getter).get("return")
        if declared == "str" and not (isinstance(value := getattr(offer, name), str) and value):
            return f"{name} is {shown(value)}, but must be text"
    return None


def _wrong_field(offer: object, protocol: type) -> str | None:
    """Return which field of data has another type than declared."""
    try:
        if not isinstance(offer, protocol):
            return f"it is a {type(offer).__qualname__}"
        fields = {each.name: getattr(offer, each.name) for each in dataclasses.fields(protocol)}
        msgspec.convert(fields, protocol)
    except (msgspec.ValidationError, TypeError) as error:
        return str(error)
    return None if fields["name"] else "name is empty"
