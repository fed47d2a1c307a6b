"""Print the result of a search on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from msprobe_core.console import print_lines
from msprobe_core.errors import printable
from msprobe_core.overflow.result import Evidence, OverflowOrigin, OverflowResult, StepResult

if TYPE_CHECKING:
    from rich.console import Console

_MAX_SHOWN = 5
_MAX_VALUES = 6
_MAX_FRAMES = 3
_MAX_RANKS = 12
_MAX_MISSING = 10


def print_result(
    result: OverflowResult, files: Sequence[object], console: Console, *, allows_incomplete: bool = False
) -> None:
    """Print the origins, their impact, and what to do."""
    print_lines(console, lines_of(result, allows_incomplete=allows_incomplete))
    print_lines(console, (f"Written: {file}" for file in files))


def lines_of(result: OverflowResult, *, allows_incomplete: bool = False) -> Iterator[Text]:
    """Yield the report.

    Args:
        result: Result of the search.
        allows_incomplete: Whether a run may count as clean if a part could not be searched.
    """
    num_ranks = max(step.num_ranks for step in result.steps)
    num_entries = sum(step.num_entries for step in result.steps)
    steps = f"{len(result.steps)} steps, " if len(result.steps) > 1 else ""
    ranks = f"{num_ranks:,} ranks, " if num_ranks > 1 else ""
    yield Text(f"Searched {steps}{ranks}{num_entries:,} calls.")
    first = result.first
    for step in result.steps:
        for note in step.notes:
            yield Text(f"Note: {note}", style="yellow")
    for line in result.incomplete[:_MAX_MISSING]:
        yield Text(f"Incomplete: {line}.", style="bold red")
    if len(result.incomplete) > _MAX_MISSING:
        yield Text(f"Incomplete: {len(result.incomplete) - _MAX_MISSING:,} more, in overflow.json", style="bold red")
    if first is None:
        yield from _clean(result, allows_incomplete=allows_incomplete)
        return
    where = "" if first.step is None else f"step {first.step}, "
    yield Text(f"FOUND: {where}{_title(first.first[0])}", style="bold red")
    for number, origin in enumerate(first.first[:_MAX_SHOWN]):
        if number:
            yield Text(f"Independent of it: {_title(origin)}", style="bold red")
        yield from _origin(origin)
    if len(first.first) > _MAX_SHOWN:
        yield Text(f"… and {len(first.first) - _MAX_SHOWN:,} more that are independent, in overflow.json")
    if first.num_further:
        shown = ", ".join(_title(origin) for origin in first.further[:_MAX_SHOWN])
        yield Text(f"Later, and perhaps because of it ({first.num_further:,}): {shown}")
    yield from _harmless(first)
    later = [step for step in result.steps if step is not first and not step.is_clean]
    if later:
        yield Text("Also not clean: " + ", ".join(f"step {step.step}" for step in later))


def _clean(result: OverflowResult, *, allows_incomplete: bool) -> Iterator[Text]:
    if result.incomplete:
        word, style = ("CLEAN", "bold green") if allows_incomplete else ("UNDECIDED", "bold yellow")
        more = f"; {len(result.incomplete) - 1:,} more" if len(result.incomplete) > 1 else ""
        said = f"nothing harmful in what could be searched, which is not all: {result.incomplete[0]}{more}."
        yield Text(f"{word}: {said}", style=style)
    else:
        yield Text("CLEAN: no call makes NaN or Inf that does harm.", style="bold green")
    for step in result.steps[:_MAX_SHOWN]:
        yield from _harmless(step)


def _harmless(step: StepResult) -> Iterator[Text]:
    for number, note in enumerate(step.harmless[:_MAX_SHOWN]):
        title = f"Inf or NaN without harm ({step.num_harmless:,}): " if not number else "  "
        yield Text(f"{title}{_at(note.entry, note.rank)}: {note.reason}")
    for number, near in enumerate(step.near_end):
        title = "Near the end of its range: " if not number else "  "
        value = near.value
        yield Text(
            f"{title}{_at(value.name, near.rank)}: {value.extreme:.5g} in {value.dtype}, "
            f"{value.share:.0%} of its largest value"
        )


def _title(origin: OverflowOrigin) -> str:
    ranks = [rank for rank in (origin.rank, *origin.same_on) if rank is not None]
    shown = ", ".join(map(str, ranks[:_MAX_RANKS])) + (", …" if len(ranks) > _MAX_RANKS else "")
    where = "" if not ranks else f"rank {shown}: " if len(ranks) == 1 else f"ranks {shown}: "
    what = origin.value if origin.kind.value == "weight" else origin.entry
    return f"{where}{what} ({origin.kind.value})"


def _at(name: str, rank: int | None) -> str:
    return name if rank is None else f"rank {rank}: {name}"


def _origin(origin: OverflowOrigin) -> Iterator[Text]:
    if origin.parents:
        yield Text(f"  inside {' < '.join(origin.parents)}")
    yield Text(f"  {origin.reason}")
    for value in origin.evidence[:_MAX_VALUES]:
        yield Text(f"    {_value(value)}")
    if len(origin.evidence) > _MAX_VALUES:
        yield Text(f"    … and {len(origin.evidence) - _MAX_VALUES} more values")
    yield Text(f"  What became of it: {origin.harm}.")
    frames = list(origin.stack[:_MAX_FRAMES])
    if frames:
        yield Text("  called from")
        for frame in frames:
            yield Text(f"    {printable(' '.join(frame.split()))}")
    yield Text(f"  {origin.advice}:")
    yield Text(f"    {origin.command}")


def _value(value: Evidence) -> str:
    parts = [part for part in (value.dtype.rpartition(".")[2], value.shape) if part]
    if value.num_nan or value.num_inf:
        parts.append(f"{value.num_nan or 0:,} NaN, {value.num_inf or 0:,} Inf")
    if value.max is not None and value.min is not None:
        parts.append(f"from {value.min:.6g} to {value.max:.6g}")
    return f"{value.name}  {'  '.join(parts)}"
