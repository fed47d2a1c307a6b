"""Bugs of libraries for adapters and training loops; both sides run the code that was released."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.catalogue import in_layers
from bench.bugs.program import VOCABULARY, Program, classifier, language_model, settled, tokens
from bench.bugs.releases import accelerate, diffusers, peft
from bench.faults.truth import Truth


def _adapted(*targets: str, **options: Any) -> Any:
    """Return Gemma 3 with LoRA, whose own parameters are settled too."""
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=8,
    )  # fmt: skip
    model = get_peft_model(Gemma3ForCausalLM(config), LoraConfig(target_modules=list(targets), **options))
    return settled(model)


def _embedding_adapter(_: Side) -> Program:
    return language_model(_adapted("embed_tokens", r=4))


def _stabilized_adapter(_: Side) -> Program:
    model = _adapted("q_proj", "v_proj", r=16, lora_alpha=16, use_rslora=True)
    for module in model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 1.0)
    return language_model(model)


def _decomposed(_: Side) -> Program:
    """Return GPT-2, whose layers store their weights transposed, with DoRA on a square one."""
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
    bare = settled(GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)))
    targets = LoraConfig(target_modules=["attn.c_proj"], r=4, use_dora=True, fan_in_fan_out=True)
    model = settled(get_peft_model(bare, targets))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:  # its name and its beginning are others in other releases
                parameter.fill_(1.0)
    return language_model(model)


def _scaled_rates(_: Side) -> Program:
    from peft.optimizers import create_loraplus_optimizer  # pyright: ignore[reportMissingImports]

    model = _adapted("embed_tokens", "q_proj", r=4)
    optimizer = create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=4.0, loraplus_lr_embedding=1e-5, foreach=False
    )
    return language_model(model, optimizer=optimizer)


class _Rotated(nn.Module):
    """Attention on image tokens between a stem and a head, rotated by a positional embedding of a library."""

    def __init__(self, rope: nn.Module) -> None:
        super().__init__()
        self.stem, self.rope, self.qkv = nn.Conv2d(3, 16, 4, stride=4), rope, nn.Linear(16, 48)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).mT
        grid = torch.arange(4.0)
        ids = torch.cartesian_prod(torch.zeros(1), grid, grid)
        cos, sin = self.rope(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = (each * cos + torch.stack((-each[..., 1::2], each[..., ::2]), -1).flatten(-2) * sin for each in (q, k))
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v).mean(1))


def _flux_positions(_: Side) -> Program:
    from diffusers.models.embeddings import FluxPosEmbed  # pyright: ignore[reportMissingImports]

    return classifier(settled(_Rotated(FluxPosEmbed(theta=100, axes_dim=[4, 6, 6]))))


class _Small(nn.Module):
    """A classifier of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 32), nn.Linear(32, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.embed(ids))))


def _loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def _accumulating(_: Side) -> Program:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
    from accelerate.utils import GradientAccumulationPlugin  # pyright: ignore[reportMissingImports]

    plugin = GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    accelerator: Any = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    bare = settled(_Small())
    model, optimizer = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), lr=1e-2, foreach=False))

    def body(step: int) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []
        for number in range(2):
            with accelerator.accumulate(model):
                loss = _loss(model, tokens(step, number=number))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            seen.append(loss.detach())
        return seen

    return Program(model, lambda batch: _loss(model, batch["ids"]), lambda _: [], optimizer, body=body)


