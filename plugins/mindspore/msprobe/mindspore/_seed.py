"""Make runs repeatable."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import mindspore as ms

from msprobe.mindspore._dropout import remove_dropout
from msprobe.mindspore._jit import is_tracing
from msprobe.mindspore._random import FAMILY, MindSporeState, mindspore_functions
from msprobe_core.interception import RandomWatch, Repeat, Seeding, common_states, seed_common


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False
) -> Seeding:  # the published signature
    """Seed Python, NumPy and MindSpore; optionally remove other sources of randomness.

    Args:
        seed: From 0 to 2**32 - 1.
        mode: Enable deterministic operators and communication. False changes nothing.
        rm_dropout: Disable every dropout in the whole process; in static graphs, those that are constructed from now
            on.
        is_enhanced: Make each call of a random function of Python, NumPy or MindSpore begin from the same state, so
            that the same call always returns the same result. Not ``nn.Dropout``, whose operator has its own state (use
            ``rm_dropout``, or ``mint.nn.Dropout``), and not in static graphs.

    Returns: a handle; its ``restore`` undoes ``rm_dropout`` and ``is_enhanced``, and so does the next ``seed_all``.

    Raises:
        ConfigError: an argument has the wrong type or is out of range.
    """
    seed_common(seed, mode=mode, rm_dropout=rm_dropout, is_enhanced=is_enhanced)
    ms.set_seed(seed)
    ms.manual_seed(seed)
    if mode:
        framework: Any = ms
        os.environ["HCCL_DETERMINISTIC"] = "true"
        framework.set_deterministic(True)
    installations: list[Callable[[], Callable[[], None]]] = []
    if rm_dropout:
        installations.append(remove_dropout)
    if is_enhanced:
        installations.append(lambda: _repetition(seed))
    return Seeding.replace(*installations)


def _repetition(seed: int) -> Callable[[], None]:
    states = {**common_states(), FAMILY: MindSporeState()}
    watch = RandomWatch(Repeat(states.values()), mindspore_functions(), states, seed=seed, steps_aside=is_tracing)
    watch.install()
    return watch.remove
