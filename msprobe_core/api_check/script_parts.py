"""Functions that scripts have copies of, without their annotations, so that they need NumPy and the framework only."""

# The arrays of scripts have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np


def load_inline(dtype: Any, kind: str, shape: tuple[int, ...], values: Any) -> Any:  # noqa: ARG001, D103  # short
    flat = np.frombuffer(bytearray(b64decode(values)), kind) if isinstance(values, str) else np.array(values, kind)
    return flat.reshape(shape)


def load_stored(dtype: Any, kind: str, shape: tuple[int, ...], offset: int) -> Any:  # noqa: ARG001, D103  # short
    path = Path(__file__).with_suffix(".safetensors")
    return np.fromfile(path, kind, int(np.prod(shape)), offset=offset).reshape(shape)


@np.errstate(all="ignore")
def judge(result: Any, exact: Any, allowed: dict[str, Any]) -> tuple[bool, str]:
    """Return whether a result is right, and its error in words."""
    expected = np.where(np.abs(exact) > allowed["largest"], exact * np.inf, exact)
    odd = ~(np.isfinite(result) & np.isfinite(expected))
    num_odd = np.sum(odd & (result != expected) & ~(np.isnan(result) & np.isnan(expected)))
    error, size = np.abs(result - exact)[~odd], np.abs(exact)[~odd]
    unit = np.max(size, initial=0.0) or 1.0  # so that no square overflows
    norm = np.linalg.norm(error / unit) / (np.linalg.norm(size / unit) or 1.0)
    worst = np.max(error / (allowed["absolute"] + allowed["relative"] * size), initial=0.0)
    is_right = worst <= 1.0 if norm <= allowed["rounding"] else norm <= allowed["condition"]
    words = f"error {norm:.2e}, worst element {worst:.2g} times its limit, {num_odd} unexpected NaN or Inf"
    return bool(is_right and num_odd <= allowed["odd"]), words


def judge_exact(result: Any, exact: Any, allowed: dict[str, Any]) -> tuple[bool, str]:
    """Return whether a result that is not of floating point is right, and its error in words."""
    count = int(np.sum(result != exact))
    return count <= allowed["different"], f"{count} of {exact.size} elements differ; {allowed['different']} may"
