"""Limits of differences: by precision, by pattern of names, and exemptions.

The conventional limits are data, ``limits.yaml`` next to this module. A file of the same form, and limits given on the
command line, override them; a `LimitTable` has the limits of one comparison.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import polars as pl

from msprobe_core.config.text import read_yaml
from msprobe_core.errors import ConfigError, UnknownFieldError


class Precision(IntEnum):
    """Floating-point formats, from finest to coarsest."""

    FLOAT64 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8 = 4


UNIT_ROUNDOFF: dict[Precision, float] = {
    Precision.FLOAT64: 2.0**-53,
    Precision.FLOAT32: 2.0**-24,
    Precision.FLOAT16: 2.0**-11,
    Precision.BFLOAT16: 2.0**-8,
    Precision.FLOAT8: 2.0**-4,
}
"""Largest relative error of one rounding to nearest. Source: Higham, *Accuracy and Stability*, 2nd ed., sec. 2.1."""

LOWEST_FINITE = (-65504.0, -3.3895313892515355e38, -3.4028234663852886e38, -1.7976931348623157e308)
"""Smallest finite number of float16, bfloat16, float32 and float64, which masks use as minus infinity."""

_PRECISIONS: tuple[tuple[str, Precision], ...] = (
    ("float64|double", Precision.FLOAT64),
    ("bfloat16", Precision.BFLOAT16),
    ("float16|half", Precision.FLOAT16),
    ("float8|float4|hifloat8|fp8|fp4|hif8", Precision.FLOAT8),
    ("float32|float|complex64|complex128", Precision.FLOAT32),
)
"""The first pattern found in a lower-case dtype decides; frameworks spell dtypes differently."""

_KINDS = (
    ("complex", "complex"),
    ("float|half|double|fp8|fp4|hif8", "float"),
    ("bool", "bool"),
    ("int|long|short|byte|char", "int"),
)

_MAX_FILE_BYTES = 1 << 20
"""Maximum size of a limits file."""


@dataclass(frozen=True)
class LimitOverride:
    """A limit for rows whose name contains a match of a pattern. All of its terms that are not ``None`` apply.

    Attributes:
        pattern: Regular expression in the syntax of the Rust crate ``regex``, whose time is linear in the text.
        text: The limit as given.
        source: Where it was given, such as ``--limit`` or a file.
        rel: Largest relative error, dimensionless.
        abs: Largest absolute difference.
        cos: Smallest cosine similarity.
        ulp: Largest difference in units in the last place.
        is_ignored: Whether the rows pass with any values.
    """

    pattern: str
    text: str
    source: str
    rel: float | None = None
    abs: float | None = None
    cos: float | None = None
    ulp: float | None = None
    is_ignored: bool = False

    @property
    def origin(self) -> str:
        """The limit's origin and text, for messages."""
        return f"{self.source} '{self.pattern}' '{self.text}'"


_Size = Annotated[float, msgspec.Meta(ge=0)]


class RelativeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Largest relative error that passes, by precision, measured as in `msprobe_core.judge.statistics_columns`."""

    float64: _Size
    float32: _Size
    float16: _Size
    bfloat16: _Size
    float8: _Size

    def of(self, precision: Precision) -> float:
        """Return the limit of a precision."""
        return float(getattr(self, precision.name.lower()))


class LimitTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one comparison; ``limits.yaml`` describes the fields."""

    relative: RelativeLimits
    scalar: _Size
    vanishing_roundoffs: _Size
    explained_roundoffs: _Size
    uninitialised: tuple[str, ...]
    rectifiers: tuple[str, ...]
    parameters: Mapping[str, tuple[int, ...]]
    overrides: tuple[LimitOverride, ...] = ()

    def with_overrides(self, overrides: Sequence[LimitOverride]) -> LimitTable:
        """Return the table with ``overrides`` after its own, so that they take precedence."""
        return msgspec.structs.replace(self, overrides=(*self.overrides, *overrides))

    def limit_of(self, precision: pl.Expr) -> pl.Expr:
        """Return the limit for a column of `Precision` integers; 0 for null, because other dtypes are exact."""
        return _look_up(precision, {p: self.relative.of(p) for p in Precision})

    def vanishing_share_of(self, precision: pl.Expr) -> pl.Expr:
        """Return the share of a value's sources below which it is rounding noise; never more than the limit."""
        return pl.min_horizontal(self.vanishing_roundoffs * roundoff_of(precision), self.limit_of(precision))

    def summary(self) -> dict[str, Any]:
        """Return the limits in force for ``summary.json``."""
        listed = [{"pattern": o.pattern, "limit": o.text, "source": o.source} for o in self.overrides]
        return {**msgspec.structs.asdict(self.relative), "scalar": self.scalar, "overrides": listed}


@cache
def conventional() -> LimitTable:
    """Return the limits of this package."""
    path = Path(__file__).with_suffix(".yaml")
    return _table_of(_read(path), path)


