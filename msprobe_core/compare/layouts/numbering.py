"""Numbers of layers and experts in paths of modules: local to a rank, or those of the whole model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

_NUMBERED = re.compile(r"\d+", re.ASCII)


def holds_experts(container: str) -> bool:
    """Whether the numbers in a container are those of experts, by its name."""
    return "experts" in container


def holds_layers(container: str) -> bool:
    """Whether the numbers in a container are those of layers."""
    return "experts" not in container


def number_in_path(path: str, is_container: Callable[[str], bool]) -> tuple[str, int, int] | None:
    """Return container, number and position of the outermost number in a path that is inside a container.

    Args:
        path: Of a module or parameter, with dots.
        is_container: Whether numbers are meant, by the part of the path before them.
    """
    parts = path.split(".")
    for i, part in enumerate(parts):
        if _NUMBERED.fullmatch(part) and is_container(parts[i - 1] if i else ""):
            return ".".join(parts[:i]), int(part), i
    return None


def are_global(have: Mapping[int, set[int]]) -> bool:
    """Whether the numbers at all coordinates are distinct, so that they are those of the whole model already."""
    seen: set[int] = set()
    for numbers in have.values():
        if seen & numbers:
            return False
        seen |= numbers
    return True


def offset_at(have: Mapping[int, set[int]], place: int, first: Sequence[int]) -> int:
    """Return what is added to numbers at a coordinate to get those of the whole model.

    Args:
        have: Numbers at each coordinate of an axis.
        place: The coordinate.
        first: First number at each coordinate, if declared.
    """
    if place < len(first):
        return first[place] - min(have[place])
    if are_global(have):
        return 0
    return sum(max(numbers) + 1 for other, numbers in have.items() if other < place)
