"""Feed every reader with damaged files, and print what breaks.

    python -m fuzz [--seconds 600] [--seed 0] [--only NAME …] [--keep DIRECTORY]     (in tests/, as `make fuzz` does)

Sound files of every kind are damaged again and again: bits flipped, bytes cut out, doubled and put elsewhere, files cut
off, and, in JSON, values replaced by values of other types, keys doubled and nesting deepened. A sentence is an answer,
as is a result; any other exception, a character that commands the terminal, more than ten seconds of work, or memory
beyond 2 GiB is a defect. Files that showed one are kept, and the seed repeats the run.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

for place in ("", "support"):
    sys.path.insert(0, str(Path(__file__).parents[1] / place))

from fuzz import dumps  # noqa: E402  # what is above makes it importable
from fuzz.damage import answer_of  # noqa: E402
from fuzz.targets import TARGETS  # noqa: E402

DUMPS = "dumps"
_CPU_SECONDS, _SECONDS = 10, 120
"""What one may take: of work, and of waiting on a machine that has much else to do."""
_MEMORY_BYTES = 2 << 30


class Defects:
    """What was found, each kind once with the files that showed it."""

    def __init__(self, keep: Path) -> None:
        self.counts: Counter[str] = Counter()
        self._keep = keep

    def add(self, name: str, error: BaseException, directory: Path) -> None:
        """Keep what was damaged, and print where it failed."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{name}: {type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[-300:]}"
        if not self.counts[what]:
            shutil.copytree(directory, self._keep / f"defect{len(self.counts)}", dirs_exist_ok=True)
            traceback.print_exception(error)
        self.counts[what] += 1


def run_one(name: str, seeds: Path, rng: random.Random, root: Path, answers: Counter[str]) -> None:
    """Damage what is sound and use it; raise what is no answer.

    Args:
        name: Of a target, or `DUMPS`.
        seeds: What is sound, a directory for each target.
        rng: Decides all.
        root: An empty directory; what was damaged stays in ``damaged`` there.
        answers: Counted.
    """
    (root / "scratch").mkdir()
    if name == DUMPS:
        sound = rng.choice(sorted((seeds / DUMPS).iterdir()))
        shutil.copytree(sound, root / "damaged")
        dumps.damage(rng, root / "damaged")
        dumps.use(root / "damaged", sound, root / "scratch", answers)
        return
    shutil.copytree(seeds / name, root / "damaged")
    TARGETS[name].damage(rng, root / "damaged")
    answers[f"{name}: {answer_of(lambda: TARGETS[name].use(root / 'damaged'))}"] += 1


def make_seeds(directory: Path, names: Sequence[str]) -> None:
    """Write what is sound, and use it once, which must have no other answer than a result."""
    for name in names:
        if name == DUMPS:
            dumps.seeds(directory / name)
            continue
        (directory / name).mkdir(parents=True)
        TARGETS[name].make(directory / name)
        shutil.copytree(directory / name, directory / "once")
        if answer_of(lambda name=name: TARGETS[name].use(directory / "once")) != "result":
            raise AssertionError(f"what {name} begins with is not sound")
        shutil.rmtree(directory / "once")


def fuzz(names: Sequence[str], seed: int, is_over: Callable[[int], bool], defects: Defects) -> Counter[str]:
    """Use each in turn until it is over; return the answers."""
    rng, answers, number = random.Random(seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        make_seeds(root / "seeds", names)
        while not is_over(number):
            work = root / "work"
            work.mkdir()
            name = names[number % len(names)]
            number += 1
            signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
            signal.alarm(_SECONDS)
            try:
                run_one(name, root / "seeds", rng, work, answers)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is no answer
                defects.add(name, error, work / "damaged")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.alarm(0)
                shutil.rmtree(work)
    return answers


def _fail_late(_number: int, _frame: object) -> None:
    raise AssertionError(f"took more than {_CPU_SECONDS} seconds of work, or {_SECONDS} in all")


def main() -> None:
    """Run, and exit with 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="+", default=[*TARGETS, DUMPS], choices=[*TARGETS, DUMPS])
    parser.add_argument("--keep", type=Path, default=Path("fuzz_defects"))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _fail_late)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES + (1 << 30), -1))  # libraries are mapped later
    defects = Defects(asked.keep)
    end = time.monotonic() + asked.seconds
    answers = fuzz(asked.only, asked.seed, lambda _: time.monotonic() > end, defects)
    for answer, number in sorted(answers.items()):
        print(f"{number:>8}  {answer}")
    for defect, number in defects.counts.most_common():
        print(f"DEFECT {number:>4}  {defect}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{answers.total()} answers, {defects.counts.total()} defects, seed {asked.seed}; peak {peak} MiB")
    sys.exit(1 if defects.counts else 0)


if __name__ == "__main__":
    main()
