"""Architectures that the judge's first ten rules were not made for, to measure what the rules are worth elsewhere.

What they showed has since changed some rules; `bench.faults.held_out` has architectures that came after these changes.

They have what the six others lack: ALiBi, partial rotary positions in parallel blocks, soft caps, local attention,
disentangled attention, windows, batch normalisation, cross attention, state spaces, time mixing, and layers of PyTorch
alone. Half of them have rectifiers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812

from bench.faults.anatomy import (
    BATCH,
    LENGTH,
    VOCABULARY,
    Anatomy,
    Architecture,
    images,
    masked_text,
    plain_loss,
    shifted_loss,
    text,
)

SPLIT = "unseen"
HIDDEN, HEADS, INNER = 32, 4, 48
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": 32,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def translation() -> dict[str, torch.Tensor]:
    """Return a batch for an encoder with a decoder."""
    return {**text(), "decoder_input_ids": torch.randint(2, VOCABULARY, (BATCH, LENGTH))}


class _OfText(nn.Module):
    """Layers between an embedding and a head; a subclass says which."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(self.make_layer() for _ in range(config.num_hidden_layers))
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def make_layer(self) -> nn.Module:
        raise NotImplementedError

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.head(x))


class _Encoder(_OfText):
    """Layers of `torch.nn.TransformerEncoderLayer`, which has a rectifier."""

    def make_layer(self) -> nn.Module:
        return nn.TransformerEncoderLayer(HIDDEN, HEADS, INNER, dropout=0.0, batch_first=True, norm_first=True)


class _Recurrent(_OfText):
    """A convolution over time with a leaky rectifier in front of a GRU, twice."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(4, HIDDEN)
            self.conv = nn.Conv1d(HIDDEN, INNER, 3, padding=2)
            self.act = nn.LeakyReLU(0.1)
            self.gru = nn.GRU(INNER, HIDDEN, batch_first=True)
            self.out = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.act(self.conv(self.norm(x.transpose(1, 2)))[..., :LENGTH])
            return x + self.out(self.gru(hidden.transpose(1, 2))[0])

    def make_layer(self) -> nn.Module:
        return self.Block()


class _Mixer(nn.Module):
    """Tokens and channels mixed alternately (MLP-Mixer), with squared rectifiers and RMS normalisations."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-6), nn.RMSNorm(HIDDEN, eps=1e-6)
            self.tokens = nn.Sequential(nn.Linear(LENGTH, INNER), nn.ReLU(), nn.Linear(INNER, LENGTH))
            self.up, self.act, self.down = nn.Linear(HIDDEN, INNER), nn.ReLU(), nn.Linear(INNER, HIDDEN)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.down(self.act(self.up(self.norm2(x))).square())

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, 4, 4)
        self.layers = nn.ModuleList(self.Block() for _ in range(config.num_hidden_layers))
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.head(F.normalize(x.mean(1), dim=-1)))


def _of_torch() -> SimpleNamespace:
    return SimpleNamespace(num_hidden_layers=2)


def decoder(block: str, peer: str, **more: Any) -> Anatomy:
    """Return the anatomy of a decoder whose projections have the names that Llama gave them."""
    attention = f"{block}.self_attn"
    own = {
        "attention": attention,
        "query": f"{attention}.q_proj",
        "key": f"{attention}.k_proj",
        "out": f"{attention}.o_proj",
        "up": f"{block}.mlp.up_proj",
        "down": f"{block}.mlp.down_proj",
        "activation": f"{block}.mlp.act_fn",
        "embedding": "model.embed_tokens",
        "head": "lm_head",
        **more,
    }
    return Anatomy(block=block, peer=peer, **own)


_BLOOM, _NEOX, _GEMMA = "transformer.h.1", "gpt_neox.layers.1", "model.layers.1"
_MODERN, _DEBERTA = "model.layers.1", "deberta.encoder.layer.1"
_SWIN, _REGNET = "swin.encoder.layers.0.blocks", "regnet.encoder.stages.1.layers"
_BART, _MAMBA, _RWKV, _TORCH = "model.decoder.layers", "backbone.layers", "rwkv.blocks", "layers.1"

