"""Compare stored tensors, pair by pair and piece by piece.

Six of the metrics are the usual ones of such tables. ``error`` is the number by which a row is judged: the relative
error in the Euclidean norm or, if larger, the largest difference relative to the largest golden magnitude.
`msprobe_core.compare.tensor_metrics` computes them.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core.compare.custom_metrics import CustomMetrics
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.compare.post_processing import Factors, PostProcessing
from msprobe_core.compare.tensor_metrics import PairSums, Workspace, cosine
from msprobe_core.errors import DamagedDumpError, DumpError
from msprobe_core.findings import Finding
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.store.frame import sizes_in
from msprobe_core.store.stored_rows import Rows, frame_of, narrowed
from msprobe_core.store.tensor_source import HeldTensor
from msprobe_core.store.tensor_values import DTYPES

Array: TypeAlias = NDArray[Any]

UNSUPPORTED = "unsupported"
SHAPE_UNMATCHED = "shape unmatched"
NOT_AVAILABLE = "N/A"
NOT_A_NUMBER = "Nan"

CHUNK = 1 << 18
"""Number of elements of each side that are read at a time; `MAX_WORKERS` gives the memory that this needs."""

MAX_WORKERS = 8
"""Maximum number of threads. Each holds two chunks, as stored and widened, at most 16 MiB, and about 2 MiB of buffers;
a tensor that is not stored in C order takes 48 MiB more. So tensors of any size are compared in 8 times 18 MiB, and in
the worst case in 8 times 114 MiB."""


PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
"""Percentiles of errors, by the suffixes of the attributes of `TensorMetrics`."""

_PERCENTS = list(PERCENTILES.values())
_NAMES_ABS, _NAMES_REL = ([f"{kind}_{name}" for name in PERCENTILES] for kind in ("abs", "rel"))


class TensorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one pair. A metric that does not apply is ``None``, and tables show ``status`` in its place.

    Each attribute is a column of the aligned rows; it replaces a recorded column of the same name.

    Attributes:
        cosine: Cosine similarity, -1 to 1; NaN if exactly one side is all zero.
        euclidean: Euclidean distance.
        largest_abs: Largest absolute difference.
        largest_rel: Largest relative difference of an element; if golden is 0 the dtype's epsilon is added to both.
        within_1e3: Share of elements with a relative difference below 0.001.
        within_5e3: Share of elements with a relative difference below 0.005.
        ulp_max: Largest distance of an element in ulps of the coarser dtype; see `msprobe_core.compare.ulps`.
        ulp_p99: Distance in ulps that 99 % of the elements do not exceed.
        abs_p50: Absolute difference that 50 % of the elements do not exceed.
        abs_p90: The same for 90 %.
        abs_p99: The same for 99 %.
        abs_p999: The same for 99.9 %.
        rel_p50: Relative difference, as for ``largest_rel``, that 50 % of the elements do not exceed.
        rel_p90: The same for 90 %.
        rel_p99: The same for 99 %.
        rel_p999: The same for 99.9 %.
        bias: Mean of target - golden relative to the root mean square of golden.
        scale: The factor of golden that fits target best, less one: ``<t, g> / <g, g> - 1``.
        num_different: Number of elements with different values.
        num_nan_target: Number of NaN in the target.
        num_nan_golden: Number of NaN in golden.
        num_inf_target: Number of Inf in the target.
        num_inf_golden: Number of Inf in golden.
        worst_index: Index of the largest absolute difference or, if NaN and Inf differ between the sides, of the first
            such element.
        worst_target: The target's value there.
        worst_golden: The golden value there.
        error: Number by which the row is judged, dimensionless; ``None`` if the pair could not be compared.
        status: Text in place of metrics that are ``None``.
        problem: Why the tensors could not be compared, as a sentence; ``None`` if they could.
        unread: Why a side could not be read, or is not what its record says, as a sentence; ``None`` if both could.
    """

    cosine: float | None = None
    euclidean: float | None = None
    largest_abs: float | None = None
    largest_rel: float | None = None
    within_1e3: float | None = None
    within_5e3: float | None = None
    ulp_max: float | None = None
    ulp_p99: float | None = None
    abs_p50: float | None = None
    abs_p90: float | None = None
    abs_p99: float | None = None
    abs_p999: float | None = None
    rel_p50: float | None = None
    rel_p90: float | None = None
    rel_p99: float | None = None
    rel_p999: float | None = None
    bias: float | None = None
    scale: float | None = None
    num_different: int | None = None
    num_nan_target: int | None = None
    num_nan_golden: int | None = None
    num_inf_target: int | None = None
    num_inf_golden: int | None = None
    worst_index: str | None = None
    worst_target: str | None = None
    worst_golden: str | None = None
    error: float | None = None
    status: str = UNSUPPORTED
    problem: str | None = None
    unread: str | None = None


