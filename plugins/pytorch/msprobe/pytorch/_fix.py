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
from msprobe.pytorch._shadow import no_autocast
from msprobe_core.interception import FixingCalls, converted, value_leaves
from msprobe_core.plugin import CallFixer

_HALVES = (torch.bfloat16, torch.float16)


class FixedCalls(FixingCalls):
    """Intercepts calls of APIs on one thread and in its backward passes; see `msprobe_core.plugin.FixingFramework`."""

    def __init__(self, apis: ApiTable, fixer: CallFixer) -> None:
        """Install it.

        Args:
            apis: Names functions.
            fixer: Chooses calls.
        """
        super().__init__(fixer)
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

    # --- calls, as `ApiMode` passes them on ------------------------------------------------------------------------

    is_inside = False

    def note_memory(self, *_: Any) -> None:
        """Do nothing: uninitialised memory makes no difference here."""

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""
        return isinstance(value, Tensor)

    def watch_random(self, name: str, args: Any) -> Callable[[], bool]:  # noqa: ARG002
        """Compare the state of the generator of the device of the arguments."""
        device = next((leaf.device for leaf in value_leaves(args) if isinstance(leaf, Tensor)), torch.device("cpu"))
        before = state_of(device)
        return lambda: not state_of(device).is_same(before)

    def again(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Any | None:
        """Compute a call in float32, or on the host; with its gradient if that is what is replaced."""
        with torch._C.DisableTorchFunction(), no_autocast(), torch.set_grad_enabled(
            torch.is_grad_enabled() and self.fixer.is_backward
        ):  # fmt: skip
            changed: list[Tensor] = []
            fine_args, fine_kwargs = converted((args, dict(kwargs)), lambda value: self._improved(value, changed))
            if not changed or self.shares_memory(result, (args, dict(kwargs))):
                return None
            return function(*fine_args, **fine_kwargs)

    def joined(self, own: Tensor, fine: Tensor) -> Tensor:
        """Return the values of one and the gradient of the other."""
        with torch._C.DisableTorchFunction():
            takes_gradient = own.requires_grad and torch.is_grad_enabled()
            if not self.fixer.is_backward:
                values = fine.detach().to(own.device, own.dtype)
                return _with_values(own, values) if takes_gradient else values
            return _with_values(fine.to(own.device, own.dtype), own.detach()) if takes_gradient else own

    def place_of(self, tensor: Tensor) -> int | None:
        """Return the address of its storage."""
        return tensor.untyped_storage().data_ptr() if tensor.numel() else None

    def _improved(self, value: Any, changed: list[Tensor]) -> Any:
        if not isinstance(value, Tensor):
            return value
        is_half = value.dtype in _HALVES
        improved = value.cpu() if self.fixer.on_host else value.float() if is_half else value
        if improved is not value:
            changed.append(value)
        return improved


class _Open:
    """What `ApiMode` asks of a recorder."""

    is_open = True


def _with_values(tensor: Tensor, values: Tensor) -> Tensor:
    return cast("Tensor", Replace.apply(tensor, values))
