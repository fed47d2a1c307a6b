"""What all checked calls of a dump say together: the answer, the counts, and why some were not checked."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msprobe_core.api_check.verdict import CallVerdict, Mutant, OutputVerdict, Verdict, by_effect, worst_of
from msprobe_core.findings import Finding, Level, noted
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
class NotChecked:
    """Calls that were not checked for one reason.

    Attributes:
        reason: The reason, as the first of the calls has it.
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
    """

    verdict: Verdict
    headline: Finding
    counts: Mapping[Verdict, int]
    ranked: Sequence[CallVerdict]
    not_checked: Sequence[NotChecked]
    weak: Sequence[CallVerdict]

    @classmethod
    def of(cls, verdicts: Sequence[CallVerdict]) -> CheckSummary:
        """Return what the calls of a dump say together."""
        found = Counter(call.verdict for call in verdicts)
        counts = {verdict: found[verdict] for verdict in Verdict}
        ranked = by_effect(verdicts)
        return cls(
            verdict=worst_of(found),
            headline=_headline(counts, ranked),
            counts=counts,
            ranked=ranked,
            not_checked=_not_checked(verdicts),
            weak=[call for call in verdicts if call.verdict is Verdict.RIGHT and weakest_of(call) is not None],
        )

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


def not_checked_line(group: NotChecked) -> Finding:
    """Return a line about calls that were not checked for one reason."""
    fields = {"count": group.count, "reason": group.reason, "entry": group.first}
    return Finding(CheckReportCode.NOT_CHECKED, group.reason.level, fields)


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


def _headline(counts: Mapping[Verdict, int], ranked: Sequence[CallVerdict]) -> Finding:
    checked = sum(num for verdict, num in counts.items() if verdict is not Verdict.CANNOT_TELL)
    if not checked:
        return Finding(CheckReportCode.NOTHING_CHECKED, Level.WARNING, {"count": counts[Verdict.CANNOT_TELL]})
    for verdict, level, one, several in (
        (Verdict.WRONG, Level.ERROR, CheckReportCode.WRONG_ONE, CheckReportCode.WRONG_SEVERAL),
        (Verdict.SUSPECT, Level.WARNING, CheckReportCode.SUSPECT_ONE, CheckReportCode.SUSPECT_SEVERAL),
    ):
        if num := counts[verdict]:
            fields = {"count": num, "total": checked, "entry": ranked[0].entry}
            return Finding(one if num == 1 else several, level, fields)
    return Finding(CheckReportCode.NONE_WRONG, fields={"total": checked})


def _not_checked(verdicts: Sequence[CallVerdict]) -> list[NotChecked]:
    groups: dict[tuple[str, str], list[CallVerdict]] = {}
    for call in verdicts:
        if call.verdict is Verdict.CANNOT_TELL and call.reason is not None:
            groups.setdefault(_kind(call.reason), []).append(call)
    found = [
        NotChecked(reason=calls[0].reason or noted(""), count=len(calls), first=calls[0].entry)
        for calls in groups.values()
    ]
    return sorted(found, key=lambda group: -group.count)


def _kind(reason: Finding) -> tuple[str, str]:
    """Return what reasons have in common that differ only in names of calls and values."""
    told = reason.fields.get("why", reason.fields.get("text", ""))
    return reason.code.value, told.text if isinstance(told, Finding) else str(told)
