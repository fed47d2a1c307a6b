"""Healthy pairs: the fixed code beside other releases, on other kernels, in other layouts, over more steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.bugs.bug import Bug, Side, Variant
from bench.bugs.catalogue.optimizers import release as optimizers
from bench.bugs.releases import accelerate, diffusers, peft, timm, transformers

_LONG = 20
"""Steps of long pairs."""


@dataclass(frozen=True)
class Pair:
    """The golden run of a bug, or of a program of two ways, and another healthy run of it.

    Attributes:
        name: Name in tables.
        subject: The bug, or the program of two ways, whose golden run it is.
        release: Requirements of the target, in place of those of the release that fixed the bug.
        kernels: Kernels of the target.
        steps: Number of steps.
        side: Side of the subject that the target runs: the golden one, unless the program has two ways.
    """

    name: str
    subject: str
    release: Sequence[str] = ()
    kernels: str = "same"
    steps: int = 2
    side: Side = Side.GOLDEN

    def other(self, subject: Bug | Variant) -> Bug | Variant:
        """Return the subject with the other release in place of its own."""
        return replace(subject, fixed=self.release) if isinstance(subject, Bug) and self.release else subject


_MIXTRAL = "Mixtral's auxiliary loss is a constant"
_MAMBA = "Mamba2 tiles its groups over heads"
_CHUNKED_MAMBA = "Mamba2 contracts chunk states wrongly"
_GEMMA = "Gemma activates with the exact GELU"
_ROUNDED = "Gemma's norm rounds before its weight"
_QWEN = "Qwen2's unfused attention without its window"
_TRAINER = "loss averaged per micro-batch"
_TIMM = "RMSNorm divides by the standard deviation"
_MULTI_QUERY = "multi-query attention without its scale"
_MASKED = "mask applied after the softmax"
_GRID = "rotary grid with height for width"
_NORMED = "norm of an MLP never called"
_LORA = "LoRA of an embedding without its scale"
_RS_LORA = "rank-stabilised LoRA scaled by its rank"
_DORA = "DoRA normalises transposed weights by columns"
_SYNC = "update after each micro-batch"
_SHUFFLED = "ranks shuffle differently"
_FLUX = "Flux rotates by the default base"
_CAUTIOUS = "cautious updates mask the momentum"
_ADOPT = "ADOPT updates its second moment first"
_ADAMG = "AdamG inverts its bias correction"
_TODAY = "fused Adam decays like AdamW"
_JOB = "forward around the wrapper"


def _releases() -> Iterator[Pair]:
    """Yield pairs of two releases.

    Mistral's window is in none: from 4.45 on it is one position longer on the CPU than in the releases before.
    """
    for model, subject, make, versions in (
        ("Mixtral in transformers", _MIXTRAL, transformers, ("4.38.1", "4.39.0", "4.45.2")),
        ("Mamba2 in transformers", _MAMBA, transformers, ("4.53.0",)),
        ("Mamba2 in transformers", _CHUNKED_MAMBA, transformers, ("4.50.3",)),
        ("Gemma in transformers", _GEMMA, transformers, ("4.40.1",)),
        ("Qwen2 in transformers", _QWEN, transformers, ("4.51.3", "4.52.4")),
        ("a ViT in timm", _TIMM, timm, ("1.0.15",)),
        ("multi-query attention in timm", _MULTI_QUERY, timm, ("1.0.17", "1.0.24")),
        ("masked attention in timm", _MASKED, timm, ("1.0.12",)),
        ("rotary positions in timm", _GRID, timm, ("1.0.24",)),
        ("LoRA of an embedding in peft", _LORA, peft, ("0.18.1",)),
        ("rank-stabilised LoRA in peft", _RS_LORA, peft, ("0.18.1",)),
        ("DoRA in peft", _DORA, peft, ("0.12.0",)),
        ("AdEMAMix in pytorch_optimizer", _CAUTIOUS, optimizers, ("3.4.0",)),
        ("ADOPT in pytorch_optimizer", _ADOPT, optimizers, ("3.4.2",)),
        ("Flux in diffusers", _FLUX, diffusers, ("0.33.1",)),
        ("two micro-batches in accelerate", _SYNC, accelerate, ("1.1.1",)),
        ("two ranks in accelerate", _SHUFFLED, accelerate, ("1.1.1",)),
    ):
        for version in versions:
            yield Pair(f"{model} {version}", subject, make(version))
    yield Pair("Mixtral in transformers 4.38.1, other kernels", _MIXTRAL, transformers("4.38.1"), "other")
    yield Pair("Mamba2 in transformers 4.53.0, other kernels", _MAMBA, transformers("4.53.0"), "other")
    yield Pair("Gemma in transformers 4.40.1, twenty steps", _GEMMA, transformers("4.40.1"), steps=_LONG)
    yield Pair("Gemma in bfloat16 in transformers 4.40.1, other kernels", _ROUNDED, transformers("4.40.1"), "other")
    yield Pair("a ViT in timm 1.0.25, other kernels", _TIMM, timm("1.0.25"), "other")
    trainer = (*transformers("4.47.1"), "accelerate==1.0.1", "psutil==7.2.2")
    yield Pair("Trainer in transformers 4.47.1", _TRAINER, trainer)


def _kernels() -> Iterator[Pair]:
    """Yield pairs of the same code on other kernels."""
    for what, subject in (
        ("Llama", _TODAY),
        ("two ranks", _JOB),
        ("Qwen2", _QWEN),
        ("Trainer", _TRAINER),
        ("multi-query attention", _MULTI_QUERY),
        ("rotary positions of images", _GRID),
        ("an MLP with a norm", _NORMED),
        ("LoRA of an embedding", _LORA),
        ("DoRA", _DORA),
        ("AdEMAMix", _CAUTIOUS),
        ("AdamG", _ADAMG),
        ("two micro-batches", _SYNC),
        ("a resumed training", "moments lost on resumption"),
        ("packed texts", "positions count on over packed texts"),
    ):
        yield Pair(f"{what} on other kernels", subject, kernels="other")
    yield Pair("two ranks", _JOB)
    for what, subject in (("Llama", _TODAY), ("two ranks", _JOB), ("AdEMAMix", _CAUTIOUS)):
        yield Pair(f"{what} on other kernels, twenty steps", subject, kernels="other", steps=_LONG)
    for what in ("a model in bfloat16", "a model under autocast"):
        yield Pair(f"{what} on other kernels", what, kernels="other")


def _ways() -> Iterator[Pair]:
    """Yield pairs of programs of two ways."""
    for way in (
        "eager for fused attention",
        "fused for eager attention",
        "AdamW over lists for a loop",
        "fused AdamW for a loop",
        "fused AdamW for lists",
        "SGD over lists for a loop",
        "clipping over lists for a loop",
        "two micro-batches for one",
        "four micro-batches for one",
        "padding on the left for the right",
        "activations computed again",
        "two threads for one",
        "the caller's loss for the model's",
        "channels last",
        "two ranks with small buckets",
        "two ranks with views of buckets",
        "two ranks with a static graph",
        "two ranks that average by hand",
        "two ranks with sharded moments",
    ):
        yield Pair(way, way, side=Side.TARGET)
    for way in ("eager for fused attention", "fused AdamW for a loop"):
        yield Pair(f"{way}, twenty steps", way, side=Side.TARGET, steps=_LONG)


HEALTHY: Sequence[Pair] = (*_releases(), *_kernels(), *_ways())
