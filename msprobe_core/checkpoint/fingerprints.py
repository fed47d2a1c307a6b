"""Fingerprints of checkpoints: some 300 bytes for each tensor, from which two sites compare what they cannot move.

A tensor's fingerprint has sums, extremes, a hash of its bits with their positions, and a sketch of 64 numbers that
estimates distances. Fused projections are fingerprinted by their parts, under names of the common vocabulary: so the
fingerprint of a model does not depend on the format, the sharding or the fusions of its checkpoint. The file is an
Arrow stream with one row for each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from msprobe_core.checkpoint.boxes import CHUNK_BYTES, boxes_of, read_box, values_of
from msprobe_core.checkpoint.canonical import heads_in, layer_of
from msprobe_core.checkpoint.contents import Checkpoint, Kind, LogicalTensor, kinds_of
from msprobe_core.checkpoint.difference_codes import DifferenceCode
from msprobe_core.checkpoint.framework_names import Translation, translations_between
from msprobe_core.checkpoint.matching import EMBED, HEAD, Slot, slots_of, split_all
from msprobe_core.checkpoint.result import CheckpointResult, TensorRow
from msprobe_core.checkpoint.structure import Relation
from msprobe_core.errors import DamagedDumpError, DumpError
from msprobe_core.findings import Finding, Level, noted
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.distance import RESOLUTION, decoded
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.place import Place
from msprobe_core.fingerprint.sketch import SIZE, Sketcher
from msprobe_core.manifest.facts import Scalar
from msprobe_core.model import RunHeader
from msprobe_core.native.reductions import FLOAT_KINDS, kernels
from msprobe_core.store.arrow_columns import FORMAT_VERSION, Cell, FileHeader, to_small_batch
from msprobe_core.store.arrow_reader import BatchReader
from msprobe_core.store.arrow_writer import ArrowStream
from msprobe_core.store.atomic_file import whole_path
from msprobe_core.store.stored_dump import notes_of
from msprobe_core.store.tensor_values import DTYPES

SUFFIX = ".fingerprint.arrow"
TASK = "checkpoint_fingerprint"

_COLUMNS: Mapping[str, Cell] = {
    "key": Cell.OWN_TEXT, "name": Cell.OWN_TEXT, "kind": Cell.TEXT, "shape": Cell.TEXT, "dtype": Cell.TEXT,
    "rule": Cell.TEXT, "squares": Cell.NUMBER, "sum": Cell.NUMBER, "low": Cell.NUMBER, "high": Cell.NUMBER,
    "hash": Cell.OWN_TEXT, "sketch": Cell.SKETCH, "rows": Cell.OWN_TEXT, "problem": Cell.OWN_TEXT,
}  # fmt: skip
_LIVE_COLUMNS: Mapping[str, Cell] = {"casts": Cell.OWN_TEXT, "turned": Cell.OWN_TEXT, "part": Cell.OWN_TEXT}
"""Of the weights of a running job only."""

LIVE_RESOLUTION = 2.0**-12
"""Relative rounding of the sketches of a running job, which are stored in half the space."""

_BATCH_ROWS = 1 << 14


class TensorPrint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fingerprint of one tensor.

    Attributes:
        key: Name in the common vocabulary.
        name: Stored name.
        kind: What the tensor is.
        shape: Its shape.
        dtype: Its dtype.
        rule: By which rules its pieces were put together.
        squares: Sum of squares.
        total: Sum of elements.
        low: Minimum.
        high: Maximum.
        hash: Hash of bits and positions; see `msprobe_core.fingerprint.hashing.hash_of`.
        sketch: 64 little-endian float32; see `msprobe_core.fingerprint.sketch`.
        rows: Hashes of rows, 8 hexadecimal digits each; empty if not asked for.
        problem: Why it could not be read; ``None`` if it could.
        casts: Hashes that the tensor has when it is rounded to nearest in other dtypes; of a running job only.
        turned: Hashes of the transposed matrix, by dtype; of a running job only.
        part: Begin and size along each dimension, if this is a part of the tensor; hash, sketch and sums are then those
            of the part alone, and add up to those of the tensor.
        resolution: Relative rounding of the sketch's numbers.
    """

    key: str
    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    rule: str = ""
    squares: float = 0.0
    total: float = 0.0
    low: float = 0.0
    high: float = 0.0
    hash: int = 0
    sketch: bytes = bytes(4 * SIZE)
    rows: str = ""
    problem: str | None = None
    casts: Mapping[str, int] = {}
    turned: Mapping[str, int] = {}
    part: tuple[tuple[int, int], ...] = ()
    resolution: float = RESOLUTION

    def hash_in(self, dtype: str) -> int | None:
        """Return the hash that the tensor has in a dtype; ``None`` if it is not known."""
        return self.hash if dtype == self.dtype else self.casts.get(dtype)


