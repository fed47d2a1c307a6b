"""Distribution of an error along the tokens of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msprobe_core.compare.tensor_pass import pieces
from msprobe_core.config.ranges import format_ranges
from msprobe_core.judge.error_distribution import WorstTokens
from msprobe_core.protocols.storage import TensorSource

Floats: TypeAlias = NDArray[np.float64]


def has_tokens(shape: Sequence[int]) -> bool:
    """Whether a shape is interpreted as [batch, tokens, hidden] or [tokens, hidden]; other shapes have no tokens."""
    return len(shape) in (2, 3) and math.prod(shape[:-1]) > 1 and shape[-1] > 1


def token_errors(target: TensorSource, golden: TensorSource) -> Floats:
    """Return the error of each token, [batch, tokens] or [tokens].

    It is the root mean square of target - golden over hidden, over the root mean square of all of golden; infinite if
    NaN or Inf differ between the sides.

    Args:
        target: A tensor whose shape `has_tokens`.
        golden: A tensor of the same shape.

    Raises:
        DumpError: one of them cannot be read.
    """
    shape = tuple(target.shape)
    hidden = shape[-1]
    squares = np.zeros(math.prod(shape[:-1]))
    energy, done = 0.0, 0
    for values, trusted in pieces(target, golden, math.prod(shape)):
        wide, wide_golden = _wide(values), _wide(trusted)
        with np.errstate(all="ignore"):
            difference = np.abs(wide - wide_golden) ** 2
        difference[(wide == wide_golden) | (np.isnan(wide) & np.isnan(wide_golden))] = 0.0
        first = done // hidden
        tokens = (np.arange(len(values)) + done % hidden) // hidden
        found = np.bincount(tokens, difference)
        squares[first : first + len(found)] += found
        energy += float(np.sum(np.abs(wide_golden[np.isfinite(wide_golden)]) ** 2))
        done += len(values)
    squares[np.isnan(squares)] = np.inf
    size = math.sqrt(energy / math.prod(shape))
    return np.reshape(np.sqrt(squares / hidden) / (size or 1.0), shape[:-1])


def worst_tokens(errors: Floats) -> WorstTokens | None:
    """Return a summary of the errors of tokens; ``None`` if all are 0.

    Args:
        errors: [batch, tokens] or [tokens], as `token_errors` returns them.
    """
    dimension = errors.ndim - 1
    errors = np.atleast_2d(errors)
    largest = float(errors.max())
    if largest == 0:
        return None
    is_worst = errors >= largest / 2
    positions = np.flatnonzero(is_worst.any(axis=0)).tolist()
    with np.errstate(over="ignore", invalid="ignore"):
        share = float(np.sum(errors[is_worst] ** 2) / np.sum(errors**2)) if math.isfinite(largest) else 1.0
    return WorstTokens(
        dimension=dimension,
        positions=format_ranges(positions),
        sequences=format_ranges(np.flatnonzero(is_worst.any(axis=1)).tolist()),
        num_worst=len(positions),
        num_positions=errors.shape[1],
        num_sequences=errors.shape[0],
        share=share,
        largest=largest,
    )


def _wide(values: Any) -> Any:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
