"""Tensors for `msprobe_core.fingerprint`: on the host through NumPy, otherwise on their device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch._memory import INTEGERS, array_of, words_of
from msprobe.pytorch._statistics import WITHOUT_DOUBLE
from msprobe_core.fingerprint import NumpyArrays


def _reals(values: Tensor) -> Tensor:
    values = values.resolve_conj().resolve_neg()
    return torch.view_as_real(values) if values.is_complex() else values


def _words(values: Tensor) -> Tensor:
    return values.view(INTEGERS[values.element_size()])


class HostTensors(NumpyArrays):
    """Tensors on the host: converted to NumPy's arrays when read, which is faster for small ones.

    See `msprobe_core.fingerprint.arrays.Arrays`.
    """

    def reals(self, values: Any) -> Any:
        """Return a tensor with real elements."""
        return _reals(values)

    def words(self, values: Any) -> Any:
        """Return the bits of a tensor as an array."""
        return words_of(values)

    def floats(self, values: Any) -> Any:
        """Return the elements of a tensor as an array; an array unchanged."""
        if not isinstance(values, Tensor):
            return values
        is_narrow = values.is_floating_point() and values.dtype not in (torch.float32, torch.float64)
        return array_of(values.float() if is_narrow else values)


class DeviceTensors:
    """Tensors on one device; everything is enqueued. See `msprobe_core.fingerprint.arrays.Arrays`."""

    chunk = 1 << 22

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._wide = torch.float32 if device.type in WITHOUT_DOUBLE else torch.float64

    def reals(self, values: Any) -> Any:
        """Return a tensor with real elements."""
        return _reals(values)

    def words(self, values: Any) -> Any:
        """Return the bits as integers."""
        return _words(values)

    def floats(self, values: Any) -> Any:
        """Return elements that can be multiplied with the tables."""
        return values if values.dtype is torch.float32 else values.to(self._wide)

    def single(self, values: Any) -> Any:
        """Return float32."""
        return values.float()

    def zeros(self, *shape: int) -> Any:
        """Return zeros of float64, or of float32 on a device without float64."""
        return torch.zeros(shape, dtype=self._wide, device=self._device)

    def ramp(self, size: int, step: int = 1) -> Any:
        """Return multiples of ``step``."""
        return torch.arange(size, dtype=torch.int64, device=self._device) * step

    def shift(self, words: Any, num_bits: int) -> Any:
        """Return a logical shift to the right; PyTorch's own copies the sign."""
        return (words >> num_bits).bitwise_and_((1 << 64 - num_bits) - 1)

    def windows(self, table: Any, first: int, num_windows: int, size: int) -> Any:
        """Return overlapping parts of a vector."""
        return table.unfold(0, size, 1)[first : first + num_windows]
