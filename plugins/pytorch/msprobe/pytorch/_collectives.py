"""Interception of communication: collectives and point-to-point calls, synchronous, asynchronous and functional.

They run outside of PyTorch's dispatch, so they are wrapped in a way that includes functions imported by name before.
Most functions of ``torch.distributed`` are closures around the actual function, so ours replaces it in the closure's
cell. Functional collectives are operators, whose implementation is looked up at each call. The remaining ones,
``isend``, ``irecv`` and ``batch_isend_irecv``, are patched in their modules.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from msprobe.pytorch._gradients import CallGradients
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._reduce import held_by
from msprobe.pytorch._torch_releases import is_tried
from msprobe_core.interception import (
    ALWAYS_ASYNCHRONOUS,
    RECEIVES,
    SENDS,
    UNSET_INPUTS,
    Describer,
    FunctionPatch,
    Handler,
    Patch,
    Pending,
    PendingWorks,
    original_of,
)
from msprobe_core.plugin import Call, CallRecorder

_PREFIX = "Distributed"
_FUNCTIONAL = "_c10d_functional"
_IN_PYTHON = "c10d_functional"
"""Namespace in PyTorch 2.1 and 2.2: operators implemented in a Python module, with groups given by their ranks."""

_DEFINING = "torch.distributed._functional_collectives"
_WAIT = "wait_tensor"

RECORDED = (
    "send", "broadcast", "all_reduce", "all_reduce_coalesced", "reduce", "isend", "batch_isend_irecv", *UNSET_INPUTS,
)  # fmt: skip
"""Functions of ``torch.distributed`` that are recorded."""

_PASSED_OVER = (
    "barrier", "monitored_barrier", "all_gather_object", "gather_object", "broadcast_object_list",
    "scatter_object_list", "send_object_list", "recv_object_list",
)  # fmt: skip
"""Functions that send pickled objects or nothing: their inner calls do not communicate tensors."""


class Collectives:
    """Reports the communication of all threads."""

    def __init__(
        self, recorder: CallRecorder, unsettled: dict[int, Callable[[], None]], note_written: Callable[[Any], None]
    ) -> None:
        """Prepare; ``install`` begins.

        Args:
            recorder: Receives every call.
            unsettled: See `CallGradients`.
            note_written: Called with the tensors that communication writes to without incrementing their versions.
        """
        self._recorder = recorder
        self._unsettled = unsettled
        self._note_written = note_written
        self._lock = threading.RLock()  # reading a result may itself wait for another one
        self._patches: list[Patch] = []
        self._works = PendingWorks()
        self._with_wait: set[type[Any]] = set()
        # The weak references keep addresses from being reused.
        self._results: dict[int, tuple[StorageWeakRef, Pending]] = {}

    def install(self) -> None:
        """Begin."""
        if not torch.distributed.is_available():
            return
        if torch.distributed.is_initialized():
            self._install_all()
            return
        # There is no process group yet, and there may be a window in every step.
        cell = _cell_around(torch.distributed.init_process_group)
        if cell is None:
            self._install_all()
        else:
            self._replace(cell, "cell_contents", self._begin_job)

    def _begin_job(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = run(*args, **kwargs)
        if len(self._patches) == 1:
            with RecordingGuard(self._recorder.note_failure):
                self._install_all()
        return result

    def _install_all(self) -> None:
        for name in (*RECORDED, *_PASSED_OVER):
            self._replace_function(name)
        self._replace_wait(torch.distributed.Work)
        for namespace in (_FUNCTIONAL, f"{_FUNCTIONAL}_autograd", _IN_PYTHON):
            for name, packet in _packets(namespace, _DEFINING in sys.modules):
                handler = self._wait_tensor if name == _WAIT else partial(self._run_operator, name)
                self._replace(packet, "_op", handler)

    def remove(self) -> None:
        """End, except where other code has replaced our patch."""
        while self._patches:
            self._patches.pop().remove()
        self._with_wait.clear()
        with RecordingGuard(self._recorder.note_failure):
            self._works.give_up(self._recorder)
            for _, pending in self._results.values():
                pending.give_up(self._recorder)
        self._results.clear()

    def _replace(self, owner: Any, attribute: str, handler: Handler) -> FunctionPatch:
        # A trial run of a compiler communicates nothing.
        patch = FunctionPatch(owner, attribute, handler, is_tried)
        patch.install()
        self._patches.append(patch)
        return patch

    def _replace_function(self, name: str) -> None:
        published = getattr(torch.distributed, name, None)
        if published is None:
            return
        handler = partial(self._run_function, name, _signature(published))
        cell = _cell_around(published)
        if cell is not None:
            self._replace(cell, "cell_contents", handler)
            return
        patch = self._replace(torch.distributed.distributed_c10d, name, handler)
        # The same object in both modules: P2POp checks for the functions' identity.
        alias = _Alias(torch.distributed, name, patch)
        alias.install()
        self._patches.append(alias)

    # --- torch.distributed --------------------------------------------------------------------------------------

    def _run_function(
        self,
        name: str,
        signature: inspect.Signature,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if self in local.reporters or not self._recorder.is_open:
            return run(*args, **kwargs)
        call: Call | None = None
        with RecordingGuard(self._recorder.note_failure):
            call = self._open(name, *_describer().inputs(name, signature, args, kwargs))
        result = self._run(call, run, args, kwargs)
        with RecordingGuard(self._recorder.note_failure):
            self._note_written(list(_tensors_in((args, kwargs))))
            output = [_describer().operations(value, RECEIVES) for value in (*args, *kwargs.values())]
            if name in SENDS:
                output[:1] = [None]
            self._finish(name, call, output, result, signature)
        return result

    def _run(self, call: Call | None, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with _communicating(self):
            try:
                return run(*args, **kwargs)
            except BaseException:
                if call is not None:
                    self._recorder.close(call)
                raise

    def _open(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
        if name in _PASSED_OVER:
            return None
        call = self._recorder.open_api(_PREFIX, name)
        self._recorder.record_inputs(call, args, kwargs)
        return call

    def _finish(
        self,
        name: str,
        call: Call | None,
        output: Sequence[Any],
        result: Any,
        signature: inspect.Signature,
    ) -> None:
        """Record the results, now or when the program has waited for the returned handle."""
        if call is None:
            return
        works: list[Any] = [work for work in _listed(result) if isinstance(work, torch.distributed.Work)]
        is_asynchronous = name in ALWAYS_ASYNCHRONOUS or (works and "async_op" in signature.parameters)
        if not is_asynchronous:
            # Inside a coalescing block nothing has been sent yet, which the returned object shows.
            if type(result).__name__ != "_IllegalWork":
                self._recorder.record_outputs(call, tuple(output))
            self._recorder.close(call)
        elif works:
            for work in works:
                self._replace_wait(type(work))
            self._works.add(works, call, tuple(output))
        else:
            self._recorder.close(call)  # this rank is not in the group

    def _replace_wait(self, kind: type[Any]) -> None:
        """Replace the ``wait`` of works, also of those that are written in Python and have one of their own."""
        owner = next(each for each in kind.__mro__ if "wait" in vars(each))
        with self._lock:
            if owner not in self._with_wait:
                self._with_wait.add(owner)
                self._replace(owner, "wait", self._wait)

    def _wait(self, wait: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = wait(*args, **kwargs)
        # A class that is written in Python may call the ``wait`` of its base before the results are there.
        if self._works and original_of(type(args[0]).wait) is original_of(wait):
            with RecordingGuard(self._recorder.note_failure), self._lock:
                self._note_wait(self._works.pop(args[0]))
        return result

    # --- functional collectives ---------------------------------------------------------------------------------

    def _run_operator(
        self, name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if self in local.reporters or not self._recorder.is_open:
            return run(*args, **kwargs)
        call: Call | None = None
        gradients: CallGradients | None = None
        builds_graph = torch.is_grad_enabled()
        with RecordingGuard(self._recorder.note_failure):
            call = self._open(name, [_resolved(value) for value in _with_group(name, args)], kwargs)
            if call is not None and call.wants_gradients and builds_graph:
                gradients = CallGradients(self._recorder, call, args, kwargs, self._unsettled)
        result = self._run(call, run, args, kwargs)
        with RecordingGuard(self._recorder.note_failure):
            self._note_written(list(_tensors_in((args, kwargs, result))))
            if call is not None:
                if gradients is not None:
                    gradients.attach(result)
                results: list[Tensor] = [value for value in _listed(result) if isinstance(value, Tensor)]
                pending = Pending(call, result, len(results))
                with self._lock:
                    for storage in map(_storage_of, results):
                        self._results[storage._cdata] = (StorageWeakRef(storage), pending)
        return result

    def _wait_tensor(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with _communicating(self):
            result = run(*args, **kwargs)
        if self._results and args and self._recorder.is_open:
            with RecordingGuard(self._recorder.note_failure), self._lock:
                self._note_wait(self._results.pop(_storage_of(args[0])._cdata, (None, None))[1])
        return result

    # --- both ---------------------------------------------------------------------------------------------------

    def _note_wait(self, pending: Pending | None) -> None:
        if pending is not None and pending.note_wait():
            self._note_written(pending.output)
            self._recorder.record_outputs(pending.call, pending.output)
            self._recorder.close(pending.call)


class _Local(threading.local):
    """State of each thread."""

    reporters: tuple[Collectives, ...] = ()
    """Those with an open call, of the debugger and of the monitor."""

    @property
    def is_communicating(self) -> bool:
        """Whether any call is open."""
        return bool(self.reporters)


local = _Local()
"""Only the outermost call is recorded: calls that it makes internally, also of other functions, are part of it."""


@contextmanager
def _communicating(reporter: Collectives) -> Iterator[None]:
    before, local.reporters = local.reporters, (*local.reporters, reporter)
    try:
        yield
    finally:
        local.reporters = before


def is_communication(function: Callable[..., Any]) -> bool:
    """Whether `Collectives` reports a function that PyTorch dispatches, so that the API mode must not."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(function).startswith((_FUNCTIONAL, _IN_PYTHON))
    return getattr(function, "__module__", None) == "torch.distributed.distributed_c10d"


