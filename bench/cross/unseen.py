"""Pairs that were written after all rules were final, for one test on models that had no influence on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.cross.pairs import (
    Arrays,
    Family,
    attention,
    causal,
    images,
    per_sample,
    per_token,
    random_of,
    rms_norm,
    tokens,
)
from bench.cross.words import Words

_densenet = Family("DenseNet")


def _build_densenet(w: Words, growth: int, layers: int) -> Any:
    class Dense(w.Block):
        def __init__(self, before: int) -> None:
            super().__init__()
            self.bn = w.batch_norm2d(before)
            self.act = w.activation("elu")
            self.conv = w.conv2d(before, growth, 3, padding=1, bias=False)

        def run(self, x: Any) -> Any:
            return w.cat([x, self.conv(self.act(self.bn(x)))], 1)

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.stem = w.conv2d(3, growth, 3, padding=1)
            self.layers = w.sequential(*[Dense(growth * (number + 1)) for number in range(layers)])
            self.pool = w.avg_pool2d(4, 4)
            self.head = w.linear(growth * (layers + 1) * 9, 7)

        def run(self, x: Any) -> Any:
            x = self.pool(self.layers(self.stem(x)))
            return self.head(x.reshape(x.shape[0], -1))

    return Net()


_densenet.add("6", lambda w: _build_densenet(w, 6, 3), images(4, 3, 12, 7), per_sample)
_densenet.add("10 momentum", lambda w: _build_densenet(w, 10, 4), images(6, 3, 12, 7), per_sample, "Momentum")


_rope = Family("rotary decoder")


def _build_rope(w: Words, dim: int, layers: int, length: int) -> Any:
    half = dim // 8
    angles = np.outer(np.arange(length), 100.0 ** (-np.arange(half) / half)).astype(np.float32)
    tables = np.cos(angles)[None, None], np.sin(angles)[None, None]

    class Attention(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (w.linear(dim, dim, bias=False) for _ in range(4))

        def heads(self, x: Any) -> Any:
            return w.transpose(x.reshape(x.shape[0], length, 4, dim // 4), 0, 2, 1, 3)

        def turned(self, x: Any) -> Any:
            cos, sin = (w.tensor(table) for table in tables)
            left, right = x[:, :, :, :half], x[:, :, :, half:]
            return w.cat([left * cos - right * sin, right * cos + left * sin], -1)

        def run(self, x: Any, mask: Any) -> Any:
            query, key = self.turned(self.heads(self.q(x))), self.turned(self.heads(self.k(x)))
            scores = w.matmul(query, w.transpose(key, 0, 1, 3, 2)) / math.sqrt(dim // 4) + mask
            mixed = w.matmul(w.softmax(scores), self.heads(self.v(x)))
            return self.o(w.transpose(mixed, 0, 2, 1, 3).reshape(x.shape[0], length, dim))

    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = rms_norm(w, dim), rms_norm(w, dim)
            self.attn = Attention()
            self.gate, self.up = w.linear(dim, 2 * dim, bias=False), w.linear(dim, 2 * dim, bias=False)
            self.down = w.linear(2 * dim, dim, bias=False)

        def run(self, x: Any, mask: Any) -> Any:
            x = x + self.attn(self.norm1(x), mask)
            given = self.norm2(x)
            return x + self.down(w.unary("silu", self.gate(given)) * self.up(given))

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(59, dim)
            self.layers = w.blocks([Layer() for _ in range(layers)])
            self.norm = rms_norm(w, dim)
            self.head = w.linear(dim, 59, bias=False)

        def run(self, x: Any) -> Any:
            hidden, mask = self.words(x), causal(w, length)
            for layer in self.layers:
                hidden = layer(hidden, mask)
            return self.head(self.norm(hidden))

    return Net()


_rope.add("2 layers", lambda w: _build_rope(w, 32, 2, 10), tokens(3, 10, 59), per_token)
_rope.add("3 layers Adam", lambda w: _build_rope(w, 48, 3, 12), tokens(2, 12, 59), per_token, "Adam")


_nerf = Family("radiance field")


def _build_nerf(w: Words, width: int, samples: int) -> Any:
    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = w.linear(3 * 2 * 4, width)
            self.fc2 = w.linear(width, width)
            self.density = w.linear(width, 1)
            self.colour = w.linear(width, 3)

        def run(self, x: Any) -> Any:
            waves = [w.unary(name, x * float(2**level)) for level in range(4) for name in ("sin", "cos")]
            hidden = w.unary("relu", self.fc2(w.unary("relu", self.fc1(w.cat(waves, -1)))))
            thickness = w.unary("softplus", self.density(hidden))
            passed = w.unary("exp", w.cumsum(thickness, 1) * -0.1)
            share = (w.unary("exp", thickness * -0.1) * -1.0 + 1.0) * passed
            return w.sum(share * w.unary("sigmoid", self.colour(hidden)), 1)

    del samples
    return Net()


def _rays(rays: int, samples: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        points = random.rand(rays, samples, 3).astype(np.float32) * 2 - 1
        return {"x": points, "labels": random.rand(rays, 3).astype(np.float32)}

    return make


def _apart(w: Words, output: Any, labels: Any) -> Any:
    return w.mse(output, labels)


_nerf.add("24", lambda w: _build_nerf(w, 24, 8), _rays(6, 8), _apart)
_nerf.add("48 Adam", lambda w: _build_nerf(w, 48, 12), _rays(8, 12), _apart, "Adam")


_points = Family("point cloud")


def _build_points(w: Words, dim: int) -> Any:
    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = w.conv1d(3, dim, 1), w.conv1d(dim, 2 * dim, 1)
            self.fc1, self.fc2 = w.linear(2 * dim, dim), w.linear(dim, 5)
            self.norm = w.layer_norm(dim)

        def run(self, x: Any) -> Any:
            hidden = w.unary("relu", self.conv2(w.unary("relu", self.conv1(w.transpose(x, 0, 2, 1)))))
            return self.fc2(w.unary("gelu", self.norm(self.fc1(w.max(hidden, 2)[0]))))

    return Net()


def _clouds(batch: int, points: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        random = random_of(seed)
        x = random.randn(batch, points, 3).astype(np.float32)
        return {"x": x, "labels": random.randint(0, 5, batch).astype(np.int32)}

    return make


_points.add("16", lambda w: _build_points(w, 16), _clouds(5, 20), per_sample)
_points.add("32", lambda w: _build_points(w, 32), _clouds(8, 40), per_sample)


_conformer = Family("Conformer")


def _build_conformer(w: Words, dim: int, layers: int) -> Any:
    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2, self.norm3 = (w.layer_norm(dim) for _ in range(3))
            self.up, self.down = w.linear(dim, 2 * dim), w.linear(2 * dim, dim)
            self.attention = attention(w, dim, 4)
            self.point1, self.point2 = w.conv1d(dim, 2 * dim, 1), w.conv1d(dim, dim, 1)
            self.depth = w.conv1d(dim, dim, 3, padding=1, groups=dim)

        def run(self, x: Any) -> Any:
            x = x + self.down(w.unary("silu", self.up(self.norm1(x)))) * 0.5
            given = self.norm2(x)
            x = x + self.attention(given, given)
            both = self.point1(w.transpose(self.norm3(x), 0, 2, 1))
            gated = both[:, :dim] * w.unary("sigmoid", both[:, dim:])
            return x + w.transpose(self.point2(w.unary("silu", self.depth(gated))), 0, 2, 1)

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(29, dim)
            self.layers = w.blocks([Layer() for _ in range(layers)])
            self.head = w.linear(dim, 29)

        def run(self, x: Any) -> Any:
            hidden = self.words(x)
            for layer in self.layers:
                hidden = layer(hidden)
            return w.log_softmax(self.head(hidden))

    return Net()


def _likelihood(w: Words, output: Any, labels: Any) -> Any:
    rows = output.reshape(-1, output.shape[-1])
    return w.mean(w.gather(rows, labels.reshape(-1, 1), 1), (0, 1)) * -1.0


def _frames(batch: int, length: int) -> Callable[[int], Arrays]:
    def make(seed: int) -> Arrays:
        made = tokens(batch, length, 29)(seed)
        return {"x": made["x"], "labels": made["labels"].astype(np.int64)}

    return make


_conformer.add("1 layer", lambda w: _build_conformer(w, 16, 1), _frames(3, 9), _likelihood)
_conformer.add("2 layers", lambda w: _build_conformer(w, 24, 2), _frames(2, 12), _likelihood)


_highway = Family("highway cell")


def _build_highway(w: Words, dim: int, length: int) -> Any:
    class Cell(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.new = w.linear(2 * dim, dim), w.linear(2 * dim, dim)
            self.norm = w.group_norm(4, dim)

        def run(self, x: Any, state: Any) -> Any:
            both = w.cat([x, state], -1)
            gate = w.unary("sigmoid", self.gate(both))
            return self.norm(gate * state + (gate * -1.0 + 1.0) * w.unary("tanh", self.new(both)))

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(23, dim)
            self.cell = Cell()
            self.head = w.linear(dim, 4)

        def run(self, x: Any) -> Any:
            given = self.words(x)
            state = given[:, 0] * 0.0
            for t in range(length):
                state = self.cell(given[:, t], state)
            return self.head(state)

    return Net()


_highway.add("6 steps", lambda w: _build_highway(w, 16, 6), tokens(4, 6, 23, per_token=False), per_sample)
_highway.add("12 steps", lambda w: _build_highway(w, 24, 12), tokens(6, 12, 23, per_token=False), per_sample)
