"""What the manifest of a run says of a model: its modules with their settings, parameters, placements and hooks."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

from msprobe.pytorch._compiled import compiled_call_of, modules_to_hook, original_of
from msprobe_core.manifest import Model, Module, Parameter, Scalar, flattened, name_of, scalar_of
from msprobe_core.plugin import NamedModel

_CONFIGURATIONS = ("config", "args")
"""Attributes under which models keep their configuration."""

_HOOKS = {
    "_forward_pre_hooks": "forward_pre",
    "_forward_hooks": "forward",
    "_backward_pre_hooks": "backward_pre",
    "_backward_hooks": "backward",
}

_PARAMETER_HOOKS = {"_backward_hooks": "gradient", "_post_accumulate_grad_hooks": "accumulated_gradient"}

_OURS = ("msprobe.", "msprobe_core.")
_SETTING_TYPES = (bool, int, float, str, type(None), tuple, list, torch.dtype, torch.Size)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, functools.partial)
_NOT_SETTINGS = frozenset({"training", "call_super_init", "dump_patches"})
_MAX_TEXT = 2000


class Describer:
    """Describes models; a parameter that several modules have is described where it comes first."""

    def __init__(self) -> None:
        """Begin without known parameters."""
        self._names: dict[int, str] = {}
        self._dtypes: dict[torch.dtype, str] = {}

    def model(self, model: NamedModel) -> Model:
        """Return all of a model without values."""
        self._names = {}
        modules: list[Module] = []
        compiled: set[str] = set()
        for path, module, _ in modules_to_hook(model.model, ""):
            if original_of(module) is not None:
                compiled.add(path)  # the module that it was made of follows, with the same path
                continue
            is_compiled = path in compiled or compiled_call_of(module) is not None
            modules.append(self._module(path, module, is_compiled=is_compiled))
        return Model(name=model.name, modules=tuple(modules), settings=_configuration(model.model))

    def _module(self, path: str, module: nn.Module, *, is_compiled: bool) -> Module:
        settings = own_settings(module)
        if is_compiled:
            settings["torch.compile"] = True
        parameters = [*self._parameters(path, module), *self._buffers(path, module)]
        kind: Any = type(module)
        # Wrapped classes, such as those of fully_shard, are made at run time.
        return Module(
            path=path,
            type=f"{kind.__module__}.{kind.__qualname__}",
            settings=settings,
            is_training=bool(module.training),
            hooks=_hooks_of(module),
            parameters=tuple(parameters),
        )

    def _parameters(self, path: str, module: nn.Module) -> Iterator[Parameter]:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield self._tensor(path, name, parameter, is_buffer=False)

    def _buffers(self, path: str, module: nn.Module) -> Iterator[Parameter]:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield self._tensor(path, name, buffer, is_buffer=True)

    def _tensor(self, path: str, name: str, tensor: Tensor, *, is_buffer: bool) -> Parameter:
        whole = f"{path}.{name}" if path else name
        first = self._names.setdefault(id(tensor), whole)
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        local = getattr(tensor, "_local_tensor", tensor)
        return Parameter(
            name=name,
            shape=_shape_of(local),
            dtype=dtype,
            device=tensor.device.type,
            placement=placement_of(tensor),
            takes_gradient=tensor.requires_grad,
            tied_to=None if first == whole else first,
            is_buffer=is_buffer,
        )


def _shape_of(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple(map(int, tensor.shape))
    except RuntimeError:  # of a lazy module that has not run
        return ()


def placement_of(tensor: Any) -> str | None:
    """Return how a parameter is spread over ranks, in the words of what spreads it; ``None`` if it is whole."""
    placements = getattr(tensor, "placements", None)
    mesh = getattr(tensor, "device_mesh", None)
    if placements is not None and mesh is not None:
        names = mesh.mesh_dim_names or tuple(str(dim) for dim in range(mesh.ndim))
        shards = [f"{name}={_placement(one)}" for name, one in zip(names, placements, strict=False)]
        return f"{', '.join(shards)} of {list(map(int, tensor.shape))}"
    if getattr(tensor, "tensor_model_parallel", False):  # Megatron
        return f"tensor_model_parallel={getattr(tensor, 'partition_dim', '?')}"
    whole = getattr(tensor, "ds_shape", None)  # DeepSpeed's stage 3
    if whole is not None:
        return f"zero-3 of {list(map(int, whole))}"
    return None


def _placement(one: Any) -> str:
    dim = getattr(one, "dim", None)
    return type(one).__name__.lstrip("_") + ("" if dim is None else f"({dim})")


# --- settings ---------------------------------------------------------------------------------------------------------


def own_settings(module: nn.Module) -> dict[str, Scalar]:
    """Return the scalars among a module's attributes, and what its text representation shows besides."""
    found: dict[str, Scalar] = {}
    for name, value in module.__dict__.items():
        if name[:1] == "_" or name in _NOT_SETTINGS:
            continue
        if isinstance(value, _SETTING_TYPES):
            is_setting, scalar = scalar_of(value)
        elif isinstance(value, _FUNCTIONS):
            is_setting, scalar = True, name_of(value)
        else:
            continue
        if is_setting:
            found[name] = scalar
    if type(module).extra_repr is not nn.Module.extra_repr:
        for name, value in _shown_by(module).items():
            if not name.isdecimal() or value not in found.values():
                found.setdefault(name, value)
    return found


