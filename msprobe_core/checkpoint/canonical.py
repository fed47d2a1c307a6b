"""Names of parameters that several frameworks have for the same tensor, in one vocabulary.

`key_of` translates names of Hugging Face's models, of Megatron-core and of Megatron's former releases: the layer's
number, then ``attn.q``, ``attn.qkv``, ``mlp.gate_up``, ``mlp.experts.3.down`` and so on. Unknown names keep their own
words, so that equal names always have equal keys.

Sources: the state dictionaries of transformers 5.2 (Llama, Qwen2-MoE, GPT-2, GPT-NeoX, Mixtral, Phi-3, DeepSeek-V3) and
of Megatron-core 0.14 (`docs/user-guide`, ``megatron/core/models/gpt``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from msprobe_core.manifest.facts import Scalar


class Order(str, Enum):
    """Order of the rows of a fused projection."""

    GROUPS = "group by group"
    PARTS = "part by part"


_WRAPPERS = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "flattened"}
)
"""Segments that wrappers add anywhere in a name."""

_ROOTS = frozenset({"model", "language_model", "transformer", "gpt_neox", "base_model", "backbone", "embedding"})
"""Segments that are left out before the first layer."""

_STACKS = frozenset({"encoder", "decoder"})

_SEGMENTS: Mapping[str, str] = {
    "h": "layers", "layer": "layers",
    "self_attention": "attn", "self_attn": "attn", "attention": "attn",
    "linear_qkv": "qkv", "query_key_value": "qkv", "qkv_proj": "qkv", "c_attn": "qkv", "Wqkv": "qkv",
    "q_proj": "q", "linear_q": "q", "k_proj": "k", "linear_k": "k", "v_proj": "v", "linear_v": "v",
    "o_proj": "o", "linear_proj": "o", "out_proj": "o",
    "linear_q_proj": "q", "linear_q_down_proj": "q_down", "q_a_proj": "q_down", "linear_q_up_proj": "q_up",
    "q_b_proj": "q_up", "linear_kv_down_proj": "kv_down", "kv_a_proj_with_mqa": "kv_down",
    "linear_kv_up_proj": "kv_up", "kv_b_proj": "kv_up", "q_a_layernorm": "q_up_norm", "kv_a_layernorm": "kv_up_norm",
    "linear_fc1": "gate_up", "dense_h_to_4h": "gate_up", "gate_up_proj": "gate_up", "c_fc": "gate_up", "fc1": "gate_up",
    "gate_proj": "gate", "up_proj": "up", "w1": "gate", "w3": "up", "w2": "down",
    "linear_fc2": "down", "dense_4h_to_h": "down", "down_proj": "down", "fc2": "down",
    "block_sparse_moe": "mlp", "feed_forward": "mlp",
    "input_layernorm": "attn_norm", "input_norm": "attn_norm", "ln_1": "attn_norm",
    "post_attention_layernorm": "mlp_norm", "pre_mlp_layernorm": "mlp_norm", "post_attention_norm": "mlp_norm",
    "ln_2": "mlp_norm", "final_layernorm": "final_norm", "final_norm": "final_norm", "ln_f": "final_norm",
    "word_embeddings": "embed", "embed_tokens": "embed", "wte": "embed", "embed_in": "embed",
    "position_embeddings": "positions", "wpe": "positions",
    "output_layer": "head", "lm_head": "head", "word_embeddings_for_head": "head", "embed_out": "head",
    "q_layernorm": "q_norm", "k_layernorm": "k_norm", "shared_experts": "shared_expert",
    "router": "router",
}  # fmt: skip

_BY_GROUP = ("linear_qkv", "query_key_value")
"""Segments of fused projections whose rows are group by group; in others the parts follow one another."""

_LAYER_NORM = re.compile(r"\.(linear_qkv|linear_fc1|linear_q_up_proj|linear_kv_up_proj)\.layer_norm_(weight|bias)$")
_NORM_OF = {
    "linear_qkv": "attn_norm", "linear_fc1": "mlp_norm", "linear_q_up_proj": "q_up_norm",
    "linear_kv_up_proj": "kv_up_norm",
}  # fmt: skip
_GROUPED_EXPERT = re.compile(r"\.experts\.(linear_fc1|linear_fc2)\.(weight|bias)(\d+)$")


def key_of(name: str) -> str:
    """Return the key of a parameter's name; names of the same tensor in several frameworks have the same key."""
    name = _GROUPED_EXPERT.sub(r".experts.\3.\1.\2", name)
    if found := _LAYER_NORM.search(name):
        path = name[: found.start()]
        if found[1] != "linear_fc1" or ".experts" not in path:
            path = path.removesuffix(".self_attention").removesuffix(".mlp") if found[1] in _BLOCK_NORMS else path
        name = f"{path}.{_NORM_OF[found[1]]}.{found[2]}"
    name = name.replace("shared_experts.gate_weight", "shared_expert_gate.weight")
    parts = [part for part in name.split(".") if part not in _WRAPPERS and part != "local_experts"]
    parts = _without_root(parts)
    return ".".join(_translated(parts, i) for i in range(len(parts)))


