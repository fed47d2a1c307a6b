"""Parameters that a framework stores with their dimensions in another order than PyTorch, as its map of names says."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe_core.compare.layouts.rules import Change, LayoutRules, Side, TensorRule
from msprobe_core.compare.layouts.tensors import relaid
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import Dump
from msprobe_core.protocols.trainers import ApiMap


def in_canonical_order(targets: Sequence[Dump], goldens: Sequence[Dump]) -> tuple[list[Dump], list[Dump]]:
    """Return the dumps of both sides with parameters and their gradients in PyTorch's order of dimensions.

    Dumps of one framework stay as they are, as both sides store their parameters alike.
    """
    sides = (Side.TARGET, targets), (Side.GOLDEN, goldens)
    if len({dump.header.framework for _, dumps in sides for dump in dumps}) == 1:
        return list(targets), list(goldens)
    maps = registry().api_maps()
    target, golden = (
        [relaid(dump, _rules(maps.get(dump.header.framework), side), side) for dump in dumps] for side, dumps in sides
    )
    return target, golden


def _rules(words: ApiMap | None, side: Side) -> LayoutRules:
    if words is None:
        return LayoutRules()
    return LayoutRules(
        tensors=tuple(
            TensorRule("", type_name, (name,), side, Change.PERMUTE, tuple(order))
            for type_name, parameters in words.permuted.items()
            for name, order in parameters.items()
        )
    )
