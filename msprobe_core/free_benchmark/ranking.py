"""The reactions of a run, put together over steps and ranks, and ranked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core import names
from msprobe_core.api_check.online.files import VERDICTS_FILE
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.errors import MissingDumpError
from msprobe_core.model import Task
from msprobe_core.store.layout import find_steps, find_units
from msprobe_core.untrusted.files import read_plain, reading

_FILE = VERDICTS_FILE.format(task=Task.FREE_BENCHMARK.value)
_MAX_BYTES = 1 << 30


class _Output(msgspec.Struct):
    path: str
    reason: str
    times: Any = None
    amplification: Any = None


class _Line(msgspec.Struct):
    step: int
    call: str
    verdict: Verdict
    tensors: str = ""
    reason: str | None = None
    position: int = 0
    outputs: list[_Output] = []


@dataclass(kw_only=True)
class Site:
    """All checked calls of one API with tensors of the same dtypes and shapes.

    Attributes:
        api: Prefix, name and phase: ``Functional.linear.forward``.
        tensors: Dtypes and shapes of what the calls take, and dtypes of what they return.
        verdict: The worst verdict.
        num_checked: Number of calls that were judged.
        num_bad: How many of them are wrong or suspect.
        times: Largest noise or difference in units of what is allowed.
        amplification: Largest factor by which relative changes grow; ``None`` if unknown.
        first: First step, rank directory and call with the worst verdict.
        reason: What was said of it.
    """

    api: str
    tensors: str
    verdict: Verdict = Verdict.CANNOT_TELL
    num_checked: int = 0
    num_bad: int = 0
    times: float = 0.0
    amplification: float | None = None
    first: tuple[int, str, str] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The reactions of a run.

    Attributes:
        sites: The worst first.
        num_files: Number of files with verdicts.
        num_damaged: Number of lines that could not be read, such as the last one of a killed process.
    """

    sites: Sequence[Site]
    num_files: int
    num_damaged: int = 0

    @property
    def bad(self) -> list[Site]:
        """Sites with calls that are wrong or suspect."""
        return [site for site in self.sites if site.num_bad]

    @property
    def num_judged(self) -> int:
        """Number of judged calls."""
        return sum(site.num_checked for site in self.sites)

    @property
    def by_condition(self) -> list[Site]:
        """Sites whose amplification is known, the most sensitive first."""
        known = [site for site in self.sites if site.amplification is not None]
        return sorted(known, key=lambda site: -(site.amplification or 0.0))


@dataclass
class _Builder:
    sites: dict[tuple[str, str], Site] = field(default_factory=dict[tuple[str, str], Site])
    num_damaged: int = 0

    def add(self, content: bytes, unit: str) -> None:
        for text in content.splitlines():
            line = _decoded(text)
            if line is None:
                self.num_damaged += 1
            else:
                self._add_line(line, unit)

    def _add_line(self, line: _Line, unit: str) -> None:
        call, _, phase = line.call.rpartition(".")
        api = f"{(names.stem_of(names.forward_of(line.call) or line.call) or call).rstrip('.')}.{phase}"
        site = self.sites.setdefault((api, line.tensors), Site(api=api, tensors=line.tensors))
        times = max((_number(output.times) for output in line.outputs), default=0.0)
        is_bad = line.verdict in (Verdict.WRONG, Verdict.SUSPECT)
        site.num_checked += line.verdict is not Verdict.CANNOT_TELL
        site.num_bad += is_bad
        factors = _factors(line)
        site.amplification = max(
            [*factors, *([] if site.amplification is None else [site.amplification])], default=None
        )
        order = list(Verdict)
        is_worse = order.index(line.verdict) < order.index(site.verdict)
        if is_worse or (line.verdict is site.verdict and times > site.times and not is_bad) or not site.reason:
            worst = max(line.outputs, key=lambda output: _number(output.times), default=None)
            site.reason = (worst.reason if worst is not None else line.reason) or ""
        if is_worse:
            site.verdict, site.first = line.verdict, (line.step, unit, line.call)
        site.times = max(site.times, times)


def read_ranking(run: Path) -> Ranking:
    """Return the reactions that the task ``free_benchmark`` has written below a run's directory.

    Raises:
        DumpError: there are none, or a file cannot be read.
    """
    builder, num_files = _Builder(), 0
    for unit in _units(run):
        path = unit / _FILE
        if not path.is_file():
            continue
        with reading(path):
            builder.add(read_plain(path, _MAX_BYTES), unit.name)
        num_files += 1
    if not num_files:
        raise MissingDumpError(
            f"{run}: holds no results of the task 'free_benchmark'; give the directory that its dump_path named"
        )
    order = list(Verdict)
    sites = sorted(builder.sites.values(), key=lambda site: (order.index(site.verdict), -site.times))
    return Ranking(sites=sites, num_files=num_files, num_damaged=builder.num_damaged)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """How one call of a step reacts.

    Attributes:
        call: Entry name.
        tensors: Dtypes and shapes.
        verdict: On its reaction.
        amplification: By how much relative changes of its inputs grow.
        times: Noise in units of what is allowed.
    """

    call: str
    tensors: str
    verdict: Verdict
    amplification: float
    times: float


@dataclass(frozen=True, kw_only=True)
class ConditionMap:
    """The amplification of the calls of one step of one rank, in the order in which they ended.

    Attributes:
        step: The step.
        unit: Directory of the rank.
        calls: Those whose amplification is known.
    """

    step: int
    unit: str
    calls: Sequence[Condition]

    @property
    def largest(self) -> Condition:
        """The call that amplifies most."""
        return max(self.calls, key=lambda call: call.amplification)


def holds_reactions(run: Path) -> bool:
    """Whether the task ``free_benchmark`` has written anything below a directory."""
    return any((unit / _FILE).is_file() for unit in _units(run))


def read_conditions(run: Path) -> ConditionMap | None:
    """Return the map of the step of which most calls were repeated; ``None`` if no amplification is known.

    Raises:
        DumpError: a file cannot be read.
    """
    found: list[ConditionMap] = []
    for unit in _units(run):
        if not (unit / _FILE).is_file():
            continue
        with reading(unit / _FILE):
            content = read_plain(unit / _FILE, _MAX_BYTES)
        lines = [line for text in content.splitlines() if (line := _decoded(text)) is not None]
        calls = [_condition(line) for line in sorted(lines, key=lambda line: line.position) if _factors(line)]
        if calls:
            found.append(ConditionMap(step=lines[0].step, unit=unit.name, calls=calls))
    return max(found, key=lambda each: len(each.calls), default=None)


def _condition(line: _Line) -> Condition:
    times = max((_number(output.times) for output in line.outputs), default=0.0)
    return Condition(
        call=line.call, tensors=line.tensors, verdict=line.verdict, amplification=max(_factors(line)), times=times
    )


def _factors(line: _Line) -> list[float]:
    return [_number(output.amplification) for output in line.outputs if output.amplification is not None]


def _units(run: Path) -> Iterable[Path]:
    if (run / _FILE).is_file():
        return [run]
    steps = find_steps(run)
    return [unit.directory for step in steps.values() for unit in find_units(step)]


def _decoded(text: bytes) -> _Line | None:
    try:
        return msgspec.json.decode(text, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    return float("inf") if value == "Infinity" else 0.0
