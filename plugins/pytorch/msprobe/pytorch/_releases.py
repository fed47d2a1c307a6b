"""What older releases of PyTorch have under another name, or not at all; each is asked for by what it is.

A version number would not do: devices come with releases of their own, between those of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._guards import TracingContext
from torch.autograd import graph

_compiler: Any = torch.compiler
is_compiling: Callable[[], bool] = (
    _compiler.is_compiling if hasattr(_compiler, "is_compiling") else cast("Any", torch)._utils.is_compiling
)
"""Whether ``torch.compile`` is reading the calling code. The very function: compilers know it, and know its answer."""


def is_tried() -> bool:
    """Whether the calling code is read by a compiler, or runs only for a compiler to see what it does."""
    return is_compiling() or _compilation() is not None


_compilation: Callable[[], Any] = getattr(TracingContext, "try_get", None) or TracingContext.get


class _NoExport:
    """A release that exports without running Python has no such state."""

    _is_compiling_flag = False


export: Any = _compiler if hasattr(_compiler, "_is_compiling_flag") else _NoExport
"""Its ``_is_compiling_flag`` says whether a model runs for `torch.export` only; each call of an API reads it."""


def accumulating_node(parameter: Tensor) -> Any:
    """Return the autograd node that adds to a leaf's gradient."""
    if _gradient_edge is not None:
        return _gradient_edge(parameter).node
    with torch.enable_grad():  # what later releases do as well
        return cast("Any", parameter.view_as(parameter).grad_fn).next_functions[0][0]


_gradient_edge: Callable[[Tensor], Any] | None = getattr(graph, "get_gradient_edge", None)


def run_under(key: DispatchKey, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call the kernel for all devices that an operator has under a key, from inside of another kernel."""
    if hasattr(operator, "redispatch"):
        return operator.redispatch(DispatchKeySet(key), *args, **kwargs)
    # The key under which such a kernel is registered: others are looked up, and lead to the kernel that is asking.
    return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def destroy(library: torch.library.Library) -> None:
    """Take the kernels of a library out."""
    leave: Callable[[], None] | None = getattr(library, "_destroy", None)
    if leave is not None:
        leave()
        return
    old: Any = library
    old.m = None  # the registrations go with what holds them
    torch.library._impls.difference_update(old._op_impls)  # pyright: ignore[reportPrivateUsage]


def is_of_compilers(mode: Any) -> bool:
    """Whether a dispatch mode is one of PyTorch's compilers, which have a place of their own on the stack, if any."""
    ask: Callable[[], bool] | None = getattr(mode, "is_infra_mode", None)
    return ask is not None and ask()
