"""Pairs that were used to derive the closed form for two frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.cross.pairs import Arrays, Family, attention, images, of_result, per_sample, per_token, random_of, tokens
from bench.cross.words import Words

# --- single layers --------------------------------------------------------------------------------------------------

_layers = Family("layer", is_tuned=True)


def _layer(name: str, make: Callable[[Words], Any], shape: tuple[int, ...], scale: float = 1.0, shift: float = 0.0):
    def build(w: Words) -> Any:
        class Model(w.Block):
            def __init__(self) -> None:
                super().__init__()
                self.factor = w.parameter(np.ones(shape[-1]), "factor")
                self.layer = make(w)

            def run(self, x: Any) -> Any:
                return self.layer(x * self.factor)

        return Model()

    def batch(seed: int) -> Arrays:
        random = random_of(seed)
        return {"x": (random.randn(*shape) * scale + shift).astype(np.float32), "labels": np.zeros(1, np.float32)}

    _layers.add(name, build, batch, of_result)


def _function(name: str, function: Callable[[Words, Any], Any], shape: tuple[int, ...], scale: float = 1.0) -> None:
    """Add a model with a linear layer before a function, so that gradients flow through it."""

    def build(w: Words) -> Any:
        class Model(w.Block):
            def __init__(self) -> None:
                super().__init__()
                self.layer = w.linear(shape[-1], shape[-1])

            def run(self, x: Any) -> Any:
                return function(w, self.layer(x))

        return Model()

    def batch(seed: int) -> Arrays:
        return {"x": (random_of(seed).randn(*shape) * scale).astype(np.float32), "labels": np.zeros(1, np.float32)}

    _layers.add(name, build, batch, of_result)


_layer("LayerNorm", lambda w: w.layer_norm(96), (4, 12, 96), 2.0, 0.5)
_layer("LayerNorm of a large mean", lambda w: w.layer_norm(64), (8, 64), 1.0, 20.0)
_layer("BatchNorm2d", lambda w: w.batch_norm2d(16), (8, 16, 12, 12), 2.0, 0.7)
_layer("GroupNorm", lambda w: w.group_norm(4, 16), (4, 16, 10, 10), 1.5)
_layer("Conv2d", lambda w: w.conv2d(16, 24, 3, padding=1), (4, 16, 14, 14))
_layer("Conv2d 1x1", lambda w: w.conv2d(32, 16, 1), (4, 32, 9, 9))
_layer("Conv2d strided", lambda w: w.conv2d(3, 16, 7, stride=2, padding=3), (2, 3, 32, 32))
_layer("Linear", lambda w: w.linear(128, 64), (6, 10, 128))
_layer("MaxPool2d", lambda w: w.max_pool2d(2, 2), (4, 8, 12, 12))
_layer("GELU", lambda w: w.activation("gelu"), (8, 200))
_layer("SiLU", lambda w: w.activation("silu"), (8, 200))
_layer("Tanh", lambda w: w.activation("tanh"), (8, 200), 2.0)
_layer("Sigmoid", lambda w: w.activation("sigmoid"), (8, 200), 2.0)
_layer("GRU", lambda w: w.recurrent("GRU", 12, 20), (4, 9, 12))
_layer("LSTM", lambda w: w.recurrent("LSTM", 12, 20, layers=2, both=True), (4, 9, 12))
_function("softmax", lambda w, x: w.softmax(x), (6, 10, 48), 3.0)
_function("log_softmax", lambda w, x: w.log_softmax(x), (6, 10, 48), 3.0)
_function("exp", lambda w, x: w.unary("exp", x), (6, 48))
_function("topk", lambda w, x: w.topk(x, 5)[0], (6, 10, 48))
_function("topk smallest", lambda w, x: w.topk(x, 5, largest=False)[0], (6, 10, 48))
_function("sort", lambda w, x: w.sort(x)[0], (6, 48))
_function("where", lambda w, x: w.where(x > 0, x, x * 0.1), (6, 10, 48))
_function("gather", lambda w, x: w.gather(x, w.tensor(np.tile(np.arange(5), (6, 1)).astype(np.int64)), 1), (6, 48))
_function("cumsum", lambda w, x: w.cumsum(x, 1), (6, 48))
_function("variance", lambda w, x: (x - w.mean(x, -1, keep=True)) / w.unary("sqrt", w.var(x, -1) + 1e-5), (6, 48))


# --- convolutional nets ---------------------------------------------------------------------------------------------

_resnet = Family("ResNet", is_tuned=True)


def _build_resnet(w: Words, widths: tuple[int, ...], classes: int = 10) -> Any:
    class Residual(w.Block):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.conv1 = w.conv2d(before, after, 3, stride=stride, padding=1, bias=False)
            self.bn1 = w.batch_norm2d(after)
            self.conv2 = w.conv2d(after, after, 3, padding=1, bias=False)
            self.bn2 = w.batch_norm2d(after)
            self.relu = w.activation("relu")
            self.has_shortcut = stride != 1 or before != after
            if self.has_shortcut:
                self.shortcut = w.conv2d(before, after, 1, stride=stride, bias=False)
                self.bn3 = w.batch_norm2d(after)

        def run(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            shortcut = self.bn3(self.shortcut(x)) if self.has_shortcut else x
            return self.relu(y + shortcut)

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.stem = w.conv2d(3, widths[0], 3, padding=1)
            self.bn = w.batch_norm2d(widths[0])
            self.relu = w.activation("relu")
            self.pool = w.max_pool2d(2, 2)
            pairs = list(zip((widths[0], *widths[:-1]), widths, strict=True))
            self.stages = w.sequential(*[Residual(a, b, 1 + (a != b)) for a, b in pairs])
            self.head = w.linear(widths[-1], classes)

        def run(self, x: Any) -> Any:
            return self.head(w.mean(self.stages(self.pool(self.relu(self.bn(self.stem(x))))), (2, 3)))

    return Net()


_resnet.add("8-16", lambda w: _build_resnet(w, (8, 16)), images(4, 3, 16, 10), per_sample)
_resnet.add("16-16-32", lambda w: _build_resnet(w, (16, 16, 32)), images(6, 3, 20, 10), per_sample)
_resnet.add("momentum", lambda w: _build_resnet(w, (8, 12, 16)), images(8, 3, 16, 10), per_sample, "Momentum")


# --- BERT and the like ----------------------------------------------------------------------------------------------


_bert = Family("BERT", is_tuned=True)


def _build_bert(w: Words, dim: int, layers: int, length: int, vocabulary: int = 61) -> Any:
    class Layer(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention(w, dim, 4)
            self.norm1 = w.layer_norm(dim, eps=1e-12)
            self.up = w.linear(dim, 3 * dim)
            self.act = w.activation("gelu")
            self.down = w.linear(3 * dim, dim)
            self.norm2 = w.layer_norm(dim, eps=1e-12)

        def run(self, x: Any) -> Any:
            x = self.norm1(x + self.attention(x, x))
            return self.norm2(x + self.down(self.act(self.up(x))))

    class Bert(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(vocabulary, dim)
            self.positions = w.parameter(np.random.RandomState(3).randn(length, dim) * 0.1, "positions")
            self.norm = w.layer_norm(dim, eps=1e-12)
            self.layers = w.blocks([Layer() for _ in range(layers)])
            self.pooler = w.linear(dim, dim)
            self.classifier = w.linear(dim, 4)

        def run(self, x: Any) -> Any:
            hidden = self.norm(self.words(x) + self.positions)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.classifier(w.unary("tanh", self.pooler(hidden[:, 0])))

    return Bert()


_bert.add("2 layers", lambda w: _build_bert(w, 32, 2, 10), tokens(4, 10, 61, per_token=False), per_sample)
_bert.add("4 layers", lambda w: _build_bert(w, 48, 4, 14), tokens(3, 14, 61, per_token=False), per_sample)
_bert.add("Adam", lambda w: _build_bert(w, 32, 2, 12), tokens(4, 12, 61, per_token=False), per_sample, "Adam")


# --- a recurrent net with experts -----------------------------------------------------------------------------------

_gru_moe = Family("GRU and experts", is_tuned=True)


def _build_gru_moe(w: Words, dim: int, experts: int, cell: str = "GRU") -> Any:
    class Experts(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.router = w.linear(dim, experts, bias=False)
            self.up = w.blocks([w.linear(dim, 2 * dim) for _ in range(experts)])
            self.down = w.blocks([w.linear(2 * dim, dim) for _ in range(experts)])

        def run(self, x: Any) -> Any:
            weights = w.softmax(self.router(x))
            chosen, places = w.topk(weights, 2)
            chosen = chosen / w.sum(chosen, -1, keep=True)
            share = w.sum(w.one_hot(places, experts) * chosen.reshape(*chosen.shape, 1), -2)
            result = x
            for number in range(experts):
                made = self.down[number](w.unary("silu", self.up[number](x)))
                result = result + made * share[:, :, number : number + 1]
            return result

    class Net(w.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words = w.embedding(53, dim)
            self.rnn = w.recurrent(cell, dim, dim)
            self.norm = w.layer_norm(dim)
            self.experts = Experts()
            self.head = w.linear(dim, 53)

        def run(self, x: Any) -> Any:
            hidden, _ = self.rnn(self.words(x))
            return self.head(self.experts(self.norm(hidden)))

    return Net()


_gru_moe.add("4 experts", lambda w: _build_gru_moe(w, 24, 4), tokens(3, 8, 53), per_token)
_gru_moe.add("6 experts", lambda w: _build_gru_moe(w, 32, 6), tokens(4, 10, 53), per_token)
