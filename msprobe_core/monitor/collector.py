"""Collects the quantities of a training, step by step; a step ends when the optimizer's does, or on request."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.errors import MsprobeError, SessionError
from msprobe_core.guard import kept, reason_of
from msprobe_core.monitor.alarm_dump import AlarmDump, dump_config
from msprobe_core.monitor.alarm_flight import AlarmFlight
from msprobe_core.monitor.alarm_log import AlarmLog
from msprobe_core.monitor.directories import directory_of, step_after
from msprobe_core.monitor.parameters import LiveParameters
from msprobe_core.monitor.parts import Parts
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.plan_switch import Switch
from msprobe_core.monitor.readings import Step
from msprobe_core.monitor.readout import Readout
from msprobe_core.monitor.sinks import Written
from msprobe_core.monitor.targets import Targets
from msprobe_core.monitor.training import Source, Training
from msprobe_core.protocols.capabilities import MonitoringFramework
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.monitoring import MonitorWriter
from msprobe_core.protocols.trainer_tools import TrainerFramework, TrainerTools

_logger = logging.getLogger(__name__)

_MAX_FAILURES_SAID = 20


class Collector:
    """Monitors one training: models, and the optimizer whose steps are counted."""

    def __init__(
        self,
        plan: MonitorPlan,
        framework: Framework,
        models: Sequence[Any],
        optimizer: Any,
        *,
        grad_acc_steps: int = 1,
        start_iteration: int = 0,
        has_main_grad: bool = False,
        groups: Mapping[str, Any] | None = None,
        ends_steps: bool = True,
        is_switched: bool = False,
        writers: Sequence[MonitorWriter] = (),
    ) -> None:
        """Begin to monitor; the first step is the one that is about to run.

        Args:
            plan: What to collect.
            framework: Of the models.
            models: One, or the parts of a virtual pipeline; ``None`` where a part is on another rank.
            optimizer: Updates their parameters; ``None`` if steps do not end by it, and moments are not collected.
            grad_acc_steps: Micro-batches of a step.
            start_iteration: Number of the first step; 0 continues the steps of a directory that is continued.
            has_main_grad: Whether gradients are in ``main_grad`` where parameters have one.
            groups: Process groups of the training, by what is parallel in them: ``pp``, ``tp``, ``dp``.
            ends_steps: Whether a step of the optimizer ends a step; otherwise `end_step` does.
            is_switched: Whether editing the plan's file switches collection.
            writers: Further ones, beside those that the plan names.

        Raises:
            SessionError: the framework cannot be monitored, or something is no model or no optimizer.
            ConfigError: there is no writer of a name.
            PluginError: a writer cannot begin.
        """
        self._framework = framework
        monitored, trainer, present = _checked(plan, framework, models, optimizer)
        rank = framework.rank() or 0
        directory = directory_of(plan, rank)
        self._training = Training(
            plan=plan,
            framework=monitored if trainer is None else trainer,
            trainer=trainer,
            models=present,
            parameters=LiveParameters(monitored, present, Targets(plan)),
            optimizer=optimizer,
            grad_acc_steps=grad_acc_steps,
            has_main_grad=has_main_grad,
            rank=rank,
            groups=groups or {},
            directory=directory,
        )
        self._failures_said: set[str] = set()
        self._is_closed = False
        self._has_changed = self._is_refreshed = False
        self._ends_steps = ends_steps
        self._added = list(writers)
        self._switch = Switch(plan, rank) if is_switched else None
        self._step = start_iteration or (step_after(directory) if plan.append_output else 0)
        self._parts = self._parts_of(self._training, is_on=self._switch is None or self._switch.is_on)
        given = [model for _, model in self._training.models]
        is_dumping = plan.extensions.alarm_action == "dump"
        self._alarm_dump = (
            AlarmDump(
                dump_config(plan), framework, given, self._note_failure, most=plan.extensions.max_windows,
                cooldown_s=plan.extensions.cooldown_s,
            ) if is_dumping else None
        )  # fmt: skip
        is_flight = plan.extensions.alarm_action == "flight"
        self._alarms = AlarmLog(plan, rank, AlarmFlight(plan) if is_flight else self._alarm_dump)
        self._unwatch_updates = _nothing
        if ends_steps or optimizer is not None:
            watch = self._training.framework.watch_updates
            self._unwatch_updates = watch(optimizer, self._before_update, self._updated)
        atexit.register(self.close)
        self._begin_step()
        if self._alarm_dump is not None:
            self._alarm_dump.begin_step(self._step)

    @property
    def window(self) -> Path | None:
        """Directory of the step that is being recorded after an alarm; ``None`` if none is."""
        return None if self._alarm_dump is None else self._alarm_dump.directory

    def add_writer(self, writer: MonitorWriter) -> None:
        """Pass the values of the following steps to a further writer too."""
        self._added.append(writer)

    def _parts_of(self, training: Training, *, is_on: bool) -> Parts:
        return Parts(self._framework, training, is_on=is_on, on_failure=self._note_failure)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        """Attach what the step needs, or take it out where the step is not collected."""
        parts = self._parts
        if not parts.schedule.selects(self._step):
            parts.detach()
            return
        if self._has_changed:
            self._has_changed = False
            parts.modules.detach()  # its hooks are on parameters that the model had before
        parts.buffer.begin(self._step)
        parts.begin_step()

    def _before_update(self, is_updated: Callable[[Any], bool] | None = None) -> None:
        parameters, parts = self._training.parameters, self._parts
        with parts.own_time, self._framework.quiet(self._note_failure):
            if not parts.buffer.is_open:
                return
            if not self._is_refreshed:
                self._is_refreshed = True
                self._has_changed = parameters.refresh()
            with parameters.narrowed(is_updated):
                self._take_each(lambda source: source.before_update(parts.buffer))

    def _updated(self) -> None:
        self._after_update()
        if self._ends_steps:
            self.end_step()

    def _after_update(self) -> None:
        parts = self._parts
        with parts.own_time, self._framework.quiet(self._note_failure):
            if parts.buffer.is_open:
                self._take_each(lambda source: source.after_update(parts.buffer))

    def end_step(self) -> None:
        """End a step, unless the optimizer's steps do."""
        if self._is_closed:
            return
        if self._training.optimizer is None:
            self._before_update()
            self._after_update()
        # Outside of the guard, inside of which nothing can be attached to or removed from the framework's modes.
        parts, is_recorded = self._parts, self.window is not None
        if self._alarm_dump is not None:
            self._alarm_dump.end_step()
        with parts.own_time, self._framework.quiet(self._note_failure):
            self._is_refreshed, is_collected = False, parts.buffer.is_open
            if is_collected:
                self._try("what is written once", parts.modules.end_step)
                parts.schedule.note_collected()
            self._pass_on(parts.buffer.finish())
            if parts.governor is not None:
                end_step = partial(parts.governor.end_step, is_collected=is_collected, is_recorded=is_recorded)
                self._try("how much the monitor takes", end_step, self._step)
            self._step += 1
            if self._switch is not None:
                self._try("switching the monitor by its file", self._follow, self._switch)
            self._begin_step()
        if self._alarm_dump is not None:
            self._alarm_dump.begin_step(self._step)

    def _follow(self, switch: Switch) -> None:
        """Continue with what the plan's file says now."""
        plan = switch.poll(is_done=self._parts.schedule.is_done)
        if plan is None:
            return
        old = self._training.plan
        if (plan.output, plan.append_output) != (old.output, old.append_output):
            _logger.warning("%s: where results go is not changed while the training runs", plan.source)
        plan = msgspec.structs.replace(plan, output=old.output, append_output=())
        given = self._training
        parameters = LiveParameters(given.framework, given.models, Targets(plan))
        training = replace(given, plan=plan, parameters=parameters, directory=directory_of(plan, given.rank))
        parts = self._parts_of(training, is_on=switch.is_on)  # may fail, and then all stays
        self._end_parts()
        self._training, self._parts = training, parts
        self._alarms.follow(plan)
        _logger.info("the monitor %s step %d", "begins with" if switch.is_on else "pauses from", self._step)

    def follow(self, plan: MonitorPlan, *, finds_modules: bool = False) -> None:
        """Collect the operations, and the values and gradients of modules, that another plan asks for, from now on.

        Args:
            plan: Differs from the present one in nothing else.
            finds_modules: Whether modules may have been replaced.
        """
        is_same = plan.quantities == self._training.plan.quantities
        self._training = replace(self._training, plan=plan)
        self._parts.follow(self._training, renews_modules=finds_modules or not is_same)

    @property
    def readout(self) -> Readout:
        """Reads values of the current step at a program's request."""
        return Readout(self._framework, self._training, self._parts.buffer, self._note_failure)

    # --- results ----------------------------------------------------------------------------------------------------

    def _end_parts(self) -> None:
        """Write what has been collected by the present plan."""
        self._try("the last steps", lambda: self._pass_on(self._parts.end()))
        for sink in self._parts.sinks:
            self._try("the last steps", sink.close)
        if self._parts.governor is not None:
            self._try("how much the monitor takes", self._parts.governor.close)

    def _take_each(self, take: Callable[[Source], None]) -> None:
        """Let every source take, also if one before it fails."""
        for source in self._parts.sources:
            with self._framework.quiet(self._note_failure):
                take(source)

    def _pass_on(self, steps: Iterable[Step]) -> None:
        added = [Written(writer, self._training.plan) for writer in self._added]
        for step in steps:
            for sink in (*self._parts.sinks, self._alarms, *added):
                self._try(f"step {step.number}", sink.add, step)

    def _try(self, what: str, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except BaseException as error:  # noqa: BLE001  # of disks and writers; the training has nothing to do with it
            self._note_failure(what, kept(error))

    def _note_failure(self, where: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, MsprobeError) else f"{where}: {reason_of(error)}"
        if reason not in self._failures_said and len(self._failures_said) < _MAX_FAILURES_SAID:
            self._failures_said.add(reason)
            _logger.warning("the monitor lacks a part of step %d (%s); training goes on", self._step, reason)

    def close(self) -> None:
        """End: write what has been collected, and how much of the training was seen. Later calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._unwatch_updates()
        if self._alarm_dump is not None:
            self._alarm_dump.close()
        self._end_parts()
        for each in (self._alarms, *self._added):
            self._try("the last steps", each.close)
        if self._switch is not None:
            self._try("switching the monitor off in its file", self._switch.end)


def _nothing() -> None:
    """Do nothing."""


def _checked(
    plan: MonitorPlan, framework: Framework, models: Sequence[Any], optimizer: Any
) -> tuple[MonitoringFramework, TrainerTools | None, list[tuple[int, Any]]]:
    """Return what knows the training's tensors and its trainer, and the models that are here with their positions.

    Raises:
        SessionError: the framework cannot be monitored, or something is no model.
    """
    if not isinstance(framework, MonitoringFramework):
        raise SessionError(f"the training monitor does not support {framework.name}")
    wrong = next((each for each in models if each is not None and not framework.is_model(each)), None)
    if wrong is not None:
        raise SessionError(f"the monitor got {type(wrong).__name__}, which is no model of {framework.name}")
    first = plan.single_stage if len(models) == 1 else 0
    present = [(stage, model) for stage, model in enumerate(models, first) if model is not None]
    given = [model for _, model in present]
    trainer = framework.for_training(given, optimizer) if isinstance(framework, TrainerFramework) else None
    return framework, trainer, present
