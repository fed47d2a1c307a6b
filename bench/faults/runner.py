"""Plant faults, let debuggers locate them, and print how many they find.

    python -m bench.faults [--quick] [--arch llama,vit] [--fault SUBSTRING] [--dtype fp32,bf16,mixed-bf16]
                           [--split tune|report|unseen|held-out] [--pair other|same|both]
                           [--mode statistics|sketch|tensor] [--healthy|--no-healthy] [--work DIR]
                           [--out DIR] [--jobs 2] [--sample N] [--reference PATH]

Each fault is planted into a training of two steps of a real architecture with random weights. Its recording is compared
with that of the same training without the fault, the golden run. The golden run is calibrated by three repetitions with
perturbed last digits of the embeddings. ``--pair other``: the target runs on other kernels, as on another device, so
that every value differs by rounding; ``same``: on the same kernels, so that only the fault makes a difference.

There are also trainings over several processes (data, tensor and pipeline parallel), and a Llama in MindSpore against
itself and against the same model in PyTorch, if an environment with MindSpore exists.

Prints Markdown tables, which list all faults that were not named first, and writes ``results.json`` and ``table.md``.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.faults.answers import Ask, Reference, ask_ours
from bench.faults.scoring import Case, HealthyCase
from bench.faults.table import render

QUICK_ARCHITECTURES = ("llama", "moe")
QUICK_EVERY = 5


QUICK_PROGRAMS = ("tp",)


@dataclass(frozen=True)
class Task:
    """A unit of work. Golden runs come first: otherwise all faults and healthy pairs that share one would wait for it.

    Attributes:
        kind: ``golden``, ``fault``, ``healthy``; ``ranks`` makes all recordings of several processes, ``ranks fault``
            and ``ranks healthy`` run debuggers on one of them.
        setup: Arguments of the setup; for several processes the directory, the program and the dtype.
        name: Name of the fault or of the healthy pair.
        pair: Kind of pair, for a fault.
        payload: The recordings, for several processes.
    """

    kind: str
    setup: tuple[Any, ...]
    name: str = ""
    pair: str = ""
    payload: Any = None


def _start_worker() -> None:
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def _work(task: Task, asks: dict[str, Ask], keeps: bool) -> tuple[list[Case], list[HealthyCase]]:
    if task.kind.startswith("ranks"):
        return _work_on_ranks(task, asks)
    if task.kind.startswith("pair"):
        return _work_on_pair(task, asks)
    return _work_in_process(task, asks, keeps)


def _work_in_process(task: Task, asks: dict[str, Ask], keeps: bool) -> tuple[list[Case], list[HealthyCase]]:
    from bench.faults import single

    setup = single.Setup(*task.setup)
    cases: list[Case] = []
    healthy: list[HealthyCase] = []
    if task.kind == "golden":
        single.make_golden(setup)
    elif task.kind == "healthy":
        healthy = single.run_healthy(setup, task.name, asks)
    else:
        cases = single.run_fault(setup, single.MODEL_FAULTS.faults[task.name], task.pair, asks)
    if not keeps and task.kind != "golden":
        for path in (setup.work / "target").glob(f"{setup.golden.name}-*{single.file_name(task.name)}"):
            shutil.rmtree(path, ignore_errors=True)
    return cases, healthy


def _work_on_ranks(task: Task, asks: dict[str, Ask]) -> tuple[list[Case], list[HealthyCase]]:
    from bench.faults import ranks

    if task.kind == "ranks":
        ranks.record(task.payload, task.setup[0] / "scratch")
        return [], []
    golden, job = task.payload
    if task.kind == "ranks fault":
        return ranks.ask_about_fault(golden, job, task.pair, asks), []
    return [], ranks.ask_about_healthy(golden, job, task.name, asks)


def _work_on_pair(task: Task, asks: dict[str, Ask]) -> tuple[list[Case], list[HealthyCase]]:
    from bench.faults import frameworks

    work, program, mode = task.setup
    if task.kind == "pair":
        frameworks.record_all(work, mode, **task.payload)
        return [], []
    if task.kind == "pair fault":
        return frameworks.ask_about_fault(work, program, task.name, mode, asks), []
    return [], frameworks.ask_about_healthy(work, program, task.name, mode, asks)


Suite = tuple[list[Task], list[Task]]
"""Tasks for golden runs, and the tasks that need them."""


def tasks_of(arguments: argparse.Namespace, work: Path) -> Iterator[Suite]:
    """Yield the suite of each architecture, so that the first results come soon."""
    from bench.faults import single
    from bench.faults.architectures import ARCHITECTURES

    pairs = ("other", "same") if arguments.pair == "both" else (arguments.pair,)
    for name in arguments.arch or ARCHITECTURES:
        architecture = ARCHITECTURES.get(name)
        is_asked = arguments.arch or not arguments.quick or name in QUICK_ARCHITECTURES
        if architecture is None or not is_asked or arguments.split not in (None, architecture.split):
            continue
        golden: dict[tuple[Any, ...], Task] = {}
        others: list[Task] = []
        for dtype in (dtype for dtype in arguments.dtype if single.can_train(name, dtype)):
            own = [fault for fault in single.faults_of(name) if not arguments.fault or arguments.fault in fault.name]
            for fault in _sampled(own, arguments, name):
                setup = (work, name, dtype, arguments.mode, fault.recipe)
                golden[setup] = Task("golden", setup)
                others += [Task("fault", setup, fault.name, pair) for pair in pairs]
            setup = (work, name, dtype, arguments.mode)
            if arguments.healthy:
                golden.setdefault((*setup, "plain"), Task("golden", setup))
                others += [
                    Task("healthy", setup, n)
                    for n in single.healthy_of(name, dtype, arguments.mode, is_quick=arguments.quick)
                ]
        yield list(golden.values()), others


def _sampled(faults: Sequence[Any], arguments: argparse.Namespace, program: str) -> list[Any]:
    """Return every Nth fault, with another offset for each program."""
    every = QUICK_EVERY if arguments.quick else arguments.sample
    return [fault for i, fault in enumerate(faults) if (i + sum(map(ord, program))) % every == 0]


def rank_tasks_of(arguments: argparse.Namespace, work: Path) -> Suite:
    """Return the tasks that record trainings over several processes, and those that run debuggers on them."""
    from bench.faults import ranks
    from bench.faults.recording import DTYPES

    plans: list[ranks.Plan] = []
    others: list[Task] = []
    pairs = ("other", "same") if arguments.pair == "both" else (arguments.pair,)
    for program in ranks.PROGRAMS:
        is_asked = program in arguments.arch if arguments.arch else not arguments.quick or program in QUICK_PROGRAMS
        if not is_asked or arguments.split not in (None, ranks.SPLIT):
            continue
        for dtype in (dtype for dtype in arguments.dtype if dtype in DTYPES):
            names = [name for name in ranks.faults_of(program) if not arguments.fault or arguments.fault in name]
            names = _sampled(names, arguments, program)
            own = ranks.plan(work, program, dtype, arguments.mode, names, pairs, healthy=arguments.healthy)
            setup = (work, program, dtype)
            plans.append(own)
            others += [Task("ranks fault", setup, job.fault, pair, (own.golden, job)) for job, pair in own.faults]
            others += [Task("ranks healthy", setup, name, "", (own.golden, job)) for job, name in own.healthy]
    return ([Task("ranks", (work, "programs", "of ranks"), payload=plans)] if plans else []), others


def pair_tasks_of(arguments: argparse.Namespace, work: Path) -> Suite:
    """Return the tasks that record the pair of frameworks, and those that run debuggers on it."""
    from bench.faults import frameworks

    if "fp32" not in arguments.dtype or arguments.split not in (None, frameworks.SPLIT):
        return [], []
    programs = [
        one for one in frameworks.PROGRAMS if (one in arguments.arch if arguments.arch else not arguments.quick)
    ]
    if not programs:
        return [], []
    names = [name for name in frameworks.faults_of() if not arguments.fault or arguments.fault in name]
    names = _sampled(names, arguments, "")
    payload = {"programs": programs, "faults": names, "healthy": arguments.healthy}
    others = [Task("pair fault", (work, one, arguments.mode), name) for one in programs for name in names]
    if arguments.healthy:
        others += [
            Task("pair healthy", (work, one, arguments.mode), name) for one in programs for name in frameworks.HEALTHY
        ]
    return [Task("pair", (work, "", arguments.mode), payload=payload)], others


def options_of(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that select pairs."""
    parser = argparse.ArgumentParser(prog=prog, description=description)

    def split(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--quick", action="store_true", help="a subset, for two minutes")
    parser.add_argument("--arch", type=split, help="architectures, and programs over ranks; all by default")
    parser.add_argument("--fault", help="faults whose name contains this")
    parser.add_argument("--dtype", type=split, default=["fp32", "bf16"])
    parser.add_argument("--split", choices=("tune", "report", "unseen", "held-out"))
    parser.add_argument("--pair", choices=("other", "same", "both"), default="other", help="kernels of the target")
    parser.add_argument("--mode", choices=("statistics", "sketch", "tensor"), default="statistics")
    parser.add_argument("--healthy", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--work", type=Path, help="keeps golden runs there; a temporary directory by default")
    parser.add_argument("--out", type=Path, default=Path("faults_output"), help="for results.json and table.md")
    parser.add_argument("--keep", action="store_true", help="keep targets and answers too")
    parser.add_argument("--reference", type=Path, metavar="PATH", help="the command of mindstudio-probe, to ask it too")
    parser.add_argument(
        "--sample", type=int, default=2, metavar="N", help="each Nth fault, others of each program (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2)
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options that were given."""
    arguments = parser.parse_args(argv)
    from bench.faults.recording import DTYPES, MIXED

    known = (*DTYPES, *MIXED)
    if unknown := [dtype for dtype in arguments.dtype if dtype not in known]:
        parser.error(f"--dtype: there is no {unknown[0]}; known: {', '.join(known)}")
    return arguments


def _run(
    pool: ProcessPoolExecutor, tasks: Sequence[Task], asks: dict[str, Ask], keeps: bool, done: Callable[[Any], None]
) -> None:
    futures = {pool.submit(_work, task, asks, keeps): task for task in tasks}
    for i, future in enumerate(as_completed(futures), 1):
        task = futures[future]
        try:
            done(future.result())
        except Exception as error:
            raise SystemExit(f"{task.kind} {task.name or 'run'} of {task.setup[1:]} failed: {error!r}") from error
        if not i % 20 or i == len(tasks):
            print(f"{i} of {len(tasks)}", file=sys.stderr)


def measure(
    arguments: argparse.Namespace, asks: dict[str, Ask], on_result: Callable[[list[Case], list[HealthyCase]], object]
) -> tuple[list[Case], list[HealthyCase]]:
    """Record the pairs that were selected, and return what each debugger says of them.

    Args:
        arguments: Of a parser from `options_of`.
        asks: The debuggers, by name. They are pickled with each pair.
        on_result: Called with everything so far, whenever there is more.
    """
    cases: list[Case] = []
    healthy: list[HealthyCase] = []

    def done(result: tuple[list[Case], list[HealthyCase]]) -> None:
        cases.extend(result[0])
        healthy.extend(result[1])
        on_result(cases, healthy)

    # ModernBERT computes its rotary positions in the order of a set, which would be another one in each process.
    os.environ["PYTHONHASHSEED"] = "0"
    with tempfile.TemporaryDirectory() as scratch:
        work = (arguments.work or Path(scratch)).resolve()
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.jobs, mp_context=context, initializer=_start_worker) as pool:
            for golden, others in (
                *tasks_of(arguments, work),
                rank_tasks_of(arguments, work),
                pair_tasks_of(arguments, work),
            ):
                random.Random(0).shuffle(others)
                _run(pool, golden, asks, arguments.keep, done)
                _run(pool, others, asks, arguments.keep, done)
    return cases, healthy


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    arguments = parse(options_of("python -m bench.faults", __doc__.splitlines()[0]), argv)
    begin = time.perf_counter()
    asks: dict[str, Ask] = {"msprobe": ask_ours}
    if arguments.reference:
        asks["mindstudio-probe"] = Reference(arguments.reference)

    def on_result(cases: list[Case], healthy: list[HealthyCase]) -> None:
        if (total := len(cases) + len(healthy)) and total % 10 == 0:
            _write(arguments.out, cases, healthy)  # so that intermediate results can be read

    cases, healthy = measure(arguments, asks, on_result)
    print(_write(arguments.out, cases, healthy))
    print(f"{len(cases)} cases and {len(healthy)} healthy pairs in {time.perf_counter() - begin:.0f} s")


def _write(directory: Path, cases: Sequence[Case], healthy: Sequence[HealthyCase]) -> str:
    """Write results and tables; return the tables."""
    directory.mkdir(parents=True, exist_ok=True)
    cases = sorted(cases, key=lambda case: (case.tool, case.family, case.dtype, case.pair, case.phase, case.fault))
    healthy = sorted(healthy, key=lambda case: (case.tool, case.family, case.dtype, case.name))
    text = render(cases, healthy)
    (directory / "table.md").write_text(text)
    results = {"cases": [asdict(case) for case in cases], "healthy": [asdict(case) for case in healthy]}
    (directory / "results.json").write_text(json.dumps(results, indent=1))
    return text
