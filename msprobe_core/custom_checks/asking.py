"""Ask a check of a plugin, and take what it answers apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

from msprobe_core.custom_checks.check_codes import CheckCode
from msprobe_core.errors import BrokenPluginError, PluginError
from msprobe_core.findings import Finding, Level, NoteCode
from msprobe_core.guard import plugin_call, shown

MAX_FINDINGS = 100
"""Findings of one check at one dump that are kept; one more says that there are others."""

_T_contra = TypeVar("_T_contra", contravariant=True)


class _Check(Protocol[_T_contra]):
    @property
    def name(self) -> str: ...

    def check(self, given: _T_contra, /) -> Iterable[Finding | str]: ...


def findings_of(check: _Check[_T_contra], given: _T_contra, who: str) -> list[Finding]:
    """Return what a check says of a dump, a comparison or a call, each with the name of the check.

    Args:
        check: A check of any kind.
        given: What it looks at.
        who: Its name for messages.

    Raises:
        BrokenPluginError: it raised, or returned something else than findings and texts.
    """
    with plugin_call(who, "check"):
        found = list(islice(_said(check.check(given), who), MAX_FINDINGS + 1))
    named = [Finding(CheckCode.FOUND, each.level, {"check": check.name, "finding": each}) for each in found]
    if len(named) > MAX_FINDINGS:
        named[-1] = Finding(CheckCode.MORE, found[-1].level, {"check": check.name, "count": MAX_FINDINGS})
    return named


def _said(answer: object, who: str) -> Iterator[Finding]:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise BrokenPluginError(f"{who} returned {shown(answer)} from check; return a list of findings or texts")
    for each in cast("Iterable[object]", answer):
        if isinstance(each, str):
            yield Finding(NoteCode.TEXT, Level.WARNING, {"text": str.__str__(each)})  # plain, of np.str_ too
        elif isinstance(each, Finding) and each.text:  # a template that does not fit its fields shows here
            yield each
        else:
            raise BrokenPluginError(f"{who} found {shown(each)}, which is neither a finding nor a text")


def findings_or_failure(check: _Check[_T_contra], given: _T_contra, who: str) -> list[Finding]:
    """Return what a check says, or that it failed."""
    try:
        return findings_of(check, given, who)
    except PluginError as error:
        return [Finding(CheckCode.FAILED, Level.WARNING, {"check": check.name, "reason": str(error)})]


def comparison_findings(unit: Any) -> list[Finding]:
    """Return what the checks of all plugins say of a compared pair; one that fails is a finding too."""
    from msprobe_core.plugins import registry  # loads plugins

    found: list[Finding] = []
    for check in registry().comparison_checks().values():
        found += findings_or_failure(check, unit, registry().described("comparison check", check.name))
    return found


def is_bad(finding: Finding) -> bool:
    """Whether a finding is more than a note."""
    return finding.level is not Level.NOTE
