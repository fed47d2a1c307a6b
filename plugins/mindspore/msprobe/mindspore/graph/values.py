"""Tensors taken out of a compiled graph: arrays with the compiler's description of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.interception import BFLOAT16, HostValues
from msprobe_core.plugin import PluginError, TensorMeta

_BFLOAT16 = "BFloat16"


class GraphValues(HostValues):
    """Represents a tensor of the graph to the recorder.

    Attributes:
        meta: Description of the tensor.
        takes_gradient: Whether a gradient with respect to it may come.
        number: Index of the tensor among those of its call.
        is_left_out: See `msprobe.mindspore.graph.layouts.Place`.
    """

    __slots__ = ("_is_known", "is_left_out", "meta", "number", "takes_gradient")

    def __init__(
        self,
        meta: TensorMeta,
        array: NDArray[Any] | None,
        *,
        number: int = 0,
        takes_gradient: bool = False,
        is_left_out: bool = False,
    ) -> None:
        """Convert the elements.

        Args:
            meta: Description of the tensor.
            array: Its elements, bfloat16 widened to float32; ``None`` if the graph did not pass them out.
            number: See above.
            takes_gradient: See above.
            is_left_out: See above.
        """
        self._is_known = array is not None
        elements: NDArray[Any] = np.empty(0) if array is None else array.reshape(meta.shape)
        if meta.dtype == _BFLOAT16 and array is not None:
            elements = (np.ascontiguousarray(elements).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            super().__init__(elements, BFLOAT16)
        else:
            super().__init__(elements)
        self.meta = meta
        self.number = number
        self.takes_gradient = takes_gradient
        self.is_left_out = is_left_out

    def known(self) -> HostValues:
        """Return the elements.

        Raises:
            PluginError: the graph did not pass them out.
        """
        if not self._is_known:
            raise PluginError(_WHY_LEFT_OUT if self.is_left_out else _WHY_UNKNOWN)
        return self

    def part(self, ranges: Mapping[int, tuple[int, int]]) -> HostValues | None:
        """Return the elements in the given ranges, [begin, end) by dimension; ``None`` if the elements are unknown."""
        if not self._is_known:
            return None
        slices = tuple(slice(*ranges.get(dim, (None, None))) for dim in range(self.array.ndim))
        return HostValues(self.array[slices], self.dtype)


_WHY_UNKNOWN = (
    "no tensor of dynamic shape, or of this dtype, can be had out of a static graph; "
    "leave set_inputs() away to record it"
)

_WHY_LEFT_OUT = (
    "with a point for this gradient the compiler would add up in another order, and round otherwise; "
    "the dynamic graph records it"
)
