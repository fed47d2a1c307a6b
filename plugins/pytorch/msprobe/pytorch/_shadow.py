"""The shadow of a step: the same step in a more precise format, which reveals the error of the training's format."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from msprobe.pytorch._quiet import RecordingGuard
from msprobe_core import PrecisionDebugger
from msprobe_core.interception import FunctionPatch, converted
from msprobe_core.plugin import ConfigError, SessionError
from msprobe_core.recording import Config, Run, Variant, listed, repeated, shadow_variant

_DTYPES = (torch.float32, torch.float64)
_HALVES = (torch.bfloat16, torch.float16)

AUTOCAST_DEVICES = ("cpu", "cuda", "npu", "xpu", "mps")
"""Kinds of devices for which autocast is asked for and switched."""


@contextmanager
def shadow_step(
    debugger: PrecisionDebugger, model: Any, optimizer: Any = None, dtype: torch.dtype = torch.float32
) -> Generator[Iterator[Run], None, None]:
    """Record a step and, if it is selected, the same step again in a more precise format.

    ::

        with shadow_step(debugger, model, optimizer) as runs:
            for run in runs:
                train_one_step(batch)
        debugger.step()

    The first run is the unchanged step. The second, recorded to ``{dump_path}/shadow/step{s}/rank{r}``, begins with the
    same parameters, buffers, gradients, optimizer states and random states, all converted to ``dtype``. It uses the
    same batch, converted when it is passed to the model, and runs without autocast. Casts in the model itself
    stay. Afterwards, everything is in the state after the first run.

    Args:
        debugger: Started and stopped automatically in each run.
        model: The model, or several.
        optimizer: An optimizer, or a list of optimizers, schedulers, scalers and other objects with a state.
        dtype: ``torch.float32`` or ``torch.float64``.

    Raises:
        ConfigError: ``dtype`` is a different dtype.
        SessionError: no debugger has been constructed, or it is recording already.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"shadow_step: 'dtype' is {dtype!r}, but must be torch.float32 or torch.float64")
    models, others = listed(model), listed(optimizer)

    def variants(config: Config) -> list[Variant]:
        return [shadow_variant(config, lambda: _upcast(models, others, dtype))]

    with repeated(debugger, model, optimizer, variants, what="shadow_step") as runs:
        yield runs


@contextmanager
def _upcast(models: Sequence[nn.Module], others: Sequence[Any], dtype: torch.dtype) -> Generator[None, None, None]:
    """Convert models and optimizers to ``dtype`` and disable autocast, until the block ends."""
    upcast = _Upcast(dtype)
    autocast = FunctionPatch(torch.amp.autocast_mode.autocast, "__enter__", _enter_without_effect)
    try:
        upcast.convert(models, others)
        autocast.install()
        with no_autocast():
            yield
    finally:
        autocast.remove()
        upcast.undo()


class _Upcast:
    """Replaces parameters and buffers by other tensors.

    The original tensors are not modified: a change of dtype would lose what is attached to their autograd nodes, such
    as gradient reducers.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._undo: list[Callable[[], None]] = []
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def convert(self, models: Sequence[nn.Module], others: Sequence[Any]) -> None:
        """Install the other tensors.

        Raises:
            SessionError: the model is distributed by a wrapper that holds its parameters.
        """
        with RecordingGuard():
            for model in models:
                for module in model.modules():
                    for place in (module._parameters, module._buffers):
                        self._convert_items(place)
                self._undo.append(model.register_forward_pre_hook(self._convert_arguments, with_kwargs=True).remove)
            if self._made and any(is_spread(module) for model in models for module in model.modules()):
                raise SessionError(
                    "the parameters of DistributedDataParallel and FullyShardedDataParallel cannot be converted; a "
                    "model of float32 under autocast can have a shadow"
                )
            for other in others:
                self._convert_optimizer(getattr(other, "optimizer", other))

    def undo(self) -> None:
        """Restore everything in reverse order."""
        while self._undo:
            self._undo.pop()()

    def _convert_items(self, place: dict[str, Any]) -> None:
        for name, tensor in tuple(place.items()):
            if self._is_coarse(tensor):
                self._undo.append(lambda name=name, tensor=tensor: place.__setitem__(name, tensor))
                place[name] = self._finer(tensor)

    def _convert_optimizer(self, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        states: dict[Any, Any] = optimizer.state
        for group in optimizer.param_groups:
            parameters: list[Tensor] = group["params"]
            for i, tensor in enumerate(parameters):
                if id(tensor) not in self._made:
                    continue
                self._undo.append(lambda parameters=parameters, i=i, tensor=tensor: parameters.__setitem__(i, tensor))
                parameters[i] = finer = self._finer(tensor)
                if tensor in states:
                    of_coarse: Mapping[str, Any] = states[tensor]
                    # Step counters have their own dtype.
                    states[finer] = {
                        key: value.to(self._dtype) if self._is_coarse(value) and value.ndim else value
                        for key, value in of_coarse.items()
                    }
                    self._undo.append(lambda finer=finer: states.pop(finer, None))

    def _finer(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._made:
            finer = tensor.detach().to(self._dtype)
            if isinstance(tensor, nn.Parameter):
                finer = nn.Parameter(finer, tensor.requires_grad)
                vars(finer).update(vars(tensor))
                finer.grad = None if tensor.grad is None else tensor.grad.to(self._dtype)
            self._made[id(tensor)] = tensor, finer
        return self._made[id(tensor)][1]

    def _is_coarse(self, value: Any) -> bool:
        finer_than = (*_HALVES, torch.float32) if self._dtype is torch.float64 else _HALVES
        return isinstance(value, Tensor) and value.dtype in finer_than

    def _convert_arguments(self, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        return self._converted(args), self._converted(kwargs)

    def _converted(self, value: Any) -> Any:
        return converted(value, lambda item: item.to(self._dtype) if self._is_coarse(item) else item)


def is_spread(module: nn.Module) -> bool:
    """Whether a wrapper distributes the parameters of a module."""
    return type(module).__name__ in {"DistributedDataParallel", "FullyShardedDataParallel"} or hasattr(
        module, "_get_fsdp_state"
    )


def _enter_without_effect(original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    autocast: Any = args[0]
    is_enabled, autocast._enabled = autocast._enabled, False
    try:
        return original(*args, **kwargs)
    finally:
        autocast._enabled = is_enabled


def no_autocast() -> AbstractContextManager[None]:
    """Disable autocast that is enabled around the step."""
    return autocast_as(dict.fromkeys(AUTOCAST_DEVICES, False))


@contextmanager
def autocast_as(states: Mapping[str, bool]) -> Generator[None, None, None]:
    """Switch autocast on or off, by kind of device, within the block."""
    changed = {name: is_on for name, is_on in states.items() if is_autocast_on(name) is not is_on}
    for name, is_on in changed.items():
        torch.set_autocast_enabled(name, is_on)
    try:
        yield
    finally:
        for name, is_on in changed.items():
            torch.set_autocast_enabled(name, not is_on)


def is_autocast_on(device: str) -> bool:
    """Whether autocast is enabled for a kind of devices."""
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # not a device of this build
        return False
