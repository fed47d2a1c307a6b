"""The reducer: what is kept of tensors, on the host at once, on a device deferred; and their identities."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed
from torch import Tensor

from msprobe.pytorch._checksums import bytes_of, crc32_of, xor_of, xor_on_device
from msprobe.pytorch._fingerprints import WITHOUT_VALUES, DeviceTensors, HostTensors
from msprobe.pytorch._native import hash_by_kernels, sketch_by_kernels
from msprobe.pytorch._placements import place_of
from msprobe.pytorch._releases import is_resizable
from msprobe.pytorch._statistics import WITHOUT_ARITHMETIC, DeferredStatistics, ProvenKernel, host_statistics
from msprobe_core.capture.checksum import word_text
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.place import Place
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.model import Digest, Stats
from msprobe_core.native.kernels import SWITCH

_Read = TypeVar("_Read")

_Elements = tuple[int, int, int | torch.SymInt, int, torch.dtype]
"""What tells the elements of a dense tensor: which part of which memory, in which version."""

_ADDRESS_BITS = 64

_WeakTensorRef: Callable[[Tensor], object] | None = getattr(torch._C, "_WeakTensorRef", None)

_is_wrapped: Callable[[Tensor], bool] = cast("Any", torch._C)._functorch.is_functorch_wrapped_tensor


def _has_collectives() -> bool:
    return _CAN_HAVE_COLLECTIVES and torch.distributed.is_initialized()


_CAN_HAVE_COLLECTIVES = torch.distributed.is_available()


class _Memories:
    """The memories that tensors had, and how often those had been written to when they were last seen.

    What is kept is where a memory is noted down, so that no other is taken for it; not what it holds. One object for
    all, of what the garbage collector does not look at: there is one for almost every tensor that is read.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._references: list[int] = []

    def note_version(self, storage: torch.UntypedStorage, version: int) -> bool:
        """Note that a tensor of this memory has this version; return whether another had a higher one before."""
        address = storage._cdata
        known = self._versions.get(address)
        if known is None:
            self._references.append(cast("int", storage._weak_ref()))
        self._versions[address] = version
        return known is not None and version < known

    def clear(self) -> None:
        """Forget all."""
        self._versions.clear()
        while self._references:
            torch.UntypedStorage._free_weak_ref(self._references.pop())

    __del__ = clear


