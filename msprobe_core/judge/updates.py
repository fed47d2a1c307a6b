"""Parameters after an update: how far those of two healthy runs may differ.

Repetitions of one step begin with the golden run's parameters, and do not show this. The first updates of Adam have the
size of the learning rate wherever a gradient is not zero. So if an element's gradient is rounding noise, its update has
a random sign, and extremes jump. Norm and mean of a whole parameter hardly move, and by about as much as those of the
same parameter in other layers. One that began at zero consists of its updates, so turned signs show in its mean.
"""

from __future__ import annotations

import math

import polars as pl

from msprobe_core import names
from msprobe_core.judge.columns import SKETCH_ERROR, Match
from msprobe_core.judge.limits import UNIT_ROUNDOFF, Precision, roundoff_of
from msprobe_core.judge.rounding_rules import RoundingRule
from msprobe_core.model import Role
from msprobe_core.store.stored_rows import Rows

ALL_NOISE = 0.3
"""Relative floor from which a value is mostly rounding, such as the gradient of a bias that a softmax cancels."""

_LIMIT = 8.0
"""Factor by which a parameter must differ more than similar parameters to count as different."""

_LEAST, _OF_ELEMENT = 3e-5, 0.16
"""Minimum assumed difference of similar parameters: this, or this over the number of elements for one jump."""

_LARGEST_CREST, _LEAST_BALANCE = 1.5, 0.5
"""Shape of a parameter that consists of updates: largest element over root mean square; smaller extreme over larger.

After one update the crest is 1, and after two of equal sizes at most the root of 2. Random vectors of a few elements
have this shape too.
"""

_GRADIENT_ROUNDINGS, _DEVIATIONS = 8.0, 5.0
"""Assumed error of a gradient, in unit round-offs of the coarser of the parameter's and the gradient's precision, and
number of standard deviations by which turned signs may move the mean.

Measured in bfloat16 between two attention kernels of BERT and GPT-2, 96 to 512 wide: 1.3 to 3.2 unit round-offs.
"""

_ROUNDINGS = 30.0
"""Number of roundings of a parameter, averaged over its elements, by which the movement of its mean or norm may be off.

Measured for SGD in two frameworks: up to 1.1 in healthy runs, 40 to 16,000 with gradients multiplied by 1.1.
"""

_SEEN = 4.0
"""Multiple of the observed gradient difference by which an update may differ; see `noise.propagation`."""

_FACTOR, _STEADINESS = 1e-3, 10.0
"""Minimum deviation of a common factor of all updates from one: absolute, and in units of the factors' spread."""

_ONE_SIZE = 0.5
"""Lower quartile of the sizes of all parameters' updates over their upper one, from which they may have one size."""

_ALIKE, _SHARE_ALIKE = 0.8, 0.35
"""Least ratio of two moves that are alike, and share of the parameters whose maximum and minimum have moved alike if
their updates have one size.

Measured after one update of AdamW in 11 architectures: 0.44 to 0.75. Of 200 models of 12 matrices with normally
distributed updates of equal variance, 3 reach it.
"""

_GOOD_PART = 0.1
"""Share of an update by which an extreme is off at least if it has turned: another element may then be the largest."""

_LEAST_FACTOR = 0.02
"""Deviation from one of a single parameter's factor from which its extremes show it."""

_FEW = 3
_SIDES = ("target", "golden")


def value_of_row() -> pl.Expr:
    """Return the text by which a value is recognised: its statistics on both sides."""
    statistics = ("numel", "max", "min", "mean", "norm")
    columns = [f"{name}_{side}" for name in statistics for side in _SIDES]
    return pl.concat_str(columns, separator=" ", ignore_nulls=True)


