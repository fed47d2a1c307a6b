"""Check every dump of a run with the checks of plugins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.custom_checks.asking import findings_or_failure, is_bad
from msprobe_core.custom_checks.check_codes import CheckCode
from msprobe_core.errors import CompareError, ConfigError, DumpError
from msprobe_core.findings import Finding, noted
from msprobe_core.plugins import registry
from msprobe_core.protocols.checks import DumpCheck
from msprobe_core.store.ending import ending_of, sentence
from msprobe_core.store.reading import read_dump
from msprobe_core.store.run_units import RecordedUnit, recorded_units

_HOOK = "msprobe_register_dump_checks"


@dataclass(frozen=True)
class CheckedUnit:
    """One dump, and what checks say of it."""

    label: str
    path: Path
    findings: Sequence[Finding]


@dataclass(frozen=True)
class CheckedRun:
    """What checks say of a run.

    Attributes:
        path: As given.
        checks: The checks, by name with their summaries.
        units: In the order of stages, steps and ranks.
        incomplete: Dumps that could not be checked, or ended early, and checks that failed.
    """

    path: Path
    checks: Mapping[str, str]
    units: Sequence[CheckedUnit]
    incomplete: Sequence[Finding]

    @property
    def is_wrong(self) -> bool:
        """Whether a check has found more than a note."""
        return any(is_bad(finding) for unit in self.units for finding in unit.findings)


def chosen_checks(only: Collection[str]) -> list[DumpCheck]:
    """Return the checks of these names, or all.

    Raises:
        ConfigError: there is none of a name, or none at all.
        BrokenPluginError: it may be missing because a plugin is broken.
    """
    offered = registry().dump_checks()
    for name in only:
        if name not in offered:
            registry().refuse_missing(_HOOK, name)
            raise ConfigError(f"there is no check {name!r}; known: {', '.join(sorted(offered)) or 'none'}")
    if not offered:
        registry().refuse_missing(_HOOK, "a check")
        raise ConfigError(
            "no plugin offers a check of dumps; `msprobe plugins new NAME --kind check` writes the package of one"
        )
    return [check for name, check in offered.items() if not only or name in only]


def check_run(path: Path, only: Collection[str] = ()) -> CheckedRun:
    """Check every dump of a run, of a run with stages, of a step or a rank.

    Args:
        path: Of the run.
        only: Names of checks; all if there are none.

    Raises:
        ConfigError: see `chosen_checks`.
        CompareError: there is nothing at ``path``.
        DumpError: it holds no dump.
    """
    checks = chosen_checks(only)
    incomplete: list[Finding] = []
    units: list[CheckedUnit] = []
    for unit in recorded_units(path):
        found = _checked(unit, checks, incomplete)
        if found is not None:
            units.append(CheckedUnit(unit.label, unit.path, found))
    return CheckedRun(path, {check.name: check.summary for check in checks}, units, incomplete)


def _checked(unit: RecordedUnit, checks: Sequence[DumpCheck], incomplete: list[Finding]) -> list[Finding] | None:
    """Return what checks say of a dump; ``None`` if it cannot be read. What could not be judged is appended."""
    try:
        dump = read_dump(unit.path)
    except (CompareError, DumpError) as error:
        incomplete.append(noted(str(error)))
        return None
    if not (ending := ending_of(dump)).is_whole:
        incomplete.append(noted(sentence(unit.path, ending)))
    said = [
        finding
        for check in checks
        for finding in findings_or_failure(check, dump, registry().described("dump check", check.name))
    ]
    incomplete += [finding for finding in said if finding.code is CheckCode.FAILED]
    return [finding for finding in said if finding.code is not CheckCode.FAILED]
