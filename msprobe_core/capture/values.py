"""Conversion of a call's Python values to the `Value` trees of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from msprobe_core.capture.arguments import SCALARS, describe_python, describe_scalar, summarise
from msprobe_core.guard import checked, kept, reason_of
from msprobe_core.interception.containers import children_of
from msprobe_core.model import MAX_DEPTH, Argument, Failure, Value
from msprobe_core.protocols.framework import Framework

Leaf: TypeAlias = Callable[[Any, str], Value]
"""Converts one tensor, found at a dotted path, to a value."""

OnFailure: TypeAlias = Callable[[str, Exception], None]
"""Called with the name of a value that could not be read, and the error."""


class ValueBuilder:
    """Builds `Value` trees; the ``leaf`` of each call converts tensors."""

    def __init__(self, framework: Framework, on_failure: OnFailure, *, tensors_only: bool = False) -> None:
        """Create a builder.

        Args:
            framework: Recognises its tensors and its other types.
            on_failure: Called if reading an argument raises; a `Failure` takes its place. Arguments are the user's
                objects, and may do anything when they are read.
            tensors_only: Put ``None`` in place of everything that is not a tensor.
        """
        self._is_tensor = framework.is_tensor
        self._describe_argument = framework.describe_argument
        self._on_failure = on_failure
        self._tensors_only = tensors_only

    def positional(self, args: Sequence[Any], leaf: Leaf) -> list[Value]:
        """Return the values of positional arguments or results."""
        return [self._build_guarded(value, str(i), leaf) for i, value in enumerate(args)]

    def named(self, kwargs: Mapping[str, Any], leaf: Leaf) -> dict[str, Value]:
        """Return the values of keyword arguments or parameters."""
        return {name: self._build_guarded(value, name, leaf) for name, value in _named_items(kwargs)}

    def _build_guarded(self, value: Any, path: str, leaf: Leaf) -> Value:
        try:
            return leaf(value, path) if self._is_tensor(value) else self._build(value, path, leaf, ())
        except BaseException as caught:  # noqa: BLE001  # see ``on_failure``
            error = kept(caught)
            self._on_failure(f"argument {path}, a {type(value).__qualname__}", error)
            return Failure(reason_of(error))

    def _build(self, value: Any, path: str, leaf: Leaf, inside: tuple[int, ...]) -> Value:
        """Return the tree for one value; ``None`` for ``None`` and for unknown types.

        Args:
            value: The value.
            path: Its dotted path.
            leaf: Converts tensors.
            inside: Identities of the enclosing containers, to stop at a container that contains itself.
        """
        if value is None:
            return None
        if self._is_tensor(value):
            return leaf(value, path)
        kind = cast("type[Any]", type(value))
        if kind in SCALARS:
            return None if self._tensors_only else describe_scalar(value)
        if len(inside) == MAX_DEPTH or id(value) in inside:
            return None
        # Ask the framework before treating the value as a container: torch.Size is a tuple, but one value.
        if kind not in _PLAIN and (argument := self._describe_argument(value)) is not None:
            return None if self._tensors_only else checked(argument, Argument, "the framework", "describe_argument")
        children = children_of(value)
        if isinstance(children, list | tuple) and (summary := summarise(cast("Sequence[Any]", children))) is not None:
            return None if self._tensors_only else summary
        inside = (*inside, id(value))
        if isinstance(children, Mapping):
            return {name: self._build(item, f"{path}.{name}", leaf, inside) for name, item in _named_items(children)}
        if children is not None:
            return [self._build(item, f"{path}.{i}", leaf, inside) for i, item in enumerate(children)]
        return None if self._tensors_only else describe_python(value)


def _named_items(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items with unique names: 1 and "1" are two keys with the same text."""
    taken: set[str] = set()
    for key, value in mapping.items():
        name = str(key)
        while name in taken:
            name += "'"
        taken.add(name)
        yield name, value


_PLAIN = frozenset({tuple, list, dict})
