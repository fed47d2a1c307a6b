"""Programs made by chance, run without the probe and with it: choose, run, compare, make smaller, print.

What programs are made of belongs to a framework: it brings a `Vocabulary`, and a `Runner` that builds and runs them. A
program is a list of layers, each with others inside, a list of habits, which are what a training does besides, and what
it is recorded with. Everything is chosen from one number, the seed, which is printed with every finding.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")

Outcome = Mapping[str, object]
"""What a program leaves, by name: losses, the bytes of gradients, weights, buffers and random states, an error."""

ERROR = "error"
"""The name of the error with which a program has ended."""


# --- choose -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A layer or a habit: its name, numbers that its maker reads as it likes, and the parts inside it."""

    name: str
    numbers: tuple[int, ...] = ()
    inside: tuple[Part, ...] = ()

    def __str__(self) -> str:
        within = f"[{', '.join(map(str, self.inside))}]" if self.inside else ""
        return f"{self.name}{self.numbers}{within}"


@dataclass(frozen=True)
class Probe:
    """What a program is recorded with: values of the configuration, and when windows begin and end."""

    level: str
    task: str
    summary_mode: str
    windows: str


@dataclass(frozen=True)
class Program:
    """A training: ``num_steps`` steps of a model of some layers, with some habits."""

    seed: int
    layers: tuple[Part, ...]
    habits: tuple[Part, ...]
    num_steps: int
    probe: Probe

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.num_steps} steps, {self.probe}"]
        lines += [f"  layer {layer}" for layer in self.layers]
        lines += [f"  habit {habit}" for habit in self.habits]
        return "\n".join(lines)


@dataclass(frozen=True)
class Vocabulary:
    """What programs of a framework are made of.

    Attributes:
        layers: Names of layers, and how many layers each has inside at most.
        habits: Names of what a training does besides.
        levels: See `Probe`, as the next two.
        tasks: Pairs of task and summary mode.
        windows: Names of what the runner knows as windows.
        max_layers: Number of outermost layers.
        max_depth: How deep layers are nested.
        max_steps: Number of steps of a training.
    """

    layers: Mapping[str, int]
    habits: Sequence[str]
    levels: Sequence[str]
    tasks: Sequence[tuple[str, str]]
    windows: Sequence[str]
    max_layers: int = 5
    max_depth: int = 3
    max_steps: int = 3


MAX_HABITS, NUM_NUMBERS, MAX_NUMBER = 4, 3, 99


def draw(seed: int, vocabulary: Vocabulary) -> Program:
    """Return the program of a seed."""
    chance = random.Random(seed)

    def layer(depth: int) -> Part:
        names = [name for name, most in vocabulary.layers.items() if depth < vocabulary.max_depth or not most]
        name = chance.choice(names)
        most = vocabulary.layers[name]
        inside = tuple(layer(depth + 1) for _ in range(chance.randint(1, most) if most else 0))
        return Part(name, numbers(), inside)

    def numbers() -> tuple[int, ...]:
        return tuple(chance.randint(0, MAX_NUMBER) for _ in range(NUM_NUMBERS))

    layers = tuple(layer(1) for _ in range(chance.randint(1, vocabulary.max_layers)))
    chosen = chance.sample(list(vocabulary.habits), chance.randint(0, min(MAX_HABITS, len(vocabulary.habits))))
    habits = tuple(Part(name, numbers()) for name in chosen)
    task, summary_mode = chance.choice(list(vocabulary.tasks))
    probe = Probe(chance.choice(list(vocabulary.levels)), task, summary_mode, chance.choice(list(vocabulary.windows)))
    return Program(seed, layers, habits, chance.randint(1, vocabulary.max_steps), probe)


# --- run and compare ----------------------------------------------------------------------------------------------


class Runner(Protocol):
    """Runs programs of one framework."""

    @property
    def vocabulary(self) -> Vocabulary:
        """What programs are made of."""
        ...

    def run(self, program: Program, directory: Path | None) -> Outcome:
        """Build and run a program as though nothing had run before, recording to ``directory`` if there is one.

        An error with which the program ends is part of what it leaves.
        """
        ...


@dataclass(frozen=True)
class Finding:
    """What was not equal: two runs without the probe (the program does not repeat), or one without and one with it."""

    program: Program
    is_repeatable: bool
    names: tuple[str, ...]

    def __str__(self) -> str:
        what = "differs with the probe" if self.is_repeatable else "does not repeat itself"
        return f"{what} in {', '.join(self.names)}\n{self.program}\n{self.program!r}"


def check(program: Program, runner: Runner, summary: Summary | None = None) -> Finding | None:
    """Run a program twice without the probe and once with it; return what differs."""
    expected = runner.run(program, None)
    if summary is not None:
        summary.num_run += 1
        summary.num_ended_by_errors += ERROR in expected
    if _differing(expected, runner.run(program, None)):
        # Frameworks warn once and optimize code that runs again; from the second run on it may repeat itself.
        expected = runner.run(program, None)
        if names := _differing(expected, runner.run(program, None)):
            return Finding(program, False, names)
    with tempfile.TemporaryDirectory() as directory:
        names = _differing(expected, runner.run(program, Path(directory)))
    if not names:
        return None
    return Finding(program, not _differing(expected, runner.run(program, None)), names)


def _differing(expected: Outcome, found: Outcome) -> tuple[str, ...]:
    absent = object()
    names = {**expected, **found}
    return tuple(name for name in names if expected.get(name, absent) != found.get(name, absent))


# --- make smaller -------------------------------------------------------------------------------------------------


