"""Tiny trainings of real architectures, in which faults are planted, and how they are recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812

from bench.faults.recording import DTYPES, MODES, NUM_REPEATS, STEPS

IGNORED = -100
VOCABULARY, LENGTH, BATCH = 256, 16, 4

_SIZES = {"hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 96}
_TOKENS = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, **_SIZES}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Anatomy:
    """Paths of the parts in which faults are planted; empty if an architecture has no such part.

    All parts are in ``block``, in the middle of the model; ``peer`` is the next block. The same parts of
    another block have ``other`` in place of ``block`` in their path.
    """

    block: str
    peer: str
    attention: str
    query: str
    out: str
    norm: str
    up: str
    down: str
    activation: str
    embedding: str
    head: str
    value: str = ""
    key: str = ""
    biased: str = ""
    rotary: str = ""
    router: str = ""
    experts: str = ""
    dropout: str = ""
    residual: str = ""
    causal: str = ""
    gelu: str = ""
    silu: str = ""
    positions: str = ""
    padded: str = ""
    tied: str = ""

    def has(self, parts: Any) -> bool:
        return all(getattr(self, part) for part in parts)


@dataclass(frozen=True)
class Architecture:
    """A model class with its tiny configuration, a batch and a loss for it."""

    split: str
    model: str
    make_config: Callable[[], Any]
    make_batch: Callable[[], dict[str, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    anatomy: Anatomy


def plain_loss(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the cross entropy of ``logits`` [..., classes] and ``labels`` [...]."""
    options = {"ignore_index": IGNORED, **options}
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), **options)


