"""What the manifest of a run says of nets: their Cells with settings, casts, hooks and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache
from typing import Any, cast

from mindspore import Parameter, Tensor, nn, ops

from msprobe.mindspore._cells import Unnamed, cells_of, own_parameters
from msprobe.mindspore._device import device_target
from msprobe_core.interception import Hook
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

_SIMPLE = (bool, int, float, str)

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
        modules = [
            _described(path, cell, left_out, _parameters(f"{model.name}.{path}".strip("."), cell, known, device))
            for path, _, cell in cells_of([Unnamed(model.model)])
        ]
        settings = flattened(getattr(model.model, "config", None))
        settings.pop("", None)  # a text or a number is no configuration
        found.append(Model(name=model.name, modules=tuple(modules), settings=settings))
    return tuple(found)


def names_of_parameters(models: Sequence[NamedModel]) -> Mapping[int, str]:
    """Return the full names of the parameters of some nets by identity; a tied one has its first name."""
    names: dict[int, str] = {}
    for path, _, cell in cells_of(models):
        for name, parameter in own_parameters(cell).items():
            names.setdefault(id(parameter), f"{path}.{name}".lstrip("."))
    return names


def own_settings(cell: Any, left_out: AbstractSet[str] = _OF_EVERY_CELL) -> dict[str, Scalar]:
    """Return the scalars among the attributes of a Cell, without those that every Cell has.

    Of operators among them it is what they were made with, such as the epsilon of a norm.

    Args:
        cell: The Cell.
        left_out: Names of attributes that are passed over, besides all private ones.
    """
    found: dict[str, Scalar] = {}
    own = vars(cell)
    for name in [name for name in own if name not in left_out]:
        if name.startswith("_"):
            continue
        value = own[name]
        if value is None or type(value) in _SIMPLE:
            found[name] = scalar_of(value)[1]
        elif isinstance(value, ops.Primitive):
            given: Mapping[str, Any] = getattr(value, "init_attrs", None) or {}
            found |= {f"{name}.{key}": scalar for key, each in given.items() if (scalar := _scalar(each)) is not None}
        elif not isinstance(value, Tensor | nn.Cell):
            is_setting, scalar = scalar_of(value)
            if is_setting:
                found[name] = scalar
    return found


def _scalar(value: object) -> Scalar:
    return scalar_of(value)[1]


def _described(path: str, cell: Any, left_out: AbstractSet[str], parameters: tuple[DescribedParameter, ...]) -> Module:
    settings = own_settings(cell, left_out) | _of_compiler(cell)
    text = _own_text(cell)
    if text:
        settings["extra_repr"] = text
    return Module(
        path=path,
        type=name_of(type(cell)),
        settings=settings,
        is_training=bool(cell.training),
        hooks=dict(_hooks(cell)),
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


def _hooks(cell: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    own = vars(cell)
    for attribute, kind in _HOOK_TABLES:
        table: Any = own.get(attribute)
        if table and (names := _names(table.values() if isinstance(table, dict) else table)):
            yield kind, names
    if "construct" in own:
        yield "construct", _names([own["construct"]])
    for name, parameter in own_parameters(cell).items():
        with suppress(Exception):  # none have been registered, or a release without them
            if (hooks := parameter.hooks()) and (names := _names(hooks)):
                yield f"gradient of {name}", names


def _names(functions: Any) -> tuple[str, ...]:
    """Return the names of functions, without those of msprobe."""
    named = [name_of(each) for each in functions if not isinstance(each, Hook)]
    return tuple(name for name in named if not name.startswith(("msprobe.", "msprobe_core.")))


def _parameters(path: str, cell: Any, known: dict[int, str], device: str) -> tuple[DescribedParameter, ...]:
    found: list[DescribedParameter] = []
    buffers: Mapping[str, Any] = vars(cell).get("_buffers") or {}  # getattr is slow where a Cell has none
    for name, tensor in (*own_parameters(cell).items(), *buffers.items()):
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
