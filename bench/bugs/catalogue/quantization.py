"""Bugs of quantised models: of a release of `torchao`, and one defect re-created in today's code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.bugs.bug import Bug, Catalogue, Kind, Side
from bench.bugs.program import VOCABULARY, Batch, Program, settled, tokens
from bench.bugs.releases import torchao
from bench.faults.truth import Truth

_WIDTH, _GROUP = 256, 32
"""Inputs of a layer, and how many of them share a scale; torchao's default is 128."""


class _Layers(nn.Module):
    """A classifier of tokens whose two layers have no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.head = nn.Linear(_WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(torch.tanh(self.up(self.embed(ids)))))


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return settled(_Layers())


def _loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def _batches(step: int) -> list[Batch]:
    return [{"ids": tokens(step)}]


def _is_inner(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and name in {"up", "down"}


def _trained_for_int4(_: Side) -> Program:
    """Return a training that rounds weights as int4 would."""
    from torchao.quantization import Int4WeightOnlyConfig, quantize_  # pyright: ignore[reportMissingImports]
    from torchao.quantization.qat import QATConfig  # pyright: ignore[reportMissingImports]

    model = _layers().to(torch.bfloat16)
    quantize_(model, QATConfig(Int4WeightOnlyConfig(group_size=_GROUP), step="prepare"), _is_inner)
    return Program(model, lambda batch: _loss(model, batch["ids"]), _batches)


class _Integers(nn.Module):
    """A linear layer on integers with a scale and a zero point; the defect subtracts the zero point in int8."""

    weight: torch.Tensor

    def __init__(self, linear: nn.Linear, *, is_defective: bool) -> None:
        super().__init__()
        self.is_defective, self.zero_point = is_defective, -20
        scale = linear.weight.detach().abs().amax() / 127
        self.scale, self.input_scale = float(scale), 0.001
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stored = (x / self.input_scale + self.zero_point).round().clamp(-128, 127).to(torch.int8)
        if self.is_defective:
            centred = (stored - torch.tensor(self.zero_point, dtype=torch.int8)).float()
        else:
            centred = stored.float() - self.zero_point
        return nn.functional.linear(centred, self.weight.float()) * (self.scale * self.input_scale)


def _computed_in_int8(side: Side) -> Program:
    model: Any = _layers().eval()
    for name in ("up", "down"):
        setattr(model, name, _Integers(getattr(model, name), is_defective=side is Side.TARGET))

    def body(step: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return [model(tokens(step))]

    return Program(model, lambda _: torch.zeros(()), _batches, body=body)


def add_to(catalogue: Catalogue) -> None:
    """Add the bugs."""
    catalogue.add(
        Bug(
            "training for int4 ignores its group size",
            Kind.QUANTIZATION,
            report="pytorch/ao#3572",
            fix="pytorch/ao#4518",
            symptom="models are trained with groups of 128 weights, and stored with groups of the configured size",
            place="torchao.quantization.qat: _infer_fake_quantize_configs (Int4WeightOnlyConfig)",
            truth=Truth(
                modules=("up", "up.weight_fake_quantizer", "down", "down.weight_fake_quantizer"),
                directions=("forward",),
            ),
            make=_trained_for_int4,
            dtype="bf16",
            defective=torchao("0.17.0"),
            fixed=torchao("0.18.0"),
        )
    )
    catalogue.add(
        Bug(
            "zero point subtracted in int8",
            Kind.QUANTIZATION,
            report="pytorch/executorch#20655",
            fix="pytorch/executorch#20655",
            symptom="reference kernels differ from the deployed ones wherever the zero point is negative",
            place="ref_implementations: quantized_linear",
            truth=Truth(modules=("up", "down"), directions=("forward",)),
            make=_computed_in_int8,
        )
    )
