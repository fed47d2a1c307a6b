"""Trainings on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from bench.device.machine import Machine
from bench.faults.architectures import ARCHITECTURES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "autocast": torch.float32}


@dataclass
class Training:
    """A training.

    Attributes:
        model: The model.
        machine: Where it is.
        batches: Batches, which repeat.
        is_autocast: Whether forward passes run in autocast to bfloat16.
        losses: Of all steps so far, on the device.
    """

    model: nn.Module
    machine: Machine
    batches: list[dict[str, Tensor]]
    is_autocast: bool = False
    losses: list[Tensor] = field(default_factory=list[Tensor])

    def __post_init__(self) -> None:
        self.renew_optimizer()
        self.call: Callable[..., Any] = self.model

    def renew_optimizer(self) -> None:
        """Begin with the parameters that the model has now."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self) -> Tensor:
        """Train one step; return the loss."""
        batch = self.batches[len(self.losses) % len(self.batches)]
        around = torch.autocast(self.machine.kind, torch.bfloat16) if self.is_autocast else nullcontext()
        with around:
            loss = self.call(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.losses.append(loss.detach())
        return loss

    def state(self) -> dict[str, str]:
        """Return digests of losses, gradients, weights and moments."""
        tensors = {f"loss {number}": loss for number, loss in enumerate(self.losses)}
        for name, parameter in self.model.named_parameters():
            tensors[name] = parameter
            if parameter.grad is not None:
                tensors[f"{name} grad"] = parameter.grad
            moments: dict[str, Any] = self.optimizer.state.get(parameter, {})
            tensors |= {f"{name} {key}": value for key, value in moments.items() if isinstance(value, Tensor)}
        return {name: _digest(tensor) for name, tensor in tensors.items()}


def _digest(tensor: Tensor) -> str:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore[reportAttributeAccessIssue]
    values = local.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).hexdigest()


def tiny(name: str, dtype: str, machine: Machine) -> Training:
    """Return a training of a tiny model of a real architecture, the same each time."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = architecture.build({}).to(DTYPES[dtype]).train()
    batches = [architecture.make_batch() for _ in range(3)]
    plain = DTYPES[dtype]
    placed = [
        {key: (value.to(plain) if value.is_floating_point() else value).to(machine.kind) for key, value in one.items()}
        for one in batches
    ]
    return Training(model.to(machine.kind), machine, placed, is_autocast=dtype == "autocast")


@dataclass(frozen=True)
class Size:
    """Sizes of a Llama and of its batch."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    length: int
    batch: int = 1


LARGE = Size(4096, 11008, 4, 32, 32000, 4096)
"""Four layers of a model with seven billion parameters."""

MEDIUM = Size(1024, 2816, 4, 16, 8192, 512, 2)
SMALL = Size(64, 96, 2, 4, 256, 16, 2)


def llama(size: Size, dtype: torch.dtype, machine: Machine) -> Training:
    """Return a training of a Llama with random weights."""
    torch.manual_seed(0)
    config: Any = transformers.LlamaConfig(
        hidden_size=size.hidden, intermediate_size=size.intermediate, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.heads, vocab_size=size.vocabulary,
        max_position_embeddings=size.length, use_cache=False,
    )  # fmt: skip
    with torch.device(
        machine.kind if machine.kind == "cuda" else "cpu"
    ):  # a host takes half a minute for the large one
        model: Any = transformers.LlamaForCausalLM(config)
    model = model.to(dtype).to(machine.kind).train()
    tokens = torch.randint(size.vocabulary, (size.batch, size.length)).to(machine.kind)
    return Training(model, machine, [{"input_ids": tokens, "labels": tokens}])
