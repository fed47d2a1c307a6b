"""Floors from a few repetitions of a healthy run.

Three repetitions are hardly a sample for one row, but a dump has thousands of rows, and the values of one layer's
attention behave like those of the next layer's. So similar rows share their statistics.

Each error ``e`` of a repetition is measured relative to the golden run itself, like the target's error. Golden run,
repetitions and a healthy target are equally far from the exact result; so the errors of repetitions about zero, not
about their mean, have the size of a healthy target's. (This is the estimator of the number of significant digits in
stochastic arithmetic with a reference: Sohier et al., *Confidence Intervals for Stochastic Arithmetic*, arXiv
1807.09655.)

* A *distance* has nearly the same size in each repetition. Its logarithm is modelled as normal about the row's own
  mean, with a spread that all rows share; the mean is shrunk towards that of similar rows, by as much as the spread
  explains.
* Any other measure has a sign and is near zero by chance. Its variance, in units of the row's squared distance, is
  estimated by empirical Bayes: the variances of similar rows follow a scaled inverse chi-squared distribution, whose
  parameters come from the mean and the variance of the log sample variances; the moderated variance ``(d0 s0^2 + K s^2)
  / (d0 + K)`` has ``d0 + K`` degrees of freedom, and the score is Student's t. Source: Smyth, *Linear Models and
  Empirical Bayes Methods for Assessing Differential Expression in Microarray Experiments*, Statistical Applications in
  Genetics and Molecular Biology 3(1), 2004; ``fitFDist`` of the package limma implements this.

The fit is checked by cross-validation: each repetition is left out in turn and scored by the floors of the others. If
its largest scores exceed those of the distribution, the distribution is widened to match.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core.judge.noise import student
from msprobe_core.judge.noise.divisions import is_quotient_added
from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.noise.null_distribution import LEAST_LIMITS, MOST_LIMIT, ScoreDistribution, ScoreDistributions
from msprobe_core.judge.noise.rounding import least

Array: TypeAlias = NDArray[Any]

_FEW = 3
"""Minimum number of rows in a group; smaller groups are merged with others of the same precision, phase and role."""

_MOST_PRIOR = 60.0
"""Largest prior degrees of freedom: rows are never treated as identical."""

_TAILS = (0.01, 0.001)
"""Tail probabilities at which scores of left-out repetitions are compared with the distribution."""

_WIDEST = 3.0
_BEYOND = 2.5
"""No limit exceeds this multiple of the largest score of a left-out repetition, whatever the distribution says about
rarer scores: floors have lower bounds, which a tail of few degrees of freedom ignores."""

_EXTREMES = (Measure.MAX, Measure.MIN)

_FEWEST_SCORES = 200
"""With fewer scores, their tail is not significant."""

DISTANCE = "distance"
"""Column of the size of a row's error: ``rel_l2`` or, if that is unknown, the largest of the differences of its
statistics."""


@dataclass(frozen=True)
class RepetitionFloors:
    """Result of the repetitions of one dump.

    Attributes:
        floors: One row per row of the golden dump, with a column for each known measure.
        nulls: Distributions of scores.
    """

    floors: pl.DataFrame
    nulls: ScoreDistributions


def repetition_floors(
    rows: pl.DataFrame, errors: Sequence[pl.DataFrame], *, are_updated: bool = False
) -> RepetitionFloors:
    """Return floors and the distributions of scores.

    Extremes of parameters after an update, and of results of the update itself, have unbounded floors: a single element
    may be anywhere, because an update of Adam has its full size wherever a gradient is not zero, and a random sign if
    the gradient is rounding noise.

    Args:
        rows: One row per row of the golden dump, with ``name``, ``entry``, ``phase``, ``role``, ``precision``,
            ``roundoff``, ``num_rows``, ``numel_golden`` and ``is_state``: whether it is a parameter or similar state.
        errors: For each repetition, the measures of the same rows, and `DISTANCE`; null if unknown.
        are_updated: Whether an earlier step has given each repetition different parameters.
    """
    kinds = _kinds(rows)
    is_state = rows["is_state"].to_numpy()
    has_jumps = is_state & (are_updated | rows.select(is_quotient_added())["entry"].to_numpy())
    distance, _ = _distances(_matrix(errors, DISTANCE), kinds, _numbers(rows, "roundoff"))
    rows = rows.with_columns(pl.Series(DISTANCE, distance).fill_nan(None))
    floors: dict[str, Array] = {}
    nulls: dict[Measure, ScoreDistribution] = {}
    for measure in MEASURES:
        found = _matrix(errors, measure.column)
        is_unbounded = has_jumps & (measure in _EXTREMES)
        found[is_unbounded] = math.nan
        lower = rows.select(least(measure, pl.col(DISTANCE)).alias("least"))["least"].to_numpy()
        largest = _largest_of_kind(found, kinds) / LEAST_LIMITS[measure]
        lower = np.where(is_state, np.fmax(lower, largest), lower)
        if measure is Measure.REL_L2:
            floors[measure.value], null = _distances(found, kinds, lower)
        else:
            floors[measure.value], null = _signed(found, kinds, lower, distance, _numbers(rows, "num_rows") > 1)
        floors[measure.value] = np.where(is_unbounded, math.inf, floors[measure.value])
        nulls[measure] = msgspec.structs.replace(null, least=LEAST_LIMITS[measure])
    table = pl.DataFrame({name: pl.Series(values, dtype=pl.Float32).fill_nan(None) for name, values in floors.items()})
    return RepetitionFloors(table, nulls)


def _largest_of_kind(errors: Array, kinds: _Kinds) -> Array:
    """Return the largest error that a similar row has in any repetition; 0 if none is known.

    A healthy parameter may have this error: after the first steps of Adam, whose size does not depend on that of the
    gradient, single elements jump, and three repetitions of the row itself may well have no such jump.
    """
    own = np.where(np.isfinite(errors), errors, 0.0).max(axis=1)
    largest = np.zeros(int(kinds.own.max(initial=0)) + 1)
    np.maximum.at(largest, kinds.own, own)
    return largest[kinds.own]


def _matrix(errors: Sequence[pl.DataFrame], column: str) -> Array:
    """Return errors as ``[rows, repetitions]``; NaN if unknown."""
    return np.stack([_numbers(frame, column) for frame in errors], axis=1)


def _numbers(frame: pl.DataFrame, column: str) -> Array:
    return frame.select(pl.col(column).cast(pl.Float64).fill_null(math.nan)).to_series().to_numpy()


@dataclass(frozen=True)
class _Kinds:
    """Groups of similar rows: a number for each row's own group, and one for the wider group as fallback."""

    own: Array
    wide: Array