def with_updated_parameters(rows: Rows) -> Rows:
    """Return rows of a step after the first with ``score`` and ``excess`` of parameters as described above.

    Parameters with floors of their own, from repetitions of whole trainings, are not changed. Neither is anything if
    errors are compared with limits only.

    Args:
        rows: Result of `msprobe_core.judge.nodes.with_scores`.
    """
    if "noise_floor" not in rows.columns or not RoundingRule.UPDATED_PARAMETERS.is_on:
        return rows
    value = value_of_row()
    judged = _judged(rows).select(value.alias("value"), "drift_score", "is_of_noise").unique("value")
    of_value = rows.select(value.alias("value")).join(judged, on="value", how="left", maintain_order="left")
    is_drift = pl.col("is_parameter") & pl.col("drift_score").is_not_null()
    return (
        rows.with_columns(of_value["drift_score"], of_value["is_of_noise"])
        .with_columns(
            score=pl.when(is_drift).then("drift_score").otherwise("score"),
            score_limit=pl.when(is_drift).then(_LIMIT).otherwise("score_limit"),
            excess=pl.when(is_drift).then(pl.col("drift_score") / _LIMIT).otherwise("excess"),
            # Rows that get such a parameter as input are noise too.
            noise_floor=pl.when(is_drift & pl.col("is_of_noise")).then(1.0).otherwise("noise_floor"),
        )
        .drop("drift_score", "is_of_noise")
    )


def _judged(rows: Rows) -> pl.DataFrame:
    """Return the parameters of modules, with their deviation in units of that of similar parameters.

    For one that began at zero, it is in units of what turned signs explain if that is more.
    """
    place = pl.col("key").str.replace(names.PARAMETER_ROW, "$1 $2")
    roundoff = roundoff_of(pl.col("precision"))
    gradients = rows.filter(pl.col("role") == Role.PARAMETERS_GRAD.value)
    # If the usual gradient is mostly noise, it is so because of what the parameters carry, which nothing excuses then.
    is_usual = (pl.col("noise_floor").median() < ALL_NOISE).fill_null(value=False)
    # Gradients that are negligible relative to the terms of their sum have no score.
    is_noise = pl.col("is_exempt") | ((pl.col("noise_floor") >= ALL_NOISE) & is_usual).fill_null(value=False)
    of_noise = gradients.filter(is_noise).select(place).to_series().to_list()
    is_float16 = pl.col("precision") == int(Precision.FLOAT16)
    of_gradients = gradients.group_by(place=place).agg(of_gradient=roundoff.max(), underflows=is_float16.any())
    own = rows.filter((pl.col("role") == Role.PARAMETERS.value) & (pl.col("match") == Match.BOTH.value))
    own = own.filter(
        pl.col("noise_floor").is_null()
        & (pl.col("norm_golden") > 0)
        & (pl.col("shape_target") == pl.col("shape_golden"))
    )
    norm = (pl.col("norm_target") - pl.col("norm_golden")).abs() / pl.col("norm_golden")
    root = pl.col("numel_golden").cast(pl.Float64).sqrt()
    mean = (pl.col("mean_target") - pl.col("mean_golden")).abs() * root / pl.col("norm_golden")
    like = place.str.replace_all(r"\.\d+", ".#")
    own = own.with_columns(place=place, like=like, drift=pl.max_horizontal(norm, mean))
    own = own.join(of_gradients, on="place", how="left", maintain_order="left")
    turned = _turned_signs(pl.max_horizontal(roundoff, "of_gradient"), pl.col("underflows").fill_null(value=False))
    of_mean, of_norm = (each / _LIMIT for each in turned)
    own = own.filter(pl.col("drift").is_finite())
    has_like = pl.len().over("like") >= _FEW
    usual = pl.when(has_like).then(pl.col("drift").median().over("like")).otherwise(pl.col("drift").median())
    least = pl.max_horizontal(pl.lit(_LEAST), _OF_ELEMENT / pl.col("numel_golden"))
    # Bounded by the limit: a fault of an earlier step may have reached all of them, so similarity alone is no excuse.
    allowed = pl.max_horizontal(pl.min_horizontal(usual, "limit"), least)
    score = pl.max_horizontal(norm / pl.max_horizontal(allowed, of_norm), mean / pl.max_horizontal(allowed, of_mean))
    own = own.with_columns(is_of_noise=pl.col("place").is_in(of_noise))
    return own.with_columns(drift_score=pl.when("is_of_noise").then(0.0).otherwise(score))


