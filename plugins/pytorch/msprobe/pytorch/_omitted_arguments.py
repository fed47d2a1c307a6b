"""Arguments that PyTorch's own functions omit when they pass their call to a function mode.

A PyTorch function written in Python checks for a mode, and passes its arguments on by naming each. The mode cannot pass
on an argument that is not named, so the function would compute something else. In PyTorch 2.13 these are ``F.l1_loss``
with ``weight``, ``torch.chain_matmul`` with ``out`` and ``Tensor.dim_order`` with ``ambiguity_check``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch.overrides

Function = Callable[..., Any]

_HANDING_OVER: CodeType = torch.overrides.handle_torch_function.__code__


class OmittedArguments:
    """Restores the arguments that a function has not passed on, if its frame still has them."""

    def __init__(self) -> None:
        self._names: dict[Function, tuple[str, ...]] = {}

    def add_to(
        self, kwargs: dict[str, Any], function: Function, args: tuple[Any, ...], frame: FrameType
    ) -> dict[str, Any]:
        """Return the keyword arguments of a call, including those that the function has omitted.

        Args:
            kwargs: Keyword arguments that the mode received.
            function: The function that the mode received.
            args: Positional arguments that the mode received.
            frame: The caller of the mode.
        """
        try:
            names = self._names[function]
        except KeyError:
            names = self._names[function] = tuple(_missing(function, args, kwargs))
        except TypeError:  # not hashable: nothing that torch defines
            return kwargs
        return {**_taken_from(names, function, frame), **kwargs} if names else kwargs


def _missing(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(function, FunctionType):
        code = function.__code__
        num_positional = min(len(args), code.co_argcount)
        named = code.co_varnames[num_positional : code.co_argcount + code.co_kwonlyargcount]
        yield from (name for name in named if name not in kwargs)


def _taken_from(names: tuple[str, ...], function: Any, frame: FrameType) -> dict[str, Any]:
    """Return the arguments of these names that differ from their defaults, from the frame of the function itself."""
    caller = frame.f_back
    if frame.f_code is not _HANDING_OVER or caller is None or caller.f_code is not function.__code__:
        return {}
    defaults = _defaults_of(function)
    found = caller.f_locals
    return {name: found[name] for name in names if name in found and found[name] is not defaults.get(name, _NONE)}


def _defaults_of(function: FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}


_NONE = object()