def compare_tensors(target: Array, golden: Array) -> TensorMetrics:
    """Return the metrics of two arrays of any shape, of numbers or of text."""
    return compare_sources(HeldTensor(target), HeldTensor(golden))


def compare_sources(
    target: TensorSource,
    golden: TensorSource,
    *,
    dtypes: tuple[str, str] | None = None,
    on_bytes: Callable[[int], None] | None = None,
    workspace: Workspace | None = None,
) -> TensorMetrics:
    """Return the metrics of two tensors, which are read once, in pieces.

    Args:
        target: Numbers or text.
        golden: Numbers or text.
        dtypes: The dtypes before storage, if they were narrower; ulps are those of the coarser.
        on_bytes: Called after each piece with its size in bytes, of both sides; an exception ends the comparison.
        workspace: Workspace of this thread, to share among many pairs.

    Raises:
        DumpError: one of them cannot be read completely.
    """
    shapes = target.shape, golden.shape
    if _squeezed(shapes[0]) != _squeezed(shapes[1]):
        return TensorMetrics(status=SHAPE_UNMATCHED, problem=f"the shapes {shapes[0]} and {shapes[1]} do not match")
    numel = math.prod(shapes[0])
    if numel == 0:
        return TensorMetrics(error=0.0)
    paired = pieces(target, golden, numel, on_bytes)
    if "text" in {target.dtype, golden.dtype}:
        is_same = target.dtype == golden.dtype and all(np.array_equal(*piece) for piece in paired)
        return TensorMetrics(error=0.0) if is_same else TensorMetrics(problem="the texts differ")
    sums = PairSums(numel, dtypes or (target.dtype, golden.dtype), workspace or Workspace())
    for piece in paired:
        sums.add(*piece)
    return _metrics_of(sums, shapes[0])


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def pieces(
    target: TensorSource, golden: TensorSource, numel: int, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[Array, Array]]:
    """Yield both sides in pieces of equal length, whatever their chunks.

    Args:
        target: A tensor of ``numel`` elements.
        golden: A tensor of ``numel`` elements.
        numel: Number of elements.
        on_bytes: Called after each piece with its size in bytes, of both sides.

    Raises:
        DumpError: one of them has a number of elements that does not match its shape.
    """
    sides = [_elements(source, numel) for source in (target, golden)]
    rest: list[Array] = [np.empty(0), np.empty(0)]
    num_done = 0
    while num_done < numel:
        rest = [values if values.size else next(side) for values, side in zip(rest, sides, strict=True)]
        size = min(values.size for values in rest)
        first, second = (values[:size] for values in rest)
        yield first, second
        rest = [values[size:] for values in rest]
        num_done += size
        if on_bytes is not None:
            on_bytes(first.nbytes + second.nbytes)
    for side in sides:
        next(side, None)  # a source may check its content at the end


def _elements(source: TensorSource, numel: int) -> Iterator[Array]:
    found = 0
    for values in source.chunks(CHUNK):
        found += values.size
        if found > numel:
            raise DumpError(f"a tensor of the shape {source.shape} has more than {numel} elements")
        if values.size:
            yield values
    if found < numel:
        raise DumpError(f"a tensor of the shape {source.shape} has {found} elements of {numel}")


