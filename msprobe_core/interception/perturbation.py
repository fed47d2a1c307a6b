"""Perturbation of last digits: the differences that another kernel, summation order or compiler would cause.

Two healthy runs differ by the rounding of each operation, and by what later operations make of these differences. A
repetition of the golden run with randomly perturbed last digits differs from it in the same way, so repetitions show
how far healthy runs may diverge, node by node. This is Monte Carlo arithmetic (Parker 1997; Denis, de Oliveira Castro
and Petit, *Verificarlo*, ARITH 2016) with calls as operations: each result is perturbed once it is stored.

A number x with the unit round-off u is replaced by ``x + s * (x * u)``, rounded to nearest. The product with a power of
two is exact, and between half a unit in the last place of x and a whole one. So the sum is the next number up or down
for s = 1 or -1 (a power of two stays, by a tie). s is nonzero in a fraction `FLIPPED` of the elements only: the
difference of two results that are rounded independently, each by up to half a unit in the last place, has a variance of
1/6 squared units. If the rounding of a coarser format is configured, s is uniform between -1 and 1, whose variance of
1/3 is the same relative to x to within some percent. Zeros stay, and so do numbers that would become infinite.

Operations that move, choose or cast numbers without arithmetic are exact in any implementation, and are not perturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from msprobe_core.interception.modules import FoundModule, Handle, Observe, observe_by_hooks
from msprobe_core.interception.removal import NothingPending
from msprobe_core.model import MAX_DEPTH, Perturbation

FLIPPED = 1 / 6
"""Fraction of a tensor's elements whose last digit is perturbed."""


def seed_of(perturbation: Perturbation, step: int, window: int) -> int:
    """Return the seed for one window: equal on all ranks, so that replicated values stay equal."""
    state = np.random.SeedSequence([perturbation.seed, step, window]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))  # generators of frameworks take signed integers


def relative_changes(random: np.ndarray, roundoff: float, coarser: float | None) -> np.ndarray:
    """Return relative changes for elements, from uniform random numbers between 0 and 1.

    Args:
        random: Any shape; a floating-point dtype.
        roundoff: Unit round-off of the tensor's own format.
        coarser: Unit round-off of the configured format; ``None`` or a smaller value uses the tensor's own.
    """
    if coarser is not None and coarser > roundoff:
        return (2 * random - 1) * coarser
    return np.where(random < FLIPPED / 2, -roundoff, np.where(random < FLIPPED, roundoff, 0.0))


class TensorKinds(Protocol):
    """Operations of a framework that `ModuleNoise` needs."""

    def is_floating(self, value: Any) -> bool:
        """Whether a value is a floating-point tensor that can be perturbed."""
        ...

    def is_integer(self, value: Any) -> bool:
        """Whether a value is a tensor of integers."""
        ...

    def perturbed(self, tensor: Any) -> Any:
        """Return a perturbed copy of a tensor, through which gradients pass unchanged."""
        ...

    def perturb_gradient(self, tensor: Any) -> None:
        """Have the gradient with respect to a tensor perturbed when it arrives."""
        ...

    def quiet(self) -> AbstractContextManager[None]:
        """Return a context manager whose calls are not recorded, and in which autograd stays enabled."""
        ...


class _Places(NamedTuple):
    """Which values of one module's calls are perturbed."""

    inputs: bool
    outputs: bool
    outputs_of_integers: bool


