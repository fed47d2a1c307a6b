"""Random MindSpore programs in static graphs; `random_programs` says how they are drawn, compared and reduced.

Run as a script for many: ``python tests/support/random_mindspore_graphs.py --programs 100``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from msprobe.mindspore import PrecisionDebugger
from random_programs import ERROR, Outcome, Part, Program, Vocabulary, main

FEATURES = 6

VOCABULARY = Vocabulary(
    layers={
        "dense": 0, "norm": 0, "activation": 0, "dropout": 0, "attention": 0, "recurrent": 0, "scales": 0, "writes": 0,
        "sequence": 2, "residual": 1, "twice": 1, "branch": 2, "while": 1, "containers": 1,
    },
    habits=("jit", "level O1", "level O2", "optimizer", "new shape", "gradients of inputs", "half precision"),
    levels=("L0",),
    tasks=(("statistics", "statistics"), ("statistics", "md5"), ("tensor", "statistics")),
    windows=("every step", "last step"),
)  # fmt: skip

SMALL = replace(VOCABULARY, max_layers=2, max_depth=2, max_steps=2)
"""Compiling takes nearly all of the time, with points five times as long, and is done up to three times per shape."""


def values(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.RandomState(seed).normal(size=shape).astype(np.float32) * 0.5)


class Attention(nn.Cell):
    """Uses its input three times."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.Dense(FEATURES, FEATURES, weight_init=values(FEATURES, FEATURES, seed=seed + i)) for i in range(3)
        )

    def construct(self, x):
        weights = ops.softmax(ops.matmul(self.query(x), self.key(x).swapaxes(0, 1)), -1)
        return ops.matmul(weights, self.value(x))


