"""Terminal output of a search: preconditions, the suspects with their evidence, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from msprobe_core.config.ranges import format_ranges
from msprobe_core.config_check.differences import Severity
from msprobe_core.console import print_lines
from msprobe_core.errors import printable
from msprobe_core.locate.configuration import cause_in_words, difference_in_words
from msprobe_core.locate.result import (
    CheckState,
    EvidenceRow,
    Explained,
    LocateResult,
    LocateVerdict,
    Precondition,
    Suspect,
)
from msprobe_core.report.confirm import HEADLINES
from msprobe_core.store.stack_text import frames_of_user

_STYLES = {CheckState.HOLDS: "green", CheckState.DIFFERS: "red", CheckState.UNKNOWN: "yellow"}
_DETAILED = 3
"""Number of suspects shown with their evidence; each of the others gets one line."""
_MAX_SHOWN = 4
_MAX_FRAMES = 3
_MAX_NOTES = 6
_MAX_PARENTS = 3
_MAX_DECISIONS = 4
_MAX_DIFFERENCES = 3
"""Number of settings shown that the runs differ in."""


def print_location(result: LocateResult, file: Path, console: Console) -> None:
    """Print the result; the last line is the verdict.

    If the runs were configured differently in what explains the fault, the first line says so.

    Args:
        result: Result of the search.
        file: Path of the complete result.
        console: Console to print to.
    """
    print_lines(console, _location_lines(result, file))


def _location_lines(result: LocateResult, file: Path) -> Iterator[Text]:
    if result.configuration is not None and (cause := cause_in_words(result.configuration)) is not None:
        yield Text(cause.text, style="bold red")
    yield Text(f"Looked at {result.examined}: {result.num_nodes:,} calls, against {result.noise}.")
    width = max(len(check.name.value) for check in result.checks)
    for check in result.checks:
        line = Text(f"  {check.name.value:{width}}  ").append(f"{check.state.value:8}", style=_STYLES[check.state])
        yield line.append(check.detail.text, style="default")
        if check.name is Precondition.CONFIGURATION:
            for each in _told_differences(result):
                yield Text(f"    {difference_in_words(each).text}")
    for decision in result.decisions[:_MAX_DECISIONS]:
        rate = "others" if decision.rate is None else f"{decision.rate:.2%} others"
        yield Text(f"    {_place(decision.step, decision.rank)}{decision.row}: {rate}")
    for number, suspect in enumerate(result.suspects, 1):
        yield from _lines(number, suspect) if number <= _DETAILED else _short_lines(number, suspect)
    for note in result.notes[:_MAX_NOTES]:
        yield Text(f"Note: {note}", style="yellow")
    if len(result.notes) > _MAX_NOTES:
        yield Text(f"Note: … and {len(result.notes) - _MAX_NOTES} more, in the file", style="yellow")
    yield Text(f"All of it: {file}")
    yield _verdict_line(result)


def print_culprit(result: LocateResult, console: Console) -> None:
    """Print the first suspect with its evidence, and the verdict."""
    print_lines(console, [*(_lines(1, result.suspects[0]) if result.suspects else ()), _verdict_line(result)])


def _told_differences(result: LocateResult) -> Sequence[Explained]:
    """Return the first differences that can change results, those that explain the fault first."""
    every = () if result.configuration is None else result.configuration.explained
    return [each for each in every if each.difference.severity is not Severity.INFO][:_MAX_DIFFERENCES]


def _place(step: int | None, rank: int | None) -> str:
    parts = [f"{what} {number}" for what, number in (("step", step), ("rank", rank)) if number is not None]
    return f"{', '.join(parts)}: " if parts else ""


def place_of(suspect: Suspect) -> str:
    """Return step, micro_step and ranks of a suspect as text, without unknown ones and without micro_step 0."""
    parts = [f"step {suspect.step}"] if suspect.step is not None else []
    parts += [f"micro step {suspect.micro_step}"] if suspect.micro_step else []
    if suspect.ranks:
        word = "rank" if len(suspect.ranks) == 1 else "ranks"
        parts.append(f"{word} {', '.join(format_ranges(suspect.ranks))}")
    return ", ".join(parts)


def _title(number: int, suspect: Suspect) -> Text:
    place = place_of(suspect)
    title = Text(f"{number}. {suspect.entry}", style="bold red" if number == 1 else "bold")
    title.append(f"  {suspect.kind.value}, {suspect.strength.value} evidence", style="default")
    return title.append(f"  ({place})" if place else "", style="default")


def _short_lines(number: int, suspect: Suspect) -> Iterator[Text]:
    yield _title(number, suspect)


def _lines(number: int, suspect: Suspect) -> Iterator[Text]:
    yield _title(number, suspect)
    if suspect.parents:
        chain = " < ".join(suspect.parents[:_MAX_PARENTS])
        yield Text(f"   inside {chain}{' < …' if len(suspect.parents) > _MAX_PARENTS else ''}")
    yield Text(f"   {suspect.reason}")
    if suspect.about is not None:
        yield Text(f"   It is about {suspect.about}.")
    if suspect.num_alike:
        yield Text(f"   The same is wrong with {suspect.num_alike:,} more calls of its kind at least.")
    if suspect.seen_at is not None:
        yield Text(f"   It shows beyond rounding at {suspect.seen_at}.")
    for row in suspect.evidence[:_MAX_SHOWN]:
        yield Text(f"   {row.row}  {_message(row)}")
    if len(suspect.evidence) > _MAX_SHOWN:
        yield Text(f"   … and {len(suspect.evidence) - _MAX_SHOWN} more")
    frames = frames_of_user(suspect.stack)[:_MAX_FRAMES]
    if frames:
        yield Text("   called from")
        for frame in frames:
            yield Text(f"     {' '.join(frame.split())}")
    if suspect.confirmation is not None:
        yield Text(f"   Made again: {HEADLINES[suspect.confirmation.verdict]}. {suspect.confirmation.reason}")
    if suspect.advice is not None:
        yield Text(f"   Next: {suspect.advice}")


def _message(row: EvidenceRow) -> str:
    if row.findings:
        return printable(" ".join(finding.text for finding in row.findings))
    if row.score is None or not math.isfinite(row.score):
        return "differs"
    return f"{row.score:.3g} times what rounding explains; {row.limit:.3g} is allowed"


def _verdict_line(result: LocateResult) -> Text:
    because = "."
    if result.incomplete:
        more = f"; {len(result.incomplete) - 1:,} more" if len(result.incomplete) > 1 else ""
        because = f": {result.incomplete[0]}{more}."
    if result.verdict is LocateVerdict.AGREE and result.incomplete:
        said = f"AGREE: rounding explains every difference in what both have, which is not all{because}"
        return Text(said, style="bold green")
    if result.verdict is LocateVerdict.AGREE:
        return Text("AGREE: rounding explains every difference.", style="bold green")
    if result.verdict is LocateVerdict.INSUFFICIENT:
        said = f"UNDECIDED: nothing is wrong in what could be compared, and not all could{because}"
        return Text(said, style="bold yellow")
    first = result.suspects[0]
    place = place_of(first)
    inside = f" in {first.parents[0]}" if first.parents else ""
    where = f"{place}: " if place else ""
    cause = None if result.configuration is None else result.configuration.cause
    because = "" if cause is None else f"; the configurations differ: {difference_in_words(cause)}"
    return Text(f"FAULT: {first.kind.value} at {where}{first.entry}{inside}{because}.", style="bold red")
