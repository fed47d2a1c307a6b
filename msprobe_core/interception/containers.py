"""Content of the containers among the arguments and results of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast


def children_of(value: Any) -> Mapping[Any, Any] | Sequence[Any] | None:
    """Return the content of a container; ``None`` if ``value`` is not a container."""
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value)
    if isinstance(value, tuple | list):
        items = cast("Sequence[Any]", value)
        fields = getattr(items, "_fields", None)
        return items if fields is None else dict(zip(fields, items, strict=False))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None
