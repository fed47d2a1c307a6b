"""Bugs of libraries for adapters and training loops; both sides run the code that was released."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.catalogue import in_layers
from bench.bugs.program import VOCABULARY, Program, language_model, settled, tokens
from bench.bugs.releases import accelerate, peft
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
