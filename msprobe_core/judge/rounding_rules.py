"""What rounding does to healthy runs beyond limits and floors: one rule each, and a switch to measure what it is worth.

Every rule excuses differences that would be false alarms, and may hide a fault; the last one does the contrary. Whether
a rule is worth keeping shows on models that it was not made for: `without` switches it off.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Rule:
    """What a rule is.

    Attributes:
        excuses: What it lets pass.
        ground: Its derivation or its measurement.
        place: The module that applies it, in `msprobe_core.judge`.
    """

    excuses: str
    ground: str
    place: str


class RoundingRule(Enum):
    """All rules."""

    ACTIVATION_FLIPS = Rule(
        "limits of gradients behind a rectifier whose inputs differ by rounding",
        "derived: elements near zero change sides, sqrt(0.64 e) of the gradient's norm for inputs that differ by e",
        "activation_flips",
    )
    TURNED_ELEMENTS = Rule(
        "scores of what is computed from a gradient of which a rectifier turned at most three elements",
        "counted: statistics differ by what whole elements do",
        "noise.turned",
    )
    VANISHING_SUMS = Rule(
        "gradients of vectors below sqrt(n) unit round-offs of what they are a sum of",
        "Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019: roundings of a sum of n terms grow with sqrt(n)",
        "noise_gradients",
    )
    NOISE_GRADIENTS = Rule(
        "other gradients below the unit round-offs of what they are computed from, and what follows from these alone",
        "derived: scaled by the smallest magnitude in the call",
        "noise_gradients",
    )
    ROUNDS_TO_ZERO = Rule(
        "a golden tensor of zeros where the target has a few unit round-offs of what it is computed from",
        "derived: a result that is zero in exact arithmetic has the size of its roundings",
        "verdict",
    )
    CARRIED_PARAMETERS = Rule(
        "floors of a step that begins with parameters that differ as those after an optimizer's step do",
        "measured: distance of values over that of parameters, on tiny Llama and GPT-2 after one step of AdamW",
        "noise.carried",
    )
    UPDATED_PARAMETERS = Rule(
        "parameters after an update, judged by norm and mean beside the same parameters of other layers",
        "an update of Adam has either sign where a gradient is rounding alone, so extremes of parameters jump",
        "updates",
    )
    OWN_ROUNDING = Rule(
        "nothing: accuses calls of equal inputs by what one call's own rounding does, below the floor of noise",
        "measured: healthy calls are off by up to 12 times the least of one rounding, 30 times is allowed",
        "op_bound",
    )

    @property
    def is_on(self) -> bool:
        """Whether the rule is applied."""
        return self not in _OFF.get()


_OFF: ContextVar[frozenset[RoundingRule]] = ContextVar("rounding rules that are off", default=frozenset())


@contextmanager
def without(*rules: RoundingRule) -> Generator[None, None, None]:
    """Judge without some rules, in this thread: to measure what they are worth, not for users."""
    token = _OFF.set(_OFF.get().union(rules))
    try:
        yield
    finally:
        _OFF.reset(token)
