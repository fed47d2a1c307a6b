"""Send what the training monitor measures to an experiment tracker.

In a script, without a package::

    monitor.add_writer(LoggerWriter(wandb.log))  # or mlflow.log_metrics, which is called in the same way

As a plugin, chosen by ``"msprobe": {"writers": ["csv", "wandb"]}``, with this module as the entry point::

    [project.entry-points.msprobe]
    wandb-curves = "logger_writer"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msprobe_core.plugin import MonitoredValue, MonitorWriter, MonitorWriterFactory, PluginError, hookimpl


class Log(Protocol):
    """How trackers are called: ``wandb.log``, ``mlflow.log_metrics``, or a function of your own."""

    def __call__(self, metrics: dict[str, float], *, step: int) -> object:
        """Take the numbers of one step."""
        ...


class LoggerWriter:
    """Passes numbers on, under names such as ``grad_reduced/layers.0.weight/norm``."""

    def __init__(
        self, log: Log, *, statistics: Collection[str] = ("norm",), end: Callable[[], object] | None = None
    ) -> None:
        """Begin.

        Args:
            log: Called once in each collected step. NaN and Inf are left out, because some trackers refuse them.
            statistics: Those to pass on; trackers charge by the number of curves.
            end: Called when the monitor ends.
        """
        self._log = log
        self._statistics = statistics
        self._end = end

    def add(self, step: int, values: Sequence[MonitoredValue]) -> None:
        """Pass on the values of a step."""
        found = {
            self._name(value, statistic): float(number)
            for value in values
            for statistic, number in value.numbers.items()
            if statistic in self._statistics and math.isfinite(number)
        }
        if found:
            self._log(found, step=step)

    def _name(self, value: MonitoredValue, statistic: str) -> str:
        stage = f"stage{value.stage}." if value.stage > 0 else ""
        micro_step = "" if value.micro_step is None else f"/micro{value.micro_step}"
        return f"{value.quantity}/{stage}{value.name}{micro_step}/{statistic}"

    def close(self) -> None:
        """End the tracker's run, if that was asked for."""
        if self._end is not None:
            self._end()


class Wandb:
    """Curves in Weights & Biases, one run for each rank."""

    name = "wandb"

    def open(self, directory: Path, rank: int, *, steps_per_file: int, ndigits: int) -> MonitorWriter:
        """Begin a run; its settings come from the environment, such as ``WANDB_PROJECT`` and ``WANDB_MODE``."""
        del steps_per_file, ndigits
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise PluginError(f"the writer 'wandb' needs the library wandb: pip install wandb ({error})") from error
        directory.mkdir(parents=True, exist_ok=True)
        config: Mapping[str, int] = {"rank": rank}
        run = wandb.init(dir=str(directory), name=f"rank{rank}", config=dict(config))
        return LoggerWriter(run.log, end=run.finish)


@hookimpl
def msprobe_register_monitor_writers() -> Sequence[MonitorWriterFactory]:
    """Offer it."""
    return [Wandb()]
