"""PyTorch's stack of dispatch modes: our mode is at its bottom, below all modes of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from msprobe.pytorch._thread_ends import at_thread_end
from msprobe.pytorch._torch_releases import is_of_compilers

PLAIN = (Tensor, nn.Parameter)

COMMUNICATING = frozenset(
    {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor"}
)
"""Namespaces of operators whose results may still be in flight when they return."""


class BottomMode(TorchDispatchMode):
    """A dispatch mode on this thread, and in the backward passes that it starts."""

    def __init__(self) -> None:
        """Prepare; ``install`` begins."""
        super().__init__()
        self._is_on = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` compile as without a mode."""
        return True

    def install(self) -> None:
        """Begin, below the modes of the user, each of which removes the topmost one when its block ends."""
        at_thread_end(_take_off_ours)
        self._take_place()

    def detach(self) -> None:
        """End; if the mode is not on the stack of this thread, it becomes inactive."""
        self._is_on = False
        _put_back([mode for mode in _take_all() if mode is not self])

    def step_aside(self) -> Callable[[], None]:
        """Be off the stack of this thread until what is returned is called."""
        modes = _take_all()
        _put_back([mode for mode in modes if mode is not self])
        was_there = self in modes

        def come_back() -> None:
            if was_there and self._is_on:
                self._take_place()

        return come_back

    def _take_place(self) -> None:
        modes = _take_all()
        # Above another mode of ours, so that a later mode sees the changes of an earlier one.
        place = next((i for i, mode in enumerate(modes) if isinstance(mode, BottomMode)), len(modes))
        _put_back([*modes[:place], self, *modes[place:]])


def run_below(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator as without a mode.

    Operators on lists rely on the operators that they call to increment versions, which those do not do below a mode.
    """
    with torch._C.DisableTorchFunction():  # an operator called by its name is an API to function modes
        if not (func.__name__.startswith("_foreach_") and func._schema.is_mutable):
            return func(*args, **kwargs)
        written = [tensor for tensor in written_arguments(func, args, kwargs) if not tensor.is_inference()]
        versions = [tensor._version for tensor in written]
        output = func(*args, **kwargs)
        for tensor, version in zip(written, versions, strict=True):
            if tensor._version == version:
                increment_version(tensor)
        return output


def _take_all() -> list[Any]:
    """Empty this thread's stack of dispatch modes, except those of compilers, and return them, topmost first."""
    others = [mode for mode in _get_current_dispatch_mode_stack() if not is_of_compilers(mode)]
    return [_pop_mode() for _ in others]


def _take_off_ours() -> None:
    """Remove every mode of this plugin from the stack of this thread."""
    _put_back([mode for mode in _take_all() if not isinstance(mode, BottomMode)])


def _put_back(modes: Sequence[Any]) -> None:
    for mode in reversed(modes):
        _push_mode(mode)


def written_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the arguments that an operator writes to."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from value if isinstance(value, tuple | list) else [value]
