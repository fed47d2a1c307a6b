"""Distribution of the error in the worst tensor of a culprit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MAX_RANGES = 4


@dataclass(frozen=True, kw_only=True)
class WorstTokens:
    """The tokens whose error is at least half of the largest, in a tensor [batch, tokens, hidden] or [tokens, hidden].

    Attributes:
        dimension: The dimension that was taken for the tokens.
        positions: Ranges of their positions, such as ``12-15``; over all sequences.
        sequences: Ranges of the sequences that contain one.
        num_worst: Number of positions.
        num_positions: Number of positions in a sequence.
        num_sequences: Number of sequences; 1 for [tokens, hidden].
        share: Their share of the tensor's squared error, 0 to 1; 1 if one is NaN or infinite.
        largest: The largest error of a token, see `token_errors`.
    """

    dimension: int
    positions: Sequence[str]
    sequences: Sequence[str]
    num_worst: int
    num_positions: int
    num_sequences: int
    share: float
    largest: float

    def sentence(self) -> str:
        """Return the distribution as a sentence."""
        if self.num_worst * 2 > self.num_positions:
            return (
                f"the error is spread along the tokens (dimension {self.dimension}): {self.num_worst} of "
                f"{self.num_positions} have at least half of the largest"
            )
        where = f"{_first_of('token', self.positions)} of {self.num_positions} (dimension {self.dimension})"
        whose = f" in {_first_of('sequence', self.sequences)} of {self.num_sequences}" if self.num_sequences > 1 else ""
        return f"{where}{whose} {'have' if self.num_worst > 1 else 'has'} {self.share:.0%} of the squared error"


def _first_of(what: str, ranges: Sequence[str]) -> str:
    is_one = len(ranges) == 1 and ranges[0].isdigit()
    return (
        f"{what}{'' if is_one else 's'} {', '.join(ranges[:_MAX_RANGES])}{', …' if len(ranges) > _MAX_RANGES else ''}"
    )


@dataclass(frozen=True, kw_only=True)
class WorstTensor:
    """The tensor of a faulty call with the largest error: an output if one is over its limit, inputs come last.

    Attributes:
        row: Name of its row.
        absolute: Quantiles of the absolute error, by the names of `PERCENTILES`; empty if NaN or Inf differ between the
            sides.
        relative: Quantiles of the relative error.
        tokens: Distribution along its tokens; ``None`` for parameters, inputs and shapes without tokens.
    """

    row: str
    absolute: Mapping[str, float]
    relative: Mapping[str, float]
    tokens: WorstTokens | None
