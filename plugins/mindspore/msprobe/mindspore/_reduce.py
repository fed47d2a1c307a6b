"""The reducer: tensors through NumPy, which on the CPU shares their memory and is 20 times as fast as operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from msprobe.mindspore._deferred_digests import HELD_BYTES, DeferredCopies, DeferredStatistics
from msprobe.mindspore._device import WITH_ARITHMETIC
from msprobe.mindspore._unwritten import Unwritten
from msprobe.mindspore.graph.values import GraphValues
from msprobe_core.interception import BFLOAT16, HostReducer, HostValues
from msprobe_core.plugin import Digest, ElementMeasure, Stats, UserCodeError

_NUMPY_KINDS = "biufc"

_BFLOAT16: Any = getattr(ms, "bfloat16", None)


def values_of(tensor: Any) -> HostValues | None:
    """Return the elements of a tensor, in its own memory if that is on the host.

    ``None`` if NumPy has no such numbers (float8, strings), or the tensor has no plain elements (sparse tensors).

    Raises:
        UserCodeError: an operator that the training has called has failed.
        PluginError: a static graph has not provided them.
        UnwrittenError: its kernel has written none.
    """
    if isinstance(tensor, GraphValues):
        return tensor.known()
    if isinstance(tensor, Unwritten):
        return tensor.values()
    if isinstance(tensor, HostValues):
        return tensor
    if not isinstance(tensor, Tensor):
        return None
    try:
        array: Any = tensor.asnumpy()
    except Exception as error:
        raise UserCodeError(error) from error
    if array.dtype.kind in _NUMPY_KINDS:
        return HostValues(array)
    if tensor.dtype == _BFLOAT16:
        return HostValues(array.view(np.uint16), BFLOAT16)
    return None


class MindSporeReducer:
    """See `msprobe_core.plugin.Reducer`.

    Tensors on the host are reduced immediately. On a device, reductions of statistics are enqueued, and other digests
    use copies there; ``collect`` fetches both.
    """

    def __init__(self, *, defers: bool = False) -> None:
        """Begin empty.

        Args:
            defers: Whether to reduce as on a device, which can be tested on the host too.
        """
        self._host = HostReducer()
        self._defers = defers
        self._statistics = DeferredStatistics()
        self._copies = DeferredCopies()

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``, now or at the next ``collect``."""
        is_on_device = self._defers and isinstance(tensor, Tensor)
        if is_on_device and tensor.size and tensor.dtype in WITH_ARITHMETIC:
            self._statistics.add(tensor, digest)
            return
        values = None if is_on_device else values_of(tensor)
        if values is None:
            digest.stats = Stats()
        else:
            self._host.statistics(values, digest)

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``: CRC-32."""
        self._reduce(tensor, digest, self._host.checksum)

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``: exclusive or of the words."""
        self._reduce(tensor, digest, self._host.xor)

    def hash(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``, now or at the next ``collect``: the sum of the hash."""
        self._reduce(tensor, digest, self._host.hash)

    def sketch(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.sketch``, now or at the next ``collect``."""
        self._reduce(tensor, digest, self._host.sketch)

    def fp8(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.fp8``, immediately or at the next ``collect``.

        float8 tensors have none, since NumPy cannot read them.
        """
        self._reduce(tensor, digest, self._host.fp8)

    def extra_statistics(self, tensor: Any, digest: Digest, measure: ElementMeasure) -> None:
        """Set ``digest.extra``, immediately or at the next ``collect``; float8 tensors have none."""
        self._reduce(tensor, digest, partial(self._host.extra_statistics, measure=measure))

    def _reduce(self, tensor: Any, digest: Digest, reduce: Callable[[HostValues, Digest], None]) -> None:
        if not self._defers or not isinstance(tensor, Tensor):
            _reduce_now(reduce, tensor, digest)
            return
        if self._copies.num_bytes + tensor.nbytes > HELD_BYTES:
            self._copies.collect()
        self._copies.add(tensor, digest, partial(_reduce_now, reduce))

    @property
    def is_complete(self) -> bool:
        """Whether nothing is pending on a device."""
        return self._statistics.is_empty and self._copies.is_empty

    def collect(self) -> None:
        """Fetch all results and fill in their digests."""
        self._statistics.collect()
        self._copies.collect()


def _reduce_now(reduce: Callable[[HostValues, Digest], None], tensor: Any, digest: Digest) -> None:
    values = values_of(tensor)
    if values is not None:
        reduce(values, digest)
