"""Programs of PyTorch made by chance; see `random_programs`. Run as a script, it runs them for hours."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from msprobe.pytorch import PrecisionDebugger
from random_programs import ERROR, Outcome, Part, Probe, Program, Vocabulary, main
from random_torch_habits import HABITS
from random_torch_layers import BATCH, LAYERS, WIDTH
from torch import Tensor, nn
from torch_traces import traces_in

from msprobe_core.config import load_config

VOCABULARY = Vocabulary(
    layers={name: most for name, (most, _) in LAYERS.items()},
    habits=tuple(HABITS),
    levels=("L0", "L1", "mix"),
    tasks=(
        ("statistics", "statistics"), ("statistics", "md5"), ("statistics", "xor"), ("statistics", "hash"),
        ("statistics", "sketch"), ("tensor", "statistics"), ("structure", "statistics"),
    ),
    windows=("step", "forward", "backward", "update", "split", "every second", "open", "late", "first forward"),
)  # fmt: skip

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "sgd foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "adamw foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
}
FOR_SPARSE = "adagrad"


class Windows:
    """Starts and stops recording at the points of a step that a kind of window has."""

    # Where it starts and where it stops; forward, backward and update are over at these points.
    POINTS: ClassVar = {
        "step": ("begin", "end"),
        "forward": ("begin", "forward"),
        "backward": ("forward", "end"),
        "update": ("backward", "end"),
        "split": ("begin", "forward", "forward", "backward", "backward", "end"),
        "every second": ("begin", "end"),
        "open": ("begin",),
        "late": ("begin", "backward"),
        "first forward": ("begin", "end"),
    }

    def __init__(self, debugger: PrecisionDebugger, probe: Probe, model: nn.Module) -> None:
        self._debugger, self._probe, self._model = debugger, probe, model
        self._is_started = False

    def at(self, point: str, step: int) -> None:
        kind = self._probe.windows
        if kind == "every second" and step % 2:
            return
        for i, mine in enumerate(self.POINTS[kind]):
            if mine == point and i % 2 == 0 and not self._is_started:
                token_range = [0, 0] if kind == "first forward" else None
                self._debugger.start(self._model, token_range=token_range)
                self._is_started = kind == "open"
            elif mine == point and i % 2 == 1:
                self._debugger.stop()
        if point == "end":
            self._debugger.step()


class Run:
    """A training as it runs, and what it leaves."""

    def __init__(self, program: Program, windows: Callable[[nn.Module], Windows] | None) -> None:
        self.program = program
        self.outcome: dict[str, object] = {}
        self.model = nn.Sequential(*(_build(layer) for layer in program.layers), nn.Linear(WIDTH, 1))
        self.habits = [HABITS[habit.name](habit.numbers) for habit in program.habits]
        self.forward: Callable[[Tensor], Tensor] = self.model
        self.backward: Callable[[Tensor], None] = lambda loss: loss.backward()
        self.x = torch.zeros(0)
        self.loss: Tensor | None = None
        self.step = 0
        self.is_inside = False
        self._num_logged = 0
        numbers = random.Random(program.seed)
        is_sparse = any(getattr(module, "sparse", False) for module in self.model.modules())
        self._optimizer_name = FOR_SPARSE if is_sparse else numbers.choice(list(OPTIMIZERS))
        self.num_micro_batches = numbers.choice((1, 1, 1, 2))
        self.sets_to_none = numbers.choice((True, True, False))
        self._windows = None if windows is None else windows(self.model)

    def log(self, *values: object) -> None:
        """Note something that has to be equal."""
        for value in values:
            self._num_logged += 1
            self.outcome[f"log {self._num_logged}"] = _plain(value)

    def train(self) -> None:
        """Run all steps."""
        for habit in self.habits:
            habit.prepare(self)
        self.optimizer = OPTIMIZERS[self._optimizer_name](self.model.parameters())
        for step in range(self.program.num_steps):
            self.step = step
            with ExitStack() as stack:
                for habit in self.habits:
                    stack.enter_context(habit.around_step(self))
                self._at("begin")
                for _ in range(self.num_micro_batches):
                    self._forward_and_backward()
                for habit in self.habits:
                    habit.before_update(self)
                self._at("backward")
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=self.sets_to_none)
                for habit in self.habits:
                    habit.after_step(self)
                self._at("end")

    def _forward_and_backward(self) -> None:
        self.x = torch.randn(BATCH, WIDTH)
        with ExitStack() as stack:
            for habit in self.habits:
                stack.enter_context(habit.around_forward(self))
            self.is_inside = True
            output = self.forward(self.x)
            self.loss = output.float().square().mean()
            for habit in self.habits:
                self.loss = habit.loss(self, self.loss)
            self.is_inside = False
        self._at("forward")
        self.outcome[f"loss of step {self.step}"] = _plain(self.loss)
        with ExitStack() as stack:
            for habit in self.habits:
                stack.enter_context(habit.around_backward(self))
            self.backward(self.loss)
        for name, parameter in self.model.named_parameters():
            self.outcome[f"gradient of {name} in step {self.step}"] = _plain(parameter.grad)

    def _at(self, point: str) -> None:
        if self._windows is not None:
            self._windows.at(point, self.step)

    def finish(self) -> None:
        """Note what is left."""
        for name, value in (*self.model.named_parameters(), *self.model.named_buffers()):
            self.outcome[name] = _plain(value)
        states = self.optimizer.state.values() if hasattr(self, "optimizer") else ()
        for i, state in enumerate(states):
            self.outcome.update((f"state {i} {name}", _plain(value)) for name, value in state.items())


def _build(part: Part) -> nn.Module:
    return LAYERS[part.name][1](part.numbers, [_build(inside) for inside in part.inside])


def _plain(value: object) -> object:
    """Return what is equal if a value is equal bit by bit."""
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        array = dense.as_subclass(Tensor).contiguous()
        kind = str(value.dtype), tuple(value.shape), value.is_sparse, type(value).__name__
        if array.dtype is torch.bfloat16:
            array = array.view(torch.int16)
        return *kind, array.numpy().tobytes()


class TorchRunner:
    """Runs programs of PyTorch; see `random_programs.Runner`."""

    vocabulary = VOCABULARY

    def __init__(self, *, aten: bool = False) -> None:
        """Prepare; ``aten`` records operators too, at the levels that have APIs."""
        self._aten = aten

    def run(self, program: Program, directory: Path | None) -> Outcome:
        """Run a program on a thread of its own: each numbers its autograd nodes from 0, and has modes of its own."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._run, program, directory).result()

    def _run(self, program: Program, directory: Path | None) -> Outcome:
        torch.manual_seed(program.seed)
        random.seed(program.seed)
        np.random.seed(program.seed % 2**32)
        debugger: PrecisionDebugger | None = None
        if directory is not None:
            debugger = _debugger(program.probe, directory, aten=self._aten)
        outcome: dict[str, object] = {}
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                open_windows = None if debugger is None else lambda model: Windows(debugger, program.probe, model)
                run = Run(program, open_windows)
                outcome = run.outcome
                try:
                    run.train()
                except Exception as error:  # noqa: BLE001  # what a program of chance ends with
                    # Scripts fail with the stack of their calls, on which the probe is while it records.
                    what = str(error).partition("\nTraceback of TorchScript")[0]
                    outcome[ERROR] = f"{type(error).__name__}: {what}"
                run.finish()
                numbers = torch._C._autograd._get_sequence_nr()
            finally:
                if debugger is not None:
                    debugger.close()
        outcome |= {
            "random state": torch.get_rng_state().numpy().tobytes(),
            "random state of Python": random.getstate(),
            "random state of NumPy": np.random.get_state()[1].tobytes(),
            "number of the next node": numbers,
            "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
            "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
            "warnings": tuple(sorted({_first_line_of(warning) for warning in warned})),
            "traces": _without_addresses(traces_in(run.model)),
        }
        return outcome


def _first_line_of(warning: warnings.WarningMessage) -> str:
    # Anomaly detection goes on with the stack of the forward call, on which the probe is while it records.
    return f"{warning.category.__name__}: {str(warning.message).partition(chr(10))[0]}"


def _without_addresses(traces: Any) -> object:
    modules, parameters, num_modes, replaced = traces
    return [(content, hooks, call is None) for content, hooks, call in modules], parameters, num_modes, replaced


def _debugger(probe: Probe, directory: Path, *, aten: bool) -> PrecisionDebugger:
    import json

    config = directory / "config.json"
    fields = {"risk_level": "ALL", "task": probe.task, probe.task: _task_options(probe), "aten": aten}
    config.write_text(json.dumps(fields | {"level": "mix" if aten and probe.level == "L0" else probe.level}))
    load_config(config)
    return PrecisionDebugger(config, dump_path=directory / "run")


def _task_options(probe: Probe) -> dict[str, str]:
    return {"summary_mode": probe.summary_mode} if probe.task != "structure" else {}


if __name__ == "__main__":
    sys.exit(main(TorchRunner()))
