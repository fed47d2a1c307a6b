"""What the terminal shows of a comparison: counts, the first fault with its evidence, where to read on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from msprobe_core.compare.align import Match
from msprobe_core.compare.engine import ComparisonResult, UnitResult
from msprobe_core.compare.fault import Fault
from msprobe_core.compare.verdict import UNRECORDED, Verdict
from msprobe_core.names import is_saved
from msprobe_core.report.files import ReportFiles
from msprobe_core.store.stack_text import frames_of_user

_STYLES: dict[Verdict | Match, str] = {Verdict.PASS: "green", Verdict.WARNING: "yellow", Verdict.ERROR: "red"}
_MAX_FINDINGS = 4
_MAX_FRAMES = 3


def print_summary(result: ComparisonResult, files: ReportFiles, console: Console) -> None:
    """Print the result; the last line is the verdict."""
    for unit in result.units:
        _print_unit(unit, console)
    for line in result.missing:
        console.print(Text(f"Not compared: {line}.", style="bold red"))
    for paths in files.tables:
        for path in paths:
            console.print(Text(f"Table:   {path}"), soft_wrap=True)
    console.print(Text(f"Summary: {files.summary}"), soft_wrap=True)
    console.print(_verdict_line(result), soft_wrap=True)


def _print_unit(unit: UnitResult, console: Console) -> None:
    title = f"{unit.label}, {unit.mode.value}" if unit.label else unit.mode.value
    console.print(Text(f"Compared {unit.rows.height:,} rows of {unit.nodes.height:,} calls ({title}):"))
    width = len(f"{unit.rows.height:,}")
    for kind in (Verdict.PASS, Verdict.WARNING, Verdict.ERROR, Match.TARGET, Match.GOLDEN):
        number = Text(f"  {unit.counts[kind.value]:{width},}", style=_STYLES.get(kind, ""))
        console.print(number.append(f"  {kind.value}", style="default"))
    for note in unit.notes:
        console.print(Text(f"Note: {note}", style="yellow"), soft_wrap=True)
    faults = sorted((f for f in (unit.fault, unit.lone_call) if f is not None), key=lambda fault: fault.position)
    for title, fault in zip(("First fault", "Then also"), faults, strict=False):
        for line in fault_lines(title, fault):
            console.print(line, soft_wrap=True)
    if faults:
        return
    if unit.first_difference is not None:
        line = f"Within the limits; the first row that differs at all is {unit.first_difference}."
    else:
        line = "No value differs."
    console.print(Text(line), soft_wrap=True)


def fault_lines(title: str, fault: Fault) -> Iterator[Text]:
    """Yield the lines that describe a fault."""
    yield Text(f"{title}: {fault.entry}", style="bold red")
    if fault.parent:
        yield Text(f"  inside {fault.parent}")
    yield Text(f"  {_reason(fault)}")
    for row, message in fault.findings[:_MAX_FINDINGS]:
        yield Text(f"  {row}  {_printable(message)}")
    if len(fault.findings) > _MAX_FINDINGS:
        yield Text(f"  … and {len(fault.findings) - _MAX_FINDINGS} more")
    frames = frames_of_user(fault.stack)[:_MAX_FRAMES]
    if frames:
        yield Text("  called from")
        for frame in frames:
            yield Text(f"    {' '.join(frame.split())}")


def _printable(text: str) -> str:
    """Return ``text`` in one line, without characters that would command the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _reason(fault: Fault) -> str:
    if fault.only_on is not None:
        return f"This call is in the {fault.only_on} only: from here on the two programs differ."
    if not fault.is_culprit and "inputs" in fault.parts:
        return "What it got differs already, and nothing before it does: the fault is outside of what was recorded."
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


def _verdict_line(result: ComparisonResult) -> Text:
    if result.agrees:
        num_unrecorded = sum(unit.counts[UNRECORDED] for unit in result.units)
        but = f"; values that were not recorded and could not be judged: {num_unrecorded:,}" if num_unrecorded else ""
        return Text(f"AGREE: every row is matched and within its limit{but}.", style="bold green")
    faults = [(unit.label, fault) for unit in result.units if (fault := unit.first_fault) is not None]
    if not faults:
        return Text("DIFFERENT: not every rank could be compared.", style="bold red")
    label, fault = min(faults, key=lambda found: found[1].position)
    place = f"{label}: {fault.entry}" if len(result.units) > 1 else fault.entry
    inside = f" in {fault.parent}" if fault.parent else ""
    return Text(f"DIFFERENT: first at {place}{inside}.", style="bold red")
