"""Real ``transformers`` architectures, tiny, with random weights; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import transformers

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TOKENS = {"vocab_size": 60, "max_position_embeddings": 32, **SIZES}


@dataclass(frozen=True)
class Architecture:
    """A model class, its tiny configuration, and a batch for it."""

    make_config: Callable[[], Any]
    model: str
    make_batch: Callable[[], dict[str, torch.Tensor]]

    def build(self, seed: int = 0, **overrides: Any) -> torch.nn.Module:
        if not hasattr(transformers, self.model):
            pytest.skip(f"transformers {transformers.__version__} has no {self.model}")
        if torch._C._get_mkldnn_enabled() and not repeats(self.model):
            pytest.skip("with this release the model computes something else each time")
        return self.make(seed, **overrides)

    def make(self, seed: int = 0, **overrides: Any) -> torch.nn.Module:
        torch.manual_seed(seed)
        config = self.make_config()
        for name, value in overrides.items():
            setattr(config, name, value)
        return getattr(transformers, self.model)(config).train()

    def batch(self, seed: int = 0) -> dict[str, torch.Tensor]:
        generator_state = torch.get_rng_state()
        torch.manual_seed(1000 + seed)
        batch = self.make_batch()
        torch.set_rng_state(generator_state)
        return batch


def tokens(**extra: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(2, 60, (2, 12))
    return {"input_ids": ids, "labels": ids.clone(), **extra}


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        lambda: transformers.LlamaConfig(**TOKENS, num_key_value_heads=2), "LlamaForCausalLM", tokens
    ),
    "qwen2": Architecture(
        lambda: transformers.Qwen2Config(**TOKENS, num_key_value_heads=2, tie_word_embeddings=True),
        "Qwen2ForCausalLM",
        tokens,
    ),
    "gpt2": Architecture(
        lambda: transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=32),
        "GPT2LMHeadModel",
        tokens,
    ),
    "bert": Architecture(
        lambda: transformers.BertConfig(**TOKENS),
        "BertForMaskedLM",
        lambda: tokens(attention_mask=torch.ones(2, 12, dtype=torch.long)),
    ),
    "t5": Architecture(
        lambda: transformers.T5Config(
            vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
        ),
        "T5ForConditionalGeneration",
        tokens,
    ),
    "vit": Architecture(
        lambda: transformers.ViTConfig(**SIZES, image_size=16, patch_size=4, num_labels=3),
        "ViTForImageClassification",
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])},
    ),
    "qwen3": Architecture(
        lambda: transformers.Qwen3Config(**TOKENS, num_key_value_heads=2, head_dim=8), "Qwen3ForCausalLM", tokens
    ),
    "mixtral": Architecture(
        lambda: transformers.MixtralConfig(**TOKENS, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2),
        "MixtralForCausalLM",
        tokens,
    ),
    "opt": Architecture(
        lambda: transformers.OPTConfig(
            vocab_size=60,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=48,
            max_position_embeddings=32,
            word_embed_proj_dim=32,
        ),
        "OPTForCausalLM",
        tokens,
    ),
    "roberta": Architecture(
        lambda: transformers.RobertaConfig(**TOKENS),
        "RobertaForMaskedLM",
        tokens,
    ),
    "whisper": Architecture(
        lambda: transformers.WhisperConfig(
            vocab_size=60,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppresstokens=None,
            begin_suppresstokens=None,
        ),
        "WhisperForConditionalGeneration",
        lambda: {"input_features": torch.randn(2, 8, 20), "labels": torch.randint(2, 60, (2, 7))},
    ),
    "mamba": Architecture(
        lambda: transformers.MambaConfig(
            vocab_size=60,
            hidden_size=16,
            state_size=4,
            num_hidden_layers=2,
            intermediate_size=32,
            time_step_rank=4,
        ),
        "MambaForCausalLM",
        tokens,
    ),
    "clip": Architecture(
        lambda: transformers.CLIPConfig(
            text_config={**TOKENS, "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 1},
            vision_config={**SIZES, "image_size": 16, "patch_size": 4},
            projection_dim=16,
        ),
        "CLIPModel",
        lambda: {
            "input_ids": torch.randint(2, 60, (2, 12)),
            "pixel_values": torch.randn(2, 3, 16, 16),
            "return_loss": True,
        },
    ),
}


@cache
def repeats(model: str) -> bool:
    """Whether training computes the same each time without the probe: what PyTorch 2.1 convolves with oneDNN may not.

    Only asked of what would be affected; eight trainings, since some of them agree.
    """
    if model != "WhisperForConditionalGeneration":
        return True
    (one,) = (one for one in ARCHITECTURES.values() if one.model == model)
    return len({tuple(train(net, one, step) for step in range(3)) for net in (one.make() for _ in range(8))}) == 1


def train(model: torch.nn.Module, architecture: Architecture, step: int) -> float:
    """Run one step of AdamW-free training: forward, backward, clipping and a plain update; return the loss."""
    torch.manual_seed(step)
    model.zero_grad()
    loss = model(**architecture.batch(step)).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad
    return loss.item()
