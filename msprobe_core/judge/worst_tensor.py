"""Where the error is in the worst tensor of a culprit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MAX_RANGES = 4


@dataclass(frozen=True, kw_only=True)
class WorstTokens:
    """The tokens whose error is at least half of the largest, in a tensor [batch, tokens, hidden] or [tokens, hidden].

    Attributes:
        dimension: Which one of the tensor was taken for the tokens.
        positions: Ranges of their positions, ``12-15``; over all sequences.
        sequences: Ranges of the sequences that have one.
        num_worst: How many positions they are.
        num_positions: Positions in a sequence.
        num_sequences: 1 of [tokens, hidden].
        share: What part of the tensor's squared error they have, 0 to 1; 1 where one is NaN or infinite.
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
        """Return it for people."""
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
    """The tensor of a faulty call with the largest error: an output if one is over its limit, an input last.

    Attributes:
        row: Its name.
        absolute: By the names of `PERCENTILES`, the absolute error that so many elements do not exceed; empty where
            NaN or Inf are not the same on both sides.
        relative: The same of relative errors.
        tokens: Where along its tokens the error is; ``None`` of parameters, inputs and shapes without tokens.
    """

    row: str
    absolute: Mapping[str, float]
    relative: Mapping[str, float]
    tokens: WorstTokens | None
