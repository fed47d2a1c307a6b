"""Memory that has not been written since its allocation: its values are arbitrary and differ between runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from msprobe.pytorch._apis import is_foreign_operator
from msprobe.pytorch._reduce import held_by
from msprobe.pytorch._transforms import is_wrapped, unwrapped
from msprobe_core.interception import tensors_in

Function = Callable[..., Any]


class UnsetMemory:
    """Memory that has not been written since its allocation, according to version counters.

    A kernel outside of PyTorch may have written to it without incrementing the version. So tensors in it are still read
    as operands of a call; they are skipped only if the call overwrites or views them.
    """

    def __init__(self) -> None:
        """Begin empty."""
        # The weak references keep addresses from being given to other memory.
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._prune_at = _FEW

    def __bool__(self) -> bool:
        return bool(self._known)

    def note(self, value: Any) -> None:
        """Note that the memory of the tensors in ``value`` is newly allocated."""
        for storage, version in _memories_of(value):
            self._known[storage._cdata] = StorageWeakRef(storage), version
        if len(self._known) >= self._prune_at:
            self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
            self._prune_at = max(_FEW, 2 * len(self._known))

    def forget(self, value: Any) -> None:
        """Note that the memory of the tensors in ``value`` may have been written without incrementing the version."""
        for storage, _ in _memories_of(value):
            self._known.pop(storage._cdata, None)

    def among(self, value: Any) -> list[Tensor]:
        """Return the tensors in ``value`` whose memory has not been written to."""
        return [tensor for tensor in tensors_in(value, Tensor) if any(map(self._holds, _memories_of(tensor)))]

    def clear(self) -> None:
        """Discard all."""
        self._known.clear()

    def _holds(self, memory: tuple[torch.UntypedStorage, int]) -> bool:
        storage, version = memory
        known = self._known.get(storage._cdata)
        return known is not None and version == known[1]


_FEW = 256
"""Number of entries from which released memory is removed."""


def _memories_of(value: Any) -> Iterator[tuple[torch.UntypedStorage, int]]:
    """Yield memory and version of the tensors in ``value`` that have them."""
    for tensor in tensors_in(value, Tensor):
        holder = held_by(tensor)
        if is_wrapped(holder):
            holder = unwrapped(holder)
        if holder is None or holder.is_inference():
            continue
        try:
            storage = holder.untyped_storage()
        except (NotImplementedError, RuntimeError):  # of sparse tensors and of many subclasses
            continue
        yield storage, holder._version


def leaves_memory_unset(function: Function) -> bool:
    """Whether the result of ``function`` is uninitialised memory."""
    return _is_among(function, _UNSETTING)


def concerns_unset_memory(function: Function) -> bool:
    """Whether ``function`` allocates memory, or may write to it without incrementing the version."""
    try:
        return _concerns_unset_memory(function)
    except TypeError:  # not hashable: nothing that torch defines
        return False


@lru_cache(1 << 12)
def _concerns_unset_memory(function: Function) -> bool:
    return leaves_memory_unset(function) or is_foreign_operator(function)


def ignores_values(function: Function) -> bool:
    """Whether ``function`` does not use the values of its first argument, but overwrites or views it."""
    name = str(getattr(function, "__name__", "")).partition(".")[0]  # an operator's name is followed by its overload
    return name in _IGNORING or getattr(function, "__module__", None) == "torch.nn.init"


def _is_among(function: Function, functions: frozenset[Function]) -> bool:
    try:
        return function in functions
    except TypeError:  # not hashable: nothing that torch defines
        return False


_UNSETTING: frozenset[Function] = frozenset(
    getattr(namespace, name)
    for namespace, names in (
        (torch, ("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized")),
        (torch.Tensor, ("new_empty", "new_empty_strided")),
    )
    for name in names
    if hasattr(namespace, name)
)

_IGNORING = frozenset(
    {
        # Overwrite it, wholly or in part.
        "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_",
        "cauchy_", "log_normal_", "fill_diagonal_", "put_", "__setitem__", "index_put_", "index_copy_", "index_fill_",
        "masked_fill_", "masked_scatter_", "scatter_", "set_", "resize_", "resize_as_",
        # View it.
        "__getitem__", "view", "view_as", "reshape", "reshape_as", "transpose", "permute", "t", "squeeze", "unsqueeze",
        "expand", "expand_as", "flatten", "unflatten", "ravel", "narrow", "select", "chunk", "split",
        "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind", "movedim", "moveaxis", "swapaxes",
        "swapdims", "as_strided", "diagonal", "unfold", "detach", "contiguous", "view_as_real", "view_as_complex",
    }
)  # fmt: skip
