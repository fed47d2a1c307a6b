"""Interception of module calls by forward hooks, for all frameworks whose modules support them.

A hook before the forward is ``hook(module, args, kwargs)``. A hook after it is ``hook(module, args, kwargs, output)``;
it is also called, with ``None`` as output, if the forward raised.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from msprobe_core.interception.gradients import GraphGradients
from msprobe_core.interception.removal import NothingPending
from msprobe_core.names import module_stem
from msprobe_core.protocols.capabilities import CallWatcher
from msprobe_core.protocols.recording import Call, CallRecorder


class Handle(Protocol):
    """Handle that removes a hook."""

    def remove(self) -> None:
        """Remove the hook."""
        ...


class Hook:
    """A hook that becomes a function without effect when its model is copied, pickled or saved."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        """Run the hook."""
        return self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # A callable of the standard library, so that a model saved in a window can be loaded without this package.
        return getattr, (nullcontext(), "__exit__")


def register_after(module: Any, hook: Hook) -> Handle:
    """Install a hook after the forward of a module, which is also called if the forward raised.

    Framework versions without such hooks (MindSpore 2.9) get a normal one; a call that raises then ends with the
    enclosing call, or with the step.
    """
    try:
        return module.register_forward_hook(hook, with_kwargs=True, always_call=True)
    except TypeError:  # ``always_call`` is unknown
        return module.register_forward_hook(hook, with_kwargs=True)


Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], "tuple[Any, Any] | None"]
"""Called with a module and the arguments of its forward; may return other arguments."""

After = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any]
"""Called with a module, its arguments and its result, ``None`` if it has raised; may return another result."""


class Observe(Protocol):
    """Installs functions that are called before and after each call of a module, until the handle removes them."""

    def __call__(self, module: Any, before: Before | None, after: After | None, /) -> Handle:
        """Install them. Several observers of a module are called in the order of installation."""
        ...


class _Handles:
    """Several handles as one."""

    def __init__(self, handles: Iterable[Handle]) -> None:
        self._handles = list(handles)

    def remove(self) -> None:
        """Remove all hooks."""
        while self._handles:
            self._handles.pop().remove()


def observe_by_hooks(module: Any, before: Before | None, after: After | None) -> Handle:
    """See `Observe`: for a framework whose modules offer hooks only."""
    handles: list[Handle] = []
    if before is not None:
        handles.append(module.register_forward_pre_hook(Hook(before), with_kwargs=True))
    if after is not None:
        handles.append(register_after(module, Hook(after)))
    return _Handles(handles)


class ModuleTraits(Protocol):
    """Properties of a framework that the interception of its modules needs."""

    @property
    def prefix(self) -> str:
        """First part of entry names."""
        ...

    def quiet(self, on_failure: Callable[[str, Exception], None]) -> AbstractContextManager[None]:
        """See `msprobe_core.plugin.Framework.quiet`."""
        ...

    def builds_graph(self) -> bool:
        """Whether current computations are added to an autograd graph."""
        ...

    def is_in_backward(self) -> bool:
        """Whether this thread runs a backward pass, so that forward calls are a recompute."""
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
        """Return the module's parameters, without those of its submodules."""
        ...

    def end_of_call(self, module: Any) -> None:
        """React to the end of a forward that builds a graph and whose gradients are watched."""
        ...


class Nesting(Protocol):
    """Counts running calls of modules, to track how they nest."""

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
            recorder: Receives every call.
            path: Path of the module, empty for the root.
            type_name: Its class.
            traits: Properties of its framework.
            unsettled: See `GraphGradients`.
            visit: Called at the begin of a call, so that APIs are recorded on that thread too; its result is called at
                the end.
        """
        self._recorder = recorder
        self._path = path
        self._type_name = type_name
        self._traits = traits
        self._unsettled = unsettled
        self._visit = visit
        # Keyed by thread: replicas of a module that run in several threads share its hooks.
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
        """End the call; also called, without an output, if the forward raised."""
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

    ``exception`` is the one that code around the call was handling at that time; ``leave`` ends the visit of the
    thread.
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


class WatchHooks(NothingPending):
    """Hooks for a `CallWatcher` in the modules that it selects; see `msprobe_core.plugin.Removable`."""

    def __init__(
        self, prefix: str, modules: Iterable[FoundModule], watcher: CallWatcher, observe: Observe = observe_by_hooks
    ) -> None:
        """Install the hooks."""
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
        begun: dict[int, int] = {}  # per thread: an end without a begin belongs to a call that another hook stopped

        def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            begun[threading.get_ident()] = begun.get(threading.get_ident(), 0) + 1
            return watcher.before(stem, args, kwargs)

        def after(*_: Any) -> None:
            if begun.get(threading.get_ident(), 0):
                begun[threading.get_ident()] -= 1
                watcher.after(stem)

        self._handles.append(self._observe(module, before, after))

    def detach(self) -> None:
        """Remove all hooks."""
        while self._handles:
            self._handles.pop().remove()
