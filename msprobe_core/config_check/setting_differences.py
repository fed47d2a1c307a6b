"""Differences of environment variables, and of the settings of trainers, scripts and configuration files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Difference, Section, SectionResult, Severity
from msprobe_core.config_check.name_pairs import MatchKind, NamePair, pair_names
from msprobe_core.config_check.severities import is_harmless_variable, severity_of_setting
from msprobe_core.config_check.sides import GOLDEN, TARGET, lone, section_result, valued
from msprobe_core.config_check.values import same
from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.facts import Scalar, Variable


@dataclass(frozen=True, slots=True)
class Known:
    """An environment variable that several platforms have, each under a name of its own.

    Attributes:
        names: Its names.
        default: What is meant if it is not set; ``None`` if that is nothing.
    """

    names: Sequence[str]
    default: str | None = None


KNOWN_VARIABLES = (
    Known(("HCCL_DETERMINISTIC", "NCCL_DETERMINISTIC"), "False"),
    Known(("HCCL_ALGO", "NCCL_ALGO")),
    Known(("HCCL_INTRA_ROCE_ENABLE",), "0"),
    Known(("HCCL_INTRA_PCIE_ENABLE",), "1"),
    Known(("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING"), "0"),
    Known(("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
)
"""Source: `mindstudio-probe` 26.2, which misspells the fourth."""

_BY_NAME = {name: known for known in KNOWN_VARIABLES for name in known.names}
_SWITCHED_OFF = frozenset({"0", "false", "off", "no", ""})


@dataclass(frozen=True, slots=True)
class VariableRow:
    """An environment variable of two sides.

    Attributes:
        names: Its names, target first.
        values: Its values; ``None`` where it is not set, or only its name is kept.
        severity: Whether a difference matters; ``None`` if there is none.
        default: What a value stands for that is not set.
    """

    names: tuple[str, str]
    values: tuple[str | None, str | None]
    severity: Severity | None = None
    default: str | None = None


def variable_rows(target: Sequence[Variable], golden: Sequence[Variable]) -> Iterator[VariableRow]:
    """Yield the variables of two sides, those with a name of each platform once."""
    own = {each.name: each.value for each in target}
    other = {each.name: each.value for each in golden}
    done: set[str] = set()
    for name in (*own, *[each for each in other if each not in own]):
        if name in done:
            continue
        known = _BY_NAME.get(name)
        names = known.names if known else _platform_names(name, own, other)
        done.update(names)
        here = next((each for each in names if each in own), None)
        there = next((each for each in names if each in other), None)
        values = (None if here is None else own[here]), (None if there is None else other[there])
        severity, default = _judged(name, here is not None, there is not None, values, known)
        yield VariableRow((here or there or name, there or here or name), values, severity, default)


_PLATFORMS = re.compile(r"^(?:HCCL|NCCL)_", re.ASCII)


def _platform_names(name: str, own: Mapping[str, object], other: Mapping[str, object]) -> Sequence[str]:
    """Return the names of a variable of the communication library: HCCL's and NCCL's, if each side has one of them."""
    if not _PLATFORMS.match(name) or (name in own and name in other):
        return (name,)
    stem = _PLATFORMS.sub("", name)
    return (name, *[each for each in (f"HCCL_{stem}", f"NCCL_{stem}") if each != name])


def _judged(
    name: str, is_here: bool, is_there: bool, values: tuple[str | None, str | None], known: Known | None
) -> tuple[Severity | None, str | None]:
    harmless = is_harmless_variable(name)
    if is_here and is_there:
        if values[0] == values[1] or same(*values) or _are_off(values):
            return None, None
        return (Severity.INFO if harmless else Severity.ERROR), None
    if harmless:
        return Severity.INFO, None
    if known is not None and known.default is not None:
        value = next((each for each in values if each is not None), None)
        if same(value, known.default) or _are_off((value, known.default)):
            return Severity.INFO, known.default
        return Severity.ERROR, known.default
    return Severity.WARNING, None


def _are_off(values: Sequence[str | None]) -> bool:
    return all(each is not None and each.lower() in _SWITCHED_OFF for each in values)


def compare_environment(target: Sequence[Variable], golden: Sequence[Variable]) -> SectionResult:
    """Compare the environment variables that can change results.

    Those without a value are on no list, or hold secrets: they are not compared.
    """
    has_value = {each.name for each in (*target, *golden) if each.value is not None}
    rows = list(variable_rows(*[[one for one in side if one.name in has_value] for side in (target, golden)]))
    found: list[Difference] = []
    in_target, in_golden = {each.name for each in target}, {each.name for each in golden}
    for row in rows:
        if row.severity is None:
            continue
        reasons: list[Finding] = []
        if row.default is not None:
            reasons.append(Finding(ConfigCode.WHY_DEFAULT, Level.NOTE, {"value": row.default}))
        if row.severity is Severity.INFO and is_harmless_variable(row.names[0]):
            reasons.append(Finding(ConfigCode.WHY_HARMLESS))
        if row.names[0] in in_target and row.names[1] in in_golden:
            if row.names[0] != row.names[1]:
                reasons.append(_alias(row.names[1]))
            found.append(
                valued(Section.ENVIRONMENT, row.names[0], row.values, row.severity, *reasons, golden_path=row.names[1])
            )
        else:
            side, value = (TARGET, row.values[0]) if row.names[0] in in_target else (GOLDEN, row.values[1])
            found.append(lone(Section.ENVIRONMENT, row.names[0], side, value, row.severity, *reasons))
    return section_result(Section.ENVIRONMENT, len(rows), found)


def _alias(name: str) -> Finding:
    return Finding(ConfigCode.WHY_ALIAS, Level.NOTE, {"name": name})


# --- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting of two sides that differs.

    Attributes:
        source: The trainer or file that it is of; empty for the framework's.
        pair: Its names; ``None`` if one side lacks it.
        name: Its name on the side that has it.
        values: What the sides have, target first, as they are compared.
        only_on: The side that has it, if one lacks it.
        severity: Whether it can change results.
    """

    source: str
    pair: NamePair | None
    name: str
    values: tuple[Scalar, Scalar]
    only_on: str | None
    severity: Severity


