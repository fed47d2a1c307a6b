"""Compare stored tensors, pair by pair.

The six metrics are those that users of such tables know; ``error`` is the number that a row is judged by: the
relative error in the Euclidean norm or, if larger, the largest difference in relation to the largest golden
magnitude. Values are flattened and compared in float64; relative errors of elements in float32 where both sides are
no wider, as the established tables have them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import DumpError
from msprobe_core.hookspecs import Dump, TensorSource

Array: TypeAlias = NDArray[Any]
Progress: TypeAlias = Callable[[int, int], None]
"""Told after each pair: how many are done, and of how many."""

UNSUPPORTED = "unsupported"
SHAPE_UNMATCHED = "shape unmatched"
NOT_AVAILABLE = "N/A"
NOT_A_NUMBER = "Nan"

_MAX_WORKERS = 8


class TensorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one pair. A metric that does not apply is ``None``, and ``status`` is what tables show instead.

    Attributes:
        cosine: Cosine similarity, -1 to 1; NaN where exactly one side is all zero.
        euclidean: Euclidean distance.
        largest_abs: Largest absolute difference.
        largest_rel: Largest relative difference of an element; where golden is 0 the dtype's epsilon is added to both.
        within_1e3: Share of elements whose relative difference is below 0.001.
        within_5e3: Share of elements whose relative difference is below 0.005.
        error: What the row is judged by, dimensionless; ``None`` where the pair could not be compared.
        status: Text for metrics that are ``None``.
        problem: Why the pair could not be compared, for people; ``None`` if it could.
    """

    cosine: float | None = None
    euclidean: float | None = None
    largest_abs: float | None = None
    largest_rel: float | None = None
    within_1e3: float | None = None
    within_5e3: float | None = None
    error: float | None = None
    status: str = UNSUPPORTED
    problem: str | None = None


StoredPair: TypeAlias = tuple[tuple[Dump, str], tuple[Dump, str]]
"""For target and golden the dump, and the tensor as the dump's column ``file_name`` has it."""


def compare_files(pairs: Sequence[StoredPair | None], progress: Progress | None = None) -> Iterator[TensorMetrics]:
    """Yield the metrics of each pair, in order; for ``None`` those of a value without a file.

    Pairs are read and compared by a pool of threads; as many pairs are in memory at a time as there are threads.
    """
    workers = min(_MAX_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, "msprobe-compare") as pool:
        for done, metrics in enumerate(pool.map(_compare_pair, pairs), start=1):
            if progress is not None:
                progress(done, len(pairs))
            yield metrics


def _compare_pair(pair: StoredPair | None) -> TensorMetrics:
    if pair is None:
        return TensorMetrics()
    try:
        target, golden = (_read(dump.open_tensor(file_name)) for dump, file_name in pair)
        return compare_tensors(target, golden)
    except DumpError as error:
        return TensorMetrics(problem=str(error))
    except MemoryError:
        return TensorMetrics(problem=f"{pair[0][1]} and its partner do not fit into memory")


def _read(source: TensorSource) -> Array:
    return np.reshape(np.concatenate(list(source.chunks(_CHUNK))), source.shape)


_CHUNK = 1 << 20


def compare_tensors(target: Array, golden: Array) -> TensorMetrics:
    """Return the metrics of two arrays of any shape, of numbers or of text."""
    target, golden = np.squeeze(target), np.squeeze(golden)
    if target.shape != golden.shape:
        return TensorMetrics(
            status=SHAPE_UNMATCHED, problem=f"the shapes {target.shape} and {golden.shape} do not match"
        )
    if target.size == 0:
        return TensorMetrics(error=0.0)
    if target.dtype.kind in "SU" or golden.dtype.kind in "SU":
        same = target.dtype.kind == golden.dtype.kind and np.array_equal(target, golden)
        return TensorMetrics(error=0.0) if same else TensorMetrics(problem="the texts differ")
    is_single = target.ndim == 0
    if target.dtype.kind in "iu" and golden.dtype.kind in "iu" and max(target.itemsize, golden.itemsize) == 8:
        return _integer_metrics(np.ravel(target), np.ravel(golden), is_single=is_single)
    target, golden = _to_common(target), _to_common(golden)
    special = ~np.isfinite(target) | ~np.isfinite(golden)
    if special.any():
        if not np.array_equal(target[special], golden[special], equal_nan=True):
            return TensorMetrics(status=NOT_AVAILABLE, problem="NaN or Inf are not the same on both sides")
        target, golden = np.where(special, 0, target), np.where(special, 0, golden)
    return _metrics(np.ravel(target), np.ravel(golden), is_single=is_single)


