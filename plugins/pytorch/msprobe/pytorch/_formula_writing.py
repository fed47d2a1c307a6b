"""Code that is written while a formula is evaluated for one call: statements, and names that are not taken."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from msprobe.pytorch._formula_values import (
    Known,
    UnknownError,
)


class Place(NamedTuple):
    """What was written at some time."""

    lengths: Sequence[int]
    names: frozenset[str]
    kept: Mapping[str, Any]


class Writing:
    """Writes statements, in blocks inside each other."""

    def __init__(self) -> None:
        """Begin without any."""
        self.kept: dict[str, Any] = {}
        self._blocks: list[list[ast.stmt]] = [[]]
        self._names: set[str] = set()

    def _write(self, statement: ast.stmt) -> None:
        self._blocks[-1].append(ast.fix_missing_locations(statement))

    def _place(self) -> Place:
        return Place([len(each) for each in self._blocks], frozenset(self._names), dict(self.kept))

    def _return_to(self, place: Place) -> None:
        """Remove what was written since."""
        for block, length in zip(self._blocks, place.lengths, strict=True):
            del block[length:]
        self._names, self.kept = set(place.names), dict(place.kept)

    @contextmanager
    def _block(self) -> Iterator[list[ast.stmt]]:
        self._blocks.append([])
        try:
            yield self._blocks[-1]
        finally:
            self._blocks.pop()

    def _fresh(self, name: str) -> str:
        stem = name.lstrip("_") or "each"
        found, number = stem, 1
        while found in self._names or hasattr(builtins, found) or found in ("torch", "np", "math"):
            number += 1
            found = f"{stem}_{number}"
        self._names.add(found)
        return found

    def _code(self, value: Known) -> ast.expr:
        """Return the expression of a value."""
        if value.code is not None and not (value.parts is not None and isinstance(value.code, ast.GeneratorExp)):
            return value.code
        if isinstance(value.parts, Sequence):
            parts = [self._code(each) for each in value.parts]
            return ast.List(parts) if isinstance(value.value, list) else ast.Tuple(parts)
        raise UnknownError("something that is not written")
