"""Run a training program again, as repetitions of its golden run."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from msprobe_core.config.repetition import ORDER_VARIABLE, RepetitionOrder, repetition_directory
from msprobe_core.errors import CompareError
from msprobe_core.model import PerturbMode, RoundingUnit
from msprobe_core.store.layout import find_steps, refuse_links

_logger = logging.getLogger(__name__)


def run_repetitions(
    golden: Path,
    command: Sequence[str],
    repeats: int = 3,
    *,
    mode: PerturbMode = PerturbMode.EVERYWHERE,
    dtype: RoundingUnit | None = None,
) -> list[Path]:
    """Run a program several times, each time with other last digits, and return where it has recorded itself.

    An environment variable, which processes that it starts get too, says that it is a repetition: its debuggers then
    record to ``{golden}/calibration/run{k}``, whatever the program says.

    Args:
        golden: Directory of the golden run.
        command: The program and its arguments.
        repeats: How many times.
        mode: See `msprobe_core.model.Perturbation`, as ``dtype``.
        dtype: Likewise.

    Raises:
        CompareError: the golden run has no steps, or the program cannot be run, fails, or records nothing.
        StoreError: a repetition's place is a symbolic link.
    """
    if not find_steps(golden):
        raise CompareError(f"{golden}: holds no steps (step0, …); record the golden run first")
    directories: list[Path] = []
    for number in range(1, repeats + 1):
        directory = repetition_directory(golden, number)
        refuse_links(directory, below=golden)
        if directory.is_dir():
            shutil.rmtree(directory, ignore_errors=True)  # of an earlier calibration
        order = RepetitionOrder(number=number, mode=mode, dtype=dtype, golden=str(golden.absolute()))
        _logger.info("repetition %d of %d: %s", number, repeats, " ".join(command))
        _run(command, order)
        if not directory.is_dir() or not find_steps(directory):
            raise CompareError(
                f"repetition {number} recorded nothing in {directory}: the command must run the program that recorded "
                f"{golden}, with a PrecisionDebugger"
            )
        directories.append(directory)
    return directories


def _run(command: Sequence[str], order: RepetitionOrder) -> None:
    try:
        # What it prints is for the user to see.
        status = subprocess.run(command, env={**os.environ, ORDER_VARIABLE: order.encoded()}, check=False).returncode  # noqa: S603
    except OSError as error:
        raise CompareError(f"{command[0]}: cannot be run ({error.strerror})") from error
    if status:
        raise CompareError(f"repetition {order.number} ended with status {status}; what it printed last says why")
