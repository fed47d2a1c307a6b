"""Report the calls of flax modules: what a traced program computes comes back through ``jax.debug.callback``.

``Module.apply`` is replaced while a step is recorded. Inside of it, an interceptor of flax sees every call of a module,
as often as the program is traced, and puts callbacks before and after it; these run whenever the program runs, compiled
or not, in the order of the program. They only keep arrays, on whatever thread XLA runs them; when the step ends, the
calls are reported. An identity with a rule of its own for gradients does the same for the backward pass.

A compiled program with callbacks is another one than without. JAX keeps both, because metadata that says which modules
are recorded, and changes nothing else, is part of what it looks programs up by. So a callback may be older than the
window that it runs in: it reports to whatever is attached then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from msprobe_core.interception import module_stem
from msprobe_core.plugin import AttachOptions, CallRecorder, NamedModel

Report: TypeAlias = Callable[..., None]
"""A method of `Calls`."""


@dataclass(frozen=True)
class Site:
    """A module at its place in a program; the same for all its calls of one trace."""

    path: str
    type_name: str


@dataclass
class Open:
    """A call that is being reported."""

    call: Any
    slots_in: Sequence[tuple[Any, Any]]
    slots_out: Sequence[tuple[Any, Any]] = ()


@dataclass
class Calls:
    """What callbacks have brought, and the calls that it is of."""

    recorder: CallRecorder
    arrived: list[tuple[Report, tuple[Any, ...], Any]] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    by_place: dict[int, list[Open]] = field(default_factory=dict)

    def report(self) -> None:
        """Report what has arrived, in its order."""
        arrived, self.arrived = self.arrived, []
        for report, static, values in arrived:
            report(self, *static, values)

    # --- what is reported ---------------------------------------------------------------------------------------

    def begin(self, place: int, site: Site, values: tuple[Any, Any, Any]) -> None:
        """Report the inputs and parameters of a call."""
        args, kwargs, parameters = values
        call = self.recorder.open_module("Module", site.path, site.type_name)
        self.recorder.record_inputs(call, args, kwargs)
        self.recorder.record_parameters(call, parameters)
        slots = self.recorder.input_gradients(call, args, kwargs) if call.wants_gradients else []
        self.open.append(Open(call, slots))
        self.by_place.setdefault(place, []).append(self.open[-1])

    def end(self, output: Any) -> None:
        """Report the result of the innermost call."""
        opened = self.open.pop()
        self.recorder.record_outputs(opened.call, output)
        opened.slots_out = self.recorder.output_gradients(opened.call, output) if opened.call.wants_gradients else []
        self.recorder.expect_gradients(opened.call, len(opened.slots_out), len(opened.slots_in))
        self.recorder.close(opened.call)

    def abandon(self, _: Any) -> None:
        """End the calls in which the program raised."""
        while self.open:
            self.recorder.close(self.open.pop().call)

    def gradients(self, place: int, kind: str, values: Any) -> None:
        """Report the gradients of what a call returned, or was given; backward passes run through calls in reverse."""
        calls = self.by_place.get(place)
        if not calls:
            return
        opened = calls[-1] if kind == "out" else calls.pop()
        for (slot, _), gradient in zip(opened.slots_out if kind == "out" else opened.slots_in, values, strict=False):
            self.recorder.record_gradient(opened.call, slot, gradient)

    def parameter_gradient(self, stem: str, name: str, gradient: Any) -> None:
        """Report the gradient of a parameter."""
        self.recorder.record_parameter_gradient(stem, name, gradient)


_ATTACHED: list[Calls] = []
_PLACES = itertools.count()
"""Numbers of calls in programs."""


def _emit(report: Report, static: tuple[Any, ...], values: Any) -> None:
    """Have the program report values whenever it runs."""
    arrays, others = _parted(values)

    def arrive(given: Any) -> None:
        if _ATTACHED:
            _ATTACHED[-1].arrived.append((report, static, _joined(given, others)))

    jax.debug.callback(arrive, arrays, ordered=True)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array) or hasattr(value, "__array_priority__")


def _parted(values: Any) -> tuple[list[Any], tuple[Any, list[Any]]]:
    """Return the arrays of a tree, which a callback can carry, and the rest."""
    leaves, tree = jax.tree.flatten(values, is_leaf=lambda value: value is None)
    return [leaf for leaf in leaves if _is_array(leaf)], (
        tree,
        [None if _is_array(leaf) else (leaf,) for leaf in leaves],
    )


def _joined(arrays: Sequence[Any], others: tuple[Any, list[Any]]) -> Any:
    tree, leaves = others
    left = iter(arrays)
    return jax.tree.unflatten(tree, [next(left) if leaf is None else leaf[0] for leaf in leaves])


def _watched(values: Any, on_gradients: Callable[[list[Any]], None]) -> Any:
    """Return a tree of values whose gradients are reported together, once all are known."""

    @jax.custom_vjp
    def identity(floats: list[Any]) -> list[Any]:
        return floats

    def backward(_: None, gradients: list[Any]) -> tuple[list[Any]]:
        on_gradients(gradients)
        return (gradients,)

    identity.defvjp(lambda floats: (floats, None), backward)
    leaves, tree = jax.tree.flatten(values)
    places = [i for i, leaf in enumerate(leaves) if _is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)]
    if not places:
        return values
    for place, leaf in zip(places, identity([leaves[i] for i in places]), strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(tree, leaves)


class FlaxAttachment:
    """Replaces ``Module.apply``."""

    def __init__(self, models: Sequence[NamedModel], options: AttachOptions, recorder: CallRecorder) -> None:
        self._models = models
        self._calls = Calls(recorder)
        self._attached = ExitStack()
        if options.level.has_modules:
            apply = nn.Module.apply
            self._attached.callback(setattr, nn.Module, "apply", apply)
            nn.Module.apply = self._wrapped(apply)
            _ATTACHED.append(self._calls)
            self._attached.callback(_ATTACHED.remove, self._calls)
            self._attached.enter_context(set_xla_metadata(msprobe=repr([(each.name, each.model) for each in models])))

    def detach(self) -> None:
        jax.effects_barrier()
        self._attached.close()
        self._calls.report()

    def settle(self) -> None:
        """Everything has been reported."""

    def release(self) -> None:
        """Nothing is kept."""

    def is_compiling(self) -> bool:
        return False

    def call(self, prefix: str, name: str, function: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        return function(*args, **kwargs)  # modules only

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(module: nn.Module, variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            name = next((each.name for each in self._models if each.model == module), None)
            if self._models and name is None:
                return original(module, variables, *args, **kwargs)
            types: dict[str, str] = {}

            def intercept(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
                if context.method_name != "__call__":
                    return call(*args, **kwargs)
                path = ".".join(filter(None, (name, *context.module.path)))
                types[".".join(context.module.path)] = type(context.module).__name__
                return self._recorded(Site(path, type(context.module).__name__), context.module, call, args, kwargs)

            parameters = self._with_gradients(name or "", variables.get("params", {}), types)
            try:
                with nn.intercept_methods(intercept):
                    return original(module, {**variables, "params": parameters}, *args, **kwargs)
            except BaseException:
                _emit(Calls.abandon, (), ())
                raise

        return apply

    def _recorded(self, site: Site, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        place = next(_PLACES)
        own = {name: value for name, value in module.variables.get("params", {}).items() if _is_array(value)}
        args, kwargs = _watched((args, kwargs), lambda found: _emit(Calls.gradients, (place, "in"), found))
        _emit(Calls.begin, (place, site), (args, kwargs, own))
        result = _watched(call(*args, **kwargs), lambda found: _emit(Calls.gradients, (place, "out"), found))
        _emit(Calls.end, (), result)
        return result

    def _with_gradients(self, root: str, parameters: Any, types: Mapping[str, str]) -> Any:
        """Return the parameters of a model, whose gradients are reported under the names of their modules."""

        def watched(keys: Sequence[Any], leaf: Any) -> Any:
            *path, name = [str(key.key) for key in keys]
            inner = ".".join(path)

            def on_gradient(found: list[Any]) -> None:
                stem = module_stem("Module", ".".join(filter(None, (root, inner))), types.get(inner, "Module"))
                _emit(Calls.parameter_gradient, (stem, name), found[0])

            return _watched(leaf, on_gradient)

        return jax.tree_util.tree_map_with_path(watched, parameters)
