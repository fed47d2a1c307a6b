"""Healthy pairs: the fixed code beside other releases, on other kernels, over more steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.bugs.bug import Bug
from bench.bugs.releases import timm, transformers


@dataclass(frozen=True)
class Pair:
    """The golden run of a bug, and another healthy run of the same program.

    Attributes:
        name: Name in tables.
        bug: The bug whose golden run it is.
        release: Requirements of the other release; empty for the same.
        kernels: Kernels of the target.
        steps: Number of steps.
    """

    name: str
    bug: str
    release: Sequence[str] = ()
    kernels: str = "same"
    steps: int = 2

    def of(self, bug: Bug) -> Bug:
        """Return the bug with the other release in place of the one that fixed it."""
        return replace(bug, fixed=self.release) if self.release else bug


_MIXTRAL = "Mixtral's auxiliary loss is a constant"
_MAMBA = "Mamba2 tiles its groups over heads"
_GEMMA = "Gemma activates with the exact GELU"
_ROUNDED = "Gemma's norm rounds before its weight"
_TIMM = "RMSNorm divides by the standard deviation"
_TODAY = "fused Adam decays like AdamW"
_JOB = "forward around the wrapper"

HEALTHY: Sequence[Pair] = (
    Pair("Mixtral in transformers 4.38.1", _MIXTRAL, transformers("4.38.1")),
    Pair("Mixtral in transformers 4.38.1, other kernels", _MIXTRAL, transformers("4.38.1"), "other"),
    Pair("Mixtral in transformers 4.45.2", _MIXTRAL, transformers("4.45.2")),
    Pair("Mamba2 in transformers 4.53.0", _MAMBA, transformers("4.53.0")),
    Pair("Mamba2 in transformers 4.53.0, other kernels", _MAMBA, transformers("4.53.0"), "other"),
    Pair("Gemma in transformers 4.40.1", _GEMMA, transformers("4.40.1")),
    Pair("Gemma in transformers 4.40.1, twenty steps", _GEMMA, transformers("4.40.1"), steps=20),
    Pair("Gemma in bfloat16 in transformers 4.40.1, other kernels", _ROUNDED, transformers("4.40.1"), "other"),
    Pair("a ViT in timm 1.0.15", _TIMM, timm("1.0.15")),
    Pair("a ViT in timm 1.0.25, other kernels", _TIMM, timm("1.0.25"), "other"),
    Pair("Llama on other kernels", _TODAY, kernels="other"),
    Pair("Llama on other kernels, twenty steps", _TODAY, kernels="other", steps=20),
    Pair("two ranks", _JOB),
    Pair("two ranks on other kernels", _JOB, kernels="other"),
    Pair("two ranks on other kernels, twenty steps", _JOB, kernels="other", steps=20),
)