_PLACE = r"^(\.[a-z_]+\.(?:\d|[^.\d][^.]*))(?:\.|$)"
"""Role and position of a value in its call: ``.input.2``, ``.parameters.bias``. Two digits are a position in a list."""


def _kinds(rows: pl.DataFrame) -> _Kinds:
    """Return the groups of similar rows: numbers of layers, calls and list positions are ignored.

    What a call is given as a parameter is not like what another is given at that position.
    """
    rest = pl.col("name").str.strip_prefix(pl.col("entry"))
    place = rest.str.extract(_PLACE).fill_null("")
    names = [_blank(pl.col("entry")), place, _blank(rest.str.strip_prefix(place))]
    like = [*names, pl.col("precision"), pl.col("is_state")]
    own = rows.select(pl.struct(part.alias(str(i)) for i, part in enumerate(like)).rank("dense"))
    wide = rows.select(pl.struct("phase", "role", "precision").rank("dense"))
    return _Kinds(own.to_series().to_numpy().astype(np.int64), wide.to_series().to_numpy().astype(np.int64))


def _blank(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(r"\.\d+", ".#")


def _group_means(values: Array, groups: Array, weights: Array) -> tuple[Array, Array]:
    """Return the mean of each row's group, and its number of rows with weight 1."""
    counts = np.bincount(groups, weights)
    sums = np.bincount(groups, np.where(weights > 0, values, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (sums / counts)[groups], counts[groups]


@dataclass(frozen=True)
class _Grouped:
    """Mean over similar rows, for each row; and the remaining variance within groups, over all rows."""

    means: Array
    variance: float


def _grouped(values: Array, is_known: Array, kinds: _Kinds) -> _Grouped:
    weights = is_known.astype(np.float64)
    own, number = _group_means(values, kinds.own, weights)
    wide, in_wide = _group_means(values, kinds.wide, weights)
    over_all = float(np.mean(values[is_known])) if is_known.any() else 0.0
    means = np.where(number >= _FEW, own, np.where(in_wide >= _FEW, wide, over_all))
    has_group = is_known & (number >= _FEW)
    if not has_group.any():
        return _Grouped(means, math.inf)
    squares = (values[has_group] - own[has_group]) ** 2
    # One degree of freedom per group is used for its mean.
    dof = has_group.sum() - len(np.unique(kinds.own[has_group]))
    return _Grouped(means, float(squares.sum() / max(dof, 1)))


def _distances(errors: Array, kinds: _Kinds, lower: Array) -> tuple[Array, ScoreDistribution]:
    """Return floors of a measure that has nearly the same size each time."""
    num_repeats = errors.shape[1]
    with np.errstate(invalid="ignore"):
        is_known = _in_all(np.isfinite(errors) & (errors > 0))
    logs = np.log(np.where(is_known[:, None], errors, 1.0))
    means = logs.mean(axis=1)
    spread = _spread_within(logs[is_known])
    grouped = _grouped(means, is_known, kinds)
    share = _own_share(grouped.variance, spread**2 / num_repeats)
    centre = share * means + (1 - share) * grouped.means
    with np.errstate(invalid="ignore", divide="ignore"):
        known = np.where(is_known, np.exp(centre + spread**2), _rms(errors))
    null = ScoreDistribution(dof=30.0, factor=_widened_log(logs[is_known], spread), is_log=True)
    return np.where(np.isnan(known), np.nan, np.fmax(known, lower)), null


def _in_all(holds: Any) -> Array:
    """Return whether a condition holds in all repetitions of a row."""
    return holds.all(axis=1)


def _rms(errors: Array) -> Array:
    """Return the root mean square of the known errors of each row; NaN without any."""
    is_known = ~np.isnan(errors)
    sums = np.where(is_known, errors, 0.0) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(sums.sum(axis=1) / is_known.sum(axis=1))


_LEAST_SPREAD = 0.1


def _spread_within(logs: Array) -> float:
    if logs.shape[0] < _FEW or logs.shape[1] < 2:
        return 0.5  # a factor of 1.6, typical for half of the rows of single tensors
    variance = ((logs - logs.mean(axis=1, keepdims=True)) ** 2).sum() / (logs.shape[0] * (logs.shape[1] - 1))
    return max(math.sqrt(variance), _LEAST_SPREAD)


def _own_share(between: float, of_mean: float) -> float:
    """Return the weight of a row's own mean relative to that of similar rows, whose means have variance ``between``."""
    if math.isinf(between):
        return 1.0
    real = max(between - of_mean, 0.0)
    return real / (real + of_mean)


def _widened_log(logs: Array, spread: float) -> float:
    """Return the spread of a new row's log score, widened to match left-out repetitions."""
    num_repeats = logs.shape[1]
    expected = spread * math.sqrt(1 + 1 / num_repeats)
    if num_repeats < 2:
        return expected
    others = (logs.sum(axis=1, keepdims=True) - logs) / (num_repeats - 1)
    scores = (logs - others).ravel() / (spread * math.sqrt(1 + 1 / (num_repeats - 1)))
    return expected * _excess(scores, 30.0, is_two_sided=False)


def _excess(scores: Array, dof: float, *, is_two_sided: bool) -> float:
    """Return by how much the largest scores exceed those of the distribution, at least 1."""
    if scores.size < _FEWEST_SCORES:
        return 1.0
    ratios = [1.0]
    for probability in _TAILS:
        if scores.size * probability >= 2:
            found = float(np.quantile(scores, 1 - probability))
            ratios.append(found / student.limit_of(probability if is_two_sided else 2 * probability, dof))
    return min(max(ratios), _WIDEST)


def _signed(
    errors: Array, kinds: _Kinds, lower: Array, distance: Array, has_rows: Any
) -> tuple[Array, ScoreDistribution]:
    """Return floors of a measure with a sign, by empirical Bayes.

    Args:
        errors: ``[rows, repetitions]``.
        kinds: Groups of similar rows.
        lower: Lower bounds of floors.
        distance: Floors of the distance, or of its substitute.
        has_rows: Which rows average over several rows of elements; others have a separate limit.
    """
    num_repeats = errors.shape[1]
    unit = np.where(np.isfinite(distance) & (distance > 0), distance, lower)
    with np.errstate(invalid="ignore"):
        is_known = _in_all(np.isfinite(errors)) & np.any(errors > 0, axis=1) & (unit > 0)
    prior, variances = _prior(errors, is_known, kinds, lower, unit)
    found = _floor(errors, is_known, prior, variances, lower, unit)
    if num_repeats < 2:
        return found, ScoreDistribution(dof=prior + num_repeats, factor=1.0)
    scores: list[Array] = []
    for left_out in range(num_repeats):
        others = np.delete(errors, left_out, axis=1)
        floor = _floor(others, is_known, prior, variances, lower, unit)
        scores.append(errors[:, left_out] / np.where(floor > 0, floor, np.nan))
    excess = _excess(np.concatenate([each[is_known] for each in scores]), prior + num_repeats - 1, is_two_sided=True)
    telling = np.concatenate([each[is_known & has_rows] for each in scores])
    most = MOST_LIMIT if telling.size < _FEWEST_SCORES else min(_BEYOND * float(telling.max()), MOST_LIMIT)
    return found, ScoreDistribution(dof=prior + num_repeats, factor=excess, most=most)


def _prior(errors: Array, is_known: Array, kinds: _Kinds, lower: Array, unit: Array) -> tuple[float, Array]:
    """Return the prior degrees of freedom, and the prior variance of each row in squared units."""
    half = errors.shape[1] / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        variances = np.fmax(_rms(errors), lower) ** 2 / unit**2
        logs = np.log(np.where(is_known, variances, 1.0)) - student.digamma(half) + math.log(half)
    grouped = _grouped(logs, is_known, kinds)
    excess = grouped.variance - student.trigamma(half)
    if math.isinf(excess):
        prior = 2.0
    else:
        prior = _MOST_PRIOR if excess <= 0 else min(2 * student.inverse_trigamma(excess), _MOST_PRIOR)
    return prior, np.exp(grouped.means + student.digamma(prior / 2) - math.log(prior / 2))


def _floor(errors: Array, is_known: Array, prior: float, variances: Array, lower: Array, unit: Array) -> Array:
    num_repeats = errors.shape[1]
    own = _rms(errors)
    with np.errstate(invalid="ignore"):
        moderated = np.sqrt((prior * variances * unit**2 + num_repeats * own**2) / (prior + num_repeats))
    known = np.where(is_known, moderated, own)
    return np.where(np.isnan(own), np.nan, np.fmax(known, lower))
