"""Faults that are planted into MindSpore's model of a pair, and the module of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.cross.recording import Training


@dataclass(frozen=True)
class Fault:
    """A fault in one place.

    Attributes:
        name: Name in the table.
        pair: Name of the pair of models.
        modules: Paths of the modules, any of which is the right answer; "" is the model itself.
        plant: Applies it to a training in either framework.
    """

    name: str
    pair: str
    modules: tuple[str, ...]
    plant: Callable[[Training], None]


FAULTS: list[Fault] = []


def _add(name: str, pair: str, *modules: str) -> Callable[[Callable[[Training], None]], None]:
    def add(plant: Callable[[Training], None]) -> None:
        FAULTS.append(Fault(name, pair, modules, plant))

    return add


# --- ways to change a model ---


def _parameter(training: Training, path: str, name: str) -> Any:
    module = training.module(path)
    if training.words.name == "mindspore":
        name = {"weight": "gamma", "bias": "beta"}.get(name, name) if hasattr(module, "gamma") else name
        name = "embedding_table" if hasattr(module, "embedding_table") and name == "weight" else name
    return getattr(module, name)


def change(training: Training, path: str, name: str, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change a parameter in either framework."""
    parameter = _parameter(training, path, name)
    if training.words.name == "mindspore":
        import mindspore

        parameter.set_data(mindspore.Tensor(np.ascontiguousarray(how(parameter.asnumpy().copy()))))
    else:
        import torch

        parameter.data = torch.from_numpy(np.ascontiguousarray(how(parameter.detach().numpy().copy())))


def after(training: Training, path: str, how: Callable[[Any], Any]) -> None:
    """Change the result of one of our modules."""
    block = training.module(path) if path else training.model
    own = block.run
    block.run = lambda *arguments, **named: how(own(*arguments, **named))


def _times_gradient(training: Training, factor: float) -> Callable[[Any], Any]:
    """Return a module that returns its input and scales the gradient."""
    if training.words.name == "mindspore":

        class Identity(training.words.nn.Cell):
            def construct(self, value: Any) -> Any:
                return value * 1.0

            def bprop(self, value: Any, result: Any, gradient: Any) -> tuple[Any]:  # noqa: ARG002  # MindSpore's signature
                return (gradient * factor,)

        return Identity()

    def hooked(value: Any) -> Any:
        value.register_hook(lambda gradient: gradient * factor)
        return value

    return hooked


def _epsilon(training: Training, path: str, value: float) -> None:
    norm = training.module(path)
    for name in ("eps", "epsilon"):
        if hasattr(norm, name):
            setattr(norm, name, value)
    if training.words.name == "mindspore":
        from mindspore import ops

        if hasattr(norm, "layer_norm"):
            norm.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=value)
        if hasattr(norm, "bn_train"):
            norm.bn_train = ops.BatchNorm(is_training=True, epsilon=value, momentum=0.1, data_format="NCHW")


def _plant_all(pair: str, norm: str, linear: str, block: str, *, bias: str | None = None) -> None:
    """Add the faults that apply to every kind of model."""

    _add("epsilon 1e-2", pair, norm)(lambda t: _epsilon(t, norm, 1e-2))
    _add("weight x 1.01", pair, linear)(lambda t: change(t, linear, "weight", lambda a: a * 1.01))
    _add("another initial weight", pair, linear)(
        lambda t: change(
            t, linear, "weight", lambda a: np.random.RandomState(1).randn(*a.shape).astype(a.dtype) * a.std()
        )
    )
    _add("bias missing", pair, bias or linear)(lambda t: change(t, bias or linear, "bias", lambda a: a * 0))
    _add("gradient x 1.1", pair, block)(lambda t: after(t, block, _times_gradient(t, 1.1)))
    _add("output x 1.02", pair, block)(lambda t: after(t, block, lambda y: y * 1.02))
    for kind in ("float16", "bfloat16"):
        _add(f"{kind} inside", pair, block)(
            lambda t, kind=kind: after(t, block, lambda y: t.words.half_and_back(y, kind))
        )

    @_add("gradient of one weight x 1.1 before the optimizer", pair, linear, "optimizer")
    def _(training: Training) -> None:
        training.change = lambda name, gradient: gradient * 1.1 if name == f"{linear}.weight" else gradient

    @_add("all gradients x 1.1 before the optimizer", pair, "any", "optimizer")
    def _(training: Training) -> None:
        training.change = lambda _, gradient: gradient * 1.1


