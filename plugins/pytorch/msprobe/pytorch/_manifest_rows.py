"""Hashes of the rows of a tensor: at once on the host, and enqueued on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from msprobe.pytorch._fingerprints import DeviceTensors, HostTensors
from msprobe.pytorch._native import hash_by_kernels
from msprobe.pytorch._reduce import readable
from msprobe_core.fingerprint import hash_rows

_LONG = 64
"""Elements of a row from which a call of the compiled kernel per row is faster than NumPy for all rows."""


class Rows:
    """See `msprobe_core.plugin.PendingRows`."""

    def __init__(self, computed: Any) -> None:
        """Take hashes as int64, as an array or a tensor."""
        self._computed = computed

    def hashes(self) -> Sequence[int]:
        """Fetch them."""
        values = self._computed.cpu().numpy() if isinstance(self._computed, Tensor) else self._computed
        return values.view(np.uint64).tolist()


def row_hashes(tensor: Tensor) -> Rows | None:
    """Begin to hash the rows of what this process has of a tensor."""
    if not tensor.dim():
        return None
    values = readable(tensor)
    if values is None or not values.dim():
        return None
    values = values.resolve_conj().resolve_neg().contiguous()
    if values.device.type != "cpu":
        return Rows(hash_rows(values, DeviceTensors(values.device)))
    num_rows = values.shape[0]
    if num_rows and values.numel() // num_rows >= _LONG:
        hashes = [hash_by_kernels(values[place]) for place in range(num_rows)]
        if None not in hashes:
            return Rows(np.array(hashes, np.uint64))
    return Rows(hash_rows(values, HostTensors()))
