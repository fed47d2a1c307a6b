"""The device of tensors, and the dtypes that can be computed with there."""

from __future__ import annotations

import mindspore as ms


def is_host() -> bool:
    """Whether operators run on the CPU, with tensors in host memory."""
    return ms.get_context("device_target") == "CPU"


def _dtypes(*names: str) -> frozenset[object]:
    return frozenset(getattr(ms, name) for name in names if hasattr(ms, name))


COMPLEX = _dtypes("complex64", "complex128")

FLOATING = _dtypes("float16", "float32", "float64", "bfloat16") | COMPLEX
"""Dtypes with gradients and NaN."""

WITH_ARITHMETIC = _dtypes("bool_", "int8", "int16", "int32", "int64", "uint8") | FLOATING
"""Dtypes that operators can cast to the dtype for sums."""
