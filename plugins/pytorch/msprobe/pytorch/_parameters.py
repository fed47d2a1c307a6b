"""Gradients of parameters, reported as they are accumulated."""

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
from msprobe.pytorch._torch_releases import accumulating_node
from msprobe_core.interception import Handle
from msprobe_core.plugin import CallRecorder


class ParameterGradients:
    """Reports gradients of parameters as they are accumulated.

    Within a window, hooks of the parameters report them. When these have been removed, the backward of a recorded call
    may still follow, so hooks stay at the accumulating nodes of its graph. They are removed with the graph, or by
    ``release``, because some programs keep these nodes permanently, as data parallelism does.
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
        """Report gradients of a module's parameters within the window; of shared parameters, once."""
        hooked: list[str] = []
        with torch._C.DisableTorchFunction():  # hidden from modes of the user
            for name, parameter in own_parameters(module).items():
                if _accumulates_gradient(parameter) and id(parameter) not in self._places:
                    # Not a weak reference to the parameter, which would prevent swapping it for another.
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
        """Remove all hooks and traces of them from some parameters while the block runs."""
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
        """Remove the hooks; graphs of recorded calls continue to report gradients, until ``release``."""
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
            # The node of existing graphs, if any; otherwise a new one, which is discarded at once.
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
        """Stop reporting, and remove everything from nodes that others keep."""
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
            self._added.pop(key, None)  # `torch.autograd.grad` computes gradients that it does not accumulate
            # If there is no gradient yet, it becomes the gradient itself, and no other reference may exist then.
            if self._gradient(key) is not None:
                self._added[key] = contribution

    def _report(self, key: int) -> None:
        with RecordingGuard(self._recorder.note_failure):
            gradient, contribution = self._gradient(key), self._added.pop(key, None)
            if gradient is not None:
                place = self._places[key]
                self._recorder.record_parameter_gradient(place.stem, place.name, gradient, contribution)

    def _gradient(self, key: int) -> Tensor | None:
        """Return the accumulated gradient; ``None`` if it is not reported, or the parameter no longer exists."""
        module, _, name = self._places[key]
        owner = module() if self._recorder.is_open and not self._is_released else None
        # Not get, which the parameter tables of scripted modules lack.
        parameter = None if owner is None or name not in owner._parameters else owner._parameters[name]
        return None if parameter is None or id(parameter) != key else parameter.grad


class _Place(NamedTuple):
    """Module of a parameter, and the names under which it is recorded."""

    module: weakref.ref[nn.Module]
    stem: str
    name: str


class _Awaited(NamedTuple):
    """The hooks at an accumulating node, and the node's metadata. The node itself would keep a graph alive."""

    metadata: dict[str, Any]
    handles: tuple[Handle, Handle]


_AWAITED = "msprobe"
"""Key in a node's metadata for our hooks."""


def own_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a module, without those of the modules inside it."""
    # Not named_parameters, which modules may override.
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def _remove_empty_tables(parameter: Any) -> None:
    """Remove empty hook tables: with them, a swapped tensor would no longer call hooks that are added later."""
    for table in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(parameter, table) is not None and not getattr(parameter, table):
            setattr(parameter, table, None)


def _come_first(parameter: Tensor, handle: Any) -> None:
    """Let a hook run before those of the user: a hook that steps an optimizer in backward clears the gradient."""
    hooks: dict[int, Any] | None = getattr(parameter, "_post_accumulate_grad_hooks", None)
    if hooks is None or handle.id not in hooks:
        return
    # In place, since the engine uses this very dictionary, in insertion order.
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)


def _accumulates_gradient(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter)
