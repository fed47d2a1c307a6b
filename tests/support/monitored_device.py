"""A monitored training on the simulated device, in the process that has it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msprobe.pytorch import TrainerMon, _arrivals
from simulated_device import simulated_device
from torch import nn

from msprobe_core.monitor import step_buffer
from msprobe_core.monitoring.files import read_monitored

NUM_STEPS = 6

_PINNED_LIKE = _arrivals.pinned_like

_OPS = ["norm", "min", "max", "mean", "zeros", "nans", "p50", "fp8_underflow"]
_QUANTITIES = ("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution", "ur_distribution")


@dataclass(frozen=True)
class Seen:
    """What a training has shown.

    Attributes:
        waits: How often the host had waited after each step, for its own loss too.
        written: How many steps had been written by then.
        weights: Of the first layer at the end.
        norms: Written norms by quantity, name and step.
    """

    waits: list[int]
    written: list[int]
    weights: list[list[float]]
    norms: dict[tuple[str, str, int], float]


def train(
    directory: Path,
    device: str,
    *,
    lag: int = 0,
    has_pinned: bool = True,
    most_waiting: int = 8,
    is_monitored: bool = True,
) -> Seen:
    """Train, and return what was seen.

    Args:
        directory: Of the results.
        device: ``npu``, or ``cpu``.
        lag: By how many steps the device is late.
        has_pinned: Whether the device copies to the host by itself.
        most_waiting: How many steps may be on their way.
        is_monitored: Whether there is a monitor.
    """
    simulated = simulated_device()
    simulated.clock.lag = lag
    _arrivals.pinned_like = simulated.memory.pinned_like if has_pinned else _PINNED_LIKE
    step_buffer._MOST_WAITING = most_waiting
    out = directory / "out"
    os.environ["MONITOR_OUTPUT_DIR"] = str(out)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    batches = torch.randn(NUM_STEPS, 5, 8)
    model, batches = model.to(device), batches.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    simulated.clock.waits.clear()
    monitor = None
    if is_monitored:
        path = directory / "monitor.json"
        path.write_text(json.dumps({"targets": {}, "ops": _OPS, "ndigits": 14, **dict.fromkeys(_QUANTITIES, True)}))
        monitor = TrainerMon(path, params_have_main_grad=False)
        monitor.set_monitor(model, optimizer)
    waits: list[int] = []
    written: list[int] = []
    for batch in batches:
        simulated.clock.now += 1
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        waits.append(len(simulated.clock.waits))
        written.append(len([*out.glob("*/param_updated_*.csv")]))
    if monitor is not None:
        monitor.close()
    return Seen(waits, written, model[0].weight.detach().cpu().tolist(), _norms(out) if is_monitored else {})


def train_with(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Seen:
    """Call `train`, in the process that it is sent to."""
    return train(*args, **kwargs)


def _norms(out: Path) -> dict[tuple[str, str, int], float]:
    table = read_monitored(out).frame
    table = table.filter(table["norm"].is_finite())
    return {(row["quantity"], row["name"], row["step"]): row["norm"] for row in table.iter_rows(named=True)}
