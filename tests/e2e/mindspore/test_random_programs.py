"""Random programs compute with the probe what they compute without it; see `random_programs`.

`python tests/support/random_mindspore.py --programs 5000 --seed 1000000` runs others, in processes of a hundred each.
"""

import os

import pytest

pytest.importorskip("mindspore")

from random_mindspore import VOCABULARY, MindSporeRunner
from random_programs import assert_bitwise_equal, assert_draws_everything

NUM_PROGRAMS = int(os.environ.get("MSPROBE_RANDOM_PROGRAMS", "300"))
FIRST_SEED = int(os.environ.get("MSPROBE_RANDOM_SEED", "100000"))


def test_five_random_programs_are_bitwise_equal(close_debugger):
    assert_bitwise_equal(range(5), MindSporeRunner())


@pytest.mark.slow
def test_twenty_random_programs_are_bitwise_equal(close_debugger):
    assert_bitwise_equal(range(5, 25), MindSporeRunner())


@pytest.mark.nightly
def test_many_random_programs_are_bitwise_equal(close_debugger):
    assert_bitwise_equal(range(FIRST_SEED, FIRST_SEED + NUM_PROGRAMS), MindSporeRunner())


def test_random_programs_have_every_kind_of_part():
    assert_draws_everything(VOCABULARY)
