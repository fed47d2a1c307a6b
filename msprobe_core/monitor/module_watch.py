"""Hooks on modules and parameters, in place during collected steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msprobe_core.capture.window import Interception, Model
from msprobe_core.model import Level, RiskLevel
from msprobe_core.monitor.call_features import features_of_calls
from msprobe_core.monitor.governor import OwnTime
from msprobe_core.monitor.module_calls import MonitorRecorder
from msprobe_core.monitor.structure import FirstStep
from msprobe_core.monitor.targets import Targets
from msprobe_core.monitor.training import Take, Training
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.framework import Framework, Removable
from msprobe_core.protocols.trainer_tools import Reductions

OF_MODULES = frozenset({Quantity.ACTIVATION, Quantity.ACTIVATION_GRADIENT})
_OF_CALLS = OF_MODULES | {Quantity.ATTENTION, Quantity.ROUTER_LOGIT}


class ModuleWatch:
    """Takes what modules are given and make, and gradients of parameters as they are accumulated."""

    def __init__(
        self,
        framework: Framework,
        training: Training,
        targets: Targets,
        take: Take,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        """Attach nothing yet.

        Args:
            framework: Intercepts calls.
            training: Has the models.
            targets: Say which modules.
            take: Receives the tensors.
            on_failure: Called with what could not be read, and why.
        """
        self._framework = framework
        self._training = training
        self._quantities = training.plan.quantities
        self._attached: list[Removable] = []
        self._reductions: list[Reductions] = []
        plan = training.plan
        self._first_step = FirstStep(framework, training) if plan.print_struct or plan.stack_info else None
        self._features = {stage: features_of_calls(framework, training, take, stage) for stage, _ in training.models}
        self._recorders = [
            MonitorRecorder(
                framework,
                take,
                stage,
                quantities=self._quantities,
                selects_module=targets.module_selector(stage),
                selects_parameter=_parameter_selector(training, targets, stage),
                is_training=_training_of(training, model),
                grad_acc_steps=training.grad_acc_steps,
                every_micro_batch=training.plan.monitor_mbs_grad,
                on_failure=on_failure,
                observers=[*self._features[stage], *(self._first_step.observers(stage) if self._first_step else [])],
            )
            for stage, model in training.models
        ]

    def count_calls(self, own_time: OwnTime) -> None:
        """Count the time of what calls and gradients of modules report."""
        for recorder in self._recorders:
            own_time.count_calls(
                recorder, "open_module", "record_inputs", "record_outputs", "input_gradients", "output_gradients",
                "record_gradient", "record_parameter_gradient",
            )  # fmt: skip

    def begin_step(self) -> None:
        """Count calls from 0, and attach if nothing is attached."""
        for recorder in self._recorders:
            recorder.restart()
        if not self._attached:
            self._attach()

    def _attach(self) -> None:
        options = Interception(Level.L0, RiskLevel.CORE.value, (), inside_graphs=False)
        for (_, model), recorder in zip(self._training.models, self._recorders, strict=True):
            recorder.is_open = True
            self._watch_reductions(model, recorder)
            if self._quantities & _OF_CALLS or self._first_step is not None:
                self._attached.append(self._framework.attach([Model("", model)], options, recorder))
            elif Quantity.GRADIENT_UNREDUCED in self._quantities:
                attachment = self._training.framework.watch_accumulation([Model("", model)], recorder)
                self._attached.append(attachment)

    def _watch_reductions(self, model: Any, recorder: MonitorRecorder) -> None:
        trainer = self._training.trainer
        if trainer is not None and Quantity.GRADIENT_UNREDUCED in self._quantities:
            reductions = trainer.watch_reductions(model, recorder.record_unreduced, recorder.note_failure)
            recorder.is_reported_elsewhere = reductions.claims
            self._reductions.append(reductions)

    def end_step(self) -> None:
        """Write what is written once, and take out the hooks that it needed.

        Raises:
            StoreError: a file cannot be written.
        """
        first_step, self._first_step = self._first_step, None
        if first_step is not None and self._attached:
            self.detach()
            for (stage, _), recorder in zip(self._training.models, self._recorders, strict=True):
                recorder.observers = self._features[stage]
            first_step.write()

    def detach(self) -> None:
        """Remove all hooks."""
        while self._reductions:
            self._reductions.pop().detach()
        while self._attached:
            attachment = self._attached.pop()
            attachment.detach()
            attachment.release()
        for recorder in self._recorders:
            recorder.is_open = False


def _parameter_selector(training: Training, targets: Targets, stage: int) -> Callable[[str], bool]:
    return lambda name: (stage, targets.name_of(name)) in training.parameters


def _training_of(training: Training, model: Any) -> Callable[[], bool]:
    return lambda: training.framework.is_training(model)
