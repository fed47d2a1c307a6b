"""Feed the readers of runs with damaged files, and print what breaks.

    python bench/fuzz_readers.py [--seconds 600] [--seed 0] [--keep DIRECTORY]

Real dumps of every kind are damaged again and again: bits flipped, bytes cut out, doubled and put elsewhere, files cut
off, and, in JSON, values replaced by values of other types, keys doubled and nesting deepened. Each damaged file is
read as a dump, as stacks and as nesting, compared with the sound one on the command line, and converted. A sentence is
an answer, as is a result; any other exception, a character that commands the terminal, more than ten seconds, or memory
beyond 2 GiB is a defect. Files that showed one are kept, and the seed repeats the run.
"""

import argparse
import contextlib
import io
import json
import logging
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msprobe_core.cli import main as run_command
from msprobe_core.compare.reading import read_dump
from msprobe_core.errors import MsprobeError
from msprobe_core.store.convert import convert
from msprobe_core.store.json_reader import read_parents, read_stacks

DATA = Path(__file__).parents[1] / "tests" / "data" / "mindstudio_probe"
NAMES = ("dump.json", "debug.json", "stack.json", "construct.json", "dump.arrow", "stack.arrow", "construct.arrow")
WORDS = (
    *(b"NaN", b"-Infinity", b"null", b"true", b"1e999", b"9" * 5000, b"-", b"0.", b'"\\ud800"', b"\\", b"\x00"),
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"\xff\xfe", b"\xef\xbb\xbf", b'"type":', b'"shape":', b'"value":'),
)
ODD = (
    *(None, True, 0, -1, 2**70, 10**400, 1.5, float("nan"), float("inf"), [], {}, [[]], {"type": "error"}, {"type": 3}),
    *("", "NaN", "x" * 70_000, "\ud800", "\x1b[2J", "\u202e", "=1+1", "../../etc/passwd", "a\nb\rc"),
    *({"type": "torch.Tensor", "dtype": "x", "shape": [-1, 2**70]}, {"type": "float", "value": [float("nan")]}),
)


def seeds(root: Path) -> list[Path]:
    """Return directories of one rank each, in both formats."""
    found = [path.parent for name in ("dump.json", "debug.json") for path in sorted(DATA.rglob(name))]
    made = []
    for number, directory in enumerate(found):
        shutil.copytree(directory, root / f"json{number}", ignore=shutil.ignore_patterns("*.pt"))
        made.append(root / f"json{number}")
        if (directory / "dump.json").exists():
            convert(root / f"json{number}", root / f"arrow{number}")
            made.append(root / f"arrow{number}")
    return made


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return bytes that are damaged in one to eight places."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 64, 1000))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = data[(start := rng.randrange(len(data) + 1)) : start + size]
        elif kind == 4:
            data[at:at] = rng.choice(WORDS)
        elif kind == 5:
            data[at : at + size] = rng.randbytes(size)
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def damage_json(rng: random.Random, content: bytes) -> bytes:
    """Return JSON in which one to four values were replaced, moved, doubled or put deeper."""
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = tree
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            key = rng.choice(list(keys))
            if isinstance(place[key], dict | list) and rng.random() < 0.85:
                place = place[key]
                continue
            kind = rng.randrange(4)
            if kind == 0 and isinstance(place, dict):
                place[str(rng.choice(("type", "", "data", "x", "execution", "\ud800", "=cmd", "a" * 300)))] = place.pop(
                    key
                )
            elif kind == 1:
                deep = place[key]
                for _ in range(rng.choice((1, 3, 100, 600, 1500))):
                    deep = [deep] if rng.random() < 0.5 else {"a": deep}
                place[key] = deep
            else:
                place[key] = rng.choice(ODD)
            break
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        text = json.dumps(tree, indent=rng.choice((None, 1)))
    except (RecursionError, ValueError):
        return content
    finally:
        sys.setrecursionlimit(limit)
    if rng.random() < 0.1:  # a key twice
        text = text.replace('"data":', '"task": [], "data": {}, "data":', 1)
    return text.encode("utf-8", "replace")


