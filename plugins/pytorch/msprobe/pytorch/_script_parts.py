"""Functions that scripts have copies of, without their annotations, so that they need NumPy and PyTorch only.

They use what a script defines; the stand-ins here say what that is. In a script, `forward` or `backward` is ``run``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

INPUTS: dict[str, Any] = {}
"""By name, the arguments of `load`."""

ALLOWED: dict[str, Any] = {}
"""Has the names of the results."""

LEAVES: dict[str, str] = {}
"""For each argument that a gradient is taken of, the name of its tensor."""


def load(dtype: torch.dtype, *place: Any) -> Any:
    """Return a tensor as an array, which holds it exactly: bfloat16 and float8 in float32."""
    raise NotImplementedError


def call(x: dict[str, torch.Tensor], wide: Any, device: str) -> Any:
    """Call the function as recorded."""
    raise NotImplementedError


def widest(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def array(value: Any) -> Any:
    return value.detach().cpu().to(widest(value.dtype)).resolve_conj().resolve_neg().numpy()


def forward_of_floats(device: str, *, is_wide: bool) -> dict[str, Any]:
    """Return the results by name: in the call's own precision or, exactly, in float64."""
    dtypes = {n: torch.float64 if is_wide and e[0].is_floating_point else e[0] for n, e in INPUTS.items()}
    x = {name: torch.from_numpy(load(*INPUTS[name])).to(device, dtype) for name, dtype in dtypes.items()}
    with torch.no_grad():
        result = call(x, is_wide, device)
    result = result if type(result) in (tuple, list) else [result]
    return {name: result[int(name)].cpu().double().numpy() for name in ALLOWED}


def backward_of_floats(device: str, *, is_wide: bool) -> dict[str, Any]:
    """Return the gradients by name: in the call's own precision or, exactly, in float64."""
    dtypes = {n: torch.float64 if is_wide and e[0].is_floating_point else e[0] for n, e in INPUTS.items()}
    x = {name: torch.from_numpy(load(*INPUTS[name])).to(device, dtype) for name, dtype in dtypes.items()}
    leaves = [x[name].requires_grad_() for name in LEAVES.values()]
    result = call(x, is_wide, device)
    end = result[0] if type(result) in (tuple, list) else result
    found = torch.autograd.grad(end, leaves, x["gradient of 0"].to(end.dtype), allow_unused=True)
    return {name: value.cpu().double().numpy() for name, value in zip(LEAVES, found, strict=True) if value is not None}


def forward(device: str, *, is_wide: bool) -> dict[str, Any]:
    """Return the results by name: in the call's own precision or, exactly, in float64."""
    wide = widest if is_wide else lambda dtype: dtype
    x = {name: torch.from_numpy(load(*entry)).to(device, wide(entry[0])) for name, entry in INPUTS.items()}
    with torch.no_grad():
        result = call(x, wide, device)
    result = result if type(result) in (tuple, list) else [result]
    return {name: array(functools.reduce(lambda r, i: r[int(i)], name.split("."), result)) for name in ALLOWED}


def backward(device: str, *, is_wide: bool) -> dict[str, Any]:
    """Return the gradients by name: in the call's own precision or, exactly, in float64."""
    wide = widest if is_wide else lambda dtype: dtype
    x = {name: torch.from_numpy(load(*entry)).to(device, wide(entry[0])) for name, entry in INPUTS.items()}
    leaves = [x[name].requires_grad_() for name in LEAVES.values()]
    result = call(x, wide, device)
    result = result if type(result) in (tuple, list) else [result]
    given = {n: functools.reduce(lambda r, i: r[int(i)], n[12:].split("."), result) for n in x if n[:8] == "gradient"}
    ends = [(end, x[name].to(end.dtype)) for name, end in given.items() if torch.is_tensor(end) and end.requires_grad]
    found = torch.autograd.grad([end for end, _ in ends], leaves, [end for _, end in ends], allow_unused=True)
    return {name: array(value) for name, value in zip(LEAVES, found, strict=True) if value is not None}
