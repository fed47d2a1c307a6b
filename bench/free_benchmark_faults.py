"""Plant wrong kernels in a training, and see whether the task ``free_benchmark`` names them, without a golden run.

    python -m bench.free_benchmark_faults [--models llama,gpt2] [--dtypes bf16,fp32] [--modes bit_noise] [--healthy 30]

Each kernel is wrong for the dtypes of trainings, and right in float64, as that of a device is while the host's is
right. A fault is found if a call of its operator is called wrong or suspect within three steps; with ``--healthy``
trainings without a fault are run for so many steps, and each such call is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from architectures import ARCHITECTURES, train
from msprobe.pytorch import PrecisionDebugger

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Wrong = Callable[..., Any]
_NUM_STEPS = 3


def narrow(values: torch.Tensor) -> torch.Tensor:
    """Return values rounded to half the digits that their dtype has."""
    return values.to(torch.float8_e4m3fn if values.dtype is torch.bfloat16 else torch.bfloat16).to(values.dtype)


def narrow_product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Multiply with an accumulator of too few digits, which is rounded after each fourth term."""
    total = torch.zeros(one.shape[0], other.shape[1], dtype=one.dtype)
    for begin in range(0, one.shape[1], 4):
        part = one[:, begin : begin + 4].double() @ other[begin : begin + 4].double()
        total = (total.double() + part).to(torch.bfloat16).to(one.dtype)
        if one.dtype is torch.bfloat16:
            total = torch.where(total.abs() < 448, narrow(total), total)
    return total


def truncated(values: torch.Tensor) -> torch.Tensor:
    """Cut off the lower half of the mantissa."""
    bits = values.float().view(torch.int32)
    keep = -(1 << 20) if values.dtype is torch.bfloat16 else -(1 << 13)
    return (bits & keep).view(torch.float32).to(values.dtype)


