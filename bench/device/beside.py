"""Chapter 6: what a step costs with other probes, each in a process of its own, first bare and then with it.

Run as a program, this file measures one of them: ``python -m bench.device.beside DEVICE PROBE [--small]``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.machine import MACHINES
from bench.device.programs import LARGE, SMALL, Training, llama

_ROOT = Path(__file__).parents[2]
_NUM_BEFORE, _NUM_STEPS = 2, 5
_MOST_SECONDS = 120

Around = Callable[[], AbstractContextManager[Any]]

_DEBUG_MODES = {"norms": "norm", "hashes": "hash_tensor"}
"""PyTorch's `DebugMode` with a number for each result of an operator, by its function."""

_THEIRS = ("L0 statistics", "L1 statistics", "mix statistics", "mix md5")
"""Level and summary mode of ``mindstudio-probe``."""


def _debug_mode(function: str) -> Around:
    from torch.utils._debug_mode import DebugMode

    def around() -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(DebugMode(record_nn_module=True))
        stack.enter_context(DebugMode.log_tensor_hashes(hash_fn=function))
        return stack

    return around


def _theirs(level: str, mode: str, training: Training, place: Path) -> Around:
    from msprobe.pytorch import PrecisionDebugger

    options = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": mode}
    config = {
        "task": "statistics", "dump_path": str(place / "run"), "rank": [], "step": [], "level": level,
        "statistics": options,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    debugger: Any = PrecisionDebugger(config_path=str(place / "config.json"))

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        debugger.start(model=training.model)
        yield
        debugger.stop()
        debugger.step()

    return around


def _measure(device: str, probe: str, *, is_small: bool) -> dict[str, float]:
    machine = MACHINES[device]()
    training = llama(SMALL if is_small else LARGE, torch.bfloat16 if machine.is_real else torch.float32, machine)
    bare = _times(training, training.step)
    with tempfile.TemporaryDirectory() as directory:
        if probe in _DEBUG_MODES:
            around = _debug_mode(_DEBUG_MODES[probe])
        else:
            level, mode = probe.split()
            around = _theirs(level, mode, training, Path(directory))

        def step_with_probe() -> None:
            with around():
                training.step()

        return {"bare": bare, "with_probe": _times(training, step_with_probe)}


def _times(training: Training, step: Callable[[], object]) -> float:
    times = [training.machine.seconds(step) for _ in range(_NUM_BEFORE + _NUM_STEPS)]
    return statistics.median(times[_NUM_BEFORE:])


def _case(probe: str, proof: Proof) -> Outcome:
    command = [sys.executable, "-m", "bench.device.beside", proof.machine.kind, probe, *["--small"] * proof.is_small]
    mine = {str(_ROOT / "plugins/pytorch")}  # its package has the name of the other one
    path = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place not in mine]
    environment = {**os.environ, "PYTHONPATH": ":".join([*([str(proof.theirs)] if proof.theirs else []), *path])}
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False, timeout=_MOST_SECONDS
    )
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
    times = json.loads(done.stdout.strip().splitlines()[-1])
    bare, with_probe = times["bare"], times["with_probe"]
    return Outcome((f"{1000 * bare:.1f}", f"{1000 * with_probe:.1f}", f"{with_probe / bare:.3f}"))


def _cases(proof: Proof) -> Iterator[Case]:
    for name in [*_DEBUG_MODES][1 if proof.is_small else 0 :]:
        yield Case(f"PyTorch's DebugMode, {name}", partial(_case, name, proof))
    for name in _THEIRS if proof.theirs else ():
        yield Case(f"mindstudio-probe, {name}", partial(_case, name, proof))


BESIDE = Chapter(
    "beside",
    "Time of a step of the same Llama with other probes",
    ("without, ms", "with, ms", "factor"),
    _cases,
    is_timed=True,
)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("device", choices=MACHINES)
    parser.add_argument("probe")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps(_measure(arguments.device, arguments.probe, is_small=arguments.small)))
