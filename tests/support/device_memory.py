"""The memory of a simulated device: how much is in use, and which of the host it can copy to by itself."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import torch
from torch import Tensor


class DeviceMemory:
    """Counts the bytes of all tensors on the device.

    Attributes:
        peak: The largest number of bytes in use at any time since `reset_peak`.
    """

    def __init__(self, on_free: Callable[[int], None]) -> None:
        self.used = self.peak = 0
        self._num_tensors: dict[int, int] = {}  # by memory
        self._on_free = on_free
        self._pinned_memory: set[int] = set()
        self._lock = threading.RLock()

    @property
    def num_blocks(self) -> int:
        """How many blocks of memory are in use."""
        return len(self._num_tensors)

    def hold(self, tensor: object, held: Tensor) -> None:
        """Count the memory of a tensor until it and all others in this memory are freed."""
        storage = held.untyped_storage()
        memory, size = storage._cdata, storage.nbytes()
        with self._lock:
            if memory not in self._num_tensors:
                self.used += size
                self.peak = max(self.peak, self.used)
            self._num_tensors[memory] = self._num_tensors.get(memory, 0) + 1
        weakref.finalize(tensor, self._release, memory, size).atexit = False

    def _release(self, memory: int, size: int) -> None:
        with self._lock:
            self._num_tensors[memory] -= 1
            if not self._num_tensors[memory]:
                del self._num_tensors[memory]
                self.used -= size
                self._on_free(memory)

    def reset_peak(self) -> None:
        """Begin to look for the largest number again."""
        self.peak = self.used

    def pinned_like(self, values: Tensor) -> Tensor:
        """Return memory of the host to which the device copies by itself."""
        made = torch.empty(values.shape, dtype=values.dtype)
        memory = made.untyped_storage()._cdata
        self._pinned_memory.add(memory)
        weakref.finalize(made, self._pinned_memory.discard, memory).atexit = False
        return made

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether memory of the host is pinned."""
        return tensor.untyped_storage()._cdata in self._pinned_memory