def damage(rng: random.Random, directory: Path) -> None:
    """Damage one file of a dump."""
    path = rng.choice([directory / name for name in NAMES if (directory / name).exists()])
    content = path.read_bytes()
    is_json = path.suffix == ".json" and rng.random() < 0.6
    path.write_bytes(damage_json(rng, content) if is_json else damage_bytes(rng, content))


def answer_of(step: Callable[[], object]) -> str:
    """Return what came of it; raise what is no answer."""
    try:
        step()
    except MsprobeError as error:
        if not str(error) or "\n" in str(error) or len(str(error)) > 3000:
            raise AssertionError(f"no sentence: {str(error)[:200]!r}") from error
        return type(error).__name__
    return "result"


def use(directory: Path, sound: Path, scratch: Path, answers: Counter) -> None:
    """Read, compare and convert; raise what is no answer."""
    steps = {
        "read": lambda: [(dump := read_dump(directory)).frame, dump.stacks, dump.parents],
        "stacks": lambda: read_stacks(directory / "stack.json"),
        "parents": lambda: read_parents(directory / "construct.json"),
        "convert": lambda: convert(directory, scratch / "made"),
    }
    for name, step in steps.items():
        answers[f"{name}: {answer_of(step)}"] += 1
        shutil.rmtree(scratch / "made", ignore_errors=True)
    arguments = ["compare", "-tp", str(directory), "-gp", str(sound), "-o", str(scratch / "out"), "--xlsx"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            run_command(arguments if answers["compare: run"] % 10 == 0 else arguments[:-1])
    except SystemExit as ended:
        answers[f"compare: exit {ended.code}"] += 1
    answers["compare: run"] += 1
    text = said.getvalue()
    if "internal error" in text or "Traceback" in text:
        raise AssertionError(text[-2000:])
    if odd := {c for c in text if c != "\n" and not c.isprintable()}:
        raise AssertionError(f"said to the terminal: {odd!r} in {text[:300]!r}")
    shutil.rmtree(scratch / "out", ignore_errors=True)
    if list(scratch.iterdir()):
        raise AssertionError(f"left behind: {sorted(scratch.iterdir())}")


def fail_late(_number: int, _frame: object) -> None:
    """Say that it took too long."""
    raise AssertionError("took more than ten seconds")


def main() -> None:
    """Run, and exit with 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz_defects"))
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rng = random.Random(arguments.seed)
    answers: Counter = Counter()
    defects: Counter = Counter()
    num_runs = 0
    signal.signal(signal.SIGALRM, fail_late)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        found = seeds(root / "seeds")
        (root / "scratch").mkdir()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), -1))
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            sound = rng.choice(found)
            directory = root / "damaged"
            shutil.copytree(sound, directory)
            damage(rng, directory)
            signal.alarm(10)
            try:
                use(directory, sound, root / "scratch", answers)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                where = traceback.extract_tb(error.__traceback__)[-1]
                defect = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
                if not defects[defect]:
                    shutil.copytree(directory, arguments.keep / f"defect{len(defects)}", dirs_exist_ok=True)
                    traceback.print_exc()
                defects[defect] += 1
            signal.alarm(0)
            num_runs += 1
            for used_up in (directory, root / "scratch"):
                shutil.rmtree(used_up, ignore_errors=True)
            (root / "scratch").mkdir()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{num_runs} damaged dumps, seed {arguments.seed}; peak {peak} MiB")
    for answer, number in sorted(answers.items()):
        print(f"{number:>8}  {answer}")
    for defect, number in defects.most_common():
        print(f"DEFECT {number:>4}  {defect}")
    sys.exit(1 if defects else 0)


if __name__ == "__main__":
    main()
