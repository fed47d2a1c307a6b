"""What debuggers say of a pair of runs, through their command lines."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
MSPROBE = str(Path(sys.executable).parent / "msprobe")


@dataclass(frozen=True)
class Suspect:
    """A place that a debugger suspects.

    Attributes:
        step: Number of the step; ``None`` if it does not say.
        rank: Number of the rank; ``None`` in one process.
        entry: Name of the call as in the dump.
        kind: What it is, in the debugger's words.
        reason: Why, in the debugger's words.
        only_on: The side that makes the call, if only one does.
    """

    step: int | None
    rank: int | None
    entry: str
    kind: str = ""
    reason: str = ""
    only_on: str | None = None


@dataclass(frozen=True)
class Answer:
    """What a debugger says of a pair.

    Attributes:
        verdict: ``agree``, ``fault``, ``insufficient``; ``failed`` if it gave no answer.
        suspects: The best first.
        num_nodes: How many calls it judged; 0 if it does not say.
        num_flagged: How many of them it finds wrong.
        seconds: Wall time.
    """

    verdict: str
    suspects: Sequence[Suspect]
    num_nodes: int = 0
    num_flagged: int = 0
    seconds: float = 0.0


@lru_cache(1)
def has_command(name: str) -> bool:
    """Return whether ours has a command."""
    return subprocess.run([MSPROBE, name, "--help"], capture_output=True, check=False).returncode == 0


def ask_locate(target: Path, golden: Path, out: Path) -> Answer:
    """Ask ``msprobe locate``."""
    begin = time.perf_counter()
    command = [MSPROBE, "locate", str(target), str(golden), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    seconds = time.perf_counter() - begin
    path = out / "locate.json"
    if not path.exists():
        return Answer("failed", [Suspect(None, None, "", reason=(done.stderr or done.stdout)[-300:])], seconds=seconds)
    found = json.loads(path.read_text())
    suspects = [
        Suspect(one["step"], one["rank"], one["entry"], one["kind"], one["reason"], one.get("only_on"))
        for one in found["suspects"]
    ]
    return Answer(found["verdict"], suspects, found["calls"]["judged"], found["calls"]["beyond_rounding"], seconds)


def ask_compare(target: Path, golden: Path, out: Path) -> Answer:
    """Ask ``msprobe compare``: its first fault of the first step that has one, of ranks that which waited least."""
    begin = time.perf_counter()
    command = [MSPROBE, "compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--format", "parquet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    seconds = time.perf_counter() - begin
    path = out / "summary.json"
    if not path.exists():
        return Answer("failed", [Suspect(None, None, "", reason=(done.stderr or done.stdout)[-300:])], seconds=seconds)
    summary = json.loads(path.read_text())
    suspects: list[tuple[Any, Suspect]] = []
    for unit in summary["units"]:
        step, rank = _numbers(unit["label"])
        for place, name in enumerate(("first_fault", "first_lone_call")):
            if (fault := unit[name]) is not None:
                reason = fault["findings"][0]["message"] if fault["findings"] else ""
                key = (step or 0, place, fault.get("num_communications", 0), fault.get("position", 0))
                suspects.append((key, Suspect(step, rank, fault["entry"], "", reason, fault["only_on"])))
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
    """Return the step and the rank of a label as ``step0/rank1``."""
    parts = label.split("/")
    step = next((int(p[4:]) for p in parts if p.startswith("step") and p[4:].isdigit()), None)
    rank = next((int(p[4:]) for p in parts if p.startswith("rank") and p[4:].isdigit()), None)
    return step, rank


def ask_ours(target: Path, golden: Path, out: Path) -> Answer:
    """Ask ``msprobe locate``, or ``msprobe compare`` where there is no such command."""
    return ask_locate(target, golden, out) if has_command("locate") else ask_compare(target, golden, out)


class Nesting:
    """Which module encloses which call, as the dumps of a pair say."""

    def __init__(self, target: Path, golden: Path) -> None:
        self._runs = {"target": target, "golden": golden}
        self._read: dict[tuple[str, int | None, int | None], Mapping[str, str | None]] = {}

    def chain(self, suspect: Suspect) -> Iterator[str]:
        """Yield the entry, and the names of what encloses it, innermost first."""
        entry: str | None = suspect.entry
        sides = [suspect.only_on] if suspect.only_on in self._runs else ["target", "golden"]
        parents = next((p for side in sides if entry in (p := self._parents(side, suspect))), {})
        seen: set[str] = set()
        while entry is not None and entry not in seen:
            yield entry
            seen.add(entry)
            entry = parents.get(entry)

    def _parents(self, side: str, suspect: Suspect) -> Mapping[str, str | None]:
        key = (side, suspect.step, suspect.rank)
        if key not in self._read:
            step = "*" if suspect.step is None else f"step{suspect.step}"
            rank = "*" if suspect.rank is None else f"rank{suspect.rank}"
            parents: dict[str, str | None] = {}
            for path in sorted(self._runs[side].glob(f"{step}/{rank}/construct.json")):
                parents |= json.loads(path.read_text())
            self._read[key] = parents
        return self._read[key]
