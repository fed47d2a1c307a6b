"""Bugs of models in releases of `transformers`; both sides run the code that was released."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.catalogue import in_layers
from bench.bugs.program import VOCABULARY, Program, language_model, settled, tokens
from bench.bugs.releases import transformers
from bench.faults.truth import Truth

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_GEMMA_DEFECTIVE, _GEMMA_FIXED = transformers("4.38.1"), transformers("4.39.0")


def _mixtral(_: Side) -> Program:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_SIZES, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.1)
    return language_model(settled(MixtralForCausalLM(config)))


def _gemma(
    dtype: torch.dtype = torch.float32, *, hidden: int = 64, activation: str | None = None, **options: Any
) -> Program:
    from transformers import GemmaConfig, GemmaForCausalLM

    sizes = {**_SIZES, "hidden_size": hidden, "head_dim": 16, "attn_implementation": "eager"}
    config = GemmaConfig(**sizes)
    if activation:  # the release that fixed it reads the second name
        config.hidden_act = config.hidden_activation = activation
    return language_model(settled(GemmaForCausalLM(config), dtype), **options)


def _autocast() -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _gemma_on_long_text(_: Side) -> Program:
    program = _gemma(activation="gelu_pytorch_tanh", around=_autocast)
    program.batches = lambda step: [{"input_ids": (ids := tokens(step, 1, 400)), "labels": ids.clone()}]
    return program


def _mamba2(_: Side) -> Program:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=2,
        chunk_size=8, use_cache=False,
    )  # fmt: skip
    return language_model(settled(Mamba2ForCausalLM(config)))


def _gemma3(_: Side) -> Program:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(**{**_SIZES, "hidden_size": 80}, head_dim=16, sliding_window=8)
    return language_model(settled(Gemma3ForCausalLM(config), torch.bfloat16))


def _trainer(_: Side) -> Program:
    """Return a training whose steps are those of `Trainer`, on two micro-batches with different numbers of labels."""
    import sys
    import tempfile

    # Today's needs a hub that these releases do not know; they look for it without needing it.
    sys.modules.setdefault("datasets", None)  # pyright: ignore[reportArgumentType]
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    model = settled(LlamaForCausalLM(LlamaConfig(**_SIZES)))
    arguments = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, gradient_accumulation_steps=2, report_to=[], max_grad_norm=0.0
    )
    trainer: Any = Trainer(model, arguments)

    def batches(step: int) -> list[dict[str, torch.Tensor]]:
        made: list[dict[str, torch.Tensor]] = []
        for number in range(2):
            ids = tokens(step, number=number)
            labels = ids.clone()
            labels[:, 4 if number else 12 :] = -100
            made.append({"input_ids": ids, "labels": labels})
        return made

    program = language_model(model, batches=batches)

    def body(step: int) -> list[torch.Tensor]:
        given, counted = batches(step), ()
        if hasattr(trainer, "get_batch_samples"):
            given, *counted = trainer.get_batch_samples(iter(given), 2)
        seen = [trainer.training_step(model, batch, *counted) for batch in given]
        program.optimizer.step()
        program.optimizer.zero_grad()
        return seen

    program.body = body
    return program


def _windowed_qwen2(_: Side) -> Program:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **{**_SIZES, "attn_implementation": "eager"}, use_sliding_window=True, sliding_window=4, max_window_layers=0
    )
    return language_model(settled(Qwen2ForCausalLM(config)))


def _windowed_mistral(_: Side) -> Program:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(**{**_SIZES, "attn_implementation": "sdpa"}, sliding_window=4)
    return language_model(settled(MistralForCausalLM(config)))


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    catalogue.add(
        Bug(
            "Mixtral's auxiliary loss is a constant",
            Kind.MIXTURE,
            report="huggingface/transformers#28255",
            fix="huggingface/transformers#28256",
            symptom="the load balancing loss is always the number of experts per token, and balances nothing",
            place="mixtral: load_balancing_loss_func",
            truth=Truth(modules=("",), directions=("forward",)),
            make=_mixtral,
            defective=transformers("4.36.2"),
            fixed=transformers("4.37.0"),
        )
    )
    catalogue.add(
        Bug(
            "Gemma activates with the exact GELU",
            Kind.ACTIVATION,
            report="huggingface/transformers#29402",
            fix="huggingface/transformers#29402",
            symptom="losses are higher than those of the original implementation, which approximates by tanh",
            place="gemma: GemmaMLP.__init__ (act_fn)",
            truth=Truth(
                modules=in_layers("model.layers.{}.mlp.act_fn", "model.layers.{}.mlp"), directions=("forward",)
            ),
            make=lambda _: _gemma(),
            defective=_GEMMA_DEFECTIVE,
            fixed=_GEMMA_FIXED,
        )
    )
    catalogue.add(
        Bug(
            "Gemma's norm rounds before its weight",
            Kind.NORM,
            report="huggingface/transformers#29402",
            fix="huggingface/transformers#29402",
            symptom="hidden states drift from the original implementation in bfloat16",
            place="gemma: GemmaRMSNorm.forward",
            truth=Truth(
                modules=(
                    *in_layers("model.layers.{}.input_layernorm", "model.layers.{}.post_attention_layernorm"),
                    "model.norm",
                ),
                directions=("forward",),
            ),
            make=lambda _: _gemma(torch.bfloat16, activation="gelu_pytorch_tanh"),
            dtype="bf16",
            defective=_GEMMA_DEFECTIVE,
            fixed=_GEMMA_FIXED,
        )
    )
    catalogue.add(
        Bug(
            "Gemma scales embeddings by an unrounded root",
            Kind.PRECISION,
            report="huggingface/transformers#29402",
            fix="huggingface/transformers#29402",
            symptom="embeddings are 55.4256 times their weights, and not 55.5 as the model was trained",
            place="gemma: GemmaModel.forward (normalizer)",
            truth=Truth(modules=("model",), directions=("forward",)),
            make=lambda _: _gemma(torch.bfloat16, hidden=80, activation="gelu_pytorch_tanh"),
            dtype="bf16",
            defective=_GEMMA_DEFECTIVE,
            fixed=_GEMMA_FIXED,
        )
    )
    catalogue.add(
        Bug(
            "rotary positions in bfloat16 under autocast",
            Kind.ROTARY,
            report="huggingface/transformers#29285",
            fix="huggingface/transformers#29285",
            symptom="neighbouring positions beyond 256 get the same rotation, and long contexts are worse",
            place="gemma: GemmaRotaryEmbedding.forward",
            truth=Truth(modules=in_layers("model.layers.{}.self_attn.rotary_emb"), directions=("forward",)),
            make=_gemma_on_long_text,
            dtype="autocast",
            defective=_GEMMA_DEFECTIVE,
            fixed=_GEMMA_FIXED,
        )
    )
    catalogue.add(
        Bug(
            "Mamba2 tiles its groups over heads",
            Kind.STATE_SPACE,
            report="huggingface/transformers#37533",
            fix="huggingface/transformers#37533",
            symptom="models with several groups fail evaluations without the fused kernels",
            place="mamba2: Mamba2Mixer.torch_forward",
            truth=Truth(modules=in_layers("backbone.layers.{}.mixer"), directions=("forward",)),
            make=_mamba2,
            defective=transformers("4.51.3"),
            fixed=transformers("4.52.4"),
        )
    )
    catalogue.add(
        Bug(
            "Mamba2 contracts chunk states wrongly",
            Kind.STATE_SPACE,
            report="huggingface/transformers#34817",
            fix="huggingface/transformers#35154",
            symptom="the slow path computes other outputs than the fused kernels",
            place="mamba2: Mamba2Mixer.torch_forward",
            truth=Truth(modules=in_layers("backbone.layers.{}.mixer"), directions=("forward",)),
            make=_mamba2,
            defective=transformers("4.47.1"),
            fixed=transformers("4.48.0"),
        )
    )
    catalogue.add(
        Bug(
            "Gemma 3 scales embeddings by an unrounded root",
            Kind.PRECISION,
            report="huggingface/transformers#37109",
            fix="huggingface/transformers#37109",
            symptom="embeddings in bfloat16 are not those of the original implementation",
            place="gemma3: Gemma3TextScaledWordEmbedding.forward",
            truth=Truth(modules=("model.embed_tokens",), directions=("forward",)),
            make=_gemma3,
            dtype="bf16",
            defective=transformers("4.50.3"),
            fixed=transformers("4.51.3"),
        )
    )
    catalogue.add(
        Bug(
            "loss averaged per micro-batch",
            Kind.ACCUMULATION,
            report="huggingface/transformers#34191",
            fix="huggingface/transformers#34191",
            symptom="losses with gradient accumulation differ from those of the same batch at once",
            place="Trainer.training_step, LlamaForCausalLM.forward (loss)",
            truth=Truth(
                modules=("",),
                calls=("Tensor.__truediv__", "Tensor.div", "Functional.cross_entropy", "Tensor.backward"),
                directions=("forward",),
            ),
            make=_trainer,
            defective=(*transformers("4.45.2"), "accelerate==1.0.1", "psutil==7.2.2"),
            fixed=(*transformers("4.46.3"), "accelerate==1.0.1", "psutil==7.2.2"),
        )
    )
    catalogue.add(
        Bug(
            "Qwen2's unfused attention without its window",
            Kind.WINDOW,
            report="huggingface/transformers#35924",
            fix="huggingface/transformers#35924",
            symptom="with eager attention tokens attend past the sliding window, which fused kernels do not allow",
            place="qwen2: Qwen2Model._update_causal_mask",
            truth=Truth(modules=("model",), directions=("forward",)),
            make=_windowed_qwen2,
            defective=transformers("4.48.1"),
            fixed=transformers("4.50.3"),
        )
    )
    catalogue.add(
        Bug(
            "Mistral's fused attention without its window",
            Kind.WINDOW,
            report="huggingface/transformers#28980",
            fix="huggingface/transformers#30127",
            symptom="with sdpa tokens attend past the sliding window",
            place="modeling_attn_mask_utils: _prepare_4d_causal_attention_mask_for_sdpa",
            truth=Truth(modules=("model",), directions=("forward",)),
            make=_windowed_mistral,
            defective=transformers("4.39.3"),
            fixed=transformers("4.40.1"),
        )
    )