def _metrics_of(sums: PairSums, shape: tuple[int, ...]) -> TensorMetrics:
    index, *values = _worst(sums.mismatch or sums.worst, shape)
    counts = TensorMetrics(
        num_nan_target=sums.num_nan[0],
        num_nan_golden=sums.num_nan[1],
        num_inf_target=sums.num_inf[0],
        num_inf_golden=sums.num_inf[1],
        worst_index=index,
        worst_target=values[0],
        worst_golden=values[1],
    )
    replace = msgspec.structs.replace
    if sums.mismatch is not None:
        return replace(counts, status=NOT_AVAILABLE, problem="NaN or Inf are not the same on both sides")
    euclidean, golden_norm = sums.difference_squares.root(), sums.golden_squares.root()
    single = replace(
        counts,
        largest_abs=sums.largest_abs,
        largest_rel=sums.largest_rel,
        ulp_max=sums.largest_ulp if sums.has_distances else None,
        ulp_p99=sums.ulp_percentile(99) if sums.has_distances else None,
        **dict(zip(_NAMES_ABS, sums.absolute_percentiles(_PERCENTS), strict=True)),
        **dict(zip(_NAMES_REL, sums.relative_percentiles(_PERCENTS), strict=True)),
        bias=_ratio(sums.difference_sum, math.sqrt(sums.num_elements) * golden_norm),
        scale=sums.scale,
        num_different=sums.num_different,
        error=max(_ratio(euclidean, golden_norm), _ratio(sums.largest_abs, sums.largest_golden)),
    )
    if sums.num_elements == 1:
        return single
    return replace(
        single,
        cosine=cosine(sums),
        euclidean=euclidean,
        within_1e3=sums.num_within_1e3 / sums.num_elements,
        within_5e3=sums.num_within_5e3 / sums.num_elements,
    )


def _worst(found: tuple[int, Any, Any] | None, shape: tuple[int, ...]) -> tuple[str | None, str | None, str | None]:
    """Return an index and its two values as texts."""
    if found is None:
        return None, None, None
    place, target, golden = found
    index = tuple(int(i) for i in np.unravel_index(place, shape))
    return str(index), str(target), str(golden)


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 and math.isfinite(part) else math.copysign(math.inf, part)


@dataclass(frozen=True, slots=True)
class StoredSide:
    """One side of a pair: a tensor of a dump, with its description in the record.

    Attributes:
        dump: The dump.
        file_name: Value of the dump's column ``file_name``.
        shape: Value of the column ``shape``.
        dtype: Value of the column ``dtype``.
        numel: Value of the column ``numel``.
        factors: Matrices by which it is multiplied before comparison.
    """

    dump: Dump
    file_name: str
    shape: str | None = None
    dtype: str | None = None
    numel: int | None = None
    factors: Factors | None = None

    def open(self) -> tuple[TensorSource, str]:
        """Return the tensor, and its dtype before storage.

        Raises:
            DumpError: it cannot be read, or does not match its record.
        """
        return self.multiplied(*self.open_stored())

    def multiplied(self, source: TensorSource, dtype: str) -> tuple[TensorSource, str]:
        """Return the tensor as it is compared, and its dtype.

        Raises:
            DumpError: a matrix does not fit it.
        """
        if self.factors is None:
            return source, dtype
        product = self.factors.apply(self.file_name, source)
        return product, product.dtype

    def open_stored(self) -> tuple[TensorSource, str]:
        """Return the tensor as it is stored, and its dtype before storage.

        Raises:
            DumpError: it cannot be read, or does not match its record.
        """
        source = self.dump.open_tensor(self.file_name)
        if self.shape is not None and _squeezed(source.shape) != _squeezed(sizes_in(self.shape)):
            raise DamagedDumpError(
                f"{self.file_name}: holds a tensor of the shape {list(source.shape)}, and its record says {self.shape}"
            )
        recorded = _plain_dtype(self.dtype)
        if recorded is None or recorded == source.dtype:
            return source, source.dtype
        if not _can_hold(source.dtype, recorded):
            raise DamagedDumpError(
                f"{self.file_name}: holds a tensor of {source.dtype}, and its record says {self.dtype}"
            )
        return source, recorded

    @property
    def size_bytes(self) -> int:
        """Estimate of the bytes to read, from the record; 1 without one."""
        dtype = _plain_dtype(self.dtype)
        return max(1, (self.numel or 0) * (4 if dtype is None else np.dtype(DTYPES[dtype]).itemsize))


def _plain_dtype(dtype: str | None) -> str | None:
    """Return a recorded dtype as files name it, ``torch.float32`` and ``Float32`` as ``float32``; else ``None``."""
    name = (dtype or "").rpartition(".")[2].lower()
    return name if name in DTYPES else None


