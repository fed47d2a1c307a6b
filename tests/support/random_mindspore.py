"""Programs of the dynamic graph of MindSpore, made by chance; see `random_programs`. A script runs them for hours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore_rig  # noqa: F401  # sets the mode
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from msprobe.mindspore import PrecisionDebugger, seed_all
from random_programs import ERROR, Outcome, Part, Program, Vocabulary, main

WIDTH, BATCH = 8, 4

Build = Callable[[tuple[int, ...], Sequence[nn.Cell], np.random.RandomState], nn.Cell]


def _values(random: np.random.RandomState, *shape: int) -> Tensor:
    return Tensor(random.normal(size=shape).astype(np.float32) * 0.4)


def _dense(random: np.random.RandomState, *, has_bias: bool = True) -> nn.Dense:
    return nn.Dense(WIDTH, WIDTH, weight_init=_values(random, WIDTH, WIDTH), bias_init="zeros", has_bias=has_bias)


class Function(nn.Cell):
    """Calls a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def construct(self, x: Tensor) -> Tensor:
        return self.function(x)


class Inside(nn.Cell):
    """Calls what is inside of it: added up, by keyword out of a dict, in a loop, or where a value says so."""

    def __init__(self, how: str, inside: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.how = how
        self.inside = nn.CellList(list(inside))

    def construct(self, x: Tensor) -> Tensor:
        if self.how == "loop":
            for _ in range(2):
                x = self.inside[0](x)
            return x
        if self.how == "branch":
            return self.inside[0](x) if float(x.sum().asnumpy()) > 0 else x * 0.5
        if self.how == "recompute":
            return ms.recompute(self.inside[0], x)
        results = {str(i): cell(x) for i, cell in enumerate(self.inside)}
        return x + sum(results.values())


class Scale(nn.Cell):
    """Has a parameter of its own, which it uses twice, and writes to a buffer in place."""

    def __init__(self, random: np.random.RandomState) -> None:
        super().__init__()
        self.scale = Parameter(_values(random, WIDTH), name="scale")
        self.count = Parameter(Tensor(0.0, ms.float32), name="count", requires_grad=False)

    def construct(self, x: Tensor, *, shift: Tensor | None = None) -> Tensor:
        ops.assign_add(self.count, Tensor(1.0, ms.float32))
        x = x * self.scale + self.scale
        return x if shift is None else x + shift


class Keyword(nn.Cell):
    """Calls another Cell by keyword."""

    def __init__(self, random: np.random.RandomState) -> None:
        super().__init__()
        self.scale = Scale(random)

    def construct(self, x: Tensor) -> Tensor:
        return self.scale(x, shift=ops.stop_gradient(x))


class Images(nn.Cell):
    """A convolution and a normalisation of the values as images."""

    def __init__(self, random: np.random.RandomState) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, weight_init=_values(random, 2, 2, 3, 3))
        self.norm = nn.BatchNorm2d(2)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x.reshape(BATCH, 2, 2, 2))).reshape(BATCH, WIDTH)


class Recurrent(nn.Cell):
    """A recurrent layer of MindSpore, whose initial weights come from the seed."""

    def __init__(self, kind: type[nn.Cell]) -> None:
        super().__init__()
        self.layer = kind(WIDTH, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(BATCH, 1, WIDTH))[0].reshape(BATCH, WIDTH)


class Dropping(nn.Cell):
    """Drops values while training.

    `nn.Dropout` repeats itself for five calls only: the CPU kernel tries several numbers of threads then and keeps
    the quickest, and which values it drops depends on that number. `ops.dropout` has a new kernel each call.
    """

    def construct(self, x: Tensor) -> Tensor:
        return ops.dropout(x, p=0.3, training=self.training)


