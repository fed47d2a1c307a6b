"""What the compiler knows about a Cell's arguments and results: their nesting, and which of them are tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import mindspore as ms

from msprobe_core.plugin import Argument, TensorMeta

MAX_DEPTH = 6
"""Containers nested deeper than this are passed on unchanged. The arguments themselves are nested twice: in a pair of
positional and keyword arguments."""

FIRST_RESULT = 1 << 20
"""Tensors of results are numbered from here, those of arguments from 0."""

_TENSOR: Any = type(ms.tensor_type)

_WITH_GRADIENTS = frozenset({"Float16", "Float32", "Float64", "BFloat16"})

_READABLE = _WITH_GRADIENTS | {
    "Bool", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Complex64", "Complex128",
}  # fmt: skip

_SCALARS = {"Bool": "bool", "Int": "int", "UInt": "int", "Float": "float", "String": "str"}


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor among the arguments or results of a Cell.

    Attributes:
        number: Index of the tensor, in order.
        meta: Its description; for dynamic shapes as compiled, with -1 for sizes that vary.
        is_read: Whether its values are passed out of the graph.
        takes_gradient: Whether its gradient can be passed out, if the training computes one.
        is_left_out: Whether its gradient is not passed out because a point there would change the graph's results.
    """

    number: int
    meta: TensorMeta
    is_read: bool
    takes_gradient: bool
    is_left_out: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements, and so no values to pass out."""
        return 0 in self.meta.shape


Tree: TypeAlias = "Place | Sequence[Tree] | Mapping[str, Tree] | Any"
"""Arguments or results, with a `Place` for each tensor, and constants unchanged."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Arguments or results of the calls of a Cell that have the same structure.

    Attributes:
        cell: Number of the Cell.
        tree: A pair of positional and keyword arguments, or the Cell's result.
        parameters: The Cell's own parameters by name; empty for results.
        read: Tensors whose values are passed out at run time, in this order.
        is_end: Whether these are results, at the end of calls.
    """

    cell: int
    tree: Tree
    parameters: Mapping[str, Place]
    read: Sequence[Place]
    is_end: bool


class Layouts:
    """All layouts of the process, by number, since compiled graphs refer to them by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layouts: list[Layout] = []
        self._numbers: dict[tuple[int, bool, str, str], int] = {}

    def __getitem__(self, number: int) -> Layout:
        return self._layouts[number]

    def add(self, cell: int, tree: Tree, parameters: Mapping[str, Place], reader: TreeReader) -> int:
        """Return the number of a layout; idempotent, since the compiler asks many times for each call."""
        key = cell, reader.reads_results, repr(tree), repr(parameters)
        with self._lock:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._layouts)
                read = [place for place in reader.places if place.is_read]
                self._layouts.append(Layout(cell, tree, parameters, read, reader.reads_results))
            return number


class TreeReader:
    """Converts the compiler's input of ``__infer__``; numbers tensors as `compiled_functions.flatten_all`."""

    def __init__(self, first: int = 0, *, has_tap: Callable[[int], bool] = lambda _: True) -> None:
        self._has_tap = has_tap
        self.places: list[Place] = []
        self.reads_results = first == FIRST_RESULT
        self._first = first

    def read(self, abstract: Mapping[str, Any]) -> Tree:
        """Return the tree of one value.

        Args:
            abstract: ``shape``, ``dtype`` and ``value``, each with the nesting of the value.
        """
        return self._read(abstract["shape"], abstract["dtype"], abstract["value"], MAX_DEPTH)

    def place(self, shape: Any, dtype: Any) -> Place:
        """Return a place for the next tensor, and count it."""
        name = dtype_name(dtype)
        meta = TensorMeta("mindspore.Tensor", name, tuple(shape))
        readable = is_readable(shape, dtype)
        number, takes = self._first + len(self.places), readable and name in _WITH_GRADIENTS
        place = Place(number, meta, readable, takes, is_left_out=takes and not self._has_tap(number))
        self.places.append(place)
        return place

    def _read(self, shape: Any, dtype: Any, value: Any, depth: int) -> Tree:
        if isinstance(dtype, _TENSOR):
            return self.place(shape, dtype)
        if isinstance(dtype, tuple | list):
            return self._read_container(shape, cast("Sequence[Any]", dtype), value, depth)
        if value is not None or dtype is None:
            return value
        # A scalar whose value is known at run time only.
        kind = next((kind for name, kind in _SCALARS.items() if str(dtype).startswith(name)), None)
        return None if kind is None else Argument(kind)

    def _read_container(self, shape: Any, dtype: Sequence[Any], value: Any, depth: int) -> Tree:
        values: list[Any] = [None] * len(dtype) if value is None else list(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value)
            values = list(items.values())
        # The compiled functions stop at the same depth: deeper tensors have no number there.
        trees = [self._read(*item, depth - 1) if depth else None for item in zip(shape, dtype, values, strict=True)]
        if isinstance(value, Mapping):
            return dict(zip(cast("Mapping[Any, Any]", value), trees, strict=True))
        return tuple(trees) if isinstance(dtype, tuple) else trees


def dtype_name(dtype: Any) -> str:
    """Return the element dtype of a tensor in MindSpore's spelling, for example ``Float32``."""
    return str(dtype.element_type())


def is_readable(shape: Any, dtype: Any) -> bool:
    """Whether values of a tensor can be passed out of a graph: on the CPU only if all sizes are known."""
    return dtype_name(dtype) in _READABLE and all(size > 0 for size in shape)


def takes_gradient(shape: Any, dtype: Any) -> bool:
    """Whether a gradient with respect to a tensor can be passed out of a graph."""
    return is_readable(shape, dtype) and dtype_name(dtype) in _WITH_GRADIENTS
