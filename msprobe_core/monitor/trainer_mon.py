"""``TrainerMon``: the monitor as scripts of the established one call it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.errors import SessionError
from msprobe_core.monitor.collector import Collector
from msprobe_core.monitor.plan_file import load_plan
from msprobe_core.monitor.switch import is_switched
from msprobe_core.protocols.monitoring import MonitorWriter


class TrainerMon:
    """Monitors a training: create it, and call `set_monitor` once models and optimizer exist.

    ::

        monitor = TrainerMon("monitor_config.json", params_have_main_grad=False)
        monitor.set_monitor(model, optimizer, grad_acc_steps=4)

    From then on every step of the optimizer is a step of the monitor. Files are written while the training runs, the
    last ones when it ends.
    """

    framework_name: str | None = None
    """A plugin's own monitor names its framework; otherwise that of the model is taken."""

    def __init__(
        self,
        config_file_path: str | os.PathLike[str],
        process_group: Any = None,
        params_have_main_grad: bool = True,  # as scripts call it
        opt_ty: Any = None,
    ) -> None:
        """Read the configuration; nothing is attached before `set_monitor`.

        Args:
            config_file_path: A JSON file; see ``docs/monitor.md``.
            process_group: The pipeline's process group, noted in ``layout.json``.
            params_have_main_grad: Whether gradients are read from ``main_grad`` where parameters have one.
            opt_ty: Accepted, without effect.

        Raises:
            ConfigError: the file cannot be read, or a value in it is wrong.
        """
        del opt_ty
        self._plan = load_plan(config_file_path)
        self._has_main_grad = params_have_main_grad
        self._pipeline = process_group
        self._collector: Collector | None = None
        self._writers: list[MonitorWriter] = []

    @property
    def ops(self) -> Sequence[str]:
        """Names of the operations that are collected."""
        return [op.value for op in self._plan.ops]

    @property
    def window(self) -> Path | None:
        """Directory of the dump of this step, if an alarm has it recorded; ``None`` otherwise.

        A script that saves a checkpoint now can repeat the step elsewhere, and compare.
        """
        return None if self._collector is None else self._collector.window

    def set_monitor(
        self,
        model: Any,
        optimizer: Any,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to monitor.

        Args:
            model: A model, or a list of the parts of a virtual pipeline.
            optimizer: Whose steps are counted; a list if several step in turn, or what wraps them.
            grad_acc_steps: Micro-batches of a step.
            tp_group: The tensor-parallel process group; every rank writes what it has, and ``layout.json`` the groups.
            dp_group: The data-parallel process group.
            start_iteration: Number of the first step.

        Raises:
            SessionError: something is no model or no optimizer, or it has been called before.
        """
        if self._collector is not None:
            raise SessionError("set_monitor() was called twice; create a TrainerMon for each training")
        models: list[Any] = list(cast("Sequence[Any]", model)) if isinstance(model, list | tuple) else [model]
        given = next((each for each in models if each is not None), None)
        self._collector = Collector(
            self._plan,
            find_framework(self.framework_name, given),
            models,
            optimizer,
            grad_acc_steps=grad_acc_steps,
            start_iteration=start_iteration,
            has_main_grad=self._has_main_grad,
            groups={"pp": self._pipeline, "tp": tp_group, "dp": dp_group},
            is_switched=is_switched(),
            writers=self._writers,
        )

    def add_writer(self, writer: MonitorWriter) -> None:
        """Send values to an object of the script's own too, from the next step on; see ``docs/monitor.md``.

        Args:
            writer: Has ``add(step, values)`` and ``close()``.

        Raises:
            SessionError: it lacks one of them.
        """
        if not all(callable(getattr(writer, name, None)) for name in ("add", "close")):
            raise SessionError(f"add_writer() got {type(writer).__name__}, which lacks add(step, values) or close()")
        self._writers.append(writer)
        if self._collector is not None:
            self._collector.add_writer(writer)

    def monitor_gnorm_with_ad(
        self,
        model: Any,
        optimizer: Any = None,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to monitor, by the name of older scripts; see `set_monitor`."""
        self.set_monitor(model, optimizer, grad_acc_steps, tp_group, dp_group, start_iteration)

    def close(self) -> None:
        """End, and write what has been collected; happens by itself when the program ends."""
        if self._collector is not None:
            self._collector.close()
