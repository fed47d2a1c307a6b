"""Cells of MindSpore that are given Parameters, and Cells that are called several times: what compilers merge."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from tests.support.graph_nets import dense, filled


class Scale(nn.Cell):
    def construct(self, x, w):
        return x * w


class ScaleAll(nn.Cell):
    def construct(self, x, pair, *, table=None):
        x = x * pair[0] + pair[1]
        return x if table is None else x + table["w"]


class Through(nn.Cell):
    """Hands a Parameter on to a Cell inside."""

    def __init__(self):
        super().__init__()
        self.inner = Scale()

    def construct(self, x, w):
        return self.inner(x, w) + self.inner(x, w=w)


class Returns(nn.Cell):
    """Returns its Parameter, as the embedding of tied weights does."""

    def __init__(self, value):
        super().__init__()
        self.weight = Parameter(Tensor(np.full(3, value, np.float32)), name=f"weight{int(value)}")

    def construct(self):
        return self.weight


class ReturnsTwo(nn.Cell):
    def construct(self, w, x):
        return {"w": w, "x": (x * 2, [w])}


class Counts(nn.Cell):
    """Writes to the Parameter that it is given."""

    def construct(self, x, w):
        ops.assign(w, w + 1)
        return x * w


class Moves(nn.Cell):
    """Writes to one Parameter what it computes of another."""

    def construct(self, x, mean, gain):
        ops.assign(mean, 0.9 * mean + 0.1 * x)
        return (x - mean) * gain


class Weights(nn.Cell):
    """Has three Parameters of one shape; the classes below use them each in another way."""

    def __init__(self, inner=None):
        super().__init__()
        self.w1, self.w2, self.w3 = (
            Parameter(Tensor(np.full(3, value, np.float32)), name=f"w{i}") for i, value in enumerate((1.0, 10.0, 100.0))
        )
        self.inner = Scale() if inner is None else inner


class ByPosition(Weights):
    def construct(self, x):
        return self.inner(x, self.w1) + 2 * self.inner(x, self.w2) + 3 * self.inner(x, self.w3)


class ByName(Weights):
    def construct(self, x):
        return self.inner(x, w=self.w1) + 2 * self.inner(x, w=self.w2) + 3 * self.inner(x=x, w=self.w3)


class InContainers(Weights):
    def __init__(self):
        super().__init__(ScaleAll())

    def construct(self, x):
        first = self.inner(x, (self.w1, self.w2))
        second = self.inner(x, [self.w2, self.w3], table={"w": self.w1})
        return first + 2 * second + 3 * self.inner(x, (self.w3, x), table={"w": self.w2})


class WithTensors(Weights):
    """The same Cell with a Parameter, a constant, an input and a result."""

    def construct(self, x):
        constant = Tensor(np.array([1.0, 2.0, 3.0], np.float32))
        other = Tensor(np.array([4.0, 5.0, 6.0], np.float32))
        y = self.inner(x, self.w2) + 2 * self.inner(x, constant) + 3 * self.inner(x, other)
        return y + 4 * self.inner(x, x) + 5 * self.inner(x, y) + 6 * self.inner(x, self.w3)


class InLoop(Weights):
    def __init__(self):
        super().__init__()
        self.weights = ParameterTuple((self.w1, self.w2, self.w3))

    def construct(self, x):
        for w in self.weights:
            x = self.inner(x, w)
        return x


class InBranch(Weights):
    def construct(self, x):
        y = self.inner(x, self.w1)
        if x.sum() > 0:  # noqa: SIM108  # a branch in the graph
            y = y + self.inner(x, self.w2)
        else:
            y = y - self.inner(x, self.w3)
        return y


class InWhile(Weights):
    def construct(self, x):
        i = Tensor(0, ms.int32)
        while i < 3:
            x = self.inner(x, self.w1) + self.inner(x, self.w2) / 10
            i = i + 1
        return x


class DifferentCells(Weights):
    """Equal Cells, each called once."""

    def __init__(self):
        super().__init__()
        self.second, self.third = Scale(), Scale()

    def construct(self, x):
        return self.inner(x, self.w1) + 2 * self.second(x, self.w2) + 3 * self.third(x, self.w3)


class HandedOn(Weights):
    def __init__(self):
        super().__init__(Through())

    def construct(self, x):
        return self.inner(x, self.w1) + 2 * self.inner(x, self.w2) + 3 * self.inner(x, self.w3)


class Returned(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Returns(1.0), Returns(10.0), Returns(100.0)])
        self.inner = Scale()

    def construct(self, x):
        total = x
        for cell in self.layers:
            total = total * 2 + self.inner(x, cell())
        return total


class ReturnedInContainers(Weights):
    def __init__(self):
        super().__init__(ReturnsTwo())

    def construct(self, x):
        first, second = self.inner(self.w1, x), self.inner(self.w2, x)
        return first["w"] * second["x"][1][0] + first["x"][0] * second["w"]


class Written(Weights):
    """A Cell writes to the Parameters that it is given, which are used before and after it."""

    def __init__(self):
        super().__init__(Counts())

    def construct(self, x):
        before = self.w1 * 2 + self.w2
        y = self.inner(x, self.w1) + 2 * self.inner(x, self.w2) + 3 * self.inner(x, self.w1)
        return y + before + self.w1 * self.w2


class Statistics(Weights):
    def __init__(self):
        super().__init__(Moves())
        self.mean1 = Parameter(Tensor(np.zeros(3, np.float32)), name="mean1", requires_grad=False)
        self.mean2 = Parameter(Tensor(np.ones(3, np.float32)), name="mean2", requires_grad=False)

    def construct(self, x):
        y = self.inner(x, self.mean1, self.w1) + self.inner(x, self.mean2, self.w2)
        return y + self.inner(y, self.mean1, self.w3)


class Tied(nn.Cell):
    """An embedding whose table is the last layer's weight, and a second one of the same shape."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Embedding(5, 3, embedding_table=filled(5, 3, seed=seed)) for seed in (1, 2))
        self.head = Head()

    def construct(self, x):
        hidden = self.first(Tensor([0, 1, 4], ms.int32)) * x + self.second(Tensor([1, 2, 3], ms.int32))
        return self.head(hidden, self.first.embedding_table) - self.head(hidden, self.second.embedding_table)


