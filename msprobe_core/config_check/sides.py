"""What comparisons of two configurations need to know of both sides, and how differences are put into words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msprobe_core.config_check.config_codes import ConfigCode
from msprobe_core.config_check.differences import Difference, Section, SectionResult, Severity
from msprobe_core.config_check.values import as_text, same
from msprobe_core.findings import Code, Field, Finding, Level
from msprobe_core.manifest.facts import Scalar
from msprobe_core.protocols.trainers import ApiMap

LEVELS = {Severity.ERROR: Level.ERROR, Severity.WARNING: Level.WARNING, Severity.INFO: Level.NOTE}
_SEVERITY_OF = {level: severity for severity, level in LEVELS.items()}

TARGET, GOLDEN = "target", "golden"

ALL_SECTIONS = frozenset(Section)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The two sides of a comparison.

    Attributes:
        frameworks: Names of their frameworks, target first.
        maps: Their maps to canonical names.
        libraries: By the first part of the names of classes, why the defaults of a library's classes may have changed.
        fuzzy: Whether names that are alike may be a pair.
    """

    frameworks: tuple[str, str]
    maps: tuple[ApiMap, ApiMap]
    libraries: Mapping[str, Finding] = field(default_factory=dict[str, Finding])
    fuzzy: bool = True

    @property
    def are_foreign(self) -> bool:
        """Whether they are of two frameworks."""
        return self.frameworks[0] != self.frameworks[1]


def said(code: ConfigCode, severity: Severity, /, **fields: Field) -> Finding:
    """Return a finding whose level is that of a severity."""
    return Finding(code, LEVELS[severity], fields)


def because(what: Finding, *reasons: Finding | None) -> Finding:
    """Return a finding with the reasons for its severity after it."""
    given = [each for each in reasons if each is not None]
    return Finding(ConfigCode.BOTH, what.level, {"sentences": [what, *given]}) if given else what


def main_code(difference: Difference) -> Code:
    """Return the code of what a difference says, without the reasons after it."""
    found = difference.finding
    sentences = found.fields.get("sentences") if found.code is ConfigCode.BOTH else None
    first = sentences[0] if isinstance(sentences, Sequence) and sentences else None
    return first.code if isinstance(first, Finding) else found.code


def difference(
    section: Section,
    path: str,
    values: tuple[Scalar, Scalar],
    what: Finding,
    *,
    only_on: str | None = None,
    golden_path: str | None = None,
    score: float = 1.0,
    count: int = 1,
    ranks: Sequence[int] = (),
) -> Difference:
    """Return a difference that is as severe as what it says; the arguments are the attributes of `Difference`."""
    return Difference(
        section=section,
        path=path,
        target=values[0],
        golden=values[1],
        severity=_SEVERITY_OF[what.level],
        finding=what,
        only_on=only_on,
        golden_path=golden_path,
        score=score,
        count=count,
        ranks=ranks,
    )


def on_side(side: str, value: Scalar) -> tuple[Scalar, Scalar]:
    """Return the target's and the golden run's value of what one side has."""
    return (value, None) if side == TARGET else (None, value)


def valued(
    section: Section,
    path: str,
    values: tuple[Scalar, Scalar],
    severity: Severity,
    *reasons: Finding | None,
    golden_path: str | None = None,
    score: float = 1.0,
) -> Difference:
    """Return the difference of one setting that both sides have.

    Args:
        section: Its section.
        path: Its place in the section.
        values: The target's and the golden run's.
        severity: Whether it can change results.
        reasons: What its finding says besides the values.
        golden_path: Its place on the golden side, if it has another name.
        score: Similarity of the names.
    """
    what = said(ConfigCode.VALUE, severity, name=path, target=as_text(values[0]), golden=as_text(values[1]))
    other_path = golden_path if golden_path != path else None
    return difference(section, path, values, because(what, *reasons), golden_path=other_path, score=score)


def lone(
    section: Section, path: str, side: str, value: Scalar, severity: Severity, *reasons: Finding | None
) -> Difference:
    """Return the difference of a setting that one side has."""
    what = said(ConfigCode.ONLY, severity, side=side, name=path, value=as_text(value))
    return difference(section, path, on_side(side, value), because(what, *reasons), only_on=side)


