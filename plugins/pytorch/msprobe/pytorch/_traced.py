"""Suspend interception while TorchScript, ``torch.fx`` or ``torch.export`` read a model.

They turn what they read into a program, and calls meanwhile run on placeholder values. So all interception is suspended
on the reading thread, and nothing is recorded there.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msprobe.pytorch._compiled import StepsAside
from msprobe_core.interception import FunctionPatch, Patches

_READERS = (
    # The public functions, even those imported by name, call these.
    ("torch.jit._recursive", "create_script_module"),
    ("torch.jit._trace", "_trace_impl"),
    ("torch.jit._trace", "trace_module"),
    ("torch._C", "_create_function_from_trace"),
    ("torch._C", "_create_function_from_trace_with_dict"),
    ("torch._C", "_create_graph_by_tracing"),
    ("torch.fx:Tracer", "trace"),
)
"""Modules, or classes in them, and their functions that read a model."""

TRACED = (
    "a model is scripted, traced or exported while something is recorded: it is read as it is without the probe, and "
    "nothing is recorded meanwhile"
)


class TracedRegions:
    """Suspends interception while a model is read."""

    def __init__(self, others: Sequence[StepsAside], say: Callable[[str], None]) -> None:
        """Prepare; ``install`` begins.

        Args:
            others: Interceptions to suspend.
            say: Informs the user.
        """
        self._others = others
        self._say = say
        self._thread = _Thread()
        patches = [_patch(place, name, self._run) for place, name in _READERS]
        self._patches = Patches([one for one in patches if one is not None], are_imported=False)

    def install(self) -> None:
        """Begin."""
        self._patches.install()

    def remove(self) -> None:
        """End."""
        self._patches.remove()

    def _run(self, read: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._thread.is_reading:
            return read(*args, **kwargs)
        self._say(TRACED)
        self._thread.is_reading = True
        returns = [other.step_aside() for other in self._others]
        try:
            return read(*args, **kwargs)
        finally:
            for come_back in reversed(returns):
                come_back()
            self._thread.is_reading = False


class _Thread(threading.local):
    is_reading = False


def _patch(place: str, name: str, handler: Callable[..., Any]) -> FunctionPatch | None:
    """Return a patch of a function; ``None`` if this release has no such function."""
    module, _, class_name = place.partition(":")
    owner: Any = importlib.import_module(module)
    if class_name:
        owner = getattr(owner, class_name)
    return FunctionPatch(owner, name, handler) if hasattr(owner, name) else None
