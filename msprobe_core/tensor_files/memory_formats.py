"""Memory formats of CANN, and their elements in the order of plain tensors.

==============  ==============================  ===========================================================
format          stored shape                    element of the plain tensor at that place
==============  ==============================  ===========================================================
FRACTAL_NZ      (…, W1, H1, H0, W0)             ``[…, h1 * H0 + h0, w1 * W0 + w0]``
NC1HWC0         (N, C1, H, W, C0)               ``[n, c1 * C0 + c0, h, w]``, or ``[n, h, w, c]``
FRACTAL_Z       (C1 * H * W, N1, N0, C0)        ``[n1 * N0 + n0, c1 * C0 + c0, h, w]``
==============  ==============================  ===========================================================

The last block of a dimension is padded. Where the plain shape leaves a choice, such as between NCHW and NHWC, the bytes
are kept as they are.

Source: CANN's developer guide, *Data Formats*; the numbers are those of its ``aclFormat``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msprobe_core.errors import DumpError
from msprobe_core.model import TensorContent
from msprobe_core.store.tensor_source import Array, StoredTensor, c_strides

ND = 2
_NAMES = {
    0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 12: "NC1HWC0_C04", 16: "HWCN", 27: "NDHWC",
    29: "FRACTAL_NZ", 30: "NCDHW", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D", 35: "NC", 47: "NCL",
}  # fmt: skip

PLAIN = frozenset({"", "ND", "NCHW", "NHWC", "HWCN", "NDHWC", "NCDHW", "NC", "NCL"})
"""Formats whose elements are stored in C order of their shape."""

_RELAID_DTYPES = frozenset({"float16", "bfloat16", "float32"})


def name_of_format(number: int) -> str:
    """Return the name of a memory format; ``format 99`` if it is not known here."""
    return _NAMES.get(number, f"format {number}")


@dataclass(frozen=True, slots=True)
class RelaidTensor:
    """A tensor of another memory format, with its elements in C order; see `msprobe_core.plugin.TensorSource`.

    Attributes:
        view: The stored elements in this order; of each ``row`` the first ``kept`` are elements, the others padding.
        shape: Shape of the tensor.
        row: Length of a row, in elements.
        kept: Number of elements of a row.
    """

    view: StoredTensor
    shape: tuple[int, ...]
    row: int
    kept: int

    @property
    def dtype(self) -> str:
        """The stored dtype."""
        return self.view.dtype

    def chunks(self, num_elements: int) -> Iterator[Array]:
        """Yield the elements in C order as vectors of at most ``num_elements``.

        Raises:
            DumpError: as `StoredTensor.chunks`.
        """
        begin = 0
        for values in self.view.chunks(num_elements):
            yield self._without_padding(values, begin)
            begin += values.size

    def content(self) -> TensorContent:
        """Return the elements as stored, in C order.

        Raises:
            DumpError: as `StoredTensor.content`.
        """
        stored: Any = np.frombuffer(self.view.content().data, self.view.stored)
        kept: Any = np.ravel(stored.reshape(-1, self.row)[:, : self.kept])
        return TensorContent(self.dtype, self.shape, memoryview(kept.view(np.uint8)))

    def _without_padding(self, values: Array, begin: int) -> Array:
        if self.kept == self.row:
            return values
        return values[(begin + np.arange(values.size)) % self.row < self.kept]


def relaid(stored: StoredTensor, layout: str, plain: tuple[int, ...]) -> RelaidTensor | None:
    """Return a tensor with its elements in the order of its plain shape; ``None`` if that is not certain.

    Args:
        stored: The elements as they are in the file, in C order of their stored shape.
        layout: Name of the memory format.
        plain: Shape without the format's blocks; empty if unknown.
    """
    if stored.dtype not in _RELAID_DTYPES or not plain or 0 in plain or 0 in stored.shape:
        return None
    try:
        if layout == "FRACTAL_NZ":
            return _from_nz(stored, plain)
        if layout == "NC1HWC0":
            return _from_five_dims(stored, plain)
        if layout == "FRACTAL_Z":
            return _from_fractal_z(stored, plain)
    except DumpError:  # a view beyond the stored elements
        return None
    return None


def _from_nz(stored: StoredTensor, plain: tuple[int, ...]) -> RelaidTensor | None:
    if len(stored.shape) < 4:
        return None
    *batch, num_w, num_h, size_h, size_w = stored.shape
    original, plain = plain, (1,) * (2 - len(plain)) + plain
    height, width = plain[-2:]
    if math.prod(plain[:-2]) != math.prod(batch) or num_h != -(-height // size_h) or num_w != -(-width // size_w):
        return None
    area = num_w * num_h * size_h * size_w
    view = replace(
        stored,
        shape=(math.prod(batch), height, num_w, size_w),
        # A step down is one line of a block, also from the last line of a block to the next block.
        strides=(area, size_w, num_h * size_h * size_w, 1),
    )
    return RelaidTensor(view, original, num_w * size_w, width)


def _from_five_dims(stored: StoredTensor, plain: tuple[int, ...]) -> RelaidTensor | None:
    if len(stored.shape) != 5 or len(plain) != 4:
        return None
    num, num_c, height, width, size_c = stored.shape
    strides = c_strides(stored.shape)
    is_first = plain[0] == num and plain[2:] == (height, width) and num_c == -(-plain[1] // size_c)
    is_last = plain[:3] == (num, height, width) and num_c == -(-plain[3] // size_c)
    if is_first == is_last:
        return None
    if is_first:
        order = (0, 1, 4, 2, 3)
        inner = height * width
        return RelaidTensor(_permuted(stored, strides, order), plain, num_c * size_c * inner, plain[1] * inner)
    return RelaidTensor(_permuted(stored, strides, (0, 2, 3, 1, 4)), plain, num_c * size_c, plain[3])


def _permuted(stored: StoredTensor, strides: tuple[int, ...], order: tuple[int, ...]) -> StoredTensor:
    return replace(stored, shape=tuple(stored.shape[i] for i in order), strides=tuple(strides[i] for i in order))


def _from_fractal_z(stored: StoredTensor, plain: tuple[int, ...]) -> RelaidTensor | None:
    if len(stored.shape) != 4 or len(plain) != 4:
        return None
    blocks, num_n, size_n, size_c = stored.shape

    def fits(num: int, channels: int, height: int, width: int) -> bool:
        return blocks == -(-channels // size_c) * height * width and num_n == -(-num // size_n)

    num, channels, height, width = plain
    # A kernel of 1x1 or a square number of channels looks the same in NHWC and HWCN.
    if not fits(*plain) or fits(plain[0], plain[3], *plain[1:3]) or fits(plain[3], plain[2], *plain[:2]):
        return None
    num_c = -(-channels // size_c)
    line = num_n * size_n * size_c
    view = replace(
        stored,
        shape=(num, num_c, size_c, height, width),
        strides=(size_c, height * width * line, 1, width * line, line),
    )
    return RelaidTensor(view, plain, num_c * size_c * height * width, channels * height * width)
