"""Terminal output of a comparison: counts, the divergence with its evidence, and paths of the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from msprobe_core.compare.result import ComparisonResult, UnitSummary
from msprobe_core.compare.suggest import NameKind
from msprobe_core.compare.tensor_pass import PERCENTILES
from msprobe_core.config.ranges import format_ranges
from msprobe_core.console import print_lines
from msprobe_core.errors import printable
from msprobe_core.findings import Level
from msprobe_core.judge.columns import Match
from msprobe_core.judge.error_distribution import WorstTensor
from msprobe_core.judge.fault import Culprit, Fault
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import said
from msprobe_core.judge.verdict import UNRECORDED, Verdict
from msprobe_core.names import is_saved
from msprobe_core.report.files import ReportFiles
from msprobe_core.report.summary import table_notes
from msprobe_core.store.stack_text import frames_of_user

_STYLES: dict[Verdict | Match, str] = {Verdict.PASS: "green", Verdict.WARNING: "yellow", Verdict.ERROR: "red"}
_MAX_FINDINGS = 4
_MAX_UNITS = 4
"""If there are more pairs, they are summarised."""
_MAX_MISSING = 10
_MAX_PLACES = 10
_MAX_RUNS = 8
_MAX_FRAMES = 3
_MAX_SUGGESTIONS = 4


def print_summary(
    result: ComparisonResult[UnitSummary], files: ReportFiles, console: Console, *, allows_incomplete: bool = False
) -> None:
    """Print the result; the last line is the verdict.

    Args:
        result: The result to print.
        files: Paths of the complete result.
        console: Console to print to.
        allows_incomplete: Whether two runs may agree even if not everything could be compared.
    """
    paths = [path for unit_paths in files.tables for path in unit_paths]
    if len(result.units) > _MAX_UNITS:
        _print_many(result, console)
    else:
        for unit in result.units:
            _print_unit(unit, console)
    _print_first("Replicas differ", result.replicas, _MAX_FINDINGS, console)
    _print_first("Not compared", [f"{line}." for line in result.missing], _MAX_MISSING, console)
    broken = result.incomplete[len(result.missing) :]
    _print_first("Incomplete", [f"{line}." for line in broken], _MAX_MISSING, console)
    if len(paths) > _MAX_UNITS:
        print_lines(console, [f"Tables:  {len(paths):,} files in {files.summary.parent}"])
    else:
        print_lines(console, (f"Table:   {path}" for path in paths))
    notes = [note for unit, own in zip(result.units, files.tables, strict=True) for note in table_notes(unit, own)]
    advice = [*(f"Note: {note}" for note in notes[:_MAX_FINDINGS]), *_suggestion_lines(result, files)]
    print_lines(console, (Text(line, style="yellow") for line in advice))
    print_lines(console, [f"Summary: {files.summary}", _verdict_line(result, allows_incomplete=allows_incomplete)])


def _print_first(title: str, lines: Sequence[str], limit: int, console: Console) -> None:
    shown = [f"{title}: {line}" for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"{title}: {len(lines) - limit:,} more, in the summary")
    print_lines(console, (Text(line, style="bold red") for line in shown))


def _suggestion_lines(result: ComparisonResult[UnitSummary], files: ReportFiles) -> Iterator[str]:
    """Yield suggestions for names without a partner, the first ones only, and the paths of all of them."""
    found = {(each.kind, each.target): each for unit in result.units for each in unit.suggestions}
    for each in list(found.values())[:_MAX_SUGGESTIONS]:
        best = each.candidates[0]
        yield f"Perhaps: {each.target} is {best.golden}: {best.reason}"
    for path in files.suggestions:
        option = "-cm" if NameKind.CELL.value in path.name else "-am"
        yield f"Suggestions: {path}; look them over and give them with {option}"


def _print_many(result: ComparisonResult[UnitSummary], console: Console) -> None:
    """Print a summary of many pairs: how many agree, and where the others diverge, grouped by place."""
    units = result.units
    num_rows, num_calls = sum(unit.num_rows for unit in units), sum(unit.num_nodes for unit in units)
    modes = ", ".join(sorted({unit.mode.value for unit in units}))
    steps = {unit.step for unit in units}
    of_steps = f" of {len(steps):,} steps" if None not in steps else ""
    console.print(
        Text(f"Compared {len(units):,} pairs of ranks{of_steps} ({modes}), {num_rows:,} rows of {num_calls:,} calls:")
    )
    num_agreeing = sum(unit.agrees for unit in units)
    width = len(f"{len(units):,}")
    console.print(Text(f"  {num_agreeing:{width},}", style="green").append("  agree", style="default"))
    num_other = sum(unit.differs for unit in units)
    console.print(Text(f"  {num_other:{width},}", style="red" if num_other else "").append("  differ", style="default"))
    if num_left := len(units) - num_agreeing - num_other:
        console.print(Text(f"  {num_left:{width},}", style="yellow").append("  agree, not whole", style="default"))
    notes = Counter(note for unit in units for note in unit.notes)
    for note, number in notes.most_common(_MAX_FINDINGS):
        console.print(Text(f"Note: {note}" + (f" ({number:,} pairs)" if number > 1 else ""), style="yellow"))
    if len(notes) > _MAX_FINDINGS:
        console.print(Text(f"Note: … and {len(notes) - _MAX_FINDINGS:,} more, in the summary", style="yellow"))
    found = result.first_fault
    if found is None:
        return
    print_lines(console, fault_lines("First fault", found[1]))
    places: dict[tuple[int | None, str], list[UnitSummary]] = {}
    for unit in units:
        if (fault := unit.first_fault) is not None:
            places.setdefault((unit.step, fault.entry), []).append(unit)
    console.print(Text("Where pairs first diverge:"))
    for (step, entry), own in list(places.items())[:_MAX_PLACES]:
        prefix = "" if step is None else f"step {step}, "
        print_lines(console, [f"  {prefix}{_ranks(own)}: {entry}"])
    if len(places) > _MAX_PLACES:
        console.print(Text(f"  … and {len(places) - _MAX_PLACES:,} more places, in the summary"))


def _ranks(units: Sequence[UnitSummary]) -> str:
    """Return ranks as text: ``ranks 0-3, 7``."""
    numbers = sorted(unit.rank for unit in units if unit.rank is not None)
    if not numbers:
        return ", ".join(unit.label for unit in units[:_MAX_FINDINGS])
    texts = format_ranges(numbers)
    more = f", … ({len(numbers):,})" if len(texts) > _MAX_RUNS else ""
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(texts[:_MAX_RUNS]) + more


def _print_unit(unit: UnitSummary, console: Console) -> None:
    title = f"{unit.label}, {unit.mode.value}" if unit.label else unit.mode.value
    console.print(Text(f"Compared {unit.num_rows:,} rows of {unit.num_nodes:,} calls ({title}):"))
    width = len(f"{unit.num_rows:,}")
    for kind in (Verdict.PASS, Verdict.WARNING, Verdict.ERROR, Match.TARGET, Match.GOLDEN):
        number = Text(f"  {unit.counts[kind.value]:{width},}", style=_STYLES.get(kind, ""))
        console.print(number.append(f"  {kind.value}", style="default"))
    print_lines(console, (Text(f"Note: {note}", style="yellow") for note in unit.notes))
    first = unit.first_fault
    faults = [fault for fault in (unit.fault, unit.lone_call) if fault is not None]
    faults.sort(key=lambda fault: (fault is not first, fault.position))
    # Two frameworks may compute the same with different calls, so an unmatched call counts only if the judge blames it.
    is_other_way = unit.is_foreign and unit.culprit is not Culprit.LONE
    if is_other_way:
        faults = [fault for fault in faults if fault.only_on is None]
    for number, fault in enumerate(faults):
        other = "Then also" if fault.position > faults[0].position else "Before it also"
        print_lines(console, fault_lines(other if number else "First fault", fault, is_second=number > 0))
    if is_other_way and unit.lone_call is not None:
        print_lines(console, fault_lines("Without partner", unit.lone_call, is_foreign=True))
    if faults or unit.lone_call is not None:
        return
    if unit.first_difference is not None:
        line = f"Within the limits; the first row that differs at all is {unit.first_difference}."
    else:
        line = "No value differs."
    print_lines(console, [line])


def fault_lines(title: str, fault: Fault, *, is_second: bool = False, is_foreign: bool = False) -> Iterator[Text]:
    """Yield the lines that describe a fault; a second fault may be caused by the first.

    Args:
        title: Title of the paragraph.
        fault: The fault.
        is_second: Whether another fault was described before.
        is_foreign: Whether it is an unmatched call in a comparison of two frameworks.
    """
    yield Text(f"{title}: {fault.entry}", style="bold red")
    if fault.parent:
        yield Text(f"  inside {fault.parent}")
    if is_foreign:
        yield Text(f"  This call is in the {fault.only_on} only; the other side may compute it by other calls.")
        return
    yield Text(f"  {_reason(fault, is_second=is_second)}")
    for row, finding in fault.findings[:_MAX_FINDINGS]:
        yield Text(f"  {row}  {printable(said(finding).text)}")
    if len(fault.findings) > _MAX_FINDINGS:
        yield Text(f"  … and {len(fault.findings) - _MAX_FINDINGS} more")
    if fault.worst_tensor is not None:
        yield from _tensor_lines(fault.worst_tensor)
    frames = frames_of_user(fault.stack)[:_MAX_FRAMES]
    if frames:
        yield Text("  called from")
        for frame in frames:
            yield Text(f"    {' '.join(frame.split())}")


def _tensor_lines(worst: WorstTensor) -> Iterator[Text]:
    """Yield the distribution of a tensor's error."""
    if worst.tokens is not None:
        yield Text(f"  {worst.row}  {worst.tokens.sentence()}")
    for kind, errors in (("absolute", worst.absolute), ("relative", worst.relative)):
        if not errors:
            continue
        found = ", ".join(f"{PERCENTILES[name]:g}%: {errors[name]:.3g}" for name in PERCENTILES)
        yield Text(f"  {worst.row}  {kind} error by percentile of elements: {found}")


