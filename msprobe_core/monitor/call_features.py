"""Features of attention and routing, from what chosen modules are given."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msprobe_core.interception.containers import children_of
from msprobe_core.monitor.layer_features import attention_columns, logits_of, router_entropy
from msprobe_core.monitor.layer_weights import feature_name, layers_of
from msprobe_core.monitor.module_calls import CallObserver, ModuleCall
from msprobe_core.monitor.training import Take, Training, measuring
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.protocols.framework import Framework

_logger = logging.getLogger(__name__)


class _Features(CallObserver):
    """Of the modules of one model at some paths."""

    def __init__(self, framework: Framework, training: Training, take: Take, stage: int, quantity: Quantity) -> None:
        self._tools = measuring(training.framework, "features of layers")
        self._is_tensor = framework.is_tensor
        self._take = take
        self._stage = stage
        self._quantity = quantity
        self._order = training.plan.sa_order
        found = layers_of(training, quantity).items()
        self._modules = {path: module for (at, path), module in found if at == stage}
        self._has_complained = False

    def wants(self, path: str) -> bool:
        """Whether the feature is configured for it."""
        return path in self._modules

    def _tensors(self, values: Sequence[Any]) -> list[Any]:
        found = [self._tools.elements(value) for value in values if self._is_tensor(value)]
        return [each for each in found if each is not None]

    def _note(self, call: ModuleCall, numbers: Mapping[str, Any]) -> None:
        name = feature_name(call.name, self._quantity)
        self._take.numbers(self._quantity, name, numbers, stage=self._stage, micro_step=call.micro_step)

    def _complain(self, call: ModuleCall, what: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            _logger.warning("%s: module %s %s, and is left out", self._quantity.value, call.path, what)


class _Attention(_Features):
    """Of queries and keys, the first two tensors of four dimensions that a module is given."""

    def see_inputs(self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compute the features."""
        found = [tensor for tensor in self._tensors([*args, *kwargs.values()]) if len(tensor.shape) == 4]
        if len(found) < 2:
            self._complain(call, "is not given queries and keys of four dimensions")
            return
        self._note(call, attention_columns(found[0], found[1], self._order))


class _Routing(_Features):
    """Of what a router is given, or makes."""

    def __init__(self, framework: Framework, training: Training, take: Take, stage: int, quantity: Quantity) -> None:
        super().__init__(framework, training, take, stage, quantity)
        self._given: Mapping[str, list[Any]] = {}

    def see_inputs(self, call: ModuleCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keep what it is given, until it has run."""
        self._given = {call.path: self._tensors([*args, *kwargs.values()])}

    def see_output(self, call: ModuleCall, output: Any) -> None:
        """Compute the features."""
        given, self._given = self._given.get(call.path, []), {}
        module, made = self._modules[call.path], children_of(output)
        values = made.values() if isinstance(made, Mapping) else [output] if made is None else made
        weight, bias = (self._own(module, name) for name in ("weight", "bias"))
        logits = logits_of(given, self._tensors(list(values)), weight, bias)
        if logits is None:
            self._complain(call, "is given and makes no logits")
            return
        self._note(call, router_entropy(logits))

    def _own(self, module: Any, name: str) -> Any:
        value = getattr(module, name, None)
        return self._tools.elements(value) if self._is_tensor(value) else None


_KINDS = ((Quantity.ATTENTION, _Attention), (Quantity.ROUTER_LOGIT, _Routing))


def features_of_calls(framework: Framework, training: Training, take: Take, stage: int) -> list[CallObserver]:
    """Return the observers of a model's calls that compute features."""
    wanted = training.plan.quantities
    return [kind(framework, training, take, stage, quantity) for quantity, kind in _KINDS if quantity in wanted]
