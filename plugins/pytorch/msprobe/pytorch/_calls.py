"""One call of an API, from its inputs to its gradients: the same for what the mode sees and for what stand-ins get."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from msprobe.pytorch._apis import Api, bypasses_versions, exposes_memory, leaves_memory_unset, silently_written
from msprobe.pytorch._gradients import CallGradients, is_in_backward
from msprobe.pytorch._owners import owner_of
from msprobe.pytorch._quiet import Quiet
from msprobe_core.hookspecs import Call, CallRecorder

Function = Callable[..., Any]


class ApiCalls:
    """Records the outermost API calls of each thread."""

    def __init__(self, recorder: CallRecorder, unsettled: dict[int, Callable[[], None]]) -> None:
        """Prepare.

        Args:
            recorder: Is told of every call.
            unsettled: See `CallGradients`.
        """
        self._recorder = recorder
        self._unsettled = unsettled
        self._inside = _Inside()

    @property
    def is_inside(self) -> bool:
        """Whether a call of this thread is being recorded; those inside of it are not."""
        return self._inside.value

    def run(self, api: Api, name: str, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a function that PyTorch dispatches, and record it if it computes something.

        Args:
            api: What it is called.
            name: Its name for this call, which may have been written as an operator.
            function: Is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        recorder = self._recorder
        call, gradients = self._open(api.prefix, name, args, kwargs, has_gradients=True)
        result = self._call(call, function, args, kwargs)
        if call is None:
            return result
        with Quiet(recorder.note_failure):
            output = args[0] if result is None and api.mutates and args else result
            is_computation = has_tensor(output)
            if bypasses_versions(function):
                self.note_memory(function, args, kwargs, output)
            if is_computation:
                recorder.record_outputs(call, output)
                if gradients is not None:
                    gradients.attach(output)
            recorder.close(call, keep=is_computation)
        return result

    def run_foreign(
        self,
        prefix: str,
        name: str,
        function: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        shown: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None,
    ) -> Any:
        """Run and record a function that PyTorch does not dispatch, unless it is inside of a call that is recorded.

        Nothing is known of such a function. It may write to its arguments unnoticed, so they are read anew; if it
        returns no tensor, they are its outputs.

        Args:
            prefix: First part of its name.
            name: The rest.
            function: Is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            shown: Arguments as they are recorded, where these are others.
        """
        recorder = self._recorder
        if self.is_inside or not recorder.is_open:
            return function(*args, **kwargs)
        shown_args, shown_kwargs = shown or (args, kwargs)
        call, gradients = self._open(prefix, name, shown_args, shown_kwargs, has_gradients=shown is None)
        result = self._call(call, function, args, kwargs)
        if call is None:
            return result
        with Quiet(recorder.note_failure):
            tensors = list(_tensors((shown_args, tuple(shown_kwargs.values()))))
            for tensor in tensors:
                recorder.distrust(tensor)
            returns = has_tensor(result)
            recorder.record_outputs(call, result if returns else tuple(tensors) or result)
            if gradients is not None and returns:
                gradients.attach(result)
            recorder.close(call)
        return result

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

    def _open(
        self, prefix: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, has_gradients: bool
    ) -> tuple[Call | None, CallGradients | None]:
        recorder = self._recorder
        call: Call | None = None
        gradients: CallGradients | None = None
        builds_graph = has_gradients and torch.is_grad_enabled()
        with Quiet(recorder.note_failure):
            owner = owner_of(sys._getframe(2)) if recorder.is_outside_modules else None
            is_recomputed = builds_graph and is_in_backward()
            call = recorder.open_api(prefix, name, owner, is_recomputed=is_recomputed)
            recorder.record_inputs(call, args, kwargs)
            if call.wants_gradients and builds_graph:
                gradients = CallGradients(recorder, call, args, kwargs, self._unsettled)
        return call, gradients

    def _call(self, call: Call | None, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        inside = self._inside
        was_inside, inside.value = inside.value, True
        try:
            return function(*args, **kwargs)
        except BaseException:
            if call is not None:
                self._recorder.close(call)
            raise
        finally:
            inside.value = was_inside


class _Inside(threading.local):
    value = False


def has_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor, or a list, tuple or dict that holds one."""
    return next(_tensors(value), None) is not None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
