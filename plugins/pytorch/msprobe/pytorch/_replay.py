"""Replay one recorded call by itself, on the CPU or on another device."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from msprobe.pytorch._reference_formulas import find_reference
from msprobe.pytorch._replay_devices import HOST, device_of, state_of, without_autocast
from msprobe.pytorch._replay_modules import made_again, settings_of
from msprobe.pytorch._replay_table import AMBIGUOUS, RANDOM, find_function, num_factors, why_left_out
from msprobe_core.interception import NOT_SPECIAL, build_arguments, literal_of, tensors_by_path, why_not_called
from msprobe_core.plugin import Argument, Phase, ReplayCall, Replayed, ReplayError, ReplayTensor, Site, SiteKind

Function = Callable[..., Any]


def why_not_replayed(site: Site) -> str | None:
    """Return why calls of this API are not replayed, as the end of a sentence; ``None`` if they are."""
    return why_left_out(site.prefix, site.path) or why_not_called(site, "PyTorch", RANDOM, find_function)


def replay(call: ReplayCall, model: object | None, device: str | None = None) -> Replayed:
    """See `msprobe_core.plugin.DeviceReplayingFramework`."""
    place = HOST if device is None else device_of(device)
    try:
        with _by_itself(place), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _replay(call, model, place)
    except ReplayError:
        raise
    except Exception as error:  # PyTorch, or the user's model, may fail in any way on arguments from a file
        reason = " ".join(str(error).split())[:300]
        where = "" if device is None else f" on {place}"
        raise ReplayError(f"it cannot be called again{where} ({type(error).__name__}: {reason})") from error


def _replay(call: ReplayCall, model: object | None, device: torch.device) -> Replayed:
    call = with_epsilon(call)
    function = _function_of(call, model, device)
    tensors: dict[int, Tensor] = {}
    leaves: dict[str, Tensor] = {}

    def make(value: ReplayTensor, path: str) -> Tensor:
        leaf = None if value.identity is None else tensors.get(value.identity)
        if leaf is None:
            leaf = _tensor_of(value).to(device)
            if value.identity is not None:
                tensors[value.identity] = leaf
        if value.takes_gradient:
            leaves[path] = leaf.requires_grad_()
        # Not the leaf itself: the call may write to it.
        return leaf.clone() if value.takes_gradient else leaf

    if call.site.kind is SiteKind.API:
        _check_size(function, call)
    elif model is None:
        again = made_again(call, lambda value: torch.empty(value.values.shape, device="meta"))
        _raise_if_large(again, call, settings_of(call))
    args, kwargs = _arguments(call, make, device)
    before = state_of(device)
    with (
        torch.set_grad_enabled(call.site.phase is Phase.BACKWARD),
        _nothing() if device == HOST else device,  # where results are made that have no arguments
        _Widened() if call.is_widened else _nothing(),
    ):
        output = function(*args, **kwargs)
        if output is None and args:  # it wrote to its first argument, like ``x[i] = y``
            output = args[0]
        values = (
            _gradients(call, output, leaves)
            if call.site.phase is Phase.BACKWARD
            else dict(tensors_by_path(output, Tensor))
        )
    recorded = {path: recorded_tensor(value) for path, value in values.items()}  # waits for the device, which may fail
    is_random = not state_of(device).is_same(before)
    return Replayed(values=recorded, is_random=is_random, is_unique=call.site.path not in AMBIGUOUS)


@contextmanager
def _nothing() -> Generator[None, None, None]:
    yield


@contextmanager
def _by_itself(device: torch.device) -> Generator[None, None, None]:
    """Isolate the call from the program's random state, modes and default dtype, and these from the call."""
    state, dtype = state_of(device), torch.get_default_dtype()
    try:
        with (
            torch.inference_mode(False),
            device,
            torch.autocast("cpu", enabled=False),
            without_autocast(device),
        ):
            yield
    finally:
        state.restore()
        torch.set_default_dtype(dtype)


class _Widened(TorchFunctionMode):
    """Replaces every floating-point dtype that any inner call asks for by float64, to avoid rounding."""

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in CASTS and args and isinstance(args[0], Tensor):
            return args[0].to(_wide(CASTS[name]))
        return func(*map(_widened, args), **{key: _widened(value) for key, value in (kwargs or {}).items()})


CASTS = {
    "float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "cfloat": torch.complex64,
    "chalf": torch.complex32,
}  # fmt: skip


def _widened(value: Any) -> Any:
    return _wide(value) if isinstance(value, torch.dtype) else value


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


# --- what is called ---------------------------------------------------------------------------------------------


