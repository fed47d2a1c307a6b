"""Description of arguments that are not tensors: values of Python and NumPy, and long lists of numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np

from msprobe_core.interception.host_reducer import statistics_of
from msprobe_core.model import Argument

SCALARS = frozenset({bool, int, float, str})
"""Types whose values are stored in a dump unchanged."""

MAX_ITEMS = 1024
"""Longer lists of numbers, strings or other plain values, counting nested ones, are recorded as statistics."""

MAX_TEXT = 4096
"""Longest text, in characters, that is stored whole."""

_MAX_BYTES = 32
"""Longest bytes object that is stored whole."""


def describe_python(value: Any) -> Argument | None:
    """Return the record of a value of Python or NumPy; ``None`` for objects of other types."""
    for kind in _SCALARS_BY_BASE:
        if isinstance(value, kind):  # an IntEnum, a str subclass
            return Argument(kind.__name__, _cut(kind(value)))
    if isinstance(value, Argument):  # described by the interception already
        return value
    # Before NumPy 1.25 dtype types belong to module numpy.
    if type(value).__module__ == "numpy" and not isinstance(value, np.dtype):
        return _describe_numpy(value)
    for kinds, describe in _DESCRIPTIONS:
        if isinstance(value, kinds):
            return describe(value)
    return None


_SCALARS_BY_BASE = (bool, int, float, str)


def describe_scalar(value: Any) -> Argument:
    """Return the record of a value whose type is in `SCALARS`."""
    return Argument(type(value).__name__, _cut(value))


def summarise(items: Sequence[Any]) -> Argument | None:
    """Return the record of a long list of plain values, nested or not; ``None`` for any other list.

    Numbers are recorded as statistics and shape, other values as the shape only. The shape of an irregular nesting is
    the number of values.
    """
    shape, level, kinds = [len(items)], items, set(map(type, items))
    for _ in range(_MAX_NESTING):  # a list may contain itself
        if not kinds or not kinds <= _NESTS:
            break
        sizes = set(map(len, level))
        shape = [*shape, *sizes] if shape and len(sizes) == 1 else []
        level = list(chain.from_iterable(level))
        kinds = set(map(type, level))
    if len(level) <= MAX_ITEMS or not kinds <= _PLAIN_ITEMS:
        return None
    kind = type(items).__name__
    array = np.asarray(level) if kinds <= _NUMBERS else None
    if array is None or array.dtype.kind not in "biuf":  # texts, or integers of more than 64 bits
        names = sorted(kind.__name__ for kind in kinds)
        return Argument(kind, None, {"dtype": " | ".join(names), "shape": shape or [len(level)], **_NO_STATISTICS})
    return Argument(kind, None, {"dtype": str(array.dtype), "shape": shape or [len(level)], **_statistics(array)})


_MAX_NESTING = 8
_NESTS = frozenset({list, tuple})
_NUMBERS = frozenset({bool, int, float})
_PLAIN_ITEMS = SCALARS | {complex, bytes, type(None)}


def _describe_complex(value: complex) -> Argument:
    # In parentheses, because mindstudio-probe rejects texts that begin with a minus sign.
    return Argument(type(value).__name__, f"({value.real!r}{value.imag:+}j)")


def _describe_bytes(value: bytes | bytearray) -> Argument:
    return Argument(type(value).__name__, _bytes_text(bytes(value)))


def _describe_slice(bounds: Any) -> Argument:
    parts = (bounds.start, bounds.stop, bounds.step)
    return Argument("slice", [int(part) if isinstance(part, int) else None for part in parts])


def _describe_type(value: type) -> Argument:
    name = value.__qualname__ if value.__module__ == "builtins" else f"{value.__module__}.{value.__qualname__}"
    return Argument("type", name)


def _describe_set(items: set[Any] | frozenset[Any]) -> Argument | None:
    if not set(map(type, items)) <= _PLAIN_ITEMS:
        return None
    # Sorted: the order of a set differs from run to run.
    text = ", ".join(sorted(map(repr, items)))
    return Argument(type(items).__name__, _cut(f"{{{text}}}"))


_DESCRIPTIONS: tuple[tuple[Any, Callable[[Any], Argument | None]], ...] = (
    (complex, _describe_complex),
    ((bytes, bytearray), _describe_bytes),
    (slice, _describe_slice),
    (np.dtype, lambda value: Argument("numpy.dtype", str(value))),
    (range, lambda value: Argument("range", repr(value))),
    (type(...), lambda _: Argument("ellipsis", "...")),
    (Enum, lambda value: Argument("enum", _cut(f"{type(value).__qualname__}.{value.name}"))),
    (type, _describe_type),
    ((set, frozenset), _describe_set),
)


def _describe_numpy(value: Any) -> Argument | None:
    if not hasattr(value, "dtype") or not hasattr(value, "ndim"):
        return None
    kind = value.dtype.kind
    if value.ndim == 0:
        if kind not in "biuf":
            return Argument(str(value.dtype), _cut(str(value)))
        # item() of a long double returns a long double, which JSON cannot store.
        return Argument(str(value.dtype), float(value) if kind == "f" else value.item())
    statistics: dict[str, Any] = _statistics(value) if kind in "biufc" and value.size else _NO_STATISTICS
    return Argument("numpy.ndarray", None, {"dtype": str(value.dtype), "shape": list(value.shape), **statistics})


def _statistics(array: Any) -> dict[str, Any]:
    # Long doubles, which the statistics do not support.
    if array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    stats = statistics_of(array)
    return {"Max": stats.max, "Min": stats.min, "Mean": stats.mean, "Norm": stats.l2_norm}


_NO_STATISTICS: dict[str, Any] = dict.fromkeys(("Max", "Min", "Mean", "Norm"))


def _bytes_text(content: bytes) -> str:
    if len(content) <= _MAX_BYTES:
        return repr(content)
    return f"{content[:_MAX_BYTES]!r}… ({len(content)} bytes, CRC-32 {zlib.crc32(content):08x})"


def _cut(value: Any) -> Any:
    """Return a text unchanged if it is short; otherwise its beginning, its length and its checksum."""
    if not isinstance(value, str) or len(value) <= MAX_TEXT:
        return value
    checksum = zlib.crc32(value.encode("utf-8", "surrogatepass"))
    return f"{value[:MAX_TEXT]}… ({len(value)} characters, CRC-32 {checksum:08x})"