class _Alias(Patch):
    """Installs a patch under another name of the same function."""

    def __init__(self, owner: Any, attribute: str, patch: FunctionPatch) -> None:
        super().__init__(owner, attribute)
        self._patch = patch

    def _dress(self, raw: Any) -> Any:  # noqa: ARG002  # whatever it is
        return self._patch


def _cell_around(published: Any) -> Any:
    """Return the cell through which a closure of PyTorch reaches the actual function; ``None`` if there is none."""
    names = getattr(getattr(published, "__code__", None), "co_freevars", ())
    if "func" not in names:
        return None
    cell = published.__closure__[names.index("func")]
    return cell if callable(cell.cell_contents) else None


_signature = cache(inspect.signature)


@cache  # there may be a window in every step
def _packets(namespace: str, is_defined: bool) -> list[tuple[str, Any]]:  # noqa: ARG001  # they are others then
    """Return the operators of a namespace of ``torch.ops``; more may appear when their module is imported."""
    start = f"{namespace}::"
    names = {name[len(start) :].partition(".")[0] for name in _operator_names() if name.startswith(start)}
    operators = getattr(torch.ops, namespace)
    return [(name, getattr(operators, name)) for name in sorted(names) if not name.startswith("_")]


def _operator_names() -> Sequence[str]:
    return cast("Any", torch._C)._dispatch_get_all_op_names()