def _function_of(call: ReplayCall, model: object | None, device: torch.device) -> Function:
    site = call.site
    if site.kind is SiteKind.API:
        function = find_function(site.prefix, site.path)
        if (reason := why_not_replayed(site)) is not None or function is None:
            raise ReplayError(f"{site.prefix}.{site.path} is not replayed: {reason}")
        if call.by_reference and (function := find_reference(site.prefix, site.path)) is None:
            raise ReplayError(f"no independent formula is written for {site.prefix}.{site.path}")
        return function
    if model is None:
        return made_again(call, lambda value: _tensor_of(value).to(device))
    if not isinstance(model, nn.Module):
        raise ReplayError("a module is replayed with the model that it is part of, a torch.nn.Module")
    return _module_of(call, model, device)


def _module_of(call: ReplayCall, model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of the called module on a device, with its recorded parameters."""
    site = call.site
    found = _submodule(model, site.path)
    if found is None:
        raise ReplayError(
            f"the model has no module {site.path!r}; name the function that makes the model recorded here"
        )
    if type(found).__name__ != site.type_name:
        raise ReplayError(
            f"the module {site.path!r} of the model is a {type(found).__name__}, and a {site.type_name} was recorded"
        )
    module = copy.deepcopy(found).cpu()
    own = dict(module.named_parameters(remove_duplicate=False))
    for name, value in call.parameters.items():
        parameter = own.get(name)
        if parameter is None or tuple(parameter.shape) != value.values.shape:
            raise ReplayError(f"the recorded parameter {name!r} of {site.path!r} does not fit the model")
        parameter.data = _tensor_of(value)
    module.requires_grad_(False)
    return (module.double() if call.is_widened else module).to(device)


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    modules = dict(model.named_modules())
    # The path of a model in a list begins with its position.
    first, _, rest = path.partition(".")
    return modules.get(rest) if path not in modules and first.isdecimal() else modules.get(path)


# --- arguments --------------------------------------------------------------------------------------------------


def with_epsilon(call: ReplayCall) -> ReplayCall:
    """Return a call with the epsilon of an RMS norm that was left out; a replay in float64 would take another."""
    site = call.site
    if site.kind is not SiteKind.API:
        modules = tuple(
            msgspec.structs.replace(each, settings={**each.settings, "eps": _default_epsilon(call.dtype)})
            if each.type.endswith(".RMSNorm") and each.settings.get("eps", 0) is None
            else each
            for each in call.modules
        )
        return call if modules == call.modules else msgspec.structs.replace(call, modules=modules)
    if site.path != "rms_norm" or (call.args[3:] or [call.kwargs.get("eps")])[0] is not None or not call.dtype:
        return call
    epsilon = Argument("float", _default_epsilon(call.dtype))
    return msgspec.structs.replace(call, args=call.args[:3], kwargs={**call.kwargs, "eps": epsilon})


@cache
def _default_epsilon(dtype: str) -> float:
    """Return what this PyTorch adds to mean squares of a dtype: the epsilon of it, or of the dtype it computes in."""
    own, small = getattr(torch, dtype, torch.float32), 2.0**-12
    found = float(functional.rms_norm(torch.full((1, 4), small, dtype=own), (4,))[0, 0])
    choices = (torch.finfo(torch.float32).eps, torch.finfo(own).eps)
    return min(choices, key=lambda epsilon: abs(found - small / math.sqrt(small * small + epsilon)))


def _arguments(
    call: ReplayCall, make: Callable[[ReplayTensor, str], Tensor], device: torch.device
) -> tuple[list[Any], dict[str, Any]]:
    return build_arguments(call, make, partial(special_of, device=device))


def special_of(value: Argument, device: torch.device) -> Any:
    """Return an argument of one of PyTorch's own types.

    Raises:
        ReplayError: this PyTorch does not have it.
    """
    if value.type == "torch.device" or (value.type == "str" and _DEVICE.fullmatch(str(value.value))):
        return device  # wherever the program ran
    if value.type == "torch.Size":
        return torch.Size(literal_of(value))
    if value.type in ("torch.dtype", "torch.layout"):
        return _constant(str(value.value).removeprefix("torch."), value.type)
    if value.type == "torch.memory_format":
        return _constant(next(iter(literal_of(value).values())).removeprefix("torch."), value.type)
    return NOT_SPECIAL


_DEVICE = re.compile(r"(cpu|cuda|npu|xpu|mps)(:[0-9]+)?")


def _constant(name: str, kind: str) -> Any:
    found = getattr(torch, name, None) if name.isidentifier() else None
    if f"torch.{type(found).__name__}" != kind:
        raise ReplayError(f"one of its arguments is the {kind} {name!r}, which this PyTorch does not have")
    return found


def _tensor_of(value: ReplayTensor) -> Tensor:
    array = np.ascontiguousarray(value.values)
    plain = torch.from_numpy(array.copy() if array.size else array).reshape(value.values.shape)
    return plain.to(dtype_of(value))


def dtype_of(value: ReplayTensor) -> torch.dtype:
    """Return the dtype of a recorded tensor.

    Raises:
        ReplayError: this PyTorch does not have it.
    """
    dtype = getattr(torch, value.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ReplayError(f"it has a tensor of the dtype {value.dtype}, which this PyTorch does not have")
    return dtype


def recorded_tensor(tensor: Tensor) -> ReplayTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    values = tensor.detach().cpu().resolve_conj().resolve_neg()
    if values._is_zerotensor():  # a gradient that is zero everywhere may have no memory
        values = values.clone()
    if values.is_sparse or values.is_quantized:
        raise ReplayError(f"it gives a tensor of the layout {values.layout}, which is not compared here")
    if values.dtype in (torch.bfloat16, torch.float16) or (values.dtype.itemsize == 1 and values.is_floating_point()):
        values = values.float()
    elif values.dtype is torch.complex32:
        values = values.to(torch.complex64)
    return ReplayTensor(values=values.contiguous().numpy(), dtype=dtype)


def _check_size(function: Function, call: ReplayCall) -> None:
    """Raise if the call's results would be too large, determined with meta tensors unless the arguments are small.

    Raises:
        ReplayError: they would.
    """
    if _is_surely_small(call):
        return
    form = (
        call.site.prefix,
        call.site.path,
        call.has_lists,
        call.max_elements,
        _form_of(call.args),
        _form_of(call.kwargs),
    )
    if form in _SMALL:
        return
    _raise_if_large(function, call)
    if len(_SMALL) >= _MOST_FORMS:
        _SMALL.clear()
    _SMALL.add(form)


_SMALL: set[Any] = set()
"""Forms of calls whose results are known not to be too large: calls are replayed several times, and layers repeat."""

_MOST_FORMS = 4096


def _form_of(value: Any) -> Any:
    """Return what the size of results depends on: the shapes of tensors, and all other values."""
    if isinstance(value, ReplayTensor):
        return value.values.shape
    if isinstance(value, list):
        return tuple(map(_form_of, value))
    if isinstance(value, dict):
        return tuple((key, _form_of(item)) for key, item in value.items())
    return repr(value)


def _raise_if_large(function: Function, call: ReplayCall, settings: Sequence[Any] = ()) -> None:
    meta = torch.device("meta")
    args, kwargs = _arguments(call, lambda value, _: torch.empty(value.values.shape, device=meta), meta)
    try:
        with meta:
            output = function(*args, **kwargs)
    except Exception as error:  # depends on values, or has no meta kernel: then no number may exceed the limit
        if (number := _largest_size([*args, *kwargs.values(), *settings])) > call.max_elements:
            raise ReplayError(
                f"its arguments could ask for {number:,} elements, more than the {call.max_elements:,} replayed here"
            ) from error
        return
    if (size := sum(value.numel() for _, value in tensors_by_path(output, Tensor))) > call.max_elements:
        raise ReplayError(
            f"its results would have {size:,} elements, more than the {call.max_elements:,} replayed here"
        )


def _is_surely_small(call: ReplayCall) -> bool:
    """Whether sizes and number of the arguments alone show that the results cannot be too large.

    A meta run costs several times what a small call costs. Sizes are multiplied as if the arguments were broadcast
    against each other; the numbers are those of an index, of which each can select something; a view as bytes has up
    to 16 times as many elements.
    """
    factors = num_factors(call.site.prefix, call.site.path)
    if not factors:
        return factors is not None
    sizes: list[int] = []
    pending: list[Any] = [*call.args, *call.kwargs.values()]
    num_others = 1
    while pending:
        value = pending.pop()
        if isinstance(value, ReplayTensor):
            sizes.append(value.values.size)
        elif isinstance(value, list | dict):
            pending.extend(value.values() if isinstance(value, dict) else value)
        else:
            num_others += 1
    product = math.prod(max(size, 1) for size in sorted(sizes)[-factors:])
    return 16 * num_others**2 * (product + sum(sizes)) <= call.max_elements


def _largest_size(value: Any) -> int:
    """Return the largest number of elements that an argument without tensors can ask for."""
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, tuple | list):
        return math.prod(max(_largest_size(item), 1) for item in value)
    return 0


# --- results ----------------------------------------------------------------------------------------------------


def _gradients(call: ReplayCall, output: Any, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients with respect to the arguments that require one."""
    ends: list[Tensor] = []
    incoming: list[Tensor] = []
    for path, tensor in tensors_by_path(output, Tensor):
        given = call.gradients.get(path)
        if given is not None and tensor.requires_grad:
            if tuple(tensor.shape) != given.values.shape:
                raise ReplayError(f"its output {path} has the shape {list(tensor.shape)}, and the gradient another")
            ends.append(tensor)
            incoming.append(_tensor_of(given).to(tensor.device, tensor.dtype))
    if not ends or not leaves:
        raise ReplayError("no gradient flows through it from what was recorded")
    found = torch.autograd.grad(ends, list(leaves.values()), incoming, allow_unused=True)
    return {path: value for path, value in zip(leaves, found, strict=True) if value is not None}