def _shown_by(module: nn.Module) -> dict[str, Scalar]:
    try:
        text = module.extra_repr()
    except Exception:  # noqa: BLE001  # of a class of the program
        return {}
    return parsed(text) if isinstance(cast("object", text), str) and len(text) <= _MAX_TEXT else {}


@functools.lru_cache(maxsize=1 << 12)
def _parts_of(text: str) -> tuple[tuple[str, Scalar], ...]:
    parts: list[tuple[str, Scalar]] = []
    position = 0
    for part in _divided(text):
        name, mark, value = part.partition("=")
        if mark and name.strip().isidentifier():
            parts.append((name.strip(), _literal(value.strip())))
        elif part:
            parts.append((str(position), _literal(part)))
            position += 1
    return tuple(parts)


def parsed(text: str) -> dict[str, Scalar]:
    """Return the settings in a text such as ``3, 16, kernel_size=(3, 3), bias=False``; others by position from 0."""
    return dict(_parts_of(text))


def _divided(text: str) -> Iterator[str]:
    """Yield the parts between commas and line ends that are outside of brackets."""
    depth = begin = 0
    for place, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter in ",\n" and depth <= 0:
            yield text[begin:place].strip()
            begin = place + 1
    yield text[begin:].strip()


def _literal(text: str) -> Scalar:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
    is_setting, scalar = scalar_of(value)
    return scalar if is_setting else text


def _configuration(model: nn.Module) -> dict[str, Scalar]:
    """Return the configuration of a model, or of the model that it wraps."""
    seen: list[nn.Module] = [model]
    while len(seen) < 8:
        inner = getattr(seen[-1], "module", None)
        inner = inner if isinstance(inner, nn.Module) else original_of(seen[-1])
        if inner is None:
            break
        seen.append(inner)
    for one in seen:
        for name in _CONFIGURATIONS:
            configuration = one.__dict__.get(name)
            if configuration is None or isinstance(configuration, nn.Module | Tensor):
                continue
            found = flattened(configuration)
            # Not in the dictionary of a configuration of transformers: how attention is computed in fact.
            for hidden in ("_attn_implementation", "_experts_implementation"):
                is_setting, value = scalar_of(getattr(configuration, hidden, None))
                if is_setting and value is not None:
                    found[hidden] = value
            if found:
                return found
    return {}


# --- hooks ------------------------------------------------------------------------------------------------------------


def _hooks_of(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the hooks of users and of trainers on a module and on its parameters, by kind."""
    found: dict[str, tuple[str, ...]] = {}
    content = module.__dict__
    for attribute, kind in _HOOKS.items():
        hooks: Mapping[int, Any] | None = content.get(attribute)
        if hooks and (names := _names_of(hooks.values())):
            found[kind] = names
    for name, parameter in module._parameters.items():
        if parameter is None or not parameter.is_leaf:
            continue
        for attribute, kind in _PARAMETER_HOOKS.items():
            hooks = getattr(parameter, attribute, None)
            if hooks and (names := _names_of(hooks.values())):
                found[f"{name}.{kind}"] = names
    return found


def _names_of(hooks: Iterable[Any]) -> tuple[str, ...]:
    names = (name_of(hook) for hook in hooks)
    return tuple(name for name in names if not name.startswith(_OURS))
