"""Plant a low-precision accumulation in one module of a real architecture, and see whether `bisect_step` names it.

    python -m bench.bisect_faults [--models llama,gpt2] [--dtypes bf16,fp32] [--seeds 2] [--healthy] [--target loss]

The module is a random one of those that multiply matrices. It adds up products in half as many digits as its dtype
has, and computes in a finer dtype as it should. "Beyond" are faults that change the value more than twice as much as
rounding the healthy step does.
"""

from __future__ import annotations

import argparse
import random
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from architectures import ARCHITECTURES, Architecture
from msprobe.pytorch import bisect_step

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_NARROW = {torch.bfloat16: torch.float8_e4m3fn, torch.float32: torch.bfloat16}


def candidates(model: torch.nn.Module) -> list[str]:
    """Return the paths of modules that multiply matrices."""
    kinds = ("Linear", "Conv1D")
    return [path for path, module in model.named_modules() if type(module).__name__ in kinds]


def plant(model: torch.nn.Module, path: str, dtype: torch.dtype) -> None:
    """Let a module accumulate in half as many digits, if it computes in a dtype."""
    module: Any = model.get_submodule(path)
    right = module.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype:
            return right(x) if not isinstance(self, torch.nn.Linear) else linear(x, self.weight, self.bias)
        weight = self.weight.T if isinstance(self, torch.nn.Linear) else self.weight
        total = torch.zeros(*x.shape[:-1], weight.shape[-1], dtype=dtype)
        for begin in range(0, x.shape[-1], 4):
            total = total + x[..., begin : begin + 4] @ weight[begin : begin + 4]
            total = total + (total.to(_NARROW[dtype]).to(dtype) - total).detach()
        return total if self.bias is None else total + self.bias

    module.forward = types.MethodType(forward, module)


def bisected(
    name: str, architecture: Architecture, dtype: torch.dtype, seed: int, *, healthy: bool, **options: Any
) -> Any:
    """Return the result for one model, and the path of the module that is wrong."""
    overrides = {"num_hidden_layers": 16} if name == "llama-16" else {}
    model = architecture.build(seed, **overrides).to(dtype)
    batch = {
        key: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in architecture.batch(seed).items()
    }
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    path = random.Random(seed).choice(candidates(model))
    if not healthy:
        plant(model, path, dtype)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        output = model(**batch)
        loss = output.loss if getattr(output, "loss", None) is not None else output[0].float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return bisect_step(step, model, optimizer, **options), path


def main() -> None:
    """Run the cases, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join([*ARCHITECTURES, "llama-16"]))
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--target")
    parser.add_argument("--healthy", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total: Counter[str] = Counter()
    for dtype in options.dtypes.split(","):
        for name in options.models.split(","):
            for seed in range(options.seeds):
                architecture = ARCHITECTURES[name.partition("-")[0] if name == "llama-16" else name]
                case = name, architecture, DTYPES[dtype], seed
                try:
                    found, path = bisected(*case, healthy=options.healthy, target=options.target)
                    rounding = bisected(*case, healthy=True, target=options.target, pairs=1)[0].difference
                except RuntimeError as error:  # the model has no kernel for this dtype
                    print(f"{dtype} {name} {seed}: cannot run ({error})", flush=True)
                    continue
                first = found.parts[0].label.rpartition(" (")[0]
                answer = found.verdict.value
                if found.verdict.value == "found":
                    answer = "right" if first == path else "wrong"
                times = found.difference / rounding
                total[f"{dtype} {answer}"] += 1
                total[f"{dtype} {answer} beyond"] += times > 2
                print(
                    f"{dtype} {name} {seed}: {answer}, {found.num_modules} modules, {found.num_pairs} pairs, "
                    f"{found.num_steps} steps, {100 * found.parts[0].share:.3g} %, {found.parts[0].times:.3g} x noise; "
                    f"{path}, {times:.3g} times the rounding", flush=True,
                )  # fmt: skip
    print(dict(total))


if __name__ == "__main__":
    main()
