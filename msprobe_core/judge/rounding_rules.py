"""Effects of rounding in healthy runs beyond limits and floors: one rule each, with a switch to measure its value.

Every rule excuses differences that would be false alarms, and may hide a fault; the last one does the opposite. The
value of a rule is measured on models for which it was not designed: `without` switches it off.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Rule:
    """Description of a rule.

    Attributes:
        excuses: The differences that it excuses.
        ground: Its derivation or its measurement.
        place: The module that applies it, in `msprobe_core.judge`.
    """

    excuses: str
    ground: str
    place: str


class RoundingRule(Enum):
    """All rules."""

    ACTIVATION_FLIPS = Rule(
        "limits, and floors of the closed form, of gradients after a rectifier whose inputs differ by rounding",
        "derived: elements near zero change sides, sqrt(0.64 e) of the gradient's norm for inputs that differ by e",
        "activation_flips",
    )
    TURNED_ELEMENTS = Rule(
        "scores of values computed from a gradient of which a rectifier turned at most three elements",
        "counted: statistics differ by the effect of whole elements",
        "noise.turned",
    )
    VANISHING_SUMS = Rule(
        "gradients of vectors, and of what was broadcast, below sqrt(n) unit round-offs of the terms of their sum",
        "Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019: roundings of a sum of n terms grow with sqrt(n)",
        "noise_gradients",
    )
    NOISE_GRADIENTS = Rule(
        "other gradients below the unit round-offs of their sources, and values computed from noise alone",
        "derived: scaled by the smallest magnitude in the call",
        "noise_gradients",
    )
    NOISE_IN_UPDATES = Rule(
        "sums over ranks that cancel, and what is computed by clipping and the optimizer from gradients that are noise",
        "derived: errors of the inputs after the call; Adam divides a gradient by its own size",
        "noise_in_updates",
    )
    SMALL_DIVISORS = Rule(
        "updates whose divisor is as small as rounding in some elements, without repetitions",
        "derived: elements of a normal distribution near zero, or all of a tensor whose smallest is far below that",
        "noise.divisions",
    )
    EXPONENTS = Rule(
        "results of exponentials of large arguments, without repetitions",
        "derived: an absolute error of the argument is a relative error of the result",
        "noise.exponents",
    )
    ROUNDS_TO_ZERO = Rule(
        "a golden tensor of zeros where the target has a few unit round-offs of its sources",
        "derived: a result that is zero in exact arithmetic has the size of its roundings",
        "verdict",
    )
    CARRIED_PARAMETERS = Rule(
        "floors of a step that begins with parameters that differ as after an optimizer's step",
        "measured: distance of values over that of parameters, on tiny Llama and GPT-2 after one step of AdamW",
        "noise.carried",
    )
    UPDATED_PARAMETERS = Rule(
        "parameters after an update, judged by norm and mean relative to the same parameters of other layers",
        "an update of Adam has a random sign where a gradient is rounding noise, so extremes of parameters jump",
        "updates",
    )
    OWN_ROUNDING = Rule(
        "nothing: accuses calls with equal inputs whose error exceeds their own rounding, below the noise floor",
        "measured: healthy calls are off by up to 12 times the minimum of one rounding; 30 times is allowed",
        "op_bound",
    )

    @property
    def is_on(self) -> bool:
        """Whether the rule is applied."""
        return self not in _OFF.get()


_OFF: ContextVar[frozenset[RoundingRule]] = ContextVar("rounding rules that are off", default=frozenset())


@contextmanager
def without(*rules: RoundingRule) -> Generator[None, None, None]:
    """Judge without some rules, in this thread: to measure their value, not for users."""
    token = _OFF.set(_OFF.get().union(rules))
    try:
        yield
    finally:
        _OFF.reset(token)