Settings = Mapping[str, Mapping[str, Scalar]]
"""Settings by source and name."""


def setting_rows(target: Settings, golden: Settings, *, fuzzy: bool = True) -> tuple[int, list[SettingRow]]:
    """Return the number of settings that both sides have, and those that differ.

    Sources with the same name are compared; if there is none on the other side, with the other side's only one.
    """
    rows: list[SettingRow] = []
    compared = 0
    for own_source, other_source in _sources(target, golden):
        own, other = target.get(own_source or "", {}), golden.get(other_source or "", {})
        source = own_source if own_source is not None else other_source or ""
        if own_source is None or other_source is None:
            side = TARGET if other_source is None else GOLDEN
            rows += [_lone_row(source, name, value, side) for name, value in (own or other).items()]
            continue
        pairing = pair_names(own, other, fuzzy=fuzzy)
        compared += len(pairing.pairs)
        for pair in pairing.pairs:
            values = pair.values or (own[pair.target], other[pair.golden])
            if not same(*values):
                severity = severity_of_setting(pair.target, Severity.ERROR)
                rows.append(SettingRow(source, pair, pair.target, values, None, severity))
        rows += [_lone_row(source, name, own[name], TARGET) for name in pairing.only_target]
        rows += [_lone_row(source, name, other[name], GOLDEN) for name in pairing.only_golden]
    return compared, rows


def _lone_row(source: str, name: str, value: Scalar, side: str) -> SettingRow:
    values = (value, None) if side == TARGET else (None, value)
    return SettingRow(source, None, name, values, side, severity_of_setting(name, Severity.WARNING))


def _sources(target: Settings, golden: Settings) -> Iterator[tuple[str | None, str | None]]:
    lone_target = [each for each in target if each not in golden]
    lone_golden = [each for each in golden if each not in target]
    yield from ((each, each) for each in target if each in golden)
    if len(lone_target) == len(lone_golden) == 1:
        yield lone_target[0], lone_golden[0]
        return
    yield from ((each, None) for each in lone_target)
    yield from ((None, each) for each in lone_golden)


def compare_settings(target: Settings, golden: Settings, *, fuzzy: bool = True) -> SectionResult:
    """Compare the settings of trainers, scripts and files of two runs.

    Args:
        target: The target's.
        golden: The golden run's.
        fuzzy: Whether settings whose names are alike may be one.
    """
    compared, rows = setting_rows(target, golden, fuzzy=fuzzy)
    several = len({*target} | {*golden}) > 1
    return section_result(Section.SETTINGS, compared, [_difference(row, several=several) for row in rows])


def _difference(row: SettingRow, *, several: bool) -> Difference:
    prefix = f"{row.source}: " if several and row.source else ""
    if row.pair is None:
        side = row.only_on or TARGET
        value = row.values[0] if side == TARGET else row.values[1]
        return lone(Section.SETTINGS, f"{prefix}{row.name}", side, value, row.severity)
    reason = None
    if row.pair.kind is MatchKind.SIMILAR:
        fields = {"name": row.pair.golden, "score": row.pair.score}
        reason = Finding(ConfigCode.WHY_SIMILAR, Level.NOTE, fields)
    elif row.pair.target != row.pair.golden:
        reason = _alias(row.pair.golden)
    return valued(
        Section.SETTINGS,
        f"{prefix}{row.name}",
        row.values,
        row.severity,
        reason,
        golden_path=None if row.pair.golden == row.pair.target else row.pair.golden,
        score=row.pair.score,
    )
