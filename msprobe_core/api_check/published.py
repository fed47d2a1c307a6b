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
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check.standards import Algorithm, DtypeConstants, Standards, standards
from msprobe_core.api_check.verdict import PublishedColumns
from msprobe_core.model import ReplayTensor
from msprobe_core.store.dtype_values import FORMS

PASS, WARNING, ERROR, SKIP = "pass", "warning", "error", "SKIP"
"""Statuses of published tables."""

Array = NDArray[Any]

_HALF = ("float16", "bfloat16")

LARGEST = {dtype: FORMS[dtype].largest for dtype in ("float16", "bfloat16", "float32")}
"""Largest finite value; of other dtypes that of float64."""


def published_columns(
    recorded: ReplayTensor, oracle: Array, *, own: Array | None, api: str, inputs: frozenset[str] = frozenset(),
    quantization_apis: Collection[str] | None = None,
) -> PublishedColumns:  # fmt: skip
    """Return the metrics and statuses of published standards for one result.

    Args:
        recorded: The result to measure, of any shape.
        oracle: The golden values, of the same shape: the float64 replay.
        own: The result of a replay in the call's own precision, as the golden side of ratios; ``None`` without one.
        api: Name of the API, such as ``Functional.layer_norm.0`` or ``layer_norm``; it decides the class, and a few
            APIs have rules of their own.
        inputs: Dtypes of the call's inputs, without the framework's name.
        quantization_apis: APIs whose results may be off by one; ``None`` for those of the standard.
    """
    table = standards()
    if quantization_apis is not None:
        plain = msgspec.structs.replace(table.plain, quantization_apis=frozenset(quantization_apis))
        table = msgspec.structs.replace(table, plain=plain)
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
        parts = _parts(values, oracle)
        largest = max(_largest(result) for result, _ in parts), max(_largest(golden) for _, golden in parts)
        totals = _Totals(dtype, table, largest)
        for result, golden in parts:
            for first in range(0, golden.size, _CHUNK):
                chunk = slice(first, first + _CHUNK)
                totals.add(result[chunk].astype(np.float64), golden[chunk].astype(np.float64, copy=False))
        return totals.metrics()


_CHUNK = 1 << 12
"""Elements that are measured at a time. Arrays of them stay in the cache, and are too small for BLAS to start threads,
which take seconds for a million elements if other processes keep the cores busy."""


def _parts(values: Any, oracle: Any) -> list[tuple[Any, Any]]:
    values, oracle = values.reshape(-1), oracle.reshape(-1)
    if "c" in (values.dtype.kind, oracle.dtype.kind):
        return [(values.real, oracle.real), (values.imag, oracle.imag)]
    return [(values, oracle)]


def _largest(values: Any) -> float:
    """Return the largest magnitude; NaN if there is a NaN."""
    return max(float(values.max()), -float(values.min()))


