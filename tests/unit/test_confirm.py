"""What recorded results are held against: norms, single elements, overflow, decisions."""

import numpy as np
import pytest

from msprobe_core.confirm.judge import Held, judge_side
from msprobe_core.confirm.replays import Replays
from msprobe_core.model import ReplayTensor


def rounded(values, bits=8):
    """Round to so many significant bits, as bfloat16 does."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent)


def held(recorded, oracle, dtype="bfloat16", *, own=None, disturbed=(), roundoff=2.0**-8):
    def one(values, kind="float64"):
        return {"0": ReplayTensor(values=np.asarray(values), dtype=kind)}

    replays = Replays(
        oracle=one(oracle), own=None if own is None else one(own, dtype), disturbed=[one(each) for each in disturbed],
        roundoff=roundoff, num_summed=1,
    )  # fmt: skip
    (judgement,) = judge_side(one(recorded, dtype), replays)
    return judgement


@pytest.fixture
def exact():
    return np.random.default_rng(0).normal(size=10_000)


def test_rounding_is_right(exact):
    found = held(rounded(exact), exact)
    assert found.held is Held.RIGHT
    assert found.error == pytest.approx(0.4 * 2.0**-8, rel=0.1)  # what the limit takes it to be


def test_a_scale_is_wrong_though_each_element_is_near(exact):
    found = held(rounded(exact * 1.01), exact)
    assert (found.held, found.element < 4) == (Held.WRONG, True)


def test_one_wrong_element_is_not_lost_in_the_norm(exact):
    values = rounded(exact)
    values[77] += 0.3
    found = held(values, exact)
    assert found.held is Held.WRONG
    assert found.error < found.rounding
    assert "one element" in found.reason


def test_what_the_inputs_rounding_explains_is_the_condition(exact):
    noise = np.random.default_rng(1).normal(size=exact.size)
    found = held(exact + 0.1 * noise, exact, disturbed=[exact + 0.2 * noise])
    assert found.held is Held.CONDITION
    assert found.amplification == pytest.approx(0.2 * 2**8, rel=0.05)
    assert held(exact + 0.3 * noise, exact, disturbed=[exact + 0.2 * noise]).held is Held.WRONG


def test_overflow_of_the_dtype_is_right_and_other_infinities_are_not():
    assert held([np.inf, 1.0], [7e4, 1.0], "float16").held is Held.RIGHT
    assert held([np.inf, 1.0], [6e4, 1.0], "float16").held is Held.WRONG
    assert held([np.inf, 1.0], [6e4, 1.0], "float16", own=[np.inf, 1.0]).held is Held.RIGHT
    assert held([np.nan, 1.0], [np.nan, 1.0]).held is Held.RIGHT
    assert held([2.0, 1.0], [np.nan, 1.0]).held is Held.WRONG


def test_integers_are_the_same_but_for_ties():
    numbers = np.arange(8)
    other = numbers.copy()
    other[3] = 0
    assert held(numbers, numbers, "int64").held is Held.RIGHT
    assert held(other, numbers, "int64").held is Held.WRONG
    assert held(other, numbers, "int64", own=other).held is Held.RIGHT
    assert held(other, numbers, "int64", disturbed=[other]).held is Held.CONDITION
