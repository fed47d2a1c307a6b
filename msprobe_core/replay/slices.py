"""Slices of large tensors: what is computed of them in float64 then takes little memory, and stays in the cache."""

from __future__ import annotations

_LENGTH = 1 << 16
"""Elements in a slice: half a MiB in float64."""


def slices_of(size: int) -> list[slice]:
    """Return slices that together cover ``size`` elements; there is one at least."""
    return [slice(first, min(first + _LENGTH, size)) for first in range(0, max(size, 1), _LENGTH)]
