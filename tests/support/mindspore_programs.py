"""A step of the Llama pair in MindSpore, and running a function under the probe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore_llama
import numpy as np
from llama_config import LlamaConfig, batch
from msprobe.mindspore import PrecisionDebugger
from recorded import Recorded

mindspore_llama.set_mode("pynative")

CONFIG = LlamaConfig()


class Step:
    """One step of training of the small Llama; called again it computes the same."""

    def __init__(self, variant: str) -> None:
        self.model = mindspore_llama.build(CONFIG, variant)
        self._parameters = self.model.trainable_params()
        self._forward_backward = ms.value_and_grad(mindspore_llama.WithLoss(self.model), None, self._parameters)
        self._batch = [ms.Tensor(array) for array in batch(CONFIG)]

    def __call__(self) -> list[np.ndarray]:
        """Return the loss and the gradients."""
        loss, gradients = self._forward_backward(*self._batch)
        return [value.asnumpy().copy() for value in (loss, *gradients)]


def record(
    directory: Path,
    function: Callable[[], Any],
    *,
    model: Any = None,
    level: str = "L1",
    task: str = "statistics",
    prepare: Callable[[PrecisionDebugger], Any] = lambda debugger: None,
    **settings: Any,
) -> Recorded:
    """Run ``function`` between start and stop, and return the dump of it."""
    options = {key: settings.pop(key) for key in ("list", "scope", "data_mode", "summary_mode") if key in settings}
    settings.setdefault("risk_level", "ALL")
    path = directory / "config.json"
    path.write_text(json.dumps({**settings, "task": task, task: options}))
    debugger = PrecisionDebugger(path, dump_path=directory / "run", level=level)
    try:
        prepare(debugger)
        with debugger.start(model):
            function()
    finally:
        debugger.close()
    return Recorded(directory / "run")


def stems(dump: Recorded, phase: str = "forward") -> list[str]:
    """Return the names of the APIs of one phase, in order, without index and phase."""
    return [entry.rsplit(".", 2)[0] for entry in dump.data if entry.endswith(f".{phase}")]


def is_equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    """Whether all arrays are bitwise equal."""
    return [array.tobytes() for array in ours] == [array.tobytes() for array in theirs]
