"""Results that the CPU's kernels allocate and do not write: their content is arbitrary memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msprobe.mindspore._device import is_host
from msprobe_core.plugin import UnwrittenError


class Unwritten:
    """Replaces a result that its kernel has not written, where the recorder would read it."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        """Replace ``tensor``."""
        self.tensor = tensor

    def values(self) -> Any:
        """Raise.

        Raises:
            UnwrittenError: always.
        """
        raise UnwrittenError("this kernel does not write this result")


def shown(primitive: Any) -> Callable[[Any], Any] | None:
    """Return a function that replaces each unwritten result by `Unwritten`; ``None`` if all results are written.

    Args:
        primitive: The called primitive.
    """
    find = _UNWRITTEN.get(type(primitive).__name__)
    numbers = find(primitive) if find is not None and is_host() else ()
    return partial(_replaced, numbers) if numbers else None


def _replaced(numbers: tuple[int, ...], output: Any) -> Any:
    if not isinstance(output, tuple):
        return Unwritten(output)
    return tuple(Unwritten(result) if i in numbers else result for i, result in enumerate(output))


def _batch_norm(primitive: Any) -> tuple[int, ...]:
    # In training results 3 and 4 are the batch's statistics. The running ones are updated in place in both cases.
    return (1, 2) if primitive.is_training else (1, 2, 3, 4)


def _unique(primitive: Any) -> tuple[int, ...]:
    return tuple(i for i, is_asked in ((1, primitive.return_inverse), (2, primitive.return_counts)) if not is_asked)


def _always(*numbers: int) -> Callable[[Any], tuple[int, ...]]:
    return lambda _: numbers


_UNWRITTEN: Mapping[str, Callable[[Any], tuple[int, ...]]] = {
    "BatchNorm": _batch_norm,
    "Eig": lambda primitive: () if primitive.compute_v else (1,),
    "LSTM": _always(3, 4),  # written for backward only, except the padding
    "UniqueConsecutive": _unique,
    # Optimizers write to their parameters, and return tensors of the same shapes.
    "Adam": _always(0, 1, 2),
    "AdamWeightDecay": _always(0, 1, 2),
    "ApplyRMSProp": _always(0),
    "FusedSparseAdam": _always(0, 1, 2),
    "FusedSparseFtrl": _always(0, 1, 2),
    "FusedSparseLazyAdam": _always(0, 1, 2),
    "FusedSparseProximalAdagrad": _always(0, 1),
}
"""Unwritten results by the class of a primitive.

Found by filling free memory with two numbers in turn and looking for them in the results of all primitives that run on
the CPU; a test repeats this.
"""
