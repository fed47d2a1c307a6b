"""Memory formats of Ascend: orders of a tensor's elements in memory that their strides do not tell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ND = 2
_PLAIN = frozenset({-1, 0, 1, _ND, 27, 30, 47})
"""Formats, as numbers of CANN's ``aclFormat``, whose elements are where strides say: undefined, NCHW, NHWC, ND, NDHWC,
NCDHW and NCL."""


def in_plain_order(values: Tensor) -> Tensor:
    """Return a tensor whose bits can be read in the order of its elements: a copy of one in blocks, such as FRACTAL_NZ.

    A kernel gets such a tensor with its format, but a view in another dtype (``Tensor.view(dtype)``) is of the blocks
    as they are in memory, and a file of the tensor keeps them.
    """
    if values.device.type != "npu":
        return values
    format_of: Callable[[Tensor], Any] | None = getattr(sys.modules.get("torch_npu"), "get_npu_format", None)
    if format_of is None or int(format_of(values)) in _PLAIN:
        return values
    return torch.ops.npu.npu_format_cast(values.detach(), _ND)
