"""Small nets of MindSpore with all that a Cell can be given and can return, and what is recorded of a step of one."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from msprobe.mindspore import PrecisionDebugger


def filled(*shape, dtype=ms.float32, seed=0):
    """A tensor whose elements depend on its shape and the seed only."""
    return Tensor(np.random.RandomState(seed).normal(size=shape).astype(np.float32) * 0.5, dtype)


def dense(num_in=3, num_out=3, seed=1):
    return nn.Dense(
        num_in, num_out, weight_init=filled(num_out, num_in, seed=seed), bias_init=filled(num_out, seed=seed)
    )


class Block(nn.Cell):
    """Takes tensors by position, by name and in containers; returns a dict with a tuple in it."""

    def __init__(self):
        super().__init__()
        self.fc = dense()
        self.gain = Parameter(Tensor(np.array([1.0, 2.0, 3.0]), ms.float32), name="gain")

    def construct(self, x, pair, mask=None, scale=2, *, extra=None):
        y = self.fc(x) * self.gain
        if mask is not None:
            y = y + mask
        return {"y": y * scale, "rest": (pair[0] * 1.0, pair[1]), "none": extra}


class Net(nn.Cell):
    """Calls one block twice, in two ways, and leaves a result unused; a sequence, a list of Cells, a 0-d result."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.sequence = nn.SequentialCell(dense(seed=2), nn.Tanh())
        self.layers = nn.CellList([dense(seed=3), dense(seed=4)])

    def construct(self, x, w, flag=True, *, shift=None):
        first = self.block(x, (w, [w * 2, 3]), mask=w + 1)
        second = self.block(first["y"], (w, [x, "text"]), None, 5)
        y = self.sequence(second["y"])
        for layer in self.layers:
            y = layer(y) if flag else y
        return (y * first["y"]).sum() + first["rest"][0].sum()


class Dump:
    """What one step has left on disk."""

    def __init__(self, path):
        (self.path,) = Path(path).rglob("dump.json")
        self.header = json.loads(self.path.read_text())
        self.entries = self.header["data"]
        construct = self.path.with_name("construct.json")
        self.parents = json.loads(construct.read_text()) if construct.exists() else {}

    @property
    def tensors(self):
        """The files of tensors by name."""
        return {path.stem: np.load(path) for path in self.path.parent.rglob("*.npy")}

    def values(self):
        """Statistics by name of entry, side and place."""
        return dict(_leaves(self.entries, ()))


def _leaves(tree, path):
    if isinstance(tree, dict) and "Max" in tree:
        yield path, tree
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(tree, list):
        for i, item in enumerate(tree):
            yield from _leaves(item, (*path, str(i)))


def record(model, run, path, *, task="statistics", block=None, **config):
    """Run one step and return its dump, and what ``run`` returns; ``block`` holds the settings of the task."""
    Path(path).mkdir(parents=True, exist_ok=True)
    file = Path(path) / "config.json"
    file.write_text(json.dumps({"task": task, "dump_path": str(path), "level": "L0", task: block or {}, **config}))
    debugger = PrecisionDebugger(str(file))
    try:
        with debugger.start(model):
            result = run()
        debugger.step()
    finally:
        debugger.close()
    return Dump(path), result


def step_of(model, *inputs, positions=None, **named):
    """Return what computes the loss and all gradients: with respect to inputs in ``positions``, and parameters."""
    function = ms.value_and_grad(model, positions, model.trainable_params())
    return lambda: function(*inputs, **named)


def arrays_in(value):
    """All tensors in what a step returns, as bytes with their shapes: NaN is equal to itself."""
    if isinstance(value, Tensor):
        array = value.asnumpy()
        return [(array.shape, array.tobytes())]
    return [item for part in value for item in arrays_in(part)] if isinstance(value, tuple | list) else []


__all__ = ["Block", "Dump", "Net", "Parameter", "Tensor", "arrays_in", "dense", "filled", "ms", "nn", "ops", "record"]
