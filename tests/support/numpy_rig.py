"""The contract tests' view of the NumPy framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy_layers import API, Array, ArrayFramework, ArrayReducer, Network, train_step

from msprobe_core import PrecisionDebugger
from msprobe_core.capture import Session
from msprobe_core.config import Config
from msprobe_core.model import Digest


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


def record_step(config: Config, *, fault: float = 1.0, rig: ArrayRig | None = None) -> Path:
    """Record one step of a network whose last layer is wrong by a factor, and return the directory of the dump."""
    rig = rig or ArrayRig()
    session = Session(config, rig.framework)
    model = rig.make_model(3)
    model.last.parameters["weight"].values[...] *= fault
    session.start([model])
    rig.train_step(model, 0)
    session.stop()
    session.step()
    session.close()
    (unit,) = (config.directory / "step0").iterdir()
    return unit


class ArrayDebugger(PrecisionDebugger):
    """The debugger of the NumPy framework, which no installed plugin offers."""

    framework_name = "numpy"

    def _framework(self, model: object) -> ArrayFramework:
        return ArrayFramework()


class DeferringReducer(ArrayReducer):
    """Reduces as on a device: nothing is known before it collects."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[str, Array, Digest]] = []

    def statistics(self, tensor: Array, digest: Digest) -> None:
        self.waiting.append(("statistics", Array(tensor.values.copy()), digest))

    def checksum(self, tensor: Array, digest: Digest) -> None:
        self.waiting.append(("checksum", Array(tensor.values.copy()), digest))

    @property
    def is_complete(self) -> bool:
        return not self.waiting

    def collect(self) -> None:
        waiting, self.waiting = self.waiting, []
        for reduction, tensor, digest in waiting:
            getattr(ArrayReducer, reduction)(self, tensor, digest)


class DeferringFramework(ArrayFramework):
    """NumPy as though arrays lay on a device."""

    def reducer(self) -> DeferringReducer:
        return DeferringReducer()
