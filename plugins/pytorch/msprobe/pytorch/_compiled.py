"""`torch.compile`: compiled code runs as without the probe, and is recorded from outside.

A function mode or a module hook that the compiler finds becomes part of what it compiles: it recompiles, compiles
something else, or fails. So all interception is suspended while compiled code runs on a thread. One function of PyTorch
marks the beginning and the end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Protocol, cast

import torch
from torch import nn

from msprobe.pytorch._slots import compiled_call_of
from msprobe_core.interception import Patch

_EVAL_FRAME = "torch._dynamo.eval_frame"
_SWITCHES = ("_maybe_set_eval_frame", "set_eval_frame")
"""Functions that begin and end compiled code; before PyTorch 2.6 there is only the latter, which the former calls."""

_WRAPPED = "_orig_mod"

COMPILED = (
    "code that was compiled with torch.compile runs; nothing inside it is recorded; set TORCHDYNAMO_DISABLE=1 to "
    "record what is inside, computed without the compiler"
)

NO_SWITCH = (
    "this release of PyTorch has no switch of torch.compile that is known: if compiled code runs while something is "
    "recorded, the probe is compiled along with it; set TORCHDYNAMO_DISABLE=1"
)


class StepsAside(Protocol):
    """Interception that must be suspended while compiled code runs."""

    def step_aside(self) -> Callable[[], None]:
        """Suspend interception on this thread, and return how to resume it."""
        ...


class CompiledRegions(Patch):
    """Suspends interception whenever compiled code runs; patches the compiler's switch."""

    def __init__(self, others: Sequence[StepsAside], say: Callable[[str], None]) -> None:
        """Prepare; ``install`` begins.

        Args:
            others: Interceptions to suspend.
            say: Informs the user.
        """
        super().__init__(None, _SWITCHES[0])
        self._others = others
        self._say = say
        self._regions = threading.local()
        self._waits: _CompilerComes | None = None

    def install(self) -> None:
        """Begin; if nothing has been compiled in this process yet, as soon as something is."""
        self._owner = sys.modules.get(_EVAL_FRAME)
        if self._owner is None:
            self._waits = _CompilerComes(self)
            self._waits.install()
            return
        switches = [name for name in _SWITCHES if hasattr(self._owner, name)]
        if switches:
            self._attribute = switches[0]
            _keep_from_compiler(CompiledRegions.__call__)
            super().install()
        else:
            self._say(NO_SWITCH)

    def remove(self) -> None:
        """End."""
        if self._waits is not None:
            self._waits.remove()
            self._waits = None
        super().remove()

    def __call__(self, callback: Any) -> Any:
        """Switch compiled code on or off for this thread, like the original."""
        compiles = _switch(None)  # in some releases a region ends while the compiler still reads what runs
        ended = self._note(_region_of(sys._getframe(1)), callback)
        _switch(compiles)
        result = self._original(callback)
        for come_back in ended:
            come_back()
        return result

    def _note(self, region: int, callback: Any) -> Sequence[Callable[[], None]]:
        """Suspend interception where a region begins; where one ends, return how to resume."""
        begun: tuple[int, list[Callable[[], None]]] | None = getattr(self._regions, "begun", None)
        if begun is None and callable(callback):
            self._say(COMPILED)
            self._regions.begun = region, [other.step_aside() for other in self._others]
        elif begun is not None and begun[0] == region and not callable(callback):
            self._regions.begun = None
            return begun[1][::-1]
        return ()


class _CompilerComes(Patch):
    """Patches ``torch.compile`` until its first call has imported the compiler."""

    def __init__(self, regions: CompiledRegions) -> None:
        super().__init__(torch, "compile")
        self._regions = regions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._original(*args, **kwargs)
        if _EVAL_FRAME in sys.modules:
            self._regions.remove()
            self._regions.install()
        return result


_switch: Callable[[Any], Any] = cast("Any", torch._C)._dynamo.eval_frame.set_eval_frame
"""The compiler's own switch of this thread; it returns the previous value."""


def _keep_from_compiler(function: Callable[..., Any]) -> None:
    """Exclude a function, but not its callees, from compilation, if the release lets compiled code call it."""
    skip: Callable[[CodeType], None] | None = getattr(cast("Any", torch._C)._dynamo.eval_frame, "skip_code", None)
    if skip is not None:
        skip(function.__code__)


def _region_of(frame: FrameType) -> int:
    """Return the identity of a region, common to its beginning and end: a running function, or a context manager."""
    if frame.f_code.co_name in ("__enter__", "__exit__"):
        return id(frame.f_locals.get("self"))
    return id(frame)


def original_of(module: nn.Module) -> nn.Module | None:
    """Return the original module of a compiled one; ``None`` if it was not returned by ``torch.compile``."""
    return module._modules.get(_WRAPPED) if type(module).__name__ == "OptimizedModule" else None


def how_it_runs(module: nn.Module) -> str | None:
    """Return, as a sentence, why nothing inside a module can be hooked; ``None`` for an ordinary module."""
    if original_of(module) is not None or compiled_call_of(module) is not None:
        return COMPILED
    if isinstance(module, torch.jit.ScriptModule):
        return "a scripted or traced module runs; nothing inside it is recorded; record the module that it was made of"
    return None


def modules_to_hook(root: nn.Module, name: str) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield path, module, and whether its calls can be observed: those of modules inside a compiled one cannot.

    A compiled module has the path of its original, which is not listed separately.
    """
    closed: set[str] = set()
    for path, module in root.named_modules():
        parts = path.split(".") if path else []
        is_inside = bool(closed) and any(".".join(parts[:depth]) in closed for depth in range(len(parts)))
        if how_it_runs(module) is not None:
            closed.add(path)
        yield ".".join(part for part in (name, *parts) if part and part != _WRAPPED), module, not is_inside
