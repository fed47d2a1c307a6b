"""Whole dumps: read, compared on the command line with the sound one, and converted."""

import contextlib
import io
import random
import shutil
from collections import Counter
from pathlib import Path

from fuzz.damage import answer_of, damage_file
from msprobe_core.cli import main as run_command
from msprobe_core.store.convert import convert
from msprobe_core.store.json_reader import read_parents, read_stacks
from msprobe_core.store.reading import read_dump

DATA = Path(__file__).parents[1] / "data" / "mindstudio_probe"
NAMES = ("dump.json", "debug.json", "stack.json", "construct.json", "dump.arrow", "stack.arrow", "construct.arrow")


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


def damage(rng: random.Random, directory: Path) -> None:
    """Damage one file of a dump."""
    damage_file(rng, rng.choice([directory / name for name in NAMES if (directory / name).exists()]))


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
        raise AssertionError(f"files were left: {sorted(scratch.iterdir())}")
