"""Reference formulas of the fused attention of `torch_npu`, forward and backward.

Source: documentation of ``torch_npu.npu_fusion_attention`` and of the operator ``aclnnFlashAttentionScoreV2``
(Ascend Extension for PyTorch 7.3, CANN 8.5)::

    out = Dropout(Softmax(Mask(scale * (pse + query @ key^T), atten_mask)), keep_prob) @ value

What the documentation leaves open, such as a query that may attend to nothing, is refused rather than guessed.
Shapes: B sequences, N heads, S positions, D elements per head, H = N * D, T positions of all sequences together.
"""

# ruff: noqa: ARG001  # dumps hold arguments that change nothing here
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msprobe_core.plugin import ReplayError

_MOST_SCORES = 1 << 27
"""Largest number of scores of one sequence; these are not bounded by the sizes of inputs and results."""

_COMPRESSED = 2048
"""Rows and columns of the masks that stand for a triangle of any size."""

_REPEATS = 8
"""Each maximum and each sum of a row is repeated, since the hardware's blocks have 32 bytes."""


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Any, ...]:
    """Return the result, the maxima and sums of the rows of softmax, a reserved tensor, and seed, offset and length.

    The last three belong to dropout, which is not replayed. Maxima and sums: ``[B, N, S, 8]``, of ``TND``
    ``[T, N, 8]``, in single precision.
    """
    return _forward(
        _Inputs(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen, softmax_layout),
        _Scores(scale, pse, 1, _Mask(atten_mask, sparse_mode, pre_tockens, next_tockens, prefix)),
        _refusals(padding_mask=padding_mask, sink=sink, keep_prob=keep_prob),
    )


def npu_fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Any = None,
    kv_start_idx: Any = None,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Any, ...]:
    """As `npu_fusion_attention`; ``pse_type`` 0 adds ``pse`` after scaling, 1 before."""
    return _forward(
        _Inputs(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen, softmax_layout),
        _Scores(scale, pse, pse_type, _Mask(atten_mask, sparse_mode, pre_tokens, next_tokens, prefix)),
        _refusals(padding_mask=padding_mask, sink=sink, keep_prob=keep_prob, query_rope=query_rope, key_rope=key_rope),
    )


