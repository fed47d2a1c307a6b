"""How a call reacts to a perturbation, and its noise, in units of what its arithmetic explains.

The noise of a call is measured without a reference in more precision: along a line of inputs at equal steps, the fourth
difference of a smooth function is far below its rounding, and that of independent errors of norm r has the norm
``sqrt(70) r``. Source: R. W. Hamming, *Introduction to Applied Numerical Analysis*, 1971, ch. 6; J. J. Moré and
S. M. Wild, *Estimating Computational Noise*, SIAM J. Sci. Comput. 33(3), 2011. Allowed for r is what
`msprobe_core.replay.judge` allows for rounding: three times that of rounding an exact result once, plus that of float32
sums of n terms (Higham and Mary 2019, see there) with the amplification measured along the line.

A function that is far from smooth over four steps shows more than its rounding, which is why a float64 replay has the
last word on suspicious calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.free_benchmark.perturbations import NOISE
from msprobe_core.model import Phase, ReplayTensor
from msprobe_core.replay.judge import ELEMENT_FACTOR, FACTOR, ROUNDING, SUBNORMAL, norm_of
from msprobe_core.replay.replays import UNIT_ROUNDOFF

Array: TypeAlias = NDArray[Any]

RATIO_LIMITS: Mapping[str, float] = {"float16": 1.002, "bfloat16": 1.004}
OTHER_RATIO_LIMIT = 1.0002
"""Published limits of `published_ratio`, by dtype and for all other dtypes."""

_BACKWARD_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """The reaction of one output; all norms relative to that of the output before.

    Attributes:
        times: In units of what is allowed, of the norm or the worst element; 1 is the limit.
        is_of_element: Whether the worst element decides.
        change: Norm of the change, of integers the share of changed elements.
        allowed: Norm that rounding explains.
        expected: Norm that rounding the inputs explains.
        amplification: By how much relative changes grow; ``None`` if unknown.
        num_not_finite: Number of elements that became NaN or Inf, and do not with the larger change.
        worst: Flat index of the worst element; ``None`` if none changed.
    """

    times: float
    is_of_element: bool
    change: float
    allowed: float
    expected: float
    amplification: float | None
    num_not_finite: int = 0
    worst: int | None = None


_FOURTH = (1.0, -4.0, -4.0, 1.0)
"""Weights of the results at `STEPS` in the fourth difference; that of the result at 0 is 6."""

_OF_FOURTH = 70.0**0.5
"""Norm of these weights."""


def noise_of(
    before: ReplayTensor, along: Sequence[ReplayTensor], after: ReplayTensor, relative: float, terms: int
) -> Reaction:
    """Return the noise of an output, and its reaction to a perturbation.

    Args:
        before: The output without a change.
        along: The outputs at `STEPS` of a line of inputs.
        after: The output of the perturbed call.
        relative: Norm of one step relative to that of the inputs.
        terms: Largest number of terms of a sum in the call.
    """
    if before.values.dtype.kind not in "fc":
        return _of_decisions(before.values, after.values, along[-1].values)
    wide = "complex128" if before.values.dtype.kind == "c" else "float64"
    old, new = (np.ravel(each.values).astype(wide) for each in (before, after))
    others = [np.ravel(each.values).astype(wide) for each in along]
    finite = np.isfinite(old) & np.isfinite(new)
    for each in others:
        finite &= np.isfinite(each)
    num_strange = int(np.count_nonzero(np.isfinite(old) & np.isfinite(others[-1]) & ~np.isfinite(new)))
    old, new, others = old[finite], new[finite], [each[finite] for each in others]
    roundoff, tiny = UNIT_ROUNDOFF.get(before.dtype, 2.0**-24), SUBNORMAL.get(before.dtype, 2.0**-9)
    fourth = 6.0 * old + sum(weight * each for weight, each in zip(_FOURTH, others, strict=True))
    noise = np.abs(fourth) / _OF_FOURTH
    slope = np.abs(others[2] - others[1]) / (2 * relative)
    scale, carried = norm_of(old), norm_of(slope)
    of_sums = terms**0.5 * min(roundoff, UNIT_ROUNDOFF["float32"])
    allowed = FACTOR * (ROUNDING * roundoff * scale + of_sums * carried) + tiny * old.size**0.5
    of_norm = norm_of(noise) / allowed
    spread = allowed / max(old.size, 1) ** 0.5
    elements = noise / (ELEMENT_FACTOR * (spread + roundoff * np.abs(old) + of_sums * slope + tiny))
    of_element = float(np.max(elements, initial=0.0))
    unit = scale or 1.0
    return Reaction(
        times=max(of_norm, of_element), is_of_element=of_element > of_norm, change=norm_of(new - old) / unit,
        allowed=allowed / unit, expected=carried * roundoff / unit, amplification=carried / unit if scale else None,
        num_not_finite=num_strange,
        worst=int(np.flatnonzero(finite)[np.argmax(elements)]) if of_element else None,
    )  # fmt: skip


_UNMOVED = 0.9
"""Share of the squared norm from which elements that do not move along a line make a result that does not."""


def is_unmoved(before: ReplayTensor, along: Sequence[ReplayTensor]) -> bool:
    """Whether hardly anything of an output changes along a line of inputs, so that its noise says nothing.

    Steps of the line are far above the last digits of the inputs. A function that does not react decides, selects or
    saturates, or it is rounded so coarsely that no step reaches the next number.

    Args:
        before: The output without a change.
        along: The outputs at `STEPS` of the line.
    """
    if before.values.dtype.kind != "f":
        return False
    old = np.ravel(before.values).astype("float64")
    old = np.where(np.isfinite(old), old, 0.0)
    is_same = np.ones(old.shape, bool)
    for each in along:
        is_same &= np.ravel(each.values) == np.ravel(before.values)
    whole = norm_of(old)
    return whole > 0 and norm_of(old[is_same]) ** 2 >= _UNMOVED * whole**2


def distance_of(result: ReplayTensor, reference: ReplayTensor, *, num_rounded: int) -> Reaction:
    """Return how far a result is from one in at least its precision, in units of rounding a result once.

    Args:
        result: In the call's own precision.
        reference: In at least this precision, of the same shape.
        num_rounded: How many of the two are rounded to the precision of ``result``: 1 or 2.
    """
    if result.values.dtype.kind not in "fc":
        return _of_decisions(reference.values, result.values, reference.values)
    wide = "complex128" if result.values.dtype.kind == "c" else "float64"
    values, exact = np.ravel(result.values).astype(wide), np.ravel(reference.values).astype(wide)
    finite = np.isfinite(values) & np.isfinite(exact)
    num_strange = int(np.count_nonzero(np.isfinite(exact) & ~np.isfinite(values)))
    values, exact = values[finite], exact[finite]
    roundoff, tiny = UNIT_ROUNDOFF.get(result.dtype, 2.0**-24), SUBNORMAL.get(result.dtype, 2.0**-9)
    scale, error = norm_of(exact), norm_of(values - exact)
    allowed = num_rounded * FACTOR * ROUNDING * roundoff * scale + tiny * exact.size**0.5
    unit = scale or 1.0
    return Reaction(
        times=error / allowed if allowed else 0.0, is_of_element=False, change=error / unit, allowed=allowed / unit,
        expected=0.0, amplification=None, num_not_finite=num_strange,
    )  # fmt: skip


def _of_decisions(old: Array, new: Array, far: Array) -> Reaction:
    size = max(old.size, 1)
    changed, allowed = int(np.count_nonzero(new != old)), int(np.count_nonzero(far != old))
    # A change that makes no difference at eight times its size makes none by itself.
    times = changed / allowed if allowed else float(changed)
    return Reaction(
        times=times, is_of_element=False, change=changed / size, allowed=allowed / size, expected=allowed / size,
        amplification=None, worst=int(np.argmax(np.ravel(new != old))) if changed else None,
    )  # fmt: skip


def is_same(one: ReplayTensor, other: ReplayTensor) -> bool:
    """Whether two results are equal to the bit, but for the payload of NaN."""
    values, others = one.values, other.values
    if values.shape != others.shape or one.dtype != other.dtype:
        return False
    same: Any = values == others
    if values.dtype.kind in "fc":
        same = same & (np.signbit(values.real) == np.signbit(others.real)) | (np.isnan(values) & np.isnan(others))
    return bool(np.all(same))


def published_ratio(before: ReplayTensor, after: ReplayTensor, phase: Phase) -> tuple[float, bool]:
    """Return the published measure of a reaction: the largest ratio of an element, and whether a sign changed.

    Magnitudes below a tolerance count as the tolerance: the square root of the dtype's noise, 1e-3 in a backward.
    Elements that are NaN are left out; without elements the ratio is 1.
    """
    noise = NOISE.get(before.dtype, NOISE["float32"])
    tolerance = _BACKWARD_TOLERANCE if phase is Phase.BACKWARD else noise**0.5
    if before.values.dtype.kind != "f" or after.values.dtype.kind != "f":
        changed = bool(np.any(before.values != after.values))
        return (1.0, changed)
    old, new = np.ravel(before.values).astype(np.float64), np.ravel(after.values).astype(np.float64)
    known = ~(np.isnan(old) | np.isnan(new))
    old, new = old[known], new[known]
    if not old.size:
        return 1.0, False
    large_old, large_new = np.maximum(np.abs(old), tolerance), np.maximum(np.abs(new), tolerance)
    with np.errstate(all="ignore"):
        ratios = np.maximum(large_old / large_new, large_new / large_old)
    is_flipped = (np.sign(old) * np.sign(new) < 0) & (np.maximum(np.abs(old), np.abs(new)) > tolerance)
    ratios = ratios[~np.isnan(ratios)]  # of two infinities
    return float(np.max(ratios, initial=1.0)), bool(np.any(is_flipped))
