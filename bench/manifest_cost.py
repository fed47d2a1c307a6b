"""The cost of the manifest: once per process, for a model of 2,000 modules; and of the rows of the data per forward.

Run with: python bench/manifest_cost.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msprobe.pytorch._framework import PyTorchFramework
from torch import nn

from msprobe_core.capture.window import Model
from msprobe_core.manifest.libraries import installed_libraries
from msprobe_core.manifest.process import manifest_of
from msprobe_core.store.manifest_file import write_manifest

NUM_MODULES = 2000
REPEATS = 7


class Layer(nn.Module):
    """Ten modules, with eight parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
        self.act = nn.SiLU()
        self.head_dim = 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute something that uses all parameters."""
        x = x + self.o(self.q(x) + self.k(x) + self.v(self.norm1(x)))
        return x + self.down(self.act(self.up(self.norm2(x))))


def measure(name: str, work: Callable[[], Any]) -> None:
    """Print the median of CPU and wall-clock time."""
    cpu, wall = [], []
    for _ in range(REPEATS):
        began = time.process_time(), time.perf_counter()
        work()
        cpu.append(time.process_time() - began[0])
        wall.append(time.perf_counter() - began[1])
    print(f"{name:44} {statistics.median(cpu) * 1e3:8.2f} ms CPU {statistics.median(wall) * 1e3:8.2f} ms wall clock")


def main() -> None:
    """Measure."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(Layer() for _ in range(NUM_MODULES // 10)))
    optimizer = torch.optim.AdamW(model.parameters())
    framework = PyTorchFramework()
    models = [Model("", model)]
    watched = framework.watch_optimizers()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    watched.detach()
    print(f"{sum(1 for _ in model.modules())} modules, {sum(1 for _ in model.parameters())} parameters")
    facts = framework.run_facts(models)
    libraries = installed_libraries()

    def whole() -> Any:
        return manifest_of(facts, rank=0, libraries=libraries, settings={})

    manifest = whole()
    measure("what the framework knows", lambda: framework.run_facts(models))
    measure("installed libraries", installed_libraries)
    measure("secrets, variables and the program", whole)
    measure("optimizers", lambda: framework.optimizers_of(models))
    with tempfile.TemporaryDirectory() as directory:
        measure("writing", lambda: write_manifest(Path(directory), manifest))
        print(f"{(Path(directory) / 'manifest.json').stat().st_size / 1e6:.2f} MB")
    unknown = PyTorchFramework()
    measure("optimizers that did not step in the window", lambda: unknown.optimizers_of(models))
    for shape, dtype in (((8, 4096), torch.int64), ((512, 4096), torch.int64), ((64, 3, 224, 224), torch.float32)):
        batch = torch.zeros(shape, dtype=dtype)
        measure(f"rows of {list(shape)} {dtype}", lambda batch=batch: framework.row_hashes(batch))
        measure("    for comparison, a copy of it", batch.clone)


if __name__ == "__main__":
    main()
