"""Recognise the functions of PyTorch that are an optimizer's step, clip gradients, or belong to a compiler."""

from __future__ import annotations

from types import CodeType, FrameType, FunctionType

import torch

from msprobe_core.interception import CLIP_GRAD, OPTIMIZER, Owners, is_clipping


def is_of_compiler(frame: FrameType) -> bool:
    """Whether a call comes from compiled code, from a running compiler, or from DTensors.

    In several releases DTensors compute with their parts in Python, so that the operators of backward are calls.
    """
    while frame.f_code.co_filename == _OPERATORS and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    if code not in _compilers:
        file = code.co_filename
        _compilers[code] = file.startswith("<eval_with_key>") or any(part in file for part in _COMPILERS)
    return _compilers[code]


_OPERATORS = torch._ops.__file__
_compilers: dict[CodeType, bool] = {}
_COMPILERS = (
    "/torchinductor_", "/torch/_functorch/", "/torch/_inductor/", "/torch/_dynamo/", "/torch/fx/",
    "/torch/distributed/tensor/_dispatch.py", "/torch/distributed/_tensor/",
    "/torch/distributed/_functional_collectives.py",
)  # fmt: skip


def _owner_by(code: CodeType) -> str | None:
    if code in _STEP_WRAPPERS:
        return OPTIMIZER
    return CLIP_GRAD if is_clipping(code) else None


def _wrappers() -> frozenset[CodeType]:
    """Return the code that PyTorch wraps around the ``step`` of every optimizer."""
    wrap = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    constants = wrap.__code__.co_consts if isinstance(wrap, FunctionType) else ()
    return frozenset(constant for constant in constants if isinstance(constant, CodeType))


_STEP_WRAPPERS = _wrappers()


def may_run_closure(frame: FrameType) -> bool:
    """Whether an optimizer's step was given a closure: what builds a graph inside is the program's forward and loss.

    Lightning runs the last micro-batch of every step so.
    """
    if frame.f_code not in _STEP_WRAPPERS:
        return False
    given = frame.f_locals
    positional, named = given.get("args", ()), given.get("kwargs", {})
    return (len(positional) > 1 and positional[1] is not None) or named.get("closure") is not None


owners = Owners(_owner_by)
"""Owners of calls that PyTorch runs."""
