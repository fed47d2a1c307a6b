"""What to monitor, and when: one plan, read from the configuration that scripts of the established monitor have."""

from __future__ import annotations

import difflib
import json
import logging
import os
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

import msgspec

from msprobe_core.config.text import given_path, read_text
from msprobe_core.errors import ConfigError
from msprobe_core.monitoring.quantities import Op, Quantity

_logger = logging.getLogger(__name__)

OUTPUT_VARIABLE = "MONITOR_OUTPUT_DIR"
DEFAULT_OUTPUT = "./monitor_output"

_NOT_COLLECTED = {
    "ur_distribution": "sizes of updates",
    "mg_direction": "agreement of gradient and momentum",
    "recording_l2_features": "features of single layers",
    "stack_info": "call stacks of modules",
    "print_struct": "the structure of modules",
    "append_output": "continuing the files of an earlier training",
    "dynamic_on": "switching by editing the file",
}
"""Settings of the established monitor that this release does not act on."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An alarm: see `msprobe_core.monitor.alarms`.

    Attributes:
        rule_name: Which one.
        threshold: Of ``AnomalyTurbulence``, the relative rise above the running mean; of ``AnomalyNan``, a magnitude.
    """

    rule_name: Literal["AnomalyTurbulence", "AnomalyNan"]
    threshold: float | None = None


class _GivenRule(msgspec.Struct):
    """A rule as files have it."""

    rule_name: str
    args: dict[str, float] = {}


class MonitorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a monitor collects.

    Attributes:
        targets: Names of parameters (as prefixes) and modules (whole), with or without ``stage:`` in front; empty for
            all.
        module_ranks: Ranks that collect; empty for all.
        ops: Operations, in the order of the files' columns.
        eps: Magnitude below which an element counts as zero, for the operation ``zeros``.
        ndigits: Decimals of numbers in files, 0 to 20.
        step_count_per_record: Steps in one file.
        start_step: First step to collect.
        step_interval: Distance between steps to collect.
        collect_times: Number of steps to collect.
        xy_distribution: Collect what modules are given and make, and its gradients.
        forward_only: Of these, the values alone.
        backward_only: Of these, the gradients alone.
        all_xy: Collect all modules although ``targets`` names some.
        wg_distribution: Collect gradients of parameters as each rank accumulates them, and as the optimizer uses them.
        monitor_mbs_grad: Collect what each micro-batch leaves of the former, instead of the last alone.
        mv_distribution: Collect the optimizer's moments.
        param_distribution: Collect parameters before and after the update.
        squash_name: Leave out what wrappers add to names.
        rules: Alarms, the first of which that holds is reported.
        writes_alarms: Whether alarms go to ``anomaly.json``.
        output: Directory of the results.
    """

    targets: tuple[str, ...] = ()
    module_ranks: tuple[int, ...] = ()
    ops: tuple[Op, ...] = (Op.NORM,)
    eps: float = 1e-8
    ndigits: int = 6
    step_count_per_record: int = 1
    start_step: int = 0
    step_interval: int = 1
    collect_times: int = 100_000_000
    xy_distribution: bool = False
    forward_only: bool = False
    backward_only: bool = False
    all_xy: bool = False
    wg_distribution: bool = False
    monitor_mbs_grad: bool = False
    mv_distribution: bool = False
    param_distribution: bool = False
    squash_name: bool = False
    rules: tuple[Rule, ...] = ()
    writes_alarms: bool = False
    output: Path = Path(DEFAULT_OUTPUT)

    @property
    def quantities(self) -> frozenset[Quantity]:
        """What is collected."""
        chosen: list[Quantity] = []
        if self.xy_distribution:
            chosen += [] if self.backward_only else [Quantity.ACTIVATION]
            chosen += [] if self.forward_only else [Quantity.ACTIVATION_GRADIENT]
        if self.wg_distribution:
            chosen += [Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED]
        if self.mv_distribution:
            chosen += [Quantity.EXP_AVG, Quantity.EXP_AVG_SQ]
        if self.param_distribution:
            chosen += [Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED]
        return frozenset(chosen)

    def selects(self, step: int, num_collected: int) -> bool:
        """Whether to collect a step, after so many collected ones."""
        since = step - self.start_step
        return since >= 0 and since % self.step_interval == 0 and num_collected < self.collect_times

    def selects_rank(self, rank: int) -> bool:
        """Whether to collect on a rank."""
        return not self.module_ranks or rank in self.module_ranks


def load_plan(path: str | os.PathLike[str]) -> MonitorPlan:
    """Return the plan in a configuration file of the monitor.

    Args:
        path: A JSON file; see ``docs/monitor.md``.

    Raises:
        ConfigError: it cannot be read, a value has another type or is not allowed, or nothing is to be collected.
    """
    file = Path(path)
    text = read_text(file, kind="a configuration file of the monitor", advice="give the path of a JSON file")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not valid JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ConfigError(f'{file}: holds {type(fields).__name__}, but must hold an object such as {{"ops": ["norm"]}}')
    return _plan_of(cast("dict[str, Any]", fields), str(file))


_TYPES = {name: kind for name, kind in get_type_hints(MonitorPlan).items() if name not in ("rules", "output")}
_LEAST = {"step_count_per_record": 1, "step_interval": 1, "start_step": 0, "collect_times": 0, "ndigits": 0, "eps": 0}
_MOST = {"ndigits": 20, "step_count_per_record": 1_000_000}


def _plan_of(fields: dict[str, Any], where: str) -> MonitorPlan:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "alert":
            values["rules"], values["writes_alarms"] = _rules_of(value, f"{where}: 'alert'")
        elif name == "targets":
            values[name] = _targets_of(value, where)
        elif name in _TYPES:
            values[name] = _checked(name, value, where)
        else:
            _warn_of(name, value, where)
    output = os.environ.get(OUTPUT_VARIABLE) or DEFAULT_OUTPUT
    plan = MonitorPlan(**values, output=given_path(output, OUTPUT_VARIABLE))
    if plan.forward_only and plan.backward_only:
        raise ConfigError(f"{where}: 'forward_only' and 'backward_only' leave nothing of 'xy_distribution'; remove one")
    if not plan.quantities:
        raise ConfigError(
            f"{where}: nothing is to be collected; set one of xy_distribution, wg_distribution, mv_distribution and "
            "param_distribution to true"
        )
    return plan


def _warn_of(name: str, value: Any, where: str) -> None:
    """Warn of a field that has no effect, if it asks for anything."""
    if name == "format":
        if value != "csv":
            _logger.warning("%s: 'format' is %r; files are written as csv", where, value)
    elif name == "cc_distribution":
        if isinstance(value, dict) and cast("dict[str, Any]", value).get("enable"):
            _logger.warning("%s: 'cc_distribution' is not supported (communication) and has no effect", where)
    elif name in _NOT_COLLECTED:
        if value:
            _logger.warning("%s: '%s' is not supported (%s) and has no effect", where, name, _NOT_COLLECTED[name])
    elif name not in ("l2_targets", "sa_order"):
        _logger.warning("%s: unknown field %r has no effect%s", where, name, _nearest(name))


def _nearest(name: str) -> str:
    known = [*_TYPES, *_NOT_COLLECTED, "alert", "format", "cc_distribution"]
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _checked(name: str, value: Any, where: str) -> Any:
    if name == "ops" and isinstance(value, list):
        return _ops_of(cast("list[Any]", value), where)
    try:
        checked = msgspec.convert(value, _TYPES[name])
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0].replace("`", "'").lower()
        raise ConfigError(f"{where}: '{name}' is {value!r}; {reason}") from error
    for limits, is_outside, word in ((_LEAST, float.__lt__, "least"), (_MOST, float.__gt__, "most")):
        if name in limits and is_outside(float(checked), float(limits[name])):
            raise ConfigError(f"{where}: '{name}' is {value!r}, but must be at {word} {limits[name]}")
    return checked


def _ops_of(listed: list[Any], where: str) -> tuple[Op, ...]:
    """Return the operations of a list; shape and dtype are in every file, and others are left out with a warning."""
    known = {op.value: op for op in Op}
    wrong = [name for name in listed if name not in known and name not in ("shape", "dtype")]
    if wrong:
        _logger.warning("%s: 'ops' lists %r, which is left out; allowed: %s", where, wrong[0], ", ".join(known))
    ops = tuple(known[name] for name in dict.fromkeys(listed) if name in known)
    if not ops:
        raise ConfigError(f"{where}: 'ops' lists no operation; allowed: {', '.join(known)}")
    return ops


def _targets_of(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: 'targets' is {value!r}, but must be an object such as {{\"layers.0.mlp\": {{}}}}")
    return tuple(str(name) for name in cast("dict[str, Any]", value))


def _rules_of(value: Any, where: str) -> tuple[tuple[Rule, ...], bool]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {value!r}, but must be an object with 'rules' and 'dump'")
    alert = cast("dict[str, Any]", value)
    rules: list[Rule] = []
    try:
        listed = msgspec.convert(alert.get("rules") or [], list[_GivenRule])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: 'rules' cannot be used ({str(error).lower().replace('`', chr(39))})") from error
    for given in listed:
        try:
            rule = msgspec.convert({"rule_name": given.rule_name, **given.args}, Rule)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: the rule {given.rule_name!r} cannot be used ({str(error).lower()})") from error
        if rule.rule_name == "AnomalyTurbulence" and rule.threshold is None:
            raise ConfigError(f"{where}: the rule AnomalyTurbulence lacks 'args': {{'threshold': …}}")
        rules.append(rule)
    return tuple(rules), bool(alert.get("dump", False))
