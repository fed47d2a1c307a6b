"""What `msprobe doctor` says of PyTorch on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.metadata import version

import torch
from packaging.version import Version

from msprobe.pytorch._reduce import fused_kernel
from msprobe.pytorch._replay_devices import devices
from msprobe.pytorch._statistics import WITHOUT_DOUBLE
from msprobe_core.plugin import Condition, Health

OLDEST = Version("2.1")
TESTED = ("2.1.2", "2.6.0", "2.13.0")
"""Releases with which the tests were run, the oldest first; see ``docs/pytorch.md``."""


def examine() -> list[Condition]:
    """Return the conditions of PyTorch, its devices and Triton."""
    return [_version(torch.__version__), _levels(), *_devices(), _triton()]


def _version(text: str) -> Condition:
    found = Version(str(text))
    state = f"PyTorch {text}"
    tested = f"tested are {', '.join(TESTED[:-1])} and {TESTED[-1]}"
    if found < OLDEST:
        return Condition(
            code="pytorch.version",
            health=Health.ERROR,
            state=f"{state} is older than {OLDEST}",
            why="functions are missing that recording needs",
            advice=f"install PyTorch {OLDEST} or later; {tested}",
        )
    minors = {Version(each).release[:2] for each in TESTED}
    if found.release[:2] in minors:
        return Condition(code="pytorch.version", health=Health.OK, state=f"{state}, which is tested")
    is_newer = found > Version(TESTED[-1])
    return Condition(
        code="pytorch.version",
        health=Health.WARNING if is_newer else Health.NOTE,
        state=f"{state} is {'newer than what is tested' if is_newer else 'between releases that are tested'}: {tested}",
        why="a function that it has renamed would not be recorded",
        advice="run `msprobe demo`, and look whether a dump of yours has the calls that you expect",
    )


def _levels() -> Condition:
    state = "recorded are modules (L0), APIs (L1), both (mix) and saved values (debug); kernels (L2) are not"
    return Condition(code="pytorch.levels", health=Health.OK, state=state)


def _devices() -> Iterator[Condition]:
    found = devices()
    if not found:
        state = "no device besides the CPU; statistics are computed there"
        yield Condition(code="pytorch.device", health=Health.OK, state=state)
    for kind in dict.fromkeys(name.partition(":")[0] for name in found):
        number = sum(name.startswith(f"{kind}:") for name in found)
        yield _device(torch.device(f"{kind}:0"), f"{number} x {kind}")


def _device(device: torch.device, name: str) -> Condition:
    try:
        total = torch.ones(2, dtype=torch.float32, device=device).sum().item()
    except Exception as error:  # noqa: BLE001  # whatever a driver says
        return Condition(
            code="pytorch.device",
            health=Health.ERROR,
            state=f"{name}: a sum on the device fails ({' '.join(str(error).split())[:200]})",
            why="trainings fail there, with and without recording",
            advice="repair the driver, or free the device's memory",
        )
    if total != 2.0:
        return Condition(
            code="pytorch.device",
            health=Health.ERROR,
            state=f"{name}: 1 + 1 is {total} on the device",
            why="what it computes, and what is recorded of it, is wrong",
            advice="look at the device's error counters, and replace it",
        )
    wide = "float32, as the device has no usable float64" if device.type in WITHOUT_DOUBLE else "up to float64"
    state = f"{name}; statistics are computed there, in {wide}"
    return Condition(code="pytorch.device", health=Health.OK, state=state)


def _triton() -> Condition:
    if importlib.util.find_spec("triton") is None:
        state = "Triton is not installed; there are no calls of its kernels to record"
        return Condition(code="pytorch.triton", health=Health.OK, state=state)
    state = f"Triton {version('triton')}: launches of its kernels are recorded"
    if torch.cuda.is_available() and fused_kernel(torch.device("cuda")) is None:
        return Condition(
            code="pytorch.triton",
            health=Health.NOTE,
            state=f"{state}; ours is not used",
            why="statistics of tensors on the GPU take several passes; the numbers are the same",
            advice="unset MSPROBE_NATIVE, or repair the installation of Triton",
        )
    return Condition(code="pytorch.triton", health=Health.OK, state=state)
