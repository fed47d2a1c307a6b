"""Interception of modules: forward hooks on every module of the given models, and on their parameters."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from msprobe.pytorch._gradients import CallGradients
from msprobe.pytorch._quiet import Quiet
from msprobe_core.hookspecs import Call, CallRecorder, CallWatcher, NamedModel
from msprobe_core.names import module_stem

_PREFIX = "Module"


class _Handle(Protocol):
    def remove(self) -> None: ...


class ModuleHooks:
    """All hooks in the modules of some models; ``remove`` takes every one of them out."""

    def __init__(
        self, models: Sequence[NamedModel], recorder: CallRecorder, unsettled: dict[int, Callable[[], None]]
    ) -> None:
        """Prepare; ``install`` begins.

        Args:
            models: Their modules are recorded, the roots included. A module that is found twice counts once, under
                its first name; so does a parameter.
            recorder: Is told of every call.
            unsettled: See `CallGradients`.
        """
        self._models = models
        self._recorder = recorder
        self._unsettled = unsettled
        self._handles: list[_Handle] = []

    def install(self) -> None:
        """Set the hooks."""
        seen_parameters: set[int] = set()
        seen_modules: set[int] = set()
        for model in self._models:
            for path, module in _modules_of(model):
                if id(module) not in seen_modules:
                    seen_modules.add(id(module))
                    self._hook_module(path, module, seen_parameters)

    def remove(self) -> None:
        """Take all hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook_module(self, path: str, module: nn.Module, seen_parameters: set[int]) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            return  # runs outside of Python; what it contains cannot be hooked either
        type_name = type(module).__name__
        running = _Running(self._recorder, path, type_name, self._unsettled)
        self._handles.append(module.register_forward_pre_hook(_Hook(running.before), with_kwargs=True))
        # always_call: also when the forward raises, so that the nesting of calls stays right.
        self._handles.append(module.register_forward_hook(_Hook(running.after), with_kwargs=True, always_call=True))
        stem = module_stem(_PREFIX, path, type_name)
        for name, parameter in _own_parameters(module).items():
            if _accumulates_gradient(parameter) and id(parameter) not in seen_parameters:
                seen_parameters.add(id(parameter))
                self._handles.append(self._hook_parameter(parameter, stem, name))

    def _hook_parameter(self, parameter: Tensor, stem: str, name: str) -> _Handle:
        recorder = self._recorder

        def hook(accumulated: Tensor) -> None:
            gradient = accumulated.grad
            if gradient is not None and recorder.is_open:
                with Quiet(recorder.note_failure):
                    recorder.record_parameter_gradient(stem, name, gradient)

        return parameter.register_post_accumulate_grad_hook(hook)


def _own_parameters(module: nn.Module) -> dict[str, Tensor]:
    # Not named_parameters: modules override it.
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def _accumulates_gradient(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter)


class _Hook:
    """A hook that a copied, pickled or saved model does not take along: there it becomes one that does nothing."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of the standard library, so that a model saved in a window can be loaded where nothing of ours is installed.
        return getattr, (nullcontext(), "__exit__")


def _modules_of(model: NamedModel) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.model.named_modules():
        yield ".".join(part for part in (model.name, path) if part), module


class WatchHooks:
    """Hooks for a `CallWatcher` in the modules that it wants; an `Attachment`."""

    def __init__(self, models: Sequence[NamedModel], watcher: CallWatcher) -> None:
        """Set the hooks."""
        self._handles: list[_Handle] = []
        seen: set[int] = set()
        try:
            for model in models:
                for path, module in _modules_of(model):
                    if id(module) not in seen and not isinstance(module, torch.jit.ScriptModule):
                        seen.add(id(module))
                        self._hook(path, module, watcher)
        except BaseException:
            self.detach()
            raise

    def _hook(self, path: str, module: nn.Module, watcher: CallWatcher) -> None:
        type_name = type(module).__name__
        if not watcher.wants(path, type_name):
            return
        stem = module_stem(_PREFIX, path, type_name)
        begun: dict[int, int] = {}  # by thread: an end without a begin is that of a call that another hook has stopped

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            begun[threading.get_ident()] = begun.get(threading.get_ident(), 0) + 1
            return watcher.before(stem, args, kwargs)

        def after(*_: Any) -> None:
            if begun.get(threading.get_ident(), 0):
                begun[threading.get_ident()] -= 1
                watcher.after(stem)

        self._handles.append(module.register_forward_pre_hook(_Hook(before), with_kwargs=True))
        self._handles.append(module.register_forward_hook(_Hook(after), with_kwargs=True, always_call=True))

    def detach(self) -> None:
        """Take all hooks out."""
        while self._handles:
            self._handles.pop().remove()

    def settle(self) -> None:
        """Nothing waits."""


class _Running:
    """The two hooks of one module, and its calls that have begun and not ended."""

    __slots__ = ("_calls", "_path", "_recorder", "_type_name", "_unsettled")

    def __init__(
        self, recorder: CallRecorder, path: str, type_name: str, unsettled: dict[int, Callable[[], None]]
    ) -> None:
        self._recorder = recorder
        self._path = path
        self._type_name = type_name
        self._unsettled = unsettled
        # By thread: replicas of a module that run in threads share its hooks.
        self._calls: dict[int, list[_Begun]] = {}

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a call."""
        recorder = self._recorder
        if not recorder.is_open:
            return
        call: Call | None = None
        gradients: CallGradients | None = None
        builds_graph = torch.is_grad_enabled()
        with Quiet(recorder.note_failure):
            call = recorder.open_module(_PREFIX, self._path, self._type_name)
            recorder.record_inputs(call, args, kwargs)
            recorder.record_parameters(call, _own_parameters(module))
            if call.wants_gradients and builds_graph:
                gradients = CallGradients(recorder, call, args, kwargs, self._unsettled)
        begun = _Begun(call, gradients, sys.exc_info()[1])
        self._calls.setdefault(threading.get_ident(), []).append(begun)

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:  # noqa: ARG002
        """End the call; also called, without an output, when the forward raised."""
        calls = self._calls.get(threading.get_ident())
        if not calls:
            return
        begun = calls.pop()
        if begun.call is None:
            return
        has_raised = output is None and sys.exc_info()[1] is not begun.exception
        with Quiet(self._recorder.note_failure):
            if not has_raised:
                self._recorder.record_outputs(begun.call, output)
                if begun.gradients is not None:
                    begun.gradients.attach(output)
        with Quiet(self._recorder.note_failure):
            self._recorder.close(begun.call)


class _Begun(NamedTuple):
    """A call that has begun; ``exception`` was being handled then, by code around the call."""

    call: Call | None
    gradients: CallGradients | None
    exception: BaseException | None
