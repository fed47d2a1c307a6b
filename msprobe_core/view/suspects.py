"""Results of a search for the divergence in the page's form, from the search itself or from its ``locate.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from msprobe_core.findings import Field, Finding, Level, noted, read_finding
from msprobe_core.locate.configuration import value_in_words
from msprobe_core.locate.result import LocateResult
from msprobe_core.overflow.result import Evidence as Value
from msprobe_core.overflow.result import OverflowResult
from msprobe_core.report.locate_file import location_content
from msprobe_core.store.results import read_result
from msprobe_core.store.stack_text import frames_of_user
from msprobe_core.untrusted.paths import shown
from msprobe_core.view.data import (
    Check,
    ConfigDifference,
    ConfigSection,
    Configured,
    Counts,
    Culprit,
    Evidence,
    Number,
    Said,
    State,
    Verdict,
    said_of,
)
from msprobe_core.view.view_codes import ViewCode

_VERSION = 1


class _Evidence(msgspec.Struct, frozen=True):
    row: str
    message: str = ""
    message_finding: tuple[Said, ...] = ()
    score: Number = None
    limit: Number = None


class _Check(msgspec.Struct, frozen=True):
    name: str
    state: str
    detail: str
    detail_finding: Said | None = None


class _Confirmation(msgspec.Struct, frozen=True):
    reason: str = ""
    reason_finding: Said | None = None


class _Suspect(msgspec.Struct, frozen=True):
    entry: str
    kind: str
    strength: str
    reason: str
    reason_finding: Said | None = None
    step: int | None = None
    micro_step: int | None = None
    ranks: tuple[int, ...] = ()
    score: Number = None
    limit: Number = None
    seen_at: str | None = None
    evidence: tuple[_Evidence, ...] = ()
    parents: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    command: str = ""
    command_finding: Said | None = None
    num_alike: int = 0
    about: str | None = None
    confirmation: _Confirmation | None = None


class _Calls(msgspec.Struct, frozen=True):
    judged: int = 0
    beyond_rounding: int = 0


class _Section(msgspec.Struct, frozen=True):
    name: str
    compared: int = 0
    different: int = 0
    matter: int = 0
    unknown: str | None = None
    unknown_finding: Said | None = None


class _Difference(msgspec.Struct, frozen=True):
    section: str
    path: str
    severity: str
    golden_path: str | None = None
    target: bool | int | float | str | None = None
    golden: bool | int | float | str | None = None
    only_on: str | None = None
    count: int = 1
    ranks: tuple[int, ...] = ()
    message: str = ""
    message_finding: Said | None = None
    explains: str | None = None
    because: str | None = None
    because_finding: Said | None = None


class _Configuration(msgspec.Struct, frozen=True):
    ranks: int = 0
    sections: tuple[_Section, ...] = ()
    different: int = 0
    cause: str | None = None
    cause_finding: Said | None = None
    differences: tuple[_Difference, ...] = ()


class Location(msgspec.Struct, frozen=True):
    """The content of a ``locate.json``, as far as pages need it."""

    version: int
    verdict: str
    target: str
    golden: str
    noise: str = ""
    noise_finding: Said | None = None
    examined: str = ""
    examined_finding: Said | None = None
    calls: _Calls = _Calls()
    checks: tuple[_Check, ...] = ()
    configuration: _Configuration | None = None
    suspects: tuple[_Suspect, ...] = ()
    notes: tuple[str, ...] = ()
    notes_finding: tuple[Said, ...] = ()
    incomplete: tuple[str, ...] = ()
    incomplete_finding: tuple[Said, ...] = ()

    def noted(self) -> list[Finding]:
        """Return the notes about the data."""
        return _each(self.notes, self.notes_finding)


def location_of(result: LocateResult) -> Location:
    """Return the result of a search."""
    return msgspec.convert(location_content(result), Location)


def read_location(path: Path) -> Location:
    """Read a ``locate.json``.

    Raises:
        CompareError: it is invalid, or of a later version.
    """
    return read_result(path, Location, "msprobe locate", _VERSION)


def _known(text: str, said: Said | None) -> Finding:
    return read_finding(text, None if said is None else msgspec.to_builtins(said))


def _each(texts: Sequence[str], said: Sequence[Said]) -> list[Finding]:
    return [_known(text, own) for text, own in zip_longest(texts, said[: len(texts)])]


_MAX_INCOMPLETE = 6

Places = Mapping[tuple[int | None, int | None], int]
"""Index of the unit by step and rank."""


def verdict_of(found: Location, counts: Counts) -> Verdict:
    """Return the answer of a search.

    Args:
        found: Result of the search.
        counts: Counts of the calls in the page.
    """
    state = State(found.verdict)
    noise = _known(found.noise, found.noise_finding)
    looked_at = {
        "examined": _known(found.examined, found.examined_finding),
        "count": found.calls.judged,
        "noise": noise,
    }
    incomplete = _each(found.incomplete, found.incomplete_finding)
    cause = None if found.configuration is None else found.configuration.cause
    detail = [] if cause is None else [_known(cause, found.configuration and found.configuration.cause_finding)]
    detail += _details_of_suspect(found.suspects[0]) if found.suspects else ()
    detail.append(Finding(ViewCode.LOOKED_AT, fields=looked_at))
    return Verdict(
        state=state,
        sentence=said_of(_sentence(state, found)),
        detail=[*map(said_of, detail), *_details_of(incomplete)],
        checks=[
            Check(check.name, check.state, said_of(_known(check.detail, check.detail_finding)))
            for check in found.checks
        ],
        counts=counts,
        noise=said_of(noise) if noise.text else "",
        incomplete=list(map(said_of, incomplete)),
    )


def _details_of_suspect(suspect: _Suspect) -> Iterator[Finding]:
    yield _known(suspect.reason, suspect.reason_finding)
    if (again := suspect.confirmation) is not None:
        yield Finding(ViewCode.MADE_AGAIN, fields={"reason": _known(again.reason, again.reason_finding)})
    if suspect.seen_at:
        yield Finding(ViewCode.SEEN_AT, fields={"entry": suspect.seen_at})
    if suspect.about:
        yield Finding(ViewCode.ABOUT, fields={"about": suspect.about})


def _details_of(incomplete: Sequence[Finding]) -> list[Said]:
    shown = list(incomplete[:_MAX_INCOMPLETE])
    if len(incomplete) > _MAX_INCOMPLETE:
        shown.append(Finding(ViewCode.MORE_INCOMPLETE, fields={"count": len(incomplete) - _MAX_INCOMPLETE}))
    return [said_of(Finding(ViewCode.INCOMPLETE, Level.WARNING, {"line": line})) for line in shown]


def _sentence(state: State, found: Location) -> Finding:
    if state is State.AGREE:
        return Finding(ViewCode.AGREE)
    if state is State.INSUFFICIENT or not found.suspects:
        return Finding(ViewCode.INSUFFICIENT, Level.WARNING)
    first = found.suspects[0]
    fields = {"where": where(first.step, first.micro_step, first.ranks), "entry": first.entry, "kind": first.kind}
    if not first.parents:
        return Finding(ViewCode.FAULT, Level.ERROR, fields)
    return Finding(ViewCode.FAULT_INSIDE, Level.ERROR, {**fields, "parent": first.parents[0]})


def where(step: int | None, micro_step: int | None, ranks: Sequence[int]) -> Field:
    """Return a place as a field of a sentence, with a leading space; empty if unknown.

    Args:
        step: Number of the step.
        micro_step: Number of the micro-batch; 0 is not mentioned.
        ranks: All ranks that show it.
    """
    places = [] if step is None else [Finding(ViewCode.STEP, fields={"step": step})]
    places += [Finding(ViewCode.MICRO_STEP, fields={"micro_step": micro_step})] if micro_step else []
    if ranks:
        code = ViewCode.RANK if len(ranks) == 1 else ViewCode.RANKS
        places.append(Finding(code, fields={"ranks": [*ranks[:4], *(["…"] if len(ranks) > 4 else [])]}))
    return Finding(ViewCode.WHERE, fields={"places": places}) if places else ""


def configured_of(found: Location) -> Configured | None:
    """Return the configurations that a search has compared; ``None`` if it could not compare any."""
    own = found.configuration
    if own is None or not own.ranks:
        return None
    return Configured(
        ranks=own.ranks,
        sections=[
            ConfigSection(
                name=shown(each.name),
                compared=each.compared,
                different=each.different,
                matter=each.matter,
                unknown=said_of(_known(each.unknown, each.unknown_finding)) if each.unknown else "",
            )
            for each in own.sections
        ],
        different=own.different,
        differences=list(map(_difference, own.differences)),
    )


def _difference(own: _Difference) -> ConfigDifference:
    return ConfigDifference(
        section=shown(own.section),
        path=shown(own.path),
        golden_path=None if own.golden_path is None else shown(own.golden_path),
        target=None if own.only_on == "golden" else shown(value_in_words(own.target)),
        golden=None if own.only_on == "target" else shown(value_in_words(own.golden)),
        only_on=own.only_on,
        severity=own.severity,
        count=own.count,
        ranks=own.ranks,
        message=said_of(_known(own.message, own.message_finding)),
        explains=own.explains,
        because=said_of(_known(own.because, own.because_finding)) if own.because else "",
    )


def culprits_of(found: Location, places: Places) -> list[Culprit]:
    """Return the suspects.

    Args:
        found: Result of the search.
        places: Units in the page.
    """
    return [
        Culprit(
            unit=place,
            node=suspect.entry,
            step=suspect.step,
            ranks=suspect.ranks,
            kind=suspect.kind,
            strength=suspect.strength if suspect.strength in ("strong", "moderate", "weak") else "weak",
            score=suspect.score,
            limit=suspect.limit,
            reason=said_of(_known(suspect.reason, suspect.reason_finding)),
            evidence=list(map(_evidence, suspect.evidence)),
            parents=suspect.parents,
            stack=_frames(suspect.stack),
            command=said_of(_known(suspect.command, suspect.command_finding)) if suspect.command else "",
        )
        for suspect in found.suspects
        if (place := _unit_of(places, suspect.step, suspect.ranks)) is not None
    ]


def _evidence(own: _Evidence) -> Evidence:
    """Return a value as evidence; if a finding is unknown, the texts replace all findings."""
    found = [_known("", each) for each in own.message_finding]
    if not all(each.text for each in found) or not found:
        found = [noted(own.message)] if own.message else []
    return Evidence(own.row, list(map(said_of, found)), own.score, own.limit)


def _frames(stack: Sequence[str]) -> list[str]:
    return [" ".join(frame.split()) for frame in frames_of_user(stack)]


def _unit_of(places: Places, step: int | None, ranks: Sequence[int]) -> int | None:
    """Return the unit of a suspect: that of its first rank, or else the first unit of its step."""
    exact = places.get((step, min(ranks, default=None)))
    if exact is not None:
        return exact
    return next((place for (own, _), place in places.items() if own == step), None)


def overflow_culprits(result: OverflowResult, places: Places) -> list[Culprit]:
    """Return the calls of a single run that produced NaN or Inf first."""
    first = result.first
    if first is None:
        return []
    steps = {step for step, _ in places}
    step = first.step if first.step in steps else None
    return [
        Culprit(
            unit=place,
            node=origin.entry,
            step=first.step,
            ranks=() if origin.rank is None else sorted({origin.rank, *origin.same_on}),
            kind=said_of(Finding(ViewCode.NOT_FINITE_KIND, Level.ERROR, {"kind": origin.kind})),
            strength="strong",
            score="inf",
            limit=None,
            reason=said_of(origin.reason),
            evidence=[Evidence(each.name, [said_of(_value(each))]) for each in origin.evidence],
            parents=origin.parents,
            stack=_frames(origin.stack),
            command=origin.command,
        )
        for origin in first.first
        if (place := _unit_of(places, step, [] if origin.rank is None else [origin.rank])) is not None
    ]


def _value(value: Value) -> Finding:
    state = {True: "finite", False: "not finite", None: "unknown"}[value.is_finite]
    fields = {"role": value.role, "dtype": value.dtype, "shape": value.shape, "state": state}
    return Finding(ViewCode.NOT_FINITE_VALUE, fields=fields)


def overflow_verdict(
    result: OverflowResult | None, counts: Counts, incomplete: Sequence[Finding] = (), *, has_values: bool
) -> Verdict:
    """Return the answer for a single run.

    Args:
        result: Result of the search for NaN and Inf; ``None`` if the search was not possible.
        counts: Counts of the calls in the page.
        incomplete: Which dumps ended early, are damaged or missing.
        has_values: Whether the dumps contain values.
    """
    first = None if result is None else result.first
    if first is None:
        harmless = ViewCode.SINGLE_RUN_FINITE if result is None else ViewCode.SINGLE_RUN_HARMLESS
        state = Finding(harmless if has_values else ViewCode.SINGLE_RUN_WITHOUT_VALUES)
        sentence = Finding(ViewCode.SINGLE_RUN, fields={"count": counts.nodes, "state": state})
        shown = list(map(said_of, incomplete))
        return Verdict(State.NONE, said_of(sentence), _details_of(incomplete), counts=counts, incomplete=shown)
    origin = first.first[0]
    ranks = [] if origin.rank is None else [origin.rank]
    fields = {"where": where(first.step, None, ranks), "entry": origin.entry, "kind": origin.kind}
    return Verdict(
        State.FAULT,
        said_of(Finding(ViewCode.NOT_FINITE, Level.ERROR, fields)),
        detail=[*map(said_of, (origin.reason, origin.harm, origin.advice)), *_details_of(incomplete)],
        counts=counts,
        incomplete=list(map(said_of, incomplete)),
    )
