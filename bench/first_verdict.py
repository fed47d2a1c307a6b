"""How near the first verdict is: each tutorial followed literally, in a fresh environment made of the built wheels.

    make release
    python bench/first_verdict.py [--wheels dist] [--from-index] [PAGE ...]

The packages that a page asks for are installed from the wheels, its files are written, and its commands run in an empty
directory (in a new clone, where the page asks for one). What each command prints is compared with what the page shows.
Other libraries are those of the development environments, so that nothing is downloaded; with ``--from-index`` pip
installs them too. Counted are commands and words of the page until the first verdict, and the time since the first
command.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from tutorial import MOST_COMMANDS, MOST_S, MOST_WORDS, PAGES, follow  # noqa: E402

_LIBRARIES = {"mindspore_port.md": ".venv-mindspore", "rollout.md": ".venv-verl"}
"""Development environments whose libraries a page needs; that of PyTorch else."""
_IN_CLONE = {"rollout.md": ("msprobe-core", "msprobe-pytorch", "msprobe-verl")}
"""Pages that are followed in a clone, with the packages that ``make`` installs there."""
_BUILDS = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
"""For pages that install a package of their own: with what is there, which is what the name of the first one says."""


def main() -> int:
    """Follow the pages; 1 if one misses a target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="what `make release` has built")
    parser.add_argument("--from-index", action="store_true", help="install other libraries from the package index")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as first_fault.md; all by default")
    given = parser.parse_args()
    pages = given.pages or sorted(path.name for path in PAGES.glob("*.md") if path.name != "index.md")
    print(
        f"Targets: {MOST_COMMANDS} commands, {MOST_WORDS} words, {MOST_S} s. Load: {os.getloadavg()[0]:.1f}", flush=True
    )
    print("| tutorial | commands | words | seconds | installing, s | load |\n|---|---|---|---|---|---|", flush=True)
    missed = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as place:
            began = time.monotonic()
            programs = installed(page, Path(place) / "environment", given.wheels, is_whole=given.from_index)
            installing = time.monotonic() - began
            variables = {"RAY_TMPDIR": f"{place}/ray", **({} if given.from_index else _BUILDS)}
            first = follow(page, workplace(page, Path(place)), programs, **variables)
        missed += first["commands"] > MOST_COMMANDS or first["words"] > MOST_WORDS or first["seconds"] > MOST_S
        numbers = (first["commands"], first["words"], first["seconds"], installing, os.getloadavg()[0])
        print(f"| {page} | {' | '.join(f'{number:.0f}' for number in numbers)} |", flush=True)
    return int(missed > 0)


def workplace(page: str, place: Path) -> Path:
    """Return the directory to work in: empty, or a clone."""
    work = place / "work"
    if page in _IN_CLONE:
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), work], check=True)
    else:
        work.mkdir()
    return work


def installed(page: str, environment: Path, wheels: Path, *, is_whole: bool) -> Path:
    """Install what the page asks for into a new environment; returns the directory of its programs."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    programs = environment / "bin"
    asked = re.search(r"`pip install ((?:msprobe-\w+ ?)+)`", (PAGES / page).read_text())
    packages = _IN_CLONE.get(page) or (asked[1].split() if asked else ())
    libraries = ROOT / _LIBRARIES.get(page, ".venv")
    how = [] if is_whole else ["--no-deps", "--no-index"]
    command = [programs / "python", "-m", "pip", "install", "--quiet", "--find-links", wheels, *how, *packages]
    subprocess.run(command, check=True)
    if not is_whole:  # afterwards, since it has a msprobe too, which pip would take for what was asked for
        borrow(libraries, environment)
    return programs


def borrow(libraries: Path, environment: Path) -> None:
    """Let a new environment see what another has installed, below what is installed in it, and run its programs."""
    (own,) = environment.glob("lib/python*/site-packages")
    asked = [
        libraries / "bin" / "python",
        "-c",
        "import sys; print('\\n'.join(p for p in sys.path if 'site-packages' in p))",
    ]
    (own / "zz_borrowed.pth").write_text(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    for program in (libraries / "bin").iterdir():
        there = environment / "bin" / program.name
        if there.exists() or not program.is_file():
            continue
        first, _, rest = program.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first and b"msprobe" not in program.name.encode():
            there.write_bytes(b"#!" + bytes(environment / "bin" / "python") + b"\n" + rest)
            there.chmod(there.stat().st_mode | stat.S_IXUSR)


if __name__ == "__main__":
    sys.exit(main())