def _can_hold(stored: str, recorded: str) -> bool:
    """Whether a tensor may have been stored in this dtype: ``.npy`` files store bfloat16 and float8 as float32."""
    if stored not in DTYPES:
        return True  # text, or a dtype of a plugin's reader
    kinds = [name.rstrip("0123456789").partition("float8")[0] or "float" for name in (stored, recorded)]
    return kinds[0].removeprefix("b") == kinds[1].removeprefix("b") and stored.startswith(("float", "complex"))


Pair: TypeAlias = tuple[StoredSide, StoredSide]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes compared so far and their total: after each pair, and a few times a second within one."""

_PROGRESS_PERIOD_S = 0.2


class _CancelledError(Exception):
    """The comparison was cancelled; its threads end at their next piece."""


def compare_pairs(
    pairs: Sequence[Pair | None], progress: Progress | None = None, custom: CustomMetrics | None = None
) -> Iterator[TensorMetrics]:
    """Yield the metrics of each pair, in order; for ``None`` those of a value without a file.

    Pairs are compared by a pool of at most `MAX_WORKERS` threads. An error in reading one pair is its ``unread``.
    ``custom`` computes its metrics for each comparable pair; its rows are positions in ``pairs``.
    """
    work = _Work(sum(_size_of(pair) for pair in pairs), progress, custom or CustomMetrics([]))
    num_workers = min(MAX_WORKERS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(num_workers, "msprobe-compare")
    waiting: deque[tuple[Pair | None, Future[TensorMetrics] | None]] = deque()
    rest = enumerate(pairs)
    try:
        while True:
            for row, pair in rest:
                waiting.append((pair, None if pair is None else pool.submit(_compare_pair, row, pair, work)))
                if len(waiting) >= 4 * num_workers:
                    break
            if not waiting:
                return
            pair, future = waiting.popleft()
            yield TensorMetrics() if future is None else work.wait_for(future)
            work.finish(_size_of(pair))
    finally:
        work.is_cancelled.set()
        pool.shutdown(cancel_futures=True)


def _size_of(pair: Pair | None) -> int:
    return 0 if pair is None else sum(side.size_bytes for side in pair)


class _Work:
    """Progress of the threads, as reported by the thread that waits for them."""

    def __init__(self, num_bytes: int, progress: Progress | None, custom: CustomMetrics) -> None:
        self.is_cancelled = threading.Event()
        self.custom = custom
        self._num_bytes = num_bytes
        self._progress = progress
        self._num_finished = 0
        self._num_read = 0
        self._num_told = 0
        self._of_thread = threading.local()

    @property
    def workspace(self) -> Workspace:
        """The workspace of the calling thread."""
        if not hasattr(self._of_thread, "workspace"):
            self._of_thread.workspace = Workspace()
        return self._of_thread.workspace

    def add(self, num_bytes: int) -> None:
        """Count a compared piece. Called by threads without a lock, so that an update may be lost."""
        if self.is_cancelled.is_set():
            raise _CancelledError
        self._num_read += num_bytes

    def wait_for(self, future: Future[TensorMetrics]) -> TensorMetrics:
        """Return the result, and report progress until then."""
        while not wait([future], _PROGRESS_PERIOD_S).done:
            self._tell(min(self._num_read, self._num_bytes - 1))
        return future.result()

    def finish(self, num_bytes: int) -> None:
        """Count a complete pair; its size is that of its record, whatever the files contain."""
        self._num_finished += num_bytes
        self._tell(self._num_finished)

    def _tell(self, num_bytes: int) -> None:
        """Report progress, which never decreases: pairs may have other sizes than their records say."""
        self._num_told = max(self._num_told, num_bytes)
        if self._progress is not None:
            self._progress(self._num_told, self._num_bytes)


def _compare_pair(row: int, pair: Pair, work: _Work) -> TensorMetrics:
    try:
        stored = [side.open_stored() for side in pair]
        try:
            compared = [side.multiplied(*each) for side, each in zip(pair, stored, strict=True)]
        except DumpError as error:
            return TensorMetrics(problem=str(error))
        (target, target_dtype), (golden, golden_dtype) = compared
        metrics = compare_sources(
            target,
            golden,
            dtypes=(target_dtype, golden_dtype),
            on_bytes=work.add,
            workspace=work.workspace,
        )
        if work.custom and metrics.largest_abs is not None:
            work.custom.compare(row, target, golden)
    except _CancelledError:
        raise
    except DumpError as error:
        return TensorMetrics(unread=str(error))
    except MemoryError:
        return TensorMetrics(unread=f"{pair[0].file_name} and its partner do not fit into memory")
    except Exception as error:  # noqa: BLE001  # from a plugin's reader
        return TensorMetrics(unread=f"{pair[0].file_name} cannot be read ({type(error).__name__}: {error})")
    else:
        return metrics


def add_tensor_metrics(
    aligned: Rows,
    target: Dump,
    golden: Dump,
    progress: Progress | None = None,
    post_processing: PostProcessing | None = None,
) -> tuple[Rows, list[Finding]]:
    """Return aligned rows with the metrics of every pair that has a tensor on both sides, and notes.

    The columns are those of `TensorMetrics`, and for each metric of a plugin one named `custom.PREFIX` and its name.
    The error of the tensors replaces that of the statistics, which remains where a tensor cannot be read.
    """
    post_processing = post_processing or PostProcessing()
    reads = [f"{name}_{side}" for name in ("name", *_STORED) for side in ("target", "golden")]
    rows = frame_of(narrowed(aligned, (*reads, *TensorMetrics.__struct_fields__)))
    pairs = stored_pairs(rows, target, golden, post_processing)
    custom = CustomMetrics(registry().metrics().values(), (*aligned.columns, *TensorMetrics.__struct_fields__))
    measured = _with_metrics(rows, list(compare_pairs(pairs, progress, custom)))
    names = [str(name) for (name,) in rows.select(pl.coalesce("name_target", "name_golden")).rows()]
    notes = [*custom.notes(names), *_note_products(rows, post_processing)]
    others = aligned.drop([name for name in TensorMetrics.__struct_fields__ if name in aligned.columns])
    metrics = measured.select(TensorMetrics.__struct_fields__)
    return others.hstack(metrics).hstack(custom.columns(rows.height)), notes


_STORED = ("file_name", "shape", "dtype", "numel")
"""What is read of a row to find its tensors."""


def stored_pairs(
    rows: pl.DataFrame, target: Dump, golden: Dump, post_processing: PostProcessing
) -> Sequence[Pair | None]:
    """Return the two stored tensors of each row; ``None`` for rows without a tensor on both sides."""
    sides = [
        _stored_sides(rows, "target", target, post_processing.target),
        _stored_sides(rows, "golden", golden, post_processing.golden),
    ]
    return [(t, g) if t is not None and g is not None else None for t, g in zip(*sides, strict=True)]


def _stored_sides(rows: pl.DataFrame, side: str, dump: Dump, factors: Mapping[str, Factors]) -> list[StoredSide | None]:
    columns = [f"{name}_{side}" for name in _STORED]
    return [
        StoredSide(dump, name, shape, dtype, numel, factors.get(name)) if name else None
        for name, shape, dtype, numel in rows.select(columns).rows()
    ]


def _note_products(rows: pl.DataFrame, post_processing: PostProcessing) -> list[Finding]:
    """Return notes on the number of multiplied tensors, and on listed tensors that the dump lacks."""
    notes: list[Finding] = []
    for side, factors in (("target", post_processing.target), ("golden", post_processing.golden)):
        found = set(rows[f"file_name_{side}"].drop_nulls()) & factors.keys()
        missing = sorted(factors.keys() - found)
        if found:
            notes.append(Finding(MadeAlikeCode.MULTIPLIED, fields={"side": side, "count": len(found)}))
        if missing:
            fields = {"side": side, "count": len(missing), "first": missing[0]}
            notes.append(Finding(MadeAlikeCode.NOT_MULTIPLIED, fields=fields))
    return notes


def _with_metrics(rows: pl.DataFrame, results: Sequence[TensorMetrics]) -> pl.DataFrame:
    columns = [
        pl.Series(field.name, [getattr(result, field.name) for result in results], _COLUMN_TYPES[field.type])
        for field in msgspec.structs.fields(TensorMetrics)
    ]
    counted = [pl.coalesce(column, pl.col(column.name)) for column in columns if column.name in rows.columns]
    return rows.with_columns(counted).hstack([column for column in columns if column.name not in rows.columns])


_COLUMN_TYPES: dict[Any, Any] = {
    float | None: pl.Float64, int | None: pl.Int64, str | None: pl.String, str: pl.String,
}  # fmt: skip
