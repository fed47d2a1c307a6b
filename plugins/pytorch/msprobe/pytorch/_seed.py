"""Make runs repeatable."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

from msprobe_core.errors import ConfigError

_LARGEST_SEED = 2**32 - 1


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:  # the published signature
    """Seed Python, NumPy and PyTorch on every device; with ``mode``, ask for deterministic algorithms too.

    Args:
        seed: From 0 to 2**32 - 1.
        mode: Switch on ``torch.use_deterministic_algorithms`` and the environment settings that it needs. False
            leaves everything as it is: it never switches determinism off.
        rm_dropout: Not available yet.

    Raises:
        ConfigError: an argument has the wrong type or is out of range, or ``rm_dropout`` is asked for.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError(f"seed_all: 'seed' is {seed!r}, but must be an integer from 0 to {_LARGEST_SEED}")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise ConfigError(f"seed_all: {name!r} is {value!r}, but must be True or False")
    if rm_dropout:
        raise ConfigError("seed_all: 'rm_dropout' is not available yet; set the model's dropout probabilities to 0")
    random.seed(seed)
    np.random.seed(seed)  # the state that training scripts draw from
    torch.manual_seed(seed)  # every CUDA device too
    os.environ["PYTHONHASHSEED"] = str(seed)  # for processes that this one starts
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        npu.manual_seed_all(seed)
    if mode:
        _be_deterministic()


def _be_deterministic() -> None:
    os.environ.update(
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
        HCCL_DETERMINISTIC="True",
        LCCL_DETERMINISTIC="1",
        CLOSE_MATMUL_K_SHIFT="1",
        ATB_LLM_LCOC_ENABLE="0",
    )
    torch.use_deterministic_algorithms(True)
    if torch.cuda.is_available():
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
