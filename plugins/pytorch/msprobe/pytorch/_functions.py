"""Interception of APIs: one function mode, which sees every ``torch``, ``functional`` and ``Tensor`` call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
import torch.overrides
from torch.autograd import Variable
from torch.overrides import TorchFunctionMode

from msprobe.pytorch._apis import ApiTable, is_operator_call
from msprobe.pytorch._calls import ApiCalls
from msprobe.pytorch._collectives import local
from msprobe.pytorch._dropout import DropoutKernels, without_dropout
from msprobe.pytorch._gradients import is_in_backward
from msprobe.pytorch._omitted_arguments import OmittedArguments
from msprobe.pytorch._owners import is_of_compiler
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._thread_ends import at_thread_end
from msprobe.pytorch._torch_releases import export
from msprobe.pytorch._unwritten import concerns_unset_memory
from msprobe_core.interception import Patch
from msprobe_core.plugin import CallRecorder

_WITH_DROPOUT = frozenset({"Functional", "Torch", "VF", "Aten"})
"""The prefixes of functions that may have a dropout probability."""


class ApiMode(TorchFunctionMode):
    """Reports the outermost API calls of the thread it is entered on."""

    def __init__(self, recorder: CallRecorder, apis: ApiTable, calls: ApiCalls) -> None:
        """Prepare; ``push`` begins.

        Args:
            recorder: Receives every call.
            apis: Names functions.
            calls: Records them.
        """
        super().__init__()
        self._recorder = recorder
        self._apis = apis
        self._calls = calls
        self._operators: dict[tuple[int, int], tuple[bool, CodeType]] = {}
        self._aside: set[int] = set()
        self._omitted = OmittedArguments()
        self._visits = _Visits()
        self._thread = threading.get_ident()
        self._is_on = True
        self._has_seen_calls = False

    def push(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # the inherited one is obsolete
        """Begin to intercept calls of this thread.

        The mode is below the modes of the user, each of which removes the topmost one when its block ends, and above
        that of ``set_default_device``, which looks for itself at the very bottom.
        """
        at_thread_end(_take_off_ours)
        above = [mode for mode in _take_all_modes() if not _is_left_over(mode)]
        below = [above.pop()] if above and above[-1] is _default_device_mode() else []
        _put_back([*above, self, *below])

    @property
    def has_seen_calls(self) -> bool:
        """Whether any function of PyTorch was called while the mode was on."""
        return self._has_seen_calls

    def remove(self) -> None:
        """Stop intercepting.

        On a thread other than that of ``push``, or while a call is being handled, the mode is not on the stack and
        cannot be removed; it passes all calls on until the next ``push`` or ``remove`` removes it.
        """
        self._is_on = False
        _put_back([mode for mode in _take_all_modes() if not _is_left_over(mode)])

    @contextmanager
    def inside_backward(self) -> Generator[None, None, None]:
        """Push the mode once more: a mode is off while it handles a call, and ``backward`` is one."""
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
                # Modes of the user are above it, and may have changed meanwhile.
                others.insert(len(others) - (len(modes) - len(places) - place), self)
            _put_back(others)

        return come_back

    def visit(self) -> Callable[[], None] | None:
        """Be on the stack of another thread than that of ``push``; return how to leave, or ``None`` if it is there."""
        if threading.get_ident() == self._thread or self.is_aside or self._visits.is_here:
            return None
        self._visits.is_here = True
        self.push()

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
        self._has_seen_calls = True
        kwargs = self._omitted.add_to(kwargs or {}, func, args, sys._getframe(1))
        if not self._is_on or local.is_communicating or export._is_compiling_flag:
            return func(*args, **kwargs)
        calls, recorder = self._calls, self._recorder
        api = None if calls.is_inside else self._apis.find(func)
        if api is None or not recorder.is_open or (is_in_backward() and is_of_compiler(sys._getframe(1))):
            result = func(*args, **kwargs)
            if recorder.is_open and concerns_unset_memory(func):
                with RecordingGuard(recorder.note_failure):
                    calls.note_memory(func, args, kwargs, result)
            return result
        if DropoutKernels.is_removed and api.prefix in _WITH_DROPOUT:
            args, kwargs = without_dropout(api.name, args, kwargs)
        name = api.operator if api.operator and self._is_operator(sys._getframe(1)) else api.name
        return calls.run(api.prefix, name, func, args, kwargs, mutates=api.mutates)

    def _is_operator(self, frame: FrameType) -> bool:
        while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
            frame = frame.f_back  # of a mode or tensor subclass of the user, which has passed the call on
        code = frame.f_code
        site = id(code), frame.f_lasti  # the hash of a code object itself covers its whole content
        known = self._operators.get(site)
        if known is None:
            known = self._operators[site] = is_operator_call(frame), code  # kept alive, so that its id is not reused
        return known[0]


class _Visits(threading.local):
    is_here = False


class FastPathCheck(Patch):
    """Keeps PyTorch's fused transformer layers on the fast path: their check sees our mode, which overrides nothing.

    ``nn.TransformerEncoder`` and ``nn.MultiheadAttention``, and copies of them in other packages, compute differently,
    with different results, if a function mode is on. They look up the check in its module at each call, so the patch
    can answer as if our mode were off.
    """

    def __init__(self, mode: ApiMode, name: str) -> None:
        """Prepare; ``install`` begins."""
        super().__init__(torch.overrides, name)
        self._mode = mode

    def __call__(self, *arguments: Any) -> bool:
        """Return whether functions of these arguments are overridden; our mode counts only if it then gets the call."""
        if _HAND_OVER in sys._getframe(1).f_code.co_names:
            return self._original(*arguments)
        modes = _take_all_modes()
        try:
            _put_back([mode for mode in modes if mode is not self._mode])
            return self._original(*arguments)
        finally:
            _take_all_modes()
            _put_back(modes)


CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
"""The functions of ``torch.overrides`` that test whether functions are overridden."""

_HAND_OVER = "handle_torch_function"
"""Callers that refer to this name use the check to pass a call on, also to us."""


def _take_all_modes() -> list[TorchFunctionMode]:
    """Empty this thread's stack of function modes, and return them, topmost first."""
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]


def _put_back(modes: Sequence[TorchFunctionMode]) -> None:
    """Push modes onto this thread's stack; ``modes`` has the topmost first."""
    for mode in reversed(modes):
        torch._C._push_on_torch_function_stack(mode)


def _take_off_ours() -> None:
    """Remove every mode of this plugin from the stack of this thread."""
    _put_back([mode for mode in _take_all_modes() if not isinstance(mode, ApiMode)])


def _default_device_mode() -> TorchFunctionMode | None:
    holder = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    return getattr(holder, "device_context", None)


def _is_left_over(mode: TorchFunctionMode) -> bool:
    return isinstance(mode, ApiMode) and not mode._is_on


class BackwardEngine(Patch):
    """Replaces autograd's engine while APIs are recorded, so that recomputation inside backward is recorded.

    ``loss.backward()`` is itself a call that the mode handles, and a mode is off while it handles a call, so the
    checkpointed layers that run again inside would be missed. All paths into backward use the engine's Python entry, so
    the mode is pushed again there.
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
