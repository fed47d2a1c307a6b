"""The power of a check: which plainly wrong results it would have accepted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check.verdict import Mutant
from msprobe_core.model import ReplayTensor
from msprobe_core.replay.judge import OutputJudge

SCALE = 1.01

_SEED = 20260102

_SIGNIFICANT_BITS = {
    "float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e4m3fnuz": 4,
    "float8_e5m2": 3, "float8_e5m2fnuz": 3,
}  # fmt: skip

Array = NDArray[Any]


def power_of(
    judge: OutputJudge, recorded: ReplayTensor, inputs: Iterable[ReplayTensor]
) -> tuple[tuple[Mutant, ...], tuple[Mutant, ...]]:
    """Return the mutants of an output that could be made, and those of them that its judge accepts.

    A mutant that equals the output, such as the shuffled elements of a constant, is none.

    Args:
        judge: Of the output.
        recorded: The output.
        inputs: Tensors that went into the call; the first of the output's shape is that which a kernel could return.
    """
    applied = dict(_mutants(recorded, inputs))
    return tuple(applied), tuple(mutant for mutant, values in applied.items() if judge.accepts(values))


def _mutants(recorded: ReplayTensor, inputs: Iterable[ReplayTensor]) -> Iterator[tuple[Mutant, Array]]:
    values = recorded.values
    finite = np.isfinite(values) if values.dtype.kind in "fc" else np.ones(values.shape, dtype=bool)
    for mutant, made in _made(recorded, finite, inputs):
        # Elements that are not finite are judged separately; a mutant keeps them.
        kept: Array = np.where(finite, made, values)
        if np.array_equal(kept[finite], values[finite]):
            continue
        if np.all(np.isfinite(kept[finite])):
            yield mutant, kept


def _made(
    recorded: ReplayTensor, finite: NDArray[np.bool_], inputs: Iterable[ReplayTensor]
) -> Iterator[tuple[Mutant, Array]]:
    values = recorded.values
    if not values.size or not finite.any():
        return
    yield Mutant.ZEROS, np.zeros_like(values)
    for each in inputs:
        if each.values.shape == values.shape and _has_place(each.values.dtype.kind, values.dtype.kind):
            yield Mutant.INPUT_RETURNED, each.values.astype(values.dtype)
            break
    is_number = values.dtype.kind in "fc"
    if is_number:
        yield Mutant.SCALED, values * values.dtype.type(SCALE)
        bits = _SIGNIFICANT_BITS.get(recorded.dtype)
        if bits is not None and values.dtype.kind == "f":
            yield Mutant.HALF_PRECISION, _rounded(values, bits // 2)
    if values.size > 1:
        generator: Any = np.random.default_rng(_SEED)  # its type hints are incomplete
        yield Mutant.SHUFFLED, generator.permutation(np.ravel(values)).reshape(values.shape)
        yield Mutant.ONE_DROPPED, _without_one(values, finite)


def _has_place(kind: str, result: str) -> bool:
    """Whether values of one kind of dtype can stand for those of another: no complex for real, no float for integer."""
    return kind == result or (kind, result) == ("f", "c") or (kind not in "fc" and result not in "fc")


def _rounded(values: Array, bits: int) -> Array:
    """Round to nearest with so many significant bits."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2.0**bits) / 2.0**bits, exponent).astype(values.dtype)


def _without_one(values: Array, finite: NDArray[np.bool_]) -> Array:
    """Set the element of median magnitude, among the finite ones that are not zero, to zero."""
    flat: Any = np.array(values).ravel()
    places = np.flatnonzero(finite & (values != 0))
    if places.size:
        sizes = np.abs(flat[places])
        flat[places[np.argpartition(sizes, places.size // 2)[places.size // 2]]] = 0
    return flat.reshape(values.shape)


def inputs_of(tensors: Mapping[str, ReplayTensor]) -> list[ReplayTensor]:
    """Return the tensors that a kernel might return instead of its result: incoming gradients first."""
    return [tensors[path] for path in sorted(tensors, key=lambda path: not path.startswith("gradient."))]
