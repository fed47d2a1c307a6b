"""What of the probe surrounds a training."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.device.programs import Training

LEVELS = ("L0", "L1", "mix")

Around = Callable[[], AbstractContextManager[None]]
"""Surrounds one step."""


@dataclass(frozen=True)
class Kind:
    """What is recorded.

    Attributes:
        level: ``L0``, ``L1`` or ``mix``.
        task: Of the configuration.
        mode: The summary mode, of the task ``statistics``.
        options: More options of the task.
    """

    level: str
    task: str = "statistics"
    mode: str = "statistics"
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.level} {self.mode if self.task == 'statistics' else self.task}"


@contextmanager
def recorded(kind: Kind, training: Training, place: Path) -> Generator[Around, None, None]:
    """Yield what records a step into ``place / "run"``; steps outside of it are not recorded."""
    from msprobe.pytorch import PrecisionDebugger

    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    options = dict(kind.options)
    if kind.task == "statistics":
        options["summary_mode"] = kind.mode
    config = {"task": kind.task, "level": kind.level, "dump_path": str(place / "run"), kind.task: options}
    (place / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(str(place / "config.json"))

    @contextmanager
    def around() -> Iterator[None]:
        debugger.start(training.model)
        yield
        debugger.stop()
        debugger.step()

    try:
        yield around
    finally:
        debugger.close()


@contextmanager
def monitored(plan: dict[str, Any], training: Training, place: Path) -> Generator[Around, None, None]:
    """Yield what surrounds a step of a training of which a monitor collects every second step, from the first one."""
    from msprobe.pytorch import TrainerMon

    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(place / "out")
    (place / "monitor.json").write_text(json.dumps({"targets": {}, "step_interval": 2, **plan}))
    monitor = TrainerMon(place / "monitor.json", params_have_main_grad=False)
    monitor.set_monitor(training.model, training.optimizer)
    try:
        yield nullcontext
    finally:
        monitor.close()
