"""Metrics of published standards for one result of a call, and what each standard says of it.

The definitions are those of the published tool, with the numbers of ``standards.yaml``. The golden values are the
float64 replay. Of each element, with ``error = |result - golden|``:

* It is *finite* if both sides are, after the golden value is rounded to the result's dtype, where bfloat16 counts as
  float32. A finite element is *small* if ``|golden|`` is below the small value, and *normal* otherwise.
* The relative error of a normal element is ``error / (|golden| + golden_eps)``. Maximum and mean are over normal ones.
* The small value error share is that of small elements with an error above ``benchmark_atol``, the absolute error rate
  that above ``absolute_atol``, both among small ones; the relative error rate is the share of normal elements with a
  relative error above ``rtol``.
* The inf/nan error rate is taken over elements that are not finite: both sides are clipped to the range of the dtype,
  and an element is right if it is NaN on both, or the relative error is at most ``rtol``.
* The RMSE is ``sqrt(m * (n / (n - k + 1e-4) + 1e-4))``, where m is the mean of the squared errors of all n elements,
  with those of the k that are not normal taken as 0.
* The error balance is ``|above - below| / n``, with the numbers of elements above and below the rounded golden value.
* The ULP error is ``error * 2^(mantissa_bits - e)`` with ``e = max(floor(log2 |golden|), min_exponent)``, and e = 0 for
  a golden value of 0. It is taken over elements that are finite on both sides.
* The shares within 1 %, 0.1 % and 0.01 % are those of elements of any size with a relative error below it.
* The cosine is taken of both sides divided by their largest magnitudes, and clipped to [-1, 1]. A single element, and a
  side of zeros only, has none.

Where these are not what the published tool computes, ``differences`` in ``standards.yaml`` says so: ULP errors of
float8 have no sign. Rates and shares of no elements are 0, and results without elements are skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check.standards import Algorithm, DtypeConstants, Standards, standards
from msprobe_core.api_check.verdict import PublishedColumns
from msprobe_core.model import ReplayTensor

PASS, WARNING, ERROR, SKIP = "pass", "warning", "error", "SKIP"
"""Statuses of published tables."""

Array = NDArray[Any]

_HALF = ("float16", "bfloat16")

_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""Largest finite value; of other dtypes that of float64."""


def published_columns(
    recorded: ReplayTensor, oracle: Array, *, own: Array | None, api: str, inputs: frozenset[str] = frozenset()
) -> PublishedColumns:
    """Return the metrics and statuses of published standards for one result.

    Args:
        recorded: The result to measure, of any shape.
        oracle: The golden values, of the same shape: the float64 replay.
        own: The result of a replay in the call's own precision, as the golden side of ratios; ``None`` without one.
        api: Name of the API, such as ``Functional.layer_norm.0`` or ``layer_norm``; it decides the class, and a few
            APIs have rules of their own.
        inputs: Dtypes of the call's inputs, without the framework's name.
    """
    table = standards()
    name = api_name(api)
    values = np.asarray(recorded.values)
    if failed := _structure(values, oracle):
        return failed
    standard = table.algorithm(recorded.dtype, inputs)
    with np.errstate(all="ignore"):
        if values.dtype.kind not in "fc" or oracle.dtype.kind not in "fc":
            return _exact(values, oracle, recorded.dtype, name, table, standard)
        metrics = _Metrics.of(values, oracle, recorded.dtype, table)
        status, message = _plain(metrics, values, oracle, recorded.dtype, name, table)
        baseline = None
        if own is not None and own.shape == values.shape and own.dtype.kind in "fc":
            baseline = _Metrics.of(np.asarray(own), oracle, recorded.dtype, table)
        return _columns(metrics, baseline, recorded.dtype, name, table, standard, status, message)


def api_name(api: str) -> str:
    """Return ``layer_norm`` for ``Functional.layer_norm.0`` or ``layer_norm``: the last part that is no number."""
    return next((part for part in reversed(api.split(".")) if not part.isdigit()), api)


def _structure(values: Array, oracle: Array) -> PublishedColumns | None:
    """Return the columns of a result that cannot be measured; ``None`` if it can."""
    if values.shape != oracle.shape:
        message = f"The shapes differ: {values.shape} and {oracle.shape}."
        return PublishedColumns(plain_status=ERROR, plain_message=message)
    if (values.dtype.kind in "fc") != (oracle.dtype.kind in "fc"):
        return PublishedColumns(plain_status=ERROR, plain_message="The kinds of dtype differ.")
    if not values.size:
        return PublishedColumns(plain_status=SKIP, plain_message="There are no elements.")
    return None