class Recurrent(nn.Cell):
    def __init__(self, number: int) -> None:
        super().__init__()
        kind = (nn.RNN, nn.GRU, nn.LSTM)[number % 3]
        self.layer = kind(FEATURES, 3, num_layers=1 + number // 3 % 2, bidirectional=True, batch_first=True)

    def construct(self, x):
        return self.layer(x.reshape(1, -1, FEATURES))[0].reshape(-1, FEATURES)


class Scale(nn.Cell):
    def construct(self, x, w, *, shift=None):
        x = x * w
        return x if shift is None else x + shift


class Scales(nn.Cell):
    """Calls one Cell with several Parameters, by position and by name."""

    def __init__(self, seed: int, number: int) -> None:
        super().__init__()
        self.weights = ParameterTuple(
            [Parameter(values(FEATURES, seed=seed + i) + 1, name=f"w{i}") for i in range(2 + number % 3)]
        )
        self.inner = Scale()

    def construct(self, x):
        total = x
        for w in self.weights:
            total = total + self.inner(x, w) - self.inner(total, w=w, shift=x)
        return total


class Writes(nn.Cell):
    """Keeps a moving mean of its input in a Parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = Parameter(Tensor(np.zeros(FEATURES, np.float32)), name="mean", requires_grad=False)

    def construct(self, x):
        ops.assign(self.mean, 0.9 * self.mean + 0.1 * ops.stop_gradient(x).mean(0))
        return x - self.mean


class Residual(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inner = inner

    def construct(self, x):
        return x + self.inner(x)


class Twice(Residual):
    def construct(self, x):
        return self.inner(ops.tanh(self.inner(x)))


class Branch(nn.Cell):
    """A branch that the values of a tensor decide."""

    def __init__(self, first: nn.Cell, second: nn.Cell) -> None:
        super().__init__()
        self.first, self.second = first, second

    def construct(self, x):
        x = self.first(x) if x.sum() > 0 else self.second(x)
        return x * 2


class While(Residual):
    """A loop that the values of a tensor end."""

    def construct(self, x):
        i = Tensor(0, ms.int32)
        while i < 2:
            x = ops.tanh(self.inner(x))
            i = i + 1
        return x


class Inside(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inner = inner

    def construct(self, pair, *, named=None):
        return {"first": (self.inner(pair[0]), [pair[1]]), "second": named["x"] * 2}


class Containers(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inside = Inside(inner)

    def construct(self, x):
        found = self.inside((x, x * 3), named={"x": x})
        return found["first"][0] + found["first"][1][0] + found["second"]


class Net(nn.Cell):
    def __init__(self, layers: list[nn.Cell]) -> None:
        super().__init__()
        self.layers = nn.CellList(layers)

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return (x * x).mean()


ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softmax)


def build(part: Part) -> nn.Cell:
    """Return the layer that a part describes."""
    inside = [build(inner) for inner in part.inside]
    first, second, _ = part.numbers
    match part.name:
        case "dense":
            weight = values(FEATURES, FEATURES, seed=first)
            return nn.Dense(FEATURES, FEATURES, weight_init=weight, has_bias=second % 2 == 0)
        case "norm":
            return nn.LayerNorm((FEATURES,)) if first % 2 else nn.BatchNorm1d(FEATURES)
        case "activation":
            return ACTIVATIONS[first % len(ACTIVATIONS)]()
        case "dropout":
            return nn.Dropout(p=0.3)
        case "attention":
            return Attention(first)
        case "recurrent":
            return Recurrent(first)
        case "scales":
            return Scales(first, second)
        case "writes":
            return Writes()
        case "sequence":
            return nn.SequentialCell(*inside)
        case "branch":
            return Branch(inside[0], inside[-1])
        case _:
            return {"residual": Residual, "twice": Twice, "while": While, "containers": Containers}[part.name](
                inside[0]
            )


class Runner:
    """See `random_programs.Runner`."""

    def __init__(self, vocabulary: Vocabulary = VOCABULARY) -> None:
        self.vocabulary = vocabulary

    def run(self, program: Program, directory: Path | None) -> Outcome:
        habits = {habit.name for habit in program.habits}
        level = "O2" if "level O2" in habits else "O1" if "level O1" in habits else "O0"
        ms.set_context(mode=ms.PYNATIVE_MODE if "jit" in habits else ms.GRAPH_MODE, jit_level=level)
        ms.set_seed(program.seed)
        try:
            return _train(program, habits, directory)
        except Exception as error:  # noqa: BLE001  # of the program's: part of what it leaves
            return {ERROR: f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE, jit_level="O0")


def _train(program: Program, habits: set[str], directory: Path | None) -> Outcome:
    net = Net([build(layer) for layer in program.layers]).set_train()
    if "half precision" in habits:
        net.layers[0].to_float(ms.float16)
    step = _step(net, habits)
    debugger = None if directory is None else _debugger(program, directory)
    outcome: dict[str, object] = {}
    for i in range(program.num_steps):
        x = values(2 + (i if "new shape" in habits else 0), FEATURES, seed=i)
        if debugger is not None:
            debugger.start(net)
        outcome[f"step {i}"] = _bytes_of(step(x))
        if debugger is not None:
            debugger.stop()
            debugger.step()
    if debugger is not None:
        debugger.close()
    outcome.update({parameter.name: _bytes_of(parameter) for parameter in net.get_parameters()})
    return outcome


def _debugger(program: Program, directory: Path) -> PrecisionDebugger:
    probe = program.probe
    steps = [program.num_steps - 1] if probe.windows == "last step" else []
    settings = {"task": probe.task, "level": probe.level, "step": steps, "dump_path": str(directory)}
    config = directory / "config.json"
    config.write_text(json.dumps({**settings, probe.task: {"summary_mode": probe.summary_mode}}))
    return PrecisionDebugger(str(config))


def _step(net: nn.Cell, habits: set[str]):
    parameters = net.trainable_params()
    position = 0 if "gradients of inputs" in habits or not parameters else None
    compute = ms.value_and_grad(net, position, parameters or None)  # the compiler fails over an empty list

    def call(x):
        return compute(x)

    gradients = ms.jit(call) if "jit" in habits else compute
    if "optimizer" not in habits or not parameters:
        return gradients
    optimizer = nn.Momentum(parameters, 0.1, 0.9)

    def train(x):
        loss, found = gradients(x)
        optimizer(found[1] if "gradients of inputs" in habits else found)
        return loss, found

    return train


def _bytes_of(value) -> object:
    if isinstance(value, Tensor):
        array = value.asnumpy()
        return array.shape, array.tobytes()
    return tuple(_bytes_of(item) for item in value)


if __name__ == "__main__":
    sys.exit(main(Runner()))
