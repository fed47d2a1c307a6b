"""Settings of training and recording that all programs share."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 2
"""Two, because faults in an optimizer have an effect in the second step."""
NUM_REPEATS = 3
"""Number of repetitions of a golden run with perturbed last digits."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIXED = {"mixed-bf16": torch.bfloat16, "mixed-fp16": torch.float16}
"""Dtypes of the calls of a training in mixed precision; its parameters are in float32."""
MODES: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics"},
    "sketch": {"task": "statistics", "statistics": {"summary_mode": "sketch"}},
    "tensor": {"task": "tensor"},
}


class Recordable:
    """A training whose steps can be recorded.

    Attributes:
        model: The model.
        optimizer: Its optimizer.
        scaler: What scales its losses, if anything does.
        num_steps: Number of steps to train.
        num_threads: Number of threads of a kernel.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None
    num_steps: int = STEPS
    num_threads: int = 1

    def step(self, step: int) -> list[torch.Tensor]:
        """Train one step, and return tensors that differ if two trainings differ."""
        raise NotImplementedError

    def fingerprint(self, kernels: AbstractContextManager[object] | None = None) -> str:
        """Train, and return a digest of all outputs, losses, gradients and weights."""
        digest = hashlib.sha256()
        for step in range(self.num_steps):
            with kernels or nullcontext():
                seen = self.step(step)
            for tensor in (*seen, *(p.detach() for p in self.model.parameters())):
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def record_golden(self, directory: Path, mode: str) -> None:
        """Train, record each step into ``directory``, and repeat all of them with perturbed last digits."""
        from msprobe.pytorch import PrecisionDebugger, calibration

        directory.mkdir(parents=True)
        config = directory.with_suffix(".json")
        config.write_text(json.dumps({"level": "mix", "dump_path": str(directory), **MODES[mode]}))
        debugger = PrecisionDebugger(str(config))
        states = [self.optimizer, *([self.scaler] if self.scaler else [])]
        with calibration(debugger, self.model, states, repeats=NUM_REPEATS) as runs:
            for _ in runs:
                for step in range(self.num_steps):
                    self.step(step)
                    debugger.step()
        debugger.close()

    def record(
        self,
        directory: Path,
        mode: str,
        *,
        kernels: AbstractContextManager[object] | None = None,
        perturb: dict[str, int] | None = None,
    ) -> None:
        """Train and record each step into ``directory``.

        Args:
            directory: Must hold no other recording; the ranks of a job share it.
            mode: Configuration of the recording.
            kernels: Context with alternative kernels; by default the framework's own.
            perturb: The debugger's setting for perturbation.
        """
        from msprobe.pytorch import PrecisionDebugger

        directory.mkdir(parents=True, exist_ok=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.num_threads)
        config = directory / f"config{os.getpid()}.json"
        more = {} if perturb is None else {"perturb": perturb}
        config.write_text(json.dumps({"level": "mix", "dump_path": str(directory), **MODES[mode], **more}))
        debugger = PrecisionDebugger(str(config))
        for step in range(self.num_steps):
            debugger.start(self.model)
            with kernels or nullcontext():
                self.step(step)
            debugger.stop()
            debugger.step()
        debugger.close()
        torch.set_num_threads(threads)
        config.unlink()
