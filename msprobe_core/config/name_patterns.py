"""Patterns of names: text, and stars for any text, including none; matched in time linear in the name's length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class NamePattern:
    """A pattern such as ``*.mlp.fc1``.

    Not a regular expression: for several stars Python's engine backtracks, and takes minutes for one long name.
    """

    text: str

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name."""
        return self.stars_in(name) is not None

    def stars_in(self, name: str) -> tuple[str, ...] | None:
        """Return the text matched by each star, the first as long as possible; ``None`` without a match."""
        first, last = self._parts[0], self._parts[-1]
        if len(self._parts) == 1:
            return () if name == first else None
        if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
            return None
        # Match from the end, so that the first star takes the most text; on reversed text, because Python searches
        # forwards
        # faster.
        backwards = name[::-1]
        begin, end = len(last), len(name) - len(first)
        stars: list[str] = []
        for part in self._backwards:
            place = backwards.find(part, begin, end)
            if place < 0:
                return None
            stars.append(backwards[begin:place][::-1])
            begin = place + len(part)
        stars.append(backwards[begin:end][::-1])
        return tuple(reversed(stars))

    @cached_property
    def _parts(self) -> list[str]:
        return self.text.split("*")

    @cached_property
    def _backwards(self) -> list[str]:
        """The texts between the stars, the last first, each reversed."""
        return [part[::-1] for part in reversed(self._parts[1:-1])]
