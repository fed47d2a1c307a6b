"""Calls of modules, as forward hooks see them: for all frameworks whose modules have such hooks.

A hook before the forward is ``hook(module, args, kwargs)``; one after it ``hook(module, args, kwargs, output)``, and it
is called too, without an output, when the forward raised.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from msprobe_core.interception.gradients import GraphGradients
from msprobe_core.names import module_stem
from msprobe_core.protocols.capabilities import CallWatcher
from msprobe_core.protocols.recording import Call, CallRecorder


class Handle(Protocol):
    """What takes a hook out."""

    def remove(self) -> None:
        """Take it out."""
        ...


class Hook:
    """A hook that a copied, pickled or saved model does not take along: there it becomes one that does nothing."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        """Do what the hook is for."""
        return self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of the standard library, so that a model saved in a window can be loaded where nothing of ours is installed.
        return getattr, (nullcontext(), "__exit__")


def register_after(module: Any, hook: Hook) -> Handle:
    """Set a hook after the forward of a module, which is called when the forward raised too.

    Versions of frameworks that have no such hooks (MindSpore 2.9) get one that is not; a call that raises then ends
    with the call around it, or with the step.
    """
    try:
        return module.register_forward_hook(hook, with_kwargs=True, always_call=True)
    except TypeError:  # an unknown argument
        return module.register_forward_hook(hook, with_kwargs=True)


Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], "tuple[Any, Any] | None"]
"""Gets a module and the arguments of its forward; may return other arguments."""

After = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any]
"""Gets a module, the arguments and the result, ``None`` if the call has raised; may return another result."""


class Observe(Protocol):
    """Has functions called before and after each call of a module, until the handle removes them."""

    def __call__(self, module: Any, before: Before | None, after: After | None, /) -> Handle:
        """Begin. Several observers of a module are called in the order in which they began."""
        ...


class _Handles:
    """Several handles as one."""

    def __init__(self, handles: Iterable[Handle]) -> None:
        self._handles = list(handles)

    def remove(self) -> None:
        """Take all hooks out."""
        while self._handles:
            self._handles.pop().remove()


def observe_by_hooks(module: Any, before: Before | None, after: After | None) -> Handle:
    """See `Observe`: for a framework whose modules show nothing else."""
    handles: list[Handle] = []
    if before is not None:
        handles.append(module.register_forward_pre_hook(Hook(before), with_kwargs=True))
    if after is not None:
        handles.append(register_after(module, Hook(after)))
    return _Handles(handles)


class ModuleTraits(Protocol):
    """What the calls of modules of one framework have to know of it."""

    @property
    def prefix(self) -> str:
        """First part of the names of entries."""
        ...

    def quiet(self, on_failure: Callable[[str, Exception], None]) -> AbstractContextManager[None]:
        """See `msprobe_core.plugin.Framework.quiet`."""
        ...

    def builds_graph(self) -> bool:
        """Whether what is computed now can be run backward."""
        ...

    def is_in_backward(self) -> bool:
        """Whether a backward pass runs on this thread: a forward that runs now computes something again."""
        ...

    def gradients(
        self,
        recorder: CallRecorder,
        call: Call,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        unsettled: dict[int, Callable[[], None]],
    ) -> GraphGradients:
        """Watch the gradients of a call; see `GraphGradients`."""
        ...

    def own_parameters(self, module: Any) -> Mapping[str, Any]:
        """Return the module's parameters, without those of the modules inside it."""
        ...

    def end_of_call(self, module: Any) -> None:
        """A forward has ended that builds a graph and whose gradients are watched."""
        ...


class Nesting(Protocol):
    """Takes part in how calls of modules nest."""

    num_running: int