def npu_fusion_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None,
    attention_in: Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value, ``pse`` and ``sink``; of the last two empty ones if not given.

    Maxima, sums and result of the forward are taken as given: in ring attention they are those of all blocks of keys.
    """
    return _backward(
        _Inputs(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen, softmax_layout),
        _Scores(scale_value, pse, 1, _Mask(atten_mask, sparse_mode, pre_tockens, next_tockens, prefix)),
        _Saved(dy, softmax_max, softmax_sum, attention_in),
        _refusals(padding_mask=padding_mask, sink=sink, keep_prob=keep_prob),
    )


def npu_fusion_attention_grad_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None,
    attention_in: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Any = None,
    kv_start_idx: Any = None,
    softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """As `npu_fusion_attention_grad`, with the ``pse_type`` of `npu_fusion_attention_v2`."""
    return _backward(
        _Inputs(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen, softmax_layout),
        _Scores(scale_value, pse, pse_type, _Mask(atten_mask, sparse_mode, pre_tokens, next_tokens, prefix)),
        _Saved(dy, softmax_max, softmax_sum, attention_in),
        _refusals(padding_mask=padding_mask, sink=sink, keep_prob=keep_prob, query_rope=query_rope, key_rope=key_rope),
    )


def _refusals(keep_prob: float, **arguments: Tensor | None) -> None:
    if keep_prob != 1.0:
        raise ReplayError("its dropout draws random numbers on the device, which no replay draws again")
    if given := [name for name, value in arguments.items() if value is not None and value.numel()]:
        raise ReplayError(f"no reference is written for fused attention with {given[0]}")


# --- masks --------------------------------------------------------------------------------------------------------


class _Mask(NamedTuple):
    tensor: Tensor | None
    sparse_mode: int
    before: int
    after: int
    prefix: Sequence[int] | None

    def hidden(self, scores: Tensor, place: int, is_packed: bool) -> Tensor | None:
        """Return which of the scores ``[B, N, Sq, Skv]`` do not count, to be broadcast; ``None`` if all count.

        Args:
            scores: Only their shape is used.
            place: Number of the first sequence, for ``prefix``.
            is_packed: Whether this is one of several sequences, so that a full mask is that of the longest.
        """
        if self.tensor is None:
            return None
        rows, columns = scores.shape[-2:]
        if self.sparse_mode in (0, 1, 5):
            mask = self.tensor.bool()
            mask = mask[..., :rows, :columns] if is_packed else mask
            if tuple(mask.shape[-2:]) != (rows, columns):
                raise ReplayError(f"its mask has the shape {list(mask.shape)}, and the scores {list(scores.shape)}")
            return mask
        if self.sparse_mode not in (2, 3, 4, 6):
            raise ReplayError(f"no reference is written for fused attention with sparse_mode {self.sparse_mode}")
        self._check_compressed()
        every = torch.ones(rows, columns, dtype=torch.bool, device=scores.device)
        # Modes 3, 4 and 6 count from the lower right corner.
        corner = columns - rows if self.sparse_mode != 2 else 0
        if self.sparse_mode == 4:
            return every.triu(corner + self.after + 1) | every.tril(corner - self.before - 1)
        causal = every.triu(corner + 1)
        if self.sparse_mode != 6:
            return causal
        lengths = list(self.prefix or ())[place : place + scores.shape[0]]
        if len(lengths) != scores.shape[0]:
            raise ReplayError("its prefix has not one number per sequence")
        ends = torch.tensor(lengths, device=scores.device)[:, None, None, None]
        return causal & (torch.arange(columns, device=scores.device) >= ends)

    def _check_compressed(self) -> None:
        mask = self.tensor
        assert mask is not None
        has_rectangle = self.sparse_mode == 6
        if tuple(mask.shape[-2:]) != (_COMPRESSED + (1024 if has_rectangle else 0), _COMPRESSED):
            raise ReplayError(
                f"with sparse_mode {self.sparse_mode} its mask stands for a triangle, but has the shape "
                f"{list(mask.shape)}"
            )
        triangle = mask.reshape(-1, _COMPRESSED)[:_COMPRESSED].bool()
        if not torch.equal(triangle, torch.ones_like(triangle).triu(1)):
            raise ReplayError(f"with sparse_mode {self.sparse_mode} its mask stands for a triangle, and is none")


# --- one sequence, or sequences of equal length ---------------------------------------------------------------------


class _Scores(NamedTuple):
    scale: float
    pse: Tensor | None
    pse_type: int
    mask: _Mask

    def of(self, query: Tensor, key: Tensor, place: int, is_packed: bool) -> tuple[Tensor, Tensor | None]:
        """Return the scores ``[B, N, Sq, Skv]`` and which of them do not count."""
        if query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] > _MOST_SCORES:
            raise ReplayError(f"its scores have more than {_MOST_SCORES:,} elements")
        scores = query @ key.transpose(-1, -2)
        if self.pse is None or not self.pse.numel():
            scores = scores * self.scale
        elif is_packed or self.pse.ndim != 4 or self.pse.shape[-2] not in (1, scores.shape[-2]):
            raise ReplayError(f"no reference is written for pse of the shape {list(self.pse.shape)} here")
        elif self.pse_type == 1:
            scores = (scores + self.pse) * self.scale
        elif self.pse_type == 0:
            scores = scores * self.scale + self.pse
        else:
            raise ReplayError(f"no reference is written for pse_type {self.pse_type}")
        hidden = self.mask.hidden(scores, place, is_packed)
        if hidden is None:
            return scores, None
        if bool(hidden.all(-1).any()):
            raise ReplayError("one of its queries may attend to nothing, and what comes out then is not documented")
        return scores.masked_fill(hidden, -torch.inf), hidden


class _Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    head_num: int
    layout: str
    query_ends: Any
    key_ends: Any
    softmax_layout: str

    @property
    def is_packed(self) -> bool:
        return self.layout == "TND"

    def spans(self) -> list[tuple[slice, slice]]:
        """Return the positions of each sequence in query and key; those of equal length are one."""
        if not self.is_packed:
            return [(slice(None), slice(None))]
        rows, columns = _spans(self.query_ends, self.query), _spans(self.key_ends, self.key)
        if len(rows) != len(columns):
            raise ReplayError("its lists of sequence lengths differ in length")
        return list(zip(rows, columns, strict=True))

    def sequence(self, row: slice, column: slice, *others: Tensor) -> tuple[Tensor, ...]:
        """Return query, key, value and others, which have the query's positions, as ``[B, N, S, D]``."""
        if self.is_packed:
            query, *rest = (each[row].transpose(0, 1)[None] for each in (self.query, *others))
            key, value = (each[column].transpose(0, 1)[None] for each in (self.key, self.value))
            return (query, *self._like_query(key, value, query), *rest)
        if self.layout not in _JOIN:
            raise ReplayError(f"no reference is written for fused attention of the layout {self.layout!r}")
        key_heads = self._key_heads()
        if key_heads == self.head_num:
            all_of_them = (self.query, self.key, self.value, *others)
            query, key, value, *rest = (_split(each, self.head_num, self.layout) for each in all_of_them)
            return (query, *self._like_query(key, value, query), *rest)
        query, *rest = (_split(each, self.head_num, self.layout) for each in (self.query, *others))
        key, value = (_split(each, key_heads, self.layout) for each in (self.key, self.value))
        return (query, *self._like_query(key, value, query), *rest)

    def _key_heads(self) -> int:
        if self.layout in ("BNSD", "TND"):
            return self.key.shape[1]
        if self.layout == "BSND":
            return self.key.shape[2]
        if self.head_num < 1 or self.query.shape[-1] % self.head_num:
            raise ReplayError(f"its query of the shape {list(self.query.shape)} has not {self.head_num} heads")
        return self.key.shape[-1] // max(self.query.shape[-1] // self.head_num, 1)

    def _like_query(self, key: Tensor, value: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        heads, key_heads = self.head_num, self._key_heads()
        if query.shape[1] != heads or not key_heads or heads % key_heads:
            raise ReplayError(f"its query has {query.shape[1]} heads, its key {key_heads}, and head_num is {heads}")
        # Grouped-query attention: consecutive heads of the query share one of the key.
        times = heads // key_heads
        if times == 1:
            return key, value
        return key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)

    def joined(self, sequences: Sequence[Tensor]) -> Tensor:
        """Put ``[B, N, S, D]`` back into the layout."""
        if self.is_packed:
            return torch.cat([each[0].transpose(0, 1) for each in sequences])
        (only,) = sequences
        return _JOIN[self.layout](only)

    def statistics(self, sequences: Sequence[Tensor]) -> Tensor:
        """Put numbers of rows ``[B, N, S, 1]`` into the form in which the operator returns them."""
        wide = [each.expand(*each.shape[:-1], _REPEATS) for each in sequences]
        if not self.is_packed:
            return wide[0]
        if self.softmax_layout == "TND":
            return torch.cat([each[0].transpose(0, 1) for each in wide])
        # The shape is that of ``TND``, but each sequence is stored as ``[N, S, 8]``.
        total, heads = self.query.shape[:2]
        return torch.cat([each.reshape(-1, _REPEATS) for each in wide]).reshape(total, heads, _REPEATS)

    def row(self, statistics: Tensor, span: slice) -> Tensor:
        """Undo `statistics` for one sequence."""
        if not self.is_packed:
            return statistics[..., :1]
        if self.softmax_layout == "TND":
            return statistics[span, :, :1].transpose(0, 1)[None]
        total, heads = self.query.shape[:2]
        flat = statistics.reshape(total * heads, -1)[:, :1]
        return flat[span.start * heads : span.stop * heads].reshape(1, heads, -1, 1)


