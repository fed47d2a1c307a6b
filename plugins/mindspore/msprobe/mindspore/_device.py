"""The device of tensors, and the dtypes that can be computed with there."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from msprobe_core.plugin import ConfigError


def is_host() -> bool:
    """Whether operators run on the CPU, with tensors in host memory."""
    return ms.get_context("device_target") == "CPU"


def device_target() -> str:
    """Return the kind of device of this process, such as ``Ascend``."""
    return str(ms.get_context("device_target"))


def copied(tensor: Any) -> Any:
    """Return a tensor with the same elements, made where they are.

    A ``Parameter`` copies itself into another one, for which MindSpore fetches its elements.
    """
    return ms.Tensor.copy(tensor)


def check_target(name: str) -> None:
    """Raise unless ``name`` is the device of this process: its target, with or without its number, as ``Ascend:0``.

    Raises:
        ConfigError: it is another one.
    """
    target = device_target()
    number = 0 if is_host() else ms.get_context("device_id")
    if name.lower() not in (target.lower(), f"{target}:{number}".lower()):
        raise ConfigError(
            f"device {name!r}: MindSpore computes on one device in a process, which is {target}:{number} here; "
            "give that, or set device_target and device_id before anything is computed"
        )


def _dtypes(*names: str) -> frozenset[object]:
    return frozenset(getattr(ms, name) for name in names if hasattr(ms, name))


COMPLEX = _dtypes("complex64", "complex128")

FLOATING = _dtypes("float16", "float32", "float64", "bfloat16") | COMPLEX
"""Dtypes with gradients and NaN."""

WITH_ARITHMETIC = _dtypes("bool_", "int8", "int16", "int32", "int64", "uint8") | FLOATING
"""Dtypes that operators can cast to the dtype for sums."""
