"""Make runs repeatable."""

from __future__ import annotations

import os
from typing import Any

import mindspore as ms

from msprobe.mindspore._dropout import remove_dropout
from msprobe_core.capture.seeding import Seeding, seed_common


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> Seeding:  # the published signature
    """Seed Python, NumPy and MindSpore; on demand, take out other sources of chance.

    Args:
        seed: From 0 to 2**32 - 1.
        mode: Switch on deterministic operators and communication. False leaves everything as it is.
        rm_dropout: Let no dropout drop anything, in the whole process. In static graphs that holds for what is
            constructed from now on.

    Returns: a handle; its ``restore`` undoes ``rm_dropout``, and so does the next ``seed_all``.

    Raises:
        ConfigError: an argument has the wrong type or is out of range.
    """
    seed_common(seed, mode=mode, rm_dropout=rm_dropout)
    ms.set_seed(seed)
    ms.manual_seed(seed)
    if mode:
        framework: Any = ms
        os.environ["HCCL_DETERMINISTIC"] = "true"
        framework.set_deterministic(True)
    return Seeding.replace(*[remove_dropout] if rm_dropout else [])