def _split(tensor: Tensor, heads: int, layout: str) -> Tensor:
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "BSH":
        return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)
    return tensor.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


_JOIN: dict[str, Callable[[Tensor], Tensor]] = {
    "BNSD": lambda tensor: tensor,
    "BSND": lambda tensor: tensor.transpose(1, 2),
    "BSH": lambda tensor: tensor.transpose(1, 2).flatten(2),
    "SBH": lambda tensor: tensor.permute(2, 0, 1, 3).flatten(2),
}


def _spans(ends: Any, tensor: Tensor) -> list[slice]:
    """Return the positions of each sequence; ``ends`` are the sums of the lengths up to each of them."""
    numbers = [int(end) for end in (ends.tolist() if isinstance(ends, Tensor) else ends or ())]
    begins = [0, *numbers[:-1]]
    if not numbers or numbers[-1] != tensor.shape[0] or any(b > e for b, e in zip(begins, numbers, strict=True)):
        raise ReplayError(f"its sequence lengths do not add up to the {tensor.shape[0]} positions of its tensors")
    return [slice(begin, end) for begin, end in zip(begins, numbers, strict=True)]


# --- forward and backward -------------------------------------------------------------------------------------------


class _Saved(NamedTuple):
    gradient: Tensor
    maxima: Tensor | None
    sums: Tensor | None
    result: Tensor | None


