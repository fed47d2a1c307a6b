"""Support for plugins that replay recorded calls: original arguments, and paths of tensors in results."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from msprobe_core.errors import ReplayError
from msprobe_core.interception.containers import children_of
from msprobe_core.model import Argument, ReplayCall, ReplayTensor, ReplayValue, Site

Make = Callable[[ReplayTensor, str], Any]
"""Creates the tensor that was recorded at a path."""

Special = Callable[[Argument], Any]
"""Creates an object of the framework's own type, such as a dtype; returns `NOT_SPECIAL` for other arguments."""

NOT_SPECIAL: Final = object()

_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "int": int, "float": float, "str": str, "bool": lambda text: text in (True, "True"),
    **dict.fromkeys(("float64", "float32", "float16"), float),
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint8"), int),
}  # fmt: skip

_MAX_LITERAL = 4096
"""Longest text, in characters, that is parsed as an argument."""


def why_not_called(
    site: Site, framework: str, random: Collection[str], find: Callable[[str, str], object | None]
) -> str | None:
    """Return why an API is not replayed, as the end of a sentence; ``None`` if it is.

    Args:
        site: Site of the API's call.
        framework: Display name of the framework.
        random: Functions of the framework that always draw random numbers.
        find: Returns the replayable function of a prefix and a name, or ``None``.
    """
    if site.path in random:
        return "it draws random numbers"
    if site.prefix == "Distributed":
        return "it communicates, and what the other ranks sent is not in this rank's dump"
    if find(site.prefix, site.path) is None:
        return f"it is not among the numerical functions of {framework} that are called for a dump"
    return None


def build_arguments(call: ReplayCall, make: Make, special: Special) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional arguments and the keyword arguments of a call.

    Raises:
        ReplayError: a dump does not store one of them completely.
    """
    builder = _Builder(make, special, has_lists=call.has_lists)
    args = [builder.build(value, str(i)) for i, value in enumerate(call.args)]
    return args, {name: builder.build(value, name) for name, value in call.kwargs.items()}


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds arguments. A function inside of a function that calls itself would keep all tensors until a collection."""

    make: Make
    special: Special
    has_lists: bool

    def build(self, value: ReplayValue, path: str) -> Any:
        if isinstance(value, ReplayTensor):
            return self.make(value, path)
        if isinstance(value, Argument):
            return argument_of(value, self.special)
        if isinstance(value, dict):
            return {key: self.build(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            items = [self.build(item, f"{path}.{i}") for i, item in enumerate(value)]
            return items if self.has_lists else tuple(items)
        return None


def argument_of(value: Argument, special: Special) -> Any:
    """Return an argument that is not a tensor.

    Raises:
        ReplayError: a dump does not store it completely.
    """
    made = special(value)
    if made is not NOT_SPECIAL:
        return made
    if value.type in _SCALARS:
        return _SCALARS[value.type](value.value)
    if value.type == "slice":
        return slice(*literal_of(value))
    if value.type == "ellipsis":
        return ...
    raise ReplayError(f"one of its arguments is a {value.type}, which a dump does not hold whole")


def literal_of(value: Argument) -> Any:
    """Return the value of an argument's text: numbers, and tuples, lists and dicts of them.

    Raises:
        ReplayError: it is longer than `_MAX_LITERAL`.
    """
    text = str(value.value)
    if len(text) > _MAX_LITERAL:
        raise ReplayError("one of its arguments is longer than any size or slice")
    return ast.literal_eval(text)


def tensors_by_path(value: Any, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a result with their paths in dumps.

    Args:
        value: Result of a call.
        kind: The framework's tensor class.
    """
    several = cast("Sequence[Any]", value) if type(value) in (tuple, list) else (value,)
    for i, item in enumerate(several):
        yield from _inside(item, str(i), kind)


def _inside(value: Any, path: str, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield path, value
        return
    if (children := children_of(value)) is not None:
        items = children.items() if isinstance(children, Mapping) else enumerate(children)
        for key, item in items:
            yield from _inside(item, f"{path}.{key}", kind)
