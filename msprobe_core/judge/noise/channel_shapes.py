"""Shapes of the tensors of convolutions, which have their channels first and not last.

What an image or a kernel has in its last dimension are a few neighbouring pixels. Errors of gradients are shared by
more: those of a weight's gradient by one index of its first dimension, an output channel, and those of an activation's
by its position, like those of a token. A tensor of such a shape is taken for one of these wherever it appears: pooling,
rectifiers and optimizers keep shapes. Activations are taken to have a batch.

In forward direction, the roundings of a convolution are independent. Measured in bfloat16 on other kernels, 96 to 512
wide: the values of ResNet and ConvNeXt are within the floors of their last dimension, and gradients of 10 in 18 pairs
were not.
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
        weights: Output and input channels, or the reverse if it is transposed, and the positions in the kernel.
    """

    activations: Collection[str] = ()
    weights: Collection[str] = ()

    def num_rows(self) -> pl.Expr:
        """Return the number of rows that do not share errors; null for other tensors."""
        shape, numel = pl.col("shape_golden"), pl.col("numel_golden").cast(pl.Float64)
        first = shape.str.extract(r"^\[(\d+)").cast(pl.Float64)
        second = shape.str.extract(r"^\[\d+, (\d+)").cast(pl.Float64)
        is_gradient = (pl.col("phase") != Phase.FORWARD.value) | pl.col("entry").str.contains(names.BACKWARD_OPERATOR)
        return (
            pl.when(shape.is_in(list(self.activations)) & is_gradient)
            .then(numel / second)
            .when(shape.is_in(list(self.weights)))
            .then(first)
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