def _sharded_loader(_: Side) -> Program:
    """Return a training whose ranks share a shuffled data set, each with a random state of its own."""
    import os

    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    rank = dist.get_rank()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(dist.get_world_size())}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # asked for, and not used: ranks have met
    accelerator: Any = Accelerator(cpu=True)
    torch.manual_seed(100 + rank)
    data = [one for number in range(8) for one in tokens(0, number=number)]
    loader = accelerator.prepare(DataLoader(data, batch_size=2, shuffle=True))  # pyright: ignore[reportArgumentType]
    batches = iter(loader)
    model = DistributedDataParallel(settled(_Small()))
    return Program(model, lambda batch: _loss(model, batch["ids"]), lambda _: [{"ids": next(batches)}])


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    catalogue.add(
        Bug(
            "LoRA of an embedding without its scale",
            Kind.ADAPTER,
            report="huggingface/peft#2809",
            fix="huggingface/peft#2825",
            symptom="gradients are too large and losses wrong when embeddings of Gemma 3 are adapted",
            place="peft.tuners.lora: Embedding.forward",
            truth=Truth(modules=("base_model.model.model.embed_tokens",), directions=("forward",)),
            make=_embedding_adapter,
            defective=peft("0.17.1"),
            fixed=peft("0.18.0"),
        )
    )
    catalogue.add(
        Bug(
            "rank-stabilised LoRA scaled by its rank",
            Kind.ADAPTER,
            report="huggingface/peft#2733",
            fix="huggingface/peft#2775",
            symptom="adapters have a quarter of their effect once their scale is set",
            place="peft.tuners.lora: LoraLayer.set_scale",
            truth=Truth(
                modules=in_layers(
                    "base_model.model.model.layers.{}.self_attn.q_proj",
                    "base_model.model.model.layers.{}.self_attn.v_proj",
                ),
                directions=("forward",),
            ),
            make=_stabilized_adapter,
            defective=peft("0.17.1"),
            fixed=peft("0.18.0"),
        )
    )
    catalogue.add(
        Bug(
            "update after each micro-batch",
            Kind.ACCUMULATION,
            report="huggingface/transformers#29425",
            fix="huggingface/accelerate#2790",
            symptom="training with sync_each_batch does not accumulate",
            place="Accelerator._do_sync",
            truth=Truth(groups=("optimizer",)),
            make=_accumulating,
            defective=accelerate("0.30.1"),
            fixed=accelerate("0.31.0"),
        )
    )
    catalogue.add(
        Bug(
            "ranks shuffle differently",
            Kind.SAMPLER,
            report="huggingface/accelerate#2268",
            fix="huggingface/accelerate#2694",
            symptom="ranks see samples that others have seen, and other samples are left out",
            place="accelerate.data_loader: prepare_data_loader",
            truth=Truth(modules=("embed", ""), directions=("forward",), steps=(0,)),
            make=_sharded_loader,
            defective=accelerate("0.29.3"),
            fixed=accelerate("0.30.1"),
            world=2,
        )
    )
    catalogue.add(
        Bug(
            "DoRA normalises transposed weights by columns",
            Kind.ADAPTER,
            report="huggingface/peft#1588",
            fix="huggingface/peft#1588",
            symptom="DoRA of GPT-2 fails on layers that are not square, and trains others wrongly",
            place="peft.tuners.lora: DoRA of Conv1D",
            truth=Truth(
                modules=in_layers(
                    "base_model.model.transformer.h.{}.attn.c_proj",
                    "base_model.model.transformer.h.{}.attn.c_proj.lora_magnitude_vector.default",
                ),
                directions=("forward",),
            ),
            make=_decomposed,
            defective=peft("0.10.0"),
            fixed=peft("0.11.1"),
        )
    )
    catalogue.add(
        Bug(
            "LoRA+ trains embeddings at the rate of matrices",
            Kind.OPTIMIZER,
            report="huggingface/peft#3503",
            fix="huggingface/peft#3503",
            symptom="loraplus_lr_embedding has no effect",
            place="peft.optimizers: create_loraplus_optimizer",
            truth=Truth(groups=("optimizer",)),
            make=_scaled_rates,
            defective=peft("0.20.0"),
            fixed=peft("0.21.0"),
        )
    )
    catalogue.add(
        Bug(
            "Flux rotates by the default base",
            Kind.ROTARY,
            report="huggingface/diffusers#10115",
            fix="huggingface/diffusers#10115",
            symptom="theta has no effect on positions",
            place="diffusers.models.embeddings: FluxPosEmbed.forward",
            truth=Truth(modules=("rope",), directions=("forward",)),
            make=_flux_positions,
            defective=diffusers("0.31.0"),
            fixed=diffusers("0.32.2"),
        )
    )
