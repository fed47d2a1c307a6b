"""Features of the matrices of chosen layers, in each step before the update."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from msprobe_core.monitor.layer_features import router_similarity, spectral_columns, spectrum_of
from msprobe_core.monitor.targets import Targets
from msprobe_core.monitor.training import Source, Take, Training, measuring
from msprobe_core.monitoring.quantities import Quantity

_logger = logging.getLogger(__name__)

SUFFIXES: Mapping[Quantity, str] = {
    Quantity.LINEAR: "linear",
    Quantity.ROUTER_WEIGHT: "router_weight",
    Quantity.ATTENTION: "attention",
    Quantity.ROUTER_LOGIT: "router_logit",
}
"""Last part of the names of features, after that of the module."""


def feature_name(path: str, quantity: Quantity) -> str:
    """Return the name of a feature of a module: ``fc1.linear``."""
    return f"{path}.{SUFFIXES[quantity]}"


class LayerWeights(Source):
    """Spectra of matrices, and similarities of experts."""

    def __init__(self, training: Training) -> None:
        self._tools = measuring(training.framework, "features of layers")
        self._layers: list[tuple[Quantity, int, str, Any]] = []
        for quantity in (Quantity.LINEAR, Quantity.ROUTER_WEIGHT):
            found = layers_of(training, quantity)
            matrices = {place: module for place, module in found.items() if _is_matrix(module)}
            for stage, path in list(found.keys() - matrices.keys())[:1]:
                _logger.warning("%s: module %s:%s has no matrix, and is left out", quantity.value, stage, path)
            self._layers += [(quantity, stage, path, module) for (stage, path), module in matrices.items()]

    def before_update(self, take: Take) -> None:
        """Enqueue the features."""
        for quantity, stage, path, module in self._layers:
            matrix = self._tools.elements(module.weight)
            if matrix is None or len(matrix.shape) < 2:
                continue
            name = feature_name(path, quantity)
            if quantity is Quantity.LINEAR:
                take.numbers(quantity, name, spectrum_of(matrix), stage=stage, finish=spectral_columns)
            else:
                take.numbers(quantity, name, router_similarity(matrix), stage=stage)


def layers_of(training: Training, quantity: Quantity) -> Mapping[tuple[int, str], Any]:
    """Return the modules that a feature is configured for, by position of the model and path."""
    names = training.plan.l2_targets.get(quantity.value)
    if names is None or not training.plan.recording_l2_features:
        return {}
    tools, targets = measuring(training.framework, "features of layers"), Targets(training.plan)
    found: dict[tuple[int, str], Any] = {}
    for stage, model in training.models:
        selects = targets.module_selector(stage, names)
        found |= {(stage, path): module for path, module in tools.modules_of(model).items() if selects(path)}
    return found


def _is_matrix(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return weight is not None and len(weight.shape) >= 2