def raced_sum(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    """Add up in an order that differs from time to time."""
    wide = x.to(dtype or x.dtype)
    if dim is None or not wide.is_floating_point():
        return torch.ops.aten.sum.IntList_out(wide, dim, keepdim, out=torch.empty(0, dtype=wide.dtype))
    places = [each % wide.dim() for each in dim] or list(range(wide.dim()))
    others = [each for each in range(wide.dim()) if each not in places]
    flat = wide.permute(*others, *places).reshape([wide.shape[each] for each in others] + [-1])
    order = random.sample(range(flat.shape[-1]), flat.shape[-1])
    total = torch.zeros(flat.shape[:-1], dtype=wide.dtype)
    for place in order:
        total = total + flat[..., place]
    if keepdim:
        for each in sorted(places):
            total = total.unsqueeze(each)
    return total


def one_pass_norm(x: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Normalise by the difference of the mean square and the squared mean, in half precision."""
    dims = tuple(range(-len(shape), 0))
    if x.dtype is torch.float64:
        mean, variance = x.mean(dims, keepdim=True), x.var(dims, unbiased=False, keepdim=True)
    else:
        low = x.to(torch.bfloat16)
        mean = low.mean(dims, keepdim=True)
        variance = ((low * low).mean(dims, keepdim=True) - mean * mean).clamp_min(0)
        mean, variance = mean.to(x.dtype), variance.to(x.dtype)
    scale = (variance + eps).rsqrt()
    result = (x - mean) * scale
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result, mean, scale


def _unless_exact(right: Wrong, wrong: Wrong) -> Wrong:
    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        is_exact = any(each.dtype is torch.float64 for each in tensors)
        return (right if is_exact else wrong)(*args, **kwargs)

    return run


def _mm(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.bmm(one[None], other[None])[0]


def _addmm(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return beta * bias + alpha * narrow_product(one, other)


def _right_addmm(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return beta * bias + alpha * _mm(one, other)


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Compute exponentials and their sum in half precision, without the cast to float32."""
    if x.dtype is torch.float64:
        shifted = (x - x.amax(dim, keepdim=True)).exp()
        return shifted / shifted.sum(dim, keepdim=True)
    low = x.to(torch.bfloat16)
    shifted = (low - low.amax(dim, keepdim=True)).exp()
    found = narrow(shifted / shifted.sum(dim, keepdim=True))
    return found.to(torch.float32 if half_to_float else x.dtype)


FAULTS: dict[str, tuple[dict[str, Wrong], str, tuple[str, ...]]] = {
    "truncation": (
        {"silu": _unless_exact(lambda x: x / (1 + (-x).exp()), lambda x: truncated(x / (1 + (-x).exp()))),
         "gelu": _unless_exact(
             lambda x, *, approximate="none": 0.5 * x * (1 + torch.erf(x * 0.5**0.5)),  # noqa: ARG005
             lambda x, *, approximate="none": truncated(0.5 * x * (1 + torch.erf(x * 0.5**0.5))))},  # noqa: ARG005
        "silu gelu", ("bit_noise", "improve_precision", "change_value"),
    ),
    "narrow accumulator": (
        {"mm": _unless_exact(_mm, narrow_product), "addmm": _unless_exact(_right_addmm, _addmm)},
        "linear matmul addmm conv1d Conv1D", ("bit_noise", "improve_precision"),
    ),
    "variance formula": ({"native_layer_norm": one_pass_norm}, "layer_norm", ("bit_noise", "improve_precision")),
    "missing cast": ({"_softmax": _softmax}, "softmax", ("bit_noise", "improve_precision")),
    "race": ({"sum.dim_IntList": raced_sum, "mean.dim": lambda x, dim, keepdim=False, *, dtype=None: (
        raced_sum(x, dim, keepdim, dtype=dtype) / (x.numel() / max(raced_sum(x, dim).numel(), 1)))},
        "sum mean", ("no_change",)),
}  # fmt: skip
"""Kernels of operators, the APIs that use them, and modes that may find it."""


@contextmanager
def planted(kernels: dict[str, Wrong]) -> Iterator[None]:
    """Replace kernels of the CPU."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")
        yield
    finally:
        library._destroy()


def verdicts(
    name: str, dtype: torch.dtype, mode: str, stage: str, num_steps: int, **overrides: Any
) -> list[dict[str, Any]]:  # fmt: skip
    """Train a model under the task, and return the lines that it writes."""
    with tempfile.TemporaryDirectory() as place:
        options = {"pert_mode": mode, "fuzz_stage": stage, "budget": 1000, "sample": 1000, "max_sample": 1000}
        path = Path(place) / "config.json"
        path.write_text(json.dumps({"task": "free_benchmark", "free_benchmark": options}))
        architecture = ARCHITECTURES[name]
        model = architecture.build(**overrides).to(dtype)
        try:
            train(architecture.build(**overrides).to(dtype), architecture, 0)
        except RuntimeError:  # its data are float32, and it has no cast
            return []
        debugger = PrecisionDebugger(str(path), dump_path=f"{place}/run")
        try:
            for step in range(num_steps):
                debugger.start(model)
                train(model, architecture, step)
                debugger.stop()
                debugger.step()
        finally:
            debugger.close()
        files = sorted(Path(place, "run").glob("step*/*/free_benchmark.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _api(call: str) -> str:
    return call.split(".")[1]


def main() -> None:
    """Run the cases, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(ARCHITECTURES))
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--modes", default="bit_noise,improve_precision,change_value,no_change,add_noise")
    parser.add_argument("--stage", default="forward")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="attention by single functions, as softmax")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total: Counter[str] = Counter()
    overrides = {"_attn_implementation": "eager"} if options.eager else {}
    for dtype in options.dtypes.split(","):
        for name in options.models.split(","):
            for mode in options.modes.split(","):
                if options.healthy:
                    lines = verdicts(name, DTYPES[dtype], mode, options.stage, options.healthy, **overrides)
                    bad = [line for line in lines if line["verdict"] in ("wrong", "suspect")]
                    judged = sum(line["verdict"] != "cannot_tell" for line in lines)
                    total["judged"] += judged
                    total["alarms"] += len(bad)
                    print(f"{dtype} {name} {mode}: {judged} judged, {len(bad)} alarms", flush=True)
                    for line in bad[:3]:
                        print("   ", line["call"], line["outputs"][0]["reason"], flush=True)
            if options.healthy:
                continue
            for fault in options.faults.split(","):
                kernels, words, modes = FAULTS[fault]
                plain = verdicts(name, DTYPES[dtype], "no_change", options.stage, 1, **overrides)
                if not any(_api(line["call"]) in words.split() for line in plain):
                    continue
                found_by = []
                for mode in modes:
                    with planted(kernels) if kernels else nullcontext():
                        lines = verdicts(name, DTYPES[dtype], mode, options.stage, _NUM_STEPS, **overrides)
                    bad = [line["call"] for line in lines if line["verdict"] in ("wrong", "suspect")]
                    if any(_api(call) in words.split() for call in bad):
                        found_by.append(mode)
                total["faults"] += 1
                total["found"] += bool(found_by)
                total[f"{fault}: {'found' if found_by else 'missed'}"] += 1
                print(f"{dtype} {name} {fault}: {', '.join(found_by) or 'missed'}", flush=True)
    print(dict(total))


if __name__ == "__main__":
    main()
