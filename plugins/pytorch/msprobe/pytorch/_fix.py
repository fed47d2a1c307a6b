"""Replaces results of calls by more precise ones: the only part of this plugin that is meant to change a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor

from msprobe.pytorch._apis import ApiTable
from msprobe.pytorch._compiled import CompiledRegions
from msprobe.pytorch._functions import ApiMode, BackwardEngine
from msprobe.pytorch._perturb import Replace
from msprobe.pytorch._replay_devices import state_of
from msprobe.pytorch._shadow import converted, no_autocast
from msprobe_core.interception import map_values, value_leaves
from msprobe_core.plugin import CallFixer, reason_of

_HALVES = (torch.bfloat16, torch.float16)


class FixedCalls:
    """Intercepts calls of APIs on one thread and in its backward passes; see `msprobe_core.plugin.FixingFramework`."""

    def __init__(self, apis: ApiTable, fixer: CallFixer) -> None:
        """Install it.

        Args:
            apis: Names functions.
            fixer: Chooses calls.
        """
        self._fixer = fixer
        mode = ApiMode(cast("Any", _Open()), apis, cast("Any", self))
        self._stack = ExitStack()
        for install, remove in (
            (mode.push, mode.remove),
            *((patch.install, patch.remove) for patch in (BackwardEngine(mode), CompiledRegions([mode], fixer.say))),
        ):
            self._stack.callback(remove)
            install()

    def detach(self) -> None:
        """Remove it."""
        self._stack.close()

    def release(self) -> None:
        """Do nothing: nothing is left."""

    def settle(self) -> None:
        """Do nothing: nothing is pending."""

    # --- calls, as `ApiMode` passes them on ------------------------------------------------------------------------

    is_inside = False

    def note_memory(self, *_: Any) -> None:
        """Do nothing: uninitialised memory makes no difference here."""

    def run(
        self, prefix: str, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        *, mutates: bool = False,
    ) -> Any:  # fmt: skip
        """Call a function, and return its result or the more precise one."""
        wanted = self._fixer.wants(prefix, name) and not mutates and "out" not in kwargs
        if not wanted:
            return function(*args, **kwargs)
        device = next((leaf.device for leaf in value_leaves(args) if isinstance(leaf, Tensor)), torch.device("cpu"))
        before = state_of(device)
        result = function(*args, **kwargs)
        if not state_of(device).is_same(before):
            self._fixer.refused(prefix, name, "it draws random numbers")
            return result
        try:
            return self._fixed(prefix, name, result, function, args, kwargs)
        except Exception as error:  # noqa: BLE001  # of a function that has no kernel for this
            self._fixer.refused(prefix, name, reason_of(error))
            return result

    def _fixed(
        self, prefix: str, name: str, result: Any, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        is_forward = not self._fixer.is_backward
        with torch._C.DisableTorchFunction(), no_autocast(), torch.set_grad_enabled(
            torch.is_grad_enabled() and not is_forward
        ):  # fmt: skip
            changed: list[Tensor] = []
            fine_args, fine_kwargs = converted((args, dict(kwargs)), lambda value: self._improved(value, changed))
            if not changed or _shares_memory(result, (args, dict(kwargs))):
                return result
            fine = [leaf for leaf in value_leaves(function(*fine_args, **fine_kwargs)) if isinstance(leaf, Tensor)]
        own = [leaf for leaf in value_leaves(result) if isinstance(leaf, Tensor)]
        if [leaf.shape for leaf in fine] != [leaf.shape for leaf in own]:
            return result
        left = iter(fine)
        with torch._C.DisableTorchFunction():
            replaced = map_values(result, _is_tensor, lambda own: _replaced(own, next(left), is_forward=is_forward))
        self._fixer.fixed(prefix, name)
        return replaced

    def _improved(self, value: Any, changed: list[Tensor]) -> Any:
        if not isinstance(value, Tensor):
            return value
        is_half = value.dtype in _HALVES
        improved = value.cpu() if self._fixer.on_host else value.float() if is_half else value
        if improved is not value:
            changed.append(value)
        return improved


class _Open:
    """What `ApiMode` asks of a recorder."""

    is_open = True


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _shares_memory(result: Any, arguments: Any) -> bool:
    """Whether a result is a view of an argument: that is no computation, and writes must reach the argument."""
    return not _places(result).isdisjoint(_places(arguments))


def _places(value: Any) -> set[int]:
    tensors = (leaf for leaf in value_leaves(value) if isinstance(leaf, Tensor) and leaf.numel())
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _replaced(own: Tensor, fine: Tensor, *, is_forward: bool) -> Tensor:
    """Return the values of one and the gradient of the other: forward the finer values, backward the finer gradient."""
    takes_gradient = own.requires_grad and torch.is_grad_enabled()
    if is_forward:
        values = fine.detach().to(own.device, own.dtype)
        return _with_values(own, values) if takes_gradient else values
    return _with_values(fine.to(own.device, own.dtype), own.detach()) if takes_gradient else own


def _with_values(tensor: Tensor, values: Tensor) -> Tensor:
    return cast("Tensor", Replace.apply(tensor, values))