@cache
def _describer() -> Describer:
    return Describer(torch.distributed.P2POp, "torch.distributed.P2POp", _group_of)


def _group_of(group: Any) -> Any:
    return torch.distributed.group.WORLD if group is None else group


def _with_group(name: str, args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a functional collective in the form of later releases: a group, not its tag and ranks."""
    if len(args) < _NUM_ABOUT_GROUP or not isinstance(args[-2], list) or not isinstance(args[-3], str):
        return args
    *others, tag, ranks, size = args
    find: Callable[[str, list[int]], Any] = cast("Any", torch.distributed.distributed_c10d)._find_pg_by_ranks_and_tag
    group = find(tag, ranks) if size == len(ranks) else None
    if group is None:
        return args
    return [*others, size, group] if "gather" in name or "scatter" in name else [*others, group]


_NUM_ABOUT_GROUP = 3


def _resolved(value: Any) -> Any:
    """Return the process group of a functional collective."""
    if not isinstance(value, str) or _group_named is None:
        return value
    try:
        return _group_named(value)
    except RuntimeError:  # not a group name: the kind of reduction
        return value


_group_named: Callable[[str], Any] | None = getattr(
    getattr(torch._C, "_distributed_c10d", None), "_resolve_process_group", None
)


def _listed(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, torch.distributed.P2POp):
        yield value.tensor
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        yield from _tensors_in(list(cast("dict[Any, Any]", value).values()))


def _storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Return the memory of a result, which is the same for every wrapper."""
    return held_by(tensor).untyped_storage()
