"""Statistics or the hash of a tensor on a GPU in one kernel that reads it once. Needs Triton, which comes with PyTorch.

Each tensor is one launch; its programs write their results to rows of a preallocated buffer. At the end of the window,
a few operators combine the rows of all tensors of a kind. The number of programs depends only on the number of
elements, and each adds in a fixed order, so that equal tensors have equal statistics.

Not imported if Triton is not installed.
"""

# Triton's functions are not Python functions, and it is not installed everywhere.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})

NUMBERS = 6
"""Per tensor: maximum, minimum, sum, sum of squares, NaN, infinities, as float64. The extremes ignore NaN."""

_BLOCK = 2048
_WARPS = 8
_PROGRAMS = ((1 << 14, 1), (1 << 20, 32), (1 << 63, 512))
"""Pairs of a maximum number of elements and the number of programs for a tensor of that size."""

_CHUNK = 64
"""Number of tensors for which rows are allocated at a time."""


@triton.jit
def _moments(pointer, count, rows, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803
    program = tl.program_id(0).to(tl.int64)
    high = tl.full([BLOCK], -float("inf"), WIDE)
    low = tl.full([BLOCK], float("inf"), WIDE)
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    num_nan = tl.zeros([BLOCK], tl.int64)
    num_inf = tl.zeros([BLOCK], tl.int64)
    for begin in range(program * BLOCK, count, tl.num_programs(0) * BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        is_inside = offsets < count
        x = tl.load(pointer + offsets, mask=is_inside, other=0).to(WIDE)
        is_nan = x != x
        is_number = is_inside & (x == x)
        high = tl.maximum(high, tl.where(is_number, x, -float("inf")))
        low = tl.minimum(low, tl.where(is_number, x, float("inf")))
        wide = x.to(tl.float64)
        total += wide
        squares += wide * wide
        num_nan += is_nan.to(tl.int64)
        num_inf += (tl.abs(x) == float("inf")).to(tl.int64)
    row = rows + program * 6
    tl.store(row, tl.max(high).to(tl.float64))
    tl.store(row + 1, tl.min(low).to(tl.float64))
    tl.store(row + 2, tl.sum(total))
    tl.store(row + 3, tl.sum(squares))
    tl.store(row + 4, tl.sum(num_nan).to(tl.float64))
    tl.store(row + 5, tl.sum(num_inf).to(tl.float64))


_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST, _SECOND = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
"""See `msprobe_core.fingerprint.hash_of`."""


@triton.jit
def _hashed(pointer, count, rows, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803
    program = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.uint64)
    for begin in range(program * BLOCK, count, tl.num_programs(0) * BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        is_inside = offsets < count
        bits = tl.load(pointer + offsets, mask=is_inside, other=0).to(tl.int64)
        word = bits.to(tl.uint64, bitcast=True) + (offsets + 1).to(tl.uint64) * _GAMMA
        word = (word ^ (word >> 30)) * _FIRST
        word = (word ^ (word >> 27)) * _SECOND
        total += tl.where(is_inside, word ^ (word >> 31), 0)
    tl.store(rows + program, tl.sum(total).to(tl.int64, bitcast=True))


def hash_word(words: Tensor) -> Tensor:
    """Enqueue the hash of a non-empty contiguous tensor of signed integers, the bits of another one.

    Returns: int64, 0-d.
    """
    count = words.numel()
    num_programs = next(programs for most, programs in _PROGRAMS if count <= most)
    rows = torch.empty(num_programs, dtype=torch.int64, device=words.device)
    with torch.cuda.device_of(words):
        _hashed[(num_programs,)](words, count, rows, BLOCK=_BLOCK, num_warps=_WARPS)
    return rows[0] if num_programs == 1 else rows.sum()


class FusedMoments:
    """Rows of the tensors of one window on one device."""

    def __init__(self, device: torch.device) -> None:
        """Begin empty; buffers are reused from window to window."""
        self._device = device
        self._chunks: dict[int, list[Tensor]] = {num_programs: [] for _, num_programs in _PROGRAMS}
        self._taken = dict.fromkeys(self._chunks, 0)

    def add(self, values: Tensor) -> tuple[int, int]:
        """Enqueue the reduction of a non-empty tensor of one of `DTYPES`, without waiting.

        Returns: a key for `place_of`.
        """
        values = values.contiguous().resolve_neg()
        num_programs = next(programs for most, programs in _PROGRAMS if values.numel() <= most)
        index = self._taken[num_programs]
        self._taken[num_programs] += 1
        chunks = self._chunks[num_programs]
        if index >= len(chunks) * _CHUNK:
            chunks.append(torch.empty((_CHUNK, num_programs, NUMBERS), dtype=torch.float64, device=self._device))
        rows = chunks[index // _CHUNK][index % _CHUNK]
        wide = tl.float64 if values.dtype is torch.float64 else tl.float32
        with torch.cuda.device_of(values):  # Triton launches on the current device
            _moments[(num_programs,)](values, values.numel(), rows, WIDE=wide, BLOCK=_BLOCK, num_warps=_WARPS)
        return num_programs, index

    def place_of(self, added: tuple[int, int]) -> int:
        """Return the index of a tensor's numbers in the result of `finish`; call it before `finish`."""
        num_programs, index = added
        before = sum(taken for kind, taken in self._taken.items() if kind < num_programs)
        return NUMBERS * (before + index)

    def finish(self) -> Tensor:
        """Return the `NUMBERS` of each tensor as a vector of float64 on the device, and begin empty again."""
        numbers: list[Tensor] = []
        for num_programs in sorted(self._chunks):
            taken = self._taken[num_programs]
            if not taken:
                continue
            rows = torch.cat(self._chunks[num_programs])[:taken]
            extremes = torch.stack((rows[..., 0].amax(1), rows[..., 1].amin(1)), 1)
            numbers.append(torch.cat((extremes, rows[..., 2:].sum(1)), 1).reshape(-1))
            self._taken[num_programs] = 0
        return torch.cat(numbers)
