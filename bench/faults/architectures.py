"""Tiny configurations of real architectures, by name."""

from __future__ import annotations

import transformers

from bench.faults.anatomy import VOCABULARY, Anatomy, Architecture, images, masked_text, plain_loss, shifted_loss, text
from bench.faults.held_out import HELD_OUT
from bench.faults.unseen import UNSEEN

_SIZES = {"hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 96}
_TOKENS = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, **_SIZES}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _llama_like(block: str, peer: str, **more: str) -> Anatomy:
    anatomy = {
        "block": block,
        "peer": peer,
        "attention": f"{block}.self_attn",
        "query": f"{block}.self_attn.q_proj",
        "key": f"{block}.self_attn.k_proj",
        "value": f"{block}.self_attn.v_proj",
        "out": f"{block}.self_attn.o_proj",
        "norm": f"{block}.post_attention_layernorm",
        "embedding": "model.embed_tokens",
        "head": "lm_head",
        "rotary": "model.rotary_emb",
        "residual": block,
        "causal": f"{block}.self_attn",
        **more,
    }
    return Anatomy(**anatomy)


_L, _G, _B, _V, _T = "model.layers.3", "transformer.h.3", "bert.encoder.layer.3", "vit.layers.3", "encoder.block.2"

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "tune",
        "LlamaForCausalLM",
        lambda: transformers.LlamaConfig(**_TOKENS, num_key_value_heads=4),
        text,
        shifted_loss,
        _llama_like(
            _L,
            "model.layers.4",
            up=f"{_L}.mlp.up_proj",
            down=f"{_L}.mlp.down_proj",
            activation=f"{_L}.mlp.act_fn",
            silu=f"{_L}.mlp.act_fn",
        ),
    ),
    "gpt2": Architecture(
        "tune",
        "GPT2LMHeadModel",
        lambda: transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=64, n_layer=8, n_head=4, n_positions=64, n_inner=128,
            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
        ),
        text,
        shifted_loss,
        Anatomy(
            block=_G,
            peer="transformer.h.4",
            attention=f"{_G}.attn",
            query=f"{_G}.attn.c_attn",
            out=f"{_G}.attn.c_proj",
            norm=f"{_G}.ln_2",
            up=f"{_G}.mlp.c_fc",
            down=f"{_G}.mlp.c_proj",
            activation=f"{_G}.mlp.act",
            embedding="transformer.wte",
            head="lm_head",
            biased=f"{_G}.mlp.c_fc",
            dropout=f"{_G}.mlp.dropout",
            residual=_G,
            causal=f"{_G}.attn",
            gelu=f"{_G}.mlp.act",
            positions="transformer.wpe",
            tied="lm_head",
        ),
    ),
    "bert": Architecture(
        "tune",
        "BertForMaskedLM",
        lambda: transformers.BertConfig(**_TOKENS, **_NO_DROPOUT),
        masked_text,
        plain_loss,
        Anatomy(
            block=_B,
            peer="bert.encoder.layer.4",
            attention=f"{_B}.attention.self",
            query=f"{_B}.attention.self.query",
            key=f"{_B}.attention.self.key",
            value=f"{_B}.attention.self.value",
            out=f"{_B}.attention.output.dense",
            norm=f"{_B}.output.LayerNorm",
            up=f"{_B}.intermediate.dense",
            down=f"{_B}.output.dense",
            activation=f"{_B}.intermediate.intermediate_act_fn",
            embedding="bert.embeddings.word_embeddings",
            head="cls.predictions.decoder",
            biased=f"{_B}.intermediate.dense",
            dropout=f"{_B}.output.dropout",
            gelu=f"{_B}.intermediate.intermediate_act_fn",
            positions="bert.embeddings.position_embeddings",
            padded=f"{_B}.attention.self",
            tied="cls.predictions.decoder",
        ),
    ),
    "moe": Architecture(
        "report",
        "Qwen2MoeForCausalLM",
        lambda: transformers.Qwen2MoeConfig(
            **_TOKENS,
            num_key_value_heads=4,
            moe_intermediate_size=48,
            shared_expert_intermediate_size=48,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        ),
        text,
        shifted_loss,
        _llama_like(
            _L,
            "model.layers.4",
            up=f"{_L}.mlp.shared_expert.up_proj",
            down=f"{_L}.mlp.shared_expert.down_proj",
            activation=f"{_L}.mlp.shared_expert.act_fn",
            biased=f"{_L}.self_attn.q_proj",
            router=f"{_L}.mlp.gate",
            experts=f"{_L}.mlp.experts",
            silu=f"{_L}.mlp.shared_expert.act_fn",
        ),
    ),
    "vit": Architecture(
        "report",
        "ViTForImageClassification",
        lambda: transformers.ViTConfig(**_SIZES, image_size=16, patch_size=4, num_labels=10, **_NO_DROPOUT),
        images,
        plain_loss,
        Anatomy(
            block=_V,
            peer="vit.layers.4",
            attention=f"{_V}.attention",
            query=f"{_V}.attention.q_proj",
            key=f"{_V}.attention.k_proj",
            value=f"{_V}.attention.v_proj",
            out=f"{_V}.attention.o_proj",
            norm=f"{_V}.layernorm_after",
            up=f"{_V}.mlp.fc1",
            down=f"{_V}.mlp.fc2",
            activation=f"{_V}.mlp.activation_fn",
            embedding="vit.embeddings.patch_embeddings.projection",
            head="classifier",
            biased=f"{_V}.mlp.fc1",
            dropout=f"{_V}.dropout",
            residual=_V,
            gelu=f"{_V}.mlp.activation_fn",
        ),
    ),
    "t5": Architecture(
        "report",
        "T5ForConditionalGeneration",
        lambda: transformers.T5Config(
            vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96, num_layers=4, num_heads=4, decoder_start_token_id=0,
            dropout_rate=0.0,
        ),
        text,
        plain_loss,
        Anatomy(
            block=_T,
            peer="encoder.block.3",
            attention=f"{_T}.layer.0.SelfAttention",
            query=f"{_T}.layer.0.SelfAttention.q",
            key=f"{_T}.layer.0.SelfAttention.k",
            value=f"{_T}.layer.0.SelfAttention.v",
            out=f"{_T}.layer.0.SelfAttention.o",
            norm=f"{_T}.layer.1.layer_norm",
            up=f"{_T}.layer.1.DenseReluDense.wi",
            down=f"{_T}.layer.1.DenseReluDense.wo",
            activation=f"{_T}.layer.1.DenseReluDense.act",
            embedding="encoder.embed_tokens",
            head="lm_head",
            dropout=f"{_T}.layer.1.dropout",
        ),
    ),
    **UNSEEN,
    **HELD_OUT,
}  # fmt: skip
