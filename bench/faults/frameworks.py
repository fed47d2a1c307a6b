"""Golden runs, targets and healthy pairs of the pair of small Llamas in MindSpore and in PyTorch."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.faults.answers import MSPROBE, Ask, Nesting, has_command
from bench.faults.mindspore_pair import GOLDENS, MINDSPORE_FAULTS, SPLIT, Job, interpreter, note_of, record
from bench.faults.recording import MODES, NUM_REPEATS
from bench.faults.scoring import Case, HealthyCase, score
from bench.faults.single import file_name

DTYPE = "fp32"
PROGRAMS = tuple(GOLDENS) if interpreter().exists() else ()
HEALTHY = {"the same run": 0, "last digits of embeddings": 7}
"""Seeds of healthy targets in MindSpore; compared with PyTorch's golden run, they also differ by framework."""


def golden_of(work: Path, program: str, mode: str) -> Path:
    """Return the directory of a golden run."""
    return work / "golden" / f"{program}-{mode}"


def target_of(work: Path, name: str, mode: str) -> Path:
    """Return the directory of a target, with a fault or healthy; all golden runs share it."""
    return work / "target" / f"mindspore-{mode}-{file_name(name)}"


def record_all(work: Path, mode: str, programs: Sequence[str], faults: Sequence[str], *, healthy: bool) -> None:
    """Record and calibrate what is missing."""
    jobs: list[Job] = []
    missing = [program for program in programs if not golden_of(work, program, mode).exists()]
    for program in missing:
        golden = golden_of(work, program, mode)
        jobs.append(Job(GOLDENS[program], str(golden), MODES[mode]))
        repeats = [golden / "calibration" / f"run{i}" for i in range(NUM_REPEATS)]
        jobs += [Job(GOLDENS[program], str(one), MODES[mode], seed=100 + i) for i, one in enumerate(repeats)]
    wanted = [Job("mindspore", str(target_of(work, fault, mode)), MODES[mode], fault=fault) for fault in faults]
    # A second run of the healthy program shows which faults change nothing.
    names = list(HEALTHY)[: None if healthy else 1]
    wanted += [Job("mindspore", str(target_of(work, name, mode)), MODES[mode], seed=HEALTHY[name]) for name in names]
    record([*jobs, *(job for job in wanted if not Path(job.place).exists())], work / "scratch")
    for program in missing:
        if has_command("calibrate"):
            subprocess.run([MSPROBE, "calibrate", str(golden_of(work, program, mode))], check=True, capture_output=True)


def ask_about_fault(work: Path, program: str, name: str, mode: str, asks: dict[str, Ask]) -> list[Case]:
    """Return one case per debugger."""
    target, golden = target_of(work, name, mode), golden_of(work, program, mode)
    fault = MINDSPORE_FAULTS.faults[name]
    fingerprint, truth = note_of(target)
    assert truth is not None
    # A target equal to MindSpore's healthy run also differs from PyTorch's by rounding only.
    is_applicable = fingerprint != note_of(target_of(work, next(iter(HEALTHY)), mode))[0]
    blank = Case("", program, DTYPE, SPLIT, "same", name, fault.phase.value, truth, applicable=is_applicable)
    cases: list[Case] = []
    for tool, ask in asks.items():
        case = replace(blank, tool=tool, pair="other" if program == "mindspore-torch" else "same")
        if is_applicable:
            answer = ask(target, golden, target.with_name(f"{target.name}.{program}.{tool}"))
            case = replace(case, score=score(answer, fault, truth, Nesting(target, golden)), answer=answer)
        cases.append(case)
    return cases


def ask_about_healthy(work: Path, program: str, name: str, mode: str, asks: dict[str, Ask]) -> list[HealthyCase]:
    """Return one case per debugger."""
    target, golden = target_of(work, name, mode), golden_of(work, program, mode)
    return [
        HealthyCase(
            tool, program, DTYPE, SPLIT, name, ask(target, golden, target.with_name(f"{target.name}.{program}.{tool}"))
        )
        for tool, ask in asks.items()
    ]


def faults_of() -> list[str]:
    """Return the names of all faults."""
    return list(MINDSPORE_FAULTS.faults)