class TorchReducer:
    """See `msprobe_core.hookspecs.Reducer`.

    Tensors on the host are reduced at once. For a tensor on a device the reductions are enqueued, their results stay
    on the device, and ``collect`` brings all of them over in one transfer.
    """

    def __init__(
        self, *, defer_host: bool = False, find_kernel: Callable[[torch.device], ProvenKernel | None] | None = None
    ) -> None:
        """Begin empty.

        Args:
            defer_host: Treat tensors on the host like those on a device; lets that path be tested without one.
            find_kernel: Returns what reduces tensors on a device in one launch; Triton's for GPUs if not given.
        """
        self._defer_host = defer_host
        self._find_kernel = find_kernel or fused_kernel
        self._kernels: dict[torch.device, ProvenKernel | None] = {}
        self._deferred: dict[torch.device, DeferredStatistics] = {}
        self._checksums: list[tuple[Digest, Tensor]] = []
        self._words: dict[torch.device, list[tuple[Digest, Tensor]]] = {}
        self._sketches: dict[torch.device, list[tuple[Digest, Tensor]]] = {}
        self._sketchers: dict[torch.device, Sketcher] = {}
        self._alive: dict[int, object] = {}
        self._let_go: dict[int, int] = {}
        self._memories = _Memories()
        self._exposed: set[int] = set()
        self._known: dict[Callable[[Tensor], Any], dict[_Elements, Any]] = {}

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None or values.dtype in WITHOUT_ARITHMETIC or values.numel() == 0:
            digest.stats = Stats()
        elif self._is_on_host(values):
            digest.stats = self._read(tensor, values, host_statistics)
        else:
            self._deferred_on(values.device).add(values, digest)

    def _deferred_on(self, device: torch.device) -> DeferredStatistics:
        deferred = self._deferred.get(device)
        if deferred is None:
            if device not in self._kernels:
                self._kernels[device] = self._find_kernel(device)
            deferred = self._deferred[device] = DeferredStatistics(self._kernels[device])
        return deferred

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            digest.checksum = self._read(tensor, values, crc32_of, in_order=True)
        else:
            self._checksums.append((digest, values.clone()))

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            digest.checksum = self._read(tensor, values, xor_of, in_order=True)
        else:
            self._words.setdefault(values.device, []).append((digest, xor_on_device(bytes_of(values))))

    def hash(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None:
            return
        if self._is_on_host(values):
            place = _place_of(tensor)
            if place is None:
                digest.checksum = self._read(tensor, values, _host_hash_of, in_order=True)
            else:
                digest.checksum = word_text(int(hash_of(values, HostTensors(), place)[0]))
        else:
            word = hash_of(values, DeviceTensors(values.device), _place_of(tensor))[0]
            self._words.setdefault(values.device, []).append((digest, word))

    def sketch(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.sketch``, now or at the next ``collect``."""
        values = readable(tensor)
        if values is None or values.numel() == 0 or values.dtype in WITHOUT_VALUES:
            return
        place = _place_of(tensor)
        if self._is_on_host(values):
            if place is None:
                digest.sketch = self._read(tensor, values, self._host_sketch_of, in_order=True)
            else:
                digest.sketch = self._sketcher(values).sketch(values, place).astype("<f4").tobytes()
        else:
            sketch = self._sketcher(values).sketch(values, place)
            self._sketches.setdefault(values.device, []).append((digest, sketch))

    def _host_sketch_of(self, values: Tensor) -> bytes:
        sketch = sketch_by_kernels(values, self._sketcher(values))
        if sketch is not None:
            return sketch
        return self._sketcher(values).sketch(values).astype("<f4").tobytes()

    def _sketcher(self, values: Tensor) -> Sketcher:
        sketcher = self._sketchers.get(values.device)
        if sketcher is None:
            arrays = HostTensors() if self._is_on_host(values) else DeviceTensors(values.device)
            sketcher = self._sketchers[values.device] = Sketcher(arrays)
        return sketcher

    def _read(
        self, tensor: Tensor, values: Tensor, read: Callable[[Tensor], _Read], *, in_order: bool = False
    ) -> _Read:
        """Return what ``read`` makes of the values; once only, where the same elements are seen under several views.

        That is for tensors that have been identified: who does not ask for their identity does not follow writes.

        Args:
            tensor: The tensor.
            values: The same, detached.
            read: Reads the values.
            in_order: Whether the result depends on the order of the elements; if not, it does for none of the views
                that permute dimensions.
        """
        if _WeakTensorRef is None or tensor._cdata not in self._alive or not _is_dense(tensor, in_order=in_order):
            return read(values)
        base = tensor
        if tensor._is_view():
            base = cast("Tensor", tensor._base)
            if base.is_inference():
                return read(values)
        storage, version = tensor.untyped_storage(), base._version
        if self._memories.note_version(storage, version):
            # Two tensors share it that count writes each for itself; those that share it as they should count together.
            self._exposed.add(storage._cdata)
        elements = (storage._cdata, version, tensor.storage_offset(), tensor.numel(), tensor.dtype)
        known = self._known.setdefault(read, {})
        if elements not in known or not self.shows_writes(base) or not self._is_followed(storage):
            known[elements] = read(values)
        return known[elements]

    def identity(self, tensor: Any) -> tuple[int, int] | None:
        """Return address and version of the tensor; the address is not given to another tensor before ``collect``.

        A DTensor has that of the part that it holds, which is told from the same memory as a tensor of its own or in
        another place: hash and sketch count its elements otherwise. ``None`` for tensors without a version (made under
        ``inference_mode``).
        """
        place = None
        if type(tensor) not in _PLAIN_TYPES:
            place, tensor = place_of(tensor), held_by(tensor)
        if _WeakTensorRef is None or tensor.is_inference():
            return None
        address: int = tensor._cdata
        if address not in self._alive:
            # A weak reference keeps the address, not the data.
            self._alive[address] = _WeakTensorRef(tensor)
        if self._let_go:
            address += self._let_go.get(address, 0) << _ADDRESS_BITS
        return address, tensor._version if place is None else hash((tensor._version, place))

    def let_go(self, tensor: Tensor) -> None:
        """Refer to a tensor no more, not even weakly; if it is seen again, it has another identity."""
        address: int = held_by(tensor)._cdata
        if self._alive.pop(address, None) is not None:
            self._let_go[address] = self._let_go.get(address, 0) + 1

    def shows_writes(self, tensor: Any) -> bool:
        """Whether all writes to the tensor raise its version.

        Those of most functions do. Fused optimizers write to parameters without it, NumPy to memory that it shares,
        which is what cannot be resized. Communication does too. Calls of it are followed; but in a job there is also
        some that is not Python's, by which buffers, gradients and buckets of them are exchanged, so nothing is trusted
        there but what autograd has computed.
        """
        if type(tensor) not in _PLAIN_TYPES:
            tensor = held_by(tensor)
        if not tensor.requires_grad:
            if _has_collectives():
                return False
        elif not tensor._is_view() and tensor.is_leaf:  # a view is no leaf, and asking one may make its node
            return False
        return self._is_followed(tensor.untyped_storage())

    def keeps_still(self, tensor: Any) -> bool:
        """Return that leaves do that are not shared: fused kernels write to them, but in steps of optimizers.

        Those of PyTorch's own are seen, and distrusted. In a job parameters may be gathered and let go in between.
        """
        if type(tensor) not in _PLAIN_TYPES or not tensor.requires_grad or tensor._is_view() or not tensor.is_leaf:
            return False
        return not _has_collectives() and self._is_followed(tensor.untyped_storage())

    def _is_followed(self, storage: torch.UntypedStorage) -> bool:
        return is_resizable(storage) and storage._cdata not in self._exposed

    def distrust(self, tensor: Any) -> None:
        """Trust no tensor in this one's storage any more."""
        self._exposed.add(held_by(tensor).untyped_storage()._cdata)

    @property
    def is_complete(self) -> bool:
        """Whether nothing waits on a device."""
        return not (self._deferred or self._checksums or self._words or self._sketches)

    def collect(self) -> None:
        """Fetch all results, one transfer per device and kind of result, and forget all identities."""
        for deferred in self._deferred.values():
            deferred.collect()
        self._deferred.clear()
        for digest, copy in self._checksums:
            digest.checksum = crc32_of(copy.cpu())
        self._checksums.clear()
        for waiting in self._words.values():
            words: list[int] = torch.stack([word for _, word in waiting]).tolist()
            for (digest, _), word in zip(waiting, words, strict=True):
                digest.checksum = word_text(word)
        self._words.clear()
        for waiting in self._sketches.values():
            sketches = torch.stack([sketch for _, sketch in waiting]).cpu().numpy().astype("<f4")
            for (digest, _), sketch in zip(waiting, sketches, strict=True):
                digest.sketch = sketch.tobytes()
        self._sketches.clear()
        self._alive.clear()
        self._let_go.clear()
        self._memories.clear()
        self._exposed.clear()
        self._known.clear()

    def _is_on_host(self, values: Tensor) -> bool:
        return values.is_cpu and not self._defer_host


def fused_kernel(device: torch.device) -> ProvenKernel | None:
    """Return Triton's kernel for a GPU, where Triton is, and compiled kernels are wanted."""
    if device.type != "cuda" or os.environ.get(SWITCH) == "0":
        return None
    try:
        from msprobe.pytorch._fused import DTYPES, FusedMoments  # Triton is not everywhere
    except Exception:  # noqa: BLE001  # nor does it work wherever it is
        return None
    return ProvenKernel(FusedMoments(device), DTYPES)


def _host_hash_of(values: Tensor) -> str:
    word = hash_by_kernels(values)
    return word_text(int(hash_of(values, HostTensors())[0]) if word is None else word)


def _is_dense(tensor: Tensor, *, in_order: bool) -> bool:
    """Whether a plain tensor has one element for each place in its part of the memory; ``in_order``, one by one."""
    if type(tensor) not in _PLAIN_TYPES or tensor.is_neg() or tensor.is_conj():
        return False
    if in_order or tensor.is_contiguous():
        return tensor.is_contiguous()
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def held_by(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the elements: a DTensor's local shard, the result that a tensor waits for."""
    while type(tensor) not in _PLAIN_TYPES:
        inner = getattr(tensor, "_local_tensor", None)
        if inner is None:
            inner = getattr(tensor, "elem", None) if hasattr(tensor, "trigger_wait") else None
        if inner is None:
            break
        tensor = inner
    return tensor


_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def _place_of(tensor: Tensor) -> Place | None:
    """Return where the elements are that ``readable`` gives, if they are part of a distributed tensor."""
    return None if type(tensor) in _PLAIN_TYPES else place_of(tensor)


def readable(tensor: Tensor) -> Tensor | None:
    """Return a tensor whose elements can be read: the tensor itself or its local shard; ``None`` if there is none.

    The result of a functional collective is waited for, as its first use would; that is no wait of the host where
    there is a device.
    """
    if type(tensor) not in _PLAIN_TYPES:
        local = getattr(tensor, "_local_tensor", tensor)
        if hasattr(local, "trigger_wait"):
            local = cast("Any", local).trigger_wait()
        if local is not tensor:
            return readable(local)
        if hasattr(tensor, "fake_mode"):
            return None
    is_plain = (
        tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized and not tensor.is_nested
    )
    if not is_plain or _is_wrapped(tensor):
        return None
    if tensor._is_zerotensor():  # zeros for which there is no memory, as automatic differentiation makes them
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach()
