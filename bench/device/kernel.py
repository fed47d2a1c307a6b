"""Chapter 2: the kernel that computes all statistics of a tensor, against PyTorch's operators."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from functools import partial

import torch
from msprobe.pytorch._statistics import DeferredStatistics
from torch import Tensor

from bench.device.chapters import Case, Chapter, Outcome, Proof
from bench.device.machine import Machine
from msprobe_core.model import Digest

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_SAME = 1e-9
_MOST_BYTES = 8 << 30


def _compare(values: Tensor, machine: Machine) -> Outcome:
    from msprobe.pytorch._fused import FusedMoments

    kernel, operators, digest = FusedMoments(values.device), DeferredStatistics(), Digest()
    place = kernel.place_of(kernel.add(values))
    high, low, total, squares, *_ = kernel.finish()[place:].tolist()
    operators.add(values, digest)
    vector = operators.finish()
    assert vector is not None
    operators.fill_in(vector)
    stats = digest.stats
    assert stats is not None
    assert stats.mean is not None
    assert stats.l2_norm is not None
    scale = stats.l2_norm * math.sqrt(values.numel())
    difference = max(abs(math.sqrt(squares) / stats.l2_norm - 1), abs(total - stats.mean * values.numel()) / scale)
    is_same = (high, low) == (stats.max, stats.min) and difference <= _SAME
    times = [_seconds(values, machine, by_kernel=by_kernel) for by_kernel in (True, False)]
    speed = values.nbytes / times[0] / 1e9
    cells = f"{difference:.1e}", f"{1e6 * times[0]:.1f}", f"{1e6 * times[1]:.1f}", f"{speed:.0f}"
    return Outcome(cells, holds=is_same and (times[0] <= times[1] or not machine.is_real))


def _seconds(values: Tensor, machine: Machine, *, by_kernel: bool) -> float:
    from msprobe.pytorch._fused import FusedMoments

    count = max(2, min(50, (16 << 30) // values.nbytes)) if machine.is_real else 2
    one = FusedMoments(values.device)

    def run() -> None:
        for _ in range(count):
            if by_kernel:
                one.add(values)
            else:
                DeferredStatistics().add(values, Digest())
        if by_kernel:
            one.finish()

    machine.seconds(run)
    return min(machine.seconds(run) for _ in range(3)) / count


def _case(size: int, dtype: torch.dtype, machine: Machine) -> Outcome:
    torch.manual_seed(0)
    values = torch.randn(size, dtype=dtype, device=machine.kind)
    try:
        return _compare(values, machine)
    finally:
        del values
        machine.release()


def _cases(proof: Proof) -> Iterator[Case]:
    machine = proof.machine
    interprets = os.environ.get("TRITON_INTERPRET") == "1" and machine.kind == "cpu"
    if importlib.util.find_spec("triton") is None or not (machine.kind == "cuda" or interprets):
        return
    for name in _DTYPES:
        for power in range(2, 10 if machine.is_real else 5):
            dtype = getattr(torch, name)
            if dtype.itemsize * 10**power <= _MOST_BYTES:
                yield Case(f"{name}, 10^{power} elements", partial(_case, 10**power, dtype, machine))


KERNEL = Chapter(
    "kernel",
    "The kernel against PyTorch's operators",
    ("difference of sums", "kernel, µs", "operators, µs", "GB/s of the kernel"),
    _cases,
    absent="The device has no such kernel, or Triton is not installed.",
    is_timed=True,
)
