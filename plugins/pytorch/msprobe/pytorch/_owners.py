"""What a call outside of every module belongs to: an optimizer's step, or the clipping of gradients.

Told by the frames that lead to the call, so nothing is patched, functions imported by name count, and an exception
leaves nothing open.
"""

from __future__ import annotations

from types import CodeType, FrameType, FunctionType

import torch

OPTIMIZER = "optimizer"
CLIP_GRAD = "clip_grad"

_MAX_FRAMES = 24
"""How far up is looked; the functions of PyTorch's optimizers are some ten frames below their step."""

_known: dict[CodeType, str | None] = {}


def owner_of(frame: FrameType | None) -> str | None:
    """Return `OPTIMIZER` or `CLIP_GRAD` if one of them is running, else ``None``."""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code not in _known:
            _known[code] = _owner_by(code)
        owner = _known[code]
        if owner is not None:
            return owner
        frame = frame.f_back
    return None


def is_of_compiler(frame: FrameType) -> bool:
    """Whether a call comes out of what a compiler of PyTorch has made, or from the compiler at work."""
    while frame.f_code.co_filename == _OPERATORS and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    if code not in _compilers:
        file = code.co_filename
        _compilers[code] = file.startswith("<eval_with_key>") or any(part in file for part in _COMPILERS)
    return _compilers[code]


_OPERATORS = torch._ops.__file__
_compilers: dict[CodeType, bool] = {}
_COMPILERS = ("/torchinductor_", "/torch/_functorch/", "/torch/_inductor/", "/torch/_dynamo/", "/torch/fx/")


def _owner_by(code: CodeType) -> str | None:
    if code in _STEP_WRAPPERS:
        return OPTIMIZER
    # Of torch.nn.utils.clip_grad, and of megatron.core.optimizer.clip_grads.
    is_clipping = code.co_name.startswith("clip_grad") and "clip_grad" in code.co_filename.rpartition("/")[2]
    return CLIP_GRAD if is_clipping else None


def _wrappers() -> frozenset[CodeType]:
    """Return the code that PyTorch wraps around the ``step`` of every optimizer."""
    wrap = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    constants = wrap.__code__.co_consts if isinstance(wrap, FunctionType) else ()
    return frozenset(constant for constant in constants if isinstance(constant, CodeType))


_STEP_WRAPPERS = _wrappers()