class _Totals:
    """Sums, counts and extremes over the elements of one result."""

    def __init__(self, dtype: str, table: Standards, largest: tuple[float, float]) -> None:
        """Begin without elements.

        Args:
            dtype: Of the result.
            table: The standards.
            largest: The largest magnitudes of the result and of the golden values.
        """
        self._dtype, self._table = dtype, table
        self._constants = table.constants(dtype)
        self._form = table.ulp_formats.get(dtype)
        self._largest, self._of_golden = largest
        self._has_cosine = not (self._largest <= table.plain.zero or self._of_golden <= table.plain.zero)
        self._num = self._num_finite = self._num_small = self._num_bad = self._balance = 0
        self._num_over_rtol = self._num_over_benchmark = self._num_over_absolute = self._num_over_ulp = 0
        self._within = [0, 0, 0]
        self._squares = self._relative = self._products = self._of_result = self._of_oracle = 0.0
        self._max_error = self._max_relative = self._max_ulp = self._ulp = 0.0
        self._single = self._max_single = 0.0
        self._is_accumulative = self._is_close = True

    def add(self, result: Array, golden: Array) -> None:
        """Add elements, as float64 vectors."""
        constants = self._constants
        rounded = _rounded(golden, self._dtype)
        magnitude = np.abs(golden)
        error = np.abs(result - golden)
        finite = np.isfinite(result) & np.isfinite(rounded)
        num, num_finite = golden.size, int(np.count_nonzero(finite))
        small = magnitude < constants.small_value
        if num_finite < num:
            small &= finite
            self._num_bad += _num_wrong(result, golden, ~finite, self._dtype, constants)
        num_small = int(np.count_nonzero(small))
        relative = error / (magnitude + constants.golden_eps)
        self._num += num
        self._num_finite += num_finite
        self._num_small += num_small
        self._max_error = float(np.maximum(self._max_error, error.max()))
        for place, limit in enumerate(_WITHIN):
            self._within[place] += int(np.count_nonzero(relative < limit))
        self._balance += int(np.count_nonzero(result > rounded)) - int(np.count_nonzero(result < rounded))
        if num_small:
            of_small = error[small]
            self._num_over_benchmark += int(np.count_nonzero(of_small > constants.benchmark_atol))
            self._num_over_absolute += int(np.count_nonzero(of_small > constants.absolute_atol))
        if num_normal := num_finite - num_small:
            normal = finite & ~small
            of_normal, errors = (relative, error) if num_normal == num else (relative[normal], error[normal])
            self._squares += float(errors @ errors)
            self._relative += float(of_normal.sum())
            self._max_relative = max(self._max_relative, float(of_normal.max()))
            self._num_over_rtol += int(np.count_nonzero(of_normal > constants.rtol))
        if self._has_cosine:
            first, second = result / self._largest, golden / self._of_golden
            self._products += float(first @ second)
            self._of_result += float(first @ first)
            self._of_oracle += float(second @ second)
        if num_finite:
            self._add_units(*((error, golden) if num_finite == num else (error[finite], golden[finite])))
        self._add_verdicts(result, golden, finite, magnitude, error, relative)

    def _add_units(self, error: Array, golden: Array) -> None:
        """Add the ULP errors of finite elements."""
        if self._form is None:
            return
        exponents = np.frexp(golden)[1] - 1
        np.maximum(exponents, self._form.min_exponent, out=exponents)
        exponents[golden == 0] = 0
        units = np.ldexp(error, self._form.mantissa_bits - exponents)
        self._num_over_ulp += int(np.count_nonzero(units > self._form.threshold))
        self._ulp += float(units.sum())
        self._max_ulp = max(self._max_ulp, float(units.max()))

    def _add_verdicts(
        self, result: Array, golden: Array, finite: Array, magnitude: Array, error: Array, relative: Array
    ) -> None:
        """Add what other standards say of each element."""
        table = self._table
        size = np.where(magnitude < table.accumulative_small_value, error, relative)
        self._is_accumulative &= not bool(np.any((size > self._constants.accumulative_bound) & finite))
        if self._dtype in table.single_benchmark.thresholds:
            off = error / (magnitude + table.single_benchmark.eps)
            self._single += float(off.sum())
            self._max_single = float(np.maximum(self._max_single, off.max()))
        tolerance = table.tolerance(self._dtype)
        # An infinite golden value would make the tolerance infinite too.
        close = (error <= tolerance.atol + tolerance.rtol * magnitude) & np.isfinite(golden)
        self._is_close &= bool(np.all(close | (result == golden)))

    def metrics(self) -> _Metrics:
        """Return the metrics of all elements."""
        num, num_normal = self._num, self._num_finite - self._num_small
        zero = self._table.plain.zero
        bad = self._num_bad / (num - self._num_finite) if num > self._num_finite else 0.0
        balance = abs(self._balance) / num
        units = (
            (self._max_ulp, self._ulp / max(self._num_finite, 1), self._num_over_ulp / max(self._num_finite, 1))
            if self._form is not None
            else None
        )
        return _Metrics(
            num=num,
            cosine=self._cosine() if num > 1 and self._has_cosine else None,
            is_one_zero=num > 1 and (self._largest <= zero) != (self._of_golden <= zero),
            max_absolute=self._max_error,
            within=(self._within[0] / num, self._within[1] / num, self._within[2] / num),
            error_balance=balance,
            rmse=math.sqrt(self._squares / num * (num / (num_normal + 1e-4) + 1e-4)),
            small_value_error_share=self._num_over_benchmark / max(self._num_small, 1),
            max_relative=self._max_relative,
            mean_relative=self._relative / max(num_normal, 1),
            non_finite_error_rate=bad,
            relative_error_rate=self._num_over_rtol / max(num_normal, 1),
            absolute_error_rate=self._num_over_absolute / max(self._num_small, 1),
            ulp=units,
            is_accumulative=bad == 0 and balance <= self._constants.accumulative_balance and self._is_accumulative,
            single_benchmark=self._passes_single_benchmark(),
            is_close=self._is_close,
        )

    def _cosine(self) -> float:
        norms = self._of_result * self._of_oracle
        cosine = self._products / math.sqrt(norms) if norms > 0 else math.nan
        return cosine if math.isnan(cosine) else min(1.0, max(-1.0, cosine))

    def _passes_single_benchmark(self) -> bool | None:
        own = self._table.single_benchmark
        threshold = own.thresholds.get(self._dtype)
        if threshold is None:
            return None
        return self._single / self._num < threshold and self._max_single < own.max_factor * threshold


_WITHIN = (0.01, 0.001, 0.0001)


def _rounded(golden: Any, dtype: str) -> Array:
    """Return golden values rounded to the dtype of the result, in float64; beyond its range they are infinite."""
    if dtype == "float16":
        return golden.astype(np.float16).astype(np.float64)
    # The published tool compares in NumPy, which has no bfloat16: its golden values are those in float32.
    if dtype in ("float32", "bfloat16", "complex64"):
        return golden.astype(np.float32).astype(np.float64)
    return golden


def _num_wrong(result: Any, golden: Any, selected: Array, dtype: str, constants: DtypeConstants) -> int:
    """Return how many of the elements that are not finite are wrong."""
    largest = LARGEST.get(dtype, float(np.finfo(np.float64).max))
    first, second = result[selected].clip(-largest, largest), golden[selected].clip(-largest, largest)
    is_right = np.abs(first - second) / (np.abs(second) + constants.golden_eps) <= constants.rtol
    is_right |= np.isnan(first) & np.isnan(second)
    return is_right.size - int(np.count_nonzero(is_right))


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
        is_within = all(
            ratio_to(getattr(metrics, metric), getattr(baseline, metric), least) <= limit
            for metric, limit in table.ratio_limits(limits).items()
        )
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
