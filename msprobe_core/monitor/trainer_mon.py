"""``TrainerMon``: the monitor as scripts of the established one call it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.capture.framework_choice import find_framework, listed
from msprobe_core.errors import SessionError
from msprobe_core.monitor.collector import Collector
from msprobe_core.monitor.plan_file import load_plan, ops_of
from msprobe_core.monitor.plan_switch import is_switched
from msprobe_core.monitor.readout import Metrics
from msprobe_core.monitor.sinks import check_writer
from msprobe_core.monitoring.quantities import Quantity
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

    @ops.setter
    def ops(self, names: Sequence[str]) -> None:
        """Collect other operations from now on.

        Raises:
            ConfigError: none of them is known.
        """
        self._follow(ops=ops_of(names, "TrainerMon.ops"))

    def _follow(self, *, finds_modules: bool = False, **changes: Any) -> None:
        self._plan = msgspec.structs.replace(self._plan, **changes)
        if self._collector is not None:
            self._collector.follow(self._plan, finds_modules=finds_modules)

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
        models = listed(model)
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
        check_writer(writer)
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

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """Do nothing: `set_monitor` gets the optimizer. Older scripts call it."""

    def reload_xy(self, xy_distribution: bool = False) -> None:  # as scripts call it
        """Begin or end to collect what modules are given and make; also finds modules that were replaced.

        Args:
            xy_distribution: Whether to collect it.
        """
        self._follow(finds_modules=True, xy_distribution=xy_distribution)

    def generate_wgrad_metrics(self, post_grad_dict: Mapping[str, Any] | None = None) -> tuple[Metrics, Metrics]:
        """Return numbers about the gradients of the current step, before they are used. Waits for the device.

        Args:
            post_grad_dict: Reduced gradients by name; ``None`` for those that the parameters have.

        Returns: of reduced gradients and of those before the reduction, by operation, by names such as
            ``0:fc1.weight:0/rank0/grad_reduced``.

        Raises:
            SessionError: `set_monitor` has not been called.
        """
        collector = self._running()
        return collector.readout.gradients(post_grad_dict), collector.readout.so_far({Quantity.GRADIENT_UNREDUCED})

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Return numbers about what modules were given and made in the current step, and about its gradients.

        Waits for the device; see `generate_wgrad_metrics` for the form. Empty in a step that is not collected.

        Raises:
            SessionError: `set_monitor` has not been called.
        """
        collector = self._running()
        found = (collector.readout.so_far({each}) for each in (Quantity.ACTIVATION, Quantity.ACTIVATION_GRADIENT))
        return next(found), next(found)

    def adhoc_check(
        self, tensor: Any, module_name: str, tensor_name: str, rank_list: Sequence[int], ops_list: Sequence[str]
    ) -> Mapping[str, float]:
        """Return numbers about any tensor, and write them with the current step. Waits for the device.

        Args:
            tensor: Any tensor.
            module_name: First part of its name in the files ``adhoc``.
            tensor_name: Last part.
            rank_list: Ranks that do this; empty for all. Others return nothing.
            ops_list: Operations.

        Raises:
            SessionError: `set_monitor` has not been called.
            ConfigError: no operation is known.
        """
        collector, ops = self._running(), ops_of(ops_list, "adhoc_check()")
        if rank_list and collector.readout.rank not in rank_list:
            return {}
        return collector.readout.check(f"{module_name}.{tensor_name}", tensor, ops)

    def _running(self) -> Collector:
        if self._collector is None:
            raise SessionError("set_monitor() has not been called, so there is no step to return values of; call it")
        return self._collector

    def close(self) -> None:
        """End, and write what has been collected; happens by itself when the program ends."""
        if self._collector is not None:
            self._collector.close()
