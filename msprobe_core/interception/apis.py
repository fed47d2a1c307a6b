"""One call of an API, from its inputs to its gradients: the same for every framework and for every way to see it."""

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
        """Begin, now that the call has returned ``output``."""
        ...


class ApiCalls(ABC):
    """Records the outermost API calls of each thread."""

    tensor_type: ClassVar[type[Any] | tuple[type[Any], ...]]

    def __init__(self, recorder: CallRecorder, inside: Inside | None = None) -> None:
        """Prepare.

        Args:
            recorder: Is told of every call.
            inside: Tells which calls are not looked at, where others need to know it; new if there is none.
        """
        self._recorder = recorder
        self._inside = inside or Inside()

    @property
    def is_inside(self) -> bool:
        """Whether a call of this thread is being recorded; those inside of it are not."""
        return self._inside.value

    @property
    def around(self) -> Call | None:
        """The call of this thread that is being recorded."""
        return self._inside.call

    # --- what frameworks do differently -------------------------------------------------------------------------

    @abstractmethod
    def _quiet(self) -> AbstractContextManager[None]:
        """Return a block for our own work; see `msprobe_core.plugin.Framework.quiet`."""

    @abstractmethod
    def _builds_graph(self) -> bool:
        """Whether calls of this thread become part of a graph that gradients flow through."""

    @abstractmethod
    def _is_in_backward(self) -> bool:
        """Whether this thread is in a backward pass, so that what it calls computes something again."""

    @abstractmethod
    def _owner_of(self, frame: FrameType) -> str | None:
        """Return what a call outside of every module belongs to, told by the frames that lead to it."""

    @abstractmethod
    def _watch(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_foreign: bool) -> ResultWatch:
        """Begin to watch the gradients of a call; a function that is foreign may use tensors besides its arguments."""

    def _unset_inputs(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_foreign: bool
    ) -> Sequence[Any]:
        """Return the arguments whose memory has not been set yet, unless the function computes from their values.

        A function that is foreign may do either.
        """
        del function, args, kwargs, is_foreign
        return ()

    def _unset_outputs(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any, *, is_foreign: bool
    ) -> Sequence[Any]:
        """Return the results whose memory has not been set yet; follow what the function does to such memory."""
        del function, args, kwargs, output, is_foreign
        return ()

    def _written_by(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return what a function that mutates has written to: its first argument, where the framework knows no more."""
        return args[0] if args else None

    # --- what does not ------------------------------------------------------------------------------------------

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
        """Run a function of the framework, and record it if it computes something.

        Args:
            prefix: First part of its name.
            name: The rest.
            function: Is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            mutates: Whether it writes to arguments, which are its output if it returns nothing.
            shown: Turns its result into what is recorded of it, where that is something else.
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
        """Run and record a function that is not the framework's, unless it is inside of a call that is recorded.

        Nothing is known of such a function. It may write to its arguments; if it returns no tensor, they are its
        outputs.

        Args:
            prefix: First part of its name.
            name: The rest.
            function: Is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            shown: Arguments as they are recorded, where these are others.
            owner: What it belongs to if it is outside of every module, where frames do not tell.
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
        """Run a function, and record nothing that it calls."""
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
                owner = self._owner_of(_caller())
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
        """Whether ``value`` is a tensor, or a list, tuple or dict that holds one."""
        return isinstance(value, self.tensor_type) or next(tensors_in(value, self.tensor_type), None) is not None


def tensors_in(value: Any, tensor_type: type | tuple[type, ...]) -> Iterator[Any]:
    """Return the tensors in a value: itself, or what lists, tuples and dicts hold."""
    if isinstance(value, tensor_type):
        yield value
    elif isinstance(value, tuple | list | dict):
        items = cast("Any", value)
        for item in items.values() if isinstance(value, dict) else items:
            yield from tensors_in(item, tensor_type)


def _caller() -> FrameType:
    return sys._getframe(3)  # pyright: ignore[reportPrivateUsage]


class Inside(threading.local):
    """Whether each thread is inside of a call that is recorded."""

    value = False
    call: Call | None = None  # that call; ``None`` where what is inside of it is not looked at either
