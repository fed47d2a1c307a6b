"""The tensors of an entry that is being recorded, with the names that their rows will have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from msprobe_core.model import Entry, GradientSlot, Phase, Role, TensorValue, Value
from msprobe_core.names import row_name


def tensors_of(entry: Entry) -> Iterator[tuple[str, TensorValue]]:
    """Yield the tensors of an entry with the names of their rows, such as ``Torch.cat.0.forward.input.0.1``."""
    is_gradients = entry.phase is Phase.PARAMETERS_GRAD
    parts: tuple[tuple[Role, object], ...] = (
        (Role.INPUT, entry.inputs),
        (Role.INPUT, entry.input_kwargs),
        (Role.PARAMETERS_GRAD if is_gradients else Role.PARAMETERS, entry.parameters),
        (Role.OUTPUT, entry.outputs),
        (Role.OUTPUT, entry.output_kwargs),
    )
    for role, values in parts:
        for path, value in _tensors_in(values, ""):
            yield row_name(entry.name, role, path), value


def _tensors_in(value: object, path: str) -> Iterator[tuple[str, TensorValue]]:
    if isinstance(value, GradientSlot):
        value = value.value
    if isinstance(value, TensorValue):
        yield path, value
        return
    inner: list[tuple[object, object]] = []
    if isinstance(value, list):
        inner = list(enumerate(cast("list[Value]", value)))
    elif isinstance(value, dict):
        inner = list(cast("dict[object, object]", value).items())
    for key, each in inner:
        yield from _tensors_in(each, f"{path}.{key}" if path else str(key))
