"""Make runs repeatable."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch

from msprobe.pytorch._dropout import DropoutKernels
from msprobe.pytorch._random import FAMILY, torch_functions
from msprobe.pytorch._random_state import TorchState
from msprobe.pytorch._torch_releases import is_compiling
from msprobe_core.interception import RandomWatch, Repeat, Seeding, common_states, seed_common


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False
) -> Seeding:  # the published signature
    """Seed Python, NumPy and PyTorch on every device; optionally remove other sources of randomness.

    Args:
        seed: From 0 to 2**32 - 1.
        mode: Enable ``torch.use_deterministic_algorithms`` and the environment settings that it needs. False changes
            nothing: determinism is never disabled.
        rm_dropout: Disable every dropout in the whole process.
        is_enhanced: Make each call of a random function of Python, NumPy or PyTorch begin from the same state, so that
            the same call always returns the same result.

    Returns: a handle; its ``restore`` undoes ``rm_dropout`` and ``is_enhanced``, and so does the next ``seed_all``.

    Raises:
        ConfigError: an argument has the wrong type or is out of range.
    """
    seed_common(seed, mode=mode, rm_dropout=rm_dropout, is_enhanced=is_enhanced)
    torch.manual_seed(seed)  # every CUDA device too
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        npu.manual_seed_all(seed)
    if mode:
        _be_deterministic()
    installations: list[Callable[[], Callable[[], None]]] = []
    if rm_dropout:
        installations.append(_remove_dropout)
    if is_enhanced:
        installations += _repetitions(seed)
    return Seeding.replace(*installations)


def _remove_dropout() -> Callable[[], None]:
    DropoutKernels.take_out()
    return DropoutKernels.put_back


def _repetitions(seed: int) -> Sequence[Callable[[], Callable[[], None]]]:
    states = {**common_states(), FAMILY: TorchState()}
    watch = RandomWatch(Repeat(states.values()), torch_functions(), states, seed=seed, steps_aside=is_compiling)

    def install() -> Callable[[], None]:
        watch.install()
        return watch.remove

    return install, lambda: DropoutKernels.watch(watch, states[FAMILY])


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
