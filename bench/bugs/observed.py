"""What peers see of a run, as `bench.bugs.observe` saves it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

OUTPUT, GRADIENT, PARAMETER = "output", "gradient", "parameter"


@dataclass(frozen=True)
class Value:
    """What a hook kept.

    Attributes:
        kind: `OUTPUT`, `GRADIENT` or `PARAMETER`.
        path: Path of the module whose output it is, or that has the parameter.
        name: Name of the tensor.
        tensor: Its value.
    """

    kind: str
    path: str
    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Observed:
    """What peers see of one rank.

    Attributes:
        logs: Of each step, the calls that `DebugMode` logged.
        values: Of each step, what hooks kept, in order.
    """

    logs: list[list[Any]]
    values: list[list[Value]]


def file_of(place: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return place.with_name(f"{place.name}.{rank}.peers")
