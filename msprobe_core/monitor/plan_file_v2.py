"""Reads a plan from the JSON file that scripts of the established monitor's second version have."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.config.text import given_path
from msprobe_core.errors import ConfigError
from msprobe_core.monitor.plan import Communication, Extensions, MonitorPlan, Selection
from msprobe_core.monitor.plan_file import (
    checked,
    converted,
    extensions_of,
    ops_of,
    read_object,
    warn_unknown,
)
from msprobe_core.monitoring.quantities import MONITORS, Op

_logger = logging.getLogger(__name__)

_FRAMEWORKS = {
    "pytorch": "pytorch", "pt": "pytorch", "torch": "pytorch", "mindspore": "mindspore", "ms": "mindspore",
}  # fmt: skip
_OPS = (Op.MIN, Op.MAX, Op.MEAN, Op.NORM, Op.NANS)
"""Operations of the second version, all by default."""

_SHARED: Mapping[str, Any] = {
    "start_step": int,
    "stop_step": int | None,
    "step_interval": int,
    "step_count_per_record": int,
    "collect_times": int,
}
_OTHERS = ("framework", "output_dir", "format", "async_write", "rank", "patch_optimizer_step", "monitors", "msprobe")
_SWITCHES = {"optimizer": "mv_distribution", "param": "param_distribution"}
"""Field of a monitor that may switch it off as well."""

_FLAGS = {"module": "xy_distribution", "weight_grad": "wg_distribution", **_SWITCHES}
"""Field of a plan that collects what a monitor collects."""

_OF_ALL = ("enabled", "targets", "ops", "eps")
_OWN = {
    "module": (),
    "weight_grad": ("monitor_mbs_grad", "micro_batch_number", "grad_acc_steps"),
    "optimizer": ("mv_distribution",),
    "param": ("param_distribution",),
    "cc": ("cc_codeline", "cc_log_only", "cc_pre_hook", "module_ranks", "cc_distribution"),
}


@dataclass(frozen=True, kw_only=True)
class SecondPlan:
    """What a file of the second version says.

    Attributes:
        plan: What to collect.
        framework: Name of the framework; ``None`` if that of the model is meant.
        patches_optimizer: Whether a step of the optimizer ends a step of the monitor.
        grad_acc_steps: Micro-batches of a step; ``None`` if it is not said.
    """

    plan: MonitorPlan
    framework: str | None
    patches_optimizer: bool
    grad_acc_steps: int | None


def load_second_plan(path: str | os.PathLike[str]) -> SecondPlan:
    """Return the plan in a configuration file of the second version.

    Args:
        path: A JSON file; see ``docs/monitor.md``.

    Raises:
        ConfigError: it cannot be read, a value has another type or is not allowed, or nothing is to be collected.
    """
    file = Path(path).absolute()
    where = str(file)
    fields = read_object(file, '{"monitors": {"weight_grad": {}}}')
    for name in fields:
        if name not in _SHARED and name not in _OTHERS:
            warn_unknown(name, [*_SHARED, *_OTHERS], where)
    values = {name: checked(name, fields[name], kind, where) for name, kind in _SHARED.items() if name in fields}
    if fields.get("format", "csv") != "csv":
        _logger.warning("%s: 'format' is %r; files are written as csv", where, fields["format"])
    monitors = _monitors_of(fields.get("monitors", {}), where)
    values |= _collected_by(monitors, where)
    extensions: Extensions = extensions_of(fields["msprobe"], where) if "msprobe" in fields else Extensions()
    if "writers" not in fields.get("msprobe", {}):
        extensions = msgspec.structs.replace(extensions, writers=("csv-v2",))
    if "async_write" in fields:
        is_async = converted(fields["async_write"], bool, f"{where}: 'async_write'")
        extensions = msgspec.structs.replace(extensions, async_write=is_async)
    plan = MonitorPlan(
        **values,
        module_ranks=_ranks_of(fields.get("rank", []), where),
        extensions=extensions,
        output=given_path(converted(fields.get("output_dir", "./"), str, f"{where}: 'output_dir'"), "'output_dir'"),
        source=file,
        named_by="rank",
        single_stage=-1,
    )
    if not plan.quantities:
        raise ConfigError(f"{where}: nothing is to be collected; 'monitors' must enable one of {', '.join(_FLAGS)}")
    gradients = monitors.get("weight_grad", {})
    micro_batches = gradients.get("grad_acc_steps", gradients.get("micro_batch_number"))
    return SecondPlan(
        plan=plan,
        framework=framework_of(fields.get("framework"), f"{where}: 'framework'"),
        patches_optimizer=converted(fields.get("patch_optimizer_step", True), bool, f"{where}: 'patch_optimizer_step'"),
        grad_acc_steps=converted(micro_batches, int | None, f"{where}: 'weight_grad': 'grad_acc_steps'"),
    )


def _monitors_of(value: Any, where: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the enabled monitors by name; one that is unknown, or a field of it, is a warning."""
    what = f"{where}: 'monitors'"
    given: dict[str, dict[str, Any]] = converted(value, dict[str, dict[str, Any]], what)
    found: dict[str, Mapping[str, Any]] = {}
    for name, own in given.items():
        if name not in _OWN:
            warn_unknown(name, list(_OWN), what)
            continue
        known = (*_OF_ALL, *_OWN[name])
        for field in own:
            if field not in known:
                warn_unknown(field, known, f"{what}: '{name}'")
        switches = ["enabled", *([_SWITCHES[name]] if name in _SWITCHES else [])]
        if all(converted(own.get(switch, True), bool, f"{what}: '{name}': '{switch}'") for switch in switches):
            found[name] = own
    return found


