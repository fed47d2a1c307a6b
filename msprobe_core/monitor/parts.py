"""The parts of a monitor that a plan describes; another plan, read from an edited file, has others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe_core.errors import BrokenPluginError, ConfigError
from msprobe_core.guard import GuardedOffer, plugin_call
from msprobe_core.monitor.background_writer import BackgroundWriter
from msprobe_core.monitor.communication import CallerLog, CommunicationWatch
from msprobe_core.monitor.coverage import Coverage
from msprobe_core.monitor.governor import Governor, OwnTime
from msprobe_core.monitor.layer_weights import feature_name, layers_of
from msprobe_core.monitor.module_watch import OF_MODULES, ModuleWatch
from msprobe_core.monitor.optimizer_quantities import sources_of
from msprobe_core.monitor.parallel_layout import Layout
from msprobe_core.monitor.plan import FEATURES, MonitorPlan
from msprobe_core.monitor.readings import Step
from msprobe_core.monitor.schedule import Schedule
from msprobe_core.monitor.sinks import Sink, Written
from msprobe_core.monitor.sketch_log import SketchLog
from msprobe_core.monitor.step_buffer import StepBuffer
from msprobe_core.monitor.targets import Targets
from msprobe_core.monitor.training import Source, Training
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.plugins import registry
from msprobe_core.protocols.framework import Framework
from msprobe_core.protocols.monitoring import MonitorWriter

_logger = logging.getLogger(__name__)


class Parts:
    """What chooses steps, takes quantities of them, and receives these."""

    def __init__(
        self,
        framework: Framework,
        training: Training,
        *,
        is_on: bool,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        """Make them; nothing is attached yet.

        Args:
            framework: Intercepts calls.
            training: Has the plan.
            is_on: Whether to collect at all.
            on_failure: Called with what could not be read, and why.

        Raises:
            ConfigError: there is no writer of a name.
            PluginError: a writer cannot begin.
        """
        plan, directory, layout = training.plan, training.directory, Layout(training)
        self._framework = framework
        self._targets = targets = Targets(plan)
        self._on_failure = on_failure
        _warn_of_features(training)
        writers = [Written(writer, plan) for writer in _writers(plan, directory, training.rank)]
        layout.open(directory)
        self.schedule = Schedule(plan, training.rank, is_on=is_on)
        self.buffer = StepBuffer(framework, training.framework, plan, targets.name_of)
        self.sources: Sequence[Source] = [layout, *sources_of(training)]
        self.modules = ModuleWatch(framework, training, targets, self.buffer, on_failure)
        callers = CallerLog(directory) if plan.cc_distribution.enable and plan.cc_distribution.cc_log_only else None
        self.communication = CommunicationWatch(framework, plan.cc_distribution, self.buffer, callers, on_failure)
        logs: list[Sink] = [] if callers is None else [callers]
        sketches = [SketchLog(plan, directory, training.rank)] if plan.extensions.sketch == "grad" else []
        coverage = Coverage(lambda: _expected(training, layout), directory)
        self.sinks: Sequence[Sink] = [*writers, *sketches, *logs, layout, coverage]
        self.own_time = OwnTime()
        self.governor = self._governed(plan.extensions.max_overhead, directory)

    def follow(self, training: Training, *, renews_modules: bool) -> None:
        """Collect the operations, and the values and gradients of modules, that another plan asks for, from now on.

        Args:
            training: Has the plan, which differs from the present one in nothing else.
            renews_modules: Whether other values of modules are asked for, or modules may have been replaced.
        """
        self.buffer.follow(training.plan)
        for sink in self.sinks:
            if isinstance(sink, Written):
                sink.follow(training.plan)
        if renews_modules:
            self.modules.detach()
            self.modules = ModuleWatch(self._framework, training, self._targets, self.buffer, self._on_failure)
            if self.buffer.is_open:
                self.modules.begin_step()

    def _governed(self, bound: float | None, directory: Path) -> Governor | None:
        """Return what chooses the interval, and begin to measure; ``None`` if the plan sets no bound."""
        if bound is None:
            return None
        self.own_time.count_calls(self.buffer, "tensor")
        self.modules.count_calls(self.own_time)
        return Governor(self.schedule, self.own_time, bound, directory)

    def begin_step(self) -> None:
        """Attach what the step needs, if it is not attached."""
        self.modules.begin_step()
        self.communication.begin_step()

    def detach(self) -> None:
        """Take everything out."""
        self.modules.detach()
        self.communication.detach()

    def end(self) -> Iterator[Step]:
        """Detach, wait for the device, and return the steps that have not been passed on."""
        self.detach()
        self.buffer.drop()
        yield from self.buffer.finish_all()


def _expected(training: Training, layout: Layout) -> Mapping[Quantity, frozenset[str] | None]:
    """Return the names that should have values in each step, by quantity; ``None`` if not known before."""
    plan, name_of = training.plan, Targets(training.plan).name_of

    def names_of(quantity: Quantity) -> frozenset[str] | None:
        if quantity in FEATURES:
            paths = layers_of(training, quantity)
            return frozenset(f"{stage}:{name_of(feature_name(path, quantity))}" for stage, path in paths)
        if quantity in OF_MODULES or quantity is Quantity.COMMUNICATION:
            return None
        return frozenset(each for each in layout.names_of(quantity) if plan.selects(quantity, each.partition(":")[2]))

    return {each: names_of(each) for each in Quantity if each in plan.quantities}


def _warn_of_features(training: Training) -> None:
    for quantity in FEATURES:
        if quantity in training.plan.quantities and not layers_of(training, quantity):
            _logger.warning("%s: no module of the model is named by 'l2_targets'", quantity.value)


def _writers(plan: MonitorPlan, directory: Path, rank: int) -> Sequence[MonitorWriter]:
    found: list[MonitorWriter] = []
    for name in dict.fromkeys(plan.extensions.writers):
        try:
            writer = _opened(name, plan, directory, rank)
        except BrokenPluginError as error:  # noqa: PERF203  # the monitor has its other writers
            _logger.warning("the monitor goes on without the writer '%s': %s", name, error)
        else:
            found.append(BackgroundWriter(writer) if plan.extensions.async_write else writer)
    return found


def _opened(name: str, plan: MonitorPlan, directory: Path, rank: int) -> MonitorWriter:
    known = registry().monitor_writers()
    if name not in known:
        registry().refuse_missing("msprobe_register_monitor_writers", name)
        raise ConfigError(f"{plan.source}: 'msprobe': there is no writer {name!r}; known: {', '.join(known)}")
    with plugin_call(f"the monitor's writer {name!r}", "open"):  # also the core's own
        writer = known[name].open(directory, rank, steps_per_file=plan.step_count_per_record, ndigits=plan.ndigits)
    if registry().provider_of("msprobe_register_monitor_writers", name) is None:
        return writer
    guarded: Any = GuardedOffer(writer, registry().described("monitor writer", name), {})
    return guarded
