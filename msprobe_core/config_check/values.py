"""Whether two settings mean the same, however they are written.

``1e-4`` is ``0.0001``, ``30s`` is ``0.5min``, ``1GiB`` is ``1024 MiB``, ``True`` is ``on``, and ``torch.bfloat16`` is
``bf16``. A value without a unit is never equal to one with a unit: which unit it has, its program knows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msprobe_core.manifest.facts import Scalar

_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})
_NONE = frozenset({"none", "null", "~"})

_DTYPES = {
    "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "half": "float16",
    "fp32": "float32", "float32": "float32", "float": "float32", "single": "float32", "fp64": "float64",
    "float64": "float64", "double": "float64", "tf32": "tfloat32", "tensorfloat32": "tfloat32",
}  # fmt: skip
_FRAMEWORKS = re.compile(r"^(torch|mindspore|jnp|jax\.numpy|numpy|np|ms|mstype)\.", re.ASCII)

_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]+)", re.ASCII)
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0,
    "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "day": 86400.0, "days": 86400.0,
}  # fmt: skip
"""Not ``m`` and ``d``: a million, metres, days or doubles."""
_BYTES = {
    "b": 1, "byte": 1, "bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20,
    "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_MAX_CHARS = 4096
"""Texts that are longer are compared as they are."""
_RELATIVE = 1e-12
"""Numbers that were printed and read again, or computed in another order, are equal within this."""


def same(target: Scalar, golden: Scalar) -> bool:
    """Whether two settings mean the same."""
    if type(target) is type(golden) and target == golden:
        return True
    return _alike(_plain(target), _plain(golden))


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A number with a unit, in seconds or bytes."""

    kind: str
    amount: float


_Plain: TypeAlias = "bool | int | float | str | _Quantity | list[_Plain] | None"


def _alike(target: _Plain, golden: _Plain) -> bool:
    if isinstance(target, list) and isinstance(golden, list):
        return len(target) == len(golden) and all(map(_alike, target, golden))
    if isinstance(target, _Quantity) and isinstance(golden, _Quantity):
        return target.kind == golden.kind and math.isclose(target.amount, golden.amount, rel_tol=_RELATIVE)
    if isinstance(target, bool) or isinstance(golden, bool):
        return _truth(target) is _truth(golden) is not None
    if isinstance(target, int | float) and isinstance(golden, int | float):
        return _same_number(target, golden)
    return target == golden


def _truth(value: _Plain) -> bool | None:
    """Return a truth value, or 1 and 0 as one: they are compared with it."""
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def _same_number(target: float, golden: float) -> bool:
    if isinstance(target, int) and isinstance(golden, int):
        return target == golden
    try:
        target, golden = float(target), float(golden)
    except OverflowError:
        return target == golden
    return (math.isnan(target) and math.isnan(golden)) or math.isclose(target, golden, rel_tol=_RELATIVE)


def _plain(value: Scalar) -> _Plain:
    """Return a setting as truth value, number, quantity (unit and amount), list of these, ``None`` or text."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) > _MAX_CHARS:
        return text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if len(text) > 1 and text[0] + text[-1] in ("[]", "()"):
        inner = text[1:-1].strip().rstrip(",")
        return [] if not inner else [_word(part) for part in re.split(r"\s*,\s*|\s+", inner)]
    return _word(text)


def _word(text: str) -> _Plain:
    lowered = text.strip("'\"").lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    if lowered in _NONE:
        return None
    number = number_in(lowered)
    if number is not None:
        return number
    if (quantity := _quantity(lowered)) is not None:
        return quantity
    return dtype_in(lowered) or text.strip("'\"")


def number_in(text: str) -> float | None:
    """Return the number that a text is; ``None`` if it is none. Texts such as ``1_000`` are no numbers."""
    if "_" in text or not text or len(text) > 400:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _quantity(text: str) -> _Quantity | None:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    for kind, units in (("s", _SECONDS), ("bytes", _BYTES)):
        if found[2] in units:
            return _Quantity(kind, float(found[1]) * units[found[2]])
    return None


def dtype_in(text: str) -> str | None:
    """Return the dtype that a text names, without its framework, as ``bfloat16``; ``None`` if it names none."""
    return _DTYPES.get(_FRAMEWORKS.sub("", text.strip().lower()))


def as_text(value: Scalar | Sequence[Scalar]) -> str:
    """Return a setting as people read it: floats by their shortest text, an absent value as ``None``."""
    if isinstance(value, float):
        return f"{value:.6g}" if float(f"{value:.6g}") == value else repr(value)
    return str(value)