class _Sequence(torch.autograd.Function):
    """Attention of one sequence, or of several of equal length, ``[B, N, S, D]``; rounds where the kernels round."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pse: Tensor | None,
        scores: _Scores,
        place: int,
        packed: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype, inner = query.dtype, inner_dtype(query.dtype)
        # An argument too, because of its gradient.
        scores = scores._replace(pse=pse)
        found, _ = scores.of(query.to(inner), key.to(inner), place, packed)
        largest = found.amax(-1, keepdim=True)
        weights = (found - largest).exp()
        total = weights.sum(-1, keepdim=True)
        weights = weights / total
        # The matrix product takes weights in the precision of the inputs.
        result = (weights.to(dtype).to(inner) @ value.to(inner)).to(dtype)
        ctx.save_for_backward(query, key, value, result, weights)
        ctx.rest = scores
        ctx.mark_non_differentiable(largest, total)
        return result, largest, total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        query, key, value, result, weights = ctx.saved_tensors
        found = _gradients(query, key, value, gradients[0], result, weights, ctx.rest)
        return *found, None, None, None


def _gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gradient: Tensor,
    result: Tensor,
    weights: Tensor,
    scores: _Scores,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of query, key, value and ``pse``.

    With P = exp(S - max) / sum, the weights: dV = P^T dY, and dS = P * (dY V^T - rowsum(dY * Y)). P and dS are rounded
    before the matrix products, as Y is. Source: Dao, *FlashAttention-2*, 2023, algorithm 2.
    """
    dtype, inner = query.dtype, inner_dtype(query.dtype)
    q, k, v, change, output = (each.to(inner) for each in (query, key, value, gradient, result))
    exact = weights * (change @ v.transpose(-1, -2) - (change * output).sum(-1, keepdim=True))
    into_scores, weights = (each.to(dtype).to(inner) for each in (exact, weights))
    into_query = into_scores @ k * scores.scale
    into_key = into_scores.transpose(-1, -2) @ q * scores.scale
    into_value = weights.transpose(-1, -2) @ change
    into_pse = None
    if scores.pse is not None and scores.pse.numel():
        into_pse = exact.sum_to_size(scores.pse.shape) * (scores.scale if scores.pse_type == 1 else 1.0)
        into_pse = into_pse.to(scores.pse.dtype)
    return into_query.to(dtype), into_key.to(dtype), into_value.to(dtype), into_pse


def _forward(inputs: _Inputs, scores: _Scores, _: None) -> tuple[Any, ...]:
    results: list[Tensor] = []
    maxima: list[Tensor] = []
    sums: list[Tensor] = []
    for place, (row, column) in enumerate(inputs.spans()):
        sequence = inputs.sequence(row, column)
        result, largest, total = _Sequence.apply(*sequence, scores.pse, scores, place, inputs.is_packed)
        results.append(result)
        maxima.append(largest)
        sums.append(total)
    empty = results[0].new_empty(0)
    return inputs.joined(results), inputs.statistics(maxima), inputs.statistics(sums), empty, 0, 0, 0


def _backward(inputs: _Inputs, scores: _Scores, saved: _Saved, _: None) -> tuple[Tensor, ...]:
    maxima, sums, result = saved.maxima, saved.sums, saved.result
    if maxima is None or sums is None or result is None:
        result, maxima, sums = _forward(inputs, scores, None)[:3]
    leaves = [each.detach().requires_grad_() for each in (inputs.query, inputs.key, inputs.value)]
    ours = inputs._replace(query=leaves[0], key=leaves[1], value=leaves[2])
    parts: list[Tensor] = []
    slopes: list[Tensor] = []
    into_pse: Tensor | None = None
    for place, (row, column) in enumerate(inputs.spans()):
        # Autograd undoes layouts and shared heads.
        with torch.enable_grad():
            query, key, value, gradient, output = ours.sequence(row, column, saved.gradient, result)
        q, k, v = (each.detach() for each in (query, key, value))
        inner = inner_dtype(q.dtype)
        numbers = scores.of(q.to(inner), k.to(inner), place, inputs.is_packed)[0]
        weights = (numbers - inputs.row(maxima, row)).exp() / inputs.row(sums, row)
        *found, into_pse = _gradients(q, k, v, gradient, output, weights, scores)
        parts.extend((query, key, value))
        slopes.extend(found)
    gradients = torch.autograd.grad(parts, leaves, slopes)
    empty = inputs.query.new_empty(0)
    return *gradients, empty if into_pse is None else into_pse, empty


def inner_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that a fused kernel computes in between: at least single precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
