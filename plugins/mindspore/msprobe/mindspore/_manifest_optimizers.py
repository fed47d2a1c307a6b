"""What the manifest of a run says of optimizers: their groups, learning rates, decay, states, and scaling of losses."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from weakref import WeakSet

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.experimental import optim

from msprobe.mindspore._cells import walk
from msprobe.mindspore._manifest_cells import DtypeNames, own_settings
from msprobe.mindspore._reduce import values_of
from msprobe_core.fingerprint import hash_of
from msprobe_core.interception import Function, FunctionPatch, Patches, Removal
from msprobe_core.manifest import Optimizer, ParameterGroup, Scalar, flattened, name_of
from msprobe_core.plugin import NamedModel, Removable

_OPTIMIZERS: tuple[type[Any], ...] = (nn.Optimizer, optim.Optimizer)
_TRAINERS: tuple[type[Any], ...] = (nn.TrainOneStepCell,)

_ALL = _OPTIMIZERS + _TRAINERS

_NAMES = """
    dynamic_decay_flags dynamic_lr dynamic_weight_decay enable_tuple_broaden exec_weight_decay group_start_id
    init_learning_rate is_group is_group_lr is_group_params_ordered need_scale optim_filter param_length param_names
    param_rank skip_auto_parallel_compile use_parallel decay_flags grad_centralization_flags group_weight_decay
    group_grad_centralization defaults
    """
_SAMPLED = 16
"""States of which one at least must have dimensions."""

_INTERNAL = frozenset(_NAMES.split())
"""Attributes of an optimizer that follow from others."""

_SCALES = ("sens", "scale_sense", "sense_scale", "loss_scale_value", "scale_factor", "scale_window", "clip_grad_value")
"""Attributes of a Cell that makes training steps, or of its manager of loss scales."""


class KnownOptimizers:
    """The optimizers that this process has called, held weakly."""

    def __init__(self) -> None:
        """Begin without any."""
        self._seen: WeakSet[Any] = WeakSet()
        self._searched_for: WeakSet[Any] = WeakSet()

    def watch(self) -> Removable:
        """Note every optimizer, and every Cell for training steps, that is called from now on."""
        patches = Patches([FunctionPatch(kind, "__call__", self._note) for kind in _ALL], are_imported=False)
        patches.install()
        return Removal(patches.remove)

    def _note(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._seen.add(args[0])
        return function(*args, **kwargs)

    def of(self, models: Sequence[NamedModel]) -> Sequence[Optimizer]:
        """Describe those that update parameters of some nets.

        If none was called, because steps are compiled or made outside of the windows, they are searched for among the
        objects of the process, once for the same nets.
        """
        names: dict[int, str] = {}
        inside: list[Any] = []
        for model in models:
            for path, cell in walk(model.model, model.name):
                if isinstance(cell, _ALL):
                    inside.append(cell)
                for name, parameter in cell._params.items():
                    if parameter is not None and id(parameter) not in names:  # a tied one has its first name
                        names[id(parameter)] = f"{path}.{name}" if path else name
        found = _matching([*inside, *self._seen], names)
        whole = [model.model for model in models]
        if not found and not all(each in self._searched_for for each in whole):
            self._searched_for.update(whole)
            self._seen.update(_matching(_search(), names))
            found = _matching(self._seen, names)
        trainers = [cell for cell in (*inside, *self._seen) if isinstance(cell, _TRAINERS)]
        return [_described(optimizer, names, trainers) for optimizer in found]


def _search() -> list[Any]:
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, _ALL)}
    return [each for each in objects if type(each) in kinds]


def _matching(cells: Any, names: Mapping[int, str]) -> list[Any]:
    """Return the optimizers among some Cells and in Cells for training steps, if they update a known parameter."""
    found: dict[int, Any] = {}
    for cell in cells:
        optimizer = getattr(cell, "optimizer", None) if isinstance(cell, _TRAINERS) else cell
        held = getattr(optimizer, "parameters", ())
        if isinstance(held, tuple | list) and any(id(each) in names for each in held):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            found.setdefault(id(optimizer), optimizer)
    return sorted(found.values(), key=lambda each: (name_of(type(each)), str(getattr(each, "_create_time", ""))))


def _described(optimizer: Any, names: Mapping[int, str], trainers: Sequence[Any]) -> Optimizer:
    groups = getattr(optimizer, "param_groups", None)
    described = _groups_of_new(groups, names) if groups else _groups_of_classic(optimizer, names)
    defaults = _defaults(optimizer)
    for trainer in trainers:
        if getattr(trainer, "optimizer", None) is optimizer:
            defaults |= _scaling(trainer)
    return Optimizer(
        type=name_of(type(optimizer)),
        defaults=defaults,
        groups=tuple(described),
        state_dtypes=_state_dtypes(optimizer),
        steps=_steps(optimizer),
    )


def _defaults(optimizer: Any) -> dict[str, Scalar]:
    """Return what it was made with: of old releases and some classes only what it keeps in attributes."""
    given: Any = getattr(optimizer, "defaults", None) or getattr(optimizer, "init_args", None)
    if isinstance(given, dict):
        found = flattened({**given, **given.get("kwargs", {})})  # pyright: ignore[reportUnknownMemberType]
        initial = getattr(optimizer, "init_learning_rate", None)
        return {**({"lr": initial} if isinstance(initial, float) else {}), **found}
    found = {name: value for name, value in own_settings(optimizer).items() if name not in _INTERNAL}
    for name, value in vars(optimizer).items():
        if not name.startswith("_") and name not in _INTERNAL and _is_number(value):
            found[name] = _number(value)
    return found


def _groups_of_new(groups: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> Iterator[ParameterGroup]:
    """Describe the groups of `mindspore.mint.optim` and `mindspore.experimental.optim`."""
    for group in groups:
        settings: dict[str, Any] = {name: value for name, value in group.items() if name != "params"}
        for name, value in settings.items():
            if isinstance(value, Tensor):
                settings[name] = _number(value) if _is_number(value) else None
        yield ParameterGroup(settings=flattened(settings), parameters=_named(group["params"], names))


def _groups_of_classic(optimizer: Any, names: Mapping[int, str]) -> Iterator[ParameterGroup]:
    """Describe the parameters of `mindspore.nn.Optimizer` that are updated alike as one group.

    It keeps learning rate, decay and centralisation of each parameter if groups were given, and otherwise one of each.
    A parameter may be excluded from decay by its name.
    """
    scale = getattr(optimizer, "loss_scale", 1.0)  # MindSpore has multiplied the decay by it
    numbers: dict[int, dict[str, Scalar]] = {}
    names_of_values = ("learning_rate", "group_weight_decay" if optimizer.is_group else "weight_decay")
    rates, decays_of = (_each(optimizer, name) for name in names_of_values)
    flags = _each(optimizer, "decay_flags", default=True)
    central = _each(optimizer, "grad_centralization_flags", default=False)
    groups: dict[tuple[Any, ...], tuple[dict[str, Scalar], list[Any]]] = {}
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for place, parameter in enumerate(cast("Sequence[Any]", optimizer.parameters)):
        rate, decay = rates(place), decays_of(place)
        key = id(rate), id(decay), bool(flags(place)), bool(central(place))
        if (members := alike.get(key)) is not None:
            members.append(parameter)
            continue
        for name, value in (("lr", rate), ("weight_decay", decay)):
            if id(value) not in numbers:
                numbers[id(value)] = _setting(name, value)
        decays = dict(numbers[id(decay)]) if key[2] else {}
        number = decays.setdefault("weight_decay", 0.0)
        if isinstance(number, float) and scale and scale != 1.0:
            decays["weight_decay"] = float(str(np.float32(number / scale)))
        settings = {**numbers[id(rate)], **decays, "grad_centralization": key[3]}
        alike[key] = members = groups.setdefault((id(rate), *settings.items()), (settings, []))[1]
        members.append(parameter)
    for settings, members in groups.values():
        yield ParameterGroup(settings=settings, parameters=_named(members, names))


def _each(optimizer: Any, name: str, default: Any = None) -> Callable[[int], Any]:
    """Return what an attribute says of each parameter, by its place: the attribute itself if it is one for all."""
    value: Any = getattr(optimizer, name, default)
    if not isinstance(value, tuple | list | nn.CellList):
        return lambda _: value
    values = list(cast("Iterable[Any]", value))
    return lambda place: values[place] if place < len(values) else value


def _setting(name: str, value: Any) -> dict[str, Scalar]:
    """Return a learning rate or decay: a number, a tensor of one, or a Cell that computes it in each step."""
    if isinstance(value, Tensor):
        return {name: _number(value)} if _is_number(value) else {name: _sequence(value)}
    if isinstance(value, nn.Cell):
        inner = own_settings(value)
        for key, each in (*vars(value).items(), *value._params.items()):
            if isinstance(each, Tensor) and not key.startswith("_"):
                inner[key] = _number(each) if _is_number(each) else _sequence(each)
        return {name: name_of(type(value)), **{f"{name}.{key}": each for key, each in inner.items()}}
    return flattened({name: value})


def _scaling(trainer: Any) -> dict[str, Scalar]:
    """Return how a Cell that makes training steps scales the loss."""
    found: dict[str, Scalar] = {"trainer": name_of(type(trainer))}
    for prefix, cell in (("", trainer), ("loss_scaling.", getattr(trainer, "loss_scaling_manager", None))):
        if cell is None:
            continue
        if prefix:
            found["loss_scaling"] = name_of(type(cell))
        for name in _SCALES:
            value = getattr(cell, name, None)
            if isinstance(value, bool | int | float):
                found[prefix + name] = value
            elif _is_number(value):
                found[prefix + name] = _number(value)
    return found


def _state_dtypes(optimizer: Any) -> dict[str, str]:
    parameters: Sequence[Any] = optimizer.parameters
    own = {id(parameter) for parameter in parameters}
    dtypes = DtypeNames()
    found: dict[str, str] = {}
    for name, value in vars(optimizer).items():
        if name.startswith("_") or not isinstance(value, tuple | list) or len(value) != len(parameters):  # pyright: ignore[reportUnknownArgumentType]
            continue
        states = cast("Sequence[Any]", value)
        is_state = all(issubclass(kind, Parameter) for kind in set(map(type, states)))
        if not is_state or not own.isdisjoint(map(id, states)):
            continue
        if any(each.shape for each in states[:_SAMPLED]):  # not the steps of each parameter
            found[name] = ", ".join(sorted(set(map(dtypes.of, states))))
    return found


def _steps(optimizer: Any) -> int | None:
    """Return how many steps it counts; unknown of those of `mindspore.mint`, which count from -1."""
    name = "state_step" if isinstance(optimizer, optim.Optimizer) else "global_step"
    count: Any = getattr(optimizer, name, None)
    if type(optimizer).__module__.startswith("mindspore.mint.") or not _is_number(count):
        return None
    number = _number(count)
    return int(number) if isinstance(number, int | float) else None


def _named(parameters: Any, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names.get(id(parameter), "") for parameter in parameters)


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.size == 1


def _number(tensor: Any) -> Scalar:
    """Return the number in a tensor, of float32 the shortest one that is rounded to it: 0.01 instead of 0.00999…98."""
    values = values_of(tensor)
    if values is None:
        return None
    number = values.numbers.reshape(-1)[0]
    return float(str(number)) if isinstance(number, np.floating) else number.item()


def _sequence(tensor: Any) -> Scalar:
    values = values_of(tensor)
    if values is None:
        return None
    digest = int(hash_of(values.array)[0]) % (1 << 64)
    return f"{values.array.size} numbers, {digest:016x}"
