"""Interception of APIs: one function mode, which sees every ``torch``, ``functional`` and ``Tensor`` call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.overrides
from torch.autograd import Variable
from torch.overrides import TorchFunctionMode

from msprobe.pytorch._apis import (
    Api,
    ApiTable,
    bypasses_versions,
    exposes_memory,
    is_operator_call,
    leaves_memory_unset,
    silently_written,
)
from msprobe.pytorch._collectives import local
from msprobe.pytorch._gradients import CallGradients, is_in_backward
from msprobe.pytorch._owners import is_of_compiler, owner_of
from msprobe.pytorch._quiet import Quiet
from msprobe_core.hookspecs import Call, CallRecorder


class ApiMode(TorchFunctionMode):
    """Reports the outermost API calls of the thread it is entered on."""

    def __init__(self, recorder: CallRecorder, apis: ApiTable, unsettled: dict[int, Callable[[], None]]) -> None:
        """Prepare; ``push`` begins.

        Args:
            recorder: Is told of every call.
            apis: Names functions.
            unsettled: See `CallGradients`.
        """
        super().__init__()
        self._recorder = recorder
        self._apis = apis
        self._unsettled = unsettled
        self._operators: dict[tuple[object, int], bool] = {}
        self._aside: set[int] = set()
        self._visits = _Visits()
        self._thread = threading.get_ident()
        self._is_on = True

    def push(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # the inherited one is obsolete
        """Begin to see calls of this thread.

        Below the modes of the user, each of which takes the uppermost out when its block ends, and above that of
        ``set_default_device``, which looks for itself at the very bottom.
        """
        above = [mode for mode in _take_all_modes() if not _is_left_over(mode)]
        below = [above.pop()] if above and above[-1] is _default_device_mode() else []
        _put_back([*above, self, *below])

    def remove(self) -> None:
        """See nothing any more.

        On another thread than that of ``push``, or in the middle of a call that is being handled, the mode is not on
        the stack and cannot be taken out; it passes all calls on until the next ``push`` or ``remove`` clears it away.
        """
        self._is_on = False
        _put_back([mode for mode in _take_all_modes() if not _is_left_over(mode)])

    @contextmanager
    def inside_backward(self) -> Generator[None, None, None]:
        """Be on the stack once more: a mode is off while it handles a call, and ``backward`` is one."""
        torch._C._push_on_torch_function_stack(self)
        try:
            yield
        finally:
            modes = _take_all_modes()
            modes.remove(self)
            _put_back(modes)

    def step_aside(self) -> Callable[[], None]:
        """Be off the stack of this thread until what is returned is called."""
        thread = threading.get_ident()
        self._aside.add(thread)
        modes = _take_all_modes()
        places = [i for i, mode in enumerate(modes) if mode is self]
        _put_back([mode for mode in modes if mode is not self])

        def come_back() -> None:
            self._aside.discard(thread)
            others = _take_all_modes()
            for place in places:
                # Modes of the user lie above it, and may have come and gone.
                others.insert(len(others) - (len(modes) - len(places) - place), self)
            _put_back(others)

        return come_back

    def visit(self) -> Callable[[], None] | None:
        """Be on the stack of another thread than that of ``push``; return how to leave, or ``None`` if it is there."""
        if threading.get_ident() == self._thread or self.is_aside or self._visits.is_here:
            return None
        self._visits.is_here = True
        _put_back([self])

        def leave() -> None:
            self._visits.is_here = False
            _put_back([mode for mode in _take_all_modes() if mode is not self])

        return leave

    @property
    def is_aside(self) -> bool:
        """Whether it has stepped aside on this thread."""
        return threading.get_ident() in self._aside

    @property
    def is_active(self) -> bool:
        """Whether this thread's calls are seen; not while one of them is being handled."""
        size = torch._C._len_torch_function_stack()
        return any(torch._C._get_function_stack_at(i) is self for i in range(size))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._is_on or local.is_communicating:
            return func(*args, **kwargs)
        api = self._apis.find(func)
        recorder = self._recorder
        if api is None or not recorder.is_open or (is_in_backward() and is_of_compiler(sys._getframe(1))):
            result = func(*args, **kwargs)
            if recorder.is_open and bypasses_versions(func):
                with Quiet(recorder.note_failure):
                    self._note_memory(func, args, kwargs, result)
            return result
        name = api.operator if api.operator and self._is_operator(sys._getframe(1)) else api.name
        call: Call | None = None
        gradients: CallGradients | None = None
        builds_graph = torch.is_grad_enabled()
        with Quiet(recorder.note_failure):
            owner = owner_of(sys._getframe(1)) if recorder.is_outside_modules else None
            is_recomputed = builds_graph and is_in_backward()
            call = recorder.open_api(api.prefix, name, owner, is_recomputed=is_recomputed)
            recorder.record_inputs(call, args, kwargs)
            if call.wants_gradients and builds_graph:
                gradients = CallGradients(recorder, call, args, kwargs, self._unsettled)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            if call is not None:
                recorder.close(call)
            raise
        if call is None:
            return result
        with Quiet(recorder.note_failure):
            output = _result_of(api, args, result)
            is_computation = _has_tensor(output)
            if bypasses_versions(func):
                self._note_memory(func, args, kwargs, output)
            if is_computation:
                recorder.record_outputs(call, output)
                if gradients is not None:
                    gradients.attach(output)
            recorder.close(call, keep=is_computation)
        return result

    def _note_memory(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Follow what a function, recorded or not, does to the memory of tensors behind their versions' back."""
        recorder = self._recorder
        if args and exposes_memory(func):
            for value in (args[0], result):
                if isinstance(value, torch.Tensor):
                    recorder.distrust(value)
        elif leaves_memory_unset(func):
            recorder.pass_over(result)
        for written in silently_written(func, args, kwargs):
            recorder.distrust(written)

    def _is_operator(self, frame: FrameType) -> bool:
        while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
            frame = frame.f_back  # of a mode or tensor class of the user, which has handed the call on
        site = (frame.f_code, frame.f_lasti)
        known = self._operators.get(site)
        if known is None:
            known = self._operators[site] = is_operator_call(frame)
        return known


class _Visits(threading.local):
    is_here = False


class StandIn:
    """Takes the place of an attribute of PyTorch between ``install`` and ``remove``."""

    _lock = threading.Lock()

    def __init__(self, owner: Any, attribute: str) -> None:
        """Prepare; ``install`` begins."""
        self._owner = owner
        self._attribute = attribute
        self._original: Any = None

    def install(self) -> None:
        """Take the place."""
        with self._lock:
            self._original = getattr(self._owner, self._attribute)
            setattr(self._owner, self._attribute, self)

    def remove(self) -> None:
        """Give the place back, unless somebody else has taken it since."""
        with self._lock:
            if getattr(self._owner, self._attribute) is self:
                setattr(self._owner, self._attribute, self._original)


class FastPathCheck(StandIn):
    """Keeps PyTorch's fused transformer layers fused: they ask whether anybody overrides functions, and we do not.

    ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` compute another way, with other results, where a function
    mode is on. They look the check up in its module at each call, so that it can answer as if our mode were off.
    """

    def __init__(self, mode: ApiMode) -> None:
        """Prepare; ``install`` begins."""
        super().__init__(torch.overrides, "has_torch_function")
        self._mode = mode

    def __call__(self, arguments: Any) -> bool:
        """Whether anybody overrides functions of these arguments; for PyTorch's own layers, anybody but us."""
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch.nn.modules."):
            return self._original(arguments)
        modes = _take_all_modes()
        try:
            _put_back([mode for mode in modes if mode is not self._mode])
            return self._original(arguments)
        finally:
            _take_all_modes()
            _put_back(modes)


def _take_all_modes() -> list[TorchFunctionMode]:
    """Empty this thread's stack of function modes, and return them, the uppermost first."""
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]