def _integer_metrics(target: Array, golden: Array, *, is_single: bool) -> TensorMetrics:
    """Return the metrics of integers that float64 may not hold; ones that look equal there are told apart."""
    metrics = _metrics(target.astype(np.float64), golden.astype(np.float64), is_single=is_single)
    if metrics.error != 0.0 or np.array_equal(target, golden):
        return metrics
    # They are less than 2**12 apart, so that the difference is right however the subtraction wraps.
    largest = float(np.abs(target.astype(np.int64) - golden.astype(np.int64)).max())
    size = float(np.abs(golden.astype(np.float64)).max())
    return msgspec.structs.replace(metrics, largest_abs=largest, error=largest / size)


def _to_common(values: Array) -> Array:
    """Return ``values`` in float32, float64 or complex128, whichever holds them."""
    if np.iscomplexobj(values):
        return values.astype(np.complex128)
    is_narrow = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    return values.astype(np.float32 if is_narrow else np.float64)


def _metrics(target: Array, golden: Array, *, is_single: bool) -> TensorMetrics:
    relative = _relative_errors(target, golden)
    wide = np.complex128 if np.iscomplexobj(target) or np.iscomplexobj(golden) else np.float64
    target, golden = target.astype(wide), golden.astype(wide)
    difference = np.abs(target - golden)
    largest_abs = float(difference.max())
    largest = float(np.abs(golden).max())
    euclidean, golden_norm = _norm(difference), _norm(np.abs(golden))
    error = max(_ratio(euclidean, golden_norm), _ratio(largest_abs, largest))
    largest_rel = round(float(relative.max()), 12)
    if is_single:
        return TensorMetrics(largest_abs=round(largest_abs, 12), largest_rel=largest_rel, error=error)
    return TensorMetrics(
        cosine=_cosine(target, golden, golden_norm),
        euclidean=euclidean,
        largest_abs=round(largest_abs, 12),
        largest_rel=largest_rel,
        within_1e3=round(float((relative < 0.001).mean()), 12),
        within_5e3=round(float((relative < 0.005).mean()), 12),
        error=error,
    )


def _relative_errors(target: Array, golden: Array) -> Array:
    kind = np.result_type(target, golden)
    target, golden = target.astype(kind), golden.astype(kind)
    epsilon = np.finfo(kind).eps
    is_zero = golden == 0
    target, golden = np.where(is_zero, target + epsilon, target), np.where(is_zero, golden + epsilon, golden)
    with np.errstate(over="ignore"):
        return np.abs((target - golden) / golden)


def _norm(magnitudes: Array) -> float:
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(magnitudes))
    largest = float(magnitudes.max())
    if largest == 0 or 1e-140 < norm < float("inf"):
        return norm
    return largest * float(np.linalg.norm(magnitudes / largest))  # the squares leave float64's range: scale first


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 else float("inf")


def _cosine(target: Array, golden: Array, golden_norm: float) -> float:
    """Return the cosine rounded as tables have it: to 6 decimals close to 1, to 12 elsewhere."""
    target_norm = _norm(np.abs(target))
    epsilon = np.finfo(np.float64).eps
    if target_norm <= epsilon and golden_norm <= epsilon:
        return 1.0
    if target_norm <= epsilon or golden_norm <= epsilon:
        return float("nan")
    product = complex(np.vdot(golden / golden_norm, target / target_norm))
    cosine = product.real
    return round(cosine, 6 if cosine > 0.9999 else 12)
