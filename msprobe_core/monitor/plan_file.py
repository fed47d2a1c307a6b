"""Reads a plan from the JSON file that scripts of the established monitor have."""

from __future__ import annotations

import difflib
import logging
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_type_hints

import msgspec

from msprobe_core.config.text import given_path, read_json
from msprobe_core.errors import ConfigError, ConflictingSettingsError
from msprobe_core.monitor.alarm_dump import dump_config
from msprobe_core.monitor.plan import DEFAULT_OUTPUT, FEATURES, Extensions, MonitorPlan, Rule
from msprobe_core.monitoring.quantities import Op
from msprobe_core.monitoring.rank_directories import parse_time

_logger = logging.getLogger(__name__)

OUTPUT_VARIABLE = "MONITOR_OUTPUT_DIR"


class _GivenRule(msgspec.Struct):
    """A rule as files have it."""

    rule_name: str
    args: dict[str, float] = {}


def load_plan(path: str | os.PathLike[str]) -> MonitorPlan:
    """Return the plan in a configuration file of the monitor.

    Args:
        path: A JSON file; see ``docs/monitor.md``.

    Raises:
        ConfigError: it cannot be read, a value has another type or is not allowed, or nothing is to be collected.
    """
    file = Path(path).absolute()
    return _plan_of(read_object(file, '{"ops": ["norm"]}'), str(file))


