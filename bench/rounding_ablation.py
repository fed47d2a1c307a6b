"""What each rounding rule is worth: judge healthy pairs and planted faults with it and without it.

    python -m bench.rounding_ablation [--noise measured,closed,off] [options of bench.faults]

Pairs are those of `bench.faults`, by default of the architectures that no rule was made for (``--split unseen``). Each
is recorded once, and then judged with all rules, without each of them, without some together, and without all. A rule
pays if healthy pairs are called faulty without it, or faults are named first only with it; it costs if a fault is found
only without it.

Prints a Markdown table for each kind of noise floor, and every pair whose answer depends on a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.faults.answers import Answer, Ask, Suspect
from bench.faults.runner import measure, options_of, parse
from bench.faults.scoring import Case, HealthyCase
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.errors import CompareError
from msprobe_core.judge.noise import NoiseModel, measured_noise
from msprobe_core.judge.rounding_rules import RoundingRule, without
from msprobe_core.locate import LocateOptions, locate

Rules = frozenset[RoundingRule]

ALL_ON: Rules = frozenset()
ALL_OFF: Rules = frozenset(RoundingRule)
OWN: Rules = frozenset({RoundingRule.OWN_ROUNDING})
EXCUSES: Rules = ALL_OFF - OWN
TOGETHER: Sequence[Rules] = (
    frozenset({RoundingRule.ACTIVATION_FLIPS, RoundingRule.TURNED_ELEMENTS}),
    frozenset({RoundingRule.VANISHING_SUMS, RoundingRule.NOISE_GRADIENTS, RoundingRule.ROUNDS_TO_ZERO}),
    frozenset({RoundingRule.NOISE_IN_UPDATES, RoundingRule.SMALL_DIVISORS}),
    frozenset({RoundingRule.CARRIED_PARAMETERS, RoundingRule.UPDATED_PARAMETERS}),
)
"""Rules that excuse some of the same rows, so that one alone may seem to do nothing."""
SETTINGS: Sequence[Rules] = (ALL_ON, EXCUSES, *TOGETHER, *[frozenset({rule}) for rule in RoundingRule], ALL_OFF)
"""The rules that are off. Each is judged after those that tell whether it can make a difference."""


def name_of(off: Rules) -> str:
    """Return what the table calls a setting."""
    names = {ALL_ON: "none", EXCUSES: "all that excuse", ALL_OFF: "all"}
    return names.get(off) or ", ".join(rule.name.lower() for rule in RoundingRule if rule in off)


@dataclass
class AskWithout:
    """Ask ``locate`` in this process, without some rules.

    Attributes:
        noise: As of the option ``--noise``.
        off: The rules that are off.
        known: Answers by setting, shared by those who are asked about one pair.
    """

    noise: str
    off: Rules
    known: dict[Rules, Answer] = field(default_factory=dict)

    def __call__(self, target: Path, golden: Path, out: Path) -> Answer:
        del out
        if not self._is_idle():
            with without(*self.off):
                self.known[self.off] = self.judged(target, golden)
        return self.known.get(self.off, self.known[ALL_ON])

    def _is_idle(self) -> bool:
        """Whether it is known that the rules that are off change nothing here.

        Rules that excuse nothing together excuse nothing alone; the reverse does not hold.
        """
        idle = [off for off, answer in self.known.items() if off and answer == self.known[ALL_ON]]
        if self.off == ALL_OFF:
            return EXCUSES in idle and OWN in idle
        return self.off <= EXCUSES and any(self.off < off for off in idle)

    def judged(self, target: Path, golden: Path) -> Answer:
        """Return what ``locate`` answers."""
        noise = {"off": lambda: None, "closed": NoiseModel, "measured": lambda: measured_noise(golden)}[self.noise]()
        try:
            found = locate(target, golden, LocateOptions(compare=CompareOptions(noise=noise), executor="inline"))
        except CompareError as error:
            return Answer("failed", [Suspect(None, (), "", reason=str(error))])
        suspects = [
            Suspect(one.step, one.ranks, one.entry, one.kind.value, f"{one.score:.4g} {one.reason.text}", one.only_on)
            for one in found.suspects
        ]
        return Answer(found.verdict.value, suspects, found.num_nodes, found.num_flagged)


def asks_of(noise: str) -> dict[str, Ask]:
    """Return what asks about every setting, by its name."""
    known: dict[Rules, Answer] = {}
    return {name_of(off): AskWithout(noise, off, known) for off in SETTINGS}


def table_of(cases: Sequence[Case], healthy: Sequence[HealthyCase]) -> Iterator[str]:
    """Yield the lines of a table with a row for each setting, which is compared with the first one."""
    known = [case for case in cases if case.score is not None]
    by_setting = {
        name_of(off): (
            {(c.family, c.dtype, c.pair, c.fault): c for c in known if c.tool == name_of(off)},
            {(c.family, c.dtype, c.name): c for c in healthy if c.tool == name_of(off)},
        )
        for off in SETTINGS
    }
    on, right = by_setting[name_of(ALL_ON)]
    yield f"{len(right)} healthy pairs, {len(on)} faults"
    yield ""
    yield (
        "| rules that are off | healthy pairs called faulty | calls beyond rounding | "
        "faults detected | named first | named first only with | only without | detected only without |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, (off, wrong) in by_setting.items():
        first = {key: (_is(on[key], "is_first"), _is(case, "is_first")) for key, case in off.items()}
        seen = {key: (_is(on[key], "detected"), _is(case, "detected")) for key, case in off.items()}
        cells = [
            sum(case.answer.verdict != "agree" for case in wrong.values()),
            sum(case.answer.num_flagged for case in wrong.values()),
            sum(after for _, after in seen.values()),
            sum(after for _, after in first.values()),
            sum(before > after for before, after in first.values()),
            sum(before < after for before, after in first.values()),
            sum(before < after for before, after in seen.values()),
        ]
        yield f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |"


def _is(case: Case, what: str) -> bool:
    return bool(getattr(case.score, what))


def details_of(cases: Sequence[Case], healthy: Sequence[HealthyCase]) -> Iterator[str]:
    """Yield a line for each healthy pair that is called faulty, and for each fault whose answer a rule changes."""
    for case in healthy:
        if case.answer.verdict != "agree":
            yield f"* without {case.tool}: {case.family} {case.dtype}, {case.name}: {_first(case.answer)}"
    on = {(c.family, c.dtype, c.pair, c.fault): c for c in cases if c.tool == name_of(ALL_ON)}
    for case in cases:
        before = on[case.family, case.dtype, case.pair, case.fault]
        if case.score is None or case.answer is None or before.score is None:
            continue
        is_base = case is before
        if is_base and not case.score.detected:
            yield f"* not detected: {case.family} {case.dtype}, {case.fault}"
        elif is_base and not case.score.is_first:
            yield f"* not named first: {case.family} {case.dtype}, {case.fault}: {_first(case.answer)}"
        elif not is_base and (case.score.is_first, case.score.detected) != (
            before.score.is_first,
            before.score.detected,
        ):
            is_right = "right" if case.score.is_first else "wrong" if case.score.detected else "not detected"
            yield f"* without {case.tool}: {case.family} {case.dtype}, {case.fault}: {is_right}: {_first(case.answer)}"


def _first(answer: Answer) -> str:
    if not answer.suspects:
        return answer.verdict
    first = answer.suspects[0]
    return f"step {first.step}, {first.entry}, {first.kind}: {first.reason}"[:240]


def main(argv: Sequence[str] | None = None) -> None:
    """Record, judge and print."""
    parser = options_of("python -m bench.rounding_ablation", __doc__.splitlines()[0])
    parser.add_argument("--noise", default="measured,closed", help="noise floors: measured, closed, off (%(default)s)")
    parser.set_defaults(split="unseen", out=Path("ablation_output"))
    arguments = parse(parser, argv)
    kinds = arguments.noise.split(",")
    asks = {f"{kind}: {name}": ask for kind in kinds for name, ask in asks_of(kind).items()}
    arguments.out.mkdir(parents=True, exist_ok=True)

    def write(cases: Sequence[Case], healthy: Sequence[HealthyCase]) -> None:
        (arguments.out / "ablation.md").write_text(rendered(kinds, cases, healthy))

    print(rendered(kinds, *measure(arguments, asks, write)))


def rendered(kinds: Sequence[str], cases: Sequence[Case], healthy: Sequence[HealthyCase]) -> str:
    """Return the tables of all kinds of noise floors, with what makes their numbers."""
    lines: list[str] = []
    for kind in kinds:
        own = [replace(case, tool=case.tool.removeprefix(f"{kind}: ")) for case in cases if _is_of(case, kind)]
        right = [replace(case, tool=case.tool.removeprefix(f"{kind}: ")) for case in healthy if _is_of(case, kind)]
        lines += [f"## noise {kind}", "", *table_of(own, right), "", *sorted(details_of(own, right)), ""]
    return "\n".join(lines)


def _is_of(case: Case | HealthyCase, kind: str) -> bool:
    return case.tool.startswith(f"{kind}: ")


if __name__ == "__main__":
    main()