def shifted_loss(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the cross entropy of logits [batch, sequence, classes] and the next labels [batch, sequence]."""
    return plain_loss(logits[:, :-1], labels[:, 1:], **options)


def _text() -> dict[str, torch.Tensor]:
    tokens = torch.randint(2, VOCABULARY, (BATCH, LENGTH))
    labels = tokens.clone()
    labels[:, -3:] = IGNORED
    return {"input_ids": tokens, "labels": labels}


def _masked_text() -> dict[str, torch.Tensor]:
    batch = _text()
    batch["labels"] = torch.where(torch.rand(BATCH, LENGTH) < 0.4, batch["input_ids"], IGNORED)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, -4:] = 0
    return {**batch, "attention_mask": mask}


def _images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": torch.randint(0, 10, (BATCH,))}


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
        _text,
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
        _text,
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
        _masked_text,
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
        _text,
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
        _images,
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
        _text,
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
}  # fmt: skip


@dataclass
class Training:
    """A training of some steps, whose parts a fault may replace.

    Attributes:
        name: Name of the architecture.
        dtype: Name of the model's dtype.
        recipe: ``plain``, or ``accumulation`` over two micro-batches.
        options: Options of the model's configuration.
        num_micro_batches: Number of micro-batches in a step's batch.
        divisor: Divisor of the loss of a micro-batch.
        clip: Maximum norm of the gradients; ``None`` for no clipping.
        after_backward: Called before the gradients are clipped.
        after_update: Called after the optimizer's step, with its number.
        zeroes: Whether gradients are cleared after a step.
    """

    name: str
    dtype: str = "fp32"
    recipe: str = "plain"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        architecture = ARCHITECTURES[self.name]
        torch.manual_seed(0)
        config = architecture.make_config()
        for name, value in self.options.items():
            setattr(config, name, value)
        self.model: nn.Module = getattr(transformers, architecture.model)(config).train().to(DTYPES[self.dtype])
        self.spread()
        self.anatomy = architecture.anatomy
        self.loss: Callable[..., torch.Tensor] = architecture.loss
        self.make_batch = architecture.make_batch
        self.num_micro_batches = 2 if self.recipe == "accumulation" else 1
        self.divisor = self.num_micro_batches
        self.clip: float | None = 1.0
        self.zeroes = True
        self.change_batch: Callable[[dict[str, torch.Tensor], int], dict[str, torch.Tensor]] = lambda batch, _: batch
        self.after_backward: list[Callable[[], None]] = []
        self.after_update: list[Callable[[int], object]] = []
        self.num_threads = 1
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=1e-2, foreach=False)

    def spread(self) -> None:
        """Give each parameter distinct values, as after training: no bias is zero and no scale is one."""
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_((0.05 * noise).to(parameter.dtype))

    def module(self, path: str) -> Any:
        return self.model.get_submodule(path)

    def part(self, name: str) -> Any:
        """Return the module of the anatomy's part ``name``."""
        return self.module(getattr(self.anatomy, name))

    def paths_of(self, path: str) -> tuple[str, ...]:
        """Return all names of a module, which may be in several places."""
        module = self.module(path)
        return tuple(name for name, one in self.model.named_modules(remove_duplicate=False) if one is module)

    def batches(self, step: int) -> list[dict[str, torch.Tensor]]:
        """Return the micro-batches of a step."""
        state = torch.get_rng_state()
        torch.manual_seed(1000 + step)
        batch = self.change_batch(self.make_batch(), step)
        torch.set_rng_state(state)
        dtype = DTYPES[self.dtype]
        batch = {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}
        num = self.num_micro_batches
        return [
            dict(zip(batch, parts, strict=True)) for parts in zip(*(t.chunk(num) for t in batch.values()), strict=True)
        ]

    def step(self, step: int) -> list[torch.Tensor]:
        """Train one step, and return tensors that differ if two trainings differ."""
        torch.manual_seed(step)
        seen: list[torch.Tensor] = []
        for batch in self.batches(step):
            labels = batch.pop("labels")
            more = {"decoder_input_ids": labels.clamp(min=0)} if self.name == "t5" else {}
            logits = self.model(**batch, **more).logits
            loss = self.loss(logits, labels)
            if self.num_micro_batches > 1:
                loss = loss / self.divisor
            loss.backward()
            seen += [logits.detach(), loss.detach()]
        for call in self.after_backward:
            call()
        seen += [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        for call in self.after_update:
            call(step)
        if self.zeroes:
            self.optimizer.zero_grad()
        return seen

    def fingerprint(self, kernels: AbstractContextManager[object] | None = None) -> str:
        """Train, and return a digest of all outputs, losses, gradients and weights."""
        digest = hashlib.sha256()
        for step in range(STEPS):
            with kernels or nullcontext():
                seen = self.step(step)
            for tensor in (*seen, *(p.detach() for p in self.model.parameters())):
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def record_golden(self, directory: Path, mode: str) -> None:
        """Train, record each step into ``directory``, and repeat all of them with perturbed last digits."""
        from msprobe.pytorch import PrecisionDebugger, calibration

        directory.mkdir(parents=True)
        config = directory.with_suffix(".json")
        config.write_text(json.dumps({"level": "mix", "dump_path": str(directory), **MODES[mode]}))
        debugger = PrecisionDebugger(str(config))
        with calibration(debugger, self.model, [self.optimizer], repeats=NUM_REPEATS) as runs:
            for _ in runs:
                for step in range(STEPS):
                    self.step(step)
                    debugger.step()
        debugger.close()

    def record(
        self,
        directory: Path,
        mode: str,
        *,
        kernels: AbstractContextManager[object] | None = None,
        perturb: dict[str, int] | None = None,
    ) -> None:
        """Train and record each step into ``directory``.

        Args:
            directory: Must not exist.
            mode: Configuration of the recording.
            kernels: Context with alternative kernels; by default the framework's own.
            perturb: The debugger's setting for perturbation.
        """
        from msprobe.pytorch import PrecisionDebugger

        directory.mkdir(parents=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.num_threads)
        config = directory / "config.json"
        more = {} if perturb is None else {"perturb": perturb}
        config.write_text(json.dumps({"level": "mix", "dump_path": str(directory), **MODES[mode], **more}))
        debugger = PrecisionDebugger(str(config))
        for step in range(STEPS):
            debugger.start(self.model)
            with kernels or nullcontext():
                self.step(step)
            debugger.stop()
            debugger.step()
        debugger.close()
        torch.set_num_threads(threads)
        config.unlink()