_BLOCK_NORMS = frozenset({"linear_qkv", "linear_fc1"})


def _without_root(parts: list[str]) -> list[str]:
    """Return the parts without those before the first layer that name the model."""
    while len(parts) > 1:
        is_stack = parts[0] in _STACKS and parts[1] in {"layers", "final_layernorm", "final_norm", "embed_tokens"}
        if parts[0] not in _ROOTS and not is_stack:
            break
        parts = parts[1:]
    return parts


_OF_ATTENTION = {"query": "q", "key": "k", "value": "v"}


def _translated(parts: list[str], i: int) -> str:
    part = parts[i]
    before = parts[:i]
    if part == "gate" and i + 1 < len(parts) and "mlp" in {*before, *(_SEGMENTS.get(p, p) for p in before)}:
        return "router"  # of experts; gates of the experts themselves are gate_proj
    if part in {"dense", "c_proj"}:
        return "down" if "mlp" in before else "o"
    if part in _OF_ATTENTION and any(_SEGMENTS.get(each, each) == "attn" for each in before):
        return _OF_ATTENTION[part]
    if part == "norm" and i == 0:
        return "final_norm"
    if part == "input_layernorm" and "attn" in before:
        return part
    return _SEGMENTS.get(part, part)


def order_of(name: str) -> Order:
    """Return the order of rows that a fused projection of this name has by convention."""
    return Order.GROUPS if any(part in _BY_GROUP for part in name.split(".")) else Order.PARTS


@dataclass(frozen=True)
class Heads:
    """Sizes of an attention.

    Attributes:
        num_heads: Number of heads of queries.
        num_groups: Number of heads of keys and values.
        head_dim: Rows of a head.
    """

    num_heads: int
    num_groups: int
    head_dim: int

    @property
    def num_rows(self) -> int:
        """Rows of queries, keys and values together."""
        return (self.num_heads + 2 * self.num_groups) * self.head_dim


def heads_in(settings: Mapping[str, Scalar]) -> Heads | None:
    """Return the sizes that a checkpoint's settings give, of Hugging Face or of Megatron; ``None`` if they do not."""
    own: dict[str, Scalar] = {}
    for path, value in settings.items():
        own.setdefault(path.rpartition(".")[2], value)
    num_heads = _count(own, "num_attention_heads", "n_head", "num_heads")
    if num_heads is None:
        return None
    is_grouped = own.get("group_query_attention", True) is not False
    groups = (_count(own, "num_key_value_heads", "num_query_groups") if is_grouped else None) or num_heads
    head_dim = _count(own, "head_dim", "kv_channels", "d_kv")
    hidden = _count(own, "hidden_size", "n_embd")
    if head_dim is None and hidden is not None and hidden % num_heads == 0:
        head_dim = hidden // num_heads
    if head_dim is None or num_heads % groups:
        return None
    return Heads(num_heads, groups, head_dim)


def _count(settings: Mapping[str, Scalar], *names: str) -> int | None:
    found = (settings.get(name) for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and 0 < n < 1 << 20), None)


def qkv_ranges(
    heads: Heads, order: Order
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the ranges of rows of queries, keys and values in a fused projection."""
    per_group = heads.num_heads // heads.num_groups
    width = heads.head_dim
    if order is Order.PARTS:
        first, second = heads.num_heads * width, (heads.num_heads + heads.num_groups) * width
        return [(0, first)], [(first, second)], [(second, heads.num_rows)]
    found: tuple[list[tuple[int, int]], ...] = ([], [], [])
    for group in range(heads.num_groups):
        begin = group * (per_group + 2) * width
        for part, size in enumerate((per_group * width, width, width)):
            found[part].append((begin, begin + size))
            begin += size
    return found[0], found[1], found[2]


_LAYER = re.compile(r"(?:^|\.)(?:layers|block|blocks)\.(\d+)\.")
_EXPERT = re.compile(r"\bexperts\.(\d+)\b")


def layer_of(key: str) -> int | None:
    """Return the number of the layer that a key is in."""
    found = _LAYER.search(key)
    return None if found is None else int(found[1])


def without_expert(key: str) -> str:
    """Return a key without the number of its expert."""
    return _EXPERT.sub("experts.*", key)


def without_part(key: str) -> str:
    """Return a key of queries, keys and values, or of gate and up, with one word for all of them."""
    return re.sub(r"\.(gate|up)\.", ".gate_up.", re.sub(r"\.(q|k|v)\.(weight|bias)$", r".qkv.\2", key))
