"""Run the proof on a device, chapter by chapter, and write its tables.

    python -m bench.device [--device cuda|cpu|simulated] [--out DIR] [--minutes 25] [--jobs 1] [--small]
        [--theirs DIR] [CHAPTER ...]

Each row is written as soon as it is known; started again with the same directory, it goes on after the last one. Ends
with 1 if a row is not as promised. With more than one job, the chapters that are not timed run first, in that many
processes. ``--theirs`` is a directory with an unpacked ``mindstudio-probe``, whose steps are timed beside. ``--small``
is for a dry run without a device.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from bench.device.chapters import Book
from bench.device.machine import MACHINES, Machine
from bench.device.workers import CHAPTERS, begin, begin_worker, run


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
    parser.add_argument("--jobs", type=int, default=1, help="processes for the chapters that are not timed")
    parser.add_argument("--theirs", type=Path, help="directory with an unpacked mindstudio-probe")
    parser.add_argument("--small", action="store_true", help="small sizes, for a dry run")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help=", ".join(one.name for one in CHAPTERS))
    arguments = parser.parse_args()
    by_name = {one.name: one for one in CHAPTERS}
    if unknown := set(arguments.chapters) - set(by_name):
        parser.error(f"there is no chapter {', '.join(sorted(unknown))}")
    chosen = [by_name[name] for name in arguments.chapters or by_name]  # in the order that was given: time may run out
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = Book(arguments.out, 60 * arguments.minutes)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        proof = begin(arguments.device, work, arguments.theirs, is_small=arguments.small)
        heading = _heading(proof.machine)
        if arguments.jobs > 1:
            at_once = [one for one in chosen if not one.is_timed]
            prepare = partial(begin_worker, arguments.device, work, is_small=arguments.small)
            with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"), prepare) as jobs:
                book.write_at_once(at_once, proof, jobs, run)
                for child in multiprocessing.active_children() if book.left_out else ():
                    child.terminate()  # its case has run out of time
            chosen = [one for one in chosen if one.is_timed]
        for chapter in chosen:
            book.write(chapter, proof)
            (arguments.out / "proof.md").write_text(book.page(CHAPTERS, heading))
        (arguments.out / "proof.md").write_text(book.page(CHAPTERS, heading))
    missed = book.num_missed(CHAPTERS)
    print(f"{missed} rows are not as promised; {len(book.left_out)} left out; see {arguments.out / 'proof.md'}")
    return 1 if missed or book.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