# --- integers, booleans ---------------------------------------------------------------------------------------------


def _exact(
    values: Array, oracle: Array, dtype: str, name: str, table: Standards, standard: Algorithm
) -> PublishedColumns:
    differs = np.not_equal(values, oracle)
    rate = float(np.count_nonzero(differs)) / values.size
    # In float64: a difference of unsigned or 8 bit integers may not fit into their dtype.
    difference = float(np.max(np.abs(values.astype(np.float64) - oracle.astype(np.float64))))
    status = PASS if rate == 0 else ERROR
    message = f"Current {dtype} data, only perform binary comparison."
    if name in table.plain.quantization_apis:
        status = PASS if difference <= table.plain.quantization_max_absolute else ERROR
        message = "A quantised result may be off by one."
    return PublishedColumns(
        max_absolute=difference, binary_error_rate=rate, plain_status=status, plain_message=message,
        standard=standard.value, binary_status=PASS if rate == 0 else ERROR,
        torch_testing_status=PASS if rate == 0 else ERROR,
    )  # fmt: skip


# --- numbers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Metrics:
    """All metrics of one side of one result, and what some standards need besides."""

    num: int
    cosine: float | None
    is_one_zero: bool
    max_absolute: float
    within: tuple[float, float, float]
    error_balance: float
    rmse: float
    small_value_error_share: float
    max_relative: float
    mean_relative: float
    non_finite_error_rate: float
    relative_error_rate: float
    absolute_error_rate: float
    ulp: tuple[float, float, float] | None
    is_accumulative: bool
    single_benchmark: bool | None
    is_close: bool

    @classmethod
    def of(cls, values: Array, oracle: Array, dtype: str, table: Standards) -> _Metrics:
        """Measure ``values`` against ``oracle``; complex numbers as pairs of their parts."""
        result, golden = _flat(values), _flat(oracle)
        constants = table.constants(dtype)
        rounded = _rounded(golden, dtype)
        num = golden.size
        magnitude = np.abs(golden)
        error = np.abs(result - golden)
        finite = np.isfinite(result) & np.isfinite(rounded)
        num_finite = int(np.count_nonzero(finite))
        is_finite = num_finite == num
        largest, of_golden, zero = float(np.abs(result).max()), float(magnitude.max()), table.plain.zero
        small = magnitude < constants.small_value
        if not is_finite:
            small &= finite
        num_small = int(np.count_nonzero(small))
        normal = finite & ~small if num_small else finite
        num_normal = num_finite - num_small
        relative = error / (magnitude + constants.golden_eps)
        of_normal = relative if num_normal == num else relative[normal]
        squares = error * error if num_normal == num else error[normal] * error[normal]
        mean_square = float(squares.sum()) / num
        of_small = error[small] if num_small else None
        bad = 0.0 if is_finite else _non_finite_error_rate(result, golden, ~finite, dtype, constants)
        balance = abs(int(np.count_nonzero(result > rounded)) - int(np.count_nonzero(result < rounded))) / num
        relative_rate = int(np.count_nonzero(of_normal > constants.rtol)) / num_normal if num_normal else 0.0
        return cls(
            num=num,
            cosine=None
            if num == 1 or largest <= zero or of_golden <= zero
            else _cosine(result / largest, golden / of_golden),
            is_one_zero=num > 1 and (largest <= zero) != (of_golden <= zero),
            max_absolute=float(error.max()),
            within=(_share(relative, 0.01), _share(relative, 0.001), _share(relative, 0.0001)),
            error_balance=balance,
            rmse=math.sqrt(mean_square * (num / (num_normal + 1e-4) + 1e-4)),
            small_value_error_share=_above(of_small, constants.benchmark_atol),
            max_relative=float(of_normal.max()) if num_normal else 0.0,
            mean_relative=float(of_normal.sum()) / num_normal if num_normal else 0.0,
            non_finite_error_rate=bad,
            relative_error_rate=relative_rate,
            absolute_error_rate=_above(of_small, constants.absolute_atol),
            ulp=_ulp(error, golden, finite, dtype, table),
            is_accumulative=bad == 0
            and balance <= constants.accumulative_balance
            and _is_accumulative(error, relative, magnitude, finite, constants, table),
            single_benchmark=_single_benchmark(error, magnitude, dtype, table),
            is_close=_is_close(result, golden, error, magnitude, dtype, table),
        )