def differing(
    target: Mapping[str, Scalar], golden: Mapping[str, Scalar], *, on_both: bool = False
) -> Iterator[tuple[str, tuple[Scalar, Scalar], str | None]]:
    """Yield each setting that differs: its name, both values, and the side that alone has it.

    Args:
        target: The target's settings, in whose order they are.
        golden: The golden run's; those that only it has are last.
        on_both: Whether only those that both sides have are wanted.
    """
    for name, value in target.items():
        if name not in golden:
            if not on_both:
                yield name, (value, None), TARGET
        elif not same(value, golden[name]):
            yield name, (value, golden[name]), None
    for name, value in golden.items():
        if name not in target and not on_both:
            yield name, (None, value), GOLDEN


def one_setting(
    section: Section,
    path: str,
    values: tuple[Scalar, Scalar],
    only_on: str | None,
    severities: tuple[Severity, Severity],
) -> Difference:
    """Return the difference of a setting: as severe as the first if both sides have it, else as the second."""
    if only_on is None:
        return valued(section, path, values, severities[0])
    return lone(section, path, only_on, values[only_on == GOLDEN], severities[1])


def other_states(names: Sequence[str], seeds: tuple[int | None, int | None] | None) -> Finding:
    """Return what says that random generators are in other states, with the two seeds of one of them if known."""
    if seeds is None:
        return said(ConfigCode.RANDOM_STATE, Severity.ERROR, names=names)
    return said(ConfigCode.RANDOM_SEED, Severity.ERROR, target=seeds[0], golden=seeds[1], names=names)


_SEVERITIES = list(Severity)


def by_severity(differences: Iterable[Difference]) -> list[Difference]:
    """Return differences, the most severe first, otherwise in their order."""
    return sorted(differences, key=lambda each: _SEVERITIES.index(each.severity))


def section_result(section: Section, compared: int, differences: Iterable[Difference]) -> SectionResult:
    """Return the result of a section that was compared."""
    return SectionResult(section=section, compared=compared, differences=by_severity(differences))


def unknown_section(section: Section, why: Finding) -> SectionResult:
    """Return the result of a section that was not compared."""
    return SectionResult(section=section, unknown=why)


def lacking(section: Section, side: str) -> SectionResult:
    """Return the result of a section that a side lacks."""
    return unknown_section(section, Finding(ConfigCode.NOT_HELD, Level.NOTE, {"side": side}))


_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", re.ASCII)


def words_in(name: str) -> frozenset[str]:
    """Return the words of a name, in lower case: those of ``LlamaRMSNorm.eps`` are llama, rms, norm and eps."""
    return frozenset(part.lower() for part in _PARTS.findall(name))


def may_follow(difference: Difference, leader: Difference) -> bool:
    """Whether a difference may be the same as another one, seen elsewhere: the same two values, and a like name.

    Numbers and texts are telling by themselves; truth values are so only together with the name.
    """
    if not (same(difference.target, leader.target) and same(difference.golden, leader.golden)):
        return False
    if difference.only_on != leader.only_on:
        return False
    values = difference.target, difference.golden
    telling = not any(value is None or isinstance(value, bool) for value in values)
    return telling or bool(words_in(difference.path) & words_in(leader.path))


def leaders(differences: Sequence[Difference]) -> list[Difference]:
    """Return the first of those differences that say the same; the one in most modules."""
    found: list[Difference] = []
    for each in sorted(differences, key=lambda one: -one.count):
        if not any(may_follow(each, leader) for leader in found):
            found.append(each)
    return found


def following(differences: Sequence[Difference], leaders: Sequence[Difference]) -> Iterator[Difference]:
    """Yield differences; those that show a leader elsewhere change nothing by themselves, and say which it is."""
    for each in differences:
        leader = next((one for one in leaders if one is not each and may_follow(each, one)), None)
        yield each if leader is None else demoted(each, follows(leader.path))


def follows(path: str) -> Finding:
    """Return the reason of a difference that another one explains."""
    return Finding(ConfigCode.WHY_FOLLOWS, Level.NOTE, {"path": path})


def demoted(difference: Difference, reason: Finding) -> Difference:
    """Return a difference as one that does not matter."""
    plain = Finding(difference.finding.code, Level.NOTE, difference.finding.fields)
    return replace(difference, severity=Severity.INFO, finding=because(plain, reason))