class Head(nn.Cell):
    def construct(self, x, table):
        return ops.matmul(table, x)[:3]


class Experts(nn.Cell):
    """A mixture of experts, whose weights a Cell that all share is given."""

    def __init__(self):
        super().__init__()
        self.gate = dense(3, 3)
        self.weights = nn.CellList([dense(seed=seed) for seed in (2, 3, 4)])
        self.expert = Expert()

    def construct(self, x):
        shares = ops.softmax(self.gate(x), -1)
        total = ops.zeros_like(x)
        for i in range(3):
            layer = self.weights[i]
            total = total + shares[i] * self.expert(x, layer.weight, bias=layer.bias)
        return total


class Expert(nn.Cell):
    def construct(self, x, weight, bias=None):
        return ops.relu(ops.matmul(weight, x) + bias)


class Compiled(Weights):
    """A Cell whose construct is a function under ``jit``."""

    def __init__(self):
        super().__init__(CompiledScale())

    def construct(self, x):
        return self.inner(x, self.w1) + 2 * self.inner(x, self.w2) + 3 * self.inner(x, self.w3)


class CompiledScale(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Through()

    @ms.jit
    def construct(self, x, w):
        return self.inner(x, w) * 2 + self.inner(x, w * 3)


REUSED = {
    kind.__name__: kind
    for kind in (
        ByPosition, ByName, InContainers, WithTensors, InLoop, InBranch, InWhile, DifferentCells, HandedOn, Returned,
        ReturnedInContainers, Written, Statistics, Tied, Experts, Compiled,
    )
}  # fmt: skip
"""Nets that take one tensor of three elements."""
