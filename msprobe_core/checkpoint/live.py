"""Tensors of a running model as a checkpoint has them: fused ones by their parts, under names of the common vocabulary.

A trainer and a serving engine hold one model in different tensors. The engine has queries, keys and values in one, gate
and up in another, all experts of a layer in a third, and rows of padding in its vocabulary. `parts_of` takes tensors of
either apart, so that equal parts have equal keys and equal fingerprints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msprobe_core.checkpoint.canonical import Heads, Order, heads_in, key_of, order_of, qkv_ranges
from msprobe_core.checkpoint.matching import GATE_UP, QKV
from msprobe_core.manifest.facts import Scalar

_EXPERTS = re.compile(r"(.*\.experts)\.(gate_up_proj|w13|down_proj|w2)(?:_weight|_bias|\.weight|\.bias)?$")
"""All experts of a layer in one tensor: of transformers since release 5, and of vLLM and SGLang."""

_GATED = frozenset({"gate_up_proj", "w13"})
_VOCABULARIES = ("embed.weight", "head.weight")


@dataclass(frozen=True)
class ModelSizes:
    """What has to be known of a model to take its tensors apart.

    Attributes:
        heads: Sizes of its attention; ``None`` if unknown: then fused queries, keys and values stay one tensor.
        vocabulary: Number of words; ``None`` if unknown: then rows of padding stay in the tensor.
    """

    heads: Heads | None = None
    vocabulary: int | None = None

    def with_heads_of(self, shapes: Mapping[str, Sequence[int]]) -> ModelSizes:
        """Return the sizes with those of the attention, if unknown, from the shapes of a model's tensors by name.

        The output projection has a column for each row of the queries.
        """
        if self.heads is not None:
            return self
        for name, shape in shapes.items():
            output = shapes.get(name.replace("qkv_proj", "o_proj"))
            if not name.endswith("qkv_proj.weight") or output is None or len(output) != 2:
                continue
            num_q, num_k = output[1], (shape[0] - output[1]) // 2
            width = math.gcd(num_q, num_k)
            if num_k > 0 and shape[0] == num_q + 2 * num_k:
                return replace(self, heads=Heads(num_q // width, num_k // width, width))
        return self

    @classmethod
    def of_settings(cls, settings: Mapping[str, Scalar]) -> ModelSizes:
        """Return the sizes that a model's configuration has, under the names of transformers."""
        vocabulary = settings.get("vocab_size")
        is_count = isinstance(vocabulary, int) and not isinstance(vocabulary, bool) and vocabulary > 0
        return cls(heads_in(settings), vocabulary if is_count else None)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Part:
    """One tensor, or a part of one.

    Attributes:
        key: Name in the common vocabulary.
        name: Stored name; of a part with its place in brackets.
        values: The framework's tensor, a view of the whole one.
    """

    key: str
    name: str
    values: Any


def parts_of(name: str, tensor: Any, shape: Sequence[int], sizes: ModelSizes) -> Iterator[Part]:
    """Yield the parts of a tensor that its counterpart may have as tensors of their own; often the tensor itself.

    Args:
        name: Stored name.
        tensor: Any array that can be sliced.
        shape: Its shape.
        sizes: Sizes of the model.
    """
    experts = _EXPERTS.match(name)
    if experts is not None and len(shape) == 3:
        for number in range(shape[0]):
            of_one = f"{experts[1]}.{number}.{'gate_up_proj' if experts[2] in _GATED else 'down_proj'}.weight"
            yield from _halves_or_whole(key_of(of_one), f"{name}[{number}]", tensor[number], shape[1])
        return
    key = key_of(name)
    if ".qkv." in key and sizes.heads is not None and shape and shape[0] == sizes.heads.num_rows:
        yield from _of_qkv(key, name, tensor, sizes.heads)
    elif "gate_up_proj" in name:
        yield from _halves_or_whole(key, name, tensor, shape[0] if shape else 0)
    elif key in _VOCABULARIES and sizes.vocabulary is not None and shape[0] > sizes.vocabulary:
        yield Part(key, f"{name}[:{sizes.vocabulary}]", tensor[: sizes.vocabulary])
    else:
        yield Part(key, name, tensor)


def _of_qkv(key: str, name: str, tensor: Any, heads: Heads) -> Iterator[Part]:
    head, _, tail = key.rpartition(".qkv.")
    if order_of(name) is Order.GROUPS:  # which no slice is
        yield Part(key, name, tensor)
        return
    for part, ((begin, end),) in zip(QKV, qkv_ranges(heads, Order.PARTS), strict=True):
        yield Part(f"{head}.{part}.{tail}", f"{name}[{part}]", tensor[begin:end])


def _halves_or_whole(key: str, name: str, tensor: Any, num_rows: int) -> Iterator[Part]:
    head, is_fused, tail = key.rpartition(".gate_up.")
    if not is_fused or num_rows % 2:
        yield Part(key, name, tensor)
        return
    middle = num_rows // 2
    for part, values in zip(GATE_UP, (tensor[:middle], tensor[middle:]), strict=True):
        yield Part(f"{head}.{part}.{tail}", f"{name}[{part}]", values)


def other_dtypes(dtype: str, known: Sequence[str] = ("float32", "bfloat16", "float16")) -> list[str]:
    """Return the dtypes to which a tensor of this dtype may be cast on its way; none for other than floating point."""
    return [other for other in known if other != dtype] if dtype in (*known, "float64") else []
