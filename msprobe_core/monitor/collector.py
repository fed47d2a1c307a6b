"""Collects the quantities of a training, step by step: at modules, at parameters, and around the optimizer's step.

A step of the monitor ends when the optimizer's step does. Statistics are computed where tensors are; results on a
device are fetched at the end of the next step, so that no step waits for them.
"""

from __future__ import annotations

import atexit
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_core.capture.window import Interception, Model
from msprobe_core.errors import MsprobeError, SessionError
from msprobe_core.guard import kept, reason_of
from msprobe_core.model import Digest, Level, RiskLevel
from msprobe_core.monitor.alarms import Alarm, Alarms
from msprobe_core.monitor.coverage import Coverage
from msprobe_core.monitor.csv_tree import CsvTree
from msprobe_core.monitor.module_calls import MonitorRecorder
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.quantities import Op, Quantity
from msprobe_core.names import without_wrappers
from msprobe_core.protocols.capabilities import MonitoringFramework
from msprobe_core.protocols.framework import Framework, Reducer, Removable
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.untrusted.paths import encode_json

_logger = logging.getLogger(__name__)

_MAX_ALARMS_SAID, _MAX_ALARMS_KEPT = 10, 1000
"""Alarms that are logged, and that are in ``anomaly.json``: a training that has gone wrong alarms in every step."""

_MAX_FAILURES_SAID = 20
_OF_MODULES = frozenset({Quantity.ACTIVATION, Quantity.ACTIVATION_GRADIENT})


