"""Where tensors lie, and what can be computed with them there."""

from __future__ import annotations

import mindspore as ms


def is_host() -> bool:
    """Whether operators run on the CPU, and tensors lie in the host's memory."""
    return ms.get_context("device_target") == "CPU"


def _dtypes(*names: str) -> frozenset[object]:
    return frozenset(getattr(ms, name) for name in names if hasattr(ms, name))


COMPLEX = _dtypes("complex64", "complex128")

FLOATING = _dtypes("float16", "float32", "float64", "bfloat16") | COMPLEX
"""Dtypes that have gradients, and NaN."""

WITH_ARITHMETIC = _dtypes("bool_", "int8", "int16", "int32", "int64", "uint8") | FLOATING
"""Dtypes that operators cast to the one that is summed in."""