def _collected_by(monitors: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Return the fields of a plan that say what to collect."""
    values: dict[str, Any] = {"ops": (), "selections": {}}
    for name, own in monitors.items():
        what = f"{where}: '{name}'"
        if name == "cc":
            values["cc_distribution"] = _communication_of(own, what)
            continue
        selection = Selection(
            targets=converted(own.get("targets", []), tuple[str, ...], f"{what}: 'targets'"), ops=_ops_in(own, what)
        )
        values[_FLAGS[name]] = True
        values["ops"] = tuple(dict.fromkeys([*values["ops"], *selection.ops]))
        values["selections"] |= dict.fromkeys(MONITORS[name], selection)
    if "monitor_mbs_grad" in (own := monitors.get("weight_grad", {})):
        values["monitor_mbs_grad"] = converted(own["monitor_mbs_grad"], bool, f"{where}: 'monitor_mbs_grad'")
    return values


def _ops_in(own: Mapping[str, Any], what: str) -> tuple[Op, ...]:
    """Return the operations of a monitor: those of the list that there are, or else all."""
    if "ops" not in own:
        return _OPS
    listed = converted(own["ops"], list[str], f"{what}: 'ops'")
    try:
        return ops_of(cast("list[Any]", listed), what)
    except ConfigError as error:
        _logger.warning("%s; all of them are taken", error)
        return _OPS


def _communication_of(own: Mapping[str, Any], what: str) -> Communication:
    nested = converted(own.get("cc_distribution", {}), dict[str, Any], f"{what}: 'cc_distribution'")
    fields = {name: own[name] for name in ("cc_codeline", "cc_log_only", "cc_pre_hook") if name in own} | nested
    fields.pop("module_ranks", None)  # 'rank' is of all monitors
    return converted({"enable": True, **fields}, Communication, what)


def _ranks_of(value: Any, where: str) -> tuple[int, ...]:
    found = converted(value, int | tuple[int, ...] | None, f"{where}: 'rank'")
    return () if found is None else (found,) if isinstance(found, int) else found


def framework_of(value: Any, where: str) -> str | None:
    """Return the framework that a file or script names; ``None`` if it names none.

    Raises:
        ConfigError: there is no such framework.
    """
    if value is None:
        return None
    if not isinstance(value, str) or value not in _FRAMEWORKS:
        raise ConfigError(f"{where} is {value!r}; allowed: {', '.join(_FRAMEWORKS)}")
    return _FRAMEWORKS[value]
