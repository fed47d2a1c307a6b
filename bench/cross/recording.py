"""Records one pair in both frameworks: equal weights, equal batches, a few steps with the optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.cross.families import Pair
from bench.cross.words import WORDS, Words, torch_name

STEPS = 2
RATE = 0.05


@dataclass
class Training:
    """A model in training; a fault may change it before it is recorded.

    Attributes:
        words: Words of its framework.
        model: The model.
        loss: Returns the loss from the model's result and the labels.
        change: Changes a parameter's gradient before the optimizer gets it; called with name and gradient.
        rate: Factor for the learning rate.
    """

    words: Words
    model: Any
    loss: Callable[[Any, Any], Any]
    change: Callable[[str, Any], Any] | None = None
    rate: float = 1.0

    def module(self, path: str) -> Any:
        """Return a module by its path."""
        found = self.model
        for part in path.split("."):
            found = found[int(part)] if part.isdigit() else getattr(found, part)
        return found


@dataclass(frozen=True)
class Mode:
    """Settings of a recording: its level and task, and the floating-point format of the computation."""

    level: str = "mix"
    task: str = "statistics"
    dtype: str = "float32"


def state_of(pair: Pair) -> dict[str, np.ndarray]:
    """Return the initial parameters and buffers of both, by PyTorch's names."""
    import torch

    torch.manual_seed(len(pair.name))
    model = pair.build(WORDS["pytorch"]())
    random = np.random.RandomState(77)
    found: dict[str, np.ndarray] = {}
    for name, value in model.state_dict().items():
        array = value.numpy().copy()
        if "running_var" not in name and array.dtype == np.float32 and array.ndim == 1:
            array += 0.1 * random.randn(*array.shape).astype(np.float32)  # neither ones nor zeros
        found[name] = array
    return found


def training_of(framework: str, pair: Pair, state: dict[str, np.ndarray], dtype: str = "float32") -> Training:
    """Return the model of a framework with those weights, in training mode."""
    words = WORDS[framework]()
    model = pair.build(words)
    (_load_torch if framework == "pytorch" else _load_mindspore)(model, state)
    if dtype != "float32":
        words.cast(model, dtype)
    return Training(words, model, lambda output, labels: pair.loss(words, output, labels))


def _load_torch(model: Any, state: dict[str, np.ndarray]) -> None:
    import torch

    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    model.train()


def _load_mindspore(model: Any, state: dict[str, np.ndarray]) -> None:
    import mindspore

    known = {parameter.name: parameter for parameter in model.get_parameters()}
    left = {name for name in state if not name.endswith("num_batches_tracked")}
    for name, parameter in known.items():
        array = state[torch_name(name)]
        parameter.set_data(mindspore.Tensor(array.reshape(parameter.shape)))
        left.discard(torch_name(name))
    if left:
        raise ValueError(f"no parameter of MindSpore's model is called {sorted(left)}; it has {sorted(known)}")
    model.set_train()


def record(framework: str, pair: Pair, training: Training, place: Path, mode: Mode) -> list[float]:
    """Train for `STEPS` steps, recorded with the settings of ``mode``; return the losses."""
    place.mkdir(parents=True, exist_ok=True)
    config = place / "config.json"
    config.write_text(json.dumps({"dump_path": str(place), "task": mode.task, "level": mode.level}))
    if framework == "pytorch":
        from msprobe.pytorch import PrecisionDebugger

        step = _torch_step(pair, training)
    else:
        from msprobe.mindspore import PrecisionDebugger

        step = _mindspore_step(pair, training)
    debugger = PrecisionDebugger(str(config))
    losses: list[float] = []
    try:
        for number in range(STEPS):
            debugger.start(training.model)
            losses.append(step(number))
            debugger.stop()
            debugger.step()
    finally:
        debugger.close()
    return losses


def _torch_step(pair: Pair, training: Training) -> Callable[[int], float]:
    import torch

    words, model = training.words, training.model
    made = {
        "SGD": lambda: torch.optim.SGD(model.parameters(), lr=RATE * training.rate),
        "Momentum": lambda: torch.optim.SGD(model.parameters(), lr=RATE * training.rate, momentum=0.9),
        "Adam": lambda: torch.optim.Adam(model.parameters(), lr=0.01 * training.rate),
    }
    optimizer = made[pair.optimizer]()

    def step(number: int) -> float:
        arrays = {name: words.tensor(array) for name, array in pair.batch(number).items()}
        labels = arrays.pop("labels")
        loss = training.loss(model(*arrays.values()), labels)
        loss.backward()
        if training.change is not None:
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    parameter.grad = training.change(name, parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def _mindspore_step(pair: Pair, training: Training) -> Callable[[int], float]:
    import mindspore
    from mindspore import nn

    words, model = training.words, training.model
    parameters = model.trainable_params()
    made = {
        "SGD": lambda: nn.SGD(parameters, learning_rate=RATE * training.rate),
        "Momentum": lambda: nn.SGD(parameters, learning_rate=RATE * training.rate, momentum=0.9),
        "Adam": lambda: nn.Adam(parameters, learning_rate=0.01 * training.rate),
    }
    optimizer = made[pair.optimizer]()

    def forward(labels: Any, *arguments: Any) -> Any:
        return training.loss(model(*arguments), labels)

    gradients_of = mindspore.value_and_grad(forward, None, parameters)

    def step(number: int) -> float:
        arrays = {name: words.tensor(array) for name, array in pair.batch(number).items()}
        labels = arrays.pop("labels")
        loss, gradients = gradients_of(labels, *arrays.values())
        if training.change is not None:
            named = zip(parameters, gradients, strict=True)
            gradients = tuple(training.change(torch_name(each.name), gradient) for each, gradient in named)
        optimizer(gradients)
        return float(loss.asnumpy())

    return step
