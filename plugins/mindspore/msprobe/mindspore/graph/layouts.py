"""What the compiler knows of the values at both ends of a Cell: how they are nested, and which of them are tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import mindspore as ms

from msprobe_core.plugin import Argument, TensorMeta

MAX_DEPTH = 6
"""Containers nested deeper than this are handed on as they are; the arguments themselves are in two, by position and by
name."""

FIRST_RESULT = 1 << 20
"""Numbers of results begin here, those of arguments at 0."""

_TENSOR: Any = type(ms.tensor_type)

_WITH_GRADIENTS = frozenset({"Float16", "Float32", "Float64", "BFloat16"})

_READABLE = _WITH_GRADIENTS | {
    "Bool", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Complex64", "Complex128",
}  # fmt: skip

_SCALARS = {"Bool": "bool", "Int": "int", "UInt": "int", "Float": "float", "String": "str"}


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor at one end of a Cell.

    Attributes:
        number: Which of the tensors it is, in order.
        meta: What it is; of dynamic shape as it was compiled, with -1 for sizes that vary.
        is_read: Whether its values arrive.
        takes_gradient: Whether its gradient can arrive, if the training computes one.
        is_left_out: Whether it does not, since the graph would compute otherwise with a point there.
    """

    number: int
    meta: TensorMeta
    is_read: bool
    takes_gradient: bool
    is_left_out: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has no element, and so nothing that could arrive."""
        return 0 in self.meta.shape


Tree: TypeAlias = "Place | Sequence[Tree] | Mapping[str, Tree] | Any"
"""Arguments or results, with a `Place` for each tensor, and constants as they are."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One end of the calls of a Cell that are compiled alike.

    Attributes:
        cell: Number of the Cell.
        tree: A pair of positional and keyword arguments, or what the Cell returns.
        parameters: The Cell's own parameters by name; of results, none.
        read: What arrives at run time, in this order.
        is_end: Whether this is the end of calls.
    """

    cell: int
    tree: Tree
    parameters: Mapping[str, Place]
    read: Sequence[Place]
    is_end: bool


class Layouts:
    """All layouts of the process, by number: graphs that are compiled refer to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layouts: list[Layout] = []
        self._numbers: dict[tuple[int, bool, str, str], int] = {}

    def __getitem__(self, number: int) -> Layout:
        return self._layouts[number]

    def add(self, cell: int, tree: Tree, parameters: Mapping[str, Place], reader: TreeReader) -> int:
        """Return the number of a layout; the compiler asks many times for each call."""
        key = cell, reader.reads_results, repr(tree), repr(parameters)
        with self._lock:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._layouts)
                read = [place for place in reader.places if place.is_read]
                self._layouts.append(Layout(cell, tree, parameters, read, reader.reads_results))
            return number


class TreeReader:
    """Reads what the compiler hands to ``__infer__``; numbers the tensors as `taps.flatten` lines them up."""

    def __init__(self, first: int = 0, *, has_tap: Callable[[int], bool] = lambda _: True) -> None:
        self._has_tap = has_tap
        self.places: list[Place] = []
        self.reads_results = first == FIRST_RESULT
        self._first = first

    def read(self, abstract: Mapping[str, Any]) -> Tree:
        """Return the tree of one value.

        Args:
            abstract: ``shape``, ``dtype`` and ``value``, each nested as the value is.
        """
        return self._read(abstract["shape"], abstract["dtype"], abstract["value"], MAX_DEPTH)

    def place(self, shape: Any, dtype: Any) -> Place:
        """Return a place for the next tensor."""
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
        # A number that is known at run time only.
        kind = next((kind for name, kind in _SCALARS.items() if str(dtype).startswith(name)), None)
        return None if kind is None else Argument(kind)

    def _read_container(self, shape: Any, dtype: Sequence[Any], value: Any, depth: int) -> Tree:
        values: list[Any] = [None] * len(dtype) if value is None else list(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value)
            values = list(items.values())
        # The compiler's functions end where this does: what lies deeper has no number there.
        trees = [self._read(*item, depth - 1) if depth else None for item in zip(shape, dtype, values, strict=True)]
        if isinstance(value, Mapping):
            return dict(zip(cast("Mapping[Any, Any]", value), trees, strict=True))
        return tuple(trees) if isinstance(dtype, tuple) else trees


def dtype_name(dtype: Any) -> str:
    """Return the dtype of the elements of a tensor as MindSpore spells it, for example ``Float32``."""
    return str(dtype.element_type())


def is_readable(shape: Any, dtype: Any) -> bool:
    """Whether values of a tensor can be taken out of a graph: on the CPU only where all sizes are known."""
    return dtype_name(dtype) in _READABLE and all(size > 0 for size in shape)


def takes_gradient(shape: Any, dtype: Any) -> bool:
    """Whether a gradient with respect to a tensor can be taken out of a graph."""
    return is_readable(shape, dtype) and dtype_name(dtype) in _WITH_GRADIENTS
