"""Measure the noise of every step and rank of a golden run from the same dumps of its repetitions."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl

from msprobe_core.calibrate.repeats import CalibrationTask, DumpCalibration, calibrate_dump
from msprobe_core.compare.pairs import Chosen, UnitPair, find_pairs
from msprobe_core.compare.run import RunOptions, RunProgress
from msprobe_core.config.repetition import CALIBRATION_DIRECTORY
from msprobe_core.errors import CompareError, MissingPathError, StoreError
from msprobe_core.execute.units import run_units
from msprobe_core.judge.noise.profile_file import PROFILE_FILE
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import find_steps, make_directory
from msprobe_core.store.results import refuse_foreign_parquet
from msprobe_core.untrusted.paths import source_of

_PARTS_DIRECTORY = ".noise_profile"
_RUN = re.compile(r"run(0|[1-9]\d*)", re.ASCII)


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        path: The noise profile that was written.
        repeats: Directories of the repetitions.
        dumps: What was measured, by step and rank.
        missing: Messages about dumps that could not be measured.
        incomplete: Messages about dumps that are incomplete.
        seconds: Duration of the calibration.
    """

    path: Path
    repeats: Sequence[Path]
    dumps: Sequence[DumpCalibration]
    missing: Sequence[str]
    incomplete: Sequence[str]
    seconds: float


def find_repeats(golden: str | os.PathLike[str]) -> list[Path]:
    """Return the repetitions in a golden run's ``calibration`` directory, by number.

    Raises:
        CompareError: there are no repetitions.
    """
    directory = Path(golden) / CALIBRATION_DIRECTORY
    try:
        found = {int(match[1]): path for path in directory.iterdir() if (match := _RUN.fullmatch(path.name))}
    except OSError:
        found = {}
    if not found:
        raise MissingPathError(
            f"{golden}: holds no repetitions in {CALIBRATION_DIRECTORY}/run1, …; record some with the golden program, "
            "or name other dumps of it: msprobe calibrate GOLDEN REPEAT …"
        )
    return [path for _, path in sorted(found.items()) if path.is_dir()]


def calibrate(
    golden: str | os.PathLike[str],
    repeats: Sequence[str | os.PathLike[str]] = (),
    *,
    output: str | os.PathLike[str] | None = None,
    perturbation: str = "",
    chosen: Chosen | None = None,
    overwrites: bool = False,
    run: RunOptions | None = None,
    progress: RunProgress | None = None,
) -> Calibration:
    """Measure the noise of a golden run and write its noise profile.

    Args:
        golden: The golden run's directory, which holds its steps.
        repeats: Directories of repetitions; by default those recorded inside ``golden``.
        output: Path of the profile; by default in the golden run's directory, where comparisons look for it.
        perturbation: How the repetitions differ from the golden run, as text for reports.
        chosen: Which steps and ranks to measure; by default all that the golden run and a repetition both have.
        overwrites: Whether the profile may replace a file that is not a noise profile.
        run: How the dumps are distributed over workers.
        progress: Called after each dump.

    Raises:
        CompareError: no dump could be measured.
        DumpError: a directory cannot be read.
        StoreError: the profile cannot be written.
    """
    golden = Path(golden)
    begin = time.monotonic()
    run = run or RunOptions()
    if not find_steps(golden):
        raise MissingPathError(f"{golden}: holds no steps (step0, …); give the directory of a whole run")
    repetitions = [Path(repeat) for repeat in repeats] or find_repeats(golden)
    path = golden / PROFILE_FILE if output is None else Path(output)
    if not overwrites:
        refuse_foreign_parquet(path, "msprobe calibrate", ("name", "step", "rank", "about"))
    grouped, missing = _grouped(golden, repetitions, chosen)
    parts = path.parent / _PARTS_DIRECTORY
    make_directory(parts, below=path.parent)
    try:
        tasks = [
            CalibrationTask(
                pairs[0].label,
                pairs[0].golden,
                tuple(p.target for p in pairs),
                perturbation,
                parts / f"{number}.parquet",
            )
            for number, pairs in enumerate(grouped.values())
        ]
        done: dict[int, DumpCalibration] = {}
        reasons = run_units(
            tasks,
            calibrate_dump,
            done.__setitem__,
            executor=run.executor,
            workers=run.workers,
            progress=None if progress is None else lambda number, _: progress(number, len(tasks), "dumps"),
        )
        failed = [f"{tasks[i].label}: {reasons[i]}" for i in sorted(reasons, key=lambda number: tasks[number].label)]
        if not done:
            raise CompareError(f"{golden}: its noise could not be measured; {failed[0]}")
        _write([tasks[number].part for number in sorted(done)], path)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    missing += failed
    dumps = [done[number] for number in sorted(done)]
    incomplete = list(dict.fromkeys(line for dump in dumps for line in dump.incomplete))
    return Calibration(path, repetitions, dumps, missing, incomplete, time.monotonic() - begin)


def _grouped(
    golden: Path, repeats: Sequence[Path], chosen: Chosen | None
) -> tuple[Mapping[Path, list[UnitPair]], list[str]]:
    """Return the pairs by golden dump, one for each repetition that has the dump, and messages about missing dumps."""
    grouped: dict[Path, list[UnitPair]] = {}
    missing: list[str] = []
    for repeat in repeats:
        if repeat.resolve() == golden.resolve():
            raise CompareError(f"{repeat}: is the golden run itself; a repetition is another recording of it")
        found = find_pairs(repeat, golden, chosen)
        missing += [each.text for each in found.missing]
        for pair in found.pairs:
            grouped.setdefault(pair.golden, []).append(pair)
    return dict(sorted(grouped.items(), key=lambda item: (item[1][0].step or 0, item[1][0].rank or 0))), missing


def _write(parts: Sequence[Path], path: Path) -> None:
    """Concatenate the parts into the profile; an interrupted write leaves no incomplete file.

    Raises:
        StoreError: the profile cannot be written.
    """
    make_directory(path.parent)
    try:
        with whole_file(path) as file:
            pl.scan_parquet(cast("Any", [source_of(part) for part in parts]), glob=False).sink_parquet(file)
    except pl.exceptions.PolarsError as error:
        raise StoreError(f"{path}: the noise profile cannot be written ({error}); free space, or give -o") from error
