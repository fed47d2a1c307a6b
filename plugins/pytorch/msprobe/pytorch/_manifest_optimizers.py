"""What the manifest of a run says of optimizers, and how they are found: PyTorch keeps no list of them."""

from __future__ import annotations

import functools
import gc
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from msprobe.pytorch._compiled import modules_to_hook
from msprobe.pytorch._master_weights import master_of
from msprobe.pytorch._optimizer_steps import all_of, leaves_of
from msprobe_core.interception import NothingPending
from msprobe_core.manifest import Optimizer, ParameterGroup, Scalar, flattened, scalar_of
from msprobe_core.plugin import NamedModel

_MAX_SEARCH_S = 0.5
"""Processor time."""
_PART = 1 << 16
_MOST_OUTSIDE = 8
_EVAL_FRAME = "torch._dynamo.eval_frame"

_WRAPPER_CLASSES = (
    ("megatron.core.optimizer.optimizer", "MegatronOptimizer"),
    ("deepspeed.runtime.base_optimizer", "DeepSpeedOptimizer"),
)
"""Classes that wrap PyTorch's optimizers and are none themselves."""

_SCALER: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler

_NOT_SETTINGS = frozenset({"params", "param_groups", "state"})


class SteppedOptimizers(NothingPending):
    """The optimizers that have stepped while they were watched, and what scales their gradients."""

    def __init__(self) -> None:
        """Begin without any."""
        self._found: dict[int, weakref.ref[Any]] = {}
        self._rates: dict[int, tuple[float, ...]] = {}
        self._handle: Any = None

    def watch(self) -> SteppedOptimizers:
        """Begin. Not if something may be compiled: a compiler would compile again what a new hook is in."""
        if self._handle is None and _EVAL_FRAME not in sys.modules:
            self._handle = register_optimizer_step_pre_hook(self._note)
        elif self._handle is None and not self.all and not _has_wrappers():
            # They are searched for now instead of when the window ends: now their learning rates are the first ones.
            for one in _existing()[0]:
                self._see(one)
        return self

    def detach(self) -> None:
        """End."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _note(self, optimizer: Any, *_: Any) -> None:
        self._see(optimizer)
        scaler = _scaler_above(sys._getframe(1))
        if scaler is not None:
            self.add(scaler)

    def _see(self, one: Any) -> None:
        """Remember one that is about to step for the first time."""
        if not self._is_known(one):
            self.add(one)
            if isinstance(one, torch.optim.Optimizer):
                self._rates[id(one)] = _rates(one)

    def add(self, one: Any) -> None:
        """Remember one, as if it had stepped."""
        if not self._is_known(one):
            self._found[id(one)] = weakref.ref(one)
            self._rates.pop(id(one), None)  # of one that no longer exists

    def _is_known(self, one: Any) -> bool:
        reference = self._found.get(id(one))
        return reference is not None and reference() is one

    def first_rates(self, one: Any) -> tuple[float, ...]:
        """Return the learning rates of an optimizer when it was seen first; empty if they are unknown."""
        return self._rates.get(id(one), ()) if self._is_known(one) else ()

    @property
    def all(self) -> list[Any]:
        """Those that still exist, in the order of their first steps."""
        return [one for reference in self._found.values() if (one := reference()) is not None]


def _scaler_above(frame: FrameType | None) -> Any:
    """Return the gradient scaler that steps an optimizer, found by the code of the method that does it."""
    code = getattr(getattr(_SCALER, "_maybe_opt_step", None), "__code__", None)
    for _ in range(_MOST_OUTSIDE):
        if frame is None:
            break
        if frame.f_code is code:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


def optimizers_of(models: Sequence[NamedModel], stepped: SteppedOptimizers | None) -> list[Optimizer]:
    """Return the optimizers that update the models, and what wraps them.

    Those that have stepped are known, as are those of an engine that is the model. If none of them updates the models,
    as after an earlier training in the process, all objects are searched for a short time.
    """
    roots: list[Any] = [model.model for model in models if not _is_plain(model.model)]
    roots += stepped.all if stepped is not None else []
    is_whole = True
    if not _update_any(roots, _Names(models, roots)) or _has_wrappers():
        existing, is_whole = _existing()
        for one in existing:
            roots.append(one)
            if stepped is not None:
                stepped.add(one)  # so that they are not searched again when the step ends
    names = _Names(models, roots)
    found = [_described(one, names, stepped) for one in _distinct(roots)]
    if not is_whole or any(any(group.parameters) for one in found for group in one.groups):
        # An optimizer of another model, such as a discriminator's that is not recorded, does not count.
        found = [one for one in found if not one.groups or any(any(group.parameters) for group in one.groups)]
    return found


def _update_any(roots: Sequence[Any], names: _Names) -> bool:
    groups = (group for root in roots for leaf in leaves_of(root) for group in leaf.param_groups)
    return any(names.of(parameter) for group in groups for parameter in group["params"])


def _is_plain(model: nn.Module) -> bool:
    return not hasattr(model, "optimizer")


def _has_wrappers() -> bool:
    return any(name in sys.modules for name, _ in _WRAPPER_CLASSES)


def _existing() -> tuple[list[Any], bool]:
    """Return the optimizers and gradient scalers of this process, and whether all objects were looked at."""
    kinds: tuple[Any, ...] = (torch.optim.Optimizer, _SCALER)
    kinds += tuple(
        kind for module, name in _WRAPPER_CLASSES if (kind := getattr(sys.modules.get(module), name, None)) is not None
    )
    subclasses = _subclasses_of(kinds)
    began = time.thread_time()  # on a busy machine, waiting is no searching
    found: list[Any] = []
    for part in _newest_first():
        found += compress(part, map(subclasses.__contains__, map(type, part)))  # in C: there may be millions
        if time.thread_time() - began > _MAX_SEARCH_S:
            return found[::-1], False
    return found[::-1], True


def _newest_first() -> Iterator[list[Any]]:
    """Yield the objects of this process in parts: the youngest generation first, and of each what came last to it."""
    for generation in range(len(gc.get_count())):
        objects = gc.get_objects(generation)
        for end in range(len(objects), 0, -_PART):
            yield objects[max(end - _PART, 0) : end]


def _subclasses_of(kinds: Iterable[Any]) -> set[type[Any]]:
    found: set[type[Any]] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += type.__subclasses__(kind)
    return found


def _distinct(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield all optimizers and what wraps them, once each; an engine only for what it wraps."""
    seen: set[int] = set()
    for root in roots:
        for one in all_of(root):
            if id(one) not in seen and not isinstance(one, nn.Module):
                seen.add(id(one))
                yield one