def _reason(fault: Fault, *, is_second: bool) -> str:
    if fault.only_on is not None:
        return f"This call is in the {fault.only_on} only: from here on the two programs differ."
    if is_second and not fault.is_culprit and "inputs" in fault.parts:
        return "What it got differs already; the call above, which one side lacks, may be why."
    unread = _problem(fault)
    if not fault.is_culprit and "inputs" in fault.parts and unread is not None:
        return f"What it got could not be compared: {unread}."
    if not fault.is_culprit and "inputs" in fault.parts:
        return "What it got differs already, and nothing before it does: the fault is outside of what was recorded."
    if unread is not None and fault.parts == ["outputs"]:
        given = "" if fault.input_error is None else f"Its inputs agree (relative error {fault.input_error:.2g}); "
        return f"{given}{'its' if given else 'Its'} output could not be compared: {unread}."
    if is_saved(fault.entry):
        return "This saved value differs, and none before it does."
    blamed = " and ".join(part for part in fault.parts if part not in {"inputs", "outputs"})
    if not blamed:
        given = "" if fault.input_error is None else f" (relative error {fault.input_error:.2g})"
        wrong = "" if fault.output_error is None else f" (relative error {fault.output_error:.2g})"
        return f"Its inputs agree{given}, its output does not{wrong}."
    if "outputs" in fault.parts:
        return f"Its input tensors agree, its {blamed} and its output do not."
    return f"Its input tensors agree, its {blamed} do not."