def read_object(file: Path, example: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        file: Of the monitor's configuration.
        example: Of such an object, for messages.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    fields = read_json(file, kind="a configuration file of the monitor", advice="give the path of a JSON file")
    if not isinstance(fields, dict):
        raise ConfigError(f"{file}: holds {type(fields).__name__}, but must hold an object such as {example}")
    return cast("dict[str, Any]", fields)


_NOT_GIVEN = (
    "rules", "extensions", "output", "source", "selections", "stop_step", "named_by", "single_stage",
)  # fmt: skip
"""Fields of a plan that files have under another name, or not at all."""

_TYPES = {name: kind for name, kind in get_type_hints(MonitorPlan).items() if name not in _NOT_GIVEN}
_LEAST = {
    "step_count_per_record": 1, "step_interval": 1, "start_step": 0, "stop_step": 0, "collect_times": 0, "ndigits": 0,
    "eps": 0,
}  # fmt: skip
_MOST = {"ndigits": 20, "step_count_per_record": 1_000_000}


def _plan_of(fields: dict[str, Any], where: str) -> MonitorPlan:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "alert":
            values["rules"], values["writes_alarms"] = _rules_of(value, f"{where}: 'alert'")
        elif name == "targets":
            values[name] = _targets_of(value, where)
        elif name == "msprobe":
            values["extensions"] = extensions_of(value, where)
        elif name in _TYPES:
            values[name] = checked(name, value, _TYPES[name], where)
        elif name == "format":
            if value != "csv":
                _logger.warning("%s: 'format' is %r; files are written as csv", where, value)
        else:
            warn_unknown(name, [*_TYPES, "alert", "format", "msprobe"], where)
    if "append_output" in values:
        _check_times(values["append_output"], where)
    output = os.environ.get(OUTPUT_VARIABLE) or DEFAULT_OUTPUT
    return _checked_plan(MonitorPlan(**values, output=given_path(output, OUTPUT_VARIABLE), source=Path(where)), where)


def _checked_plan(plan: MonitorPlan, where: str) -> MonitorPlan:
    """Return a plan with what follows from its other fields."""
    if plan.extensions.alarm_action != "none" and not plan.rules:
        plan = msgspec.structs.replace(plan, rules=(Rule(rule_name="AnomalyUnusual"),), writes_alarms=True)
    if plan.extensions.alarm_action == "dump":
        dump_config(plan)  # raises if it is wrong
    if plan.forward_only and plan.backward_only:
        raise ConflictingSettingsError(
            f"{where}: 'forward_only' and 'backward_only' leave nothing of 'xy_distribution'; remove one"
        )
    _check_features(plan, where)
    if not (plan.quantities or plan.cc_distribution.enable or plan.print_struct or plan.stack_info):
        raise ConfigError(
            f"{where}: nothing is to be collected; set one of xy_distribution, wg_distribution, mv_distribution and "
            "param_distribution to true, or 'enable' of cc_distribution"
        )
    return plan


def _check_features(plan: MonitorPlan, where: str) -> None:
    known = [quantity.value for quantity in FEATURES]
    for name in plan.l2_targets:
        if name not in known:
            raise ConfigError(f"{where}: 'l2_targets' has {name!r}; known: {', '.join(known)}")
    if plan.recording_l2_features and not plan.l2_targets:
        _logger.warning("%s: 'recording_l2_features' has no effect, as 'l2_targets' names no modules", where)


def warn_unknown(name: str, known: Sequence[str], where: str) -> None:
    """Say that a field has no effect, and which one may have been meant."""
    close = difflib.get_close_matches(name, known, n=1)
    advice = f"; did you mean '{close[0]}'?" if close else ""
    _logger.warning("%s: unknown field %r has no effect%s", where, name, advice)


def checked(name: str, value: Any, kind: Any, where: str) -> Any:
    """Return the value of a field in its type, within its limits.

    Raises:
        ConfigError: it has another type, or is outside.
    """
    if name == "ops" and isinstance(value, list):
        return ops_of(cast("list[Any]", value), where)
    found = converted(value, kind, f"{where}: '{name}'")
    for limits, is_outside, word in ((_LEAST, operator.lt, "least"), (_MOST, operator.gt, "most")):
        if name in limits and found is not None and is_outside(found, limits[name]):
            raise ConfigError(f"{where}: '{name}' is {value!r}, but must be at {word} {limits[name]}")
    return found


def _check_times(times: Sequence[str], where: str) -> None:
    """Raise if something is not two times, as directories have them."""
    try:
        num_times = len([parse_time(time) for time in times])
    except ValueError:
        num_times = -1
    if num_times not in (0, 2):
        raise ConfigError(
            f"{where}: 'append_output' is {list(times)!r}, but must be two times as directories begin with them, such "
            'as ["Nov21_05-57-08", "Nov21_06-00-00"]'
        )


def converted(value: Any, kind: Any, what: str) -> Any:
    """Return a value in another type.

    Raises:
        ConfigError: it cannot be converted.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter of half a pair of surrogates
        reason = str(error).partition(" - at ")[0].replace("`", "'").lower()
        raise ConfigError(f"{what} is {value!r}; {reason}") from error


def extensions_of(value: Any, where: str) -> Extensions:
    """Return the field ``msprobe``.

    Raises:
        ConfigError: a value in it is wrong.
    """
    what = f"{where}: 'msprobe'"
    found: Extensions = converted(value, Extensions, what)
    if found.max_overhead is not None and not 0 < found.max_overhead < 1:
        raise ConfigError(f"{what}: 'max_overhead' is {found.max_overhead!r}, but must be a share such as 0.02")
    return found


def ops_of(listed: Sequence[Any], where: str) -> tuple[Op, ...]:
    """Return the operations of a list; shape and dtype are in every file, and others are left out with a warning.

    Raises:
        ConfigError: none is left.
    """
    known = {op.value: op for op in Op}
    names = [name for name in listed if isinstance(name, str)]
    wrong = [name for name in listed if name not in (*known, "shape", "dtype")]
    if wrong:
        _logger.warning("%s: 'ops' lists %r, which is left out; allowed: %s", where, wrong[0], ", ".join(known))
    ops = tuple(known[name] for name in dict.fromkeys(names) if name in known)
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
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ConfigError(f"{where}: 'rules' cannot be used ({str(error).lower().replace('`', chr(39))})") from error
    for given in listed:
        try:
            rule = msgspec.convert({"rule_name": given.rule_name, **given.args}, Rule)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise ConfigError(f"{where}: the rule {given.rule_name!r} cannot be used ({str(error).lower()})") from error
        if rule.rule_name == "AnomalyTurbulence" and rule.threshold is None:
            raise ConfigError(f"{where}: the rule AnomalyTurbulence lacks 'args': {{'threshold': …}}")
        if rule.false_alarms is not None and not 0 < rule.false_alarms < 1:
            raise ConfigError(f"{where}: 'false_alarms' is {rule.false_alarms!r}, but must be between 0 and 1")
        rules.append(rule)
    return tuple(rules), bool(alert.get("dump", False))
