"""Interception of modules: observers of every module of the given models, and hooks of their parameters."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from msprobe.pytorch._compiled import how_it_runs, modules_to_hook, original_of
from msprobe.pytorch._gradients import CallGradients, is_in_backward
from msprobe.pytorch._quiet import Quiet
from msprobe.pytorch._releases import accumulating_node
from msprobe.pytorch._slots import Observation
from msprobe_core.capture.modules import FoundModule, Handle, ModuleCalls
from msprobe_core.hookspecs import CallRecorder, NamedModel
from msprobe_core.names import module_stem

_PREFIX = "Module"


class ModuleHooks:
    """All that watches the modules of some models and their parameters; ``remove`` takes it out."""

    def __init__(
        self,
        models: Sequence[NamedModel],
        recorder: CallRecorder,
        unsettled: dict[int, Callable[[], None]],
        say: Callable[[str], None],
        visit: Callable[[], Callable[[], None] | None],
    ) -> None:
        """Prepare; ``install`` begins.

        Args:
            models: Their modules are recorded, the roots included. A module that is found twice counts once, under
                its first name; so does a parameter.
            recorder: Is told of every call.
            unsettled: See `CallGradients`.
            say: Tells the user what is not recorded, once.
            visit: Called on threads where a module runs, so that APIs are recorded there too.
        """
        self._models = models
        self._recorder = recorder
        self._unsettled = unsettled
        self._say = say
        self._visit = visit
        self._handles: list[Handle] = []
        self._parameters = _Parameters(recorder)
        self._traits = _Traits(self._parameters)
        self._observations: list[Observation] = []
        self._compiled = _Compiled()

    def install(self) -> None:
        """Set the hooks."""
        seen_parameters: set[int] = set()
        seen_modules: set[int] = set()
        for model in self._models:
            for path, module, is_visible in modules_to_hook(model.model, model.name):
                if id(module) not in seen_modules:
                    seen_modules.add(id(module))
                    self._hook_module(path, module, is_visible=is_visible)
                    self._hook_parameters(path, module, seen_parameters)
        self._observe_calls()

    def remove(self) -> None:
        """Take all hooks out; graphs of recorded calls go on to report gradients of parameters, until ``release``."""
        self._parameters.is_removed = True
        for handle in (*self._observations, *self._handles):
            handle.remove()
        self._handles.clear()

    def release(self) -> None:
        """Report no gradient of a parameter any more."""
        self._parameters.release()

    def step_aside(self) -> Callable[[], None]:
        """Observe no calls until what is returned is called: a compiled function runs, and may call modules.

        Where it is a module that runs compiled there is nothing to take out, since nothing inside it was hooked.
        """
        if self._compiled.num_running:
            return lambda: None
        for observation in self._observations:
            observation.remove()
        return self._observe_calls

    def _observe_calls(self) -> None:
        for observation in self._observations:
            observation.begin()

    def _hook_module(self, path: str, module: nn.Module, *, is_visible: bool) -> None:
        if not is_visible:
            return
        running = ModuleCalls(self._recorder, path, _type_name_of(module), self._traits, self._unsettled, self._visit)
        if (reason := how_it_runs(module)) is not None:
            self._say(reason)
            running.compiled = self._compiled
        self._observations.append(Observation(module, running.before, running.after))

    def _hook_parameters(self, path: str, module: nn.Module, seen_parameters: set[int]) -> None:
        stem = module_stem(_PREFIX, path, _type_name_of(module))
        for name, parameter in _own_parameters(module).items():
            if _accumulates_gradient(parameter) and id(parameter) not in seen_parameters:
                seen_parameters.add(id(parameter))
                self._handles += self._parameters.hook(parameter, stem, name)


class _Parameters:
    """Reports gradients of parameters as they are accumulated.

    Within a window hooks of the parameters see them. When those are out again, the backward of a call that was recorded
    may still be to come; so each such call leaves hooks at the nodes of its graph that accumulate. They go with it, or
    with ``release``: some keep these nodes for good, as data parallelism does.
    """

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder
        self._names: dict[int, tuple[str, str]] = {}
        self._added: dict[int, Tensor] = {}
        self._awaited: dict[int, _Awaited] = {}
        self._mark = object()
        self.is_removed = False
        self.is_released = False

    def hook(self, parameter: Tensor, stem: str, name: str) -> Sequence[Handle]:
        """Report gradients of one parameter within the window, under the name of its module and its own."""
        key = id(parameter)
        self._names[key] = stem, name
        weak = weakref.ref(parameter)

        def before(contribution: Tensor) -> None:
            if (current := weak()) is not None:
                self._note_added(key, current, contribution)

        def after(accumulated: Tensor) -> None:
            self._report(key, accumulated)

        handle = parameter.register_post_accumulate_grad_hook(after)
        _come_first(parameter, handle)
        return parameter.register_hook(before), handle

    def await_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Report gradients also after the window, where the graph of a call that has just ended accumulates them."""
        for parameter in parameters:
            key = id(parameter)
            if key not in self._names or not _accumulates_gradient(parameter):
                continue
            node = accumulating_node(parameter)
            metadata: dict[str, Any] = node.metadata
            if metadata.get(_AWAITED) is self._mark:
                continue
            metadata[_AWAITED] = self._mark
            # A parameter has one such node at a time: what is replaced here was that of a graph that is gone.
            self._awaited[key] = _Awaited(
                metadata,
                node.register_prehook(self._before_node(key, weakref.ref(parameter))),
                node.register_hook(self._after_node(key, weakref.ref(parameter))),
            )

    def release(self) -> None:
        """Report nothing any more, and leave nothing at nodes that others keep."""
        self.is_released = True
        self._added.clear()
        while self._awaited:
            _, awaited = self._awaited.popitem()
            awaited.before.remove()
            awaited.after.remove()
            if awaited.metadata.get(_AWAITED) is self._mark:
                del awaited.metadata[_AWAITED]

    def _before_node(self, key: int, weak: weakref.ref[Tensor]) -> Callable[[tuple[Tensor | None, ...]], None]:
        def before(gradients: tuple[Tensor | None, ...]) -> None:
            parameter, contribution = weak(), gradients[0]
            if self.is_removed and parameter is not None and contribution is not None:
                self._note_added(key, parameter, contribution)

        return before

    def _after_node(self, key: int, weak: weakref.ref[Tensor]) -> Callable[[Any, Any], None]:
        def after(_sent: Any, _received: Any) -> None:
            parameter = weak()
            if self.is_removed and parameter is not None:
                self._report(key, parameter)

        return after

    def _note_added(self, key: int, parameter: Tensor, contribution: Tensor) -> None:
        self._added.pop(key, None)  # `torch.autograd.grad` asks for what it does not add
        # Where there is nothing yet, it becomes the gradient as it is, and nobody else may hold it then.
        if self._recorder.is_open and not self.is_released and parameter.grad is not None:
            self._added[key] = contribution

    def _report(self, key: int, parameter: Tensor) -> None:
        gradient, contribution = parameter.grad, self._added.pop(key, None)
        if gradient is not None and self._recorder.is_open and not self.is_released:
            with Quiet(self._recorder.note_failure):
                self._recorder.record_parameter_gradient(*self._names[key], gradient, contribution)


