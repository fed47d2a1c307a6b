"""Hashes of tensors on devices: by PyTorch's operators, or by a kernel once it has agreed with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch._fingerprints import DeviceTensors
from msprobe.pytorch._triton import has_kernels
from msprobe_core.fingerprint import Place, hash_of
from msprobe_core.plugin import Digest

_logger = logging.getLogger("msprobe")

HashKernel = Callable[[Tensor], Tensor]
"""Returns the hash, int64 and 0-d, of a contiguous tensor of signed integers; as `msprobe.pytorch._fused.hash_word`."""


class DeviceHashes:
    """Enqueues hashes on devices.

    The operators are some 30 launches for a tensor, and read and write temporaries of 8 bytes for an element; a kernel
    is one. As with statistics, nothing that it computes is recorded before a window in which the operators hashed
    tensors of elements as wide, all with the same result.
    """

    def __init__(self, find_kernel: Callable[[torch.device], HashKernel | None]) -> None:
        """Begin without a kernel."""
        self._find_kernel = find_kernel
        self._kernels: dict[torch.device, HashKernel | None] = {}
        self._agreed: set[tuple[torch.device, int]] = set()
        self._wrong: set[tuple[torch.device, int]] = set()

    def words(self, values: Tensor, place: Place | None, digest: Digest) -> Iterator[tuple[Tensor, Any]]:
        """Yield int64 tensors, 0-d, and whose ``checksum`` each is: of the digest, and of what checks the kernel."""
        arrays = DeviceTensors(values.device)
        parts = arrays.reals(values)
        kind = values.device, parts.element_size()
        word = None if place is not None else self._by_kernel(kind, parts, arrays)
        if word is not None and kind in self._agreed:
            yield word, digest
            return
        yield hash_of(values, arrays, place)[0], digest
        if word is not None:
            yield word, _Comparison(digest, lambda is_same: self._judge(kind, is_same=is_same))

    def _by_kernel(self, kind: tuple[torch.device, int], parts: Tensor, arrays: DeviceTensors) -> Tensor | None:
        device = kind[0]
        if device not in self._kernels:
            self._kernels[device] = self._find_kernel(device)
        kernel = self._kernels[device]
        if kernel is None or kind in self._wrong or not parts.numel():
            return None
        try:
            return kernel(arrays.words(parts.contiguous()))
        except Exception as error:  # noqa: BLE001  # of a compiler, a driver, a device
            self._kernels[device] = None
            _logger.warning("tensors on %s are hashed by several operators, as the kernel fails: %s", device, error)
            return None

    def _judge(self, kind: tuple[torch.device, int], *, is_same: bool) -> None:
        if is_same and kind not in self._wrong:
            self._agreed.add(kind)
        elif not is_same:
            self._wrong.add(kind)
            self._agreed.discard(kind)
            _logger.warning(
                "tensors of %d bytes for an element are hashed by several operators: the kernel is wrong on %s",
                kind[1], kind[0],
            )  # fmt: skip


class _Comparison:
    """Takes the kernel's hash of a tensor after the digest has taken that of the operators."""

    def __init__(self, digest: Digest, judge: Callable[[bool], None]) -> None:
        self._digest, self._judge = digest, judge

    @property
    def checksum(self) -> str | None:
        return self._digest.checksum

    @checksum.setter
    def checksum(self, text: str) -> None:
        self._judge(text == self._digest.checksum)


def fused_hash(device: torch.device) -> HashKernel | None:
    """Return Triton's kernel for a GPU, if there can be one."""
    if not has_kernels(device):
        return None
    from msprobe.pytorch._fused import hash_word  # needs Triton

    return hash_word
