"""What the manifest of a run says of nets: their Cells with settings, casts, hooks and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache
from typing import Any, cast

from mindspore import Parameter, Tensor, nn, ops

from msprobe.mindspore._cells import Unnamed, cells_of, own_parameters
from msprobe.mindspore._device import device_target
from msprobe_core.interception import FoundModule, Hook
from msprobe_core.manifest import Model, Module, Scalar, flattened, name_of, scalar_of
from msprobe_core.manifest import Parameter as DescribedParameter
from msprobe_core.plugin import NamedModel

_NAMES = "arguments_key cell_type grad_ops_label has_bprop is_top_cell mixed_precision_type requires_grad training"
_OF_EVERY_CELL = frozenset(_NAMES.split())
"""Attributes that the class Cell sets; those whose names begin with an underscore are left out too."""

_HOOKS = (
    "forward_pre_hook", "forward_hook", "backward_pre_hook", "backward_hook", "jit_forward_pre_hook",
    "jit_forward_hook", "jit_backward_pre_hook", "jit_backward_hook",
)  # fmt: skip
_HOOK_TABLES = tuple((f"{prefix}{kind}", kind) for kind in _HOOKS for prefix in ("_", "_lazy_"))
"""Attributes with tables of hooks; those with ``_lazy_`` are in releases that create them on first use."""

_WITH_HOOKS = (*(attribute for attribute, _ in _HOOK_TABLES), "construct")

_PLAIN = frozenset({bool, type(None)})
_SIMPLE = frozenset({int, float, str})

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}", re.IGNORECASE)

_MAX_TEXT = 400

_KINDS = {"Ascend": "npu", "GPU": "cuda"}


def kind_of_device() -> str:
    """Return the kind of this process's device, by the name that it has in other frameworks."""
    target = device_target()
    return _KINDS.get(target, target.lower())


def dtype_name(tensor: Any) -> str:
    """Return the dtype of a tensor by NumPy's name."""
    return _text_of(tensor.dtype)


@cache
def _text_of(dtype: Any) -> str:
    return str(dtype).lower()


def described_models(models: Sequence[NamedModel]) -> tuple[Model, ...]:
    """Return the nets, without reading a tensor."""
    known: dict[int, str] = {}
    device = kind_of_device()
    found: list[Model] = []
    for model in models:
        # Most attributes of a Cell are private ones that all have: to find them in a set takes a third of the time.
        left_out = _OF_EVERY_CELL.union(name for name in vars(model.model) if name.startswith("_"))
        attributes: dict[tuple[str, ...], list[str]] = {}
        modules: list[Module] = []
        for path, _, cell in cells_of([Unnamed(model.model)]):
            own = own_parameters(cell)
            parameters = _parameters(f"{model.name}.{path}".strip("."), cell, own, known, device)
            settings = own_settings(cell, left_out, attributes)
            modules.append(_described(path, cell, settings, own, parameters))
        settings = flattened(getattr(model.model, "config", None))
        settings.pop("", None)  # a text or a number is no configuration
        found.append(Model(name=model.name, modules=tuple(modules), settings=settings))
    return tuple(found)


def names_of_parameters(cells: Iterable[FoundModule]) -> Mapping[int, str]:
    """Return the full names of the parameters of some Cells by identity; a tied one has its first name."""
    names: dict[int, str] = {}
    for path, _, cell in cells:
        for name, parameter in cell._params.items():
            if parameter is not None:
                names.setdefault(id(parameter), f"{path}.{name}".lstrip("."))
    return names


def own_settings(
    cell: Any, left_out: AbstractSet[str] = _OF_EVERY_CELL, known: dict[tuple[str, ...], list[str]] | None = None
) -> dict[str, Scalar]:
    """Return the scalars among the attributes of a Cell, without those that every Cell has.

    Of operators among them it is what they were made with, such as the epsilon of a norm.

    Args:
        cell: The Cell.
        left_out: Names of attributes that are passed over, besides all private ones.
        known: Which ones are left of the attributes of Cells that were described before.
    """
    found: dict[str, Scalar] = {}
    own = vars(cell)
    attributes = tuple(own)
    names = None if known is None else known.get(attributes)
    if names is None:
        names = [name for name in attributes if name not in left_out and not name.startswith("_")]
        if known is not None:
            known[attributes] = names
    for name in names:
        value = own[name]
        kind = type(value)
        if kind in _PLAIN:
            found[name] = value
        elif kind in _SIMPLE:
            found[name] = scalar_of(value)[1]
        elif isinstance(value, ops.Primitive):
            given: Mapping[str, Any] = getattr(value, "init_attrs", None) or {}
            for key, each in given.items():
                scalar = each if type(each) in _PLAIN else scalar_of(each)[1]
                if scalar is not None:
                    found[f"{name}.{key}"] = scalar
        elif not isinstance(value, Tensor | nn.Cell):
            is_setting, scalar = scalar_of(value)
            if is_setting:
                found[name] = scalar
    return found


