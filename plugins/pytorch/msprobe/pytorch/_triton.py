"""Whether a device's tensors can be reduced by our Triton kernels, which are in `msprobe.pytorch._fused`."""

from __future__ import annotations

import os

import torch

from msprobe_core.fingerprint import NATIVE_VARIABLE


def has_kernels(device: torch.device) -> bool:
    """Whether a device is a GPU, Triton is installed and works, and compiled kernels are enabled."""
    if device.type != "cuda" or os.environ.get(NATIVE_VARIABLE) == "0":
        return False
    try:
        import msprobe.pytorch._fused  # noqa: F401  # Triton may not be installed
    except Exception:  # noqa: BLE001  # an installed Triton may not work
        return False
    return True
