"""The contract tests' view of PyTorch."""

from __future__ import annotations

import numpy as np
import torch
import torch.overrides
from msprobe.pytorch._framework import PyTorchFramework
from torch import nn
from torch_traces import traces_in


class Block(nn.Module):
    """Called with a keyword argument; can be told to raise."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.fails = False

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise ArithmeticError("planted")
        return torch.relu(self.fc(x)) + shift


class Network(nn.Module):
    """Two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.first = Block()
        self.second = Block()
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        hidden = self.first(hidden, shift=hidden * 0.5)
        return self.head(self.second(hidden, shift=hidden.detach()))


class TorchRig:
    """See `msprobe_core.testing.TrainingRig`."""

    def __init__(self) -> None:
        self.framework = PyTorchFramework()

    def make_tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.copy())

    def make_bfloat16(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(torch.bfloat16)

    def overwrite(self, tensor: torch.Tensor, value: float) -> None:
        tensor.fill_(value)

    def make_model(self, seed: int) -> Network:
        torch.manual_seed(seed)
        return Network()

    def train_step(self, model: Network, step: int) -> float:
        torch.manual_seed(100 + step)
        model.zero_grad()
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        return loss.item()

    def make_adam(self, model: Network) -> torch.optim.Adam:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def train_with(self, model: Network, optimizer: torch.optim.Optimizer, step: int) -> float:
        torch.manual_seed(100 + step)
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    def fail_in_step(self, model: Network) -> None:
        model.second.fails = True
        try:
            model(torch.randn(5, 4))
        finally:
            model.second.fails = False

    def state_of(self, model: Network) -> dict[str, np.ndarray]:
        state = {}
        for name, parameter in model.named_parameters():
            state[name] = parameter.detach().numpy().copy()
            state[f"{name}.grad"] = parameter.grad.numpy().copy()
        return state

    def traces_in(self, model: Network) -> object:
        return traces_in(model)
