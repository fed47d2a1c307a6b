"""Swapped tensors: ``torch.utils.swap_tensors`` rejects tensors that a hook elsewhere refers to.

``nn.Module.to`` and ``load_state_dict`` call it after ``torch.__future__.set_swap_module_params_on_conversion(True)``,
and for parameters that are tensor subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.utils
from torch import Tensor

from msprobe.pytorch._calls import ApiCalls
from msprobe.pytorch._parameters import ParameterGradients
from msprobe_core.interception import FunctionPatch


def swap_patch(calls: ApiCalls, parameters: ParameterGradients | None) -> FunctionPatch:
    """Return a patch of the function that removes our hooks from tensors while they are swapped.

    Args:
        calls: Must not record calls inside the function.
        parameters: Has hooks in some tensors, which it restores afterwards.
    """

    def swap(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        without_hooks: AbstractContextManager[None] = (
            nullcontext() if parameters is None else parameters.without(tensors)
        )
        with without_hooks:
            return calls.run_unrecorded(function, args, kwargs)

    return FunctionPatch(torch.utils, "swap_tensors", swap)
