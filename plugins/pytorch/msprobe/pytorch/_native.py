"""Reduce host tensors with the core's compiled kernels and PyTorch's own threads; ``None`` for unsupported tensors."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from msprobe.pytorch._memory import address_of
from msprobe.pytorch._transforms import is_wrapped
from msprobe_core.fingerprint import FLOAT_KINDS, INTEGER_KINDS, Sketcher, Threads, kernels
from msprobe_core.plugin import Stats

_FLOATS = {getattr(torch, name): kind for name, kind in FLOAT_KINDS.items()}
_NAMES = {getattr(torch, name): name for name in (*FLOAT_KINDS, *INTEGER_KINDS, "bool") if hasattr(torch, name)}


def _openmp() -> Threads | None:
    """Return the threads of the OpenMP that PyTorch was built with, found among its linked libraries."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        run, number = (
            ctypes.cast(library[name], ctypes.c_void_p).value for name in ("GOMP_parallel", "omp_get_thread_num")
        )
    except (OSError, AttributeError):
        return None
    return None if run is None or number is None else Threads(run, number, torch.get_num_threads)


_KERNELS = kernels()
_THREADS = None if _KERNELS is None else _openmp()


def statistics_by_kernels(values: Tensor) -> Stats | None:
    """Return the statistics of a plain non-empty host tensor; a non-contiguous one is copied first."""
    if _KERNELS is None:
        return None
    dtype = _NAMES.get(values.dtype)
    if dtype is None:
        return None
    values = values.contiguous()
    address = address_of(values)
    return _KERNELS.statistics(address, values.numel(), dtype, _THREADS) if address else None


def statistics_of_plain(tensor: Tensor) -> Stats | None:
    """Return the statistics of a floating-point tensor on the host whose elements fill a piece of memory.

    Most recorded tensors are such, and nothing has to be made of them first: no detached alias, no view as a vector.
    ``None`` for all others. Elements are read in memory order, whatever the dimensions' order.
    """
    kind = _FLOATS.get(tensor.dtype)
    if (
        kind is None or _KERNELS is None or not tensor.is_cpu or is_wrapped(tensor) or tensor.is_nested
        or tensor.layout is not torch.strided or tensor.is_neg() or tensor._is_zerotensor()
    ):  # fmt: skip
        return None
    count = tensor.numel()
    if not count or not (tensor.is_contiguous() or _is_dense(tensor)):
        return None
    # FSDP releases the memory of parameters.
    if tensor.untyped_storage().nbytes() < (tensor.storage_offset() + count) * tensor.element_size():
        return None
    address = tensor.data_ptr()  # 0 of wrappers, in which PyTorch's functionalization has a tensor
    return _KERNELS.statistics_of_floats(address, count, kind, _THREADS) if address else None


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements are adjacent in memory, each once, in some order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def hash_by_kernels(values: Tensor) -> int | None:
    """Return the hash of a plain host tensor that is contiguous."""
    if _KERNELS is None or not values.is_contiguous() or values.is_conj():
        return None
    address = address_of(values)
    if not address:
        return None
    num_parts = 2 if values.is_complex() else 1
    return _KERNELS.hash(address, num_parts * values.numel(), values.element_size() // num_parts, _THREADS)


def sketch_by_kernels(values: Tensor, sketcher: Sketcher) -> bytes | None:
    """Return the sketch of a plain host tensor that is contiguous, of a dtype of floating-point numbers."""
    if _KERNELS is None or values.dtype not in _FLOATS or not values.is_contiguous():
        return None
    address, count = address_of(values), values.numel()
    return _KERNELS.sketch(address, count, _FLOATS[values.dtype], sketcher.tables(count), _THREADS) if address else None
