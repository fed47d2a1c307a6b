"""The first precondition of comparing two runs: that they were configured alike, by the manifests beside their dumps.

Manifests are compared rank by rank, and equal differences of several ranks become one, so that a rank with a stale
image is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msprobe_core.compare.pairs import UnitPair
from msprobe_core.config_check.differences import ConfigResult, Difference, Section, SectionResult, Severity
from msprobe_core.config_check.manifests import compare_manifests, merged_ranks
from msprobe_core.errors import MsprobeError
from msprobe_core.findings import Finding, Level
from msprobe_core.locate.explain import LocatedFault, ranked
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import Check, CheckState, Configuration, Explained, Precondition
from msprobe_core.manifest.facts import Manifest, Scalar
from msprobe_core.store.manifest_file import find_manifest, read_manifest

MAX_RANKS = 64
"""Maximum number of ranks whose manifests are compared."""

_MAX_VALUE = 80

CompareManifests: TypeAlias = Callable[[Manifest, Manifest], ConfigResult]


def configuration_of(
    pairs: Sequence[UnitPair], fault: LocatedFault | None, compare: CompareManifests = compare_manifests
) -> Configuration:
    """Compare the configurations of two runs.

    Args:
        pairs: Dumps of the first step, one pair for each rank.
        fault: The located fault, to say which differences explain it; ``None`` if there is none.
        compare: Compares two manifests.
    """
    chosen = _chosen(pairs, fault)
    compared: dict[int, ConfigResult] = {}
    reasons: list[Finding] = []
    for pair in chosen:
        found = _manifests_of(pair)
        if isinstance(found, Finding):
            reasons.append(found)
        else:
            compared[pair.rank or 0] = compare(*found)
    if not compared:
        unknown = reasons[0] if reasons else Finding(LocateCode.CHECK_CONFIGURATION)
        return Configuration(check=Check(Precondition.CONFIGURATION, CheckState.UNKNOWN, unknown))
    merged = merged_ranks(compared, len(pairs))
    sections, explained = merged.sections, ranked(fault, merged.differences)
    check = _check(sections, explained, len(compared), len(pairs))
    return Configuration(check=check, sections=sections, explained=explained, num_ranks=len(compared))


def _chosen(pairs: Sequence[UnitPair], fault: LocatedFault | None) -> Sequence[UnitPair]:
    """Return the pairs to compare: of very many, those of the fault's ranks, and others at equal distances."""
    if len(pairs) <= MAX_RANKS:
        return pairs
    at_fault = [pair for pair in pairs if fault is not None and pair.rank in fault.ranks][: MAX_RANKS // 2]
    others = [pair for pair in pairs if pair not in at_fault]
    room = MAX_RANKS - len(at_fault)
    spread = [others[i * len(others) // room] for i in range(room)]
    return [*at_fault, *spread]


def _manifests_of(pair: UnitPair) -> tuple[Manifest, Manifest] | Finding:
    """Return the manifests of a pair, or the reason why they cannot be compared."""
    units = {"target": (pair.target_parts or (pair.target,))[0], "golden": (pair.golden_parts or (pair.golden,))[0]}
    paths = {side: find_manifest(unit) for side, unit in units.items()}
    missing = [side for side, path in paths.items() if path is None]
    if len(missing) == 1:
        return Finding(LocateCode.NO_MANIFEST, fields={"side": missing[0]})
    if missing:
        return Finding(LocateCode.CHECK_CONFIGURATION)
    try:
        target, golden = (read_manifest(path) for path in paths.values() if path is not None)
    except MsprobeError as error:
        return Finding(LocateCode.UNREADABLE_MANIFEST, fields={"why": str(error)})
    return target, golden


# --- in words ---------------------------------------------------------------------------------------------------------


def _check(sections: Iterable[SectionResult], explained: Sequence[Explained], num_ranks: int, num_all: int) -> Check:
    wrong = [each for each in explained if each.difference.severity is not Severity.INFO]
    compared = sum(section.compared for section in sections)
    fields = {"count": len(wrong), "compared": compared, "ranks": num_ranks}
    if wrong:
        detail = Finding(
            LocateCode.CONFIGURATIONS_DIFFER, Level.WARNING, {**fields, "first": _place(wrong[0].difference)}
        )
        state = CheckState.DIFFERS
    elif compared:
        detail, state = Finding(LocateCode.CONFIGURATIONS_AGREE, fields=fields), CheckState.HOLDS
    else:
        detail, state = Finding(LocateCode.NOTHING_CONFIGURED), CheckState.UNKNOWN
    if num_ranks < num_all:
        detail = Finding(LocateCode.SOME_CONFIGURATIONS, detail.level, {"found": detail, "all": num_all})
    return Check(Precondition.CONFIGURATION, state, detail)


def cause_in_words(configuration: Configuration) -> Finding | None:
    """Return that the runs were configured differently; ``None`` unless a difference explains the fault."""
    if configuration.cause is None:
        return None
    fields = {"what": difference_in_words(configuration.cause)}
    return Finding(LocateCode.CONFIGURED_DIFFERENTLY, Level.ERROR, fields)


def difference_in_words(found: Explained) -> Finding:
    """Return a difference as one short line: the place, both values, and whether it explains the fault."""
    said = values_in_words(found.difference)
    if found.explanation is None:
        return said
    fields = {"what": said, "explanation": found.explanation.finding}
    return Finding(LocateCode.CONFIGURED_AND_EXPLAINED, found.explanation.finding.level, fields)


def values_in_words(difference: Difference) -> Finding:
    """Return the place of a difference with both values, the number of such places, and its ranks."""
    said = _values(difference)
    if difference.count > 1:
        said = Finding(LocateCode.CONFIGURED_IN_PLACES, fields={"what": said, "count": difference.count})
    if difference.ranks:
        said = Finding(LocateCode.CONFIGURED_ON_RANKS, fields={"what": said, "ranks": list(difference.ranks)})
    return said


def _place(difference: Difference) -> str | Finding:
    if difference.section is Section.RANDOM:  # the name of a generator alone, such as python, says nothing
        return Finding(LocateCode.RANDOM_STATE, fields={"name": difference.path})
    return difference.path or difference.section.value  # the outermost module has an empty path


def _values(difference: Difference) -> Finding:
    if difference.only_on is None and difference.target is None and difference.golden is None:
        return difference.finding  # it is about more than two values, such as the rows of an input
    if difference.only_on is not None:
        value = difference.target if difference.only_on == "target" else difference.golden
        fields = {"path": _place(difference), "value": value_in_words(value), "side": difference.only_on}
        return Finding(LocateCode.CONFIGURED_ON_ONE, fields=fields)
    fields = {
        "path": _place(difference),
        "target": value_in_words(difference.target),
        "golden": value_in_words(difference.golden),
    }
    return Finding(LocateCode.CONFIGURED, fields=fields)


def value_in_words(value: Scalar) -> str:
    """Return the value of a setting as text, whole numbers without a fraction, long text shortened."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        value = int(value)
    text = str(value)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
