"""Bugs of trainings in one process, each re-created in today's code: only the lines that are the defect differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.program import VOCABULARY, Program, language_model, scheduled, settled, tokens
from bench.faults.truth import Truth


def llama(dtype: torch.dtype = torch.float32, *, settles: bool = True, **options: Any) -> Any:
    """Return a Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    return settled(model, dtype) if settles else model.train().to(dtype)


def _cast_frequencies(side: Side) -> Program:
    model = llama()
    rotary = model.model.rotary_emb
    frequencies = rotary.inv_freq.clone()
    model.to(torch.bfloat16)
    if side is Side.GOLDEN:
        rotary.inv_freq = frequencies
    program = language_model(model)
    program.batches = lambda step: [{"input_ids": (ids := tokens(step, 1, 400)), "labels": ids.clone()}]
    return program


def _clipped(side: Side) -> Program:
    program = language_model(llama())
    if side is Side.GOLDEN:
        program.clip = lambda: nn.utils.clip_grad_norm_(program.model.parameters(), 0.1, foreach=False)
    return program


def _decayed(side: Side) -> Program:
    model = llama()
    kind = torch.optim.Adam if side is Side.GOLDEN else torch.optim.AdamW
    return language_model(model, optimizer=kind(model.parameters(), lr=1e-2, weight_decay=0.1, foreach=False))


def _resumed(side: Side) -> Program:
    """Return a training that two steps and a checkpoint came before; the defect drops what is saved of moments."""
    before = language_model(llama())
    for step in range(100, 102):
        before.step(step)
    after = language_model(llama())
    after.model.load_state_dict(before.model.state_dict())
    if side is Side.GOLDEN:
        after.optimizer.load_state_dict(before.optimizer.state_dict())
    return after


def _tied(side: Side) -> Program:
    model = llama(tie_word_embeddings=side is Side.GOLDEN)
    return language_model(model)


def _resized(side: Side) -> Program:
    """Return a model whose vocabulary grows, and whose class initializes again what it does not know."""
    model = llama(tie_word_embeddings=False)
    model.resize_token_embeddings(VOCABULARY + 8, mean_resizing=False)
    head = model.lm_head.weight
    with torch.no_grad():
        head[VOCABULARY:] = model.model.embed_tokens.weight[VOCABULARY:] = 0.01
        if side is Side.TARGET:
            head.copy_(0.02 * torch.randn(head.shape, generator=torch.Generator().manual_seed(5)))
    return language_model(model)


def _warmed_up(side: Side) -> Program:
    """Return a training whose learning rate rises over five steps; the defect counts the warm-up one step too long."""
    number = 5 + (side is Side.TARGET)
    return scheduled(language_model(llama()), lambda step: min(1.0, (step + 1) / number))


def _packed(side: Side) -> Program:
    """Return a training on two texts in one row, which do not attend to each other; the defect counts on positions."""
    model = llama(attn_implementation="eager")
    half = torch.ones(8, 8, dtype=torch.bool).tril()
    mask = torch.block_diag(half, half).bool()
    mask = torch.zeros(16, 16).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]
    positions = torch.arange(16) if side is Side.TARGET else torch.arange(8).repeat(2)

    def batches(step: int) -> list[dict[str, Any]]:
        ids = tokens(step, 1)
        return [{"input_ids": ids, "labels": ids.clone(), "attention_mask": mask, "position_ids": positions[None]}]

    return language_model(model, batches=batches)


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    catalogue.add(
        Bug(
            "rotary frequencies cast with the model",
            Kind.ROTARY,
            report="huggingface/transformers#25681",
            fix="NVIDIA-NeMo/Automodel#2549",
            symptom="a model that is cast to bfloat16 has other logits than one that is loaded in it",
            place="the cast of the model (inv_freq)",
            truth=Truth(modules=("model.rotary_emb",), directions=("forward",)),
            make=_cast_frequencies,
            dtype="bf16",
        )
    )
    catalogue.add(
        Bug(
            "gradients in bfloat16 not clipped",
            Kind.CLIPPING,
            report="deepspeedai/DeepSpeed#3790",
            fix="deepspeedai/DeepSpeed#3790",
            symptom="clipping is configured and has no effect",
            place="the clipping of gradients",
            truth=Truth(groups=("clip_grad", "optimizer")),
            make=_clipped,
        )
    )
    catalogue.add(
        Bug(
            "fused Adam decays like AdamW",
            Kind.OPTIMIZER,
            report="flagos-ai/FlagGems#4988",
            fix="flagos-ai/FlagGems#4989",
            symptom="weights and moments are wrong as soon as weight decay is not zero",
            place="_fused_adam",
            truth=Truth(groups=("optimizer",)),
            make=_decayed,
        )
    )
    catalogue.add(
        Bug(
            "moments lost on resumption",
            Kind.OPTIMIZER,
            report="KempnerInstitute/KempnerForge#115",
            fix="KempnerInstitute/KempnerForge#115",
            symptom="runs go on from a checkpoint with moments of zero, and losses jump",
            place="CheckpointManager.load (optimizer)",
            truth=Truth(groups=("optimizer",)),
            make=_resumed,
            checks=("checkpoint",),
        )
    )
    catalogue.add(
        Bug(
            "head not tied to the embedding",
            Kind.TIED,
            report="huggingface/transformers#43429",
            fix="huggingface/transformers#43429",
            symptom="the model generates gibberish",
            place="the tying of lm_head",
            truth=Truth(modules=("lm_head",), directions=("forward",)),
            make=_tied,
            checks=("checkpoint",),
        )
    )
    catalogue.add(
        Bug(
            "resized head initialised again",
            Kind.INITIALIZATION,
            report="huggingface/transformers#35141",
            fix="huggingface/transformers#45079",
            symptom="trained weights of the head are replaced by random ones",
            place="the initialisation of lm_head",
            truth=Truth(modules=("lm_head",), directions=("forward",)),
            make=_resized,
            checks=("checkpoint",),
        )
    )
    catalogue.add(
        Bug(
            "warm-up one step too long",
            Kind.SCHEDULER,
            report="pytorch/torchtitan#1213",
            fix="pytorch/torchtitan#1261",
            symptom="learning rates of the warm-up are too small, and its end is reached a step late",
            place="lr_scheduler (linear warm-up)",
            truth=Truth(groups=("optimizer",)),
            make=_warmed_up,
        )
    )
    catalogue.add(
        Bug(
            "positions count on over packed texts",
            Kind.CACHE,
            report="hiyouga/LlamaFactory#7318",
            fix="hiyouga/LlamaFactory#7318",
            symptom="texts that are packed into one row are rotated otherwise than alone, and losses differ",
            place="the collator (position_ids)",
            truth=Truth(modules=("model.rotary_emb", "model", ""), directions=("forward",)),
            make=_packed,
        )
    )
