"""Shapes of the tensors of convolutions, which have their channels first and not last.

What an image or a kernel has in its last dimension are a few neighbouring pixels. Errors of gradients are shared by
more: those of a weight's gradient by an output channel, and those of an activation's by its position, like those of a
token. A tensor of such a shape is taken for one of these wherever it appears: pooling, rectifiers and optimizers keep
shapes.

In forward direction, the roundings of a convolution are independent. Measured in bfloat16 on other kernels, 64 to 512
wide: values of ResNet and ConvNeXt are within the floors of their last dimension, while 10 of 18 pairs had a gradient
beyond these.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from msprobe_core import names
from msprobe_core.judge.joining import filtered
from msprobe_core.model import Phase
from msprobe_core.store.stored_rows import Rows

_NUMBERS = (1, 2, 3)
_APIS = (
    *(f"{name}{number}d" for name in ("conv", "conv_transpose", "Conv", "ConvTranspose") for number in _NUMBERS),
    *(f"Conv{number}dTranspose" for number in _NUMBERS),
    "convolution", "_convolution",
)  # fmt: skip
"""Functions and classes of modules, also MindSpore's."""

_OF_VALUES = ("0", "input", "x")
"""Positions and names of the argument and of the result that have channels; the others are weights and biases."""

_MANY_DIMENSIONS = r"^\[\d+(?:, \d+){2,}\]$"


@dataclass(frozen=True)
class ChannelShapes:
    """Shapes as rows have them, such as ``[4, 64, 8, 8]``.

    Attributes:
        activations: Of inputs and outputs: batch, channels, and positions in each dimension.
        weights: Channels of one side, those of the other, and the positions in the kernel.
    """

    activations: Collection[str] = ()
    weights: Collection[str] = ()

    def per_row(self) -> pl.Expr:
        """Return the number of elements that share errors; null for other rows."""
        shape, numel = pl.col("shape_golden"), pl.col("numel_golden").cast(pl.Float64)
        first = shape.str.extract(r"^\[(\d+)").cast(pl.Float64)
        second = shape.str.extract(r"^\[\d+, (\d+)").cast(pl.Float64)
        return (
            pl.when(shape.is_in(list(self.activations)) & (pl.col("phase") != Phase.FORWARD.value))
            .then(second)
            .when(shape.is_in(list(self.weights)))
            .then(numel / first)
        )


def channel_shapes(rows: Rows) -> ChannelShapes:
    """Return the shapes that convolutions are given and return in the golden run."""
    is_convolution = pl.col("entry").str.contains(names.call_of_any(_APIS))
    has_many = pl.col("shape_golden").str.contains(_MANY_DIMENSIONS)
    found = filtered(rows, ["key", "shape_golden"], is_convolution & has_many).unique(["key", "shape_golden"])
    place = pl.col("key").str.extract(names.VALUE_PLACE)
    shapes = found.with_columns(is_activation=place.is_in(_OF_VALUES).fill_null(value=False))
    of = shapes.partition_by("is_activation", as_dict=True)
    activations, weights = (
        frozenset(of[is_activation,]["shape_golden"]) if (is_activation,) in of else frozenset[str]()
        for is_activation in (True, False)
    )
    return ChannelShapes(activations, weights - activations)
