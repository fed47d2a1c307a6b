"""What a search for the first fault has found, as pages have it: from the search, or from its ``locate.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from msprobe_core.errors import CompareError
from msprobe_core.locate.result import LocateResult
from msprobe_core.overflow.result import OverflowOrigin, OverflowResult
from msprobe_core.report.locate_file import location_content
from msprobe_core.store.stack_text import frames_of_user
from msprobe_core.untrusted.files import read_plain
from msprobe_core.view.data import Check, Counts, Culprit, Evidence, Number, State, Verdict

_VERSION = 1


class _Suspect(msgspec.Struct, frozen=True):
    entry: str
    kind: str
    strength: str
    reason: str
    step: int | None = None
    micro_step: int | None = None
    ranks: tuple[int, ...] = ()
    score: Number = None
    limit: Number = None
    seen_at: str | None = None
    evidence: tuple[Evidence, ...] = ()
    parents: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    command: str = ""
    num_alike: int = 0
    about: str | None = None
    confirmation: dict[str, object] | None = None


class _Calls(msgspec.Struct, frozen=True):
    judged: int = 0
    beyond_rounding: int = 0


class Location(msgspec.Struct, frozen=True):
    """What a ``locate.json`` holds, as far as pages need it."""

    version: int
    verdict: str
    target: str
    golden: str
    noise: str = ""
    examined: str = ""
    calls: _Calls = _Calls()
    checks: tuple[Check, ...] = ()
    suspects: tuple[_Suspect, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()


def location_of(result: LocateResult) -> Location:
    """Return what has been found."""
    return msgspec.convert(location_content(result), Location)


def read_location(path: Path) -> Location:
    """Return what a ``locate.json`` holds.

    Raises:
        CompareError: it is none, or of a later version.
    """
    try:
        found = msgspec.json.decode(read_plain(path), type=Location)
    except OSError as error:
        raise CompareError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CompareError(f"{path}: is not what msprobe locate writes ({error})") from error
    if found.version != _VERSION:
        raise CompareError(f"{path}: is of version {found.version}, and {_VERSION} is known; run msprobe locate again")
    return found


_MAX_INCOMPLETE = 6

Places = Mapping[tuple[int | None, int | None], int]
"""Index of the unit by step and rank."""


def verdict_of(found: Location, counts: Counts) -> Verdict:
    """Return the answer.

    Args:
        found: By the search.
        counts: Of what is in the page.
    """
    state = State(found.verdict)
    detail = [f"Looked at {found.examined}: {found.calls.judged:,} calls, against {found.noise}."]
    if found.suspects:
        first = found.suspects[0]
        detail.insert(0, first.reason)
        if first.about:
            detail.insert(1, f"It is about {first.about}.")
        if first.seen_at:
            detail.insert(1, f"It shows beyond rounding at {first.seen_at}.")
        if first.confirmation:
            detail.insert(1, f"Made again: {first.confirmation.get('reason')}")
    return Verdict(
        state=state,
        sentence=_sentence(state, found),
        detail=[*detail, *_details_of(found.incomplete)],
        checks=found.checks,
        counts=counts,
        noise=found.noise,
        incomplete=found.incomplete,
    )


def _details_of(incomplete: Sequence[str]) -> list[str]:
    shown = list(incomplete[:_MAX_INCOMPLETE])
    if len(incomplete) > _MAX_INCOMPLETE:
        shown.append(f"{len(incomplete) - _MAX_INCOMPLETE:,} more")
    return [f"Not all could be looked at: {line}." for line in shown]


def _sentence(state: State, found: Location) -> str:
    if state is State.AGREE:
        return "The runs agree: rounding explains every difference."
    if state is State.INSUFFICIENT or not found.suspects:
        return "Nothing is wrong in what could be compared, but not everything could be compared."
    first = found.suspects[0]
    inside = f" in {first.parents[0]}" if first.parents else ""
    return (
        f"The runs part first{where(first.step, first.micro_step, first.ranks)} at {first.entry}{inside}: {first.kind}."
    )


def where(step: int | None, micro_step: int | None, ranks: Sequence[int]) -> str:
    """Return a place in words, with a space before it; empty if nothing is known of it.

    Args:
        step: Number of the step.
        micro_step: Which micro-batch; the first goes without saying.
        ranks: All that show it.
    """
    parts = [] if step is None else [f"step {step}"]
    parts += [f"micro step {micro_step}"] if micro_step else []
    if ranks:
        word = "rank" if len(ranks) == 1 else "ranks"
        shown = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
        parts.append(f"{word} {shown}")
    return f" in {', '.join(parts)}" if parts else ""


def culprits_of(found: Location, places: Places) -> list[Culprit]:
    """Return the suspects.

    Args:
        found: By the search.
        places: Of the units in the page.
    """
    return [
        Culprit(
            unit=place,
            node=suspect.entry,
            step=suspect.step,
            ranks=suspect.ranks,
            kind=suspect.kind,
            strength=_strength(suspect.strength),
            score=suspect.score,
            limit=suspect.limit,
            reason=suspect.reason,
            evidence=suspect.evidence,
            parents=suspect.parents,
            stack=_frames(suspect.stack),
            command=suspect.command,
        )
        for suspect in found.suspects
        if (place := _unit_of(places, suspect.step, suspect.ranks)) is not None
    ]


def _frames(stack: Sequence[str]) -> list[str]:
    return [" ".join(frame.split()) for frame in frames_of_user(stack)]


def _strength(text: str) -> str:
    return text if text in ("strong", "moderate", "weak") else "weak"


def _unit_of(places: Places, step: int | None, ranks: Sequence[int]) -> int | None:
    """Return the unit of a suspect: that of its first rank, else the first of its step."""
    exact = places.get((step, min(ranks, default=None)))
    if exact is not None:
        return exact
    return next((place for (own, _), place in places.items() if own == step), None)


def overflow_culprits(result: OverflowResult, places: Places) -> list[Culprit]:
    """Return what made NaN or Inf first, of a single run."""
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
            kind=f"NaN or Inf: {origin.kind.value}",
            strength="strong",
            score="inf",
            limit=None,
            reason=origin.reason.text,
            evidence=[Evidence(each.name, _told(origin, i)) for i, each in enumerate(origin.evidence)],
            parents=origin.parents,
            stack=_frames(origin.stack),
            command=origin.command,
        )
        for origin in first.first
        if (place := _unit_of(places, step, [] if origin.rank is None else [origin.rank])) is not None
    ]


def _told(origin: OverflowOrigin, number: int) -> str:
    each = origin.evidence[number]
    state = {True: "finite", False: "not finite", None: "unknown"}[each.is_finite]
    return f"{each.role} {each.dtype} {each.shape}: {state}"


def overflow_verdict(
    result: OverflowResult | None, counts: Counts, incomplete: Sequence[str] = (), *, has_values: bool
) -> Verdict:
    """Return what is to say of a single run.

    Args:
        result: Of the search for NaN and Inf; ``None`` if there was none to search for.
        counts: Of what is in the page.
        incomplete: Which dumps ended early, are damaged or missing, in words.
        has_values: Whether the dumps say anything of values.
    """
    first = None if result is None else result.first
    if first is None:
        sentence = f"A single run, with nothing to hold it against: {counts.nodes:,} calls"
        state = "none of which makes NaN or Inf of finite values" if result is None else "no harmful NaN or Inf"
        state = state if has_values else "whose values were not recorded"
        details = _details_of(incomplete)
        return Verdict(State.NONE, f"{sentence}, {state}.", details, counts=counts, incomplete=incomplete)
    origin = first.first[0]
    places = [] if first.step is None else [f"step {first.step}"]
    places += [] if origin.rank is None else [f"rank {origin.rank}"]
    where = f" in {', '.join(places)}" if places else ""
    return Verdict(
        State.FAULT,
        f"Values stop being finite{where} at {origin.entry}: {origin.kind.value}.",
        detail=[origin.reason.text, origin.harm.text, origin.advice.text, *_details_of(incomplete)],
        counts=counts,
        incomplete=incomplete,
    )
