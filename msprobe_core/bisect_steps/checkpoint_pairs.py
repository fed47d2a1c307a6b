"""The checkpoints of two trainings, by step, and how far apart two of them are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msprobe_core.checkpoint.contents import Kind
from msprobe_core.checkpoint.declared_ranks import files_of_ranks
from msprobe_core.checkpoint.matching import Match, match_tensors
from msprobe_core.checkpoint.opening import TENSOR_ENDINGS, open_checkpoint
from msprobe_core.checkpoint.pair_pass import compare_pair
from msprobe_core.compare.tensor_metrics import Workspace
from msprobe_core.config.ranges import format_ranges
from msprobe_core.errors import CompareError, DumpError

PLACE = "{step}"
"""Stands for the number of the step in the pattern of a path."""


def checkpoints_of(pattern: str) -> Mapping[int, Path]:
    """Return the existing paths of a pattern by step, ascending.

    Args:
        pattern: A path with ``{step}`` in its last part, such as ``run/checkpoint-{step}``; zeros in front do not
            count.

    Raises:
        CompareError: the pattern has no such place, or no path fits it.
    """
    path = Path(pattern)
    begin, mark, end = path.name.partition(PLACE)
    if not mark or PLACE in end or PLACE in str(path.parent):
        raise CompareError(f"{pattern}: needs {PLACE} once, in its last part, such as run/checkpoint-{PLACE}")
    name = re.compile(rf"{re.escape(begin)}0*(\d{{1,15}}){re.escape(end)}")
    try:
        found = {int(match[1]): each for each in path.parent.iterdir() if (match := name.fullmatch(each.name))}
    except OSError as error:
        raise CompareError(f"{path.parent}: cannot be read ({error.strerror}); it is to hold {path.name}") from error
    if not found:
        raise CompareError(f"{path.parent}: holds no {path.name}, where {PLACE} is the number of a step")
    return dict(sorted(found.items()))


def distance_of(target: Path, golden: Path) -> float:
    """Return how far apart the weights of two checkpoints are, relative to the golden ones that differ.

    Directories with a file for each rank that do not say how these form the model are compared rank by rank.

    Returns: Euclidean distance of all weights over the golden norm of those that differ; 0 if all are equal, Inf if a
        tensor is on one side only, has another shape, or NaN elsewhere.

    Raises:
        DumpError: a checkpoint cannot be read, also not rank by rank.
        CompareError: they have no weights in common, or files of other ranks.
    """
    pairs = list(_pairs(target, golden))
    workspace = Workspace()
    squares = norms = 0.0
    num_compared = 0
    for pair in pairs:
        if pair.target is None or pair.golden is None:
            lone = pair.target or pair.golden
            if lone is not None and lone.tensor.kind is Kind.WEIGHT:
                return math.inf
            continue
        if pair.target.tensor.shape != pair.golden.tensor.shape:
            return math.inf
        numbers = compare_pair(pair.target.tensor, pair.golden.tensor, workspace)
        num_compared += 1
        if numbers.is_same:
            continue
        if numbers.has_other_nan:
            return math.inf
        squares += numbers.l2**2
        norms += numbers.norms[1] ** 2
    if not num_compared:
        raise CompareError(f"{target} and {golden} have no weights in common; compare them with `msprobe checkpoint`")
    return math.sqrt(squares / norms) if norms else (math.inf if squares else 0.0)


def _pairs(target: Path, golden: Path) -> Iterator[Match]:
    """Yield the tensors of two checkpoints by pairs, none of which is damaged."""
    try:
        yield from _whole_pairs(target, golden)
    except DumpError:
        try:
            own, other = (files_of_ranks(each, TENSOR_ENDINGS) for each in (target, golden))
        except (DumpError, OSError):
            own = other = {}
        if not own:
            raise
        if own.keys() != other.keys():
            ranks = " and ".join(", ".join(format_ranges(each)) for each in (own, other))
            raise CompareError(
                f"{target} and {golden} have files of other ranks, {ranks}; give checkpoints of the same ranks"
            ) from None
        for rank, file in own.items():
            yield from _whole_pairs(file, other[rank])


def _whole_pairs(target: Path, golden: Path) -> list[Match]:
    pairs = match_tensors(open_checkpoint(target), open_checkpoint(golden), [Kind.WEIGHT, Kind.BUFFER]).pairs
    for pair in pairs:
        for path, slot in ((target, pair.target), (golden, pair.golden)):
            if slot is not None and slot.tensor.damage is not None:
                raise DumpError(f"{path}: {slot.tensor.name} cannot be compared: {slot.tensor.damage}")
    return list(pairs)