def shrink(program: Program, is_faulty: Callable[[Program], bool]) -> Program:
    """Return a program in which nothing can be left out without losing the fault."""
    while (smaller := next(filter(is_faulty, _smaller(program)), None)) is not None:
        program = smaller
    return program


def _smaller(program: Program) -> Iterator[Program]:
    if program.num_steps > 1:
        yield replace(program, num_steps=program.num_steps - 1)
    yield from (replace(program, habits=habits) for habits in _with_less(program.habits))
    yield from (replace(program, layers=layers) for layers in _with_less(program.layers) if layers)


def _with_less(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    for i, part in enumerate(parts):
        before, after = parts[:i], parts[i + 1 :]
        yield before + after
        if part.inside:
            yield before + part.inside + after
        yield from ((*before, smaller, *after) for smaller in _smaller_parts(part))


def _smaller_parts(part: Part) -> Iterator[Part]:
    yield from (replace(part, inside=inside) for inside in _with_less(part.inside) if inside)
    for i, number in enumerate(part.numbers):
        if number:
            yield replace(part, numbers=(*part.numbers[:i], number // 2, *part.numbers[i + 1 :]))


# --- print --------------------------------------------------------------------------------------------------------


_LAST_WORDS = "end with an error, with the probe too"


@dataclass
class Summary:
    """How many programs were run, how many repeat themselves, and which differ."""

    num_run: int = 0
    num_repeatable: int = 0
    num_ended_by_errors: int = 0

    def __str__(self) -> str:
        errors = f"{self.num_ended_by_errors} {_LAST_WORDS}"
        return f"{self.num_run} programs, {self.num_repeatable} repeat themselves; {errors}"


def run_seeds(
    seeds: Iterable[int], runner: Runner, summary: Summary | None = None, say: Callable[[str], None] | None = None
) -> list[Finding]:
    """Run the programs of some seeds; return those that differ with the probe, made as small as they get."""
    summary = Summary() if summary is None else summary
    findings: list[Finding] = []
    for seed in seeds:
        if say is not None:
            say(f"seed {seed}")
        program = draw(seed, runner.vocabulary)
        finding = check(program, runner, summary)
        summary.num_repeatable += finding is None or finding.is_repeatable
        if finding is not None and finding.is_repeatable:
            small = shrink(program, lambda smaller: _differs(smaller, runner))
            findings.append(check(small, runner) or finding)
    return findings


def assert_bitwise_equal(seeds: Iterable[int], runner: Runner) -> None:
    """Fail if programs compute something else with the probe, or if too few of them could have shown it."""
    summary = Summary()
    findings = run_seeds(seeds, runner, summary)
    assert not findings, "\n".join(map(str, findings))
    # Programs that differ between runs without the probe, and those that end with an error, test little.
    assert summary.num_repeatable >= 0.9 * summary.num_run, summary
    assert summary.num_ended_by_errors <= 0.2 * summary.num_run, summary


def assert_draws_everything(vocabulary: Vocabulary) -> None:
    """Fail if programs never have some layer, habit or window of a vocabulary, or never its levels and tasks."""
    drawn = [draw(seed, vocabulary) for seed in range(500)]
    probes = {(program.probe.level, program.probe.task, program.probe.summary_mode) for program in drawn}
    assert {name for program in drawn for name in _names(program.layers)} == vocabulary.layers.keys()
    assert {habit.name for program in drawn for habit in program.habits} == set(vocabulary.habits)
    assert {program.probe.windows for program in drawn} == set(vocabulary.windows)
    assert probes == {(level, *task) for level in vocabulary.levels for task in vocabulary.tasks}


def _names(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        yield part.name
        yield from _names(part.inside)


def _differs(program: Program, runner: Runner) -> bool:
    finding = check(program, runner)
    return finding is not None and finding.is_repeatable


PROGRAMS_IN_A_PROCESS = 100


def main(runner: Runner) -> int:
    """Run programs for a number or a time given on the command line; return how many findings there are, at most 1.

    They run in processes of a hundred each, so that one that ends its process is a finding and the next goes on.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next has the next")
    parser.add_argument("--programs", type=int, default=500, help="how many are run")
    parser.add_argument("--hours", type=float, help="how long, however many these are")
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.here:
        return _run_here(range(options.seed, options.seed + options.programs), runner)
    end = None if options.hours is None else time.monotonic() + 3600 * options.hours
    seed, last, num_faulty = options.seed, options.seed + options.programs, 0
    while seed < last if end is None else time.monotonic() < end:
        number = PROGRAMS_IN_A_PROCESS if end is not None else min(PROGRAMS_IN_A_PROCESS, last - seed)
        num_faulty += _run_in_process(seed, number)
        seed += number
    print(f"seeds {options.seed} to {seed - 1}: {num_faulty or 'no'} processes with findings", flush=True)
    return 1 if num_faulty else 0


def _run_here(seeds: Iterable[int], runner: Runner) -> int:
    summary = Summary()
    findings = run_seeds(seeds, runner, summary, lambda text: print(text, flush=True))
    for finding in findings:
        print(f"FINDING: {finding}", flush=True)
    print(summary, flush=True)
    return 1 if findings else 0


def _run_in_process(seed: int, number: int) -> bool:
    command = [sys.executable, sys.argv[0], "--here", "--seed", str(seed), "--programs", str(number)]
    run = subprocess.run(command, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    shown = [line for line in lines if not line.startswith("seed ")]
    if not any(line.endswith(_LAST_WORDS) for line in lines):
        last = next((line for line in reversed(lines) if line.startswith("seed ")), "before the first")
        shown.append(f"FINDING: the process ended with {run.returncode} at {last}\n{run.stderr[-2000:]}")
    print("\n".join(shown), flush=True)
    return run.returncode != 0
