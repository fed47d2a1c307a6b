"""The contract tests' view of MindSpore."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from msprobe.mindspore._framework import MindSporeFramework

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.runtime.launch_blocking()


def dense(num_in: int, num_out: int, random: np.random.RandomState) -> nn.Dense:
    """A Dense whose weights do not depend on MindSpore's own random numbers."""
    weight = Tensor(random.normal(size=(num_out, num_in)).astype(np.float32) * 0.4)
    return nn.Dense(num_in, num_out, weight_init=weight, bias_init=Tensor(random.normal(size=num_out), ms.float32))


class Block(nn.Cell):
    """Called with a keyword argument; can be told to raise."""

    def __init__(self, random: np.random.RandomState) -> None:
        super().__init__()
        self.fc = dense(6, 6, random)
        self.fails = False

    def construct(self, x: Tensor, *, shift: Tensor) -> Tensor:
        if self.fails:
            raise ArithmeticError("planted")
        return ops.relu(self.fc(x)) + shift


class Network(nn.Cell):
    """Two blocks and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = np.random.RandomState(seed)
        self.embed = dense(4, 6, random)
        self.first = Block(random)
        self.second = Block(random)
        self.head = dense(6, 2, random)
        self.last_gradients: tuple[Tensor, ...] = ()

    def construct(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        hidden = self.first(hidden, shift=mint.mul(hidden, 0.5))
        return self.head(self.second(hidden, shift=ops.stop_gradient(hidden)))


class MindSporeRig:
    """See `msprobe_core.testing.TrainingRig`."""

    def __init__(self, *, defers: bool = False) -> None:
        self.framework = MindSporeFramework(defers=defers)

    def make_tensor(self, values: np.ndarray) -> Tensor:
        return Tensor(values.copy())

    def make_bfloat16(self, values: np.ndarray) -> Tensor:
        return Tensor(values.copy(), ms.bfloat16)

    def overwrite(self, tensor: Tensor, value: float) -> None:
        tensor.copy_(Tensor(np.full(tensor.shape, value), tensor.dtype))

    def make_model(self, seed: int) -> Network:
        return Network(seed)

    def train_step(self, model: Network, step: int) -> float:
        x = Tensor(np.random.RandomState(100 + step).normal(size=(5, 4)).astype(np.float32))
        parameters = model.trainable_params()
        loss, gradients = ms.value_and_grad(lambda x: model(x).square().mean(), None, parameters)(x)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.set_data(parameter - 0.1 * gradient)
        model.last_gradients = gradients
        return float(loss.asnumpy())

    def make_adam(self, model: Network) -> nn.Adam:
        return nn.Adam(model.trainable_params(), learning_rate=0.01)

    def train_with(self, model: Network, optimizer: nn.Cell, step: int) -> float:
        x = Tensor(np.random.RandomState(100 + step).normal(size=(5, 4)).astype(np.float32))
        parameters = model.trainable_params()
        loss, gradients = ms.value_and_grad(lambda x: model(x).square().mean(), None, parameters)(x)
        optimizer(gradients)
        model.last_gradients = gradients
        return float(loss.asnumpy())

    def fail_in_step(self, model: Network) -> None:
        model.second.fails = True
        try:
            model(Tensor(np.ones((5, 4), np.float32)))
        finally:
            model.second.fails = False

    def state_of(self, model: Network) -> dict[str, np.ndarray]:
        state = {}
        for parameter, gradient in zip(model.trainable_params(), model.last_gradients, strict=True):
            state[parameter.name] = parameter.asnumpy().copy()
            state[f"{parameter.name}.grad"] = gradient.asnumpy().copy()
        return state

    def traces_in(self, model: Network) -> object:
        hooks = [
            [
                len(getattr(cell, name, ()))
                for name in ("_forward_pre_hook", "_forward_hook", "_forward_hook_always_called", "_backward_hook")
            ]
            for _, cell in model.cells_and_names()
        ]
        parameters = [len(parameter.hooks()) for parameter in model.get_parameters()]
        constructs = [cell.__dict__.get("construct") for _, cell in model.cells_and_names()]
        return hooks, parameters, constructs, *map(_identities, (ops, mint, mint.nn.functional, Tensor))


def _identities(namespace: object) -> dict[str, int]:
    return {name: id(value) for name, value in vars(namespace).items()}


__all__ = ["MindSporeRig", "Network", "Parameter"]
