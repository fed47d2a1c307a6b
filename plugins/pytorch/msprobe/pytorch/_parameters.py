"""Gradients of parameters, seen as they are accumulated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from msprobe.pytorch._gradients import run_apart
from msprobe.pytorch._quiet import RecordingGuard
from msprobe.pytorch._releases import accumulating_node
from msprobe_core.interception.modules import Handle
from msprobe_core.plugin import CallRecorder


class ParameterGradients:
    """Reports gradients of parameters as they are accumulated.

    Within a window hooks of the parameters see them. When those are out again, the backward of a call that was recorded
    may still be to come; so hooks are left at the nodes of its graph that accumulate. They go with it, or with
    ``release``: some keep these nodes for good, as data parallelism does.
    """

    def __init__(self, recorder: CallRecorder) -> None:
        """Prepare; ``hook`` begins."""
        self._recorder = recorder
        self._places: dict[int, _Place] = {}
        self._handles: dict[int, tuple[Handle, Handle]] = {}
        self._called: dict[int, nn.Module] = {}
        self._added: dict[int, Tensor] = {}
        self._awaited: list[_Awaited] = []
        self._mark = object()
        self._is_removed = False
        self._is_released = False

    def hook(self, module: nn.Module, stem: str) -> None:
        """Report gradients of a module's parameters within the window; of a parameter of several modules, once."""
        hooked: list[str] = []
        with torch._C.DisableTorchFunction():  # modes of the user see nothing of it
            for name, parameter in own_parameters(module).items():
                if _accumulates_gradient(parameter) and id(parameter) not in self._places:
                    # Not a weak reference to the parameter, with which nobody could swap it for another.
                    self._places[id(parameter)] = _Place(weakref.ref(module), stem, name)
                    self._hook(parameter)
                    hooked.append(name)
        if hooked:
            self._recorder.expect_parameter_gradients(stem, hooked)

    def _hook(self, parameter: Tensor) -> None:
        key = id(parameter)

        def before(contribution: Tensor) -> None:
            self._note_added(key, contribution)

        def after(_accumulated: Tensor) -> None:
            self._report(key)

        handle = parameter.register_post_accumulate_grad_hook(after)
        _come_first(parameter, handle)
        self._handles[key] = parameter.register_hook(before), handle

    @contextmanager
    def without(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Have no hooks in some parameters, nor a trace of them, for as long as the block lasts."""
        hooked = [parameter for parameter in parameters if self._unhook(id(parameter))]
        with torch._C.DisableTorchFunction():
            for parameter in hooked:
                _remove_empty_tables(parameter)
        try:
            yield
        finally:
            with torch._C.DisableTorchFunction():
                for parameter in hooked:
                    if not self._is_removed and _accumulates_gradient(parameter):
                        self._hook(parameter)

    def _unhook(self, key: int) -> bool:
        handles = self._handles.pop(key, ())
        for handle in handles:
            handle.remove()
        return bool(handles)

    def note_call(self, module: nn.Module) -> None:
        """Note that the graph of a call leads to the parameters of this module."""
        self._called[id(module)] = module

    def remove(self) -> None:
        """Take the hooks out; graphs of recorded calls go on to report gradients, until ``release``."""
        self._is_removed = True
        for key in tuple(self._handles):
            self._unhook(key)
        called, self._called = tuple(self._called.values()), {}
        parameters = [parameter for module in called for parameter in own_parameters(module).values()]
        if parameters:
            run_apart(lambda: self._hook_nodes(parameters), self._recorder.note_failure)

    def _hook_nodes(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            key = id(parameter)
            if key not in self._places or not _accumulates_gradient(parameter):
                continue
            # That of the graphs that are still there, if any; otherwise a new one, which goes at once.
            node = accumulating_node(parameter)
            metadata: dict[str, Any] = node.metadata
            if metadata.get(_AWAITED) is self._mark:
                continue
            metadata[_AWAITED] = self._mark
            handles = (
                node.register_prehook(self._before_node(key)),
                node.register_hook(lambda _sent, _received, key=key: self._report(key)),
            )
            self._awaited.append(_Awaited(metadata, handles))

    def _before_node(self, key: int) -> Callable[[tuple[Tensor | None, ...]], None]:
        def before(gradients: tuple[Tensor | None, ...]) -> None:
            if gradients[0] is not None:
                self._note_added(key, gradients[0])

        return before

    def release(self) -> None:
        """Report nothing any more, and leave nothing at nodes that others keep."""
        self._is_released = True
        self._added.clear()
        self._called.clear()
        while self._awaited:
            metadata, handles = self._awaited.pop()
            for handle in handles:
                handle.remove()
            if metadata.get(_AWAITED) is self._mark:
                del metadata[_AWAITED]

    def _note_added(self, key: int, contribution: Tensor) -> None:
        with RecordingGuard(self._recorder.note_failure):
            self._added.pop(key, None)  # `torch.autograd.grad` asks for what it does not add
            # Where there is nothing yet, it becomes the gradient as it is, and nobody else may hold it then.
            if self._gradient(key) is not None:
                self._added[key] = contribution

    def _report(self, key: int) -> None:
        with RecordingGuard(self._recorder.note_failure):
            gradient, contribution = self._gradient(key), self._added.pop(key, None)
            if gradient is not None:
                place = self._places[key]
                self._recorder.record_parameter_gradient(place.stem, place.name, gradient, contribution)

    def _gradient(self, key: int) -> Tensor | None:
        """Return what has been accumulated; ``None`` if it is not reported, or the parameter is gone."""
        module, _, name = self._places[key]
        owner = module() if self._recorder.is_open and not self._is_released else None
        # Not get, which the tables of scripted modules do not have.
        parameter = None if owner is None or name not in owner._parameters else owner._parameters[name]
        return None if parameter is None or id(parameter) != key else parameter.grad


class _Place(NamedTuple):
    """Where a parameter is, and under which names it is recorded."""

    module: weakref.ref[nn.Module]
    stem: str
    name: str


class _Awaited(NamedTuple):
    """The hooks at a node that accumulates, and what the node knows; not the node, which would keep a graph alive."""

    metadata: dict[str, Any]
    handles: tuple[Handle, Handle]


_AWAITED = "msprobe"
"""Under this name a node knows who has hooked it."""


def own_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a module, without those of the modules inside it."""
    # Not named_parameters: modules override it.
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def _remove_empty_tables(parameter: Any) -> None:
    """Remove the tables of hooks that are empty: swapped, the tensor would no longer call what is added to them."""
    for table in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(parameter, table) is not None and not getattr(parameter, table):
            setattr(parameter, table, None)


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
