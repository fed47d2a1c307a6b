"""The alignment of two sequences, held against the table of lengths that textbooks have."""

import itertools
import random
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from msprobe_core.compare import lcs
from msprobe_core.compare.lcs import align_sequences, common_subsequence, settle

few_kinds = st.lists(st.integers(0, 3), max_size=12)


def longest(target, golden):
    table = [[0] * (len(golden) + 1) for _ in range(len(target) + 1)]
    for i, own in enumerate(target):
        for j, other in enumerate(golden):
            table[i + 1][j + 1] = table[i][j] + 1 if own == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def is_ascending(pairs):
    return all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(pairs))


@pytest.fixture(params=["few differences", "table", "table in blocks", "either"])
def algorithm(request, monkeypatch):
    few, size = {"few differences": (99, 0), "table": (-1, 1 << 20), "table in blocks": (-1, 3), "either": (2, 3)}[
        request.param
    ]
    monkeypatch.setattr(lcs, "_FEW", few)
    monkeypatch.setattr(lcs, "_MAX_TABLE_BYTES", size)


@pytest.mark.usefixtures("algorithm")
def test_as_long_as_can_be():
    @given(few_kinds, few_kinds)
    @example([], [1])
    @example([0, 1, 0, 1, 0], [1, 0, 1, 0, 1])
    def check(target, golden):
        pairs = list(common_subsequence(target, golden))
        assert is_ascending(pairs)
        assert all(target[i] == golden[j] for i, j in pairs)
        assert len(pairs) == longest(target, golden)

    check()


@pytest.mark.usefixtures("algorithm")
@pytest.mark.parametrize("num_kinds", [2, 30])
def test_long_sequences_with_differences_everywhere(num_kinds):
    chance = random.Random(num_kinds)
    target = [chance.randrange(num_kinds) for _ in range(300)]
    golden = [kind for kind in target if chance.random() > 0.1] + [0] * 5
    pairs = list(common_subsequence(target, golden))
    assert is_ascending(pairs)
    assert len(pairs) == longest(target, golden)


def test_a_step_of_a_large_model_takes_milliseconds():
    """20,000 calls of 20 kinds, with a few more on either side; measured 12 ms, and 260 ms for half of them changed."""
    chance = random.Random(0)
    golden = [chance.randrange(20) for _ in range(20_000)]
    target = list(golden)
    for place in (19_990, 12_000, 11, 3):
        target.insert(place, 7)
        del golden[place // 2]
    began = time.process_time()
    pairs = list(common_subsequence(target, golden))
    assert time.process_time() - began < 0.3
    assert len(pairs) >= len(golden) - 4


def test_what_strict_identities_pair_stays():
    # Strictly, B is B and D is D; loosely, everything is the same: in between, in order, as far as it goes.
    strict = [1, 2, 3, 4, 5], [6, 2, 7, 8, 4]
    loose = [0] * 5, [0] * 5
    assert align_sequences([strict[0]], [strict[1]]) == [(1, 1), (3, 4)]
    assert align_sequences([strict[0], loose[0]], [strict[1], loose[1]]) == [(0, 0), (1, 1), (2, 2), (3, 4)]


@given(few_kinds, few_kinds, st.data())
def test_looser_identities_only_add(target, golden, data):
    split = data.draw(st.integers(0, 3))
    loose = [[kind > split for kind in side] for side in (target, golden)]
    strict = align_sequences([target], [golden])
    both = align_sequences([target, loose[0]], [golden, loose[1]])
    assert set(strict) <= set(both)
    assert is_ascending(both)


@pytest.mark.parametrize(
    ("target", "golden", "extra"),
    [
        ([5.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 0),
        ([1.0, 5.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1),
        ([1.0, 2.0, 3.0, 5.0], [1.0, 2.0, 3.0], 3),
    ],
)
def test_values_tell_which_of_equal_calls_is_the_extra_one(target, golden, extra):
    def distance(i, j):
        return abs(target[i] - golden[j])

    kinds = [0] * 4, [0] * 3
    pairs = settle(list(common_subsequence(*kinds)), *kinds, distance)
    assert {*range(4)} - {i for i, _ in pairs} == {extra}
    assert is_ascending(pairs)
    turned = settle(list(common_subsequence(*kinds[::-1])), *kinds[::-1], lambda j, i: distance(i, j))
    assert turned == [(j, i) for i, j in pairs]


def test_extra_calls_need_not_stand_together():
    target, golden = [9.0, 1.0, 8.0, 2.0], [1.0, 2.0]
    pairs = settle([(0, 0), (1, 1)], [0] * 4, [0] * 2, lambda i, j: abs(target[i] - golden[j]))
    assert pairs == [(1, 0), (3, 1)]


def test_very_many_equal_calls_are_paired_in_order():
    def never(i, j):
        raise AssertionError

    pairs = [(i, i) for i in range(1000)]
    assert settle(pairs, [0] * 2000, [0] * 1000, never) == pairs


def test_a_run_moves_over_a_repeated_pattern():
    target, golden = [9.0, 8.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0]
    kinds = [1, 2, 1, 2, 1], [1, 2, 1]
    pairs = settle([(0, 0), (1, 1), (2, 2)], *kinds, lambda i, j: abs(target[i] - golden[j]))
    assert pairs == [(2, 0), (3, 1), (4, 2)]


@given(few_kinds, few_kinds, st.randoms(use_true_random=False))
def test_moving_keeps_what_makes_an_alignment(target, golden, chance):
    pairs = list(common_subsequence(target, golden))
    values = [[chance.random() for _ in side] for side in (target, golden)]

    def distance(i, j):
        return abs(values[0][i] - values[1][j])

    moved = settle(pairs, target, golden, distance)
    assert len(moved) >= len(pairs)
    assert is_ascending(moved)
    assert all(target[i] == golden[j] for i, j in moved)
    assert sum(distance(i, j) for i, j in moved) <= sum(distance(i, j) for i, j in pairs) + 1e-9
