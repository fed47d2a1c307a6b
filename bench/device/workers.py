"""All chapters, and the processes that run their cases at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.device.against_host import AGAINST_HOST
from bench.device.beside import BESIDE
from bench.device.chapters import Chapter, Proof, Row, row_of
from bench.device.commands import COMMANDS
from bench.device.kernel import KERNEL
from bench.device.machine import MACHINES
from bench.device.neutrality import NEUTRALITY
from bench.device.reductions import REDUCTIONS
from bench.device.step_time import STEP_TIME
from bench.device.waits import WAITS

CHAPTERS: Sequence[Chapter] = (
    REDUCTIONS, KERNEL, NEUTRALITY, WAITS, STEP_TIME, BESIDE, AGAINST_HOST, COMMANDS,
)  # fmt: skip


class _Worker:
    """What a process that runs cases keeps from one to the next."""

    proof: Proof


def begin(device: str, work: Path, theirs: Path | None, *, is_small: bool) -> Proof:
    """Return what this process proves, with a directory of its own below ``work``."""
    logging.basicConfig(level=logging.ERROR)
    torch.use_deterministic_algorithms(True, warn_only=True)
    place = work / str(os.getpid())
    place.mkdir()
    return Proof(MACHINES[device](), place, is_small, theirs)


def begin_worker(device: str, work: Path, *, is_small: bool) -> None:
    """Begin in a process that runs cases."""
    _Worker.proof = begin(device, work, None, is_small=is_small)


def run(chapter_name: str, case_name: str) -> Row:
    """Run a case in such a process."""
    chapter = next(one for one in CHAPTERS if one.name == chapter_name)
    return row_of(next(case for case in chapter.cases(_Worker.proof) if case.name == case_name))
