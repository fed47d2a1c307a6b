"""Trainings that are killed at some moment, and what they had said to be on disk by then.

Processes are forked off one that has imported PyTorch already, so that a kill takes a fraction of a second.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn

from msprobe_core.capture import step_record

WINDOWS = 2
"""In each step."""

KINDS: dict[str, dict[str, Any]] = {
    "json": {},
    "arrow": {"writer": "arrow"},
    "json, a file for each tensor": {"task": "tensor"},
    "arrow, tensors in shards": {"writer": "arrow", "task": "tensor", "tensor_format": "safetensors"},
}


@dataclass
class Killed:
    """What a process had said before it was killed.

    Attributes:
        directory: Of the run.
        rank: Of the process; ``None`` outside of a job.
        windows: By step, how many windows had been stopped.
        ended: Steps that had been ended.
    """

    directory: Path
    rank: int | None
    windows: dict[int, int] = field(default_factory=dict[int, int])
    ended: set[int] = field(default_factory=set[int])


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())], nn.Linear(16, 2))


def train(directory: Path, settings: dict[str, Any], said: int, *, steps: Iterator[int], backlog: int) -> None:
    """Train and record; each line of ``said`` is a step with the number of windows stopped, or that it has ended."""
    # Or nearly everything would be written at the end of a window.
    with patch.object(step_record, "BACKLOG_ENTRIES", backlog):
        model = make_model()
        debugger = PrecisionDebugger(dump_path=str(directory), level="mix", **settings)
        for step in steps:
            for window in range(1, WINDOWS + 1):
                model.zero_grad()
                debugger.start(model)
                model(torch.ones(4, 16)).square().sum().backward()
                debugger.stop()
                os.write(said, f"{step} {window}\n".encode())
                if torch.distributed.is_initialized():  # ranks wait for each other, as they do in a job
                    torch.distributed.all_reduce(torch.ones(1))
            debugger.step()
            os.write(said, f"{step} ended\n".encode())
        debugger.close()


def _enter(directory: Path, settings: dict[str, Any], said: int, rank: int | None, world: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    if rank is not None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # by which ranks are known to be of one job
        meeting = f"file://{directory.absolute()}.ranks"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    train(directory, settings, said, steps=count(), backlog=3)


def run_until_killed(directory: Path, settings: dict[str, Any], *, world: int, wait_s: float) -> list[Killed]:
    """Train in one process, or in several of a job, and kill them all some time after the first begins to record."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    ranks: list[int | None] = [None] if world == 1 else list(range(world))
    children: list[tuple[int, int]] = []
    for rank in ranks:
        heard, said = os.pipe()
        child = os.fork()
        if not child:
            os.close(heard)
            try:
                _enter(directory, settings, said, rank, world)
            finally:
                os._exit(3)  # never reached: it is killed
        os.close(said)
        children.append((child, heard))
    while not any(directory.glob("step0/*/dump.*")):
        assert os.waitpid(children[0][0], os.WNOHANG) == (0, 0), "it ended before it had recorded anything"
        time.sleep(0.001)
    time.sleep(wait_s)
    for child, _ in children:
        os.kill(child, signal.SIGKILL)
    return [_heard(Killed(directory, rank), child, heard) for rank, (child, heard) in zip(ranks, children, strict=True)]


def _heard(killed: Killed, child: int, heard: int) -> Killed:
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status
    with os.fdopen(heard) as lines:
        for line in lines:
            step, _, what = line.strip().partition(" ")
            if not line.endswith("\n"):
                continue
            if what == "ended":
                killed.ended.add(int(step))
            else:
                killed.windows[int(step)] = int(what)
    return killed


def record_whole_step(directory: Path, settings: dict[str, Any]) -> Path:
    """Record one step to its end, and return the directory of its dump."""
    heard, said = os.pipe()
    train(directory, settings, said, steps=iter(range(1)), backlog=3)
    for end in (heard, said):
        with suppress(OSError):
            os.close(end)
    (unit,) = (directory / "step0").iterdir()
    return unit