UNSEEN: dict[str, Architecture] = {
    "bloom": Architecture(
        SPLIT,
        "BloomForCausalLM",
        lambda: transformers.BloomConfig(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, n_layer=2, n_head=HEADS,
            hidden_dropout=0.0, attention_dropout=0.0, use_cache=False,
        ),
        text,
        shifted_loss,
        Anatomy(
            block=_BLOOM,
            peer="transformer.h.0",
            attention=f"{_BLOOM}.self_attention",
            query=f"{_BLOOM}.self_attention.query_key_value",
            out=f"{_BLOOM}.self_attention.dense",
            norm=f"{_BLOOM}.post_attention_layernorm",
            up=f"{_BLOOM}.mlp.dense_h_to_4h",
            down=f"{_BLOOM}.mlp.dense_4h_to_h",
            activation=f"{_BLOOM}.mlp.gelu_impl",
            embedding="transformer.word_embeddings",
            head="lm_head",
            biased=f"{_BLOOM}.mlp.dense_h_to_4h",
            tied="lm_head",
            heads=False,
        ),
    ),
    "neox": Architecture(
        SPLIT,
        "GPTNeoXForCausalLM",
        lambda: transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5),
        text,
        shifted_loss,
        Anatomy(
            block=_NEOX,
            peer="gpt_neox.layers.0",
            attention=f"{_NEOX}.attention",
            query=f"{_NEOX}.attention.query_key_value",
            out=f"{_NEOX}.attention.dense",
            norm=f"{_NEOX}.post_attention_layernorm",
            up=f"{_NEOX}.mlp.dense_h_to_4h",
            down=f"{_NEOX}.mlp.dense_4h_to_h",
            activation=f"{_NEOX}.mlp.act",
            embedding="gpt_neox.embed_in",
            head="lm_head",
            biased=f"{_NEOX}.mlp.dense_h_to_4h",
            rotary="gpt_neox.rotary_emb",
            causal=f"{_NEOX}.attention",
            gelu=f"{_NEOX}.mlp.act",
        ),
    ),
    "gemma2": Architecture(
        SPLIT,
        "Gemma2ForCausalLM",
        lambda: transformers.Gemma2Config(
            **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=6, use_cache=False
        ),
        text,
        shifted_loss,
        decoder(_GEMMA, "model.layers.0", norm=f"{_GEMMA}.pre_feedforward_layernorm", tied="lm_head", heads=False),
    ),
    "modernbert": Architecture(
        SPLIT,
        "ModernBertForMaskedLM",
        lambda: transformers.ModernBertConfig(
            **SIZES, local_attention=6, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
        ),
        masked_text,
        plain_loss,
        Anatomy(
            block=_MODERN,
            peer="model.layers.0",
            attention=f"{_MODERN}.attn",
            query=f"{_MODERN}.attn.Wqkv",
            out=f"{_MODERN}.attn.Wo",
            norm=f"{_MODERN}.mlp_norm",
            up=f"{_MODERN}.mlp.Wi",
            down=f"{_MODERN}.mlp.Wo",
            activation=f"{_MODERN}.mlp.act",
            embedding="model.embeddings.tok_embeddings",
            head="decoder",
            gelu=f"{_MODERN}.mlp.act",
            heads=False,
        ),
    ),
    "deberta": Architecture(
        SPLIT,
        "DebertaV2ForMaskedLM",
        lambda: transformers.DebertaV2Config(
            **SIZES, **NO_DROPOUT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
            share_att_key=True, norm_rel_ebd="layer_norm",
        ),
        masked_text,
        plain_loss,
        Anatomy(
            block=_DEBERTA,
            peer="deberta.encoder.layer.0",
            attention=f"{_DEBERTA}.attention.self",
            query=f"{_DEBERTA}.attention.self.query_proj",
            key=f"{_DEBERTA}.attention.self.key_proj",
            value=f"{_DEBERTA}.attention.self.value_proj",
            out=f"{_DEBERTA}.attention.output.dense",
            norm=f"{_DEBERTA}.output.LayerNorm",
            up=f"{_DEBERTA}.intermediate.dense",
            down=f"{_DEBERTA}.output.dense",
            activation=f"{_DEBERTA}.intermediate.intermediate_act_fn",
            embedding="deberta.embeddings.word_embeddings",
            head="cls.predictions.decoder",
            biased=f"{_DEBERTA}.intermediate.dense",
            gelu=f"{_DEBERTA}.intermediate.intermediate_act_fn",
            heads=False,
        ),
    ),
    "swin": Architecture(
        SPLIT,
        "SwinForImageClassification",
        lambda: transformers.SwinConfig(
            image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10,
            drop_path_rate=0.0, **NO_DROPOUT,
        ),
        images,
        plain_loss,
        Anatomy(
            block=f"{_SWIN}.0",
            peer=f"{_SWIN}.1",
            attention=f"{_SWIN}.0.attention",
            query=f"{_SWIN}.0.attention.q_proj",
            key=f"{_SWIN}.0.attention.k_proj",
            out=f"{_SWIN}.0.attention.o_proj",
            norm=f"{_SWIN}.0.layernorm_after",
            up=f"{_SWIN}.0.mlp.fc1",
            down=f"{_SWIN}.0.mlp.fc2",
            activation=f"{_SWIN}.0.mlp.activation_fn",
            embedding="swin.embeddings.patch_embeddings.projection",
            head="classifier",
            biased=f"{_SWIN}.0.mlp.fc1",
            gelu=f"{_SWIN}.0.mlp.activation_fn",
            heads=False,
        ),
    ),
    "regnet": Architecture(
        SPLIT,
        "RegNetForImageClassification",
        lambda: transformers.RegNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[1, 3], groups_width=8, num_labels=10
        ),
        images,
        plain_loss,
        Anatomy(
            block=f"{_REGNET}.1",
            peer=f"{_REGNET}.2",
            attention=f"{_REGNET}.1.layer.2",
            query=f"{_REGNET}.1.layer.2.attention.0",
            out=f"{_REGNET}.1.layer.2.attention.2",
            norm=f"{_REGNET}.1.layer.0.normalization",
            up=f"{_REGNET}.1.layer.0.convolution",
            down=f"{_REGNET}.1.layer.3.convolution",
            activation=f"{_REGNET}.1.layer.0.activation",
            embedding="regnet.embedder.embedder.convolution",
            head="classifier.1",
            heads=False,
        ),
    ),
    "bart": Architecture(
        SPLIT,
        "BartForConditionalGeneration",
        lambda: transformers.BartConfig(
            vocab_size=VOCABULARY, d_model=HIDDEN, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=32,
            activation_function="relu", dropout=0.0,
        ),
        translation,
        plain_loss,
        Anatomy(
            block=f"{_BART}.0",
            peer=f"{_BART}.1",
            attention=f"{_BART}.0.encoder_attn",
            query=f"{_BART}.0.encoder_attn.q_proj",
            key=f"{_BART}.0.encoder_attn.k_proj",
            value=f"{_BART}.0.encoder_attn.v_proj",
            out=f"{_BART}.0.encoder_attn.out_proj",
            norm=f"{_BART}.0.encoder_attn_layer_norm",
            up=f"{_BART}.0.fc1",
            down=f"{_BART}.0.fc2",
            activation=f"{_BART}.0.activation_fn",
            embedding="model.decoder.embed_tokens",
            head="lm_head",
            biased=f"{_BART}.0.fc1",
            tied="lm_head",
        ),
    ),
    "mamba2": Architecture(
        SPLIT,
        "Mamba2ForCausalLM",
        lambda: transformers.Mamba2Config(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=2, state_size=8, num_heads=8, head_dim=8,
            expand=2, n_groups=2, chunk_size=8,
        ),
        text,
        shifted_loss,
        Anatomy(
            block=f"{_MAMBA}.0",
            peer=f"{_MAMBA}.1",
            attention=f"{_MAMBA}.0.mixer",
            query=f"{_MAMBA}.0.mixer.in_proj",
            out=f"{_MAMBA}.0.mixer.out_proj",
            norm=f"{_MAMBA}.0.norm",
            up=f"{_MAMBA}.0.mixer.in_proj",
            down=f"{_MAMBA}.0.mixer.out_proj",
            activation="",
            embedding="backbone.embeddings",
            head="lm_head",
            heads=False,
        ),
    ),
    "rwkv": Architecture(
        SPLIT,
        "RwkvForCausalLM",
        lambda: transformers.RwkvConfig(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=2, context_length=32, intermediate_size=INNER
        ),
        text,
        shifted_loss,
        Anatomy(
            block=f"{_RWKV}.0",
            peer=f"{_RWKV}.1",
            attention=f"{_RWKV}.0.attention",
            query=f"{_RWKV}.0.attention.receptance",
            key=f"{_RWKV}.0.attention.key",
            value=f"{_RWKV}.0.attention.value",
            out=f"{_RWKV}.0.attention.output",
            norm=f"{_RWKV}.0.ln2",
            up=f"{_RWKV}.0.feed_forward.key",
            down=f"{_RWKV}.0.feed_forward.value",
            activation="",
            embedding="rwkv.embeddings",
            head="head",
            heads=False,
        ),
    ),
    "encoder": Architecture(
        SPLIT,
        _Encoder,
        _of_torch,
        text,
        plain_loss,
        Anatomy(
            block=_TORCH,
            peer="layers.0",
            attention=f"{_TORCH}.self_attn",
            query=f"{_TORCH}.linear1",
            out=f"{_TORCH}.linear2",
            norm=f"{_TORCH}.norm2",
            up=f"{_TORCH}.linear1",
            down=f"{_TORCH}.linear2",
            activation="",
            embedding="words",
            head="head",
            biased=f"{_TORCH}.linear1",
            heads=False,
        ),
    ),
    "recurrent": Architecture(
        SPLIT,
        _Recurrent,
        _of_torch,
        text,
        plain_loss,
        Anatomy(
            block=_TORCH,
            peer="layers.0",
            attention=_TORCH,
            query=f"{_TORCH}.conv",
            out=f"{_TORCH}.out",
            norm=f"{_TORCH}.norm",
            up=f"{_TORCH}.conv",
            down=f"{_TORCH}.out",
            activation=f"{_TORCH}.act",
            embedding="words",
            head="head",
            heads=False,
        ),
    ),
    "mixer": Architecture(
        SPLIT,
        _Mixer,
        _of_torch,
        images,
        plain_loss,
        Anatomy(
            block=_TORCH,
            peer="layers.0",
            attention=f"{_TORCH}.tokens",
            query=f"{_TORCH}.tokens.0",
            out=f"{_TORCH}.tokens.2",
            norm=f"{_TORCH}.norm2",
            up=f"{_TORCH}.up",
            down=f"{_TORCH}.down",
            activation=f"{_TORCH}.act",
            embedding="patches",
            head="head",
            biased=f"{_TORCH}.up",
            heads=False,
        ),
    ),
}  # fmt: skip