def load_limits(path: Path | str) -> LimitTable:
    """Return the limits of this package, overridden by those of a file of the same form.

    Raises:
        ConfigError: the file cannot be read, or has unknown fields or invalid limits.
    """
    path = Path(path)
    shipped = Path(__file__).with_suffix(".yaml")
    given = _read(path)
    fields = _read(shipped)
    unknown = sorted(set(given) - set(fields), key=str)
    if unknown:
        raise UnknownFieldError(f"{path}: '{unknown[0]}' is unknown; the fields are {', '.join(fields)}")
    relative = given.get("relative")
    if isinstance(relative, dict):
        given["relative"] = {**fields["relative"], **cast("dict[str, Any]", relative)}
    return _table_of({**fields, **given}, path)


def _read(path: Path) -> dict[str, Any]:
    loaded = read_yaml(path, kind="a file of limits", advice="give a yaml file of limits", max_bytes=_MAX_FILE_BYTES)
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in cast("dict[Any, Any]", loaded)):
        raise ConfigError(f"{path}: must hold fields such as 'relative' and 'overrides', each with a value")
    return cast("dict[str, Any]", loaded)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    limit: str


def _table_of(fields: Mapping[str, Any], path: Path) -> LimitTable:
    own = dict(fields)
    listed = own.pop("overrides")
    try:
        # Not strict, because YAML 1.1 parses 1e-3 without a point as text.
        table = msgspec.convert(own, LimitTable, strict=False)
        entries = msgspec.convert([] if listed is None else listed, tuple[_Entry, ...])
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}; see docs/compare.md for the form of a file of limits") from error
    return table.with_overrides([parse_limit(entry.pattern, entry.limit, str(path)) for entry in entries])


_TERM = re.compile(r"(rel|abs|cos|ulp)\s*(<=|>=)\s*([0-9.eE+-]+|inf)")
_FORM = "give 'rel<=X', 'abs<=X', 'ulp<=N', 'cos>=X', several joined by ' and ', or 'ignore'"


def parse_limit(pattern: str, text: str, source: str = "--limit") -> LimitOverride:
    """Return the limit ``text`` for rows whose name contains a match of ``pattern``.

    The grammar: ``ignore``, or terms joined by ``and``. A term is ``rel``, ``abs`` or ``ulp``, ``<=`` and a number >=
    0, or ``cos``, ``>=`` and a number from -1 to 1; ``inf`` is a number too. Each at most once.

    Args:
        pattern: Regular expression that is searched in row names; without look-around and back-references.
        text: The limit.
        source: Where it was given, for messages.

    Raises:
        ConfigError: one of the two is invalid.
    """
    _check_pattern(pattern, source)
    shown = " ".join(text.split())
    if shown == "ignore":
        return LimitOverride(pattern, shown, source, is_ignored=True)
    limits: dict[str, float] = {}
    for term in shown.split(" and "):
        name, limit = _term(term, f"{source}: the limit '{shown}' for '{pattern}'")
        if name in limits:
            raise ConfigError(f"{source}: the limit '{shown}' for '{pattern}' has '{name}' twice; give it once")
        limits[name] = limit
    return replace(LimitOverride(pattern, shown, source), **limits)


def _term(term: str, where: str) -> tuple[str, float]:
    found = _TERM.fullmatch(term.strip())
    if found is None:
        raise ConfigError(f"{where} is not of the right form at '{term}'; {_FORM}")
    name, sign, number = found.groups()
    if sign != (">=" if name == "cos" else "<="):
        raise ConfigError(f"{where}: '{name}' takes '{'>=' if name == 'cos' else '<='}'; {_FORM}")
    try:
        limit = float(number)
    except ValueError as error:
        raise ConfigError(f"{where}: '{number}' is no number; {_FORM}") from error
    lowest, highest = (-1.0, 1.0) if name == "cos" else (0.0, math.inf)
    if not lowest <= limit <= highest:
        raise ConfigError(f"{where}: {number} is not between {lowest:g} and {highest:g}; {_FORM}")
    return name, limit


def _check_pattern(pattern: str, source: str) -> None:
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.PolarsError as error:
        lines = [line.strip() for line in str(error).split("\n\n")[0].splitlines() if line.strip()]
        reason = lines[-1].removeprefix("error: ").removeprefix("regex error: ") if lines else "it cannot be read"
        raise ConfigError(
            f"{source}: '{pattern}' is no regular expression that can be used: {reason}; to mean a character such as "
            "'(' itself, write a backslash before it"
        ) from error


def precision_of(dtype: str | None) -> Precision | None:
    """Return the precision of a dtype; ``None`` for dtypes that are not floating-point."""
    return _first(dtype, _PRECISIONS)


def kind_of(dtype: str | None) -> str | None:
    """Return ``float``, ``complex``, ``int`` or ``bool`` for a dtype; ``None`` for any other."""
    return _first(dtype, _KINDS)


def _first(dtype: str | None, patterns: Sequence[tuple[str, Any]]) -> Any:
    if dtype is None:
        return None
    lowered = dtype.lower()
    return next((found for pattern, found in patterns if re.search(pattern, lowered)), None)


def roundoff_of(precision: pl.Expr) -> pl.Expr:
    """Return the unit round-off for a column of `Precision` integers; 0 for null."""
    return _look_up(precision, UNIT_ROUNDOFF)


def _look_up(precision: pl.Expr, table: Mapping[Precision, float]) -> pl.Expr:
    return precision.replace_strict({int(p): n for p, n in table.items()}, default=0.0, return_dtype=pl.Float64)