class _Names:
    """Names of what optimizers update: parameters, or copies of them in float32."""

    def __init__(self, models: Sequence[NamedModel], roots: Sequence[Any]) -> None:
        self._parameters: dict[int, tuple[str, Any]] = {}
        for model in models:
            for path, module, _ in modules_to_hook(model.model, model.name):
                for name, parameter in module._parameters.items():
                    if parameter is not None:
                        self._parameters.setdefault(id(parameter), (f"{path}.{name}" if path else name, parameter))
        self._optimizers = [one for root in roots for one in all_of(root)]

    def of(self, tensor: Any) -> str:
        """Return the name of the parameter that a tensor stands for; empty if it is not known."""
        known = self._parameters.get(id(tensor))
        return self._masters.get(id(tensor), "") if known is None else known[0]

    @functools.cached_property
    def _masters(self) -> dict[int, str]:
        found: dict[int, list[str]] = {}
        for name, parameter in self._parameters.values():
            try:
                master = master_of(parameter, self._optimizers)
            except Exception:  # noqa: BLE001, S112  # of a release of a trainer that is not known
                continue
            if master is not None and master.tensor is not None:
                found.setdefault(id(master.tensor), []).append(name)
        return {key: ", ".join(names) for key, names in found.items()}


def _described(one: Any, names: _Names, stepped: SteppedOptimizers | None) -> Optimizer:
    kind: Any = type(one)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not isinstance(one, torch.optim.Optimizer):
        return Optimizer(type=name, defaults=_own_scalars(one))
    defaults = _scalars(cast("Mapping[str, Any]", getattr(one, "defaults", {})))
    is_wrapper = next((True for inner in all_of(one) if inner is not one), False)
    if is_wrapper:  # it shows the groups of what it wraps
        return Optimizer(type=name, defaults=defaults)
    groups = tuple(
        ParameterGroup(
            settings=_scalars({key: value for key, value in group.items() if key not in _NOT_SETTINGS}),
            parameters=tuple(names.of(parameter) for parameter in group["params"]),
        )
        for group in one.param_groups
    )
    return Optimizer(
        type=name,
        defaults=defaults,
        groups=groups,
        state_dtypes=_state_dtypes(one),
        steps=_steps(one),
        first_rates=() if stepped is None else stepped.first_rates(one),
    )


def _own_scalars(one: Any) -> dict[str, Scalar]:
    """Return the settings of a wrapper or of a gradient scaler, and of the loss scaler that it has."""
    found = _scalars(getattr(one, "__dict__", {}))
    for name in ("loss_scaler", "grad_scaler"):
        scaler = getattr(one, name, None)
        if scaler is not None:
            found |= {f"{name}.{key}": value for key, value in _scalars(getattr(scaler, "__dict__", {})).items()}
    found |= flattened(getattr(one, "config", None) or {}, prefix="config")
    return found


def _scalars(content: Mapping[str, Any]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for name, value in content.items():
        is_tensor = isinstance(value, Tensor)
        # A learning rate may be a tensor; one on a device would have to be waited for.
        if is_tensor and (value.numel() != 1 or value.device.type != "cpu"):
            continue
        is_setting, scalar = scalar_of(value.item() if is_tensor else value)
        if is_setting:
            found[str(name).lstrip("_")] = scalar
    return found


def _state_dtypes(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    states: Any = optimizer.state
    for state in list(states.values()):
        if isinstance(state, Mapping):
            for name, value in cast("Mapping[Any, Any]", state).items():
                if isinstance(value, Tensor):
                    found.setdefault(str(name), set()).add(str(value.dtype).removeprefix("torch."))
    return {name: ", ".join(sorted(dtypes)) for name, dtypes in sorted(found.items())}


def _steps(optimizer: torch.optim.Optimizer) -> int | None:
    """Return how many steps the states count; a count on a device is fetched, of the first parameter only."""
    states: Any = optimizer.state
    counts: list[int] = []
    for state in list(states.values()):
        count: Any = cast("Mapping[Any, Any]", state).get("step") if isinstance(state, Mapping) else None
        if isinstance(count, int | float):
            counts.append(int(count))
        elif isinstance(count, Tensor) and count.numel() == 1 and (count.device.type == "cpu" or not counts):
            counts.append(int(count.item()))
    return max(counts, default=None)


def _rates(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """Return the learning rate of each group; empty if one has none, or is on a device."""
    rates = [_scalars({"lr": group.get("lr")}).get("lr") for group in optimizer.param_groups]
    numbers = tuple(float(rate) for rate in rates if isinstance(rate, int | float))
    return numbers if len(numbers) == len(rates) else ()
