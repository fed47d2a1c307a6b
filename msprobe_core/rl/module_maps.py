"""Names of modules in verl's training backends, mapped to those in serving engines.

The engine's names are those of vLLM, which SGLang shares: query, key and value are one projection, and so are gate and
up projection of an MLP. FSDP trains Hugging Face models, which use the same names for everything else; Megatron has its
own, https://github.com/NVIDIA/Megatron-LM, ``megatron/core/transformer``.
"""

from __future__ import annotations

from msprobe_core.protocols.trainers import ModuleMap

FSDP = ModuleMap(
    name="fsdp",
    wrappers=("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_model"),
    fused={"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")},
)

MEGATRON = ModuleMap(
    name="megatron",
    segments={
        "word_embeddings": "embed_tokens",
        "self_attention": "self_attn",
        "linear_qkv": "qkv_proj",
        "q_layernorm": "q_norm",
        "k_layernorm": "k_norm",
        "core_attention": "attn",
        "linear_proj": "o_proj",
        "router": "gate",
        "linear_fc1": "gate_up_proj",
        "linear_fc2": "down_proj",
    },
    reordered=("qkv_proj",),  # group by group, each with its queries, key and value
    merges_heads=True,
)
