"""Interception of communication: functions that return received values, and functions that write to an argument."""

from __future__ import annotations

import importlib
import inspect
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any, cast

from mindspore import Tensor
from mindspore.communication import GlobalComm, get_process_group_ranks

from msprobe.mindspore._apis import Function
from msprobe.mindspore._quiet import RecordingGuard
from msprobe.mindspore._unrecorded_calls import hidden
from msprobe_core.interception import (
    RECEIVES,
    SENDS,
    Describer,
    FunctionPatch,
    Inside,
    Patches,
    PendingWorks,
    original_of,
)
from msprobe_core.plugin import Argument, Call, CallRecorder

NAMESPACES = {
    "mindspore.ops.communication": "Distributed",
    "mindspore.communication.comm_func": "Distributed",
    "mindspore.mint.distributed": "MintDistributed",
}
"""Modules of communication functions, with the first part of their names in dumps."""

_DEFINING = (".comm_func", ".mint.distributed.distributed")

_PASSED_OVER = ("_object", "_object_list", "barrier")
"""Suffixes of functions that send pickled objects or nothing: their inner calls do not communicate tensors."""

_ABOUT_GROUPS = ("get_", "new_", "init_", "destroy_", "is_", "set_")
"""Prefixes of functions that do not communicate."""

_HANDLE = "CommHandle"


class CommunicationPatches:
    """Patches the communication functions, and the methods that wait for them.

    Created once: there may be a window in every step.
    """

    def __init__(self, inside: Inside) -> None:
        """Find the functions.

        Args:
            inside: Whether a thread runs a call that the recorder has. Recorders that see the same calls, as a debugger
                and a monitor do, have one each.
        """
        self._inside = inside
        self._recorder: CallRecorder | None = None
        self._works = PendingWorks()
        self._functions = Patches(self._places())
        self._waits = Patches([FunctionPatch(kind, "wait", self._wait) for kind in _handles()], are_imported=False)

    def install(self, recorder: CallRecorder) -> None:
        """Begin.

        Args:
            recorder: Receives every call.
        """
        self._recorder = recorder
        self._functions.install()
        self._waits.install()

    def remove(self) -> None:
        """End; calls that were never waited for end too, without results."""
        self._waits.remove()
        self._functions.remove()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            with RecordingGuard(recorder.note_failure):
                self._works.give_up(recorder)

    def _places(self) -> Iterator[FunctionPatch]:
        for module_name, prefix in NAMESPACES.items():
            for module, name, function in _functions(module_name):
                handler = partial(self._run, prefix, name, inspect.signature(function))
                yield FunctionPatch(module, name, handler)

    def _run(
        self,
        prefix: str,
        name: str,
        signature: inspect.Signature,
        function: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        recorder, inside = self._recorder, self._inside
        if recorder is None or inside.value or hidden.value or not recorder.is_open:
            return function(*args, **kwargs)
        call: Call | None = None
        if not name.endswith(_PASSED_OVER):
            with RecordingGuard(recorder.note_failure):
                call = recorder.open_api(prefix, name)
                recorder.record_inputs(call, *_describer().inputs(name, signature, args, kwargs))
        inside.value = True  # only the outermost call is recorded; it may call others internally
        try:
            result = function(*args, **kwargs)
        except BaseException:
            if call is not None:
                recorder.close(call)
            raise
        finally:
            inside.value = False
        if call is not None:
            with RecordingGuard(recorder.note_failure):
                self._finish(recorder, call, name, (*args, *kwargs.values()), result)
        return result

    def _finish(self, recorder: CallRecorder, call: Call, name: str, arguments: Sequence[Any], result: Any) -> None:
        """Take the results, now or when what the call returned has been waited for."""
        results = _listed(result)
        received = [value for value in results if not _is_handle(value) and value is not None]
        if any(isinstance(value, Tensor | tuple | list) for value in received):
            output: tuple[Any, ...] = tuple(received)
        else:
            output = tuple(_describer().operations(value, RECEIVES) for value in arguments)
            if name in SENDS:
                output = (None, *output[1:])
        works = [value for value in results if _is_handle(value) and getattr(value, "handle", value) is not None]
        if works:
            self._works.add(works, call, output)
        else:
            recorder.record_outputs(call, output)
            recorder.close(call)

    def _wait(self, wait: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = wait(*args, **kwargs)
        recorder = self._recorder
        if recorder is not None and self._works and args:
            with RecordingGuard(recorder.note_failure):
                pending = self._works.pop(args[0])
                if pending is not None and pending.note_wait():
                    recorder.record_outputs(pending.call, pending.output)
                    recorder.close(pending.call)
        return result


@cache  # there may be a window in every step
def _functions(module_name: str) -> list[tuple[ModuleType, str, Function]]:
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # not in this release
        return []
    return [
        (module, name, function)
        for name, member in vars(module).items()
        if isinstance(function := original_of(member), FunctionType)
        and (function.__module__ or "").endswith(_DEFINING)
        and not name.startswith(("_", *_ABOUT_GROUPS, "get_cache"))
    ]


def communication_files() -> Sequence[str]:
    """Return the files that define and wrap the functions."""
    found = [function.__code__.co_filename for name in NAMESPACES for _, _, function in _functions(name)]
    return list(dict.fromkeys(found))


@cache
def _handles() -> list[type[Any]]:
    """Return the classes of handles of asynchronous calls: a module's own one, and the underlying one."""
    kinds: dict[type[Any], None] = {}
    for module_name in NAMESPACES:
        for module, _, function in _functions(module_name):
            for namespace in (vars(module), cast("FunctionType", function).__globals__):
                kind = namespace.get(_HANDLE)
                if isinstance(kind, type):
                    kinds |= dict.fromkeys(each for each in kind.__mro__ if "wait" in vars(each))
    return list(kinds)


def _is_handle(value: Any) -> bool:
    return isinstance(value, tuple(_handles()))


@cache
def _describer() -> Describer:
    module = importlib.import_module("mindspore.mint.distributed")
    kinds = [namespace.P2POp for namespace in (module, importlib.import_module("mindspore.communication.comm_func"))]
    return Describer(tuple(kinds), "mindspore.mint.distributed.P2POp", describe_group)


def describe_group(group: Any) -> Argument:
    """Return the recorded description of a group of ranks.

    Args:
        group: Its name; ``None`` for the group of all ranks.
    """
    name = GlobalComm.WORLD_COMM_GROUP if group is None else str(group)
    try:
        ranks = list(get_process_group_ranks(name))
    except (RuntimeError, ValueError, TypeError):  # no job, or no such group: the call itself reports it
        return Argument("mindspore.ProcessGroup", name)
    group_id = f"{zlib.crc32(str(ranks).encode()):08x}"
    return Argument("mindspore.ProcessGroup", None, {"group_ranks": ranks, "group_id": group_id, "name": name})


def _listed(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)
