"""Interception of one API call, from its inputs to its gradients, shared by all frameworks."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, ClassVar, Protocol, cast

from msprobe_core.protocols.recording import Call, CallRecorder

Function = Callable[..., Any]


class ResultWatch(Protocol):
    """Watches the gradients of a call that has begun."""

    def attach(self, output: Any) -> None:
        """Begin to watch the results, when the call has returned ``output``."""
        ...


class ApiCalls(ABC):
    """Records the outermost API calls of each thread."""

    tensor_type: ClassVar[type[Any] | tuple[type[Any], ...]]

    def __init__(self, recorder: CallRecorder, inside: Inside | None = None) -> None:
        """Prepare.

        Args:
            recorder: Receives every call.
            inside: State of the running calls per thread, if other objects share it; ``None`` creates it.
        """
        self._recorder = recorder
        self._inside = inside or Inside()

    @property
    def is_inside(self) -> bool:
        """Whether this thread runs a recorded call; calls inside it are not recorded."""
        return self._inside.value

    @property
    def around(self) -> Call | None:
        """The recorded call that this thread is running."""
        return self._inside.call

    # --- implemented by each framework --------------------------------------------------------------------------

    @abstractmethod
    def _quiet(self) -> AbstractContextManager[None]:
        """Return a context manager for the probe's own work; see `msprobe_core.plugin.Framework.quiet`."""

    @abstractmethod
    def _builds_graph(self) -> bool:
        """Whether calls of this thread are added to an autograd graph."""

    @abstractmethod
    def _is_in_backward(self) -> bool:
        """Whether this thread runs a backward pass, so that its forward calls are a recompute."""

    @abstractmethod
    def _owner_of(self, frame: FrameType, *, builds_graph: bool) -> str | None:
        """Return the owner of a call outside of every module, determined from its stack frames.

        ``builds_graph``: whether gradients can flow through the call, as through one in a closure of an optimizer.
        """

    @abstractmethod
    def _watch(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_foreign: bool) -> ResultWatch:
        """Begin to watch the gradients of a call; a foreign function may use tensors besides its arguments."""

    def _unset_inputs(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_foreign: bool
    ) -> Sequence[Any]:
        """Return the arguments with uninitialized memory, unless the function computes from their values.

        A foreign function may read or overwrite them.
        """
        del function, args, kwargs, is_foreign
        return ()

    def _unset_outputs(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any, *, is_foreign: bool
    ) -> Sequence[Any]:
        """Return the results with uninitialized memory, and track the function's writes to such memory."""
        del function, args, kwargs, output, is_foreign
        return ()

    def _written_by(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return the object that a mutating function has written to; by default its first argument."""
        return args[0] if args else None

    # --- shared by all frameworks -------------------------------------------------------------------------------

    def run(
        self,
        prefix: str,
        name: str,
        function: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        mutates: bool = False,
        shown: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Run a function of the framework, and record it if it computes a tensor.

        Args:
            prefix: First part of its name.
            name: The rest of its name.
            function: The function to call.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            mutates: Whether it writes to arguments, which are its output if it returns nothing.
            shown: Converts its result to the recorded one, if they differ.
        """
        recorder = self._recorder
        call, gradients = self._open(prefix, name, function, args, kwargs)
        result = self._call(call, function, args, kwargs)
        if call is None:
            return result
        with self._quiet():
            output = self._written_by(function, args, kwargs) if result is None and mutates else result
            is_computation = self.has_tensor(output)
            unset = self._unset_outputs(function, args, kwargs, output, is_foreign=False)
            if is_computation:
                recorder.record_outputs(call, output if shown is None else shown(output), unset)
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
        owner: str | None = None,
    ) -> Any:
        """Run and record a function that does not belong to the framework, unless it is inside a recorded call.

        Nothing is known about such a function. It may write to its arguments; if it returns no tensor, they are
        recorded as its outputs.

        Args:
            prefix: First part of its name.
            name: The rest of its name.
            function: The function to call.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            shown: The recorded arguments, if they differ from the actual ones.
            owner: Its owner outside of every module, if stack frames do not show it.
        """
        recorder = self._recorder
        if self.is_inside or not recorder.is_open:
            return function(*args, **kwargs)
        shown_args, shown_kwargs = shown or (args, kwargs)
        call, gradients = self._open(
            prefix, name, function, shown_args, shown_kwargs, owner, has_gradients=shown is None, is_foreign=True
        )
        result = self._call(call, function, args, kwargs)
        if call is None:
            return result
        with self._quiet():
            returns = self.has_tensor(result)
            written = () if returns else tuple(tensors_in((shown_args, tuple(shown_kwargs.values())), self.tensor_type))
            unset = self._unset_outputs(function, shown_args, shown_kwargs, result, is_foreign=True)
            recorder.record_outputs(call, written or result, unset)
            if gradients is not None and returns:
                gradients.attach(result)
            recorder.close(call)
        return result

    def run_unrecorded(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a function without recording any call inside it."""
        return self._call(None, function, args, kwargs)

    def _open(
        self,
        prefix: str,
        name: str,
        function: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        owner: str | None = None,
        *,
        has_gradients: bool = True,
        is_foreign: bool = False,
    ) -> tuple[Call | None, ResultWatch | None]:
        recorder = self._recorder
        call: Call | None = None
        gradients: ResultWatch | None = None
        builds_graph = has_gradients and self._builds_graph()
        with self._quiet():
            if owner is None and recorder.is_outside_modules:
                owner = self._owner_of(_caller(), builds_graph=builds_graph)
            is_recomputed = builds_graph and self._is_in_backward()
            call = recorder.open_api(prefix, name, owner, is_recomputed=is_recomputed)
            unset = self._unset_inputs(function, args, kwargs, is_foreign=is_foreign)
            recorder.record_inputs(call, args, kwargs, unset)
            if call.wants_gradients and builds_graph:
                gradients = self._watch(call, args, kwargs, is_foreign=is_foreign)
        return call, gradients

    def _call(self, call: Call | None, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        inside = self._inside
        was_inside, around = inside.value, inside.call
        inside.value, inside.call = True, call
        try:
            return function(*args, **kwargs)
        except BaseException:
            if call is not None:
                self._recorder.close(call)
            raise
        finally:
            inside.value, inside.call = was_inside, around

    def has_tensor(self, value: Any) -> bool:
        """Whether ``value`` is a tensor, or a list, tuple or dict that contains one."""
        return isinstance(value, self.tensor_type) or next(tensors_in(value, self.tensor_type), None) is not None


def tensors_in(value: Any, tensor_type: type | tuple[type, ...]) -> Iterator[Any]:
    """Yield the tensors in a value: itself, or those in lists, tuples and dicts."""
    if isinstance(value, tensor_type):
        yield value
    elif isinstance(value, tuple | list | dict):
        items = cast("Any", value)
        for item in items.values() if isinstance(value, dict) else items:
            yield from tensors_in(item, tensor_type)


def _caller() -> FrameType:
    # Frame 0 is this one, 1 `_open`, 2 `run` or `run_foreign`.
    return sys._getframe(3)  # pyright: ignore[reportPrivateUsage]


class Inside(threading.local):
    """Per thread: whether a recorded call is running."""

    value = False
    call: Call | None = None  # ``None`` if calls inside it are not recorded either
