"""Communication calls in all frameworks: arguments that are only written to, and results that are awaited.

The names are those of ``torch.distributed``, on which MindSpore's are modelled.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from msprobe_core.model import Argument
from msprobe_core.protocols.recording import Call, CallRecorder

UNSET_INPUTS: Mapping[str, str] = {
    "recv": "tensor", "irecv": "tensor", "scatter": "tensor", "gather": "gather_list",
    "all_gather": "tensor_list", "all_gather_into_tensor": "output_tensor", "all_gather_single": "output_tensor",
    "all_gather_coalesced": "output_tensor_lists", "_all_gather_base": "output_tensor",
    "reduce_scatter": "output", "reduce_scatter_tensor": "output", "reduce_scatter_single": "output",
    "_reduce_scatter_base": "output", "all_to_all": "output_tensor_list", "all_to_all_single": "output",
    "all_gather_into_tensor_uneven": "output", "reduce_scatter_tensor_uneven": "output", "all_to_all_v_c": "output",
    "scatter_tensor": "output_tensor", "gather_into_tensor": "output_tensor",
}  # fmt: skip
"""Parameter that a function only writes to: its content before the call is arbitrary, so it is not an input."""

SENDS, RECEIVES = frozenset({"send", "isend"}), frozenset({"recv", "irecv"})

ALWAYS_ASYNCHRONOUS = frozenset({"isend", "irecv", "batch_isend_irecv"})

_GROUP = "group"

_Kinds = type[Any] | tuple[type[Any], ...]


class Describer:
    """Converts arguments of communication calls to their records."""

    def __init__(
        self, operation_type: type[Any] | tuple[type[Any], ...], class_name: str, group_of: Callable[[Any], Any]
    ) -> None:
        """Prepare.

        Args:
            operation_type: The framework's class or classes for one operation of ``batch_isend_irecv``.
            class_name: Name of the class in dumps.
            group_of: Returns the record of a group; ``None`` stands for the group of all ranks.
        """
        self._operation_type = operation_type
        self._class_name = class_name
        self._group_of = group_of

    def inputs(
        self, name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments without those that are only written to, and with the group in all cases."""
        parameters = list(signature.parameters)
        positional, named = list(args), dict(kwargs)
        unset = UNSET_INPUTS.get(name)
        if unset in named:
            named[unset] = None
        elif unset in parameters and parameters.index(unset) < len(positional):
            positional[parameters.index(unset)] = None
        positional = [self.operations(value, SENDS) for value in positional]
        named = {key: self.operations(value, SENDS) for key, value in named.items()}
        if _GROUP in parameters:
            place = parameters.index(_GROUP)
            if place >= len(positional):
                named[_GROUP] = self._group_of(named.get(_GROUP))
            else:
                positional[place] = self._group_of(positional[place])
        return positional, named

    def operations(self, value: Any, kept: Collection[str]) -> Any:
        """Return a list of point-to-point operations as dicts of their fields; other values unchanged.

        Args:
            value: Any argument.
            kept: Names of the operations whose tensors are recorded.
        """
        items = cast("list[Any]", value) if isinstance(value, list) else []
        if not any(isinstance(item, self._operation_type) for item in items):
            return cast("Any", value)
        return [self._operation(item, kept) for item in items]

    def _operation(self, operation: Any, kept: Collection[str]) -> dict[str, Any]:
        name = getattr(operation.op, "__name__", operation.op)
        return {
            "class_type": Argument("", self._class_name),
            "tensor": operation.tensor if name in kept else None,
            "op": Argument("", name),
            "peer": Argument("", operation.peer),
            "tag": Argument("", operation.tag),
            "group": self._group_of(operation.group),
        }


class Pending:
    """A call whose results are complete when all its works have been waited for."""

    def __init__(self, call: Call, output: Any, num_waits: int) -> None:
        """Note a call.

        Args:
            call: The call, which is still open.
            output: Destination of its results.
            num_waits: Number of works to wait for.
        """
        self.call = call
        self.output = output
        self.num_waits = num_waits

    def lose(self, _work: Any) -> None:
        """Drop the results: a work was freed without a wait. Takes no lock: it may run anywhere in the program."""
        self.output = None

    def note_wait(self) -> bool:
        """Count a finished wait; return whether it was the last."""
        self.num_waits -= 1
        return not self.num_waits

    def give_up(self, recorder: CallRecorder) -> None:
        """End the call if some works were never waited for: its inputs are known, its results are not."""
        if self.num_waits:
            self.num_waits = 0
            recorder.close(self.call)


class PendingWorks:
    """Works that calls have returned and the program has not waited for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reading a result may itself wait for another work
        self._works: dict[int, tuple[weakref.ref[Any], Pending]] = {}

    def __bool__(self) -> bool:
        return bool(self._works)

    def add(self, works: Iterable[Any], call: Call, output: Any) -> None:
        """Expect a wait for all of ``works`` before ``output`` is the result of ``call``."""
        works = list(works)
        pending = Pending(call, output, len(works))
        with self._lock:
            self._works.update((id(work), (weakref.ref(work, pending.lose), pending)) for work in works)

    def pop(self, work: Any) -> Pending | None:
        """Return the pending call of ``work``, and forget the work."""
        with self._lock:
            reference, pending = self._works.pop(id(work), (None, None))
        # The address may belong to a new object if the old one was freed without a wait.
        return pending if reference is not None and reference() is work else None

    def give_up(self, recorder: CallRecorder) -> None:
        """End all calls with works that were never waited for."""
        with self._lock:
            while self._works:
                self._works.popitem()[1][1].give_up(recorder)
