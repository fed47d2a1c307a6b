"""What is called for a dump instead of functions of PyTorch that allocate as values say, or lack float64."""

# ruff: noqa: A002  # dumps have arguments by name
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from msprobe_core.plugin import ReplayError

_MOST = 1 << 28
"""Most elements of a result whose size is in the values of an argument."""


def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """As ``torch.repeat_interleave``."""
    if repeats is None:  # the input says how often each position is repeated
        _check_number(input.sum())
        return torch.repeat_interleave(input)
    if isinstance(repeats, Tensor):
        wide = 1 if dim is None or not input.ndim else input.numel() // max(input.shape[dim], 1)
        _check_number(repeats.sum() * (wide if repeats.numel() > 1 else input.numel()))
    return torch.repeat_interleave(input, repeats, dim, output_size=output_size)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """As ``torch.bincount``."""
    _check_number(input.max() if input.numel() else torch.tensor(0))
    return torch.bincount(input, weights, minlength)


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """As ``torch.nn.functional.one_hot``."""
    if num_classes < 0 and input.numel():
        _check_number((input.max() + 1) * input.numel())
    return functional.one_hot(input, num_classes)


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """As ``torch.cov``; the results have the square of the number of variables, and there is no meta kernel."""
    _check_variables(input)
    return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)


def corrcoef(input: Tensor) -> Tensor:
    """As ``torch.corrcoef``."""
    _check_variables(input)
    return torch.corrcoef(input)


def _check_variables(input: Tensor) -> None:
    if input.ndim == 2 and input.shape[0] ** 2 > _MOST:
        raise ReplayError(f"its results would have {input.shape[0] ** 2:,} elements")


def _check_number(number: Tensor) -> None:
    # In floating point, because it may exceed 64 bits.
    if not -1 <= float(number.double()) <= _MOST:
        raise ReplayError(f"values of its arguments ask for more than {_MOST:,} elements")


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """As ``torch.nn.functional.grouped_mm``, which has no float64: one product per group.

    ``offs`` are the ends of the groups: of rows of ``mat_a``, of columns of ``mat_b``, or, if both have two dimensions,
    of what is summed. Source: its documentation in PyTorch 2.10.
    """
    if bias is not None:
        raise ReplayError("no reference is written for grouped_mm with a bias")
    result = mat_a @ mat_b if mat_a.ndim == mat_b.ndim == 3 else _in_groups(mat_a, mat_b, offs)
    return result if out_dtype is None else result.to(out_dtype)


def _in_groups(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None) -> Tensor:
    if offs is None or offs.ndim != 1:
        raise ReplayError("grouped_mm needs offs for groups of this shape")
    ends: Sequence[int] = offs.tolist()
    whole = mat_a.shape[-1] if mat_a.ndim == mat_b.ndim else mat_a.shape[0] if mat_a.ndim == 2 else mat_b.shape[1]
    spans = [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    if not ends or ends[-1] != whole or any(span.start > span.stop for span in spans):
        raise ReplayError(f"the groups of grouped_mm do not cover the {whole} positions, and others are undefined")
    if len(ends) != (mat_a.shape[0] if mat_a.ndim == 3 else mat_b.shape[0] if mat_b.ndim == 3 else len(ends)):
        raise ReplayError("the number of groups of grouped_mm is not that of its matrices")
    if mat_a.ndim == mat_b.ndim:
        return torch.stack([mat_a[:, span] @ mat_b[span] for span in spans])
    if mat_a.ndim == 2:
        return torch.cat([mat_a[span] @ matrix for span, matrix in zip(spans, mat_b, strict=True)])
    return torch.cat([matrix @ mat_b[:, span] for span, matrix in zip(spans, mat_a, strict=True)], 1)


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    """As ``torch.addcmul``, with its factor by position, as for lists."""
    return torch.addcmul(input, tensor1, tensor2, value=value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    """As ``torch.addcdiv``, with its factor by position, as for lists."""
    return torch.addcdiv(input, tensor1, tensor2, value=value)


def of_lists(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return what ``torch._foreach_…`` is by definition: a function of each tensor, with each element of the others."""

    def called(first: Sequence[Tensor], *others: Any, **named: Any) -> list[Any]:
        lists = [each for each in (*others, *named.values()) if isinstance(each, (list, tuple))]
        if any(len(each) != len(first) for each in lists):
            raise ReplayError("its lists are not equally long")

        def at(i: int, value: Any) -> Any:
            return value[i] if isinstance(value, (list, tuple)) else value

        return [
            function(x, *(at(i, each) for each in others), **{key: at(i, each) for key, each in named.items()})
            for i, x in enumerate(first)
        ]

    return called
