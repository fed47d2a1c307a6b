"""How one tensor was made of another: which rows, columns or parts changed places, each verified by reading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from msprobe_core.checkpoint.boxes import Array, Box, boxes_of, read_box, values_of
from msprobe_core.checkpoint.canonical import Heads, Order, qkv_ranges
from msprobe_core.checkpoint.contents import LogicalTensor
from msprobe_core.checkpoint.difference_codes import DifferenceCode
from msprobe_core.checkpoint.pair_pass import chunk_elements, same_codes
from msprobe_core.checkpoint.signatures import Signature, permutation_of, split_of
from msprobe_core.compare.ulps import distances_in
from msprobe_core.findings import Finding, Level

Permutation: TypeAlias = Array


class Relation(str, Enum):
    """What a comparison says of a tensor."""

    EQUAL = "equal"
    CAST = "cast"
    PADDED = "padded"
    CLOSE = "close"
    SCALED = "scaled"
    SHIFTED = "shifted"
    TRANSPOSED = "transposed"
    QKV_ORDER = "qkv order"
    GATE_UP = "gate/up swapped"
    ROTARY = "rotary order"
    HEADS = "heads permuted"
    ROWS = "rows permuted"
    EXPERTS = "experts permuted"
    MISPLACED = "misplaced"
    TIED_BROKEN = "tied-broken"
    STALE = "stale"
    UNINITIALISED = "uninitialised"
    UNRELATED = "unrelated"
    PARTLY = "partly different"
    REORDERED = "reordered"
    DIFFERENT = "different"
    SHAPE = "another shape"
    REPLICAS = "replicas differ"
    DAMAGED = "damaged"
    ONLY_TARGET = "only in target"
    ONLY_GOLDEN = "only in golden"
    BUFFER = "buffer of one side"


SAME = frozenset({Relation.EQUAL, Relation.CAST, Relation.PADDED, Relation.BUFFER})
"""Relations of a tensor that is the same on both sides."""


@dataclass(frozen=True)
class Answer:
    """How a tensor was made of its counterpart.

    Attributes:
        relation: The class.
        proof: What was verified.
    """

    relation: Relation
    proof: Finding


def structure_of(
    target: LogicalTensor, golden: LogicalTensor, signatures: tuple[Signature, Signature], key: str, heads: Heads | None
) -> Answer | None:
    """Return how two tensors of equal or transposed shape are made of the same rows or columns; ``None`` if not."""
    if target.shape == golden.shape:
        split = split_of(target.shape)
        for first, lines in ((0, [each.rows for each in signatures]), (split, [each.columns for each in signatures])):
            order = permutation_of(*lines)
            dims = target.shape[first:split] if first < split else target.shape[split:]
            found = None if order is None or not num_moved(order) else _along_one(order, dims)
            if found is not None and has_order(target, golden, found[1], first + found[0]):
                return named_order(found[1], key, heads, along=first + found[0], ndim=len(target.shape))
    if len(target.shape) > 1 and target.shape[:-2] + target.shape[:-3:-1] == golden.shape:
        return _transposed(target, golden, signatures)
    return None


def _along_one(order: Permutation, dims: Sequence[int]) -> tuple[int, Permutation] | None:
    """Return the dimension along which an order of the indices of several moves them, and the order along it."""
    if len(dims) == 1:
        return 0, order
    ramp: Any = np.arange(order.size)
    whole: Any = ramp.reshape(dims)
    for axis in range(len(dims)):
        line = np.reshape(order, dims)[tuple(slice(None) if d == axis else 0 for d in range(len(dims)))]
        own: Any = np.unravel_index(line, dims)[axis]
        if np.array_equal(np.take(whole, own, axis).ravel(), order):
            return axis, own
    return None


def _transposed(target: LogicalTensor, golden: LogicalTensor, signatures: tuple[Signature, Signature]) -> Answer | None:
    # A stack of matrices has no numbers to compare, and is read; unequal elements end that soon.
    may_be = len(target.shape) > 2 or _are_close(signatures[0].rows, signatures[1].columns)
    if may_be and is_transpose(target, golden):
        return Answer(Relation.TRANSPOSED, Finding(DifferenceCode.TRANSPOSED, Level.ERROR))
    return None


def num_moved(order: Permutation) -> int:
    """Return the number of lines that are not in their place."""
    is_moved: Any = order != np.arange(order.size)
    return int(is_moved.sum())


def _are_close(first: Array | None, second: Array | None) -> bool:
    if first is None or second is None or first.size != second.size or not first.size:
        return False
    scale = float(np.abs(second).max())
    return math.isfinite(scale) and scale > 0 and float(np.abs(first - second).max()) <= 1e-9 * scale


def are_same(target: Array, golden: Array, dtypes: tuple[str, str]) -> bool:
    """Whether elements are equal, or equal after rounding to the coarser dtype."""
    if dtypes[0] == dtypes[1]:
        return same_codes(target, golden)
    first, second = np.ravel(values_of(target, dtypes[0])), np.ravel(values_of(golden, dtypes[1]))
    distances = distances_in(*dtypes)
    if distances is None:
        return bool(np.array_equal(first, second))
    return float(distances(first, second).max(initial=0)) == 0


def has_rows(target: LogicalTensor, golden: LogicalTensor, order: Permutation) -> bool:
    """Whether each row of the target is the golden row that ``order`` names."""
    dtypes = target.dtype, golden.dtype
    inner = max(1, target.numel // max(1, order.size))
    step = max(1, chunk_elements(target, golden) // inner)
    num_read = 0
    for begin in range(0, order.size, step):
        index = order[begin : begin + step]
        own = read_box(target, Box((begin, *[0] * (len(target.shape) - 1)), (index.size, *target.shape[1:])))
        other, count = _gathered(golden, index)
        num_read += count
        if not are_same(own, other, dtypes):
            return False
        if num_read > _MOST_READS:  # scattered rows of a large vocabulary: those read so far are the sample
            break
    return True


_MOST_READS = 20_000


def _gathered(tensor: LogicalTensor, index: Permutation) -> tuple[Array, int]:
    """Return some rows, in the order of ``index``, and the number of reads."""
    low, high = int(index.min()), int(index.max()) + 1
    rest = tensor.shape[1:]
    if high - low <= 4 * index.size:
        window = read_box(tensor, Box((low, *[0] * len(rest)), (high - low, *rest)))
        return window[index - low], 1
    breaks = np.flatnonzero(np.diff(index) != 1) + 1
    runs = np.split(index, breaks)
    parts = [read_box(tensor, Box((int(run[0]), *[0] * len(rest)), (run.size, *rest))) for run in runs]
    return np.concatenate(parts), len(runs)


def has_order(target: LogicalTensor, golden: LogicalTensor, order: Permutation, axis: int) -> bool:
    """Whether what the target has at each index of a dimension is golden at the index that ``order`` names."""
    if axis == 0:
        return has_rows(target, golden, order)
    for box, _ in boxes_of(target.shape, chunk_elements(target, golden)):
        begin, size = box.begin[axis], box.sizes[axis]
        part = order[begin : begin + size]
        low, high = int(part.min()), int(part.max()) + 1
        place = Box(_replaced(box.begin, axis, low), _replaced(box.sizes, axis, high - low))
        moved = np.take(read_box(golden, place), part - low, axis)
        if not are_same(read_box(target, box), moved, (target.dtype, golden.dtype)):
            return False
    return True


def _replaced(numbers: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*numbers[:axis], value, *numbers[axis + 1 :])


def is_transpose(target: LogicalTensor, golden: LogicalTensor) -> bool:
    """Whether the target is golden with its last two dimensions exchanged."""
    for box, _ in boxes_of(target.shape, chunk_elements(target, golden)):
        place = Box((*box.begin[:-2], *box.begin[:-3:-1]), (*box.sizes[:-2], *box.sizes[:-3:-1]))
        own, other = read_box(target, box), read_box(golden, place)
        if not are_same(own, np.ascontiguousarray(np.swapaxes(other, -1, -2)), (target.dtype, golden.dtype)):
            return False
    return True


def named_order(order: Permutation, key: str, heads: Heads | None, *, along: int, ndim: int) -> Answer:
    """Return what a verified order of rows or columns is, by the tensor's key and the sizes of its attention.

    Args:
        order: For each line of the target, the golden line.
        key: Name in the common vocabulary.
        heads: Sizes of the attention.
        along: The dimension: 0 for rows.
        ndim: Number of dimensions of the tensor.
    """
    fields: dict[str, str | int | float | None] = {"moved": num_moved(order), "total": order.size}
    if ".qkv." in key or ".kv." in key:
        ranges = _qkv_ranges(order.size, heads)
        if ranges is None or _changes_range(order, ranges):
            return Answer(Relation.QKV_ORDER, Finding(DifferenceCode.QKV_ORDER, Level.ERROR, fields))
    if ".gate_up." in f"{key}.":
        half = order.size // 2
        if _changes_range(order, [(0, half), (half, order.size)]):
            return Answer(Relation.GATE_UP, Finding(DifferenceCode.GATE_UP, Level.ERROR, fields))
    if ndim == 3 and along == 0:
        return Answer(Relation.EXPERTS, Finding(DifferenceCode.EXPERTS_INSIDE, Level.ERROR, fields))
    width = _rotary_width(order, heads)
    if width is not None:
        return Answer(Relation.ROTARY, Finding.of(DifferenceCode.ROTARY, Level.ERROR, **fields, width=width))
    block = _block_of(order)
    is_of_attention = ".attn." in key or "ttention" in key
    if block > 1 and is_of_attention:
        return Answer(Relation.HEADS, Finding.of(DifferenceCode.HEADS, Level.ERROR, **fields, width=block))
    what = ("columns" if along == ndim - 1 else "slices") if along else "rows"
    return Answer(Relation.ROWS, Finding.of(DifferenceCode.ROWS, Level.ERROR, **fields, what=what))


def _changes_range(order: Permutation, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether a line comes from another range of lines."""
    labels = np.zeros(order.size, np.int64)
    for number, (begin, end) in enumerate(ranges):
        labels[begin:end] = number
    return bool((labels != labels[order]).any())


