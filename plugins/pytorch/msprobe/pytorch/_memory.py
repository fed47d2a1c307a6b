"""Memory of host tensors as NumPy's arrays, without a trace at the tensor."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage]

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By their size in bytes."""


class _Exported:
    """Exports a tensor's memory to NumPy; created for one tensor and used once."""

    __slots__ = ("_capsule",)

    def __init__(self, tensor: Tensor) -> None:
        self._capsule = to_dlpack(tensor)

    def __dlpack__(self, **_: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the host


def array_of(values: Tensor) -> NDArray[Any]:
    """Return the elements of a plain host tensor, of a dtype that NumPy has, without a copy.

    Not by ``Tensor.numpy``, which marks the memory: its owner could no longer resize it, as some programs do to free
    unused memory, and we could no longer detect whether NumPy writes to it.
    """
    return words_of(values).view(str(values.dtype).removeprefix("torch."))


def words_of(values: Tensor) -> NDArray[Any]:
    """Return the raw bits of each element of a plain host tensor as a signed integer, without a copy."""
    exported: Any = _Exported(values.view(INTEGERS[values.element_size()]))
    return np.from_dlpack(exported)


def address_of(values: Tensor) -> int:
    """Return the address of the elements of a plain, contiguous host tensor; 0 if they are stored negated.

    Raises:
        RuntimeError: its memory has been released, as FSDP does temporarily; reading it would crash the process.
    """
    needed = (values.storage_offset() + values.numel()) * values.element_size()
    if values.untyped_storage().nbytes() < needed:
        raise RuntimeError("its memory has been resized to less than its elements need")
    return 0 if values.is_neg() else values.data_ptr()


def memory_of(values: Tensor) -> memoryview | None:
    """Return the bytes of a plain host tensor without a copy, valid as long as the caller keeps the tensor.

    ``None`` if the elements are not contiguous, or differ from those in memory.

    Raises:
        RuntimeError: see `address_of`.
    """
    if not values.is_contiguous() or values.is_conj() or not values.numel():
        return None
    address = address_of(values)
    return _view_memory(address, values.numel() * values.element_size(), _READ_ONLY) if address else None


_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view_memory.restype = ctypes.py_object
_READ_ONLY = 0x100  # PyBUF_READ of Python's C interface
