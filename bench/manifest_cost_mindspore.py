"""The cost of the manifest in MindSpore: once per process, for a net of 2,001 Cells and 2,000 parameters.

Run with: .venv-mindspore/bin/python bench/manifest_cost_mindspore.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import nn
from msprobe.mindspore._framework import MindSporeFramework

from msprobe_core.capture.window import Model
from msprobe_core.garbage import paused_collection
from msprobe_core.manifest.libraries import installed_libraries
from msprobe_core.manifest.process import manifest_of
from msprobe_core.store.manifest_file import write_manifest

REPEATS = 9


class Layer(nn.Cell):
    """Ten Cells, with eight parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((8,)), nn.LayerNorm((8,))
        self.q, self.k, self.v, self.o = (nn.Dense(8, 8, has_bias=False) for _ in range(4))
        self.up, self.down = nn.Dense(8, 16, has_bias=False), nn.Dense(16, 8, has_bias=False)
        self.act = nn.SiLU()
        self.head_dim = 4

    def construct(self, x: Any) -> Any:
        """Return the input; nothing is computed here."""
        return x


def main() -> None:
    """Measure and print."""
    net = nn.SequentialCell(*[Layer() for _ in range(200)])
    optimizer = nn.Adam(net.trainable_params(), learning_rate=1e-3)
    framework, models = MindSporeFramework(), [Model("", net)]
    print(f"{len(list(net.cells_and_names()))} Cells, {len(net.trainable_params())} parameters")
    run = timed("what the framework knows", lambda: framework.run_facts(models))
    libraries = timed("installed libraries", installed_libraries)
    manifest = timed(
        "secrets, variables and the program", lambda: manifest_of(run, rank=None, libraries=libraries, settings={})
    )
    framework._optimizers._seen.add(optimizer)  # as if it had stepped
    timed("optimizers", lambda: framework.optimizers_of(models))
    with tempfile.TemporaryDirectory() as directory:
        timed("writing", lambda: write_manifest(Path(directory), manifest))


def timed(what: str, work: Callable[[], Any]) -> Any:
    """Print the first and the median CPU time of some work; return its result."""
    times: list[float] = []
    result: Any = None
    for _ in range(REPEATS):
        with paused_collection():
            begin = time.process_time()
            result = work()
            times.append(1e3 * (time.process_time() - begin))
    print(f"{what:40} {statistics.median(times):6.2f} ms CPU, {times[0]:6.2f} at first")
    return result


if __name__ == "__main__":
    main()
