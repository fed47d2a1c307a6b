"""What all checked calls of a dump say together: the answer, the counts, and why some were not checked."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msprobe_core.api_check.verdict import CallVerdict, Mutant, OutputVerdict, Verdict, by_effect, worst_of
from msprobe_core.findings import Finding, Level
from msprobe_core.report.api_check_codes import CheckReportCode

MUTANT_WORDS = {
    Mutant.ZEROS: "zeros",
    Mutant.INPUT_RETURNED: "the input itself",
    Mutant.SCALED: "1 % more",
    Mutant.HALF_PRECISION: "half of the digits",
    Mutant.SHUFFLED: "elements in another order",
    Mutant.ONE_DROPPED: "one element set to zero",
}
"""Wrong results in words; their translations are among the words of ``wording``."""

DIRECTED = 4.0
"""The bias, in standard errors, from which errors have a direction."""


@dataclass(frozen=True, kw_only=True)
class CallGroup:
    """Calls that were not checked for one reason, or of which one thing is noted.

    Attributes:
        reason: The reason or the note, as the first of the calls has it.
        count: Number of calls.
        first: Entry of the first of them.
    """

    reason: Finding
    count: int
    first: str


@dataclass(frozen=True, kw_only=True)
class CheckSummary:
    """What all checked calls of a dump say together.

    Attributes:
        verdict: The worst; `Verdict.CANNOT_TELL` only if no call was judged.
        headline: The answer in one sentence.
        counts: Number of calls by verdict, the worst first; all verdicts are in it.
        ranked: The calls that are not right, those with the largest effect first.
        not_checked: Why calls were not checked, the most frequent reason first.
        weak: Right calls whose check would have accepted most wrong results too, in the order of the dump.
        probed: Calls that give a wrong result for inputs of which the exact one is known, although what was recorded
            of them is not wrong.
        noted: Errors and warnings that are noted of calls, the most frequent first.
    """

    verdict: Verdict
    headline: Finding
    counts: Mapping[Verdict, int]
    ranked: Sequence[CallVerdict]
    not_checked: Sequence[CallGroup]
    weak: Sequence[CallVerdict]
    probed: Sequence[CallVerdict]
    noted: Sequence[CallGroup]

    @classmethod
    def of(cls, verdicts: Sequence[CallVerdict]) -> CheckSummary:
        """Return what the calls of a dump say together."""
        found = Counter(call.verdict for call in verdicts)
        counts = {verdict: found[verdict] for verdict in Verdict}
        ranked = by_effect(verdicts)
        probed = [call for call in verdicts if call.verdict is not Verdict.WRONG and _is_probed_wrong(call)]
        return cls(
            verdict=worst_of(found),
            headline=_headline(counts, ranked, probed),
            counts=counts,
            ranked=ranked,
            not_checked=_groups(
                (call.entry, call.reason)
                for call in verdicts
                if call.verdict is Verdict.CANNOT_TELL and call.reason is not None
            ),
            weak=[call for call in verdicts if call.verdict is Verdict.RIGHT and weakest_of(call) is not None],
            probed=probed,
            noted=_groups(
                (call.entry, note) for call in verdicts for note in call.notes if note.level is not Level.NOTE
            ),
        )

    @property
    def is_fault(self) -> bool:
        """Whether a call is wrong, for its recorded inputs or for others of which the exact result is known."""
        return self.verdict is Verdict.WRONG or bool(self.probed)

    @property
    def counted(self) -> Finding:
        """How many calls there are of each verdict."""
        return Finding(CheckReportCode.COUNTS, fields={verdict.value: num for verdict, num in self.counts.items()})

    @property
    def weakness(self) -> Finding | None:
        """How many right calls say little; ``None`` if none do."""
        first = next(iter(self.weak), None)
        output = None if first is None else weakest_of(first)
        if first is None or output is None:
            return None
        accepted = [MUTANT_WORDS[mutant] for mutant in output.accepted]
        fields = {"count": len(self.weak), "right": self.counts[Verdict.RIGHT], "entry": first.entry}
        return Finding(CheckReportCode.WEAK, Level.WARNING, {**fields, "mutants": accepted})


def weakest_of(call: CallVerdict) -> OutputVerdict | None:
    """Return the output whose check would have accepted the most wrong results, if that is half of them or more."""
    weak = [output for output in call.outputs if output.is_weak]
    return max(weak, key=lambda output: len(output.accepted) / len(output.applied), default=None)


def not_checked_line(group: CallGroup) -> Finding:
    """Return a line about calls that were not checked for one reason."""
    fields = {"count": group.count, "reason": group.reason, "entry": group.first}
    return Finding(CheckReportCode.NOT_CHECKED, group.reason.level, fields)


def noted_line(group: CallGroup) -> Finding:
    """Return a line about calls of which one thing is noted."""
    fields = {"count": group.count, "note": group.reason, "entry": group.first}
    return Finding(CheckReportCode.NOTED, group.reason.level, fields)


def measured(output: OutputVerdict) -> Finding:
    """Return the figures of an output."""
    fields = {
        "output": output.path, "dtype": output.dtype, "error": output.error, "rounding": output.rounding,
        "condition": output.condition,
    }  # fmt: skip
    return Finding(CheckReportCode.MEASURED, fields=fields)


def direction(output: OutputVerdict) -> Finding | None:
    """Return that the errors of an output have a direction; ``None`` if they have none."""
    if output.bias is None or not abs(output.bias) > DIRECTED:
        return None
    return Finding(CheckReportCode.DIRECTION, fields={"bias": output.bias})


def script_command(dump: str, *entries: str) -> str:
    """Return the command that writes the reproducer of a call; without a call, what precedes its name."""
    return shlex.join(["msprobe", "acc_check", "-api_info", dump, "--script", *entries])


def _is_probed_wrong(call: CallVerdict) -> bool:
    return any(note.level is Level.ERROR for note in call.notes)


def _headline(counts: Mapping[Verdict, int], ranked: Sequence[CallVerdict], probed: Sequence[CallVerdict]) -> Finding:
    checked = sum(num for verdict, num in counts.items() if verdict is not Verdict.CANNOT_TELL)
    first = "" if not ranked else ranked[0].entry
    for num, level, one, several, entry in (
        (counts[Verdict.WRONG], Level.ERROR, CheckReportCode.WRONG_ONE, CheckReportCode.WRONG_SEVERAL, first),
        (
            len(probed), Level.ERROR, CheckReportCode.PROBED_ONE, CheckReportCode.PROBED_SEVERAL,
            "" if not probed else probed[0].entry,
        ),
        (counts[Verdict.SUSPECT], Level.WARNING, CheckReportCode.SUSPECT_ONE, CheckReportCode.SUSPECT_SEVERAL, first),
    ):  # fmt: skip
        if num:
            return Finding(one if num == 1 else several, level, {"count": num, "total": checked, "entry": entry})
    if not checked:
        return Finding(CheckReportCode.NOTHING_CHECKED, Level.WARNING, {"count": counts[Verdict.CANNOT_TELL]})
    return Finding(CheckReportCode.NONE_WRONG, fields={"total": checked})


def _groups(found: Iterable[tuple[str, Finding]]) -> list[CallGroup]:
    """Group entries by their reasons."""
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for entry, reason in found:
        groups.setdefault(_kind(reason), []).append((entry, reason))
    made = [CallGroup(reason=own[0][1], count=len(own), first=own[0][0]) for own in groups.values()]
    return sorted(made, key=lambda group: -group.count)


def _kind(reason: Finding) -> tuple[str, str]:
    """Return what reasons have in common that differ only in names of calls and values."""
    told = reason.fields.get("why", reason.fields.get("text", ""))
    return reason.code.value, told.text if isinstance(told, Finding) else str(told)