class ModuleNoise(NothingPending):
    """Hooks that perturb the inputs and outputs of modules; a `msprobe_core.plugin.Removable`."""

    def __init__(
        self,
        modules: Iterable[FoundModule],
        roots: Sequence[str],
        kinds: TensorKinds,
        *,
        everywhere: bool,
        observe: Observe = observe_by_hooks,
    ) -> None:
        """Install the hooks.

        Args:
            modules: All modules of the models, with their paths.
            roots: Paths of the models themselves, whose inputs are perturbed.
            kinds: Recognises and perturbs the framework's tensors.
            everywhere: Whether the outputs of all modules are perturbed, with their gradients; otherwise only outputs
                of modules that map integers to floating-point numbers.
            observe: Installs the hooks of one module.
        """
        self._kinds = kinds
        self._observe = observe
        self._handles: list[Handle] = []
        self._latest: list[Any] = []
        found = list(modules)
        parents = {ancestor for path, _, _ in found for ancestor in _ancestors(path)}
        self._places = [(module, _Places(path in roots, everywhere, path not in parents)) for path, _, module in found]
        self.install()

    def install(self) -> None:
        """Install all hooks, or none if one of them fails."""
        try:
            for module, places in self._places:
                self._hook(module, places)
        except BaseException:
            self.detach()
            raise

    def _hook(self, module: Any, places: _Places) -> None:
        kinds = self._kinds

        def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            with kinds.quiet():
                return map_values((args, kwargs), kinds.is_floating, kinds.perturbed)

        def after(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            given = list(value_leaves((args, kwargs)))
            is_embedding = any(map(kinds.is_integer, given)) and not any(map(kinds.is_floating, given))
            if not places.outputs and not is_embedding:
                return None
            with kinds.quiet():
                return self._changed(output, has_gradients=places.outputs)

        changes_outputs = places.outputs or places.outputs_of_integers
        if places.inputs or changes_outputs:
            handle = self._observe(module, before if places.inputs else None, after if changes_outputs else None)
            self._handles.append(handle)

    def _changed(self, output: Any, *, has_gradients: bool) -> Any:
        """Return the result of a call, perturbed except for tensors that an inner call has perturbed already."""
        kinds, earlier = self._kinds, self._latest
        latest: list[Any] = []

        def change(tensor: Any) -> Any:
            if any(tensor is one for one in earlier):
                latest.append(tensor)
                return tensor
            changed = kinds.perturbed(tensor)
            latest.append(changed)
            if has_gradients:
                kinds.perturb_gradient(changed)
            return changed

        changed = map_values(output, kinds.is_floating, change)
        self._latest = latest
        return changed

    def detach(self) -> None:
        """Remove all hooks."""
        self._latest = []
        while self._handles:
            self._handles.pop().remove()


def map_values(value: Any, applies: Callable[[Any], bool], change: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return ``value`` with ``change`` applied to matching tensors; containers are rebuilt with their own types."""
    if applies(value):
        return change(value)
    if depth == MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        items = {k: map_values(v, applies, change, depth + 1) for k, v in cast("Mapping[Any, Any]", value).items()}
        return _like(value, items)
    if isinstance(value, tuple | list):
        sequence = cast("Sequence[Any]", value)
        parts = [map_values(item, applies, change, depth + 1) for item in sequence]
        make = cast("Callable[..., Any]", type(sequence))
        return make(*parts) if hasattr(sequence, "_fields") else make(parts)
    return value


def _like(value: Any, items: dict[Any, Any]) -> Any:
    """Return a mapping of the same class. It is changed in place: outputs of models may be dataclasses as well."""
    if type(value) is dict:
        return items
    for key, item in items.items():
        if item is not value[key]:
            value[key] = item
    return value


def converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return arguments with each value converted; what is in containers of other classes stays as it is."""
    if type(value) is dict:
        items = cast("dict[Any, Any]", value)
        return {key: converted(item, convert) for key, item in items.items()}
    if type(value) in (tuple, list):
        return type(value)(converted(item, convert) for item in value)
    return convert(value)


def _ancestors(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def value_leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield everything in nested containers, in the order of `map_values`."""
    if isinstance(value, tuple | list | Mapping) and depth < MAX_DEPTH:
        items = cast("Any", value)
        for item in items.values() if isinstance(value, Mapping) else items:
            yield from value_leaves(item, depth + 1)
    else:
        yield value


def named_tensors(path: str, value: Any, is_tensor: Callable[[Any], bool], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in nested containers, each with ``path`` and the keys and positions that lead to it.

    Args:
        path: Name of ``value``.
        value: A tensor, a container or anything else.
        is_tensor: Whether a value is a tensor.
        depth: How many containers within each other are looked into.
    """
    if is_tensor(value):
        yield path, value
    elif depth and isinstance(value, Mapping | list | tuple):
        container = cast("Any", value)
        for key, item in list(container.items()) if isinstance(value, Mapping) else enumerate(container):
            yield from named_tensors(f"{path}.{key}", item, is_tensor, depth - 1)
