"""Replay one recorded call by itself, in the dynamic graph."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from math import prod
from typing import Any

import mindspore as ms
import msgspec
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.mindspore._apis import find_places
from msprobe.mindspore._jit import is_tracing
from msprobe.mindspore._replay_formula import NoFormulaError, by_formula, has_formula
from msprobe.mindspore._replay_table import CASTS, CHECKED, DRAWING, INDEXED, RANDOM, SIZED, find_function
from msprobe.mindspore._unrecorded_calls import unseen_by_all
from msprobe_core.interception import (
    NOT_SPECIAL,
    FunctionPatch,
    Patches,
    RandomStates,
    build_arguments,
    tensors_by_path,
    why_not_called,
)
from msprobe_core.plugin import (
    Argument,
    Phase,
    ReplayCall,
    Replayed,
    ReplayError,
    ReplayTensor,
    RiskLevel,
    Site,
    SiteKind,
)

Function = Callable[..., Any]

_DTYPE: Any = ms.common.dtype.Type
_FLOATING = (ms.float16, ms.bfloat16, ms.float32)


def why_not_replayed(site: Site) -> str | None:
    """Return why calls of this API are not replayed, as the end of a sentence; ``None`` if they are."""
    if site.prefix == "Primitive":
        return "it is a primitive, whose attributes are not in a dump; the Cell around it can be, with its model"
    return why_not_called(
        site, "MindSpore", RANDOM, lambda prefix, name: has_formula(prefix, name) or find_function(prefix, name)
    )


def replay(call: ReplayCall, model: object | None) -> Replayed:
    """See `msprobe_core.plugin.ReplayingFramework`.

    In float64, a function is replayed by its formula, because most kernels of MindSpore on the CPU either do not exist
    in float64 or compute in float32 inside. In the call's own precision its kernel is replayed, or the formula where
    the CPU has no kernel. Of Cells there are only kernels, whose precision is measured.
    """
    if call.site.kind is SiteKind.API:
        return _replay_function(call)
    found = _by_kernels(call, model)
    if call.is_widened:
        _check_precision(call, model, found)
    return found


def _replay_function(call: ReplayCall) -> Replayed:
    site = call.site
    if (reason := why_not_replayed(site)) is not None:
        raise ReplayError(f"{site.prefix}.{site.path} is not replayed: {reason}")
    try:
        _check_size(call)
    except (ValueError, TypeError, SyntaxError) as error:
        raise ReplayError(f"one of its arguments cannot be read ({error})") from error
    is_indexed = _stem(site.path) in INDEXED
    problem = "there is no formula for it"
    is_checked = False
    if call.is_widened or is_indexed:
        try:
            found = by_formula(call)
        except NoFormulaError as error:
            problem = str(error)
        else:
            is_checked = not call.is_widened and _stem(site.path) in CHECKED
            if not is_checked:
                return found
    if is_indexed and not is_checked:
        raise ReplayError(f"its formula does not take these arguments ({problem}), and a kernel might not check them")
    if call.is_widened and _stem(site.path) not in CASTS and _has_numbers(call):
        raise ReplayError(
            f"MindSpore has no float64 kernel for it on the CPU, and no formula takes its arguments ({problem})"
        )
    try:
        return _by_kernels(call, None)
    except ReplayError:
        if call.is_widened:
            raise
        try:
            return by_formula(call)
        except NoFormulaError:
            pass
        raise


def _stem(name: str) -> str:
    name = name.removesuffix("_ext")
    return name if name.endswith("__") else name.removesuffix("_")


def _has_numbers(call: ReplayCall) -> bool:
    kinds: list[str] = []
    build_arguments(call, lambda value, _: kinds.append(value.values.dtype.kind), _special)
    return not {"f", "c"}.isdisjoint(kinds)


def _by_kernels(call: ReplayCall, model: object | None) -> Replayed:
    try:
        may_draw = call.site.kind is not SiteKind.API or _stem(call.site.path) in DRAWING
        with _by_itself(may_draw=may_draw):
            return _replay(call, model, may_draw=may_draw)
    except ReplayError:
        raise
    except Exception as error:  # MindSpore, or the user's model, may fail in any way on arguments from a file
        reason = " ".join(str(error).partition("\n\n")[0].split())[:300]
        raise ReplayError(f"it cannot be called again ({type(error).__name__}: {reason})") from error


# --- precision --------------------------------------------------------------------------------------------------


def _check_precision(call: ReplayCall, model: object | None, found: Replayed) -> None:
    """Raise if the kernels of a Cell compute with fewer digits than float64 has.

    Two small changes of the inputs, in the same direction, must change the results in proportion. float32 inside would
    show only the larger one.

    Raises:
        ReplayError: some of them do.
    """
    small, large = (_by_kernels(_moved(call, size), model).values for size in (_SMALL, _LARGE))
    for path, value in found.values.items():
        if value.values.dtype.kind != "f":
            continue
        if value.dtype != "float64":
            raise ReplayError(
                f"MindSpore has no float64 kernel on the CPU for what is inside it; it gave {value.dtype}"
            )
        expected = (large[path].values - value.values) * (_SMALL / _LARGE)
        change = small[path].values - value.values
        finite = np.isfinite(expected) & np.isfinite(change)
        size = float(np.linalg.norm(expected[finite]))
        rounding = 2.0**-50 * float(np.linalg.norm(value.values[finite]))
        if size > rounding and float(np.linalg.norm((change - expected)[finite])) > 0.25 * size + rounding:
            raise ReplayError("kernels inside it compute in float32 when they are given float64 on the CPU")


_SMALL, _LARGE = 2.0**-38, 2.0**-14
"""Relative changes of the inputs: one that float32 cannot show, and one that it can."""


def _moved(call: ReplayCall, size: float) -> ReplayCall:
    random: Any = np.random.default_rng(20260102)

    def move(value: Any) -> Any:
        if isinstance(value, list):
            return [move(each) for each in value]
        if isinstance(value, dict):
            return {name: move(each) for name, each in value.items()}
        if not isinstance(value, ReplayTensor) or value.values.dtype.kind != "f":
            return value
        signs = np.where(random.random(value.values.shape) < 0.5, -size, size)
        return msgspec.structs.replace(value, values=value.values * (1.0 + signs))

    return msgspec.structs.replace(
        call, args=move(call.args), kwargs=move(call.kwargs), parameters=move(call.parameters)
    )


@contextmanager
def _by_itself(*, may_draw: bool) -> Generator[None, None, None]:
    """Isolate the call from the program's random state, mode and recording, and these from the call.

    The state of MindSpore's generator is a tensor, and costs more than a call: it is kept only for what may draw.
    """
    with unseen_by_all():
        states, mode = RandomStates(), ms.get_context("mode")
        drawn = ms.get_rng_state().copy() if may_draw else None
        try:
            if mode != ms.PYNATIVE_MODE:
                ms.set_context(mode=ms.PYNATIVE_MODE)
            yield
        finally:
            if mode != ms.PYNATIVE_MODE:
                ms.set_context(mode=mode)
            if drawn is not None:
                ms.set_rng_state(drawn)
            states.restore()


def _replay(call: ReplayCall, model: object | None, *, may_draw: bool) -> Replayed:
    function = _function_of(call, model)
    before = ms.get_rng_state().asnumpy().copy() if may_draw else None
    with _widened_calls() if call.is_widened else nullcontext():
        if call.site.phase is Phase.BACKWARD:
            values = _gradients(call, function)
        else:
            values = _outputs(function, *_arguments(call, lambda value, _: _tensor_of(value)))
        recorded = {path: _recorded(value) for path, value in values.items()}
    is_random = before is not None and not np.array_equal(before, ms.get_rng_state().asnumpy())
    return Replayed(values=recorded, is_random=is_random)


def _outputs(function: Function, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Tensor]:
    output = function(*args, **kwargs)
    if output is None and args:  # it wrote to its first argument, like ``x[i] = y``
        output = args[0]
    return dict(tensors_by_path(output, Tensor))


# --- in float64 -------------------------------------------------------------------------------------------------


@contextmanager
def _widened_calls() -> Generator[None, None, None]:
    """Replace every floating-point dtype that any inner call asks for by float64, so that nothing rounds on the way."""
    patches = _wideners()
    patches.install()
    try:
        yield
    finally:
        patches.remove()


@cache
def _wideners() -> Patches:
    # Cached, and without what no dtype is given to, which is most: each call is replayed several times.
    patches = [FunctionPatch(ops.Cast, "__call__", _run_widened, is_tracing)]
    for place in find_places(RiskLevel.ALL):
        if casts(place.prefix, place.name):
            patches.append(FunctionPatch(place.owner, place.attribute, _cast, is_tracing))
        elif _may_take_dtype(getattr(place.owner, place.attribute)):
            patches.append(FunctionPatch(place.owner, place.attribute, _run_widened, is_tracing))
    return Patches(patches)


def _may_take_dtype(function: Function) -> bool:
    """Whether a function has a parameter for a dtype, or does not say what its parameters are."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or "type" in each.name for each in parameters)