def _problem(fault: Fault) -> str | None:
    """Return why tensors of a call could not be compared, if nothing else is wrong with it: its errors are unknown."""
    errors = [finding for _, finding in fault.findings if finding.level is Level.ERROR]
    if not errors or any(finding.code is not RowCode.NOT_COMPARABLE for finding in errors):
        return None
    return printable(str(errors[0].fields["reason"]))


def _verdict_line(result: ComparisonResult[UnitSummary], *, allows_incomplete: bool) -> Text:
    if result.agrees:
        num_unrecorded = sum(unit.counts[UNRECORDED] for unit in result.units)
        but = f"; values that were not recorded and could not be judged: {num_unrecorded:,}" if num_unrecorded else ""
        return Text(f"AGREE: every row is matched and within its limit{but}.", style="bold green")
    if not result.differs:
        word, style = ("AGREE", "bold green") if allows_incomplete else ("UNDECIDED", "bold yellow")
        more = f"; {len(result.incomplete) - 1:,} more" if len(result.incomplete) > 1 else ""
        said = f"nothing differs in what both have, and the whole could not be judged: {result.incomplete[0]}{more}."
        return Text(f"{word}: {said}", style=style)
    found = result.first_fault
    if found is None and (result.replicas or any(unit.replicas for unit in result.units)):
        return Text("DIFFERENT: ranks that should have the same have not.", style="bold red")
    if found is None:
        return Text("DIFFERENT: values differ.", style="bold red")
    unit, fault = found
    if unit.is_foreign and fault.only_on is not None and unit.culprit is not Culprit.LONE:
        return Text(
            f"DIFFERENT: calls have no partner, the first is {fault.entry}; what has one is within its limit.",
            style="bold red",
        )
    place = f"{unit.label}: {fault.entry}" if len(result.units) > 1 else fault.entry
    inside = f" in {fault.parent}" if fault.parent else ""
    return Text(f"DIFFERENT: first at {place}{inside}.", style="bold red")
