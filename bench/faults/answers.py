"""Answers of debuggers about a pair of runs, obtained through their command lines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
MSPROBE = str(Path(sys.executable).parent / "msprobe")
LAYOUT_FILE = "layout.yaml"
"""Layout file in the target's directory, if the target is distributed differently than the golden run."""


@dataclass(frozen=True)
class Suspect:
    """A place that a debugger suspects.

    Attributes:
        step: Number of the step; ``None`` if the debugger does not name it.
        ranks: Numbers of the ranks; empty in one process.
        entry: Entry name of the call in the dump.
        kind: Type of fault, in the debugger's words.
        reason: Reason, in the debugger's words.
        only_on: The side that makes the call, if only one does.
    """

    step: int | None
    ranks: Sequence[int]
    entry: str
    kind: str = ""
    reason: str = ""
    only_on: str | None = None


@dataclass(frozen=True)
class Answer:
    """A debugger's answer about a pair.

    Attributes:
        verdict: ``agree``, ``fault``, ``insufficient``; ``failed`` if it gave no answer.
        suspects: Strongest first.
        num_nodes: Number of calls that it judged; 0 if unknown.
        num_flagged: Number of these that it finds wrong.
        seconds: Wall time.
    """

    verdict: str
    suspects: Sequence[Suspect]
    num_nodes: int = 0
    num_flagged: int = 0
    seconds: float = 0.0


Ask = Callable[[Path, Path, Path], Answer]
"""Runs a debugger on the directories of target and golden run; the third is for its output."""


@lru_cache
def has_command(name: str) -> bool:
    """Return whether our command line has a command."""
    return subprocess.run([MSPROBE, name, "--help"], capture_output=True, check=False).returncode == 0


