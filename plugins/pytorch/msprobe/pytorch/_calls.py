"""One call of an API that PyTorch runs: what `msprobe_core.capture.apis` does not know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from msprobe.pytorch._apis import (
    bypasses_versions,
    exposes_memory,
    leaves_memory_unset,
    silently_written,
    written_by_schema,
)
from msprobe.pytorch._gradients import CallGradients, is_in_backward
from msprobe.pytorch._owners import owners
from msprobe.pytorch._quiet import Quiet
from msprobe_core.capture import apis
from msprobe_core.capture.apis import Function
from msprobe_core.hookspecs import Call, CallRecorder


class ApiCalls(apis.ApiCalls):
    """Records the outermost API calls of each thread: the same for what the mode sees and for what stand-ins get."""

    tensor_type = torch.Tensor

    def __init__(self, recorder: CallRecorder, unsettled: dict[int, Callable[[], None]]) -> None:
        """Prepare.

        Args:
            recorder: Is told of every call.
            unsettled: See `CallGradients`.
        """
        super().__init__(recorder)
        self._unsettled = unsettled

    def note_memory(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Follow what a function, recorded or not, does to the memory of tensors behind their versions' back."""
        recorder = self._recorder
        if args and exposes_memory(function):
            for value in (args[0], result):
                if isinstance(value, torch.Tensor):
                    recorder.distrust(value)
        elif leaves_memory_unset(function):
            recorder.pass_over(result)
        for written in silently_written(function, args, kwargs):
            recorder.distrust(written)

    def _follow(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        if bypasses_versions(function):
            self.note_memory(function, args, kwargs, output)

    def _written_by(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        written = tuple(written_by_schema(function, args, kwargs))
        return written or super()._written_by(function, args, kwargs)

    def _quiet(self) -> Quiet:
        return Quiet(self._recorder.note_failure)

    def _builds_graph(self) -> bool:
        return torch.is_grad_enabled()

    def _is_in_backward(self) -> bool:
        return is_in_backward()

    def _owner_of(self, frame: FrameType) -> str | None:
        return owners.find(frame)

    def _watch(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_foreign: bool,  # noqa: ARG002  # numbers of nodes tell, whatever it uses
    ) -> CallGradients:
        return CallGradients(self._recorder, call, args, kwargs, self._unsettled)