def _run_widened(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return function(*map(_widened, args), **{key: _widened(value) for key, value in kwargs.items()})


def _cast(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    del function, kwargs
    return ops.cast(args[0], ms.float64)


def casts(prefix: str, name: str) -> bool:
    """Whether a function casts to a dtype that is not among its arguments."""
    return prefix == "Tensor" and name in {"float", "half", "bfloat16"}


def _widened(value: Any) -> Any:
    return ms.float64 if isinstance(value, _DTYPE) and value in _FLOATING else value


# --- what is called ---------------------------------------------------------------------------------------------


def _function_of(call: ReplayCall, model: object | None) -> Function:
    site = call.site
    if site.kind is SiteKind.API:
        function = find_function(site.prefix, site.path)
        if function is None:
            raise ReplayError(f"this MindSpore has no {site.prefix}.{site.path}")
        return function
    if not isinstance(model, nn.Cell):
        raise ReplayError("a Cell is replayed with the model that it is part of; name it with --model")
    return _cell_of(call, model)


def _cell_of(call: ReplayCall, model: nn.Cell) -> nn.Cell:
    """Return a copy of the called Cell, with its recorded parameters."""
    site = call.site
    cells = dict(model.cells_and_names())
    # The path of a model in a list begins with its position.
    first, _, rest = site.path.partition(".")
    found = cells.get(rest) if site.path not in cells and first.isdecimal() else cells.get(site.path)
    if found is None:
        raise ReplayError(f"the model has no Cell {site.path!r}; name the function that makes the model recorded here")
    if type(found).__name__ != site.type_name:
        raise ReplayError(
            f"the Cell {site.path!r} of the model is a {type(found).__name__}, and a {site.type_name} was recorded"
        )
    cell = copy.deepcopy(found)
    own = {
        f"{path}.{name}" if path else name: parameter
        for path, inner in cell.cells_and_names()
        for name, parameter in inner._params.items()
        if parameter is not None
    }
    for parameter in own.values():
        parameter.requires_grad = False
        if call.is_widened and parameter.dtype in _FLOATING:
            parameter.set_dtype(ms.float64)
    for name, value in call.parameters.items():
        parameter = own.get(name)
        if parameter is None or tuple(parameter.shape) != value.values.shape:
            raise ReplayError(f"the recorded parameter {name!r} of {site.path!r} does not fit the model")
        parameter.set_data(_tensor_of(value))
    return cell


def _check_size(call: ReplayCall) -> None:
    """Raise if the call's results may be too large.

    Raises:
        ReplayError: they may.
    """
    if call.site.path.removesuffix("_ext") not in SIZED:
        return
    sizes: list[int] = []
    args, kwargs = build_arguments(call, lambda value, _: sizes.append(max(1, value.values.size)), _special)
    numbers = _numbers_in([*args, *kwargs.values()])
    if (size := max(sizes, default=1) * prod(max(1, abs(number)) for number in numbers)) > call.max_elements:
        raise ReplayError(f"its results may have {size:,} elements, more than the {call.max_elements:,} replayed here")


def _numbers_in(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    if isinstance(value, list | tuple):
        return [number for item in value for number in _numbers_in(item)]
    return []


# --- arguments --------------------------------------------------------------------------------------------------


def _arguments(call: ReplayCall, make: Callable[[ReplayTensor, str], Tensor]) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = build_arguments(call, make, _special)
    if not call.is_widened:
        return args, kwargs
    return [_widened(value) for value in args], {key: _widened(value) for key, value in kwargs.items()}


def _special(value: Argument) -> Any:
    return dtype_of(str(value.value)) if value.type == "mindspore.dtype" else NOT_SPECIAL


def dtype_of(name: str) -> Any:
    """Return a dtype by its name in a dump.

    Raises:
        ReplayError: this MindSpore does not have it.
    """
    found = getattr(ms, name, None) or getattr(ms, name.lower(), None)
    if name.lower() == "bool":
        found = ms.bool_
    if not isinstance(found, _DTYPE):
        raise ReplayError(f"it has the dtype {name}, which this MindSpore does not have")
    return found


def _tensor_of(value: ReplayTensor) -> Tensor:
    dtype = dtype_of(value.dtype)
    made = Tensor(np.ascontiguousarray(value.values).reshape(value.values.shape))
    return made if made.dtype == dtype else made.astype(dtype)


def _recorded(tensor: Tensor) -> ReplayTensor:
    dtype = str(tensor.dtype)
    values = tensor.astype(ms.float32) if tensor.dtype in (ms.bfloat16, ms.float16) else tensor
    return ReplayTensor(values=np.array(values.asnumpy()), dtype=dtype.lower())


# --- gradients --------------------------------------------------------------------------------------------------


def _gradients(call: ReplayCall, function: Function) -> dict[str, Tensor]:
    """Return the gradients with respect to the arguments that require one."""
    leaves: dict[str, Tensor] = {}
    sources: dict[str, str] = {}
    by_identity: dict[int, str] = {}

    def collect(value: ReplayTensor, path: str) -> Tensor:
        if value.takes_gradient:
            source = path if value.identity is None else by_identity.setdefault(value.identity, path)
            sources[path] = source
            return leaves.setdefault(source, _tensor_of(value))
        return _tensor_of(value)

    first = _outputs(function, *_arguments(call, collect))
    given = {path: value for path, value in call.gradients.items() if path in first}
    for path, value in given.items():
        if tuple(first[path].shape) != value.values.shape:
            raise ReplayError(f"its output {path} has the shape {list(first[path].shape)}, and the gradient another")
    if not given or not leaves:
        raise ReplayError("no gradient flows through it from what was recorded")
    names = list(leaves)

    def forward(*values: Tensor) -> Any:
        by_source = dict(zip(names, values, strict=True))

        def make(value: ReplayTensor, path: str) -> Tensor:
            # Not the leaf itself: the call may write to it.
            return by_source[sources[path]] * 1 if value.takes_gradient else _tensor_of(value)

        made = _outputs(function, *_arguments(call, make))
        ends = tuple(made[path] for path in given)
        return ends[0] if len(ends) == 1 else ends

    incoming = tuple(_tensor_of(value).astype(first[path].dtype) for path, value in given.items())
    derive: Any = ops.GradOperation(get_all=True, sens_param=True)(forward)
    found = derive(*leaves.values(), incoming[0] if len(incoming) == 1 else incoming)
    by_source = dict(zip(names, found if isinstance(found, tuple) else (found,), strict=True))
    return {path: by_source[source] for path, source in sources.items()}
