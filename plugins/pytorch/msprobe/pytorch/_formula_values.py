"""What is known of a formula while its code is evaluated for one call."""

from __future__ import annotations

import ast
import inspect
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msprobe.pytorch._script_formula import PACKAGE
from msprobe_core.interception import literal
from msprobe_core.plugin import ReplayError


class UnknownError(Exception):
    """Something must be known that only the values or dtypes of tensors decide."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Known:
    """A value of the evaluated code.

    Attributes:
        value: What it is in the call.
        code: Expression of it in the written code; ``None`` for what exists only while code is evaluated.
        is_plain: Whether it does not depend on values of tensors, so that it may be written as what it is.
        varies: Whether it differs from turn to turn of a loop.
        parts: What it consists of: items of a tuple or list, or fields of a named tuple, if they are known one by one.
    """

    value: Any
    code: ast.expr | None
    is_plain: bool = False
    varies: bool = False
    parts: Sequence[Known] | Mapping[str, Known] | None = None


@dataclass(eq=False)
class Frame:
    """Names of a function that is evaluated."""

    module: types.ModuleType
    names: dict[str, Known] = field(default_factory=dict[str, Known])
    outer: Frame | None = None

    def find(self, name: str) -> Known | None:
        if name in self.names:
            return self.names[name]
        return None if self.outer is None else self.outer.find(name)


@dataclass(frozen=True, eq=False)
class Closure:
    """A function that is defined inside of a formula."""

    node: ast.FunctionDef | ast.Lambda
    frame: Frame


class Context:
    """The first argument of the methods of a `torch.autograd.Function`."""

    def __init__(self) -> None:
        self.saved: tuple[Any, ...] = ()
        self.rest: dict[str, Known] = {}


def plain(value: Any) -> Known:
    """Return a known value that is written as a literal."""
    return Known(value=value, code=literal_code(value), is_plain=True)


class Star(tuple[Any, ...]):
    """Values that are passed on as several arguments."""

    __slots__ = ()


def values_of(args: Sequence[Known]) -> list[Any]:
    return [item for each in args for item in (each.value if isinstance(each.value, Star) else [each.value])]


def known(value: Any) -> Known:
    """Return an argument, which may be several of them."""
    if isinstance(value, Known):
        return value
    if isinstance(value, dict):
        parts: dict[str, Known] = {key: known(each) for key, each in value.items()}
        return Known(value={key: each.value for key, each in parts.items()}, code=None, parts=parts)
    if isinstance(value, tuple) and any(isinstance(each, Known) for each in value):
        return tuple_of([known(each) for each in value])
    if is_plain(value):
        return plain(value)
    return Known(value=value, code=None, is_plain=True)


def apply_defaults(bound: inspect.BoundArguments) -> None:
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        bound.arguments[name] = known(value)


def needed(found: Known, gradients: frozenset[int] | None) -> Known:
    """Return results without those after the last tensor that is judged, or that a gradient is taken of."""
    items = items_of(found)
    if items is None:
        return found
    kept = [each if gradients is None or i in gradients else plain(None) for i, each in enumerate(items)]
    while kept and kept[-1].is_plain:
        kept.pop()
    return kept[0] if len(kept) == 1 else tuple_of(kept, type(found.value) if type(found.value) is list else tuple)


def tuple_of(items: Sequence[Known], kind: type = tuple) -> Known:
    items = list(items)
    value = kind(each.value for each in items)
    if all(each.is_plain and is_plain(each.value) for each in items):
        return replace(plain(value), parts=items)
    return Known(value=value, code=None, parts=items, varies=any(each.varies for each in items))


def items_of(value: Known) -> list[Known] | None:
    """Return the items of a sequence that is known one by one."""
    if isinstance(value.parts, Sequence):
        return list(value.parts)
    if value.is_plain and isinstance(value.value, tuple | list | range):
        return [plain(each) for each in value.value]
    if isinstance(value.code, ast.Name) and isinstance(value.value, tuple | list) and not value.varies:
        return [unknown(each, ast.Subscript(value.code, ast.Constant(i)), value) for i, each in enumerate(value.value)]
    return None


def unknown(value: Any, code: ast.expr, origin: Known) -> Known:
    return Known(value=value, code=code, varies=origin.varies)


def is_computed(value: Known) -> bool:
    """Whether the code of a value is more than a name or a literal."""
    if value.is_plain or isinstance(value.parts, Mapping):
        return False
    if isinstance(value.parts, Sequence) and value.code is None:
        return any(map(is_computed, value.parts))
    return value.code is not None and not isinstance(value.code, ast.Name) and not _is_item(value.code)


def is_dtype(code: ast.expr | None) -> bool:
    return isinstance(code, ast.Attribute) and code.attr == "dtype" and isinstance(code.value, ast.Name)


def _is_item(code: ast.expr) -> bool:
    return isinstance(code, ast.Subscript) and isinstance(code.value, ast.Name) and isinstance(code.slice, ast.Constant)


def is_equal(one: Known, other: Known | None) -> bool:
    return other is not None and one.is_plain and other.is_plain and one.value == other.value


def is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    if isinstance(value, slice):
        return all(is_plain(each) for each in (value.start, value.stop, value.step))
    return value is None or value is ... or isinstance(value, bool | int | float | str)


def literal_code(value: Any) -> ast.expr:
    if isinstance(value, float) and math.isinf(value):
        return ast.parse("torch.inf" if value > 0 else "-torch.inf", mode="eval").body
    try:
        return ast.parse(literal(value), mode="eval").body
    except ReplayError as error:
        raise UnknownError(type(value).__name__) from error


def is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").startswith(PACKAGE) and hasattr(value, "__qualname__")


def all_parts(values: Any) -> Iterator[Known]:
    for each in values:
        if isinstance(each, Known):
            yield each
        elif isinstance(each, tuple | dict):
            yield from all_parts(each.values() if isinstance(each, dict) else each)
