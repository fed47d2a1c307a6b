"""The cost of the manifest in MindSpore: once per process, for a net of 2,001 Cells and 2,000 parameters.

Run with: .venv-mindspore/bin/python bench/manifest_cost_mindspore.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
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

PROCESSES = 9
ONE = "--one"


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
    """Measure in several processes, since each pays once, and print."""
    if ONE in sys.argv:
        print(json.dumps(measured()))
        return
    command = [sys.executable, __file__, ONE]
    runs: list[dict[str, float]] = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        for _ in range(PROCESSES)
    ]
    parts = {what: [run[what] for run in runs] for what in runs[0]}
    for what, times in {**parts, "together, once per process": [sum(run.values()) for run in runs]}.items():
        print(f"{what:36} {statistics.median(times):6.2f} ms CPU, {min(times):6.2f} to {max(times):6.2f}")


def measured() -> dict[str, float]:
    """Return the CPU time of each part, in ms, at its first call in this process."""
    net = nn.SequentialCell(*[Layer() for _ in range(200)])
    assert (len(list(net.cells_and_names())), len(net.trainable_params())) == (2001, 2000)
    optimizer = nn.Adam(net.trainable_params(), learning_rate=1e-3)
    framework, models = MindSporeFramework(), [Model("", net)]
    times: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        with paused_collection():
            begin = time.process_time()
            result = work()
            times[what] = 1e3 * (time.process_time() - begin)
        return result

    run = timed("what the framework knows", lambda: framework.run_facts(models))
    libraries = timed("installed libraries", installed_libraries)
    manifest = timed(
        "secrets, variables and the program", lambda: manifest_of(run, rank=None, libraries=libraries, settings={})
    )
    framework._optimizers._seen.add(optimizer)  # as if it had stepped
    timed("optimizers", lambda: framework.optimizers_of(models))
    with tempfile.TemporaryDirectory() as directory:
        timed("writing, when the step begins", lambda: write_manifest(Path(directory), manifest))
        timed("writing, when its window ends", lambda: write_manifest(Path(directory), manifest))
    return times


if __name__ == "__main__":
    main()
