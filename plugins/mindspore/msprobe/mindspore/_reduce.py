"""The reducer: tensors through NumPy, which on the CPU shares their memory and is 20 times as fast as operators."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from msprobe.mindspore._quiet import ErrorOfTraining
from msprobe.mindspore.graph.values import GraphValues
from msprobe_core.capture.host_values import BFLOAT16, HostReducer, HostValues
from msprobe_core.model import Digest, Stats

_NUMPY_KINDS = "biufc"

_BFLOAT16: Any = getattr(ms, "bfloat16", None)


def values_of(tensor: Any) -> HostValues | None:
    """Return the elements of a tensor, in its own memory where that is the host's.

    ``None`` if they are no numbers to NumPy (float8, strings), or nobody holds any (sparse tensors).

    Raises:
        ErrorOfTraining: an operator that the training has called has failed.
        PluginError: a static graph has not handed them out.
    """
    if isinstance(tensor, GraphValues):
        return tensor.known()
    if isinstance(tensor, HostValues):
        return tensor
    if not isinstance(tensor, Tensor):
        return None
    try:
        array: Any = tensor.asnumpy()
    except Exception as error:
        raise ErrorOfTraining(error) from error
    if array.dtype.kind in _NUMPY_KINDS:
        return HostValues(array)
    if tensor.dtype == _BFLOAT16:
        return HostValues(array.view(np.uint16), BFLOAT16)
    return None


class MindSporeReducer:
    """See `msprobe_core.hookspecs.Reducer`."""

    def __init__(self) -> None:
        self._host = HostReducer()

    def statistics(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.stats``."""
        values = values_of(tensor)
        if values is None:
            digest.stats = Stats()
        else:
            self._host.statistics(values, digest)

    def checksum(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``: CRC-32."""
        if (values := values_of(tensor)) is not None:
            self._host.checksum(values, digest)

    def xor(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``: exclusive or of the words."""
        if (values := values_of(tensor)) is not None:
            self._host.xor(values, digest)

    def hash(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.checksum``: the sum of the hash."""
        if (values := values_of(tensor)) is not None:
            self._host.hash(values, digest)

    def sketch(self, tensor: Any, digest: Digest) -> None:
        """Set ``digest.sketch``."""
        if (values := values_of(tensor)) is not None:
            self._host.sketch(values, digest)

    def identity(self, tensor: Any) -> None:  # noqa: ARG002
        """Return ``None``: most writes to a tensor do not raise its version, so each is read whenever it is seen."""
        return

    def shows_writes(self, tensor: Any) -> bool:  # noqa: ARG002
        """Return that none is sure to be seen."""
        return False

    def distrust(self, tensor: Any) -> None:
        """Do nothing: no tensor is trusted."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing waits, which it never does."""
        return True

    def collect(self) -> None:
        """Do nothing: all digests are filled in."""