def _split(x: Tensor) -> Tensor:
    first, second = ops.split(x, WIDTH // 2, axis=1)
    return ops.cat((second, ops.relu(first)), axis=1)


def _operators(x: Tensor) -> Tensor:
    return -x / (abs(x) + 1) + x[:, 0:1] + x @ Tensor(np.eye(WIDTH, dtype=np.float32))


def _in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y[0] = 0.25
    y += 1
    return y


LAYERS: dict[str, tuple[int, Build]] = {
    "dense": (0, lambda numbers, _, random: _dense(random, has_bias=numbers[0] % 2 == 0)),
    "norm": (0, lambda *_: nn.LayerNorm((WIDTH,))),
    "batch norm": (0, lambda *_: nn.BatchNorm1d(WIDTH)),
    "images": (0, lambda _, __, random: Images(random)),
    "scale": (0, lambda _, __, random: Scale(random)),
    "keyword": (0, lambda _, __, random: Keyword(random)),
    "gru": (0, lambda *_: Recurrent(nn.GRU)),
    "lstm": (0, lambda *_: Recurrent(nn.LSTM)),
    "dropout": (0, lambda *_: Dropping()),
    "activation": (0, lambda numbers, *_: (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid)[numbers[0] % 4]()),
    "softmax": (0, lambda *_: Function(lambda x: ops.softmax(x, axis=-1))),
    "mint": (0, lambda *_: Function(lambda x: mint.mul(mint.transpose(x, 0, 1), 0.5).T)),
    "split": (0, lambda *_: Function(_split)),
    "in place": (0, lambda *_: Function(_in_place)),
    "operators": (0, lambda *_: Function(_operators)),
    "jit": (0, lambda *_: Function(ms.jit(_in_graph))),
    "chain": (3, lambda _, inside, __: nn.SequentialCell(*inside)),
    "sum": (3, lambda _, inside, __: Inside("sum", inside)),
    "loop": (1, lambda _, inside, __: Inside("loop", inside)),
    "branch": (1, lambda _, inside, __: Inside("branch", inside)),
    "recompute": (1, lambda _, inside, __: Inside("recompute", inside)),
}  # fmt: skip
"""How many layers each has inside at most, and what builds it."""


def _in_graph(x: Tensor) -> Tensor:
    return ops.tanh(x) * 0.5


OPTIMIZERS: tuple[Callable[[Any], nn.Optimizer], ...] = (
    lambda parameters: nn.SGD(parameters, 0.05),
    lambda parameters: nn.Momentum(parameters, 0.05, 0.9),
    lambda parameters: nn.Adam(parameters, 0.01),
)

HABITS = ("micro-batches", "clips", "shares a layer", "freezes", "evaluates", "user hooks", "scales the loss")

VOCABULARY = Vocabulary(
    layers={name: most for name, (most, _) in LAYERS.items()},
    habits=HABITS,
    levels=("L0", "L1", "mix"),
    tasks=(
        ("statistics", "statistics"), ("statistics", "md5"), ("statistics", "xor"), ("statistics", "hash"),
        ("tensor", "statistics"), ("structure", "statistics"),
    ),
    windows=("step", "every second", "open"),
)  # fmt: skip


class MindSporeRunner:
    """See `random_programs.Runner`."""

    vocabulary = VOCABULARY

    def run(self, program: Program, directory: Path | None) -> Outcome:
        """Build and run a program."""
        seed_all(program.seed)
        outcome: dict[str, object] = {}
        probe, debugger = program.probe, None
        if directory is not None:
            options = {} if probe.task == "structure" else {"summary_mode": probe.summary_mode}
            config = {"task": probe.task, probe.task: options}
            (directory / "config.json").write_text(json.dumps(config))
            debugger = PrecisionDebugger(directory / "config.json", dump_path=directory / "run", level=probe.level)
        try:
            _train(program, debugger, outcome)
        except Exception as error:  # noqa: BLE001  # of the program
            outcome[ERROR] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        finally:
            if debugger is not None:
                debugger.close()
        return outcome


def _train(program: Program, debugger: PrecisionDebugger | None, outcome: dict[str, object]) -> None:
    random = np.random.RandomState(program.seed)
    habits = {habit.name: habit.numbers for habit in program.habits}
    layers = [_build(layer, random) for layer in program.layers]
    if "shares a layer" in habits:
        layers.append(layers[0])
    net = nn.SequentialCell(*layers, nn.Dense(WIDTH, 1, weight_init=_values(random, 1, WIDTH), bias_init="zeros"))
    net.set_train()
    if "freezes" in habits:
        for parameter in net.trainable_params()[:-2][: habits["freezes"][0] % 3]:
            parameter.requires_grad = False
    if "user hooks" in habits:
        layers[-1].register_forward_hook(lambda cell, args, output: output * 1.5)
    parameters = net.trainable_params()
    scale = 128.0 if "scales the loss" in habits else 1.0
    optimizer = OPTIMIZERS[program.seed % len(OPTIMIZERS)](parameters)
    gradients_of = ms.value_and_grad(lambda x: net(x).square().mean() * scale, None, optimizer.parameters)
    for step in range(program.num_steps):
        _begin(program, debugger, net, step)
        for micro in range(2 if "micro-batches" in habits else 1):
            loss, gradients = gradients_of(_values(random, BATCH, WIDTH))
            _note(outcome, f"step {step}.{micro}", [loss, *gradients])
        if "clips" in habits:
            gradients = ops.clip_by_global_norm(gradients, 1.0)
        optimizer(gradients)
        if "evaluates" in habits:
            net.set_train(False)
            _note(outcome, f"evaluation {step}", [net(_values(random, BATCH, WIDTH))])
            net.set_train()
        _end(program, debugger, step)
        _note(outcome, f"weights {step}", net.get_parameters())
    outcome["random states"] = ms.get_rng_state().asnumpy().tobytes(), str(np.random.get_state()[1])


def _begin(program: Program, debugger: PrecisionDebugger | None, net: nn.Cell, step: int) -> None:
    windows = program.probe.windows
    if debugger is not None and not (windows == "every second" and step % 2) and not (windows == "open" and step):
        debugger.start(net)


def _end(program: Program, debugger: PrecisionDebugger | None, step: int) -> None:
    if debugger is None:
        return
    if program.probe.windows != "open" and not (program.probe.windows == "every second" and step % 2):
        debugger.stop()
    debugger.step()


def _build(part: Part, random: np.random.RandomState) -> nn.Cell:
    inside = [_build(layer, random) for layer in part.inside]
    return LAYERS[part.name][1](part.numbers, inside, random)


def _note(outcome: dict[str, object], name: str, tensors: Any) -> None:
    for i, tensor in enumerate(tensors):
        outcome[f"{name}, {i}"] = tensor.asnumpy().tobytes()


if __name__ == "__main__":
    sys.exit(main(MindSporeRunner()))
