"""Reproduce published bugs, let the commands find them, and print how many they find.

    python -m bench.bugs [--bug SUBSTRING] [--half tuned|held-out] [--kernels same|other|both] [--mode MODE]
                         [--healthy] [--peers] [--reference COMMAND] [--work DIR] [--out FILE] [--json FILE] [--jobs 1]

Golden is the code that fixed a bug, target the code that had it: the releases themselves where both run here, each in
a directory of its own (`bench.bugs.releases`), or the defect alone in today's code. ``--kernels other``: the target
also runs on other kernels, as on another device, so that every value differs by rounding. Bugs are in two halves by
their names; wrong answers about the held out half must not change the judge. ``--peers`` asks other means of
comparison about the same pairs (`bench.bugs.peers`), with ``--reference`` also the established tool.

Prints Markdown; bugs that are not found stay in the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from bench.bugs.bug import Bug, Half, Side, Variant
from bench.bugs.catalogue import bugs, subject_of
from bench.bugs.checks import ALWAYS, CHECKS
from bench.bugs.healthy import HEALTHY, Pair
from bench.bugs.observed import file_of
from bench.bugs.peers import PeerAnswer, ask_peers
from bench.bugs.record import KERNELS
from bench.bugs.releases import paths_of
from bench.bugs.result import Result
from bench.bugs.table import render
from bench.faults.answers import MSPROBE, TIMEOUT_S, Nesting, ask_compare, ask_locate
from bench.faults.scoring import score
from bench.faults.single import file_name
from bench.faults.truth import Fault, Phase
from msprobe_core.judge.noise.profile_file import PROFILE_FILE

ROOT = Path(__file__).parents[2]
_LOCKS: defaultdict[Path, Lock] = defaultdict(Lock)
"""One for each golden run, which pairs share."""


OBSERVED = "--observed"


@dataclass(frozen=True)
class Asked:
    """How pairs are made, and who is asked.

    Attributes:
        work: Directory of recordings.
        mode: What is recorded of tensors.
        peers: Whether other means of comparison are asked too.
        reference: Command of the established tool; ``None`` to leave it out.
    """

    work: Path
    mode: str = "statistics"
    peers: bool = False
    reference: Path | None = None

    @property
    def options(self) -> Sequence[str]:
        """Options for all recordings."""
        return ("--mode", self.mode, *([OBSERVED] if self.peers else ()))

    def ask(self, target: Path, golden: Path, subject: Bug | Variant) -> dict[str, PeerAnswer]:
        """Ask peers about a pair."""
        if not self.peers:
            return {}
        truth = subject.truth if isinstance(subject, Bug) else None
        return ask_peers(target, golden, subject.world, truth, self.reference)


def recorded(bug: Bug | Variant, side: Side, place: Path, *options: str) -> float:
    """Record a side in a process of its own, unless it was, and return how long that took in seconds."""
    if place.exists() and (OBSERVED not in options or file_of(place, 0).exists()):
        return 0.0
    shutil.rmtree(place, ignore_errors=True)
    begin = time.perf_counter()
    place.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(str(one) for one in (*paths_of(bug.requirements(side)), ROOT))
    command = [sys.executable, "-m", "bench.bugs.record", bug.name, side.value, str(place), *options]
    _run_apart(command, {**os.environ, "PYTHONPATH": path}, place)
    return time.perf_counter() - begin


def _run_apart(command: Sequence[str], environment: dict[str, str], place: Path) -> None:
    """Run a command with all processes that it starts; remove the recording in ``place`` if it fails."""
    with tempfile.TemporaryFile("w+") as said:  # not a pipe, which a process that is left over would keep open
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            failed = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            failed = process.wait()
        if failed:
            shutil.rmtree(place, ignore_errors=True)
            said.seek(0)
            raise RuntimeError(f"{' '.join(command[1:5])} failed: {said.read().strip()[-2000:]}")


def golden_of(bug: Bug | Variant, asked: Asked, *options: str) -> tuple[Path, float]:
    """Record and calibrate the golden run of a bug; return its directory and the seconds it took."""
    place = asked.work / file_name(bug.name) / "-".join(("golden", asked.mode, *options[1:])) / "run"
    with _LOCKS[place]:
        return place, _golden(bug, place, *asked.options, *options)


def _golden(bug: Bug | Variant, place: Path, *options: str) -> float:
    seconds = recorded(bug, Side.GOLDEN, place, *options)
    if not (place / PROFILE_FILE).exists():  # also if a run before was stopped in between
        begin = time.perf_counter()
        _run_apart([MSPROBE, "calibrate", str(place)], dict(os.environ), place)
        seconds += time.perf_counter() - begin
    return seconds


def run(bug: Bug, kernels: str, asked: Asked) -> Result:
    """Reproduce a bug, and ask all commands."""
    golden, seconds = golden_of(bug, asked)
    target = asked.work / file_name(bug.name) / f"{kernels}-{asked.mode}" / "run"
    seconds += recorded(bug, Side.TARGET, target, *asked.options, "--kernels", kernels)
    answer = ask_locate(target, golden, target.with_name("locate"))
    # They say the same of the target on other kernels.
    names = (*ALWAYS, *bug.checks) if kernels == "same" else ()
    return Result(
        bug.name,
        kernels,
        fingerprints(target) != fingerprints(golden),
        answer,
        ask_compare(target, golden, target.with_name("compare")),
        score(answer, Fault(bug.name, Phase.FORWARD, (), None), bug.truth, Nesting(target, golden)),
        {name: CHECKS[name](target, golden, target.with_name(name)) for name in names},
        seconds,
        asked.ask(target, golden, bug),
    )


def run_healthy(pair: Pair, asked: Asked) -> Result:
    """Record both sides of a healthy pair, and ask whether they are."""
    subject = subject_of(pair.subject)
    steps = ("--steps", str(pair.steps))
    golden, seconds = golden_of(subject, asked, *steps)
    target = asked.work / file_name(pair.name) / "run"
    # Made as a target is, but from the code without the defect.
    options = (*asked.options, "--kernels", pair.kernels, "--plain", *steps)
    seconds += recorded(pair.other(subject), pair.side, target, *options)
    return Result(
        pair.name,
        pair.kernels,
        fingerprints(target) != fingerprints(golden),
        ask_locate(target, golden, target.with_name("locate")),
        ask_compare(target, golden, target.with_name("compare")),
        recording_seconds=seconds,
        peers=asked.ask(target, golden, subject),
    )


def fingerprints(place: Path) -> list[str]:
    """Return a digest of the results of each rank."""
    return [path.read_text() for path in sorted(place.parent.glob(f"{place.name}.*.fingerprint"))]


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    asked = _arguments(argv)
    kernels = KERNELS if asked.kernels == "both" else (asked.kernels,)
    chosen = [one for one in bugs().values() if asked.bug in one.name and asked.half in (None, one.half)]
    pairs = [one for one in HEALTHY if asked.bug in one.name] if asked.healthy else []
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(asked.jobs) as pool:
        work = (asked.work or Path(scratch)).resolve()
        # Both targets of a bug share its golden run.
        how = Asked(work, asked.mode, asked.peers or asked.reference is not None, asked.reference)
        tasks = [[partial(run, bug, one, how) for one in kernels] for bug in chosen]
        tasks += [[partial(run_healthy, pair, how)] for pair in pairs]
        for each in as_completed([pool.submit(_all, one) for one in tasks]):
            results += each.result()
            _write(results, asked)
    print(_page(results))
    if len(results) < sum(map(len, tasks)):
        raise SystemExit("some pairs could not be recorded")


def _page(results: Sequence[Result]) -> str:
    """Return the tables, in the order of the catalogue."""
    order = [*bugs(), *(pair.name for pair in HEALTHY)]
    found = sorted(results, key=lambda one: (order.index(one.name), one.kernels != "same"))
    return render(bugs(), *([one for one in found if (one.name in bugs()) is is_bug] for is_bug in (True, False)))


def _write(results: Sequence[Result], asked: argparse.Namespace) -> None:
    """Write what there is so far, so that a long run can be followed."""
    if asked.out:
        asked.out.write_text(_page(results))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in results], indent=1))


def _all(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run tasks one after the other, and return what they found; nothing for what cannot be recorded."""
    return [result for task in tasks if (result := _said(task)) is not None]


def _said(task: Callable[[], Result]) -> Result | None:
    try:
        result = task()
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        return None
    print(f"{result.name}, {result.kernels} kernels: {result.locate.verdict}", file=sys.stderr, flush=True)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.bugs", description=(__doc__ or "").splitlines()[0])
    halves = {half.value.replace(" ", "-"): half for half in Half}
    parser.add_argument("--bug", default="", help="bugs and healthy pairs whose name contains this")
    parser.add_argument("--half", type=halves.__getitem__, help=" or ".join(halves))
    parser.add_argument("--kernels", choices=(*KERNELS, "both"), default="both", help="of the target (%(default)s)")
    parser.add_argument("--mode", choices=("statistics", "sketch", "tensor"), default="statistics")
    parser.add_argument("--healthy", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--peers", action="store_true", help="also ask other means of comparison")
    parser.add_argument("--reference", type=Path, metavar="COMMAND", help="msprobe of a mindstudio-probe: asks it too")
    parser.add_argument("--work", type=Path, help="keeps recordings there; a temporary directory by default")
    parser.add_argument("--out", type=Path, help="file for the tables, as a page")
    parser.add_argument("--json", type=Path, help="file for all answers")
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args(argv)
