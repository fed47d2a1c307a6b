"""Whether gradients and the optimizer's momentum point the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msprobe_core.monitor.sampled_elements import sampled
from msprobe_core.monitor.training import Source, Take, Training, measuring
from msprobe_core.monitoring.quantities import Quantity

MOST_SAMPLED = 1 << 20
"""Elements that are compared; the standard error of a share of these is below 0.05 percentage points."""

COLUMN = "agreement"
_NO_MOMENT: Mapping[str, Any] = {COLUMN: 1.0}


class Directions(Source):
    """Agreement of gradient and first moment."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._tools = measuring(training.framework, "directions of gradients")

    def before_update(self, take: Take) -> None:
        """Compare the signs; 1.0 as long as there is no moment."""
        training = self._training
        for (stage, name), parameter in training.parameters.items():
            gradient = training.framework.gradient_of(parameter, is_main=training.has_main_grad)
            if gradient is None:
                continue
            moment = training.framework.moments_of(training.optimizer, parameter)[0]
            if moment is None:
                take.numbers(Quantity.DIRECTION, name, _NO_MOMENT, stage=stage)
            elif (pair := sampled(self._tools, [gradient, moment], MOST_SAMPLED)) is not None:
                take.numbers(Quantity.DIRECTION, name, {COLUMN: agreement_of(*pair)}, stage=stage)


def agreement_of(gradient: Any, moment: Any) -> Any:
    """Return (sum of sign(g) sign(m) / n + 1) / 2: 1 if all signs agree, 0 if all are opposite; a zero is half of it.

    Args:
        gradient: A vector.
        moment: The same elements of the moment.
    """
    return ((gradient.sign().float() * moment.sign().float()).mean() + 1) / 2
