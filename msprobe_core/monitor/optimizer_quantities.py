"""Quantities that are taken around the optimizer's step: gradients, moments, parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msprobe_core.monitor.directions import Directions
from msprobe_core.monitor.layer_weights import LayerWeights
from msprobe_core.monitor.training import Source, Take, Training
from msprobe_core.monitor.updates import Updates
from msprobe_core.monitoring.quantities import Quantity


class Gradients(Source):
    """Gradients that the optimizer uses."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def before_update(self, take: Take) -> None:
        """Take them."""
        training = self._training
        for (stage, name), parameter in training.parameters.items():
            gradient = training.framework.gradient_of(parameter, is_main=training.has_main_grad)
            if gradient is not None:
                take.tensor(Quantity.GRADIENT_REDUCED, name, gradient, stage=stage)


class Moments(Source):
    """First and second moments of the optimizer, as the step before has left them."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def before_update(self, take: Take) -> None:
        """Take those that exist."""
        training = self._training
        for (stage, name), parameter in training.parameters.items():
            moments = training.framework.moments_of(training.optimizer, parameter)
            for quantity, moment in zip((Quantity.EXP_AVG, Quantity.EXP_AVG_SQ), moments, strict=True):
                if moment is not None:
                    take.tensor(quantity, name, moment, stage=stage)


class Parameters(Source):
    """Parameters before and after the step."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def before_update(self, take: Take) -> None:
        """Take the original ones; without an optimizer it is not known when they change."""
        if self._training.optimizer is not None:
            self._take_all(take, Quantity.PARAM_ORIGIN)

    def after_update(self, take: Take) -> None:
        """Take the updated ones."""
        self._take_all(take, Quantity.PARAM_UPDATED)

    def _take_all(self, take: Take, quantity: Quantity) -> None:
        for (stage, name), parameter in self._training.parameters.items():
            value = self._training.value_of(parameter)
            if value is not None:
                take.tensor(quantity, name, value, stage=stage)


_SOURCES: Sequence[tuple[frozenset[Quantity], Callable[[Training], Source]]] = (
    (frozenset({Quantity.GRADIENT_REDUCED}), Gradients),
    (frozenset({Quantity.EXP_AVG, Quantity.EXP_AVG_SQ}), Moments),
    (frozenset({Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED}), Parameters),
    (frozenset({Quantity.UPDATE}), Updates),
    (frozenset({Quantity.DIRECTION}), Directions),
    (frozenset({Quantity.LINEAR, Quantity.ROUTER_WEIGHT}), LayerWeights),
)
"""Sources, which are made when parameters exist and no step has run, and the quantities that they take."""


def sources_of(training: Training) -> list[Source]:
    """Return the sources of the quantities that the plan asks for."""
    return [make(training) for quantities, make in _SOURCES if training.plan.quantities & quantities]
