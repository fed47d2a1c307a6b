"""Golden runs, targets and healthy pairs of trainings over several processes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.faults.answers import LAYOUT_FILE, MSPROBE, Ask, Nesting, has_command
from bench.faults.parallel import PARALLEL_FAULTS, SPLIT, WORLDS, Job, notes_of, run_jobs
from bench.faults.recording import NUM_REPEATS
from bench.faults.scoring import Case, HealthyCase, score
from bench.faults.single import file_name

HEALTHY = {
    "other kernels": {"other_kernels": True},
    "one more repetition with other last digits": {"seed": 77},
}

OTHER_LAYOUTS = {"dp": {"tensor and data parallel for data parallel": "tp-dp"}}
"""Programs with the same training on the same data over other ranks, by program and name of the healthy pair."""
LAYOUTS = {"tp-dp": "parallel:\n  target: {tp: 2, dp: 2}\n  golden: {dp: 2}\n"}


@dataclass(frozen=True)
class Plan:
    """All recordings of one program in one dtype.

    Attributes:
        golden: The golden run.
        repeats: Its repetitions with perturbed last digits.
        faults: Targets with a fault, and the name of their kernels.
        healthy: Targets without a fault, by name.
    """

    golden: Job
    repeats: Sequence[Job]
    faults: Sequence[tuple[Job, str]]
    healthy: Sequence[tuple[Job, str]]


def plan(
    work: Path, program: str, dtype: str, mode: str, faults: Sequence[str], pairs: Sequence[str], *, healthy: bool
) -> Plan:
    """Return the recordings for the given faults of a program."""
    stem = f"{program}-{dtype}-{mode}"
    golden = Job(program, dtype, work / "golden" / stem, mode)
    calibration = golden.place / "calibration"
    target = work / "target"
    return Plan(
        golden,
        [replace(golden, place=calibration / f"run{i}", seed=100 * (i + 1)) for i in range(NUM_REPEATS)],
        [
            (
                replace(
                    golden,
                    place=target / f"{stem}-{pair}-{file_name(name)}",
                    fault=name,
                    other_kernels=pair == "other",
                ),
                pair,
            )
            for name in faults
            for pair in pairs
        ],
        [
            (replace(golden, place=target / f"{stem}-healthy-{file_name(name)}", **options), name)
            for name, options in [
                *HEALTHY.items(),
                *((name, {"program": other}) for name, other in OTHER_LAYOUTS.get(program, {}).items()),
            ]
            if healthy
        ],
    )


def faults_of(program: str) -> list[str]:
    """Return the names of the faults of a program."""
    return [fault.name for fault in PARALLEL_FAULTS.faults.values() if program in fault.only]


def record(plans: Sequence[Plan], scratch: Path) -> None:
    """Record all plans, and calibrate the golden runs; existing recordings are kept."""
    missing = [one for one in plans if not one.golden.place.exists()]
    jobs = [job for one in missing for job in (one.golden, *one.repeats)]
    jobs += [job for one in plans for job, _ in (*one.faults, *one.healthy)]
    run_jobs(jobs, scratch)
    for one in missing:
        if has_command("calibrate"):
            subprocess.run([MSPROBE, "calibrate", str(one.golden.place)], check=True, capture_output=True)


def ask_about_fault(golden: Job, job: Job, pair: str, asks: dict[str, Ask]) -> list[Case]:
    """Return one case per debugger."""
    fault = PARALLEL_FAULTS.faults[job.fault]
    prints, truths = notes_of(job)
    is_applicable = prints != notes_of(golden)[0]
    cases: list[Case] = []
    for tool, ask in asks.items():
        blank = Case(
            tool,
            job.program,
            job.dtype,
            SPLIT,
            pair,
            fault.name,
            fault.phase.value,
            truths[0],
            applicable=is_applicable,
        )
        if is_applicable:
            answer = ask(job.place, golden.place, job.place.with_name(f"{job.place.name}.{tool}"))
            nesting = Nesting(job.place, golden.place)
            blank = replace(blank, score=score(answer, fault, truths[0], nesting), answer=answer)
        cases.append(blank)
    return cases


def ask_about_healthy(golden: Job, job: Job, name: str, asks: dict[str, Ask]) -> list[HealthyCase]:
    """Return one case per debugger."""
    if job.program != golden.program:
        (job.place / LAYOUT_FILE).write_text(LAYOUTS[job.program])
    return [
        HealthyCase(
            tool,
            golden.program,
            job.dtype,
            SPLIT,
            name,
            ask(job.place, golden.place, job.place.with_name(f"{job.place.name}.{tool}")),
        )
        for tool, ask in asks.items()
    ]


PROGRAMS = tuple(WORLDS)
