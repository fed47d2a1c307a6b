"""One call of a PyTorch API: the parts that `msprobe_core.interception.apis` leaves to the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from msprobe.pytorch._apis import is_foreign_operator, written_by_schema
from msprobe.pytorch._gradients import CallGradients, is_in_backward
from msprobe.pytorch._owners import may_run_closure, owners
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._unwritten import UnsetMemory, ignores_values, leaves_memory_unset
from msprobe_core.interception import ApiCalls as _ApiCalls
from msprobe_core.interception import Function
from msprobe_core.plugin import Call, CallRecorder


class ApiCalls(_ApiCalls):
    """Records the outermost API calls of each thread, from the function mode and from patches."""

    tensor_type = torch.Tensor

    def __init__(self, recorder: CallRecorder, unsettled: dict[int, Callable[[], None]]) -> None:
        """Prepare.

        Args:
            recorder: Receives every call.
            unsettled: See `CallGradients`.
        """
        super().__init__(recorder)
        self._unsettled = unsettled
        self.unset_memory = UnsetMemory()

    def note_memory(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Track the effect of a function, recorded or not, on uninitialised memory."""
        if leaves_memory_unset(function):
            self.unset_memory.note(output)
        elif self.unset_memory and is_foreign_operator(function):
            self.unset_memory.forget((args, dict(kwargs)))

    def _unset_inputs(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_foreign: bool
    ) -> Sequence[Any]:
        if not self.unset_memory:
            return ()
        if is_foreign or is_foreign_operator(function):
            return self.unset_memory.among((args, dict(kwargs)))
        return self.unset_memory.among((kwargs.get("out"), args[:1] if ignores_values(function) else None))

    def _unset_outputs(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any, *, is_foreign: bool
    ) -> Sequence[Any]:
        if is_foreign:
            self.unset_memory.forget((args, dict(kwargs)))
        else:
            self.note_memory(function, args, kwargs, output)
        return self.unset_memory.among(output) if self.unset_memory else ()

    def _written_by(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        written = tuple(written_by_schema(function, args, kwargs))
        return written or super()._written_by(function, args, kwargs)

    def _quiet(self) -> RecordingGuard:
        return RecordingGuard(self._recorder.note_failure)

    def _builds_graph(self) -> bool:
        return torch.is_grad_enabled()

    def _is_in_backward(self) -> bool:
        return is_in_backward()

    def _owner_of(self, frame: FrameType, *, builds_graph: bool) -> str | None:
        return owners.find(frame, may_run_closure if builds_graph else None)

    def _watch(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_foreign: bool,  # noqa: ARG002  # node numbers show it for every function
    ) -> CallGradients:
        return CallGradients(self._recorder, call, args, kwargs, self._unsettled)
