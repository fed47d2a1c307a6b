"""One call of a MindSpore API: the parts that `msprobe_core.interception.apis` leaves to the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import mindspore as ms
from mindspore import Tensor

from msprobe.mindspore._gradients import CallGradients, builds_graph, is_in_backward
from msprobe.mindspore._quiet import RecordingGuard
from msprobe.mindspore._unrecorded_calls import inside
from msprobe_core.interception import CLIP_GRAD, OPTIMIZER, Owners, is_clipping, tensors_in
from msprobe_core.interception import ApiCalls as _ApiCalls
from msprobe_core.plugin import Call, CallRecorder

SPARSE = tuple(kind for name in ("COOTensor", "CSRTensor") if isinstance(kind := getattr(ms, name, None), type))
"""Tensor types that are not ``mindspore.Tensor``."""


class ApiCalls(_ApiCalls):
    """Records the outermost API calls of each thread, from all patches."""

    tensor_type = (Tensor, *SPARSE)

    def __init__(self, recorder: CallRecorder, unsettled: dict[int, Callable[[], None]]) -> None:
        """Prepare.

        Args:
            recorder: Receives every call.
            unsettled: See `CallGradients`.
        """
        super().__init__(recorder, inside)
        self._unsettled = unsettled

    @property
    def is_looking(self) -> bool:
        """Whether a call that begins now on this thread is recorded."""
        return not inside.value and self._recorder.is_open

    def _quiet(self) -> RecordingGuard:
        return RecordingGuard(self._recorder.note_failure)

    def _builds_graph(self) -> bool:
        return builds_graph()

    def _is_in_backward(self) -> bool:
        return is_in_backward()

    def _owner_of(self, frame: FrameType, *, builds_graph: bool) -> str | None:  # noqa: ARG002
        return _owners.find(frame)

    def _watch(
        self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_foreign: bool
    ) -> CallGradients:
        kind = CallGradients if is_foreign else _ArgumentGradients
        return kind(self._recorder, call, args, kwargs, self._unsettled)


class _ArgumentGradients(CallGradients):
    """For a call that uses no tensors but its arguments, which therefore determine where its graph begins.

    So no node has to be created to find out the current node number.
    """

    __slots__ = ()

    def __init__(
        self,
        recorder: CallRecorder,
        call: Call,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        unsettled: dict[int, Callable[[], None]],
    ) -> None:
        super().__init__(recorder, call, args, kwargs, unsettled)
        # Include tensors without gradient: an index may have been computed from a tensor with one.
        for tensor in tensors_in((args, dict(kwargs)), Tensor):
            node = self.node_of(tensor)
            if node is not None:
                self._outside.setdefault(self.key_of(node), node)

    @staticmethod
    def next_sequence_number() -> int:
        return 0


def _owner_by(code: CodeType) -> str | None:
    if any(part in code.co_filename for part in _OPTIMIZERS):
        return OPTIMIZER
    return CLIP_GRAD if is_clipping(code) else None


_OPTIMIZERS = ("/mindspore/nn/optim/", "/mindspore/experimental/optim/", "/mindspore/mint/optim/")

_owners = Owners(_owner_by)
