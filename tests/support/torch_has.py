"""What the installed release of PyTorch has, asked for by what it is; what tests of something else say when skipped."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest
import torch
from torch.overrides import TorchFunctionMode

SHARDS_ON_CPU = hasattr(getattr(getattr(torch, "cpu", None), "Stream", None), "record_event")
"""Whether ``fully_shard`` runs without an accelerator: it waits for events of streams, which CPUs had not."""

KINDS_OF_JOBS = [
    "ddp",
    pytest.param("fsdp2", marks=pytest.mark.skipif(not SHARDS_ON_CPU, reason="FSDP2 of this release needs a device")),
    "tp",
]


def dtypes(*names: str) -> list[torch.dtype]:
    """Return those of some dtypes that there are."""
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


@cache
def fused_optimizers() -> bool:
    """Whether optimizers can be fused on a CPU."""
    try:
        torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], fused=True)
    except RuntimeError:
        return False
    return True


@cache
def attention_under_autocast() -> bool:
    """Whether attention takes what autocast on a CPU gives it."""
    query = torch.ones(1, 1, 2, 2)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.functional.scaled_dot_product_attention(query, query, query.bfloat16())
    except RuntimeError:
        return False
    return True


@cache
def dispatched_indexing() -> bool:
    """Whether function modes see ``x[i]``."""
    seen: list[object] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Watch():
        _ = x[0]
    return bool(seen)


def needs_dtype(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not hasattr(torch, name), reason=f"this release has no torch.{name}")


needs_fused = pytest.mark.skipif(not fused_optimizers(), reason="optimizers of this release are not fused on CPUs")
needs_scaler = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this release has no torch.amp.GradScaler"
)
needs_indexing = pytest.mark.skipif(
    not dispatched_indexing(), reason="this release dispatches neither x[i] nor x[i] = y, so neither is recorded"
)


@cache
def pipelines_over_gloo() -> bool:
    """Whether a schedule of pipeline stages ends over gloo: it waited for the last message of several only."""
    if find_spec("torch.distributed.pipelining") is None:
        return False
    from torch.distributed.pipelining import schedules  # takes seconds

    return hasattr(schedules, "_wait_batch_p2p")


WITHOUT_PIPELINES = "pipeline stages of this release do not run over gloo"
