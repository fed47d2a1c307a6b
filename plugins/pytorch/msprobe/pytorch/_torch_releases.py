"""Features that older releases of PyTorch lack or name differently, each detected by checking for it.

Version numbers are not sufficient: devices have their own releases, between those of PyTorch.
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
"""Whether ``torch.compile`` is tracing the calling code. The original function: compilers know it and its result."""


def is_tried() -> bool:
    """Whether a compiler is tracing the calling code, or runs it only to observe what it does."""
    return is_compiling() or _compilation() is not None


_compilation: Callable[[], Any] = getattr(TracingContext, "try_get", None) or TracingContext.get


class _NoExport:
    """A release that exports without running Python has no such state."""

    _is_compiling_flag = False


export: Any = _compiler if hasattr(_compiler, "_is_compiling_flag") else _NoExport
"""Its ``_is_compiling_flag`` says whether a model runs only for `torch.export`; each API call reads it."""


def accumulating_node(parameter: Tensor) -> Any:
    """Return the autograd node that adds to a leaf's gradient."""
    if _gradient_edge is not None:
        return _gradient_edge(parameter).node
    with torch.enable_grad():  # as in later releases
        return cast("Any", parameter.view_as(parameter).grad_fn).next_functions[0][0]


_gradient_edge: Callable[[Tensor], Any] | None = getattr(graph, "get_gradient_edge", None)


def run_under(key: DispatchKey, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call the kernel for all devices that an operator has under a key, from inside another kernel."""
    if hasattr(operator, "redispatch"):
        return operator.redispatch(DispatchKeySet(key), *args, **kwargs)
    # The key under which such a kernel is registered. Any other key is resolved to the calling kernel itself.
    return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def destroy(library: torch.library.Library) -> None:
    """Remove the kernels of a library."""
    leave: Callable[[], None] | None = getattr(library, "_destroy", None)
    if leave is not None:
        leave()
        return
    old: Any = library
    old.m = None  # releases the registrations
    torch.library._impls.difference_update(old._op_impls)  # pyright: ignore[reportPrivateUsage]


def is_of_compilers(mode: Any) -> bool:
    """Whether a dispatch mode belongs to a PyTorch compiler; these have a separate slot on the stack, if any."""
    ask: Callable[[], bool] | None = getattr(mode, "is_infra_mode", None)
    return ask is not None and ask()
