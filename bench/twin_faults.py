"""Let a follower find planted faults in real architectures, and compare its answer with that of `locate`.

    python -m bench.twin_faults [--models llama,gpt2] [--dtypes fp32,bf16] [--sample 4] [--pairs other] [--healthy]

The follower has what a twin has: statistics and sketches of a job on other kernels, judged step by step, without
calibration. `locate` gets whole tensors of the same two trainings. An answer is the step and the call of the first
disagreement. With ``--healthy`` no fault is planted, and each disagreement is a false alarm. ``--mindspore`` takes the
Llama in MindSpore as the follower and the same model in PyTorch as its leader.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from bench.faults import frameworks
from bench.faults.architectures import ARCHITECTURES
from bench.faults.kernels import OtherKernels
from bench.faults.single import HEALTHY, MODEL_FAULTS, Setup, file_name, healthy_of
from bench.faults.training import Training
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.locate.engine import LocateOptions, locate
from msprobe_core.locate.result import LocateResult, LocateVerdict
from msprobe_core.twin.watch import Watch

MODES = ("sketch", "tensor")
OPTIONS = LocateOptions(compare=CompareOptions(noise=NoiseModel()), executor="inline")


class Answer(NamedTuple):
    """The first disagreement; no step if there is none."""

    step: int | None
    entry: str = ""
    module: str | None = None


class Case(NamedTuple):
    """What both say of one pair."""

    model: str
    dtype: str
    name: str
    twin: Answer
    located: Answer
    seconds: float

    @property
    def is_same(self) -> bool:
        return self.twin[:2] == self.located[:2]


def answer_of(result: LocateResult | None) -> Answer:
    if result is None or result.verdict is not LocateVerdict.FAULT:
        return Answer(None)
    first = result.suspects[0]
    return Answer(first.step, first.entry, first.module)


def twin_of(target: Path, golden: Path) -> Answer:
    """Return the answer of a follower."""
    for report in Watch(target, golden, OPTIONS, patience_s=0).reports():
        if (found := answer_of(report.result)).step is not None:
            return found
    return Answer(None)


def asked(model: str, dtype: str, name: str, targets: dict[str, Path], goldens: dict[str, Path]) -> Case:
    begin = time.process_time()
    twin = twin_of(targets["sketch"], goldens["sketch"])
    seconds = time.process_time() - begin
    return Case(model, dtype, name, twin, answer_of(locate(targets["tensor"], goldens["tensor"], OPTIONS)), seconds)


def cases_of(work: Path, model: str, dtype: str, arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases of an architecture; its faults are sampled."""
    anatomy = ARCHITECTURES[model].anatomy
    faults = [
        fault
        for fault in MODEL_FAULTS.faults.values()
        if anatomy.has(fault.needs) and fault.recipe == "plain" and (not fault.only or model in fault.only)
    ]
    goldens = {mode: work / f"{model}-{dtype}-{mode}" for mode in MODES}
    for mode, place in goldens.items():
        Training(model, dtype).record(place, mode)
    if arguments.healthy:
        for name in healthy_of(model, dtype, "sketch", is_quick=True):
            targets = {mode: work / f"{model}-{dtype}-{mode}-{file_name(name)}" for mode in MODES}
            for mode, place in targets.items():
                HEALTHY[name](Setup(work, model, dtype, mode), place)
            yield asked(model, dtype, name, targets, goldens)
        return
    fingerprint = Training(model, dtype).fingerprint()
    for i, fault in enumerate(faults):
        if (i + sum(map(ord, model + dtype))) % arguments.sample:
            continue
        bare = Training(model, dtype)
        fault.plant(bare)
        if bare.fingerprint() == fingerprint:
            continue  # it has no effect here
        targets = {mode: work / f"{model}-{dtype}-{mode}-{file_name(fault.name)}" for mode in MODES}
        for mode, place in targets.items():
            training = Training(model, dtype)
            fault.plant(training)
            training.record(place, mode, kernels=OtherKernels() if arguments.pair == "other" else None)
        yield asked(model, dtype, fault.name, targets, goldens)


def framework_cases(work: Path, arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases of a follower in MindSpore whose leader is in PyTorch."""
    program = "mindspore-torch"
    faults = [] if arguments.healthy else frameworks.faults_of()[:: arguments.sample]
    for mode in MODES:
        frameworks.record_all(work, mode, [program], faults, healthy=arguments.healthy)
    for name in list(frameworks.HEALTHY) if arguments.healthy else faults:
        targets = {mode: frameworks.target_of(work, name, mode) for mode in MODES}
        goldens = {mode: frameworks.golden_of(work, program, mode) for mode in MODES}
        yield asked(program, "fp32", name, targets, goldens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(ARCHITECTURES))
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--sample", type=int, default=4, help="take every Nth fault")
    parser.add_argument("--pair", choices=["other", "same"], default="other", help="kernels of the follower")
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--mindspore", action="store_true")
    parser.add_argument("--out", type=Path, help="file of results, a line each")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    done: list[Case] = []
    with tempfile.TemporaryDirectory() as work:
        suites = [
            cases_of(Path(work) / f"{model}-{dtype}", model, dtype, arguments)
            for model in arguments.models.split(",")
            for dtype in arguments.dtypes.split(",")
        ]
        for suite in [framework_cases(Path(work), arguments)] if arguments.mindspore else suites:
            for case in suite:
                done.append(case)
                _say(case, arguments.out)
    same = sum(case.is_same for case in done)
    alarms = sum(case.twin.step is not None for case in done)
    print(f"{len(done)} pairs: the same answer for {same}, a disagreement named in {alarms}")


def _say(case: Case, out: Path | None) -> None:
    mark = "same" if case.is_same else "OTHER"
    print(f"{mark:5} {case.model} {case.dtype} {case.name}: {case.twin.step} {case.twin.entry}", flush=True)
    if not case.is_same:
        print(f"      locate: {case.located.step} {case.located.entry}", flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(case) + "\n")


if __name__ == "__main__":
    sys.exit(main())
