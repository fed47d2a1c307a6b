"""Single modules in a more precise format while a step is repeated; see `msprobe_core.plugin.RaisingFramework`.

A raised module takes its arguments, parameters and buffers in the finer format, and computes in it whatever its own
code says: casts to a coarser format are to the finer one, and autocast is off. Modules that it calls are separate: one
that is not raised takes and computes what it did in the unchanged step, which `RaisedModules` has watched. What a
raised module returns stays fine if its caller is raised too. Gradients pass through all casts, so parameters keep
their gradients, and what is attached to them, in their own format.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from msprobe.pytorch._compiled import how_it_runs
from msprobe.pytorch._modules import modules_to_watch, type_name_of
from msprobe.pytorch._replay_stand_ins import grouped_mm
from msprobe.pytorch._shadow import converted, is_autocast_on, is_spread
from msprobe.pytorch._slots import observe
from msprobe_core.interception import FunctionPatch, Handle, map_values, value_leaves
from msprobe_core.plugin import OUTSIDE, NamedModel, RaisedModule, ReferenceFormat, SessionError

_DTYPES = {ReferenceFormat.FP32: torch.float32, ReferenceFormat.FP64: torch.float64}
_FINER_THAN = {
    torch.float32: (torch.bfloat16, torch.float16),
    torch.float64: (torch.bfloat16, torch.float16, torch.float32),
}
_DEVICES = ("cpu", "cuda", "npu", "xpu", "mps")
_CASTS = {"float", "half", "bfloat16"}
_WITHOUT_DOUBLE = {"grouped_mm", "_grouped_mm"}
"""Functions that refuse float64: the products of a mixture of experts."""


@dataclass(slots=True)
class _Call:
    """What a call of a module was in the unchanged step.

    Attributes:
        taken: Dtypes of the floating-point tensors among its arguments.
        given: Of those that it returned.
        autocast: Kinds of devices, and whether autocast was on.
        caller: Path of the module that called it; ``None`` for code outside of modules.
    """

    taken: tuple[torch.dtype, ...]
    autocast: Mapping[str, bool]
    caller: str | None
    given: tuple[torch.dtype, ...] = ()


@dataclass(slots=True)
class _Frame:
    """A call of a module that runs."""

    path: str
    call: _Call | None
    is_raised: bool = False
    is_in_raised: bool = False
    undo: ExitStack = field(default_factory=ExitStack)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames: list[_Frame] = []


class RaisedModules:
    """See `msprobe_core.plugin.RaisedModules`."""

    def __init__(self, models: Sequence[NamedModel]) -> None:
        """Prepare; nothing is attached.

        Raises:
            SessionError: a model is compiled, or distributed by a wrapper that holds its parameters.
        """
        self._found = list(modules_to_watch(models))
        for _, _, module in self._found:
            if how_it_runs(module) is not None:
                raise SessionError(
                    f"{type_name_of(module)} is compiled or traced, so that nothing inside of it can be raised; run it "
                    "eagerly, for example with the environment variable TORCH_COMPILE_DISABLE=1"
                )
            if is_spread(module) and type(module).__name__ != "DistributedDataParallel":
                raise SessionError("the parameters of FullyShardedDataParallel cannot be raised")
        self._thread = _Thread()
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._numbers: Counter[str] = Counter()
        self._raised: Container[str] = ()
        self._dtype = torch.float64
        self._is_learning = False
        self._error: BaseException | None = None
        self.failed: str | None = None
        self.modules: list[RaisedModule] = []

    @property
    def formats(self) -> set[str]:
        """Dtypes of floating-point tensors that modules took or gave, or computed with by autocast."""
        calls = [call for calls in self._calls.values() for call in calls]
        found = {str(dtype).removeprefix("torch.") for call in calls for dtype in (*call.taken, *call.given)}
        own = (tensor for _, _, module in self._found for tensor in _own_tensors(module).values())
        return found | {str(tensor.dtype).removeprefix("torch.") for tensor in own}

    @contextmanager
    def watched(self) -> Generator[None, None, None]:
        """Watch the unchanged step."""
        self._is_learning = True
        with self._attached():
            yield
        self._is_learning = False
        kinds = {path: kind for path, kind, _ in self._found}
        self.modules = [RaisedModule(path, kinds[path]) for path in self._calls]

    @contextmanager
    def raised(self, modules: Container[str], reference: ReferenceFormat) -> Generator[None, None, None]:
        """Raise modules; without any, the step is the unchanged one."""
        self._raised, self._dtype, self._error, self.failed = modules, _DTYPES[reference], None, None
        autocast = FunctionPatch(torch.amp.autocast_mode.autocast, "__enter__", self._enter_autocast)
        autocast.install()
        try:
            with self._attached():
                yield
        except Exception as error:
            if self.failed is None and self._error is not error and OUTSIDE in modules:
                self.failed = OUTSIDE
            raise
        finally:
            autocast.remove()

    @contextmanager
    def _attached(self) -> Generator[None, None, None]:
        self._numbers.clear()
        self._thread.frames.clear()
        handles: list[Handle] = []
        try:
            for path, _, module in self._found:
                handles.append(observe(module, partial(self._before, path), partial(self._after, path)))
            yield
        finally:
            while handles:
                handles.pop().remove()

    # --- one call ---------------------------------------------------------------------------------------------

    def _before(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        frames = self._thread.frames
        number = self._numbers[path]
        self._numbers[path] += 1
        if self._is_learning:
            call = _Call(_dtypes_of((args, kwargs)), _autocast(), frames[-1].path if frames else None)
            self._calls[path].append(call)
            frames.append(_Frame(path, call))
            return None
        calls = self._calls[path]
        call = calls[min(number, len(calls) - 1)] if calls else None
        # In a recompute nothing has called it; what calls it in the forward decides.
        caller = (calls[0].caller if calls else None) or OUTSIDE
        is_in_raised = frames[-1].is_raised if frames else caller in self._raised
        frame = _Frame(path, call, path in self._raised, is_in_raised)
        frames.append(frame)
        if frame.is_raised:
            args, kwargs = converted((args, kwargs), self._fine)
            self._raise(frame, module)
        elif is_in_raised:
            args, kwargs = converted((args, kwargs), _as_before(() if call is None else call.taken))
            frame.undo.enter_context(_autocast_as({} if call is None else call.autocast))
        return args, kwargs

    def _after(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:  # noqa: ARG002
        frames = self._thread.frames
        if not frames:
            return None
        frame = frames.pop()
        frame.undo.close()
        if output is None and (error := sys.exc_info()[1]) is not None:
            self._blame(frame, error)
        elif self._is_learning and frame.call is not None:
            frame.call.given = _dtypes_of(output)
        elif frame.is_in_raised:
            return map_values(output, _is_floating, self._fine)
        elif frame.is_raised:
            return map_values(output, _is_floating, _as_before(() if frame.call is None else frame.call.given))
        return None

    def _blame(self, frame: _Frame, error: BaseException) -> None:
        if error is not self._error:
            self._error, self.failed = error, None
        if self.failed is None and frame.is_raised:
            self.failed = frame.path

    def _fine(self, value: Any) -> Any:
        is_coarse = isinstance(value, Tensor) and value.dtype in _FINER_THAN[self._dtype]
        return _cast(value, self._dtype) if is_coarse else value

    def _raise(self, frame: _Frame, module: nn.Module) -> None:
        off = dict.fromkeys((name for name, is_on in _autocast().items() if is_on), False)
        frame.undo.enter_context(_autocast_as(off))
        frame.undo.enter_context(_swapped(module, self._fine))
        if not any(outer.is_raised for outer in self._thread.frames[:-1]):
            frame.undo.enter_context(_Fine(self._dtype, self._fine, self._is_inside))

    def _is_inside(self) -> bool:
        frames = self._thread.frames
        return bool(frames) and frames[-1].is_raised

    def _enter_autocast(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Enter, but without effect on the code of a raised module; for modules that it calls it is set again."""
        found = original(*args, **kwargs)
        device = str(getattr(args[0], "device", ""))
        if self._is_inside() and device and is_autocast_on(device):
            torch.set_autocast_enabled(device, False)
        return found


