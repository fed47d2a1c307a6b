"""Restriction of recording to a range of the models' forwards (``token_range``)."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any


class ForwardWindow:
    """Tracks whether a selected forward of a model is running; implements `CallWatcher`.

    Each model counts its forwards from 0. A forward inside another model's forward belongs to the outer one.
    """

    def __init__(self, first: int, last: int, roots: Collection[str]) -> None:
        """Begin to count.

        Args:
            first: First forward to record.
            last: Last forward to record, included.
            roots: Paths of the models.
        """
        self._first = first
        self._last = last
        self._roots = frozenset(roots)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._depth = 0
        self._is_selected = False

    @property
    def is_inside(self) -> bool:
        """Whether a selected forward is running, on any thread."""
        return self._is_selected and self._depth > 0

    @property
    def covers_parameters(self) -> bool:
        """Whether parameter gradients that arrive now are recorded: those after the start of a selected forward."""
        return self._is_selected

    def wants(self, path: str, type_name: str) -> bool:  # noqa: ARG002
        """Whether ``path`` is one of the models."""
        return path in self._roots

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        """Count a forward that begins."""
        with self._lock:
            if self._depth == 0:
                number = self._counts.get(stem, 0)
                self._counts[stem] = number + 1
                self._is_selected = self._first <= number <= self._last
            self._depth += 1

    def after(self, stem: str) -> None:  # noqa: ARG002
        """Note that a forward has ended."""
        with self._lock:
            self._depth -= 1
