"""Rules that excuse what rounding does can be switched off one by one, to measure what each is worth."""

import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps
from msprobe_core.judge.rounding_rules import RoundingRule, without


def test_all_rules_are_on_and_back_on_after_an_error():
    assert all(rule.is_on for rule in RoundingRule)
    with without(RoundingRule.VANISHING_SUMS):
        assert [rule for rule in RoundingRule if not rule.is_on] == [RoundingRule.VANISHING_SUMS]
        with without(RoundingRule.ROUNDS_TO_ZERO):
            assert sum(not rule.is_on for rule in RoundingRule) == 2
    with pytest.raises(KeyError), without(RoundingRule.VANISHING_SUMS):
        raise KeyError
    assert all(rule.is_on for rule in RoundingRule)


@pytest.fixture
def verdicts(tmp_path):
    """Return the verdicts of a gradient of a bias, and of a result that is zero in golden, both rounding alone."""

    def dump(side, bias, zero):
        return write_dump(tmp_path / side, {
            "Functional.linear.0.forward": api(tensor([[1.0, 2.0]]), output=tensor([zero, zero])),
            "Functional.linear.0.backward": {
                "input": [tensor([[1.0, 2.0]])], "output": [tensor([bias, -bias])],
            },
        })  # fmt: skip

    sides = dump("target", 3e-8, 1e-8), dump("golden", 1e-8, 0.0)

    def judged():
        rows = compare_dumps(*sides).units[0].rows
        return dict(rows.filter(pl.col("role") == "output").select("entry", "verdict").rows())

    return judged


def test_a_rule_that_is_off_excuses_nothing(verdicts):
    entries = {phase: f"Functional.linear.0.{phase}" for phase in ("forward", "backward")}
    assert verdicts() == dict.fromkeys(entries.values(), "pass")
    with without(RoundingRule.ROUNDS_TO_ZERO):
        assert verdicts() == {entries["forward"]: "error", entries["backward"]: "pass"}
    with without(RoundingRule.VANISHING_SUMS, RoundingRule.NOISE_GRADIENTS):  # this one is excused by both
        assert verdicts() == {entries["forward"]: "pass", entries["backward"]: "error"}