def _flat(values: Any) -> Array:
    if values.dtype.kind == "c":
        return np.concatenate([np.ravel(values.real), np.ravel(values.imag)]).astype(np.float64)
    return values.reshape(-1).astype(np.float64, copy=False)


def _rounded(golden: Any, dtype: str) -> Array:
    """Return golden values rounded to the dtype of the result, in float64; beyond its range they are infinite."""
    if dtype == "float16":
        return golden.astype(np.float16).astype(np.float64)
    # The published tool compares in NumPy, which has no bfloat16: its golden values are those in float32.
    if dtype in ("float32", "bfloat16", "complex64"):
        return golden.astype(np.float32).astype(np.float64)
    return golden


def _share(ratios: Array, limit: float) -> float:
    return int(np.count_nonzero(ratios < limit)) / ratios.size


def _above(errors: Array | None, limit: float) -> float:
    return 0.0 if errors is None else int(np.count_nonzero(errors > limit)) / errors.size


def _cosine(first: Array, second: Array) -> float:
    cosine = float(first @ second) / math.sqrt(float(first @ first) * float(second @ second))
    return cosine if math.isnan(cosine) else min(1.0, max(-1.0, cosine))


def _non_finite_error_rate(result: Any, golden: Any, selected: Array, dtype: str, constants: DtypeConstants) -> float:
    largest = _LARGEST.get(dtype, float(np.finfo(np.float64).max))
    first, second = result[selected].clip(-largest, largest), golden[selected].clip(-largest, largest)
    is_right = np.abs(first - second) / (np.abs(second) + constants.golden_eps) <= constants.rtol
    is_right |= np.isnan(first) & np.isnan(second)
    return 1.0 - int(np.count_nonzero(is_right)) / is_right.size


def _ulp(error: Array, golden: Array, finite: Array, dtype: str, table: Standards) -> tuple[float, float, float] | None:
    """Return the maximum and mean of the ULP errors, and the share beyond the threshold; ``None`` for other dtypes."""
    form = table.ulp_formats.get(dtype)
    if form is None:
        return None
    if not finite.all():
        error, golden = error[finite], golden[finite]
    if not error.size:
        return 0.0, 0.0, 0.0
    exponents = np.frexp(golden)[1] - 1
    np.maximum(exponents, form.min_exponent, out=exponents)
    exponents[golden == 0] = 0
    units = np.ldexp(error, form.mantissa_bits - exponents)
    share = int(np.count_nonzero(units > form.threshold)) / units.size
    return float(units.max()), float(units.sum()) / units.size, share


def _is_accumulative(
    error: Array, relative: Array, magnitude: Array, finite: Array, constants: DtypeConstants, table: Standards
) -> bool:
    """Whether every finite element is within the accumulative bound, absolute if it is small and relative if not."""
    size = np.where(magnitude < table.accumulative_small_value, error, relative)
    return not bool(np.any((size > constants.accumulative_bound) & finite))


def _single_benchmark(error: Array, magnitude: Array, dtype: str, table: Standards) -> bool | None:
    own = table.single_benchmark
    threshold = own.thresholds.get(dtype)
    if threshold is None:
        return None
    relative = error / (magnitude + own.eps)
    return bool(relative.sum() / relative.size < threshold and relative.max() < own.max_factor * threshold)


def _is_close(result: Array, golden: Array, error: Array, magnitude: Array, dtype: str, table: Standards) -> bool:
    tolerance = table.tolerance(dtype)
    # An infinite golden value would make the tolerance infinite too.
    close = (error <= tolerance.atol + tolerance.rtol * magnitude) & np.isfinite(golden)
    return bool(np.all(close | (result == golden)))


# --- what standards say ---------------------------------------------------------------------------------------------


