"""Replay one call of tensors, as if a dump held it."""

import msgspec
import torch
from msprobe.pytorch import _replay

from msprobe_core.model import Argument, Phase, ReplayCall, ReplayTensor, Site, SiteKind


def replay_tensor(tensor, **about):
    tensor = tensor.detach()
    values = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    return ReplayTensor(values=values.numpy(), dtype=str(tensor.dtype).removeprefix("torch."), **about)


def replay_value(value):
    """Return an argument as a dump holds it; gradients are asked for of tensors that require them."""
    if isinstance(value, torch.Tensor):
        return replay_tensor(value, takes_gradient=value.requires_grad)
    if isinstance(value, (list, tuple)):
        return [replay_value(item) for item in value]
    if isinstance(value, dict):
        return {key: replay_value(item) for key, item in value.items()}
    if value is None:
        return None
    if isinstance(value, (torch.dtype, torch.device)):
        return Argument(f"torch.{type(value).__name__}", str(value))
    if isinstance(value, slice):
        return Argument("slice", str([value.start, value.stop, value.step]))
    if value is ...:
        return Argument("ellipsis", "...")
    return Argument(type(value).__name__, value)


def site_of(name, phase=Phase.FORWARD):
    prefix, _, path = name.partition(".")
    return Site(kind=SiteKind.API, prefix=prefix, path=path, type_name="", index=0, phase=phase)


def call_of(name, args, kwargs=None, gradients=None, **about):
    return ReplayCall(
        site=site_of(name, Phase.FORWARD if gradients is None else Phase.BACKWARD),
        args=[replay_value(value) for value in args],
        kwargs={key: replay_value(value) for key, value in (kwargs or {}).items()},
        gradients={path: replay_tensor(value) for path, value in (gradients or {}).items()},
        **about,
    )


def replay(name, *args, gradients=None, wide=False, **kwargs):
    """Return the results of a replay as tensors by path: outputs, or with ``gradients`` those of the arguments."""
    call = call_of(name, args, kwargs, gradients)
    if wide:
        call = msgspec.structs.replace(call, is_widened=True)
    found = _replay.replay(call, None).values
    return {path: torch.from_numpy(value.values).to(getattr(torch, value.dtype)) for path, value in found.items()}