def _described(
    path: str,
    cell: Any,
    settings: dict[str, Scalar],
    own: Mapping[str, Parameter],
    parameters: tuple[DescribedParameter, ...],
) -> Module:
    settings.update(_of_compiler(cell))
    text = _own_text(cell)
    if text:
        settings["extra_repr"] = text
    return Module(
        path=path,
        type=name_of(type(cell)),
        settings=settings,
        is_training=bool(cell.training),
        hooks=dict(_hooks(cell, own)),
        parameters=parameters,
    )


def _of_compiler(cell: Any) -> dict[str, Scalar]:
    """Return casts, recomputation and sharding, which MindSpore keeps in attributes of its own."""
    found: dict[str, Scalar] = {}
    own = vars(cell)
    cast_to = own.get("mixed_precision_type")
    if cast_to is not None:
        found["mixed_precision"] = str(getattr(cast_to, "name", cast_to))
    if own.get("_amp_level"):
        found["amp_level"] = str(own["_amp_level"])
    if own.get("_recompute_cell") is not None or own.get("_has_config_recompute"):
        found["recompute"] = True
    if own.get("_in_strategy"):
        found["in_strategy"] = str(own["_in_strategy"])[:_MAX_TEXT]
        found["out_strategy"] = str(own.get("_out_strategy"))[:_MAX_TEXT]
    settings: Mapping[str, Any] | None = own.get("_jit_config_dict")
    return found | flattened(settings, prefix="jit_config") if settings else found


def _own_text(cell: Any) -> str:
    """Return what the Cell shows of itself, unless that might read a tensor."""
    if type(cell).extend_repr is nn.Cell.extend_repr or type(cell).__module__.startswith("mindspore."):
        return ""  # MindSpore's own show attributes only
    if any(isinstance(value, Tensor) and not isinstance(value, Parameter) for value in vars(cell).values()):
        return ""
    text = ""
    with suppress(Exception):  # the program's own
        text = str(cell.extend_repr())
    return "" if len(text) > _MAX_TEXT else _ADDRESS.sub("0x…", text)


def _hooks(cell: Any, parameters: Mapping[str, Parameter]) -> Iterator[tuple[str, tuple[str, ...]]]:
    own = vars(cell)
    if any(map(own.get, _WITH_HOOKS)):
        for attribute, kind in _HOOK_TABLES:
            table: Any = own.get(attribute)
            if table and (names := _names(table.values() if isinstance(table, dict) else table)):
                yield kind, names
        if "construct" in own:
            yield "construct", _names([own["construct"]])
    for name, parameter in parameters.items():
        try:
            hooks: Any = parameter.hooks()
        except Exception:  # noqa: BLE001, S112  # none have been registered, or a release without them
            continue
        if hooks and (names := _names(hooks)):
            yield f"gradient of {name}", names


def _names(functions: Any) -> tuple[str, ...]:
    """Return the names of functions, without those of msprobe."""
    named = [name_of(each) for each in functions if not isinstance(each, Hook)]
    return tuple(name for name in named if not name.startswith(("msprobe.", "msprobe_core.")))


def _parameters(
    path: str, cell: Any, own: Mapping[str, Parameter], known: dict[int, str], device: str
) -> tuple[DescribedParameter, ...]:
    buffers: Mapping[str, Any] = vars(cell).get("_buffers") or {}  # getattr is slow where a Cell has none
    if not own and not buffers:
        return ()
    found: list[DescribedParameter] = []
    for name, tensor in (*own.items(), *buffers.items()):
        if tensor is None:
            continue
        full = f"{path}.{name}" if path else name
        first = known.setdefault(id(tensor), full)
        is_buffer = not isinstance(tensor, Parameter)
        found.append(
            DescribedParameter(
                name=name,
                shape=tuple(cast("Sequence[int]", tensor.shape)),
                dtype=dtype_name(tensor),
                device=device,
                takes_gradient=not is_buffer and bool(tensor.requires_grad),
                tied_to=None if first == full else first,
                is_buffer=is_buffer,
            )
        )
    return tuple(found)
