"""Reduces tensors by kernels in Triton's interpreter, as on a GPU, and prints the digests, for test_fused.py.

Each argument names a kernel. It runs in a process of its own: when Triton is imported, it decides whether to interpret.
"""

import contextlib
import io
import json
import logging
import sys
import warnings

import torch
from msprobe.pytorch._fused import DTYPES, FusedMoments
from msprobe.pytorch._reduce import TorchReducer
from msprobe.pytorch._statistics import ProvenKernel

from msprobe_core.model import Digest


class Wrong(FusedMoments):
    """Loses the sum."""

    def finish(self):
        numbers = super().finish()
        numbers[2::6] += 1e-6 * numbers[3::6].sqrt()
        return numbers


class Refusing(FusedMoments):
    """Cannot be compiled."""

    def add(self, values):
        raise RuntimeError("no such architecture")


class Losing(FusedMoments):
    """Fails at the end of the second window."""

    ends = 0

    def finish(self):
        Losing.ends += 1
        if Losing.ends > 1:
            raise RuntimeError("device lost")
        return super().finish()


KINDS = {kind.__name__: kind for kind in (FusedMoments, Wrong, Refusing, Losing)}


def tensors():
    torch.manual_seed(0)
    made = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for size in (1, 100, 2048, 16385):
            made[f"{dtype} {size}"] = torch.randn(size, dtype=torch.float64).to(dtype)
    made["transposed"] = torch.randn(40, 50).t()
    made["every other"] = torch.randn(100)[::2]
    made["expanded"] = torch.tensor([3.0]).expand(70)
    made["nan"] = torch.tensor([1.0, float("nan"), 2.0, float("inf")])
    made["infinite"] = torch.tensor([1.0, float("inf"), -float("inf")])
    made["minus infinity"] = torch.tensor([-float("inf")] * 5)
    made["integers"] = torch.arange(10)
    made["bool"] = torch.tensor([True, False])
    made["complex"] = torch.tensor([3 + 4j])
    made["negative"] = torch.tensor([1 + 2j, 2 - 1j]).conj().imag
    made["negated"] = torch._neg_view(torch.tensor([1.0, 2.0, -5.0]))
    made["0-d"] = torch.tensor(2.5)
    return made


def main():
    warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter computes with NumPy
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    found = {}
    for name in sys.argv[1:]:
        said = handler.stream = io.StringIO()
        kind, _, part = name.partition(", ")
        with contextlib.redirect_stderr(said):
            windows = reduce_three_times(KINDS[kind], is_real_only=part == "floats only")
        found[name] = {"windows": windows, "said": said.getvalue()}
    print(json.dumps(found))


def reduce_three_times(kind, *, is_real_only):
    Losing.ends = 0
    moments = kind(torch.device("cpu"))
    kernel = ProvenKernel(moments, DTYPES)
    taken = []
    reducer = TorchReducer(defer_host=True, find_kernel=lambda device: kernel)
    add = kernel.add
    kernel.add = lambda values, digest: taken.append(add(values, digest)) or taken[-1]
    windows = []
    given = {name: tensor for name, tensor in tensors().items() if not is_real_only or tensor.dtype in DTYPES}
    for _ in range(3):
        taken.clear()
        digests = {name: Digest() for name in given}
        for name, tensor in given.items():
            reducer.statistics(tensor, digests[name])
        reducer.collect()
        found = {name: [repr(number) for number in stats_of(digest)] for name, digest in digests.items()}
        windows.append({"taken": sum(taken), "stats": found})
    return windows


def stats_of(digest):
    stats = digest.stats
    return stats.max, stats.min, stats.mean, stats.l2_norm, stats.num_nan, stats.num_inf


if __name__ == "__main__":
    main()
