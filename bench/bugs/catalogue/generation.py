"""Bugs of generation: of a release of `transformers`, and defects re-created in today's code."""

from __future__ import annotations

from typing import Any

import torch

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.catalogue import in_layers
from bench.bugs.catalogue.trainings import llama
from bench.bugs.program import VOCABULARY, Program, settled, tokens
from bench.bugs.releases import transformers
from bench.faults.truth import Truth

_NEW_TOKENS = 4


def _generating(model: Any, prompts: Any = tokens, **options: Any) -> Program:
    """Return a program whose steps generate text greedily, and return it with its logits."""
    model.eval()

    def body(step: int) -> list[torch.Tensor]:
        given = prompts(step)
        if isinstance(given, torch.Tensor):
            given = {"input_ids": given, "attention_mask": torch.ones_like(given)}
        made = model.generate(
            **given, max_new_tokens=_NEW_TOKENS, min_new_tokens=_NEW_TOKENS, do_sample=False, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
        return [made.sequences, *made.scores]

    return Program(model, lambda _: torch.zeros(()), lambda _: [], body=body)


def _rolling(_: Side) -> Program:
    """Return Gemma 2, whose text reaches the window of its first layer while it is generated."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    kernels: dict[str, Any] = {"attn_implementation": "eager"}
    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=8, **kernels,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # the releases begin their norms with other weights, which is not this bug
    return _generating(settled(model), lambda step: tokens(step, length=6), cache_implementation="hybrid")


def _left_padded(step: int) -> dict[str, torch.Tensor]:
    ids = tokens(step, length=8)
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _positioned(side: Side) -> Program:
    """Return batched generation whose shorter prompt is padded; the defect numbers tokens from the padding on."""
    model = llama()
    prepare = model.prepare_inputs_for_generation

    def counted(input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = prepare(input_ids, *args, **kwargs)
        new = inputs["input_ids"].shape[1]
        total = kwargs["attention_mask"].shape[1]
        inputs["position_ids"] = torch.arange(total - new, total)[None].expand(len(input_ids), -1)
        return inputs

    if side is Side.TARGET:
        model.prepare_inputs_for_generation = counted
    return _generating(model, _left_padded)


def _penalized(side: Side) -> Program:
    """Return generation that divides the logits of repeated tokens; those below zero are to be multiplied."""
    from transformers import LogitsProcessorList

    def divide(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        own = scores.gather(1, ids)
        penalized = own / 1.5 if side is Side.TARGET else torch.where(own < 0, own * 1.5, own / 1.5)
        return scores.scatter(1, ids, penalized)

    return _generating(llama(), logits_processor=LogitsProcessorList([divide]))  # pyright: ignore[reportArgumentType]


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    catalogue.add(
        Bug(
            "cache rolls when its window is just reached",
            Kind.GENERATION,
            report="huggingface/transformers#37574",
            fix="huggingface/transformers#38046",
            symptom="the first key of the window is lost, and text past the window is worse",
            place="cache_utils: HybridCache._sliding_update",
            truth=Truth(modules=in_layers("model.layers.{}.self_attn"), directions=("forward",)),
            make=_rolling,
            defective=transformers("4.51.3"),
            fixed=transformers("4.52.4"),
        )
    )
    catalogue.add(
        Bug(
            "positions of batched generation count padding",
            Kind.GENERATION,
            report="unslothai/unsloth#3699",
            fix="unslothai/unsloth#4100",
            symptom="the shorter texts of a batch that is padded on the left are garbage",
            place="prepare_inputs_for_generation (position_ids)",
            truth=Truth(modules=("model.rotary_emb", "model", ""), directions=("forward",)),
            make=_positioned,
        )
    )
    catalogue.add(
        Bug(
            "repetition penalty rewards tokens with negative logits",
            Kind.GENERATION,
            report="huggingface/transformers#2302",
            fix="huggingface/transformers#2303",
            symptom="the higher the penalty, the more text repeats itself",
            place="the penalty of repeated tokens in generate",
            truth=Truth(
                calls=("Tensor.gather", "Functional.gather", "Torch.where", "Tensor.__truediv__", "Tensor.scatter"),
                directions=("forward",),
            ),
            make=_penalized,
        )
    )