def _turned_signs(roundoff: pl.Expr, underflows: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return how far mean and norm may move, relative to the root mean square, if elements get the other update.

    A parameter that began at zero, such as a bias, consists after Adam's first update of the learning rate with the
    signs of its gradient. The error of a gradient, relative to its root mean square, is about the share of elements
    that it exceeds, whose signs it may turn. Each moves the mean by twice its size over their number, upwards or
    downwards; at least one always may. One whose gradient vanishes beside Adam's epsilon has no update: it moves the
    norm by about half of its size over their number. If gradients underflow, these may be many, as the norm shows:
    their number varies by its root, and as many elements have gradients of a few roundings and any sign. Other
    parameters have zero.

    Args:
        roundoff: Unit round-off of the parameter, or of its gradient if that is coarser.
        underflows: Whether the gradient came through float16.

    Returns:
        The movement of the mean, and the relative movement of the norm.
    """
    number, norm = pl.col("numel_golden").cast(pl.Float64), pl.col("norm_golden")
    high, low = pl.col("max_golden"), -pl.col("min_golden")
    largest, smallest = pl.max_horizontal(high, low), pl.min_horizontal(high, low)
    crest = largest * number.sqrt() / norm
    is_of_signs = (crest <= _LARGEST_CREST) & (smallest >= _LEAST_BALANCE * largest)
    turned = pl.min_horizontal(_GRADIENT_ROUNDINGS * roundoff, 1.0) * number
    underflowed = pl.when(underflows).then(number * (1 - 1 / crest**2).clip(0.0, 1.0)).otherwise(0.0)
    of_mean = 2 / number * (crest + _DEVIATIONS * (turned + underflowed).sqrt())
    of_norm = (crest + _DEVIATIONS * (turned.sqrt() + underflowed.sqrt())) / (2 * number)
    return pl.when(is_of_signs).then(of_mean).otherwise(0.0), pl.when(is_of_signs).then(of_norm).otherwise(0.0)


def parameters_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the parameters of a step with the values needed to judge the next one, and their gradients' differences.

    Args:
        rows: Result of `msprobe_core.judge.nodes.with_scores`.
    """
    place = pl.col("key").str.replace(names.PARAMETER_ROW, "$1 $2")
    is_gradient = (pl.col("role") == Role.PARAMETERS_GRAD.value) & (pl.col("match") == Match.BOTH.value)
    gradients = rows.filter(is_gradient).select(
        place=place,
        gradient_error=pl.when("is_exempt").then(1.0).otherwise(pl.col("judged_error").fill_nan(None).fill_null(1.0)),
        gradient_roundoff=roundoff_of(pl.col("precision")),
    )
    own = _own_parameters(rows).select("key", *_MOVING, place=place)
    largest = gradients.group_by("place").agg(pl.col("gradient_error", "gradient_roundoff").max())
    return own.join(largest, on="place", how="left", maintain_order="left").drop("place")


_MOVING = tuple(f"{name}_{side}" for name in ("mean", "norm", "max", "min") for side in _SIDES)


def _own_parameters(rows: pl.DataFrame) -> pl.DataFrame:
    is_own = (pl.col("role") == Role.PARAMETERS.value) & (pl.col("match") == Match.BOTH.value)
    is_same_shape = pl.col("shape_target") == pl.col("shape_golden")
    known = rows.filter(is_own & is_same_shape & (pl.col("norm_golden") > 0) & pl.col("precision").is_not_null())
    return known.unique("key", keep="first", maintain_order=True)


def with_judged_updates(rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Return rows with ``score`` and ``excess`` of parameters whose updates differ, and ``update_factor``.

    ``update_factor`` is the common factor of all updates; null without one.
    A single parameter within its own noise floor, as measured by repetitions of the update, is left as it is. None
    is in excess if elements with another sign may be all that it differs by.

    Args:
        rows: Result of `msprobe_core.judge.nodes.with_scores`.
        before: Result of `parameters_of` for the previous judged step.
    """
    own = _own_parameters(rows).with_columns(roundoff=roundoff_of(pl.col("precision")), value=value_of_row())
    joined = own.join(before, on="key", how="inner", suffix="_before", maintain_order="left")
    found = _found(joined)
    factor = _common_factor(found)
    allows_turns = factor is None and RoundingRule.UPDATED_PARAMETERS.is_on
    one_size = _one_size(joined) if allows_turns else None
    if factor is None:
        turned = _found(joined, allows_turns=allows_turns, one_size=one_size)
        if not (_are_usually_rounding(found) or _are_usually_rounding(turned)):
            return rows.with_columns(update_factor=pl.lit(None, pl.Float64))
        # Most updates differ by rounding alone, so that single elements may explain the others.
        found = turned if one_size is None else pl.concat([turned, _movements_of_extremes(joined)])
    scores = found.group_by("value").agg(update_score=pl.col("score").max())
    scores = scores.join(_turned_parameters(joined, one_size), on="value", how="left")
    of_value = rows.select(value=value_of_row()).join(scores, on="value", how="left", maintain_order="left")
    excess = pl.col("update_score") / _ROUNDINGS
    is_updated = pl.col("is_parameter") & (excess > 1).fill_null(value=False)
    if factor is None and "noise_floor" in rows.columns:
        # Repetitions of the update measured this parameter, also where a part of its gradient is rounding alone.
        is_explained = pl.col("noise_floor").is_not_null() & (pl.col("score") <= pl.col("score_limit"))
        is_updated &= ~is_explained.fill_null(value=False)
    is_in_doubt = pl.col("is_parameter") & pl.col("excess").is_finite()
    is_explained_by_turns = is_in_doubt & (pl.col("is_turned") & (excess <= 1)).fill_null(value=False)
    return (
        rows.with_columns(of_value["update_score"], of_value["is_turned"], update_factor=pl.lit(factor, pl.Float64))
        .with_columns(
            score=pl.when(is_updated).then(pl.max_horizontal("score", "update_score")).otherwise("score"),
            score_limit=pl.when(is_updated).then(_ROUNDINGS).otherwise("score_limit"),
            excess=pl.when(is_updated)
            .then(pl.max_horizontal("excess", excess))
            .when(is_explained_by_turns)
            .then(pl.min_horizontal("excess", 1.0))
            .otherwise("excess"),
        )
        .drop("update_score", "is_turned")
    )


def _are_usually_rounding(found: pl.DataFrame) -> bool:
    usual = found["score"].median()
    return isinstance(usual, float) and usual <= 1


def _found(joined: pl.DataFrame, *, allows_turns: bool = False, one_size: float | None = None) -> pl.DataFrame:
    return pl.concat(
        _movements(joined, name, allows_turns=allows_turns, one_size=one_size) for name in ("mean", "norm")
    )


def _movements(joined: pl.DataFrame, name: str, *, allows_turns: bool, one_size: float | None) -> pl.DataFrame:
    """Return how a statistic of each parameter has moved: ``value``, ``factor``, ``is_seen`` and ``score``."""
    target, golden = (pl.col(f"{name}_{side}") - pl.col(f"{name}_{side}_before") for side in _SIDES)
    norm, root = pl.col("norm_golden"), pl.col("numel_golden").cast(pl.Float64).sqrt()
    # One rounding per element moves a norm by its share of the norm, and a mean by that over the root of their number.
    share = pl.lit(1.0) if name == "norm" else 1 / root
    rounding = pl.col("roundoff") * norm / root * share
    if _is_single(joined, name):
        rounding += UNIT_ROUNDOFF[Precision.FLOAT32] * pl.col(f"{name}_golden").abs()
    # An update of independent elements moves the norm by its own norm, and the mean by that over the root of their
    # number.
    length = pl.max_horizontal(
        root * (pl.col("mean_golden") - pl.col("mean_golden_before")).abs(),
        (norm - pl.col("norm_golden_before")).abs(),
    )
    inherited = _SEEN * pl.col("gradient_error").fill_null(1.0) * length * share
    if allows_turns:
        # Statistics of a gradient average over the errors of its elements, which updates have too.
        of_elements = _GRADIENT_ROUNDINGS * pl.col("gradient_roundoff").fill_null(0.0)
        inherited += of_elements * pl.max_horizontal(_moves_of_extremes()) * share
        inherited += _turned_elements(name, length, _is_measured(joined), one_size=one_size)
    return joined.select(
        "value",
        factor=target / golden,
        is_seen=golden.abs() > _ROUNDINGS * rounding,
        score=(target - golden).abs() / (rounding + inherited / _ROUNDINGS),
    )


def _turned_elements(name: str, length: pl.Expr, is_measured: pl.Expr, *, one_size: float | None) -> pl.Expr:
    """Return how far a statistic moves if elements of an update get the other sign.

    An element whose gradient is near the epsilon of Adam has an update of any size; among all tensors of a model there
    usually is one, however close the gradients are. A vector without a noise floor may consist of such elements in
    part, such as the keys' part of a fused bias, whose gradient a softmax cancels.

    Args:
        name: ``norm`` or ``mean``.
        length: Norm of the update, at least.
        is_measured: Whether repetitions show how far the parameter may differ.
        one_size: The size that the updates of most parameters have, if they have one; see `_one_size`.
    """
    number = pl.col("numel_golden").cast(pl.Float64)
    typical = length / number.sqrt()
    largest = pl.max_horizontal(pl.col("max_golden").abs(), pl.col("min_golden").abs())
    size = pl.max_horizontal(typical, *_moves_of_extremes())
    turned = pl.lit(1.0)
    if one_size is not None:
        # Where the largest element has turned another one is the largest, so extremes may hardly move either; those of
        # a parameter without an update do not move at all.
        has_update = (size > 0) & pl.col("gradient_error").is_not_null()
        size = pl.when(has_update).then(pl.max_horizontal(size, pl.lit(one_size))).otherwise(size)
        # The elements of an update have both signs, so statistics of the whole tensor hardly move, and show neither the
        # size of an update nor the error of a gradient.
        typical = size
        turned = _num_turned().sqrt()
    if name == "mean":
        few = 2 * typical * turned / number
    else:
        few = 2 * typical * pl.max_horizontal((largest / pl.col("norm_golden")).fill_nan(1.0), turned / number.sqrt())
    half = size * math.sqrt(2) / (number.sqrt() if name == "mean" else 1)
    return pl.when(_is_vector() & ~is_measured).then(pl.max_horizontal(few, half)).otherwise(few)


def _movements_of_extremes(joined: pl.DataFrame) -> pl.DataFrame:
    """Return the result of `_movements` for maximum and minimum, if both have moved by another multiple.

    An element that turns is one of the two, and has no part in the other.
    """
    factors = [
        (pl.col(f"{end}_target") - pl.col(f"{end}_target_before"))
        / (pl.col(f"{end}_golden") - pl.col(f"{end}_golden_before"))
        for end in ("max", "min")
    ]
    high, low = (factor - 1 for factor in factors)
    off = pl.min_horizontal(high.abs(), low.abs())
    is_common = (high * low > 0) & ((high - low).abs() <= off / 2) & (off >= _LEAST_FACTOR) & off.is_finite()
    size = pl.max_horizontal(_moves_of_extremes())
    largest = pl.max_horizontal(pl.col("max_golden").abs(), pl.col("min_golden").abs())
    inherited = _SEEN * pl.col("gradient_error").fill_null(1.0) * size / _ROUNDINGS
    return joined.select(
        "value",
        factor=factors[0],
        is_seen=pl.lit(value=False),
        score=pl.when(is_common).then(off * size / (pl.col("roundoff") * largest + inherited)).otherwise(0.0),
    )


def _num_turned() -> pl.Expr:
    """Return how many elements of an update may have the other sign.

    The error of a gradient, relative to the root mean square, is about the share of elements whose signs it turns.
    """
    number = pl.col("numel_golden").cast(pl.Float64)
    error = pl.max_horizontal(
        pl.col("gradient_error").fill_null(1.0), _GRADIENT_ROUNDINGS * pl.col("gradient_roundoff")
    )
    return (error * number).clip(1.0, number)


def _turned_parameters(joined: pl.DataFrame, one_size: float | None) -> pl.DataFrame:
    """Return ``value`` and ``is_turned``: whether elements with another sign may be all that a parameter differs by.

    If all updates have one size, maximum and minimum are then equal up to rounding, or off by a good part of an update;
    those of a vector that was not measured may be off by anything, since a part of it may have gradients of nothing but
    noise. In coarse precision the two overlap, and extremes say nothing. A distance, where elements were compared, is
    that of so many elements.
    """
    if one_size is None:
        return joined.select("value", is_turned=pl.lit(value=False)).unique("value")
    largest = pl.max_horizontal(pl.col("max_golden").abs(), pl.col("min_golden").abs())
    of_gradient = _SEEN * pl.col("gradient_error") + _GRADIENT_ROUNDINGS * pl.col("gradient_roundoff")
    rounding = _ROUNDINGS * pl.col("roundoff") * largest + of_gradient * one_size
    off = [(pl.col(f"{end}_target") - pl.col(f"{end}_golden")).abs() for end in ("max", "min")]
    is_turned = pl.all_horizontal((each <= rounding) | (each >= _GOOD_PART * one_size) for each in off)
    is_turned |= _is_vector() & ~_is_measured(joined)
    are_known = pl.all_horizontal(pl.col(name).is_finite() for name in _MOVING)
    has_update = (pl.max_horizontal(_moves_of_extremes()) > 0) & pl.col("gradient_error").is_not_null()
    is_turned &= are_known & has_update
    most = 2 * one_size * (_SEEN * _num_turned()).sqrt()
    distances = {"euclidean": pl.lit(1.0), SKETCH_ERROR: pl.col("norm_golden")}
    for name in distances.keys() & set(joined.columns):
        is_turned &= (pl.col(name) * distances[name] <= most) | pl.col(name).is_null()
    is_turned = is_turned.fill_null(value=False)
    return joined.select("value", is_turned=is_turned).group_by("value").agg(pl.col("is_turned").all())


def _is_vector() -> pl.Expr:
    return pl.col("shape_golden").str.contains(r"^\[\d+\]$")


def _is_measured(joined: pl.DataFrame) -> pl.Expr:
    """Whether repetitions show how far a parameter may differ."""
    return pl.col("noise_floor").is_not_null() if "noise_floor" in joined.columns else pl.lit(value=False)


def _moves_of_extremes() -> list[pl.Expr]:
    """Return how far maximum and minimum have moved, which are single elements."""
    return [(pl.col(f"{end}_golden") - pl.col(f"{end}_golden_before")).abs() for end in ("max", "min")]


def _one_size(joined: pl.DataFrame) -> float | None:
    """Return the size of a usual update if most parameters' updates have about one size, as the first ones of Adam.

    The largest and the smallest element of most parameters then move by that size too, unless they turn. Those of few
    parameters may be larger or smaller: decay adds to them what is in proportion to the parameter.
    """
    high, low = _moves_of_extremes()
    size = pl.col("size")
    moved = joined.select(size=pl.max_horizontal(high, low), least=pl.min_horizontal(high, low)).filter(size > 0)
    number, lower, usual, upper, alike = moved.select(
        pl.len(),
        lower=size.quantile(0.25),
        usual=size.median(),
        upper=size.quantile(0.75),
        alike=(pl.col("least") >= _ALIKE * size).mean(),
    ).row(0)
    return usual if number >= _FEW and lower >= _ONE_SIZE * upper and alike >= _SHARE_ALIKE else None


def _is_single(joined: pl.DataFrame, name: str) -> bool:
    """Whether statistics were stored in float32, as by other tools, and are rounded themselves."""
    values = [pl.col(f"{name}_{side}") for side in _SIDES]
    are_single = [(value == value.cast(pl.Float32).cast(pl.Float64)).all() for value in values]
    return bool(joined.select(pl.all_horizontal(are_single)).item())


def _common_factor(found: pl.DataFrame) -> float | None:
    """Return the common factor of all updates, if there is one that differs from one."""
    factor = pl.col("factor")
    number, middle, apart = (
        found.filter("is_seen").select(
            pl.len(), factor.median(), (factor - factor.median()).abs().median().alias("apart")
        )
    ).row(0)
    if number < _FEW:
        return None
    steady = _STEADINESS * apart / number**0.5
    return float(middle) if abs(middle - 1) > max(_FACTOR, steady) else None