class _Fine(TorchFunctionMode):
    """Keeps functions that a raised module calls from becoming coarser, and from mixing formats."""

    def __init__(self, dtype: torch.dtype, fine: Callable[[Any], Any], is_inside: Callable[[], bool]) -> None:
        super().__init__()
        self._dtype, self._fine, self._is_inside = dtype, fine, is_inside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._is_inside():
            return func(*args, **kwargs)
        name: str = getattr(func, "__name__", "")
        if name in _CASTS and args:
            return args[0].to(self._dtype)
        if name != "view":
            args, kwargs = converted((args, kwargs), self._finer_dtype)
        writes = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
        if not writes and "out" not in kwargs and len(set(_dtypes_of((args, kwargs)))) > 1:
            args, kwargs = converted((args, kwargs), self._fine)
        if name in _WITHOUT_DOUBLE and self._dtype is torch.float64:
            return grouped_mm(*args[:2], **dict(zip(("offs", "bias", "out_dtype"), args[2:], strict=False)), **kwargs)
        return func(*args, **kwargs)

    def _finer_dtype(self, value: Any) -> Any:
        return self._dtype if isinstance(value, torch.dtype) and value in _FINER_THAN[self._dtype] else value


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    with torch._C.DisableTorchFunction():
        return tensor.to(dtype)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _dtypes_of(value: Any) -> tuple[torch.dtype, ...]:
    return tuple(tensor.dtype for tensor in value_leaves(value) if _is_floating(tensor))