@dataclass
class _Open:
    """A step that is being collected, and what computes its statistics."""

    step: Step
    reducer: Reducer


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

        Raises:
            SessionError: the framework cannot be monitored, or something is no model or no optimizer.
        """
        if not isinstance(framework, MonitoringFramework):
            raise SessionError(f"the training monitor does not support {framework.name}")
        wrong = next((each for each in models if each is not None and not framework.is_model(each)), None)
        if wrong is not None:
            raise SessionError(f"set_monitor() got {type(wrong).__name__}, which is no model of {framework.name}")
        self._plan = plan
        self._framework = framework
        self._tools: MonitoringFramework = framework
        self._models = [(stage, model) for stage, model in enumerate(models) if model is not None]
        self._optimizer = optimizer
        self._has_main_grad = has_main_grad
        self._step = start_iteration
        self._num_collected = 0
        self._failures_said: set[str] = set()
        self._num_alarms = 0
        self._alarms_found: list[Alarm] = []
        rank = framework.rank() or 0
        self._is_on = plan.selects_rank(rank)
        self._is_closed = False
        self._rank = rank
        self._parameters = {
            (stage, self._name_of(name)): parameter
            for stage, model in self._models
            for name, parameter in framework.parameters_of(model).items()
            if self._selects_parameter(stage, self._name_of(name))
        }
        self._coverage = Coverage(self._expected())
        self._alarms = Alarms(plan.rules, plan.ops)
        self._files = CsvTree(plan, rank)
        self._recorders = [
            MonitorRecorder(
                framework,
                self.take,
                stage,
                quantities=plan.quantities,
                selects_module=self._module_selector(stage),
                selects_parameter=self._parameter_selector(stage),
                is_training=self._training_of(model),
                grad_acc_steps=grad_acc_steps,
                every_micro_batch=plan.monitor_mbs_grad,
                on_failure=self._note_failure,
            )
            for stage, model in self._models
        ]
        self._attached: list[Removable] = []
        self._open: _Open | None = None
        self._sealed: list[_Open] = []
        self._unwatch_updates = framework.watch_updates(optimizer, self._before_update, self._after_update)
        atexit.register(self.close)
        self._begin_step()

    # --- names ----------------------------------------------------------------------------------------------------

    def _name_of(self, name: str) -> str:
        return without_wrappers(name) if self._plan.squash_name else name

    def _selects_parameter(self, stage: int, name: str) -> bool:
        targets = self._plan.targets
        return not targets or any(each.startswith(target) for target in targets for each in (name, f"{stage}:{name}"))

    def _module_selector(self, stage: int) -> Callable[[str], bool]:
        targets = frozenset(self._plan.targets)
        everything = not targets or self._plan.all_xy
        return lambda path: everything or path in targets or f"{stage}:{path}" in targets

    def _parameter_selector(self, stage: int) -> Callable[[str], bool]:
        return lambda name: (stage, self._name_of(name)) in self._parameters

    def _training_of(self, model: Any) -> Callable[[], bool]:
        return lambda: self._tools.is_training(model)

    def _expected(self) -> Mapping[Quantity, frozenset[str] | None]:
        names = frozenset(f"{stage}:{name}" for stage, name in self._parameters)
        return {
            quantity: None if quantity in _OF_MODULES else names
            for quantity in Quantity
            if quantity in self._plan.quantities
        }

    # --- steps ------------------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        """Attach what the step needs, or take it out where the step is not collected."""
        if not self._is_on or not self._plan.selects(self._step, self._num_collected):
            self._detach()
            return
        self._open = _Open(Step(self._step), self._framework.reducer())
        for recorder in self._recorders:
            recorder.restart()
        if not self._attached:
            self._attach()

    def _attach(self) -> None:
        quantities = self._plan.quantities
        options = Interception(Level.L0, RiskLevel.CORE.value, ())
        for (_, model), recorder in zip(self._models, self._recorders, strict=True):
            recorder.is_open = True
            if quantities & _OF_MODULES:
                self._attached.append(self._framework.attach([Model("", model)], options, recorder))
            elif Quantity.GRADIENT_UNREDUCED in quantities:
                self._attached.append(self._tools.watch_accumulation([Model("", model)], recorder))

    def _detach(self) -> None:
        while self._attached:
            attachment = self._attached.pop()
            attachment.detach()
            attachment.release()
        for recorder in self._recorders:
            recorder.is_open = False

    def take(
        self, quantity: Quantity, name: str, tensor: Any, *, stage: int = 0, micro_step: int | None = None
    ) -> None:
        """Read one tensor of the current step."""
        current = self._open
        if current is None:
            return
        meta, digest = self._framework.describe(tensor), Digest()
        reading = Reading(quantity, stage, self._name_of(name), micro_step, meta, digest, identity=id(tensor))
        current.reducer.statistics(tensor, digest)
        if Op.ZEROS in self._plan.ops:
            reading.zeros = self._tools.share_below(tensor, self._plan.eps)
        current.step.add(reading)

    def _before_update(self) -> None:
        with self._framework.quiet(self._note_failure):
            quantities = self._plan.quantities
            for (stage, name), parameter in self._parameters.items() if self._open is not None else ():
                if Quantity.GRADIENT_REDUCED in quantities:
                    gradient = self._tools.gradient_of(parameter, is_main=self._has_main_grad)
                    if gradient is not None:
                        self.take(Quantity.GRADIENT_REDUCED, name, gradient, stage=stage)
                if Quantity.EXP_AVG in quantities:
                    moments = self._tools.moments_of(self._optimizer, parameter)
                    for quantity, moment in zip((Quantity.EXP_AVG, Quantity.EXP_AVG_SQ), moments, strict=True):
                        if moment is not None:
                            self.take(quantity, name, moment, stage=stage)
                if Quantity.PARAM_ORIGIN in quantities:
                    self.take(Quantity.PARAM_ORIGIN, name, parameter, stage=stage)

    def _after_update(self) -> None:
        with self._framework.quiet(self._note_failure):
            if self._open is not None and Quantity.PARAM_UPDATED in self._plan.quantities:
                for (stage, name), parameter in self._parameters.items():
                    self.take(Quantity.PARAM_UPDATED, name, parameter, stage=stage)
            self._end_step()

    def _end_step(self) -> None:
        current, self._open = self._open, None
        if current is not None:
            self._num_collected += 1
            self._sealed.append(current)
        self._step += 1
        # What a device still computes is read a step later.
        self._finish_steps(keeps_last=current is not None and not current.reducer.is_complete)
        self._begin_step()

    def _finish_steps(self, *, keeps_last: bool) -> None:
        done = self._sealed[:-1] if keeps_last else self._sealed[:]
        del self._sealed[: len(done)]
        for each in done:
            each.reducer.collect()
            each.step.collect(self._tools.floats)
            self._coverage.add(each.step)
            self._report(self._alarms.check(each.step))
            self._files.add(each.step)

    def _note_failure(self, where: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, MsprobeError) else f"{where}: {reason_of(error)}"
        if reason not in self._failures_said and len(self._failures_said) < _MAX_FAILURES_SAID:
            self._failures_said.add(reason)
            _logger.warning("the monitor lacks a part of step %d (%s); training goes on", self._step, reason)

    # --- alarms and the end -----------------------------------------------------------------------------------------

    def _report(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            if self._num_alarms < _MAX_ALARMS_SAID:
                _logger.warning("%s", message_of(alarm, self._rank))
            self._num_alarms += 1
        room = _MAX_ALARMS_KEPT - len(self._alarms_found)
        if alarms and room > 0 and self._plan.writes_alarms:
            self._alarms_found += alarms[:room]
            directory = self._plan.output / "anomaly_detected" / f"rank{self._rank}"
            make_directory(directory)
            content = dict(_record_of(alarm, self._rank) for alarm in self._alarms_found)
            _write_json(directory / "anomaly.json", content)

    def close(self) -> None:
        """End: write what has been collected, and how much of the training was seen. Later calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._unwatch_updates()
        self._detach()
        self._open = None
        try:
            self._finish_steps(keeps_last=False)
            self._files.flush()
            if self._num_collected:
                make_directory(self._files.directory)
                _write_json(self._files.directory / "coverage.json", self._coverage.content())
        except Exception as error:  # noqa: BLE001  # of disks; the training has nothing to do with it
            self._note_failure("the last steps", kept(error))
        if self._num_collected and (unseen := self._coverage.unseen()):
            listed = ", ".join(quantity.value for quantity in unseen)
            _logger.warning(
                "the monitor saw nothing of %s in %d steps; %s says what was expected",
                listed, self._num_collected, self._files.directory / "coverage.json",
            )  # fmt: skip


