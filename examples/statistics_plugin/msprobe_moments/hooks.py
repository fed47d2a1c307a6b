"""Statistics of tensors: the share of zeros, the largest magnitude, and the kurtosis.

They are written in operators that NumPy and all frameworks share, so they run on the device of a tensor, and nothing
waits for it: no result is used as a number of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe_core.plugin import Merging, Statistic, hookimpl


def share_of_zeros(values: Any, _: Any) -> Any:
    """Return the share of elements that are 0."""
    return (values == 0).sum() / len(values)


def largest_magnitude(values: Any, _: Any) -> Any:
    """Return the largest magnitude; NaN if there is any."""
    return abs(values).max()


def kurtosis(values: Any, _: Any) -> Any:
    """Return the fourth standardised moment: 3 of a normal distribution, large with outliers, NaN of equal elements.

    Source: Joanes and Gill, *Comparing measures of sample skewness and kurtosis*, The Statistician 47, 1998, where
    this less 3 is g2. Elements are divided by the largest first, so that no fourth power overflows float32.
    """
    centred = values - values.mean()
    squares = (centred / abs(centred).max()) ** 2
    return (squares**2).mean() / squares.mean() ** 2


@hookimpl
def msprobe_register_statistics() -> Sequence[Statistic]:
    """Offer the three; only the share of zeros decides a verdict, as it hardly depends on rounding."""
    return [
        Statistic(
            name="zeros",
            summary="share of elements that are 0",
            reduce=share_of_zeros,
            merge=Merging.MEAN,
            limit=0.05,
            is_relative=False,
        ),
        Statistic(name="absmax", summary="largest magnitude", reduce=largest_magnitude, merge=Merging.MAX),
        Statistic(name="kurtosis", summary="fourth standardised moment", reduce=kurtosis),
    ]
