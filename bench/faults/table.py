"""The benchmark's results as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.faults.scoring import Case, HealthyCase, share

_HEAD = "| faults | detected | named first | in the top five | kind |"
_RULE = "|---|---|---|---|---|"


def render(cases: Sequence[Case], healthy: Sequence[HealthyCase]) -> str:
    """Return tables of faults, of healthy pairs, and all misses."""
    lines: list[str] = []
    for tool in sorted({case.tool for case in cases}):
        own = [case for case in cases if case.tool == tool]
        lines += [f"## {tool}: planted faults", ""]
        lines += _grouped(own, ("dtype", "split", "kernels"), lambda c: (c.dtype, c.split, c.pair))
        lines += _grouped(own, ("dtype", "program", "kernels"), lambda c: (c.dtype, c.family, c.pair))
        lines += _grouped(own, ("dtype", "phase", "kernels"), lambda c: (c.dtype, c.phase, c.pair))
        lines += _misses(own)
    for tool in sorted({case.tool for case in healthy}):
        lines += _healthy(tool, [case for case in healthy if case.tool == tool])
    return "\n".join(lines)


def _grouped(cases: Iterable[Case], names: Sequence[str], key: Callable[[Case], tuple[str, ...]]) -> list[str]:
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        if case.applicable:
            groups.setdefault(key(case), []).append(case)
    lines = [f"| {' | '.join(names)} {_HEAD}", f"{'|---' * len(names)}{_RULE}"]
    for group, own in sorted(groups.items(), key=lambda item: item[0]):
        shares = [share(own, what) for what in ("detected", "is_first", "is_in_top_five", "is_kind")]
        lines.append(f"| {' | '.join([*group, str(len(own)), *shares])} |")
    return [*lines, ""]


def _misses(cases: Sequence[Case]) -> list[str]:
    lines = ["Not named first:", ""]
    for case in cases:
        if case.score is None or case.score.is_first or case.answer is None:
            continue
        where = ", ".join([*case.truth.modules[:3], *case.truth.calls[:1], *case.truth.groups[:1]]) or "the model"
        if not case.score.detected:
            what = "not detected" if case.answer.verdict == "agree" else f"{case.answer.verdict}: no answer"
        else:
            what = "in the top five; first is " if case.score.is_in_top_five else "first is "
            first = case.answer.suspects[0] if case.answer.suspects else None
            what += f"{first.entry} (step {first.step}): {first.kind} {first.reason}"[:180] if first else "nothing"
        lines.append(f"* {case.family} {case.dtype} {case.pair}: {case.fault} [{where}]: {what}")
    idle = [f"{case.family} {case.dtype}: {case.fault}" for case in cases if not case.applicable]
    lines += ["", "Changes nothing, bit for bit, and is not counted:", ""] + [f"* {name}" for name in idle or ["none"]]
    return [*lines, ""]


def _healthy(tool: str, cases: Sequence[HealthyCase]) -> list[str]:
    lines = [f"## {tool}: healthy pairs", ""]
    lines += [
        "| dtype | split | pairs | of them called faulty | calls | flagged | per 10,000 |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[HealthyCase]] = {}
    for case in cases:
        groups.setdefault((case.dtype, case.split), []).append(case)
    for (dtype, split), own in sorted(groups.items()):
        nodes = sum(case.answer.num_nodes for case in own)
        flagged = sum(case.answer.num_flagged for case in own)
        false = sum(case.answer.verdict != "agree" for case in own)
        rate = f"{1e4 * flagged / nodes:.1f}" if nodes else "-"
        lines.append(f"| {dtype} | {split} | {len(own)} | {false} | {nodes:,} | {flagged:,} | {rate} |")
    lines += ["", "Called faulty:", ""]
    for case in cases:
        if case.answer.verdict != "agree":
            first = case.answer.suspects[0] if case.answer.suspects else None
            what = f"{first.entry} (step {first.step}): {first.reason}"[:160] if first else "no suspect"
            lines.append(f"* {case.family} {case.dtype}: {case.name}: {case.answer.verdict}; {what}")
    return [*lines, ""]