class ModuleCalls:
    """The two hooks of one module, and its calls that have begun and not ended."""

    __slots__ = ("_calls", "_path", "_recorder", "_traits", "_type_name", "_unsettled", "_visit", "compiled")

    def __init__(
        self,
        recorder: CallRecorder,
        path: str,
        type_name: str,
        traits: ModuleTraits,
        unsettled: dict[int, Callable[[], None]],
        visit: Callable[[], Callable[[], None] | None],
    ) -> None:
        """Prepare.

        Args:
            recorder: Is told of every call.
            path: Of the module, empty for the root.
            type_name: Its class.
            traits: Its framework's.
            unsettled: See `GraphGradients`.
            visit: Called where a call begins, so that APIs are recorded on that thread too; what it returns, where it
                ends.
        """
        self._recorder = recorder
        self._path = path
        self._type_name = type_name
        self._traits = traits
        self._unsettled = unsettled
        self._visit = visit
        # By thread: replicas of a module that run in threads share its hooks.
        self._calls: dict[int, list[_Begun]] = {}
        self.compiled: Nesting | None = None
        """Counts the calls of a module that runs compiled."""

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a call."""
        recorder, traits = self._recorder, self._traits
        if not recorder.is_open:
            return
        call: Call | None = None
        gradients: GraphGradients | None = None
        builds_graph = traits.builds_graph()
        with traits.quiet(recorder.note_failure):
            is_recomputed = traits.is_in_backward()
            call = recorder.open_module(traits.prefix, self._path, self._type_name, is_recomputed=is_recomputed)
            recorder.record_inputs(call, args, kwargs)
            recorder.record_parameters(call, traits.own_parameters(module))
            if call.wants_gradients and builds_graph:
                gradients = traits.gradients(recorder, call, args, kwargs, self._unsettled)
        if self.compiled is not None:
            self.compiled.num_running += 1
        begun = _Begun(call, gradients, sys.exc_info()[1], self._visit())
        self._calls.setdefault(threading.get_ident(), []).append(begun)

    def after(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:  # noqa: ARG002
        """End the call; also called, without an output, when the forward raised."""
        calls = self._calls.get(threading.get_ident())
        if not calls:
            return
        begun = calls.pop()
        if self.compiled is not None:
            self.compiled.num_running -= 1
        if begun.leave is not None:
            begun.leave()
        if begun.call is None:
            return
        has_raised = output is None and sys.exc_info()[1] is not begun.exception
        with self._traits.quiet(self._recorder.note_failure):
            if not has_raised:
                self._recorder.record_outputs(begun.call, output)
                if begun.gradients is not None:
                    begun.gradients.attach(output)
                    self._traits.end_of_call(module)
        with self._traits.quiet(self._recorder.note_failure):
            self._recorder.close(begun.call)


class _Begun(NamedTuple):
    """A call that has begun.

    ``exception`` was being handled then, by code around the call; ``leave`` ends what it began on its thread.
    """

    call: Call | None
    gradients: GraphGradients | None
    exception: BaseException | None
    leave: Callable[[], None] | None


class FoundModule(NamedTuple):
    """A module of a model, with its path and its class."""

    path: str
    type_name: str
    module: Any


class WatchHooks:
    """Hooks for a `CallWatcher` in the modules that it wants; see `msprobe_core.plugin.Removable`."""

    def __init__(
        self, prefix: str, modules: Iterable[FoundModule], watcher: CallWatcher, observe: Observe = observe_by_hooks
    ) -> None:
        """Set the hooks."""
        self._observe = observe
        self._handles: list[Handle] = []
        try:
            for path, type_name, module in modules:
                if watcher.wants(path, type_name):
                    self._hook(module, module_stem(prefix, path, type_name), watcher)
        except BaseException:
            self.detach()
            raise

    def _hook(self, module: Any, stem: str, watcher: CallWatcher) -> None:
        begun: dict[int, int] = {}  # by thread: an end without a begin is that of a call that another hook has stopped

        def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            begun[threading.get_ident()] = begun.get(threading.get_ident(), 0) + 1
            return watcher.before(stem, args, kwargs)

        def after(*_: Any) -> None:
            if begun.get(threading.get_ident(), 0):
                begun[threading.get_ident()] -= 1
                watcher.after(stem)

        self._handles.append(self._observe(module, before, after))

    def detach(self) -> None:
        """Take all hooks out."""
        while self._handles:
            self._handles.pop().remove()

    def release(self) -> None:
        """Nothing is left."""

    def settle(self) -> None:
        """Nothing waits."""
