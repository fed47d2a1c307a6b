"""Run a training program again to record repetitions of its golden run."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from msprobe_core.config.repetition import REQUEST_VARIABLE, RepetitionRequest, repetition_directory
from msprobe_core.errors import CompareError, MissingPathError
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
    """Run a program several times, each time perturbed in the last digits, and return the recorded directories.

    An environment variable, which child processes inherit, marks the run as a repetition. Its debuggers then record to
    ``{golden}/calibration/run{k}``, whatever dump path the program sets.

    Args:
        golden: Directory of the golden run.
        command: The program and its arguments.
        repeats: Number of repetitions.
        mode: See `msprobe_core.model.Perturbation`.
        dtype: See `msprobe_core.model.Perturbation`.

    Raises:
        CompareError: the golden run has no steps, or the program cannot be run, fails, or records nothing.
        StoreError: the directory of a repetition is a symbolic link.
    """
    if not find_steps(golden):
        raise MissingPathError(f"{golden}: holds no steps (step0, …); record the golden run first")
    directories: list[Path] = []
    for number in range(1, repeats + 1):
        directory = repetition_directory(golden, number)
        refuse_links(directory, below=golden)
        if directory.is_dir():
            shutil.rmtree(directory, ignore_errors=True)  # left by an earlier calibration
        request = RepetitionRequest(number=number, mode=mode, dtype=dtype, golden=str(golden.absolute()))
        _logger.info("repetition %d of %d: %s", number, repeats, " ".join(command))
        _run(command, request)
        if not directory.is_dir() or not find_steps(directory):
            raise CompareError(
                f"repetition {number} recorded nothing in {directory}: the command must run the program that recorded "
                f"{golden}, with a PrecisionDebugger"
            )
        directories.append(directory)
    return directories


def _run(command: Sequence[str], request: RepetitionRequest) -> None:
    try:
        # Output is not captured: the user should see what the program prints.
        environment = {**os.environ, REQUEST_VARIABLE: request.encoded()}
        status = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603
    except OSError as error:
        raise CompareError(f"{command[0]}: cannot be run ({error.strerror})") from error
    if status:
        raise CompareError(f"repetition {request.number} ended with status {status}; what it printed last says why")