def _write_json(path: Path, content: object) -> None:
    with whole_file(path) as file:
        file.write(encode_json(content, indent=2) + b"\n")


def message_of(alarm: Alarm, rank: int) -> str:
    """Return an alarm as the established monitor words it."""
    compared = "" if alarm.history is None else f", history mean {alarm.history}"
    return (
        f"Rule {alarm.rule.rule_name} reports anomaly signal in ({_tag(alarm, rank)!r}, {alarm.op.value!r}) at step "
        f"{alarm.step}, current value {alarm.value}{compared}."
    )


def _tag(alarm: Alarm, rank: int) -> str:
    reading = alarm.reading
    micro_step = 0 if reading.micro_step is None else reading.micro_step
    return f"{reading.stage}:{reading.name}:{micro_step}/rank{rank}/{reading.quantity.value}"


def _record_of(alarm: Alarm, rank: int) -> tuple[str, dict[str, Any]]:
    """Return the key and the record of an alarm in ``anomaly.json``; the operation is part of the key."""
    tag = _tag(alarm, rank)
    record = {
        "rank": rank,
        "step": alarm.step,
        "micro_step": alarm.reading.micro_step or 0,
        "pp_stage": 0,
        "vpp_stage": alarm.reading.stage,
        "call_id": 0,
        "tag_name": tag,
        "op": alarm.op.value,
        "value": alarm.value if json.dumps(alarm.value).lstrip("-")[:1].isdigit() else str(alarm.value),
        "message": message_of(alarm, rank),
        "group_mates": [rank],
    }
    return f"{tag}_step_{alarm.step}_{alarm.op.value}", record
