"""What a script of a random call is made of: it tests recorded draws, and new ones, against their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msprobe_core.api_check import draw_tests as tests
from msprobe_core.api_check import random_script_parts as parts
from msprobe_core.api_check.random_calls import LEAST_ELEMENTS, TINY, Drawn, Dropped, drawn_of, dropped_of
from msprobe_core.errors import ReplayError
from msprobe_core.interception import literal, source_of
from msprobe_core.interception.scripting import GRADIENT
from msprobe_core.model import Argument, Phase, ReplayTensor, ReplayValue
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replays import UNIT_ROUNDOFF

EXPLAINED = """\
# How results are to be. Tests call a healthy result wrong once in a million times; new ones are drawn with the seed 0.
# Tolerance, tiny and roundoff are what rounding explains. Sources of the tests: Hoeffding, JASA 58, 1963, Theorem 1;
# Massart, Ann. Prob. 18(3), 1990; Smirnov, Ann. Math. Stat. 19(2), 1948."""


@dataclass(frozen=True, kw_only=True)
class RandomScript:
    """Parts of a script.

    Attributes:
        path: Name of the result that is tested.
        rule: How it is to be, as an expression.
        given: Expression of what it is computed from, by name of the result.
        tests: Sources of the tests, and of the function ``judge``, which judges a result by them.
    """

    path: str
    rule: str
    given: str
    tests: str


def random_script(call: RecordedCall) -> RandomScript | None:
    """Return what a script of a random call needs; ``None`` if it is not known how its results are distributed.

    Raises:
        ReplayError: its results are too few to be tested.
    """
    if (dropout := dropped_of(call)) is not None:
        return _of_dropout(call, dropout) if dropout.is_random else None
    if (drawn := drawn_of(call)) is not None:
        return _of_draw(call, drawn)
    return None


def _of_dropout(call: RecordedCall, dropout: Dropped) -> RandomScript:
    _check_number(dropout.result)
    dtype = dropout.result.dtype
    rule = {
        "shape": _shape(dropout.result), "chance": dropout.chance, "scale": dropout.form.scale,
        "shift": dropout.form.shift, "dropped": dropout.form.dropped, "unit_dims": dropout.unit_dims,
        "tolerance": tests.TOLERANCE * UNIT_ROUNDOFF.get(dtype, 2.0**-24), "tiny": TINY.get(dtype, 2.0**-126),
        "is_by_chance": not dropout.may_be_masked,
    }  # fmt: skip
    of_input = "input" if "input" in call.kwargs else "0"
    name = f"{GRADIENT}0" if call.site.phase is Phase.BACKWARD else of_input
    functions = (tests.binomial_bound, tests.distance_bound, tests.places_bound, tests.pairs, parts.least_of_mask)
    return RandomScript(
        path=dropout.path, rule=_text(rule), given=f"{{{literal(dropout.path)}: load(*INPUTS[{literal(name)}])}}",
        tests=_sources(functions, source_of(parts.judge_dropout, "judge")),
    )  # fmt: skip


def _of_draw(call: RecordedCall, drawn: Drawn) -> RandomScript:
    _check_number(drawn.result)
    if call.site.path in ("rand", "randn") and _product(call.args) != drawn.result.values.size:
        raise ReplayError("its sizes are not those of its result")  # else a dump could ask for any amount of memory
    rule: dict[str, Any] = {"shape": _shape(drawn.result)}
    functions: list[Any] = [tests.binomial_bound, tests.distance_bound]
    if drawn.name == "bernoulli":
        rule |= {"chance": drawn.first}
        functions += [tests.places_bound, tests.pairs, parts.least_of_mask]
        others = [source_of(parts.judge_bernoulli, "judge")]
    else:
        names = ("first", "second", "low", "high", "roundoff", "span", "median", "chances")
        rule |= {name: getattr(drawn, name) for name in names}
        functions += [tests.pairs, tests.distance_of]
        others = [source_of(getattr(tests, drawn.name), "distribution"), source_of(parts.judge_draw, "judge")]
    return RandomScript(path="0", rule=_text(rule), given='{"0": np.zeros(0)}', tests=_sources(functions, *others))


def _check_number(result: ReplayTensor) -> None:
    if (number := result.values.size) < LEAST_ELEMENTS:
        raise ReplayError(f"its results have {number:,} elements, and tests of less than {LEAST_ELEMENTS:,} say little")


def _product(values: Sequence[ReplayValue]) -> int:
    """Return the product of all numbers among arguments."""
    found = 1
    for value in values:
        if isinstance(value, list):
            found *= _product(value)
        elif isinstance(value, Argument) and value.type == "int":
            found *= int(str(value.value))
        elif isinstance(value, Argument) and value.type == "torch.Size":
            raise ReplayError("its sizes are not written as numbers")
    return found


def _shape(result: ReplayTensor) -> tuple[int, ...]:
    return tuple(map(int, result.values.shape))


def _sources(functions: Sequence[Any], *others: str) -> str:
    return "\n".join([*map(source_of, functions), *others])


def _text(rule: dict[str, Any]) -> str:
    return "{" + ", ".join(f'"{name}": {literal(value)}' for name, value in rule.items()) + "}"