def ask_locate(target: Path, golden: Path, out: Path) -> Answer:
    """Run ``msprobe locate``."""
    begin = time.perf_counter()
    command = [MSPROBE, "locate", str(target), str(golden), "-o", str(out)]
    if (layout := target / LAYOUT_FILE).exists():
        command += ["--layout", str(layout)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    seconds = time.perf_counter() - begin
    path = out / "locate.json"
    if not path.exists():
        return Answer("failed", [Suspect(None, (), "", reason=(done.stderr or done.stdout)[-300:])], seconds=seconds)
    found = json.loads(path.read_text())
    suspects = [
        Suspect(one["step"], one["ranks"], one["entry"], one["kind"], one["reason"], one.get("only_on"))
        for one in found["suspects"]
    ]
    calls = found["calls"]
    return Answer(found["verdict"], suspects, calls["judged"], calls["beyond_rounding"], seconds)


def ask_compare(target: Path, golden: Path, out: Path) -> Answer:
    """Run ``msprobe compare``: its first fault in the first step that has one, on the rank that waited least."""
    begin = time.perf_counter()
    command = [MSPROBE, "compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--format", "parquet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    seconds = time.perf_counter() - begin
    path = out / "summary.json"
    if not path.exists():
        return Answer("failed", [Suspect(None, (), "", reason=(done.stderr or done.stdout)[-300:])], seconds=seconds)
    summary = json.loads(path.read_text())
    suspects: list[tuple[Any, Suspect]] = []
    for unit in summary["units"]:
        step, rank = _numbers(unit["label"])
        for place, name in enumerate(("first_fault", "first_lone_call")):
            if (fault := unit[name]) is not None:
                reason = fault["findings"][0]["message"] if fault["findings"] else ""
                key = (step or 0, place, fault.get("num_communications", 0), fault.get("position", 0))
                suspects.append(
                    (key, Suspect(step, () if rank is None else (rank,), fault["entry"], "", reason, fault["only_on"]))
                )
    suspects.sort(key=lambda item: item[0])
    nodes = [unit["nodes"] for unit in summary["units"]]
    return Answer(
        "agree" if summary["agrees"] else "fault",
        [suspect for _, suspect in suspects][:10],
        sum(sum(counts.values()) for counts in nodes),
        sum(counts.get("error", 0) + counts.get("unmatched", 0) for counts in nodes),
        seconds,
    )


def _numbers(label: str) -> tuple[int | None, int | None]:
    """Return step and rank from a label such as ``step0/rank1``."""
    parts = label.split("/")
    step = next((int(p[4:]) for p in parts if p.startswith("step") and p[4:].isdigit()), None)
    rank = next((int(p[4:]) for p in parts if p.startswith("rank") and p[4:].isdigit()), None)
    return step, rank


def ask_ours(target: Path, golden: Path, out: Path) -> Answer:
    """Run ``msprobe locate``, or ``msprobe compare`` in versions without ``locate``."""
    return ask_locate(target, golden, out) if has_command("locate") else ask_compare(target, golden, out)


@dataclass(frozen=True)
class Reference:
    """Runs ``compare -da`` of mindstudio-probe, step by step until one has a difference.

    Attributes:
        command: Its command, in a separate environment. It reads our dumps, in directories named as it expects.
    """

    command: Path

    def __call__(self, target: Path, golden: Path, out: Path) -> Answer:
        begin = time.perf_counter()
        suspects: list[Suspect] = []
        num_nodes = num_flagged = 0
        for number, step in enumerate(sorted(path.name for path in golden.glob("step*"))):
            sides = [_under_their_names(run / step, out / name / step) for run, name in ((target, "t"), (golden, "g"))]
            results = out / step
            command = [str(self.command), "compare", "-tp", sides[0], "-gp", sides[1], "-da", "-o", str(results)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            if done.returncode:
                return Answer("failed", [Suspect(None, (), "", reason=done.stderr[-300:])])
            for path in results.glob("compare_result_*.json"):
                same = [one["is_same"] for one in json.loads(path.read_text()).values()]
                num_nodes += len(same)
                num_flagged += same.count(False)
            for path in results.glob("diff_analyze_*.json"):
                for rank, nodes in json.loads(path.read_text()).items():
                    ranks = (int(rank.removeprefix("rank_")),) if len(list((golden / step).iterdir())) > 1 else ()
                    suspects += [Suspect(number, ranks, node["op_name"]) for node in nodes]
            if suspects:
                break
        verdict = "fault" if suspects else "agree"
        return Answer(verdict, suspects, num_nodes, num_flagged, time.perf_counter() - begin)


def _under_their_names(step: Path, copy: Path) -> str:
    """Copy a step's dumps under its names; a single process, which has no rank with us, gets its name for that case."""
    units = sorted(path for path in step.iterdir() if path.is_dir())
    for unit in units:
        shutil.copytree(unit, copy / (unit.name if unit.name.startswith("rank") else "rank"))
    return str(copy)


class Nesting:
    """Enclosing modules of calls, from the dumps of a pair."""

    def __init__(self, target: Path, golden: Path) -> None:
        self._runs = {"target": target, "golden": golden}
        self._read: dict[tuple[str, int | None, Sequence[int]], Mapping[str, str | None]] = {}

    def chain(self, suspect: Suspect) -> Iterator[str]:
        """Yield the entry, then the names of its enclosing calls, innermost first."""
        entry: str | None = suspect.entry
        sides = [suspect.only_on] if suspect.only_on in self._runs else ["target", "golden"]
        parents = next((p for side in sides if entry in (p := self._parents(side, suspect))), {})
        seen: set[str] = set()
        while entry is not None and entry not in seen:
            yield entry
            seen.add(entry)
            entry = parents.get(entry)

    def _parents(self, side: str, suspect: Suspect) -> Mapping[str, str | None]:
        key = (side, suspect.step, tuple(suspect.ranks))
        if key not in self._read:
            step = "*" if suspect.step is None else f"step{suspect.step}"
            rank = f"rank{suspect.ranks[0]}" if suspect.ranks else "*"
            parents: dict[str, str | None] = {}
            for path in sorted(self._runs[side].glob(f"{step}/{rank}/construct.json")):
                parents |= json.loads(path.read_text())
            self._read[key] = parents
        return self._read[key]