def _as_before(dtypes: Sequence[torch.dtype]) -> Callable[[Any], Any]:
    """Return what casts tensors, in the order in which they are met, to the given dtypes."""
    left = iter(dtypes)

    def cast(tensor: Any) -> Any:
        if not _is_floating(tensor):
            return tensor
        dtype = next(left, None)
        return tensor if dtype is None or dtype is tensor.dtype else _cast(tensor, dtype)

    return cast


def _autocast() -> dict[str, bool]:
    return {name: is_autocast_on(name) for name in _DEVICES}


@contextmanager
def _autocast_as(states: Mapping[str, bool]) -> Generator[None, None, None]:
    changed = {name: is_on for name, is_on in states.items() if is_autocast_on(name) is not is_on}
    for name, is_on in changed.items():
        torch.set_autocast_enabled(name, is_on)
    try:
        yield
    finally:
        for name, is_on in changed.items():
            torch.set_autocast_enabled(name, not is_on)


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    own = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in own.items() if tensor is not None and _is_floating(tensor)}


@contextmanager
def _swapped(module: nn.Module, fine: Callable[[Tensor], Tensor]) -> Generator[None, None, None]:
    """Give a module its parameters and buffers in the finer format; it gets its own back, buffers as it leaves them."""
    made: list[tuple[dict[str, Any], str, Tensor, Tensor, int]] = []
    for name, tensor in _own_tensors(module).items():
        place: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
        if (finer := fine(tensor)) is not tensor:
            place[name] = finer
            made.append((place, name, tensor, finer, finer._version))
    flat = _flat_weights(module)
    try:
        yield
    finally:
        for place, name, tensor, finer, version in made:
            now = place.get(name)
            place[name] = tensor
            if place is module._buffers and now is not None and (now is not finer or now._version != version):
                with torch.no_grad(), torch._C.DisableTorchFunction():
                    tensor.copy_(now)
        if flat is not None:
            vars(module)["_flat_weights"] = flat


def _flat_weights(module: nn.Module) -> list[Any] | None:
    """Give a recurrent layer the list of its current weights, and return the one that it had."""
    names: Sequence[str] | None = getattr(module, "_flat_weights_names", None)
    if not isinstance(module, nn.RNNBase) or names is None:
        return None
    before: list[Any] = vars(module)["_flat_weights"]
    vars(module)["_flat_weights"] = [getattr(module, name, None) for name in names]
    return before
