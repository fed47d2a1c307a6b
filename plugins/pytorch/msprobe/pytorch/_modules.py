"""Interception of modules: forward hooks on every module of the given models, and on their parameters."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from msprobe.pytorch._gradients import CallGradients
from msprobe.pytorch._quiet import Quiet
from msprobe_core.hookspecs import Call, CallRecorder, NamedModel
from msprobe_core.names import module_stem

_PREFIX = "Module"


class _Handle(Protocol):
    def remove(self) -> None: ...


class ModuleHooks:
    """All hooks in the modules of some models; ``remove`` takes every one of them out."""

    def __init__(
        self, models: Sequence[NamedModel], recorder: CallRecorder, unsettled: dict[int, Callable[[], None]]
    ) -> None:
        """Set the hooks.

        Args:
            models: Their modules are recorded, the roots included. A module that is found twice counts once, under
                its first name; so does a parameter.
            recorder: Is told of every call.
            unsettled: See `CallGradients`.
        """
        self._recorder = recorder
        self._unsettled = unsettled
        self._handles: list[_Handle] = []
        seen_parameters: set[int] = set()
        seen_modules: set[int] = set()
        for model in models:
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
        self._handles.append(module.register_forward_pre_hook(running.before, with_kwargs=True))
        # always_call: also when the forward raises, so that the nesting of calls stays right.
        self._handles.append(module.register_forward_hook(running.after, with_kwargs=True, always_call=True))
        stem = module_stem(_PREFIX, path, type_name)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen_parameters:
                seen_parameters.add(id(parameter))
                self._handles.append(self._hook_parameter(parameter, stem, name))

    def _hook_parameter(self, parameter: nn.Parameter, stem: str, name: str) -> _Handle:
        recorder = self._recorder

        def hook(accumulated: Tensor) -> None:
            gradient = accumulated.grad
            if gradient is not None and recorder.is_open:
                with Quiet():
                    recorder.record_parameter_gradient(stem, name, gradient)

        return parameter.register_post_accumulate_grad_hook(hook)


def _modules_of(model: NamedModel) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.model.named_modules():
        yield ".".join(part for part in (model.name, path) if part), module


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
        gradients: CallGradients | None = None
        builds_graph = torch.is_grad_enabled()
        with Quiet():
            call = recorder.open_module(_PREFIX, self._path, self._type_name)
            recorder.record_inputs(call, args, kwargs)
            recorder.record_parameters(call, dict(module.named_parameters(recurse=False)))
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
        has_raised = output is None and sys.exc_info()[1] is not begun.exception
        with Quiet():
            if not has_raised:
                self._recorder.record_outputs(begun.call, output)
                if begun.gradients is not None:
                    begun.gradients.attach(output)
            self._recorder.close(begun.call)


class _Begun(NamedTuple):
    """A call that has begun; ``exception`` was being handled then, by code around the call."""

    call: Call
    gradients: CallGradients | None
    exception: BaseException | None
