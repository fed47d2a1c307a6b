"""The contract tests' view of the NumPy framework."""

from __future__ import annotations

import numpy as np
from numpy_layers import API, Array, ArrayFramework, Network, train_step


class ArrayRig:
    """See `msprobe_core.testing.TrainingRig`."""

    def __init__(self) -> None:
        self.framework = ArrayFramework()

    def make_tensor(self, values: np.ndarray) -> Array:
        return Array(values.copy())

    def make_bfloat16(self, values: np.ndarray) -> Array:
        raise NotImplementedError

    def overwrite(self, tensor: Array, value: float) -> None:
        tensor.write(value)

    def make_model(self, seed: int) -> Network:
        return Network(seed)

    def train_step(self, model: Network, step: int) -> float:
        return train_step(model, step)

    def fail_in_step(self, model: Network) -> None:
        model.fails = True
        try:
            train_step(model)
        finally:
            model.fails = False

    def state_of(self, model: Network) -> dict[str, np.ndarray]:
        state = {}
        for path, layer in model.named_layers():
            for name, parameter in layer.parameters.items():
                state[f"{path}.{name}"] = parameter.values.copy()
                state[f"{path}.{name}.grad"] = layer.gradients[name].values.copy()
        return state

    def traces_in(self, model: Network) -> object:
        replaced = [{"forward", "backward"} & vars(layer).keys() for _, layer in model.named_layers()]
        return replaced, dict(API)
