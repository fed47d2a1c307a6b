"""``TrainerMonitorV2``: the monitor as scripts of the established one's second version call it."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from msprobe_core.capture.framework_choice import find_framework, listed
from msprobe_core.errors import SessionError
from msprobe_core.monitor.collector import Collector
from msprobe_core.monitor.plan_file_v2 import framework_of, load_second_plan
from msprobe_core.monitor.sinks import check_writer
from msprobe_core.protocols.monitoring import MonitorWriter

_MICRO_BATCHES = ("grad_acc_steps", "micro_batch_number")


class TrainerMonitorV2:
    """Monitors a training between `start` and `stop`.

    ::

        monitor = TrainerMonitorV2("monitor_v2.json")
        monitor.start(model, optimizer, grad_acc_steps=4)
        …
        monitor.stop()

    Every step of the optimizer is a step of the monitor. With ``"patch_optimizer_step": false``, or without an
    optimizer, `step` ends it.
    """

    framework_name: str | None = None
    """A plugin's own monitor names its framework; otherwise the file does, or that of the model is taken."""

    def __init__(self, config_path: str | os.PathLike[str], fr: str | None = None) -> None:
        """Read the configuration; nothing is attached before `start`.

        Args:
            config_path: A JSON file; see ``docs/monitor.md``.
            fr: Name of the framework, if the file does not say it.

        Raises:
            ConfigError: the file cannot be read, or a value in it is wrong.
        """
        self._given = load_second_plan(config_path)
        self._fr = fr
        self._collector: Collector | None = None
        self._writers: list[MonitorWriter] = []
        self._is_patched = True

    def start(self, model: Any, optimizer: Any = None, **ctx: Any) -> None:
        """Begin to monitor.

        Args:
            model: A model, or a list of the parts of a virtual pipeline.
            optimizer: Whose steps are counted; ``None`` if `step` is called instead.
            **ctx: ``grad_acc_steps`` or ``micro_batch_number``, the micro-batches of a step; others have no effect.

        Raises:
            SessionError: something is no model or no optimizer, or `start` has been called before.
        """
        if self._collector is not None:
            raise SessionError("start() was called twice; call stop() first")
        models = listed(model)
        given, plan = self._given, self._given.plan
        if optimizer is None and plan.mv_distribution:
            raise SessionError("start() got no optimizer, and the monitor 'optimizer' reads its moments; give it")
        self._is_patched = optimizer is not None and given.patches_optimizer
        if isinstance(model, list | tuple):
            plan = msgspec.structs.replace(plan, single_stage=0)
        micro_batches = next((ctx[name] for name in _MICRO_BATCHES if ctx.get(name)), given.grad_acc_steps)
        name = self.framework_name or given.framework or framework_of(self._fr, "TrainerMonitorV2(fr=…)")
        self._collector = Collector(
            plan,
            find_framework(name, next((each for each in models if each is not None), None)),
            models,
            optimizer,
            grad_acc_steps=micro_batches or 1,
            ends_steps=self._is_patched,
            writers=self._writers,
        )

    def add_writer(self, writer: MonitorWriter) -> None:
        """Send values to an object of the script's own too; see `msprobe_core.monitor.trainer_mon.TrainerMon`.

        Raises:
            SessionError: it lacks ``add(step, values)`` or ``close()``.
        """
        check_writer(writer)
        self._writers.append(writer)
        if self._collector is not None:
            self._collector.add_writer(writer)

    def step(self) -> None:
        """End a step; does nothing where the optimizer's steps are counted."""
        if self._collector is not None and not self._is_patched:
            self._collector.end_step()

    def stop(self) -> None:
        """End, and write what has been collected; happens by itself when the program ends."""
        if self._collector is not None:
            self._collector.close()
            self._collector = None
            self._writers = []
