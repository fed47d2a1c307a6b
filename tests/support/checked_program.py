"""A training that a `ConfigChecker` watches: ``checked_program.py FRAMEWORK PACK [SETTING=VALUE …]``."""

import random
import sys

import numpy as np

from msprobe_core.config_check.checker import ConfigChecker

WIDTH = 8


def samples():
    """Return the samples of three steps."""
    return [np.random.default_rng(step).normal(size=(4, WIDTH)).astype(np.float32) for step in range(3)]


def weights():
    """Return the parameters by PyTorch's names."""
    generator = np.random.default_rng(7)
    shapes = {"0.weight": (WIDTH, WIDTH), "0.bias": (WIDTH,), "2.weight": (2, WIDTH), "2.bias": (2,)}
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def draw():
    """Draw from Python and NumPy."""
    return random.random(), np.random.rand(2)


def train_pytorch(pack, options):
    """Train in PyTorch."""
    import torch  # one of the frameworks is installed
    from torch import nn

    torch.manual_seed(int(options.get("seed", 1)))
    norm = nn.LayerNorm(WIDTH, eps=float(options.get("eps", 1e-5)))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, nn.Linear(WIDTH, 2))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights().items()}, strict=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=float(options.get("lr", 1e-2)))
    ConfigChecker(model, output_zip_path=pack, fmk="pytorch")
    for x in samples():
        draw()
        noise = torch.rand(4, WIDTH) * 0
        x = torch.from_numpy(x[::-1].copy() if "flip" in options else x)
        loss = (model(x + noise) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_mindspore(pack, options):
    """Train in MindSpore."""
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_seed(int(options.get("seed", 1)))
    norm = nn.LayerNorm((WIDTH,), epsilon=float(options.get("eps", 1e-5)))
    model = nn.SequentialCell(nn.Dense(WIDTH, WIDTH), norm, nn.Dense(WIDTH, 2))
    for parameter in model.get_parameters():
        if parameter.name in weights():
            parameter.set_data(ms.Tensor(weights()[parameter.name]))
    rate = float(options.get("lr", 1e-2))
    optimizer = nn.Adam(model.trainable_params(), learning_rate=rate)
    ConfigChecker(model, output_zip_path=pack, fmk="mindspore")
    step = ms.value_and_grad(lambda x: (model(x) ** 2).mean(), None, optimizer.parameters)
    for x in samples():
        draw()
        noise = ops.rand(4, WIDTH) * 0
        x = ms.Tensor(x[::-1].copy() if "flip" in options else x)
        _, gradients = step(x + noise)
        optimizer(gradients)


if __name__ == "__main__":
    framework, path, *settings = sys.argv[1:]
    ConfigChecker.apply_patches(fmk=framework)
    chosen = dict(each.split("=") for each in settings)
    if chosen.pop("more", None):
        draw()
    {"pytorch": train_pytorch, "mindspore": train_mindspore}[framework](path, chosen)
