"""The placement of a DTensor over ranks, and the position of the local shard in the whole tensor."""

from __future__ import annotations

from typing import Any

import torch.distributed

from msprobe_core.fingerprint import Place, local_offset
from msprobe_core.plugin import Distribution, Placement


def distribution_of(tensor: Any) -> Distribution | None:
    """Return the distribution of a DTensor; ``None`` for any other tensor."""
    mesh, placements, local = (getattr(tensor, name, None) for name in ("device_mesh", "placements", "_local_tensor"))
    if mesh is None or placements is None or local is None:
        return None
    described = tuple(
        Placement(
            type(one).__name__.lstrip("_"),
            getattr(one, "dim", None),
            _text_of(getattr(one, "reduce_op", None)),
            _number_of(getattr(one, "split_factor", None)),
        )
        for one in placements
    )
    shape = tuple(int(size) for size in tensor.shape)
    spread = Distribution(_nested(mesh.mesh.tolist()), described, tuple(int(size) for size in local.shape))
    offset = local_offset(spread, shape, torch.distributed.get_rank())
    return Distribution(spread.device_mesh, described, spread.local_shape, offset)


def place_of(tensor: Any) -> Place | None:
    """Return the position of a DTensor's local shard; ``None`` for other tensors, or if it is not a block."""
    spread = distribution_of(tensor)
    if spread is None or spread.local_offset is None:
        return None
    return Place.of_shard(tuple(tensor.shape), spread.local_offset)


def _nested(ranks: Any) -> Any:
    return tuple(map(_nested, ranks)) if isinstance(ranks, list) else ranks


def _text_of(operation: object) -> str | None:
    # A string or, in PyTorch 2.1, an enum member such as RedOpType.SUM.
    return None if operation is None else str(operation).rpartition(".")[2].lower()


def _number_of(factor: object) -> int | None:
    return int(factor) if isinstance(factor, int) else None
