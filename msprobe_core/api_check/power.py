"""The power of a check: which plainly wrong results it would have accepted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check.verdict import Mutant
from msprobe_core.model import ReplayTensor
from msprobe_core.replay.judge import OutputJudge
from msprobe_core.replay.norms import slices_of
from msprobe_core.store.dtype_values import FORMS

SCALE = 1.01

_SEED = 20260102

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
    found = {mutant: judge.accepts(values) for mutant, values in _mutants(recorded, inputs)}  # one at a time
    return tuple(found), tuple(mutant for mutant, is_accepted in found.items() if is_accepted)


def _mutants(recorded: ReplayTensor, inputs: Iterable[ReplayTensor]) -> Iterator[tuple[Mutant, Array]]:
    values = recorded.values
    finite = np.isfinite(values) if values.dtype.kind in "fc" else np.ones(values.shape, dtype=bool)
    are_all_finite, has_nan = bool(finite.all()), values.dtype.kind in "fc"
    for mutant, made in _made(recorded, finite, inputs):
        # Elements that are not finite are judged separately; a mutant keeps them.
        kept: Array = made if are_all_finite else np.where(finite, made, values)
        if np.all(np.isfinite(kept) | ~finite) and not np.array_equal(kept, values, equal_nan=has_nan):
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
        with np.errstate(over="ignore"):  # a mutant with an Inf in place of a number is not applied
            scaled = values * values.dtype.type(SCALE)
        yield Mutant.SCALED, scaled
        if recorded.dtype in FORMS and values.dtype.kind == "f":
            yield Mutant.HALF_PRECISION, _rounded(values, FORMS[recorded.dtype].precision // 2)
    if values.size > 1:
        generator: Any = np.random.default_rng(_SEED)  # its type hints are incomplete
        yield Mutant.SHUFFLED, generator.permutation(np.ravel(values)).reshape(values.shape)
        yield Mutant.ONE_DROPPED, _without_one(values, finite)


def _has_place(kind: str, result: str) -> bool:
    """Whether values of one kind of dtype can stand for those of another: no complex for real, no float for integer."""
    return kind == result or (kind, result) == ("f", "c") or (kind not in "fc" and result not in "fc")


def _rounded(values: Array, bits: int) -> Array:
    """Round to nearest with so many significant bits."""
    found: Array = np.empty(values.size, dtype=values.dtype)
    flat = np.ravel(values)
    for part in slices_of(flat.size):
        fraction, exponent = np.frexp(flat[part])
        with np.errstate(over="ignore"):
            found[part] = np.ldexp(np.round(fraction * 2.0**bits) / 2.0**bits, exponent)
    return np.reshape(found, values.shape)


def _without_one(values: Array, finite: NDArray[np.bool_]) -> Array:
    """Set the element of median magnitude, among the finite ones that are not zero, to zero."""
    flat: Any = np.array(values).ravel()
    counts = np.ravel(finite & (values != 0))
    if counts.any():
        sizes = np.abs(flat[counts])
        sizes.partition(sizes.size // 2)
        flat[np.argmax(counts & (np.abs(flat) == sizes[sizes.size // 2]))] = 0
    return flat.reshape(values.shape)


def inputs_of(tensors: Mapping[str, ReplayTensor]) -> list[ReplayTensor]:
    """Return the tensors that a kernel might return instead of its result: incoming gradients first."""
    return [tensors[path] for path in sorted(tensors, key=lambda path: not path.startswith("gradient."))]
