"""Estimate the distance of two tensors from their sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from msprobe_core.fingerprint.sketch import SIZE

SIZE_BYTES = 4 * SIZE
"""Size of a sketch in bytes, as little-endian float32."""

RESOLUTION = 2.0**-23
"""Largest change of the relative error that rounding both sketches to float32 causes, in either direction."""

WITH_NORM = (0.8528, 1.2091)
"""Bounds of the true value divided by the estimate, if the golden norm is known: square roots of 64 divided by the
quantiles 0.975 and 0.025 of the chi-squared distribution with 64 degrees of freedom, 88.00 and 43.78."""

WITHOUT_NORM = (0.7810, 1.2804)
"""The same if both norms are estimated: square roots of the quantiles 0.025 and 0.975 of the F distribution with 64 and
64 degrees of freedom, 0.6099 and 1.639."""


@dataclass(frozen=True)
class Estimate:
    """An estimated ratio and its 95% confidence interval; all three are NaN if a sketch is not finite."""

    value: float
    low: float
    high: float


def relative_error(target: bytes, golden: bytes, golden_norm: float | None = None) -> Estimate:
    """Estimate ``||target - golden|| / ||golden||`` in the Euclidean norm from 256 bytes of each tensor.

    The estimate of the squared distance is unbiased and has a relative standard deviation of at most 0.177, see
    `msprobe_core.fingerprint.sketch`. By Chebyshev's inequality it is off by more than 56% in at most one of ten cases,
    whatever the tensors are. The confidence interval is narrower: it assumes that the 64 numbers are normally
    distributed, as they are if many elements differ; few differing elements seldom share a number and are estimated
    better. The 95% refer to the random choice of the sketch for one pair, so among many pairs some are outside.

    Args:
        target: The target's sketch: 64 little-endian float32.
        golden: The golden sketch, in the same format.
        golden_norm: The golden tensor's Euclidean norm if the statistics have it, which narrows the interval.

    Returns: ratios >= 0. The interval is widened by `RESOLUTION`, because equal sketches do not prove equality. The
        ratios are +Inf if the golden tensor is zero and the target's sketch is not.

    Raises:
        ValueError: a sketch does not have 256 bytes.
    """
    for sketch in (target, golden):
        if len(sketch) != SIZE_BYTES:
            raise ValueError(f"a sketch has {SIZE_BYTES} bytes, this one {len(sketch)}")
    norms = None if golden_norm is None else np.array([golden_norm])
    value = float(relative_errors(decoded([target]), decoded([golden]), norms)[0])
    below, above = WITHOUT_NORM if golden_norm is None else WITH_NORM
    low = below * (value - RESOLUTION)
    return Estimate(value, 0.0 if low < 0 else low, above * (value + RESOLUTION))


def decoded(sketches: Sequence[bytes]) -> NDArray[np.float32]:
    """Decode sketches of 256 bytes each to an array ``[n, 64]``."""
    return np.ndarray((len(sketches), SIZE), np.dtype("<f4"), b"".join(sketches))


def relative_errors(
    targets: NDArray[np.float32], goldens: NDArray[np.float32], golden_norms: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the estimates of `relative_error` for many pairs.

    Args:
        targets: The target's sketches, ``[n, 64]``.
        goldens: The golden sketches, ``[n, 64]``.
        golden_norms: Golden norms, ``[n]``; estimated from the sketches if not given.

    Returns: ``[n]``.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        distances = _norms(targets.astype(np.float64) - goldens)
        ratios = distances / (_norms(goldens.astype(np.float64)) if golden_norms is None else golden_norms)
    return np.where(distances == 0, 0.0, ratios)


def _norms(sketches: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt((sketches**2).sum(axis=-1))
