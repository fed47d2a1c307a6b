"""Run the proof on a device, chapter by chapter, and write its tables.

    python -m bench.device [--device cuda|cpu|simulated] [--out DIR] [--minutes 25] [--small] [CHAPTER ...]

Each row is written as soon as it is known; started again with the same directory, it goes on after the last one. Ends
with 1 if a row is not as promised. ``--small`` is for a dry run without a device.
"""

from __future__ import annotations

import argparse
import logging
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.device.against_host import AGAINST_HOST
from bench.device.chapters import Book, Chapter, Proof
from bench.device.kernel import KERNEL
from bench.device.machine import MACHINES, Machine
from bench.device.neutrality import NEUTRALITY
from bench.device.reductions import REDUCTIONS
from bench.device.step_time import STEP_TIME
from bench.device.waits import WAITS

CHAPTERS: Sequence[Chapter] = (REDUCTIONS, KERNEL, NEUTRALITY, WAITS, STEP_TIME, AGAINST_HOST)


def _heading(machine: Machine) -> str:
    from msprobe_core._version import __version__

    today = time.strftime("%Y-%m-%d")
    return (
        f"# Proof on a device, {today}\n\n{machine.name}; PyTorch {torch.__version__}, Python "
        f"{platform.python_version()}, msprobe {__version__}\n"
    )


def main() -> int:
    """Run, write ``proof.md``, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.device", description="Prove the probe on a device")
    parser.add_argument("--device", choices=MACHINES, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("device_proof"))
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--small", action="store_true", help="small sizes, for a dry run")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help=", ".join(one.name for one in CHAPTERS))
    arguments = parser.parse_args()
    chosen = [one for one in CHAPTERS if not arguments.chapters or one.name in arguments.chapters]
    if unknown := set(arguments.chapters) - {one.name for one in CHAPTERS}:
        parser.error(f"there is no chapter {', '.join(sorted(unknown))}")
    logging.basicConfig(level=logging.ERROR)
    torch.use_deterministic_algorithms(True, warn_only=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = MACHINES[arguments.device]()
    book = Book(arguments.out, 60 * arguments.minutes)
    with tempfile.TemporaryDirectory() as work:
        proof = Proof(machine, Path(work), arguments.small)
        for chapter in chosen:
            book.write(chapter, proof)
            (arguments.out / "proof.md").write_text(book.page(CHAPTERS, _heading(machine)))
    missed = book.num_missed(CHAPTERS)
    print(f"{missed} rows are not as promised; {len(book.left_out)} left out; see {arguments.out / 'proof.md'}")
    return 1 if missed or book.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
