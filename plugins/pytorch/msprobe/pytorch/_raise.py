"""Single modules in a more precise format while a step is repeated; see `msprobe_core.plugin.RaisingFramework`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from msprobe.pytorch._compiled import how_it_runs
from msprobe.pytorch._modules import modules_to_watch, type_name_of
from msprobe.pytorch._replay_stand_ins import grouped_mm
from msprobe.pytorch._shadow import AUTOCAST_DEVICES, autocast_as, is_autocast_on, is_spread, no_autocast
from msprobe.pytorch._slots import observe
from msprobe_core.interception import COARSER, FunctionPatch, RaisingModules, converted
from msprobe_core.plugin import NamedModel, SessionError

_CASTS = {"float", "half", "bfloat16"}
_WITHOUT_DOUBLE = {"grouped_mm", "_grouped_mm"}
"""Functions that refuse float64: the products of a mixture of experts."""


class RaisedModules(RaisingModules):
    """See `msprobe_core.plugin.RaisedModules`."""

    def __init__(self, models: Sequence[NamedModel]) -> None:
        """Prepare; nothing is attached.

        Raises:
            SessionError: a model is compiled, or distributed by a wrapper that holds its parameters.
        """
        super().__init__(modules_to_watch(models), observe)
        for _, _, module in self.found:
            if how_it_runs(module) is not None:
                raise SessionError(
                    f"{type_name_of(module)} is compiled or traced, so that nothing inside of it can be raised; run it "
                    "eagerly, for example with the environment variable TORCH_COMPILE_DISABLE=1"
                )
            if is_spread(module) and type(module).__name__ != "DistributedDataParallel":
                raise SessionError("the parameters of FullyShardedDataParallel cannot be raised")

    def is_floating(self, value: Any) -> bool:
        """Whether it is one."""
        return isinstance(value, Tensor) and value.is_floating_point()

    def format_of(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return str(tensor.dtype).removeprefix("torch.")

    def cast(self, tensor: Any, name: str) -> Any:
        """Cast it, below all modes."""
        with torch._C.DisableTorchFunction():
            return tensor.to(getattr(torch, name))

    def own_tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """Return parameters and buffers."""
        own = {**module._parameters, **module._buffers}
        return {name: tensor for name, tensor in own.items() if tensor is not None and self.is_floating(tensor)}

    def mixed_precision(self) -> dict[str, bool]:
        """Return whether autocast is on, by kind of device."""
        return {name: is_autocast_on(name) for name in AUTOCAST_DEVICES}

    def with_mixed_precision(self, state: Mapping[str, bool]) -> AbstractContextManager[None]:
        """Switch autocast."""
        return autocast_as(state)

    @contextmanager
    def computing_fine(self, module: nn.Module) -> Generator[None, None, None]:
        """Switch autocast off, and swap the module's tensors."""
        with no_autocast(), self._swapped(module):
            yield

    def intercepting(self) -> AbstractContextManager[Any]:
        """Push a mode on this thread."""
        return _Fine(self)

    @contextmanager
    def around_step(self) -> Generator[None, None, None]:
        """Have autocast not switched on in raised code."""
        autocast = FunctionPatch(torch.amp.autocast_mode.autocast, "__enter__", self._enter_autocast)
        autocast.install()
        try:
            yield
        finally:
            autocast.remove()

    def _enter_autocast(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Enter, but without effect on the code of a raised module; for modules that it calls it is set again."""
        found = original(*args, **kwargs)
        device = str(getattr(args[0], "device", ""))
        if self.is_inside and device and is_autocast_on(device):
            torch.set_autocast_enabled(device, False)
        return found

    @contextmanager
    def _swapped(self, module: nn.Module) -> Generator[None, None, None]:
        """Give a module its tensors in the finer format; it gets its own back, buffers as it leaves them."""
        made: list[tuple[dict[str, Any], str, Tensor, Tensor, int]] = []
        for name, tensor in self.own_tensors(module).items():
            place: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
            if (finer := self.finer(tensor)) is not tensor:
                place[name] = finer
                made.append((place, name, tensor, finer, finer._version))
        flat = _flat_weights(module)
        try:
            yield
        finally:
            for place, name, tensor, finer, version in made:
                now = place.get(name)
                place[name] = tensor
                if place is module._buffers and now is not None and (now is not finer or now._version != version):
                    with torch.no_grad(), torch._C.DisableTorchFunction():
                        tensor.copy_(now)
            if flat is not None:
                vars(module)["_flat_weights"] = flat


class _Fine(TorchFunctionMode):
    """Keeps functions that a raised module calls from becoming coarser, and from mixing formats."""

    def __init__(self, raised: RaisedModules) -> None:
        super().__init__()
        self._raised = raised
        self._dtype: torch.dtype = getattr(torch, raised.fine)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, raised = kwargs or {}, self._raised
        if not raised.is_inside:
            return func(*args, **kwargs)
        name: str = getattr(func, "__name__", "")
        if name in _CASTS and args:
            return args[0].to(self._dtype)
        if name != "view":
            args, kwargs = converted((args, kwargs), self._finer_dtype)
        writes = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
        if not writes and "out" not in kwargs and len(set(raised.formats_of((args, kwargs)))) > 1:
            args, kwargs = converted((args, kwargs), raised.finer)
        if name in _WITHOUT_DOUBLE and self._dtype is torch.float64:
            return grouped_mm(*args[:2], **dict(zip(("offs", "bias", "out_dtype"), args[2:], strict=False)), **kwargs)
        return func(*args, **kwargs)

    def _finer_dtype(self, value: Any) -> Any:
        is_coarser = isinstance(value, torch.dtype) and str(value).removeprefix("torch.") in COARSER[self._raised.fine]
        return self._dtype if is_coarser else value


def _flat_weights(module: nn.Module) -> list[Any] | None:
    """Give a recurrent layer the list of its current weights, and return the one that it had."""
    names: Sequence[str] | None = getattr(module, "_flat_weights_names", None)
    if not isinstance(module, nn.RNNBase) or names is None:
        return None
    before: list[Any] = vars(module)["_flat_weights"]
    vars(module)["_flat_weights"] = [getattr(module, name, None) for name in names]
    return before