def _qkv_ranges(size: int, heads: Heads | None) -> list[tuple[int, int]] | None:
    if heads is None or heads.num_rows != size:
        return None
    # Which of the two conventions the name has does not matter: either maps a part to itself only if order is kept.
    return [each for own in qkv_ranges(heads, Order.GROUPS) for each in own]


def _rotary_width(order: Permutation, heads: Heads | None) -> int | None:
    """Return the size of heads if in each of them halves were interleaved, or the reverse."""
    widths = [heads.head_dim] if heads is not None else []
    widths += [width for width in (256, 192, 128, 96, 80, 64, 32, 16, 8) if width not in widths]
    for width in widths:
        if order.size % width or width % 2:
            continue
        begins: Any = np.arange(0, order.size, width)
        blocks: Any = np.reshape(order, (-1, width)) - begins.reshape(-1, 1)
        ramp: Any = np.arange(width)
        halves: Any = ramp.reshape(2, -1).T.reshape(-1)
        patterns: list[Any] = [halves, np.argsort(halves)]
        if any(num_moved(pattern) and (blocks == pattern).all() for pattern in patterns):
            return width
    return None


def _block_of(order: Permutation) -> int:
    """Return the largest number of lines that stay together throughout."""
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    return math.gcd(order.size, *breaks.tolist())


def stack_order(rows: Sequence[tuple[Array, Array]]) -> Permutation | None:
    """Return the order of the rows of several tensors, one below the other; see `permutation_of`."""
    return permutation_of(np.concatenate([own for own, _ in rows]), np.concatenate([other for _, other in rows]))


def relation_of_keys(target: str, golden: str) -> Relation:
    """Return what it means that a tensor's values are those of another golden tensor."""
    from msprobe_core.checkpoint.canonical import without_expert, without_part

    if without_part(target) == without_part(golden):
        return Relation.GATE_UP if any(f".{part}." in target for part in ("gate", "up")) else Relation.QKV_ORDER
    if without_expert(target) == without_expert(golden):
        return Relation.EXPERTS
    return Relation.MISPLACED


CODE_OF: Mapping[Relation, DifferenceCode] = {
    Relation.QKV_ORDER: DifferenceCode.QKV_PARTS,
    Relation.GATE_UP: DifferenceCode.ELSEWHERE,
    Relation.EXPERTS: DifferenceCode.EXPERTS,
    Relation.MISPLACED: DifferenceCode.ELSEWHERE,
}
"""Code of the proof that values are those of another tensor."""
