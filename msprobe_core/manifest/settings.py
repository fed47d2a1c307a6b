"""Settings of any objects as scalars by path: configurations, arguments, attributes of modules."""

from __future__ import annotations

import dataclasses
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from os import PathLike
from typing import Any, cast

from msprobe_core.manifest.facts import Scalar

MOST_SETTINGS = 4096
"""Settings that `flattened` returns at most."""

_MAX_TEXT = 400
_MAX_ITEMS = 16
_MAX_DEPTH = 12
_MAX_INTEGER = 1 << 63


def flattened(value: object, *, prefix: str = "") -> dict[str, Scalar]:
    """Return the settings in an object by their dotted paths, for example ``model.rope_parameters.rope_theta``.

    Mappings, dataclasses, `argparse.Namespace` and objects with ``to_dict`` are taken apart; so are sequences of them,
    with positions as names. Other objects are left out, unless `scalar_of` knows a text for them.

    Args:
        value: Settings of any kind.
        prefix: Beginning of all paths, without a dot at its end.
    """
    found: dict[str, Scalar] = {}
    for path, scalar in _walk(value, prefix, 0, set()):
        if len(found) == MOST_SETTINGS:
            break
        found[path] = scalar
    return found


def _walk(value: object, path: str, depth: int, within: set[int]) -> Iterator[tuple[str, Scalar]]:
    is_setting, scalar = scalar_of(value)
    if is_setting:
        yield path, scalar
        return
    if depth == _MAX_DEPTH or id(value) in within:
        return
    items = _items_of(value)
    if items is not None:
        within.add(id(value))
        for name, item in items:
            yield from _walk(item, f"{path}.{name}" if path else name, depth + 1, within)
        within.discard(id(value))


def _items_of(value: Any) -> list[tuple[str, object]] | None:
    """Return the named parts of an object; ``None`` if it has none."""
    if isinstance(value, type):
        return None
    try:
        if not isinstance(value, Mapping) and callable(getattr(value, "to_dict", None)):
            value = value.to_dict()
        if isinstance(value, Mapping):
            return [(str(name), item) for name, item in list(cast("Mapping[Any, object]", value).items())]
        if dataclasses.is_dataclass(value):
            return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
        if isinstance(value, Namespace):
            return list(vars(value).items())
        if isinstance(value, list | tuple):
            return [(str(place), item) for place, item in enumerate(cast("Sequence[object]", value))]
    except Exception:  # noqa: BLE001  # an object of the program; what cannot be read is left out
        return None
    return None


def scalar_of(value: Any) -> tuple[bool, Scalar]:
    """Return whether an object is a setting by itself, and the scalar that stands for it.

    Numbers, text and ``None`` stand for themselves. Members of enumerations, functions, classes, paths, and short
    sequences of scalars become text; so do numbers that JSON cannot hold.
    """
    kind = cast("Any", type(value))
    if value is None or kind is bool:
        return True, value
    if kind is int:
        return True, value if -_MAX_INTEGER <= value < _MAX_INTEGER else f"{value:#x}"[:_MAX_TEXT]
    if kind is float:
        return True, value if math.isfinite(value) else str(value)
    if kind is tuple or kind is list:  # before the rest, which takes longer to rule out
        return _sequence(value)
    if isinstance(value, str) and not isinstance(value, Enum):
        return True, _text(str(value))
    return _other_scalar(value)


def _other_scalar(value: Any) -> tuple[bool, Scalar]:
    try:
        if isinstance(value, Enum):
            return True, _text(str(value.name))
        if isinstance(value, PathLike):
            return True, _text(str(cast("PathLike[Any]", value)))
        if isinstance(value, list | tuple | set | frozenset):
            return _sequence(cast("Sequence[object]", value))
        if isinstance(value, partial):
            return True, f"partial({name_of(cast('partial[Any]', value).func)})"
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return scalar_of(value.item())
        if type(value).__name__ == "dtype":
            return True, _text(str(value).rpartition(".")[2])
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return True, _text(name_of(value))
    except Exception:  # noqa: BLE001  # an object of the program
        return False, None
    return False, None


def _sequence(value: Any) -> tuple[bool, Scalar]:
    if len(value) > _MAX_ITEMS:
        return False, None
    items: list[Any] = list(value)
    if isinstance(value, set | frozenset):
        items.sort(key=str)
    parts = [scalar_of(item) for item in items]
    if not all(is_setting for is_setting, _ in parts):
        return False, None
    return True, _text(f"[{', '.join(str(part) for _, part in parts)}]")


def name_of(value: Any) -> str:
    """Return the full name of a class or function; of another object, that of its class."""
    if isinstance(value, partial):
        return name_of(cast("partial[Any]", value).func)
    named: Any = value if hasattr(value, "__qualname__") else cast("Any", type(value))
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)


def _text(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
