"""Checked calls in the page's form, from the ``acc_check.json`` of each dump."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from msprobe_core.api_check import verdict as checks
from msprobe_core.findings import Finding
from msprobe_core.report.api_check_files import CHECK_FILE, CheckedDump, published_of, read_checks
from msprobe_core.report.api_check_summary import CheckSummary, script_command, weakest_of
from msprobe_core.untrusted.paths import path_of, shown
from msprobe_core.view.data import (
    CheckedCall,
    CheckedOutput,
    Counts,
    Kind,
    Made,
    Number,
    Said,
    Side,
    Sides,
    State,
    Verdict,
    ViewData,
    number,
    said_of,
)
from msprobe_core.view.data import CheckedDump as ShownDump


@dataclass(frozen=True)
class CheckFile:
    """The checks of one dump.

    Attributes:
        path: Of the ``acc_check.json``.
        content: What it has.
        summary: What its calls say together.
    """

    path: Path
    content: CheckedDump
    summary: CheckSummary

    @classmethod
    def read(cls, path: Path) -> CheckFile:
        """Read a file.

        Raises:
            CompareError: it is damaged, or of a later version.
        """
        content = read_checks(path)
        return cls(path, content, CheckSummary.of(content.verdicts))

    @property
    def dump(self) -> Path | None:
        """The dump that was checked; ``None`` if it is not there."""
        try:
            path = path_of(self.content.dump)
            return path if path.exists() else None
        except (OSError, ValueError):  # a name that is too long, or holds a null character
            return None


def check_files_of(target: Path, units: Sequence[Path]) -> Iterator[Path]:
    """Yield the ``acc_check.json`` next to the dumps of a run: in its directory, and in those of its units.

    Args:
        target: The run, a step, or a dump.
        units: The dumps: directories, or files in them.
    """
    places = dict.fromkeys(each if each.is_dir() else each.parent for each in (target, *units))
    yield from (file for place in places if (file := place / CHECK_FILE).is_file())


def shown_checks(file: CheckFile, units: Mapping[Path, int]) -> ShownDump:
    """Return the checks of a dump in the page's form.

    Args:
        file: The checks.
        units: Index of each unit in the page, by its directory, without symbolic links.
    """
    summary = file.summary
    ranked = {id(call) for call in summary.ranked}
    calls = [*summary.ranked, *(call for call in file.content.verdicts if id(call) not in ranked)]
    weak = {id(call) for call in summary.weak}
    return ShownDump(
        unit=_unit_of(file, units),
        dump=shown(file.content.dump),
        headline=said_of(summary.headline),
        counts={verdict.value: num for verdict, num in summary.counts.items()},
        weak=len(weak),
        reasons=[(said_of(group.reason), group.count) for group in summary.not_checked],
        calls=[_call(call, is_weak=id(call) in weak) for call in calls],
        command=f"{script_command(file.content.dump)} {{entry}}",
    )


def _unit_of(file: CheckFile, units: Mapping[Path, int]) -> int | None:
    dump = file.dump
    places = [file.path.parent] if dump is None else [dump, dump.parent, file.path.parent]
    return next((units[place] for each in places if (place := each.resolve()) in units), None)


def verdict_with(found: Verdict, files: Sequence[CheckFile]) -> Verdict:
    """Return the answer for a single run, of which some calls are wrong, or were at least checked.

    Args:
        found: The answer without checks; one that names a fault, such as NaN, stays.
        files: The checks.
    """
    worst = _worst(files)
    if worst is None or found.state is not State.NONE:
        return found
    return msgspec.structs.replace(
        found,
        state=State.FAULT if worst.is_fault else State.NONE,
        sentence=said_of(worst.headline),
        detail=[*_details(worst), *([found.sentence] if found.sentence else []), *found.detail],
    )


def _worst(files: Sequence[CheckFile]) -> CheckSummary | None:
    order = list(checks.Verdict)
    summaries = (file.summary for file in files)
    return min(summaries, key=lambda each: (not each.is_fault, order.index(each.verdict)), default=None)


def _details(summary: CheckSummary) -> list[Said]:
    found: list[Finding] = [summary.counted]
    if summary.weakness is not None:
        found.append(summary.weakness)
    return list(map(said_of, found))


def checks_alone(path: Path) -> ViewData:
    """Return a page of checks whose dump is not at hand, as of an ``acc_check.json`` that was copied.

    Raises:
        CompareError: the file is damaged, or of a later version.
    """
    file = CheckFile.read(path)
    nothing = Verdict(State.NONE, "", counts=Counts(nodes=len(file.content.verdicts)))
    return ViewData(
        made=Made.now(),
        kind=Kind.DUMP,
        title=shown(Path(file.content.dump).name),
        sides=Sides(Side(shown(file.content.dump), "", "", "")),
        verdict=verdict_with(nothing, [file]),
        checked=[shown_checks(file, {})],
    )


def _call(call: checks.CallVerdict, *, is_weak: bool) -> CheckedCall:
    ordered = sorted(call.outputs, key=lambda output: -output.times if math.isfinite(output.times) else -math.inf)
    weakest = weakest_of(call) if is_weak else None
    if weakest is not None:  # the page's table shows the first
        ordered.sort(key=lambda output: output is not weakest)
    elif (worst := call.worst) is not None:
        ordered.sort(key=lambda output: output is not worst)
    return CheckedCall(
        entry=shown(call.entry),
        verdict=call.verdict.value,
        inputs=call.inputs.value,
        seed=call.seed,
        reach=call.reach,
        is_weak=is_weak,
        reason="" if call.reason is None else said_of(call.reason),
        notes=list(map(said_of, call.notes)),
        outputs=list(map(_output, ordered)),
    )


def _output(output: checks.OutputVerdict) -> CheckedOutput:
    return CheckedOutput(
        path=shown(output.path),
        side=shown(output.side),
        dtype=shown(output.dtype),
        shape=output.shape,
        verdict=output.verdict.value,
        reason=said_of(output.reason),
        error=_rounded(output.error),
        rounding=_rounded(output.rounding),
        condition=_rounded(output.condition),
        own_error=_rounded(output.own_error),
        times=_rounded(output.times),
        amplification=_rounded(output.amplification),
        worst=output.worst_index,
        bias=_rounded(output.bias),
        applied=[mutant.value for mutant in output.applied],
        accepted=[mutant.value for mutant in output.accepted],
        published={
            name: shown(value) if isinstance(value, str) else _rounded(value)
            for name, value in published_of(output).items()
        },
    )


def _rounded(value: float | None) -> Number:
    return number(value if value is None or not math.isfinite(value) else float(f"{value:.7g}"))
