"""Record what runs below the APIs: each operator that PyTorch's dispatcher starts, forward and backward."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from msprobe.pytorch._apis import Api, ApiTable
from msprobe.pytorch._calls import ApiCalls
from msprobe.pytorch._collectives import local
from msprobe.pytorch._dispatch import COMMUNICATING, PLAIN, BottomMode, run_below, written_arguments
from msprobe.pytorch._gradients import Node, is_in_backward, next_sequence_number
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._unwritten import UnsetMemory, ignores_values
from msprobe_core.plugin import Call, CallRecorder

_current_node: Callable[[], Node] = cast("Any", torch._C)._current_autograd_node

_COMPILED_NODE = "CompiledFunction"
"""Name of the autograd node in which compiled code computes gradients."""

_MAKES_UNSET = ("empty", "new_empty")
_WITHOUT_VALUES = ("_local_scalar_dense", "is_", "set_", "resize_", "record_stream", "_assert", "sym_")
_NOT_COMPUTING = frozenset({"prim", "prims", "profiler", "debugprims", "inductor"}) | COMMUNICATING
_MOVING = frozenset({"_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "_to_copy"})
"""Operators that implement views, copies and casts and that API tables do not list."""


class Operator(NamedTuple):
    """What is known about an operator.

    Attributes:
        api: Its name; ``None`` if it is not recorded.
        makes_unset: Whether its result is uninitialised memory.
        writes: Whether it writes to arguments.
    """

    api: Api | None
    makes_unset: bool
    writes: bool


class OperatorTable:
    """Decides which operators are recorded, and names them."""

    def __init__(self, apis: ApiTable, *, keeps_all: bool) -> None:
        """Build the table.

        Args:
            apis: Names functions.
            keeps_all: Whether views, copies, casts and creation are recorded too, as with the risk level ``ALL``.
        """
        self._name = apis.name_of
        self._keeps_all = keeps_all
        self._known: dict[Any, Operator] = {}

    def find(self, operator: Any) -> Operator:
        """Return what is known about an operator."""
        known = self._known.get(operator)
        if known is None:
            name = operator._schema.name.partition("::")[2]
            makes_unset = name.startswith(_MAKES_UNSET)
            known = self._known[operator] = Operator(self._find(operator), makes_unset, operator._schema.is_mutable)
        return known

    def _find(self, operator: Any) -> Api | None:
        namespace, _, name = operator._schema.name.partition("::")
        if namespace in _NOT_COMPUTING or name.startswith((*_MAKES_UNSET, *_WITHOUT_VALUES)):
            return None
        api = self._name(operator, keeps_all=self._keeps_all)
        return api if self._keeps_all or not (name in _MOVING or _is_view(operator)) else None


def _is_view(operator: Any) -> bool:
    return any(made.alias_info is not None and not made.alias_info.is_write for made in operator._schema.returns)


class OperatorMode(BottomMode):
    """Reports the operators of this thread, and of the backward passes that it starts."""

    def __init__(self, recorder: CallRecorder, table: OperatorTable, calls: ApiCalls) -> None:
        """Prepare; ``install`` begins.

        Args:
            recorder: Receives every operator.
            table: Names them.
            calls: Knows which API call is being recorded.
        """
        super().__init__()
        self._recorder = recorder
        self._table = table
        self._calls = calls
        self._unset = UnsetMemory()
        self._makers = _NodeMakers()

    def detach(self) -> None:
        """End, and discard the calls of nodes."""
        super().detach()
        self._makers.clear()
        self._unset.clear()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._is_on and not all(kind in PLAIN for kind in types):
            return NotImplemented  # a tensor subclass: the operators that it calls come here
        kwargs = kwargs or {}
        if not self._is_recording:
            return run_below(func, args, kwargs)
        operator, call = self._table.find(func), None
        around, is_in_backward = self._place()
        if operator.api is not None and around is not _COMPILED:
            call = self._open(operator.api, func, args, kwargs, around, is_in_backward=is_in_backward)
        try:
            output = run_below(func, args, kwargs)
        except BaseException:
            if call is not None:
                self._recorder.close(call)
            raise
        if call is not None or operator.makes_unset or (operator.writes and self._unset):
            self._close(call, operator, func, args, kwargs, output)
        return output

    @property
    def _is_recording(self) -> bool:
        return self._is_on and self._recorder.is_open and not local.is_communicating

    def place(self) -> tuple[Any, bool] | None:
        """Return the current call, and whether gradients are computed; ``None`` if nothing is recorded."""
        if not self._is_recording:
            return None
        around, is_in_backward = self._place()
        return None if around is _COMPILED else (around, is_in_backward)

    def _place(self) -> tuple[Any, bool]:
        """Return the call that an operator is part of, and whether it computes gradients instead of values."""
        around = self._calls.around or self._recorder.open_call()
        # Recomputation inside a backward pass is inside a call.
        if around is not None or not is_in_backward():
            self._makers.note(around)
            return around, False
        node = _current_node()
        if node is not None and node.name().startswith(_COMPILED_NODE):
            return _COMPILED, True
        return (None if node is None else self._makers.find(node)), True

    def _open(
        self,
        api: Api,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        around: Call | None,
        *,
        is_in_backward: bool,
    ) -> Call | None:
        call: Call | None = None
        with RecordingGuard(self._recorder.note_failure):
            call = self._recorder.open_operator(api.prefix, api.name, around, is_in_backward=is_in_backward)
            if call.wants_forward:
                overwritten = (args[:1] if ignores_values(func) else None, kwargs.get("out"))
                unset = self._unset.among(overwritten) if self._unset else ()
                self._recorder.record_inputs(call, args, kwargs, unset)
        return call

    def _close(
        self,
        call: Call | None,
        operator: Operator,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        with RecordingGuard(self._recorder.note_failure):
            if operator.makes_unset:
                self._unset.note(output)
            written = tuple(written_arguments(func, args, kwargs)) if operator.writes else ()
            if written and self._unset:
                self._unset.forget(written)  # its version is raised later
            if call is None:
                return
            made = output if self._calls.has_tensor(output) else written
            is_computation = self._calls.has_tensor(made)
            if is_computation and call.wants_forward:
                self._recorder.record_outputs(call, made, self._unset.among(made) if self._unset else ())
            self._recorder.close(call, keep=is_computation)


_COMPILED: Any = object()
"""Marker for compiled code, used instead of a call."""


class _NodeMakers:
    """The call that created each autograd node of this thread, by the node's sequence number."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._calls: list[Call | None] = []

    def note(self, around: Call | None) -> None:
        """Note the latest node: an operator runs after its node has been created."""
        number = next_sequence_number() - 1
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
            self._calls.append(around)

    def find(self, node: Node) -> Call | None:
        """Return the call that created a node; ``None`` if it is not known."""
        number = node._sequence_nr()
        place = bisect_left(self._numbers, number)
        return self._calls[place] if place < len(self._numbers) and self._numbers[place] == number else None

    def clear(self) -> None:
        """Discard all."""
        self._numbers.clear()
        self._calls.clear()
