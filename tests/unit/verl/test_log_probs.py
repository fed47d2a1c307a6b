"""How far log-probs of two engines are apart, and why: measures against other ways to compute them, planted causes."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_tokens import Policy, kept, make_policy

from msprobe_core.errors import CompareError
from msprobe_core.judge.limits import Precision
from msprobe_core.rl.floors import Floor, log_prob_floor, log_prob_scores, module_floor, module_score
from msprobe_core.rl.hypotheses import Cause, Diagnosis, Evidence, examine, rounded
from msprobe_core.rl.log_probs import Tokens, by_group, frame_of, measure, tokens_of

NOISES = {Precision.FLOAT32: 4e-7, Precision.BFLOAT16: 0.02}


def diagnoses(
    tokens: Tokens, evidence: Evidence | None = None, precision: Precision = Precision.FLOAT32
) -> list[Diagnosis]:
    found = measure(tokens)
    floor = log_prob_floor(precision, float(np.sqrt(np.mean(tokens.finite().rollout ** 2))))
    scores = log_prob_scores(
        floor, rms=found.rms, mean=found.mean, largest=found.max, num_tokens=found.num_tokens,
        num_samples=found.num_samples,
    )  # fmt: skip
    is_different = any(score.is_over for score in scores)
    return examine(tokens, floor.size, evidence or Evidence(), is_different=is_different)


def named(tokens: Tokens, evidence: Evidence | None = None, precision: Precision = Precision.FLOAT32) -> list[Cause]:
    return [one.cause for one in diagnoses(tokens, evidence, precision) if one.is_named]


class TestMeasures:
    def test_are_those_worked_out_by_hand(self) -> None:
        training = np.log([[0.5, 0.25, 0.9]])
        rollout = np.log([[0.25, 0.5, 0.9]])
        found = measure(tokens_of(training, rollout, np.ones((1, 3))))
        two = math.log(2)
        assert found.num_tokens == 3
        assert found.mean == pytest.approx(0, abs=1e-15)
        assert found.mean_abs == pytest.approx(2 * two / 3)
        assert found.rms == pytest.approx(two * math.sqrt(2 / 3))
        assert found.p50 == pytest.approx(two)
        assert found.max == pytest.approx(two)
        assert found.probability_max == pytest.approx(0.25)
        assert found.k3 == pytest.approx(((2 - 1 - two) + (0.5 - 1 + two)) / 3)
        assert found.chi2 == pytest.approx((4 + 0.25 + 1) / 3 - 1)
        assert found.mean_ratio == pytest.approx((2 + 0.5 + 1) / 3)
        assert found.ppl_ratio == pytest.approx(1)
        assert found.pearson == pytest.approx(np.corrcoef([0.5, 0.25, 0.9], [0.25, 0.5, 0.9])[0, 1])
        assert found.share_over_ln2 == 0  # exactly a factor of 2 is not more than that
        assert found.ratio_max == pytest.approx(2)
        assert found.effective_share == pytest.approx(3.5**2 / (3 * (4 + 0.25 + 1)))
        assert (found.clipped_low, found.clipped_high) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
        wide = measure(tokens_of(training, rollout, np.ones((1, 3))), (0.6, 0.9))
        assert (wide.clipped_low, wide.clipped_high) == (0, pytest.approx(1 / 3))

    @given(st.integers(0, 10**6), st.floats(1e-6, 1.0))
    @settings(max_examples=40, deadline=None)
    def test_hold_what_holds_for_all_log_probs(self, seed: int, noise: float) -> None:
        random = np.random.default_rng(seed)
        base = -random.exponential(2.0, (3, 7))
        other = base + noise * random.standard_normal(base.shape)
        mask = random.random(base.shape) < 0.8
        mask[0, 0] = True
        found = measure(tokens_of(base, other, mask))
        turned = measure(tokens_of(other, base, mask))
        assert found.k3 >= 0
        assert found.kl == -found.mean == turned.mean
        assert found.mean_abs == turned.mean_abs
        assert found.p50 <= found.p99 <= found.max
        assert abs(found.mean) <= found.mean_abs <= found.rms <= found.max * (1 + 1e-12)
        assert found.mean_abs == pytest.approx(np.abs(base - other)[mask].mean(), rel=1e-12)

    def test_equal_log_probs_are_apart_by_nothing(self) -> None:
        base = -np.ones((2, 3))
        found = asdict(measure(tokens_of(base, base, np.ones((2, 3)))))
        zeros = ("mean", "mean_abs", "rms", "p99", "max", "kl", "k3", "chi2", "probability_max", "share_over_ln2")
        assert all(found[name] == 0 for name in zeros)
        assert math.isnan(found["pearson"])

    def test_tokens_without_a_number_are_counted_and_left_out(self) -> None:
        training = np.array([[-1.0, np.nan, -np.inf, -2.0]])
        found = measure(tokens_of(training, np.full((1, 4), -1.5), np.ones((1, 4))))
        assert (found.num_tokens, found.num_not_finite) == (2, 2)
        assert found.mean_abs == 0.5

    def test_refuses_what_cannot_be_compared(self) -> None:
        with pytest.raises(CompareError, match="response_mask is 0 everywhere"):
            tokens_of(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2)))
        with pytest.raises(CompareError, match=r"'rollout' is \[1, 3\]"):
            tokens_of(np.zeros((1, 2)), np.zeros((1, 3)), np.ones((1, 2)))
        with pytest.raises(CompareError, match="NaN or Inf on one side"):
            measure(tokens_of(np.full((1, 2), np.nan), np.zeros((1, 2)), np.ones((1, 2))))

    def test_tokens_know_sample_position_and_turn(self) -> None:
        mask = np.array([[1, 1, 0, 1], [0, 1, 0, 0]])
        tokens = tokens_of(-np.ones((2, 4)), -np.ones((2, 4)), mask, responses=np.arange(8).reshape(2, 4))
        rows = frame_of(tokens, {0: "a", 1: "b"})
        assert rows["sample"].to_list() == [0, 0, 0, 1]
        assert rows["id"].to_list() == ["a", "a", "a", "b"]
        assert rows["position"].to_list() == [0, 1, 3, 1]
        assert rows["turn"].to_list() == [0, 0, 1, 0]
        assert rows["token"].to_list() == [0, 1, 3, 5]

    def test_groups_cover_every_token(self) -> None:
        policy = make_policy(1, turns=3)
        base = policy.log_probs()
        groups = by_group(policy.tokens(base, base + policy.mask))
        for by in ("turn", "position", "length", "sample", "place", "probability"):
            assert groups.filter(groups["by"] == by)["tokens"].sum() == policy.mask.sum()
        assert groups.filter(groups["by"] == "turn")["group"].to_list() == ["0", "1", "2"]
        assert (groups["mean"] == -1).all()

    def test_groups_by_the_policy_that_drew_a_sample(self) -> None:
        training = np.log([[0.5, 0.05], [0.95, 0.5]])
        tokens = tokens_of(training, np.log([[0.5, 0.05], [0.95, 0.005]]), np.ones((2, 2)))
        groups = by_group(tokens, [3, None])
        found = {(by, group): count for by, group, count in groups.select("by", "group", "tokens").rows()}
        assert (found["version", "unknown"], found["version", "3"]) == (2, 2)
        assert {key[1] for key in found if key[0] == "probability"} == {"0-0.01", "0.01-0.1", "0.5-0.9", "0.9-1"}
        assert found["place", "first of a turn"] == found["place", "last of a turn"] == 2


class TestFloors:
    def test_that_of_bfloat16_is_what_was_published(self) -> None:
        assert log_prob_floor(Precision.BFLOAT16, 1.0).size == pytest.approx(0.027, rel=0.02)

    def test_a_module_has_no_higher_limit_than_the_conventional_one(self) -> None:
        score = module_score(0.06, module_floor(Precision.BFLOAT16, 10_000), Precision.BFLOAT16, 10_000)
        assert score.is_over
        assert not module_score(0.01, module_floor(Precision.BFLOAT16, 400), Precision.BFLOAT16, 100).is_over

    def test_without_a_floor_all_must_be_equal(self) -> None:
        assert module_score(1e-30, Floor(size=0.0), Precision.FLOAT32, 1).is_over
        assert not module_score(0.0, Floor(size=0.0), Precision.FLOAT32, 1).is_over


@pytest.fixture(params=list(NOISES), ids=lambda precision: precision.name.lower())
def precision(request: pytest.FixtureRequest) -> Precision:
    return request.param


class Planted:
    """Log-probs with rounding of a precision on both sides, and a fault in those of the rollout."""

    def __init__(self, seed: int, precision: Precision, **how: float) -> None:
        self.random = np.random.default_rng(1000 + seed)
        self.noise = NOISES[precision]
        self.policy = make_policy(seed, **how)
        self.base = self.policy.log_probs()

    def rounding(self) -> np.ndarray:
        return self.noise * self.random.standard_normal(self.base.shape)

    def tokens(self, rollout: np.ndarray, *, entropy: bool = False) -> Tokens:
        there = rollout != 0
        return self.policy.tokens(self.base + self.rounding(), rollout + there * self.rounding(), entropy=entropy)


@pytest.mark.parametrize("seed", range(6))
class TestCauses:
    def test_nothing_is_named_where_rounding_explains_all(self, seed: int, precision: Precision) -> None:
        for how in ({}, {"flatness": 0.1}, {"turns": 3}):
            planted = Planted(seed, precision, **how)
            assert named(planted.tokens(planted.base), precision=precision) == []

    def test_nothing_is_named_for_another_model(self, seed: int, precision: Precision) -> None:
        planted = Planted(seed, precision)
        logits = planted.policy.logits
        other = logits + 0.6 * planted.random.standard_normal(logits.shape)
        tokens = planted.tokens(planted.policy.log_probs(logits=other))
        assert named(tokens, precision=precision) == []
        assert measure(tokens).rms > 0.1

    @pytest.mark.parametrize("shift", [-1, 1])
    def test_off_by_one(self, seed: int, precision: Precision, shift: int) -> None:
        planted = Planted(seed, precision)
        found = diagnoses(planted.tokens(np.roll(planted.base, shift, 1)), precision=precision)
        assert found[0].cause is Cause.OFF_BY_ONE
        assert found[0].is_named
        assert found[0].explained == pytest.approx(1, abs=0.02)
        assert f"shifted by {shift:+d}" in found[0].sentence.text

    @pytest.mark.parametrize("temperature", [0.5, 0.7, 1.5])
    def test_temperature(self, seed: int, precision: Precision, temperature: float) -> None:
        planted = Planted(seed, precision)
        rollout = planted.policy.log_probs(1 / temperature)
        found = diagnoses(planted.tokens(rollout, entropy=True), precision=precision)
        assert [one.cause for one in found if one.is_named] == [Cause.TEMPERATURE]
        assert found[0].statistic == pytest.approx(temperature, rel=0.05)

    @pytest.mark.parametrize("top_p", [0.7, 0.8])
    @pytest.mark.parametrize("is_recorded", [True, False])
    def test_top_p(self, seed: int, precision: Precision, top_p: float, is_recorded: bool) -> None:
        planted = Planted(seed, precision)
        logits = np.where(kept(planted.policy.logits, top_p), planted.policy.logits, -1e9)
        drawn = (logits + planted.random.gumbel(size=logits.shape)).argmax(-1)[..., None]
        planted.policy = Policy(planted.policy.logits, drawn, planted.policy.mask)
        planted.base = planted.policy.log_probs()
        tokens = planted.tokens(planted.policy.log_probs(logits=logits))
        known = Evidence(top_p=top_p, top_k=-1) if is_recorded else Evidence()
        assert named(tokens, known, precision) == [Cause.RENORMALISED]
        assert Cause.RENORMALISED not in named(tokens, Evidence(top_p=1.0, top_k=-1), precision)

    def test_top_k(self, seed: int, precision: Precision) -> None:
        planted = Planted(seed, precision, flatness=1.0)
        logits = np.where(kept(planted.policy.logits, top_k=8), planted.policy.logits, -1e9)
        drawn = (logits + planted.random.gumbel(size=logits.shape)).argmax(-1)[..., None]
        planted.policy = Policy(planted.policy.logits, drawn, planted.policy.mask)
        planted.base = planted.policy.log_probs()
        tokens = planted.tokens(planted.policy.log_probs(logits=logits))
        assert named(tokens, Evidence(top_p=1.0, top_k=8), precision) == [Cause.RENORMALISED]

    def test_mask_of_missing_values(self, seed: int, precision: Precision) -> None:
        planted = Planted(seed, precision)
        rollout = planted.base.copy()
        rollout[:, 3:9] = 0
        found = diagnoses(planted.tokens(rollout), precision=precision)
        assert [one.cause for one in found if one.is_named] == [Cause.MASK]
        assert "exactly 0 in rollout" in found[0].sentence.text

    def test_mask_of_earlier_turns(self, seed: int, precision: Precision) -> None:
        planted = Planted(seed, precision, turns=3)
        logits = planted.policy.logits
        other = planted.policy.log_probs(logits=logits + 0.8 * planted.random.standard_normal(logits.shape))
        rollout = np.where(np.arange(logits.shape[1]) < 12, planted.base, other)
        assert named(planted.tokens(rollout), precision=precision) == [Cause.MASK]

    def test_retokenised(self, seed: int, precision: Precision) -> None:
        planted = Planted(seed, precision)
        rollout = planted.base.copy()
        rollout[0, 6:] = np.roll(planted.base, 1, 1)[0, 6:]
        rollout[3, 9:] = np.roll(planted.base, 2, 1)[3, 9:]
        flags = np.isin(np.arange(8), (0, 3))
        assert named(planted.tokens(rollout), Evidence(retokenised=flags), precision) == [Cause.RETOKENISED]

    def test_retokenised_by_the_numbers(self, seed: int) -> None:
        planted = Planted(seed, Precision.FLOAT32)
        rollout = planted.base.copy()
        for row in (0, 3, 5):
            rollout[row, 6:] = np.roll(planted.base, 1, 1)[row, 6:]
        assert named(planted.tokens(rollout))[0] is Cause.RETOKENISED

    def test_stale_samples(self, seed: int, precision: Precision) -> None:
        planted = Planted(seed, precision)
        logits = planted.policy.logits
        other = planted.policy.log_probs(logits=logits + 0.8 * planted.random.standard_normal(logits.shape))
        flags = np.arange(8) < 4
        rollout = np.where(flags[:, None], other, planted.base)
        assert named(planted.tokens(rollout), Evidence(stale=flags), precision) == [Cause.STALE_WEIGHTS]

    def test_weights(self, seed: int, precision: Precision) -> None:
        planted = Planted(seed, precision)
        logits = planted.policy.logits
        tokens = planted.tokens(
            planted.policy.log_probs(logits=logits + 0.8 * planted.random.standard_normal(logits.shape))
        )
        names = tuple(f"layers.{i}.weight" for i in range(20))
        one = Evidence(num_parameters=20, unsynchronised=names[:1], outdated=names[:1])
        assert named(tokens, one, precision) == [Cause.UNSYNCHRONISED]
        found = diagnoses(tokens, one, precision)
        assert "the first layers.0.weight" in found[0].sentence.text
        all_of_them = Evidence(num_parameters=20, unsynchronised=names, outdated=names)
        assert named(tokens, all_of_them, precision) == [Cause.STALE_WEIGHTS]
        assert named(tokens, Evidence(num_parameters=20), precision) == []

    def test_precision_cast_of_log_probs(self, seed: int) -> None:
        planted = Planted(seed, Precision.FLOAT32)
        exact = planted.policy.tokens(planted.base + planted.rounding(), rounded(planted.base, Precision.BFLOAT16))
        found = diagnoses(exact)
        assert [one.cause for one in found if one.is_named] == [Cause.PRECISION_CAST]
        assert "rollout are bfloat16" in found[0].sentence.text

    def test_precision_cast_of_parameters(self, seed: int) -> None:
        planted = Planted(seed, Precision.BFLOAT16)
        evidence = Evidence(num_parameters=20, cast=Precision.BFLOAT16, fine_floor=2e-6)
        tokens = planted.tokens(planted.base)
        assert named(tokens, evidence, Precision.BFLOAT16) == [Cause.PRECISION_CAST]


class TestRounded:
    @given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20))
    def test_float16_and_bfloat16_are_the_nearest(self, values: list[float]) -> None:
        given_values = np.asarray(values, np.float32).astype(np.float64)
        halves = rounded(given_values, Precision.FLOAT16)
        np.testing.assert_array_equal(halves, given_values.astype(np.float16).astype(np.float64))
        brains = rounded(given_values, Precision.BFLOAT16)
        assert (np.abs(brains - given_values) <= 2.0**-8 * np.abs(given_values) + 1e-40).all()
        np.testing.assert_array_equal(rounded(brains, Precision.BFLOAT16), brains)