def _put_back(modes: Sequence[TorchFunctionMode]) -> None:
    """Put modes onto this thread's stack, the uppermost first in ``modes``."""
    for mode in reversed(modes):
        torch._C._push_on_torch_function_stack(mode)


def _default_device_mode() -> TorchFunctionMode | None:
    holder = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    return getattr(holder, "device_context", None)


def _is_left_over(mode: TorchFunctionMode) -> bool:
    return isinstance(mode, ApiMode) and not mode._is_on


def _result_of(api: Api, args: tuple[Any, ...], result: Any) -> Any:
    """Return what a call computed: its result, or what it wrote to where it returns nothing."""
    return args[0] if result is None and api.mutates and args else result


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, tuple | list):
        return any(_has_tensor(item) for item in value)
    return isinstance(value, dict) and any(_has_tensor(item) for item in value.values())


class BackwardEngine(StandIn):
    """Stands in for autograd's engine while APIs are recorded, so that recomputation inside backward is seen.

    ``loss.backward()`` is itself a call that the mode handles, and a mode is off while it handles a call; the
    checkpointed layers that run again inside would go unseen. The engine's Python entry is the one place that all
    ways into backward pass, so the mode is put back there.
    """

    def __init__(self, mode: ApiMode) -> None:
        """Prepare; ``install`` begins."""
        super().__init__(Variable, "_execution_engine")
        self._mode = mode
        self._thread = threading.get_ident()

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the engine with the mode on."""
        mode = self._mode
        if threading.get_ident() != self._thread or mode.is_active or mode.is_aside:
            return self._original.run_backward(*args, **kwargs)
        with mode.inside_backward():
            return self._original.run_backward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
