"""Collects the quantities of a training, step by step; a step ends when the optimizer's does."""

from __future__ import annotations

import atexit
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from msprobe_core.errors import ConfigError, MsprobeError, SessionError
from msprobe_core.guard import kept, plugin_call, reason_of
from msprobe_core.monitor.alarm_dump import AlarmDump
from msprobe_core.monitor.alarm_log import AlarmLog
from msprobe_core.monitor.coverage import Coverage
from msprobe_core.monitor.layout import Layout
from msprobe_core.monitor.module_watch import OF_MODULES, ModuleWatch
from msprobe_core.monitor.parameters import LiveParameters
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Step
from msprobe_core.monitor.schedule import Schedule
from msprobe_core.monitor.sinks import Sink, Written
from msprobe_core.monitor.sources import sources_of
from msprobe_core.monitor.step_buffer import StepBuffer
from msprobe_core.monitor.targets import Targets
from msprobe_core.monitor.training import Training
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.plugins import registry
from msprobe_core.protocols.capabilities import MonitoringFramework
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.monitoring import MonitorWriter
from msprobe_core.protocols.trainer_tools import TrainerFramework

_logger = logging.getLogger(__name__)

_MAX_FAILURES_SAID = 20
_ZONE = timezone(timedelta(hours=8))
"""Readers parse the directory's time, which the established monitor gives in this zone."""


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
    ) -> None:
        """Begin to monitor; the first step is the one that is about to run.

        Args:
            plan: What to collect.
            framework: Of the models.
            models: One, or the parts of a virtual pipeline; ``None`` where a part is on another rank.
            optimizer: Updates their parameters.
            grad_acc_steps: Micro-batches of a step.
            start_iteration: Number of the first step.
            has_main_grad: Whether gradients are in ``main_grad`` where parameters have one.
            groups: Process groups of the training, by what is parallel in them: ``pp``, ``tp``, ``dp``.

        Raises:
            SessionError: the framework cannot be monitored, or something is no model or no optimizer.
            ConfigError: there is no writer of a name.
            PluginError: a writer cannot begin.
        """
        if not isinstance(framework, MonitoringFramework):
            raise SessionError(f"the training monitor does not support {framework.name}")
        wrong = next((each for each in models if each is not None and not framework.is_model(each)), None)
        if wrong is not None:
            raise SessionError(f"set_monitor() got {type(wrong).__name__}, which is no model of {framework.name}")
        targets = Targets(plan)
        present = [(stage, model) for stage, model in enumerate(models) if model is not None]
        rank = framework.rank() or 0
        given = [model for _, model in present]
        trainer = framework.for_training(given, optimizer) if isinstance(framework, TrainerFramework) else None
        training = self._training = Training(
            plan=plan,
            framework=framework if trainer is None else trainer,
            trainer=trainer,
            models=present,
            parameters=LiveParameters(framework, present, targets),
            optimizer=optimizer,
            grad_acc_steps=grad_acc_steps,
            has_main_grad=has_main_grad,
            rank=rank,
            groups=groups or {},
        )
        self._framework = framework
        self._step = start_iteration
        self._failures_said: set[str] = set()
        self._is_closed = False
        self._schedule = Schedule(plan, rank)
        self._buffer = StepBuffer(framework, framework, plan, targets.name_of)
        layout = Layout(training)
        self._sources = [layout, *sources_of(training)]
        self._modules = ModuleWatch(framework, training, targets, self._buffer, self._note_failure)
        models_here = [model for _, model in present]
        is_dumping = plan.extensions.alarm_action == "dump"
        self._alarm_dump = AlarmDump(plan, framework, models_here, self._note_failure) if is_dumping else None
        self._sinks = _sinks_of(training, layout, self._alarm_dump)
        self._unwatch_updates = training.framework.watch_updates(optimizer, self._before_update, self._after_update)
        atexit.register(self.close)
        self._begin_step()
        if self._alarm_dump is not None:
            self._alarm_dump.begin_step(self._step)

    @property
    def window(self) -> Path | None:
        """Directory of the step that is being recorded after an alarm; ``None`` if none is."""
        return None if self._alarm_dump is None else self._alarm_dump.directory

    def _begin_step(self) -> None:
        """Attach what the step needs, or take it out where the step is not collected."""
        if not self._schedule.selects(self._step):
            self._modules.detach()
            return
        if self._training.parameters.refresh():
            self._modules.detach()  # its hooks are on parameters that the model no longer has
        self._buffer.begin(self._step)
        self._modules.begin_step()

    def _before_update(self, is_updated: Callable[[Any], bool] | None = None) -> None:
        parameters = self._training.parameters
        with self._framework.quiet(self._note_failure), parameters.narrowed(is_updated):
            if self._buffer.is_open:
                for source in self._sources:
                    source.before_update(self._buffer)

    def _after_update(self) -> None:
        # Outside of the guard, inside of which nothing can be attached to or removed from the framework's modes.
        if self._alarm_dump is not None:
            self._alarm_dump.end_step()
        with self._framework.quiet(self._note_failure):
            if self._buffer.is_open:
                for source in self._sources:
                    source.after_update(self._buffer)
                self._schedule.note_collected()
            self._pass_on(self._buffer.finish())
            self._step += 1
            self._begin_step()
        if self._alarm_dump is not None:
            self._alarm_dump.begin_step(self._step)

    def _pass_on(self, steps: Iterable[Step]) -> None:
        for step in steps:
            for sink in self._sinks:
                self._try(f"step {step.number}", sink.add, step)

    def _try(self, what: str, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001  # of disks and writers; the training has nothing to do with it
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
        self._modules.detach()
        self._buffer.drop()
        self._try("the last steps", lambda: self._pass_on(self._buffer.finish_all()))
        for sink in self._sinks:
            self._try("the last steps", sink.close)


def _sinks_of(training: Training, layout: Layout, alarm_dump: AlarmDump | None) -> Sequence[Sink]:
    plan, rank = training.plan, training.rank
    began = datetime.now(_ZONE).strftime("%b%d_%H-%M-%S")
    directory = plan.output / f"{began}-rank{rank}-{secrets.token_hex(4)}"
    writers = [Written(writer, plan) for writer in _writers(plan, directory, rank)]
    layout.open(directory)
    coverage = Coverage(lambda: _expected(training, layout), directory)
    return [*writers, layout, coverage, AlarmLog(plan, rank, alarm_dump)]


def _expected(training: Training, layout: Layout) -> Mapping[Quantity, frozenset[str] | None]:
    """Return the names that should have values in each step, by quantity; ``None`` if not known before."""
    return {
        quantity: None if quantity in OF_MODULES else layout.names_of(quantity)
        for quantity in Quantity
        if quantity in training.plan.quantities
    }


def _writers(plan: MonitorPlan, directory: Path, rank: int) -> Sequence[MonitorWriter]:
    known = registry().monitor_writers()
    found: list[MonitorWriter] = []
    for name in dict.fromkeys(plan.extensions.writers):
        if name not in known:
            raise ConfigError(f"{plan.source}: 'msprobe': there is no writer {name!r}; known: {', '.join(known)}")
        with plugin_call(f"the monitor's writer {name!r}", "opening"):
            found.append(
                known[name].open(directory, rank, steps_per_file=plan.step_count_per_record, ndigits=plan.ndigits)
            )
    return found
