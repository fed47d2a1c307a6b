"""All state that a training step reads and writes, copied to the host, to be restored later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._random_state import TorchState
from msprobe_core.interception import RandomStates

_GRADIENTS = ("grad", "main_grad")
"""Attributes of a parameter for its gradient; the second is Megatron's."""


class ModuleState:
    """See `msprobe_core.plugin.TrainingState`.

    Values of tensors are restored in place; attributes and dictionaries get their original tensors back. So references
    held by others, such as data parallelism and optimizers, stay valid.
    """

    def __init__(self, models: Iterable[nn.Module], others: Iterable[Any]) -> None:
        """Copy the current state.

        Args:
            models: All their modules.
            others: Optimizers, and objects with ``state_dict`` and ``load_state_dict``.

        Raises:
            TypeError: one of ``others`` is neither, or a parameter has no values yet.
        """
        self._values: dict[int, tuple[Tensor, Tensor]] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._puts: list[Callable[[], None]] = []
        with RecordingGuard():
            for model in models:
                for module in model.modules():
                    self._copy_module(module)
            for other in others:
                self._copy_other(other)
        self._stepped: list[str] = []
        self._watch = register_optimizer_step_pre_hook(self._note_step)
        self._random = RandomStates()
        torch_state = TorchState()
        drawn = torch_state.get()
        self._puts.append(lambda: torch_state.set(drawn))

    def restore(self) -> None:
        """Restore everything."""
        self._watch.remove()
        with RecordingGuard():
            for put in self._puts:
                put()
            for tensor, value in self._values.values():
                _local(tensor).copy_(value)
        self._random.restore()
        torch.clear_autocast_cache()  # it may hold casts of the old parameters

    def complaint(self) -> str | None:
        """Return the name of an optimizer that has made a step and was not given."""
        self._watch.remove()
        return f"the optimizer {self._stepped[0]} steps, but was not given beside the model" if self._stepped else None

    def _note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(optimizer is known for known in self._optimizers):
            self._stepped.append(type(optimizer).__name__)

    def _copy_module(self, module: nn.Module) -> None:
        for place in (module._parameters, module._buffers):
            self._keep_items(place)
            for tensor in _tensors(place.values()):
                self._copy_parameter(tensor)

    def _copy_parameter(self, tensor: Any) -> None:
        if is_lazy(tensor):
            raise TypeError("a parameter has no values yet: run the model once before")
        self._keep(tensor)
        for name in _GRADIENTS:
            if tensor.is_leaf and hasattr(tensor, name):
                gradient = getattr(tensor, name)
                self._puts.append(lambda name=name, gradient=gradient: setattr(tensor, name, gradient))
                if isinstance(gradient, Tensor):
                    self._keep(gradient)

    def _copy_other(self, other: Any) -> None:
        wrapped = getattr(other, "optimizer", other)  # also for a scheduler
        if isinstance(wrapped, torch.optim.Optimizer):
            self._copy_optimizer(wrapped)
        if wrapped is other and isinstance(other, torch.optim.Optimizer):
            return
        if hasattr(other, "state_dict") and hasattr(other, "load_state_dict"):
            state = deepcopy(other.state_dict())
            self._puts.append(lambda: other.load_state_dict(deepcopy(state)))
        else:
            raise TypeError(f"{type(other).__name__} has no state_dict() and load_state_dict()")

    def _copy_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if any(optimizer is known for known in self._optimizers):
            return
        self._optimizers.append(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._copy_parameter(parameter)
            self._keep_items(group, without="params")
        states: Any = optimizer.state
        self._keep_items(states)
        for state in states.values():
            self._keep_items(state)

    def _keep_items(self, place: dict[Any, Any], without: str | None = None) -> None:
        """Restore the keys and objects of a dictionary, and the values of its tensors."""
        held = {key: value for key, value in place.items() if key != without}
        plain = {key: deepcopy(value) for key, value in held.items() if not _has_identity(value)}

        def put() -> None:
            for key in [key for key in place if key != without and key not in held]:
                del place[key]
            for key, value in held.items():
                place[key] = deepcopy(plain[key]) if key in plain else value

        self._puts.append(put)
        for tensor in _tensors(held.values()):
            self._keep(tensor)

    def _keep(self, tensor: Tensor) -> None:
        if id(tensor) not in self._values:
            self._values[id(tensor)] = tensor, _local(tensor).detach().to("cpu", copy=True)


def has_state(value: Any) -> bool:
    """Whether a value is an object whose state can be copied and loaded again."""
    kind = type(value)
    return not isinstance(value, type) and all(
        callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict")
    )


def _has_identity(value: Any) -> bool:
    return isinstance(value, Tensor | dict) or value is None


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    return (value for value in values if isinstance(value, Tensor))


def _local(tensor: Any) -> Tensor:
    """Return the tensor, or the local part of a distributed one."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()
