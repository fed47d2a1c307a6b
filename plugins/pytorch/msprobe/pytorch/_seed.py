"""Make runs repeatable."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from msprobe.pytorch._dropout import DropoutKernels
from msprobe.pytorch._random import FAMILY, TorchState, torch_functions
from msprobe_core.capture.randomness import RandomWatch, Repeat, common_states
from msprobe_core.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

_LARGEST_SEED = 2**32 - 1


class Seeding:
    """What a call of `seed_all` has put in place; ``restore`` takes it out, and so does leaving its ``with`` block.

    Seeds and deterministic algorithms stay.
    """

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _current: ClassVar[Seeding | None] = None

    def __init__(self) -> None:
        self._removals: list[Callable[[], None]] = []

    def restore(self) -> None:
        """Let dropout drop, and random functions go on from call to call; a second time does nothing."""
        with self._lock:
            if Seeding._current is self:
                Seeding._current = None
            while self._removals:
                self._removals.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    @classmethod
    def replace(cls, seed: int, *, rm_dropout: bool, is_enhanced: bool) -> Seeding:
        """Take out what the last call has put in place, and put this in its place."""
        with cls._lock:
            if cls._current is not None:
                cls._current.restore()
            seeding = cls._current = cls()
            try:
                if rm_dropout:
                    DropoutKernels.take_out()
                    seeding._removals.append(DropoutKernels.put_back)
                if is_enhanced:
                    seeding._repeat(seed)
            except BaseException:
                seeding.restore()
                raise
            return seeding

    def _repeat(self, seed: int) -> None:
        states = {**common_states(), FAMILY: TorchState()}
        watch = RandomWatch(
            Repeat(states.values()), torch_functions(), states, seed=seed, steps_aside=torch.compiler.is_compiling
        )
        watch.install()
        self._removals.append(watch.remove)
        self._removals.append(DropoutKernels.watch(watch, states[FAMILY]))


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False
) -> Seeding:  # the published signature
    """Seed Python, NumPy and PyTorch on every device; on demand, take out other sources of chance.

    Args:
        seed: From 0 to 2**32 - 1.
        mode: Switch on ``torch.use_deterministic_algorithms`` and the environment settings that it needs. False
            leaves everything as it is: it never switches determinism off.
        rm_dropout: Let no dropout drop anything, in the whole process.
        is_enhanced: Make each call of a random function of Python, NumPy or PyTorch begin from the same state: the
            same call always returns the same.

    Returns: a handle; its ``restore`` undoes ``rm_dropout`` and ``is_enhanced``, and so does the next ``seed_all``.

    Raises:
        ConfigError: an argument has the wrong type or is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError(f"seed_all: 'seed' is {seed!r}, but must be an integer from 0 to {_LARGEST_SEED}")
    flags = {"mode": mode, "rm_dropout": rm_dropout, "is_enhanced": is_enhanced}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"seed_all: {name!r} is {value!r}, but must be True or False")
    random.seed(seed)
    np.random.seed(seed)  # the state that training scripts draw from
    torch.manual_seed(seed)  # every CUDA device too
    os.environ["PYTHONHASHSEED"] = str(seed)  # for processes that this one starts
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        npu.manual_seed_all(seed)
    if mode:
        _be_deterministic()
    return Seeding.replace(seed, rm_dropout=rm_dropout, is_enhanced=is_enhanced)


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