class _Awaited(NamedTuple):
    """The hooks at a node that accumulates, and what the node knows; not the node, which would keep a graph alive."""

    metadata: dict[str, Any]
    before: Handle
    after: Handle


_AWAITED = "msprobe"
"""Under this name a node knows who has hooked it."""


def _own_parameters(module: nn.Module) -> dict[str, Tensor]:
    # Not named_parameters: modules override it.
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def _come_first(parameter: Tensor, handle: Any) -> None:
    """Let a hook run before those of the user: one that steps an optimizer in backward takes the gradient away."""
    hooks: dict[int, Any] | None = getattr(parameter, "_post_accumulate_grad_hooks", None)
    if hooks is None or handle.id not in hooks:
        return
    # In place, since the engine goes by this very dictionary, and by the order in which it was filled.
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)


def _accumulates_gradient(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter)


def _type_name_of(module: nn.Module) -> str:
    """Return the class of a module; of a compiled or scripted one, of the module that it stands for."""
    original = original_of(module)
    return getattr(module, "original_name", None) or type(original or module).__name__


class _Compiled(threading.local):
    """How many modules that run compiled have begun on this thread and not ended."""

    num_running = 0


def modules_to_watch(models: Sequence[NamedModel]) -> Iterator[FoundModule]:
    """Return the modules of some models that can be watched, each once."""
    seen: set[int] = set()
    for model in models:
        for path, module, is_visible in modules_to_hook(model.model, model.name):
            if is_visible and id(module) not in seen:
                seen.add(id(module))
                yield FoundModule(path, _type_name_of(module), module)


class _Traits:
    """See `msprobe_core.capture.modules.ModuleTraits`."""

    prefix = _PREFIX
    quiet = Quiet
    gradients = CallGradients
    builds_graph = staticmethod(torch.is_grad_enabled)
    is_in_backward = staticmethod(is_in_backward)

    def __init__(self, parameters: _Parameters) -> None:
        self._parameters = parameters

    def own_parameters(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the module's parameters."""
        return _own_parameters(module)

    def end_of_call(self, module: nn.Module) -> None:
        """Report gradients of the module's parameters also when the window is over."""
        self._parameters.await_gradients(_own_parameters(module).values())