def _plain(metrics: _Metrics, values: Array, oracle: Array, dtype: str, name: str, table: Standards) -> tuple[str, str]:
    """Return the status and the message by the rules for one side, in their published order."""
    rules = table.plain
    if name in rules.quantization_apis:
        is_near = metrics.max_absolute <= rules.quantization_max_absolute
        return PASS if is_near else ERROR, "A quantised result may be off by one."
    if name in rules.dropout_apis and metrics.num >= rules.dropout_min_elements:
        zeros = abs(int(np.count_nonzero(values == 0)) - int(np.count_nonzero(oracle == 0))) / metrics.num
        return PASS if zeros < rules.dropout_zero_share else ERROR, "Only the numbers of zeros are compared."
    if metrics.is_one_zero:
        return ERROR, "All values of one side are zero, and not those of the other."
    if metrics.cosine is not None and metrics.cosine <= rules.cosine:
        return ERROR, f"The cosine similarity is not above {rules.cosine:g}."
    if metrics.max_absolute < rules.max_absolute:
        return PASS, f"The largest absolute error is less than {rules.max_absolute:g}; nothing else is checked."
    percent, thousandth, ten_thousandth = metrics.within
    if dtype in _HALF:
        if percent <= rules.half_within_percent:
            return ERROR, "Too many relative errors of 1 % and more."
        if thousandth <= rules.half_within_thousandth:
            return WARNING, "Many relative errors of 0.1 % and more."
        return PASS, ""
    if thousandth <= rules.single_within_thousandth:
        return ERROR, "Too many relative errors of 0.1 % and more."
    if ten_thousandth <= rules.single_within_ten_thousandth:
        return WARNING, "Many relative errors of 0.01 % and more."
    return PASS, ""


def _columns(
    metrics: _Metrics, baseline: _Metrics | None, dtype: str, name: str, table: Standards, standard: Algorithm,
    status: str, message: str,
) -> PublishedColumns:  # fmt: skip
    class_name, limits = table.class_of(name)
    is_absolute = not (metrics.non_finite_error_rate or metrics.relative_error_rate or metrics.absolute_error_rate)
    benchmark = None
    if baseline is not None and dtype in table.float_dtypes - table.skipped_dtypes:
        least = table.constants(dtype).minimum_error
        pairs = (
            (metrics.small_value_error_share, baseline.small_value_error_share, table.small_value_ratio),
            (metrics.rmse, baseline.rmse, limits.rmse),
            (metrics.max_relative, baseline.max_relative, limits.max_relative),
            (metrics.mean_relative, baseline.mean_relative, limits.mean_relative),
        )
        is_within = all(ratio_to(mine, other, least) <= limit for mine, other, limit in pairs)
        benchmark = is_within and metrics.non_finite_error_rate == 0
    ulp = metrics.ulp or (None, None, None)
    return PublishedColumns(
        cosine=metrics.cosine,
        max_absolute=metrics.max_absolute,
        within_percent=metrics.within[0],
        within_thousandth=metrics.within[1],
        within_ten_thousandth=metrics.within[2],
        error_balance=metrics.error_balance,
        rmse=metrics.rmse,
        small_value_error_share=metrics.small_value_error_share,
        max_relative=metrics.max_relative,
        mean_relative=metrics.mean_relative,
        non_finite_error_rate=metrics.non_finite_error_rate,
        relative_error_rate=metrics.relative_error_rate,
        absolute_error_rate=metrics.absolute_error_rate,
        max_ulp=ulp[0],
        mean_ulp=ulp[1],
        ulp_share=ulp[2],
        plain_status=status,
        plain_message=message,
        standard=standard.value,
        api_class=class_name,
        benchmark_status=_status(benchmark),
        absolute_threshold_status=_status(is_absolute),
        ulp_status=_status(_passes_ulp(metrics.ulp, baseline, dtype, table)),
        thousandth_status=_status(metrics.within[1] >= table.thousandth_share),
        accumulative_status=_status(metrics.is_accumulative),
        single_benchmark_status=_status(metrics.single_benchmark),
        torch_testing_status=_status(metrics.is_close),
    )


def ratio_to(mine: float, golden: float, minimum_error: float) -> float:
    """Return a metric relative to that of the golden side, which counts as ``minimum_error`` at least.

    Both are taken without their sign. The result is NaN if one of them is not finite.
    """
    if not (math.isfinite(mine) and math.isfinite(golden)):
        return math.nan
    return abs(mine) / max(abs(golden), minimum_error)


def _passes_ulp(
    ulp: tuple[float, float, float] | None, baseline: _Metrics | None, dtype: str, table: Standards
) -> bool | None:
    limits = table.ulp_limits.get(dtype)
    if ulp is None or limits is None:
        return None
    _, mean, share = ulp
    if share < limits.share or (limits.mean is not None and mean < limits.mean):
        return True
    if limits.ratio is None or baseline is None or baseline.ulp is None:
        return False
    return share < limits.ratio * baseline.ulp[2]


def _status(passes: bool | None) -> str | None:
    return None if passes is None else PASS if passes else ERROR
