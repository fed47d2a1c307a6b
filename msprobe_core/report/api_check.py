"""The checked calls of a dump as text for a terminal."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_core.api_check.verdict import CallVerdict, Inputs, OutputVerdict, Verdict
from msprobe_core.console import aligned, print_lines
from msprobe_core.errors import printable
from msprobe_core.findings import Finding, Language, as_text
from msprobe_core.model import Task
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.report.api_check_codes import CheckReportCode
from msprobe_core.report.api_check_summary import (
    CheckSummary,
    direction,
    measured,
    not_checked_line,
    noted_line,
    script_command,
)

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {Verdict.WRONG: "bold red", Verdict.SUSPECT: "bold yellow"}
_MAX_RANKED = 10
_DETAILED = 3
"""Number of calls shown with their figures."""
_MAX_REASONS = 6

VERDICT_WORDS = {
    Verdict.WRONG: "wrong",
    Verdict.SUSPECT: "suspect",
    Verdict.ILL_CONDITIONED: "ill-conditioned",
    Verdict.RIGHT: "right",
    Verdict.CANNOT_TELL: "not checked",
}


def print_checks(
    verdicts: Sequence[CallVerdict],
    console: Console,
    *,
    dump: Path,
    files: Sequence[Path] = (),
    scripts: Sequence[Path] = (),
) -> None:
    """Print what the checks of a dump found; the last line is the answer.

    Args:
        verdicts: One per call, in the order of the dump.
        console: Console to print to.
        dump: The dump, as the next command names it.
        files: Where all of it was written.
        scripts: The reproducers that were written; if there are none, the next command writes one.
    """
    from rich.text import Text

    summary = CheckSummary.of(verdicts)
    print_lines(console, map(printable, check_lines(summary, dump=dump, files=files, scripts=scripts)))
    style = _STYLES.get(
        Verdict.WRONG if summary.is_fault else summary.verdict,
        "bold green" if summary.counts[Verdict.RIGHT] else "bold yellow",
    )
    print_lines(console, [Text(printable(_sentence(summary.headline)), style=style)])


def check_lines(
    summary: CheckSummary, *, dump: Path, files: Sequence[Path] = (), scripts: Sequence[Path] = ()
) -> Iterator[str]:
    """Yield the lines of the printed text, without the last one."""
    yield f"Checked against float64: {summary.counted}."
    yield from _ranked_lines(summary.ranked)
    for group in summary.noted[:_MAX_REASONS]:
        yield f"Note: {noted_line(group)}."
    weakness = summary.weakness
    if weakness is not None:
        yield f"Note: {weakness}."
    for group in summary.not_checked[:_MAX_REASONS]:
        yield f"Note: {not_checked_line(group)}."
    if len(summary.not_checked) > _MAX_REASONS:
        yield f"Note: … and {len(summary.not_checked) - _MAX_REASONS} more reasons, in the files"
    yield from (f"Written: {path}" for path in files)
    yield from (f"Reproducer, which needs no msprobe: {path}" for path in scripts)
    yield from _next_lines(summary, dump, has_script=bool(scripts))


def _sentence(headline: Finding) -> str:
    text = headline.text
    return text[:1].upper() + text[1:]


# --- the calls that are not right -------------------------------------------------------------------------------------


def _ranked_lines(ranked: Sequence[CallVerdict]) -> Iterator[str]:
    if not ranked:
        return
    shown = ranked[:_MAX_RANKED]
    cells = [_COLUMNS, *(_cells(number, call) for number, call in enumerate(shown, 1))]
    yield "By effect, which is how far a result is off times how many calls use it:"
    for number, line in enumerate(aligned(cells, left=_LEFT)):
        yield f"  {line}"
        if 1 <= number <= _DETAILED:
            yield from (f"       {line}" for line in _details(shown[number - 1]))
    if len(ranked) > len(shown):
        yield f"  … and {len(ranked) - len(shown):,} more, in the files"


_COLUMNS = ("#", "call", "verdict", "times allowed", "later calls")
_LEFT = (1, 2)
"""Indices of the columns that are text; those of numbers end under one another."""


def _cells(number: int, call: CallVerdict) -> tuple[str, ...]:
    worst = call.worst
    times = "" if worst is None else _times(worst.times)
    reach = "" if call.reach is None else f"{call.reach:,}"
    return str(number), call.entry, VERDICT_WORDS[call.verdict], times, reach


def _times(value: float) -> str:
    return as_text(value, "times", Language.ENGLISH, {}) if math.isfinite(value) else "inf"


def _details(call: CallVerdict) -> Iterator[str]:
    worst = call.worst
    if worst is None:
        return
    yield f"{worst.reason}"
    yield f"{measured(worst)}{_at(worst)}"
    found = direction(worst)
    if found is not None:
        yield str(found)
    if call.inputs is not Inputs.RECORDED:
        yield f"with inputs that are {call.inputs.value}, seed {call.seed}"
    yield from (str(note) for note in call.notes)


def _at(output: OutputVerdict) -> str:
    side = "" if output.side == "recorded" else f", computed on {output.side}"
    if output.worst_index is None:
        return side
    return f"{side}; worst at [{', '.join(map(str, output.worst_index))}] of {list(output.shape)}"


# --- what to do next --------------------------------------------------------------------------------------------------


def _next_lines(summary: CheckSummary, dump: Path, *, has_script: bool) -> Iterator[str]:
    if summary.verdict in (Verdict.WRONG, Verdict.SUSPECT) and not has_script:
        command = script_command(str(dump), summary.ranked[0].entry)
        yield f"Next: {Finding(CheckReportCode.NEXT_SCRIPT, fields={'command': command})}"
    elif not summary.counts[Verdict.RIGHT] and _lacks_tensors(summary):
        command = shlex.join(["msprobe", "acc_check", "-api_info", str(dump)])
        yield f"Next: {Finding(CheckReportCode.NEXT_RECORD, fields={'command': command})}"
        yield from (f"    {line}" for line in json.dumps(TENSOR_CONFIG, indent=2).splitlines())


TENSOR_CONFIG = {"task": Task.TENSOR.value, "dump_path": "./dump", "level": "L1", "step": [0], "rank": [0]}
"""What records all calls with whole tensors, of one step on one rank."""


def _lacks_tensors(summary: CheckSummary) -> bool:
    """Whether the most frequent reason is that the dump has statistics only."""
    first = next(iter(summary.not_checked), None)
    return first is not None and first.reason.code is ReplayCode.STATISTICS_ONLY