@dataclass(frozen=True, kw_only=True)
class CheckpointPrint:
    """The fingerprint of a checkpoint.

    Attributes:
        path: The checkpoint, or the file that it was read from.
        prints: Fingerprints by key.
        step: The checkpoint's step.
        notes: What was lost at the end of a damaged file.
    """

    path: Path
    prints: Mapping[str, TensorPrint]
    step: int | None = None
    notes: Sequence[Finding] = ()


def fingerprint_checkpoint(
    checkpoint: Checkpoint,
    *,
    has_rows: bool = False,
    has_optimizer: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> CheckpointPrint:
    """Read all tensors of a checkpoint once.

    Args:
        checkpoint: The checkpoint.
        has_rows: Whether to hash each row too.
        has_optimizer: Whether to include moments and master weights.
        progress: Called with the number of tensors that were read and that of all.
    """
    slots = slots_of(checkpoint, kinds_of(has_optimizer=has_optimizer))
    split_all(slots, heads_in(checkpoint.settings), is_gated=_is_gated(checkpoint.settings, slots))
    sketcher = Sketcher(NumpyArrays())
    prints: dict[str, TensorPrint] = {}
    for number, (key, slot) in enumerate(slots.items()):
        prints[key] = _printed(key, slot, sketcher, has_rows=has_rows)
        if progress is not None:
            progress(number + 1, len(slots))
    return CheckpointPrint(path=checkpoint.path, prints=prints, step=checkpoint.step, notes=checkpoint.notes)


def _is_gated(settings: Mapping[str, Scalar], slots: Mapping[str, Slot]) -> bool:
    own = {path.rpartition(".")[2]: value for path, value in settings.items()}
    if own.get("swiglu") is True or own.get("gated_linear_unit") is True:
        return True
    return any(".gate_up_proj" in slot.name for slot in slots.values())


def _printed(key: str, slot: Slot, sketcher: Sketcher, *, has_rows: bool) -> TensorPrint:
    tensor = slot.tensor
    found = TensorPrint(
        key=key, name=slot.name, kind=tensor.kind, shape=tensor.shape, dtype=tensor.dtype, rule=tensor.rule
    )
    if tensor.damage is not None:
        return msgspec.structs.replace(found, problem=tensor.damage.text)
    try:
        return _read(found, tensor, sketcher, has_rows=has_rows)
    except DumpError as error:
        return msgspec.structs.replace(found, problem=str(error))


def _read(found: TensorPrint, tensor: LogicalTensor, sketcher: Sketcher, *, has_rows: bool) -> TensorPrint:
    is_float = tensor.dtype in FLOAT_KINDS or tensor.dtype.startswith("float8_")
    squares = total = 0.0
    low, high = math.inf, -math.inf
    sketch, digest = np.zeros(SIZE), 0
    rows: list[str] = []
    size = CHUNK_BYTES // 4
    for box, flat in boxes_of(tensor.shape, size):
        codes = read_box(tensor, box)
        flat_codes: Any = np.ascontiguousarray(np.ravel(codes))
        place = Place.of_whole(flat_codes.shape, flat)
        digest += int(hash_of(flat_codes, place=place)[0]) if flat else _whole_hash(flat_codes)
        if codes.dtype.kind not in "biuf" and not is_float:
            continue
        values: Any = np.ravel(values_of(codes, tensor.dtype))
        wide: Any = values.astype(np.float64)
        squares += float(wide @ wide)
        total += float(wide.sum())
        low, high = min(low, float(wide.min())), max(high, float(wide.max()))
        if is_float:
            sketch += np.asarray(sketcher.sketch(values, place), np.float64)
        if has_rows and len(box.sizes) > 1 and len(tensor.shape) == 2:
            rows += [f"{_whole_hash(np.ascontiguousarray(row)) & 0xFFFFFFFF:08x}" for row in codes]
    if low > high:
        low = high = 0.0
    with np.errstate(over="ignore"):
        content: Any = sketch.astype("<f4")
    return msgspec.structs.replace(
        found, squares=squares, total=total, low=low, high=high, hash=digest % (1 << 64), sketch=content.tobytes(),
        rows="".join(rows),
    )  # fmt: skip


def _whole_hash(codes: Any) -> int:
    native = kernels()
    width = codes.dtype.itemsize
    if native is None or width not in (1, 2, 4, 8):
        return int(hash_of(codes)[0])
    return native.hash(codes.ctypes.data, codes.size, width)


# --- the file -----------------------------------------------------------------------------------------------------


def is_fingerprint(path: Path) -> bool:
    """Whether a path is named as a fingerprint."""
    return path.name.endswith(SUFFIX) or path.suffix == ".arrow"


def write_fingerprint(found: CheckpointPrint, path: Path, *, is_live: bool = False) -> None:
    """Write a fingerprint.

    Args:
        found: The fingerprint.
        path: The file; its directory must exist.
        is_live: Whether these are the weights of a running job, with hashes in other dtypes, and in parts.

    Raises:
        StoreError: it cannot be written.
        PluginError: pyarrow is not installed.
    """
    run = RunHeader(task=TASK, level="", framework="", has_extra_info=False)
    others: dict[str, Any] = {"step": found.step, "path": found.path.name}
    prints = list(found.prints.values())
    columns = {**_COLUMNS, **_LIVE_COLUMNS} if is_live else _COLUMNS
    with (
        whole_path(path) as part,
        closing(ArrowStream(part, columns, FileHeader(FORMAT_VERSION, run, others))) as stream,
    ):
        for begin in range(0, len(prints), _BATCH_ROWS):
            own = prints[begin : begin + _BATCH_ROWS]
            cells: list[list[Any]] = [
                [each.key for each in own],
                [each.name for each in own],
                [each.kind.value for each in own],
                [_shape_text(each.shape) for each in own],
                [each.dtype for each in own],
                [each.rule for each in own],
                [each.squares for each in own],
                [each.total for each in own],
                [each.low for each in own],
                [each.high for each in own],
                [f"{each.hash:016x}" for each in own],
                [each.sketch for each in own],
                [each.rows for each in own],
                [each.problem for each in own],
            ]
            if is_live:
                cells += [
                    [_hashes_text(each.casts) for each in own],
                    [_hashes_text(each.turned) for each in own],
                    [" ".join(f"{begin}+{size}" for begin, size in each.part) for each in own],
                ]
            stream.append(to_small_batch(columns, cells))


def read_fingerprint(path: Path) -> CheckpointPrint:
    """Read a fingerprint.

    Raises:
        DumpError: it cannot be read, or is another file.
        PluginError: pyarrow is not installed.
    """
    reader = BatchReader(path, {**_COLUMNS, **_LIVE_COLUMNS}, _COLUMNS)
    if reader.header.run.task != TASK:
        raise DumpError(f"{path}: is no fingerprint of a checkpoint; make one with `msprobe checkpoint fingerprint`")
    prints: dict[str, TensorPrint] = {}
    for batch in reader:
        columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
        try:
            for cells in zip(*columns, strict=True):
                own = _print_of(cells)
                prints[f"{own.key}@{own.part}" if own.part else own.key] = own
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedDumpError(
                f"{path}: has a row that is no fingerprint ({error}); the file is damaged"
            ) from error
    step = reader.header.others.get("step")
    notes = notes_of(path, reader.damage)
    return CheckpointPrint(path=path, prints=prints, step=step if isinstance(step, int) else None, notes=notes)


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _print_of(cells: Sequence[Any]) -> TensorPrint:
    """Return a row's fingerprint; the cells are in the order of the columns."""
    key, name, kind, shape, dtype, rule, squares, total, low, high, digest, sketch, rows, problem, *live = cells
    casts, turned, part = live or ("", "", "")
    if len(sketch) != 4 * SIZE or None in (key, name, dtype, squares, total, low, high):
        raise ValueError("a cell is missing")
    return TensorPrint(
        key=key, name=name, kind=Kind(kind), shape=_sizes_of(shape), dtype=dtype, rule=rule or "", squares=squares,
        total=total, low=low, high=high, hash=int(digest, 16), sketch=sketch, rows=rows or "", problem=problem,
        casts=_hashes_in(casts), turned=_hashes_in(turned), part=_part_in(part),
        resolution=LIVE_RESOLUTION if live else RESOLUTION,
    )  # fmt: skip


def _hashes_text(hashes: Mapping[str, int]) -> str:
    return " ".join(f"{dtype}:{digest:016x}" for dtype, digest in hashes.items())


def _hashes_in(text: str | None) -> Mapping[str, int]:
    pairs = (pair.partition(":") for pair in (text or "").split())
    return {dtype: int(digest, 16) for dtype, _, digest in pairs}


def _part_in(text: str | None) -> tuple[tuple[int, int], ...]:
    pairs = (pair.partition("+") for pair in (text or "").split())
    return tuple((int(begin), int(size)) for begin, _, size in pairs)


@lru_cache(maxsize=4096)
def _sizes_of(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split("x")) if text else ()


# --- comparing ----------------------------------------------------------------------------------------------------


def compare_prints(
    target: CheckpointPrint, golden: CheckpointPrint, earlier: Sequence[CheckpointPrint] = ()
) -> CheckpointResult:
    """Compare two fingerprints; classes that need elements become *reordered*, *scaled* or *different*.

    Args:
        target: The side under test.
        golden: The trusted side.
        earlier: Fingerprints that golden had before, the latest last: what the target still has of them is *stale*.
    """
    target, golden, earlier = _in_one_vocabulary(target, golden, earlier)
    keys = list(dict.fromkeys([*target.prints, *golden.prints]))
    pairs = _with_tied_head([(target.prints.get(key), golden.prints.get(key)) for key in keys], target, golden)
    known = [(own, other) for own, other in pairs if own is not None and other is not None and not _is_same(own, other)]
    relative = iter(_distances(known))
    rows: list[TensorRow] = []
    for own, other in pairs:
        if own is None or other is None:
            rows.append(_lone(own, other))
        else:
            row = _row(own, other, 0.0 if _is_same(own, other) else next(relative))
            rows.append(row if own.key == other.key else _tied(row, own, other))
    rows = _with_stale(rows, target, earlier)
    rows = _with_orders(_with_elsewhere(rows, target, golden), target, golden)
    rows.sort(key=lambda row: (row.is_same, layer_of(row.key) or 0))
    notes = [*target.notes, *golden.notes]
    return CheckpointResult(target=target.path, golden=golden.path, rows=rows, notes=notes)


def _in_one_vocabulary(
    target: CheckpointPrint, golden: CheckpointPrint, earlier: Sequence[CheckpointPrint]
) -> tuple[CheckpointPrint, CheckpointPrint, list[CheckpointPrint]]:
    """Return the fingerprints by keys in which the words of their frameworks are translated."""
    first, second = translations_between(*(_named(each.prints) for each in (target, golden)))
    return (
        _renamed(target, first, second.excused),
        _renamed(golden, second, first.excused),
        [_renamed(each, second) for each in earlier],
    )


def _named(prints: Mapping[str, TensorPrint]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {key: (each.name, each.shape) for key, each in prints.items()}


def _renamed(side: CheckpointPrint, own: Translation, excused: Iterable[str] = ()) -> CheckpointPrint:
    buffers = {key: msgspec.structs.replace(side.prints[key], kind=Kind.BUFFER) for key in excused}
    renamed = own.renamed({**side.prints, **buffers}).items()
    moved = {key: each if each.key == key else msgspec.structs.replace(each, key=key) for key, each in renamed}
    return replace(side, prints=moved)


def _is_same(own: TensorPrint, other: TensorPrint) -> bool:
    return own.hash == other.hash and own.dtype == other.dtype and own.shape == other.shape


def _distances(pairs: Sequence[tuple[TensorPrint, TensorPrint]]) -> Sequence[float]:
    """Return the estimated relative distances; the golden norm is known."""
    if not pairs:
        return []
    own = decoded([pair[0].sketch for pair in pairs]).astype(np.float64)
    other = decoded([pair[1].sketch for pair in pairs]).astype(np.float64)
    norms = np.sqrt(np.array([pair[1].squares for pair in pairs]))
    with np.errstate(divide="ignore", invalid="ignore"):
        distances: Any = np.sqrt(((own - other) ** 2).sum(axis=1)) / norms
    return distances.tolist()


_EQUAL = Finding(DifferenceCode.EQUAL_HASH)


def _row(own: TensorPrint, other: TensorPrint, distance: float) -> TensorRow:
    row = TensorRow(
        key=own.key, name=own.name, golden_name=other.name, relation=Relation.EQUAL,
        proof=_EQUAL, shape=own.shape, golden_shape=other.shape, dtype=own.dtype,
        golden_dtype=other.dtype,
        rule=f"{own.rule} | {other.rule}" if own.rule and other.rule else own.rule or other.rule,
    )  # fmt: skip
    problem = own.problem or other.problem
    if problem is not None:
        proof = Finding.of(DifferenceCode.UNREADABLE, Level.ERROR, why=noted(problem))
        return replace(row, relation=Relation.DAMAGED, proof=proof)
    is_same = own.shape == other.shape and other.hash_in(own.dtype) == own.hash
    if not is_same and (code := _turned(own, other)) is not None:
        return replace(row, relation=Relation.TRANSPOSED, proof=Finding(code, Level.ERROR))
    if own.shape != other.shape:
        if _is_padded(own, other):
            fields: dict[str, str | int | float] = {
                "count": min(own.shape[0], other.shape[0]),
                "target": str(list(own.shape)),
                "golden": str(list(other.shape)),
            }
            return replace(row, relation=Relation.PADDED, proof=Finding(DifferenceCode.PADDED, fields=fields))
        fields = {"target": str(list(own.shape)), "golden": str(list(other.shape))}
        return replace(row, relation=Relation.SHAPE, proof=Finding(DifferenceCode.SHAPES, Level.ERROR, fields))
    if own.dtype == other.dtype and own.hash == other.hash:
        return row
    rounded = other.hash_in(own.dtype)
    if own.dtype != other.dtype and rounded is not None and rounded == own.hash:
        fields = {"target": own.dtype, "golden": other.dtype}
        return replace(row, relation=Relation.CAST, proof=Finding(DifferenceCode.CAST_HASH, fields=fields))
    distance = 0.0 if distance <= max(own.resolution, other.resolution) else distance
    row = replace(row, relative_l2=distance, is_estimate=True)
    if rounded is None and own.dtype != other.dtype and distance <= _rounding_of(own.dtype, other.dtype):
        fields = {"target": own.dtype, "golden": other.dtype, "relative": distance}
        return replace(row, relation=Relation.CAST, proof=Finding(DifferenceCode.CAST_ESTIMATED, fields=fields))
    relation, proof = _by_rows(own, other, distance) or _difference(own, other, distance)
    return replace(row, relation=relation, proof=proof)


def _turned(own: TensorPrint, other: TensorPrint) -> DifferenceCode | None:
    """Return how it is known that a matrix is the other one transposed; ``None`` if it is not.

    Only square matrices need a hash for that: others show it by their shape, and have the same elements by statistics.
    """
    if len(own.shape) != 2 or own.shape != other.shape[::-1]:
        return None
    digest = other.turned.get(own.dtype)
    if digest is not None or own.shape == other.shape:
        return DifferenceCode.TRANSPOSED_HASH if own.hash == digest else None
    rounding = 0.0 if own.dtype == other.dtype else max(_EPSILONS.get(each.dtype, 0.0) for each in (own, other))
    has_extremes = all(math.isclose(*pair, rel_tol=rounding) for pair in ((own.low, other.low), (own.high, other.high)))
    is_as_long = math.isclose(own.squares, other.squares, rel_tol=max(2 * rounding, _ERROR_OF_SQUARES))
    return DifferenceCode.TRANSPOSED_STATISTICS if has_extremes and is_as_long else None


def _by_rows(own: TensorPrint, other: TensorPrint, distance: float) -> tuple[Relation, Finding] | None:
    """Return what the hashes of rows say, if both sides have them: the same rows in another order, or some others."""
    if not own.rows or len(own.rows) != len(other.rows) or own.dtype != other.dtype:
        return None
    first, second = (
        [each.rows[i : i + _ROW_DIGITS] for i in range(0, len(each.rows), _ROW_DIGITS)] for each in (own, other)
    )
    index = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if index and sorted(first) == sorted(second):
        return Relation.ROWS, Finding(DifferenceCode.REORDERED, Level.ERROR)
    if not 0 < len(index) < len(first):
        return None
    level = Level.WARNING if distance < _CLOSE else Level.ERROR
    why = Finding.of(DifferenceCode.ESTIMATED, level, relative=distance)
    fields = {"first": index[0], "last": index[-1], "count": len(index), "why": why}
    relation = Relation.CLOSE if distance < _CLOSE else Relation.PARTLY
    return relation, Finding(DifferenceCode.PART_DIFFERS, level, fields)


_ROW_DIGITS = 8


def _is_padded(own: TensorPrint, other: TensorPrint) -> bool:
    """Whether one is the other with rows of zeros at its end: their hash is known, and hashes add up."""
    if not own.shape or own.shape[1:] != other.shape[1:]:
        return False
    shorter, longer = sorted((own, other), key=lambda each: each.shape[0])
    digest = shorter.hash_in(longer.dtype)
    if digest is None:
        return False
    begin, end = math.prod(shorter.shape), math.prod(longer.shape)
    if end - begin > _MOST_PADDING:
        return False
    stored: Any = np.dtype(DTYPES[longer.dtype]) if longer.dtype in DTYPES else None
    if stored is None or stored.itemsize > 8:
        return False
    for first in range(begin, end, CHUNK_BYTES):
        zeros = np.zeros(min(CHUNK_BYTES, end - first), stored)
        digest += int(hash_of(zeros, place=Place.of_whole(zeros.shape, first))[0])
    return digest % (1 << 64) == longer.hash


_MOST_PADDING = 1 << 26

_ERROR_OF_SQUARES = 1e-5
"""Relative error of sums of squares that are partly accumulated in float32; see `msprobe_core.native.reductions`."""

_EPSILONS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
"""Largest relative error of rounding to nearest."""


def _rounding_of(first: str, second: str) -> float:
    """Return the largest relative distance that a cast causes, with what the sketch adds to it."""
    return 1.3 * max(_EPSILONS.get(dtype, 2.0**-4) for dtype in (first, second)) + RESOLUTION


def _difference(own: TensorPrint, other: TensorPrint, distance: float) -> tuple[Relation, Finding]:
    if not (math.isfinite(own.squares) and math.isfinite(other.squares)):
        return Relation.DIFFERENT, Finding(DifferenceCode.NON_FINITE, Level.ERROR)
    if own.squares == 0 or other.squares == 0:
        side = "target" if own.squares == 0 else "golden"
        return Relation.UNINITIALISED, Finding.of(DifferenceCode.ZEROS, Level.ERROR, side=side)
    if own.low == own.high and math.prod(own.shape) > 1:
        fields: dict[str, str | float] = {"side": "target", "value": own.low}
        return Relation.UNINITIALISED, Finding(DifferenceCode.CONSTANT, Level.ERROR, fields)
    if own.dtype == other.dtype and _are_reordered([own], [other]):
        return Relation.REORDERED, Finding(DifferenceCode.REORDERED, Level.ERROR)
    factor = _factor(own, other)
    if factor is not None:
        return Relation.SCALED, Finding.of(DifferenceCode.SCALED, Level.ERROR, factor=factor)
    level = Level.WARNING if distance < _CLOSE else Level.ERROR
    relation = Relation.CLOSE if distance < _CLOSE else Relation.DIFFERENT
    return relation, Finding.of(DifferenceCode.ESTIMATED, level, relative=distance)


_CLOSE = 0.3


def _are_reordered(own: Sequence[TensorPrint], other: Sequence[TensorPrint]) -> bool:
    """Whether tensors have together the same sum, sum of squares and extremes."""
    squares = [sum(each.squares for each in side) for side in (own, other)]
    totals = [sum(each.total for each in side) for side in (own, other)]
    scale = math.sqrt(squares[1] * sum(math.prod(each.shape) for each in other))
    return (
        math.isclose(*squares, rel_tol=1e-9)
        and math.isclose(*totals, rel_tol=0, abs_tol=1e-9 * scale)
        and min(each.low for each in own) == min(each.low for each in other)
        and max(each.high for each in own) == max(each.high for each in other)
    )


def _factor(own: TensorPrint, other: TensorPrint) -> float | None:
    """Return the factor of which the sketch is, if it is one and not 1."""
    first, second = (decoded([each.sketch])[0].astype(np.float64) for each in (own, other))
    square = float(second @ second)
    if not square or not math.isfinite(square):
        return None
    factor = float(first @ second) / square
    rest = float(np.sqrt(((first - factor * second) ** 2).sum() / square))
    limit = 2 * max(_EPSILONS.get(own.dtype, 0.0), _EPSILONS.get(other.dtype, 0.0))
    limit += 4 * max(own.resolution, other.resolution)
    return factor if rest <= limit * abs(factor) and abs(factor - 1) > 4 * limit else None


def _with_tied_head(
    pairs: Iterable[tuple[TensorPrint | None, TensorPrint | None]], target: CheckpointPrint, golden: CheckpointPrint
) -> list[tuple[TensorPrint | None, TensorPrint | None]]:
    """Pair a head that one side has alone with the other side's embedding, to which that side ties it."""
    found: list[tuple[TensorPrint | None, TensorPrint | None]] = []
    for own, other in pairs:
        key = (own or other).key  # pyright: ignore[reportOptionalMemberAccess]  # one of them is there
        if key == HEAD and (own is None or other is None):
            found.append((own or target.prints.get(EMBED), other or golden.prints.get(EMBED)))
        else:
            found.append((own, other))
    return found


def _tied(row: TensorRow, own: TensorPrint, other: TensorPrint) -> TensorRow:
    """Return the row of a head and the embedding that one side ties it to."""
    if row.relation in (Relation.EQUAL, Relation.CAST, Relation.PADDED):
        proof = Finding(DifferenceCode.TIED) if row.relation is Relation.EQUAL else row.proof
        return replace(row, key=HEAD, proof=proof)
    names: dict[str, str] = {"target": own.name, "golden": other.name}
    proof = Finding(DifferenceCode.TIED_BROKEN, Level.ERROR, names)
    return replace(row, key=HEAD, relation=Relation.TIED_BROKEN, proof=proof)


def _with_stale(
    rows: Iterable[TensorRow], target: CheckpointPrint, earlier: Sequence[CheckpointPrint]
) -> list[TensorRow]:
    """Recognise tensors that have the hash of an earlier state, the latest first."""
    found: list[TensorRow] = []
    for row in rows:
        own = target.prints.get(row.key)
        if own is not None and not row.is_same:
            for checkpoint in reversed(earlier):
                before = checkpoint.prints.get(row.key)
                if before is not None and before.shape == own.shape and before.hash_in(own.dtype) == own.hash:
                    proof = Finding.of(DifferenceCode.STALE_HASH, Level.ERROR, step=checkpoint.step or 0)
                    row = replace(row, relation=Relation.STALE, proof=proof)  # noqa: PLW2901
                    break
        found.append(row)
    return found


def _with_orders(rows: Iterable[TensorRow], target: CheckpointPrint, golden: CheckpointPrint) -> list[TensorRow]:
    """Recognise queries, keys and values, or gate and up, that have together the same values."""
    from msprobe_core.checkpoint.canonical import without_part

    found = list(rows)
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(found):
        if row.is_estimate and without_part(row.key) != row.key and row.relation is not Relation.CAST:
            groups.setdefault(without_part(row.key), []).append(number)
    for key, numbers in groups.items():
        if len(numbers) < 2:
            continue
        keys = [found[number].key for number in numbers]
        if not _are_reordered([target.prints[each] for each in keys], [golden.prints[each] for each in keys]):
            continue
        relation = Relation.GATE_UP if ".gate_up." in key else Relation.QKV_ORDER
        for number in numbers:
            found[number] = replace(
                found[number], relation=relation, proof=Finding(DifferenceCode.REORDERED, Level.ERROR)
            )
    return found


def _with_elsewhere(rows: Iterable[TensorRow], target: CheckpointPrint, golden: CheckpointPrint) -> list[TensorRow]:
    """Recognise tensors whose hash is that of another golden tensor."""
    from msprobe_core.checkpoint.structure import CODE_OF, relation_of_keys

    known = [each for each in golden.prints.values() if each.squares]
    places = {(digest, each.shape, dtype): each for each in known for dtype, digest in each.casts.items()}
    places |= {(each.hash, each.shape, each.dtype): each for each in known}
    found: list[TensorRow] = []
    for row in rows:
        own = target.prints.get(row.key)
        other = None if own is None else places.get((own.hash, own.shape, own.dtype))
        if row.is_estimate and other is not None and row.relation is not Relation.CAST:
            relation = relation_of_keys(row.key, other.key)
            proof = Finding.of(CODE_OF[relation], Level.ERROR, name=other.name)
            found.append(replace(row, relation=relation, proof=proof))
        else:
            found.append(row)
    return found


def _lone(own: TensorPrint | None, other: TensorPrint | None) -> TensorRow:
    found = own or other
    assert found is not None
    is_buffer = found.kind is Kind.BUFFER
    side = "target" if own is not None else "golden"
    relation = Relation.ONLY_TARGET if own is not None else Relation.ONLY_GOLDEN
    code = DifferenceCode.ONLY_TARGET if own is not None else DifferenceCode.ONLY_GOLDEN
    proof = Finding.of(DifferenceCode.ONLY_BUFFER, side=side) if is_buffer else Finding(code, Level.ERROR)
    return TensorRow(
        key=found.key, name=own.name if own else None, golden_name=other.name if other else None,
        relation=Relation.BUFFER if is_buffer else relation, proof=proof,
        shape=own.shape if own else None, golden_shape=other.shape if other else None,
        dtype=own.dtype if own else None, golden_dtype=other.dtype if other else None,
    )  # fmt: skip