_plant_all("ResNet 16-16-32", "stages.1.bn1", "head", "stages.1", bias="stem")
_plant_all("BERT 2 layers", "layers.0.norm1", "layers.1.attention.key", "layers.0.attention", bias="layers.0.up")
_plant_all("GRU and experts 4 experts", "norm", "experts.down.1", "experts", bias="experts.up.2")


@_add("transposed weight", "BERT 2 layers", "layers.1.attention.out")
def _(training: Training) -> None:
    change(training, "layers.1.attention.out", "weight", lambda array: array.T)


@_add("softmax over the wrong axis", "BERT 2 layers", "layers.1.attention")
def _(training: Training) -> None:
    words = training.words
    attention = training.module("layers.1.attention")
    own, softmax = attention.run, words.softmax

    def run(*arguments: Any, **named: Any) -> Any:
        words.softmax = lambda x: softmax(x, axis=-2)
        try:
            return own(*arguments, **named)
        finally:
            words.softmax = softmax

    attention.run = run


@_add("residual missing", "BERT 2 layers", "layers.0")
def _(training: Training) -> None:
    layer = training.module("layers.0")

    def run(x: Any) -> Any:
        x = layer.norm1(layer.attention(x, x))
        return layer.norm2(x + layer.down(layer.act(layer.up(x))))

    layer.run = run


@_add("router takes the smallest", "GRU and experts 4 experts", "experts")
def _(training: Training) -> None:
    words = training.words
    own = words.topk
    words.topk = lambda x, k: own(x, k, largest=False)


@_add("momentum of BatchNorm 0.9 for 0.1", "ResNet 16-16-32", "stages.0.bn1")
def _(training: Training) -> None:
    norm = training.module("stages.0.bn1")
    if training.words.name == "mindspore":
        from mindspore import ops

        norm.bn_train = ops.BatchNorm(is_training=True, epsilon=1e-5, momentum=0.9, data_format="NCHW")
    else:
        norm.momentum = 0.9


@_add("learning rate x 1.1", "BERT 2 layers", "any", "optimizer")
def _(training: Training) -> None:
    training.rate *= 1.1


@_add("dropout left on", "ResNet 16-16-32", "stages.1", "head")
def _(training: Training) -> None:
    words = training.words
    drop = words.dropout(0.1)
    drop.train() if words.name == "pytorch" else drop.set_train()
    after(training, "stages.1", drop)


def _without(training: Training, word: str, how: Callable[..., Any], path: str) -> None:
    """Replace one of the words inside one module."""
    words, block = training.words, training.module(path)
    own, meant = block.run, getattr(words, word)

    def run(*arguments: Any, **named: Any) -> Any:
        setattr(words, word, lambda *given, **options: how(meant, *given, **options))
        try:
            return own(*arguments, **named)
        finally:
            setattr(words, word, meant)

    block.run = run


for _pair in ("GRU and experts 4 experts", "GRU and experts 6 experts"):
    _add("shares of experts not normalised", _pair, "experts")(
        lambda t: _without(
            t, "sum", lambda meant, x, axis, **o: meant(x, axis, **o) * 0 + 1 if o else meant(x, axis), "experts"
        )
    )
    _add("router's logits x 1.1", _pair, "experts", "experts.router")(
        lambda t: _without(t, "softmax", lambda meant, x, **o: meant(x * 1.1, **o), "experts")
    )
    _add("an expert's weight x 1.2", _pair, "experts.up.1")(
        lambda t: change(t, "experts.up.1", "weight", lambda a: a * 1.2)
    )
    _add("a recurrent weight x 1.1", _pair, "rnn")(lambda t: change(t, "rnn", "weight_hh_l0", lambda a: a * 1.1))
    _add("the order of a recurrent layer's gates", _pair, "rnn")(
        lambda t: change(t, "rnn", "weight_ih_l0", lambda a: np.concatenate([a[len(a) // 3 :], a[: len(a) // 3]]))
    )
