"""What `msprobe doctor` says of MindSpore on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import mindspore as ms
import numpy as np
from packaging.version import Version

from msprobe.mindspore._device import device_target, is_host
from msprobe_core.plugin import Condition, Health

TESTED = ("2.9.0", "2.10.0")
"""Releases with which the tests were run, the oldest first; see ``docs/mindspore.md``."""


def examine() -> list[Condition]:
    """Return the conditions of MindSpore, NumPy, the mode and the device."""
    return [_version(ms.__version__), *_numpy(np.__version__), _levels(), _device()]


def _version(text: str) -> Condition:
    found, state = Version(text), f"MindSpore {text}"
    if found.release[:2] in {Version(each).release[:2] for each in TESTED}:
        return Condition(code="mindspore.version", health=Health.OK, state=f"{state}, which is tested")
    is_older = found < Version(TESTED[0])
    return Condition(
        code="mindspore.version",
        health=Health.WARNING,
        state=f"{state} is {'older' if is_older else 'newer'} than what is tested: {' and '.join(TESTED)}",
        why="a function that it names differently would not be recorded",
        advice="run `msprobe demo`, and look whether a dump of yours has the calls that you expect",
    )


def _numpy(text: str) -> Iterator[Condition]:
    if Version(text).major >= 2:
        yield Condition(
            code="mindspore.numpy",
            health=Health.WARNING,
            state=f"NumPy {text}",
            why="MindSpore 2.10 and earlier need NumPy below 2, and fail in functions that convert arrays",
            advice='pip install "numpy<2"',
        )


def _levels() -> Condition:
    is_graph = ms.get_context("mode") == ms.GRAPH_MODE
    state = (
        "GRAPH_MODE is on: Cells (L0) and, on Ascend, kernels (L2) are recorded, and no APIs"
        if is_graph
        else "recorded are Cells (L0), APIs (L1), both (mix), kernels on Ascend (L2) and saved values (debug)"
    )
    return Condition(code="mindspore.levels", health=Health.OK, state=state)


def _device() -> Condition:
    state = f"the device target is {device_target()}; statistics are computed {'there' if is_host() else 'on it'}"
    return Condition(code="mindspore.device", health=Health.OK, state=state)
