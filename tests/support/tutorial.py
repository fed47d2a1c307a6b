"""Follows a tutorial literally: writes its files, runs its commands in their order, and looks for what it shows.

A block with a ``title`` is a file. A block of ``console`` has commands after ``$``, each with what it prints below it;
``…`` stands for lines, or for the rest of a line, that the page leaves out. Other blocks are for the reader's own work.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "tutorials"
MOST_COMMANDS, MOST_WORDS, MOST_S = 3, 150, 180
"""What a reader may have to run and to read, and how long to wait, until the first verdict."""

_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VERDICT = re.compile(r"^(FAULT|DIFFERENT|FOUND|AGREE|nothing is wrong)\b")
_LIMIT_S = 900


@dataclass(frozen=True)
class Command:
    """A line of a shell, what the page shows below it, and what came before it on the page."""

    line: str
    shown: list[str]
    number: int
    num_words: int

    @property
    def gives_verdict(self) -> bool:
        return any(_VERDICT.match(line) for line in self.shown)


@dataclass(frozen=True)
class File:
    """A file that the page asks for."""

    name: str
    content: str


def steps(text: str) -> list[Command | File]:
    """Return the files and commands of a page, in its order."""
    found: list[Command | File] = []
    num_words, number, end = 0, 0, 0
    for match in _BLOCK.finditer(text):
        num_words += len(re.findall(r"\w[\w'.-]*", text[end : match.start()]))
        end = match.end()
        language, title, content = match.groups()
        if title:
            found.append(File(title, content))
        elif language == "console":
            for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
                number += 1
                line, *shown = part.splitlines()
                found.append(Command(line, shown, number, num_words))
    return found


def plain(line: str) -> str:
    """Drop what differs between two runs or two machines: directories, and numbers with a fraction or a unit."""
    line = re.sub(r"File \S*/", "File ", line)
    return re.sub(r"-?\d[\d,]*\.\d+(e[-+]\d+)?x?|-?\d+e[-+]\d+x?|\b\d[\d,]*x(?=\W|$)", "#", line).rstrip()


def missing(shown: list[str], printed: list[str]) -> list[str]:
    """Return the shown lines that were not printed, or not in this order, and a printed line that no ``…`` omits."""
    lost, place, may_skip = [], 0, False
    lines = [plain(line) for line in printed]
    for line in shown:
        if line.strip() == "…":
            may_skip = True
            continue
        start = plain(line)
        is_equal = (
            (lambda printed, start=start: printed.startswith(start[:-1])) if start.endswith("…") else start.__eq__
        )
        reach = range(place, len(lines) if may_skip else min(place + 1, len(lines)))
        where = next((at for at in reach if is_equal(lines[at])), None)
        if where is None:
            lost.append(line)
        else:
            place, may_skip = where + 1, False
    return lost if may_skip or place == len(lines) else [*lost, f"unshown: {printed[place]}"]


def follow(
    page: str, place: Path, programs: Path = Path(sys.executable).parent, **environment: str
) -> dict[str, float]:
    """Follow a page in an empty directory; return how much it takes to the first verdict.

    Args:
        page: Name of the page.
        place: Where to work.
        programs: Directory with the commands that the page calls.
        environment: Further variables.
    """
    variables = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment,
    }  # fmt: skip
    first: dict[str, float] = {}
    began = time.monotonic()
    for step in steps((PAGES / page).read_text()):
        if isinstance(step, File):
            (place / step.name).parent.mkdir(parents=True, exist_ok=True)
            (place / step.name).write_text(step.content)
            continue
        run = subprocess.run(
            ["bash", "-c", step.line], cwd=place, env=variables, capture_output=True, text=True, timeout=_LIMIT_S
        )
        assert run.returncode in {0, 1}, f"{step.line}\n{run.stdout[-3000:]}{run.stderr[-3000:]}"
        assert missing(step.shown, run.stdout.splitlines()) == [], f"{step.line}\n{run.stdout}{run.stderr}"
        if step.gives_verdict and not first:
            first = {"commands": step.number, "words": step.num_words, "seconds": time.monotonic() - began}
    return first
