"""What the manifest of a run says of nets: their Cells with settings, casts, hooks and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from msprobe.mindspore._cells import walk
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

_OF_COMPILER = (
    "mixed_precision_type", "_amp_level", "_recompute_cell", "_has_config_recompute", "_in_strategy",
    "_jit_config_dict",
)  # fmt: skip
"""Attributes for casts, recomputation and sharding."""

_RARE = frozenset((*(attribute for attribute, _ in _HOOK_TABLES), "construct", *_OF_COMPILER))
"""Attributes that are empty in most Cells."""

_WITHOUT_SETTINGS = (Tensor, nn.Cell)

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}", re.IGNORECASE)

_MAX_TEXT = 400

_KINDS = {"Ascend": "npu", "GPU": "cuda"}


def kind_of_device() -> str:
    """Return the kind of this process's device, by the name that it has in other frameworks."""
    target = device_target()
    return _KINDS.get(target, target.lower())


class DtypeNames:
    """NumPy's names of the dtypes of tensors, each found once: MindSpore takes a microsecond to hash a dtype."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known: dict[int, tuple[Any, str]] = {}

    def of(self, tensor: Any) -> str:
        """Return the name for a tensor."""
        dtype = tensor.dtype
        known = self._known.get(id(dtype))  # which is the only object at this address: it is held
        if known is None:
            known = self._known[id(dtype)] = (dtype, str(dtype).lower())
        return known[1]


def described_models(models: Sequence[NamedModel]) -> tuple[Model, ...]:
    """Return the nets, without reading a tensor."""
    describe = _Describer()
    found: list[Model] = []
    for model in models:
        modules = [describe.cell(path, f"{model.name}.{path}".strip("."), cell) for path, cell in walk(model.model)]
        settings = flattened(getattr(model.model, "config", None))
        settings.pop("", None)  # a text or a number is no configuration
        found.append(Model(name=model.name, modules=tuple(modules), settings=settings))
    return tuple(found)


def own_settings(cell: Any, attributes: Iterable[str] | None = None) -> dict[str, Scalar]:
    """Return the scalars among the attributes of a Cell, without those that every Cell has.

    Of operators among them it is what they were made with, such as the epsilon of a norm.

    Args:
        cell: The Cell.
        attributes: Names of its own attributes, if they are known; see `_own_names`.
    """
    found: dict[str, Scalar] = {}
    own = vars(cell)
    for name in _own_names(own) if attributes is None else attributes:
        value = own[name]
        if value is None or value is True or value is False:
            found[name] = value
        elif isinstance(value, ops.Primitive):
            given: Mapping[str, Any] = getattr(value, "init_attrs", None) or {}
            for key, each in given.items():
                scalar = scalar_of(each)[1]
                if scalar is not None:
                    found[f"{name}.{key}"] = scalar
        elif not isinstance(value, _WITHOUT_SETTINGS):
            is_setting, scalar = scalar_of(value)
            if is_setting:
                found[name] = scalar
    return found


def _own_names(attributes: Iterable[str]) -> list[str]:
    return [name for name in attributes if name not in _OF_EVERY_CELL and not name.startswith("_")]


class _Describer:
    """Describes the Cells of nets, one after the other; what Cells with equal attributes have in common is kept."""

    def __init__(self) -> None:
        self._first_names: dict[int, str] = {}
        self._device = kind_of_device()
        self._dtypes = DtypeNames()
        self._attributes: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}

    def cell(self, path: str, full_path: str, cell: Any) -> Module:
        """Describe one Cell.

        Args:
            path: Its path in its net.
            full_path: The same with the name of the net.
            cell: The Cell.
        """
        values = vars(cell)
        names, rare = self._divided(tuple(values))
        settings = own_settings(cell, names)
        is_plain = not any(map(values.get, rare))
        if not is_plain:
            settings.update(_of_compiler(cell))
        text = _own_text(cell)
        if text:
            settings["extra_repr"] = text
        own = values["_params"]
        hooks = {} if is_plain else dict(_hooks_of_cell(values))
        for name, parameter in own.items():
            if names_of_hooks := _hooks_of_parameter(parameter):
                hooks[f"gradient of {name}"] = names_of_hooks
        return Module(
            path=path,
            type=name_of(type(cell)),
            settings=settings,
            is_training=bool(cell.training),
            hooks=hooks,
            parameters=self._parameters(full_path, own, values.get("_buffers")),
        )

    def _divided(self, attributes: tuple[str, ...]) -> tuple[list[str], list[str]]:
        """Return which attributes may be settings, and which are hooks or settings of the compiler."""
        divided = self._attributes.get(attributes)
        if divided is None:
            divided = _own_names(attributes), [name for name in attributes if name in _RARE]
            self._attributes[attributes] = divided
        return divided

    def _parameters(
        self, path: str, own: Mapping[str, Any], buffers: Mapping[str, Any] | None
    ) -> tuple[DescribedParameter, ...]:
        if not own and not buffers:
            return ()
        found: list[DescribedParameter] = []
        for name, tensor in (*own.items(), *buffers.items()) if buffers else own.items():
            if tensor is None:
                continue
            full = f"{path}.{name}" if path else name
            first = self._first_names.setdefault(id(tensor), full)
            is_buffer = not isinstance(tensor, Parameter)
            found.append(
                DescribedParameter(
                    name=name,
                    shape=tuple(tensor.shape),
                    dtype=self._dtypes.of(tensor),
                    device=self._device,
                    takes_gradient=not is_buffer and bool(tensor.requires_grad),
                    tied_to=None if first == full else first,
                    is_buffer=is_buffer,
                )
            )
        return tuple(found)


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


def _hooks_of_cell(own: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for attribute, kind in _HOOK_TABLES:
        table: Any = own.get(attribute)
        if table and (names := _names(table.values() if isinstance(table, dict) else table)):
            yield kind, names
    if "construct" in own:
        yield "construct", _names([own["construct"]])


def _hooks_of_parameter(parameter: Any) -> tuple[str, ...]:
    try:
        hooks: Any = parameter.hooks()
    except Exception:  # noqa: BLE001  # none have been registered, or a release without them, or no parameter
        return ()
    return _names(hooks) if hooks else ()


def _names(functions: Any) -> tuple[str, ...]:
    """Return the names of functions, without those of msprobe."""
    named = [name_of(each) for each in functions if not isinstance(each, Hook)]
    return tuple(name for name in named if not name.startswith(("msprobe.", "msprobe_core.")))
