"""Random programs compute with the probe what they compute without it; see `random_programs`.

`python tests/support/random_torch.py --programs 5000 --seed 1000000` runs others, in processes of a hundred each.
"""

import os

import pytest
from random_programs import assert_bitwise_equal, assert_draws_everything
from random_torch import VOCABULARY, TorchRunner

# Programs may fail on a thread of their own, with the probe as without it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

NUM_PROGRAMS = int(os.environ.get("MSPROBE_RANDOM_PROGRAMS", "500"))
FIRST_SEED = int(os.environ.get("MSPROBE_RANDOM_SEED", "100000"))


def test_twenty_random_programs_are_bitwise_equal(close_debugger):
    assert_bitwise_equal(range(20), TorchRunner())


@pytest.mark.slow
def test_many_random_programs_are_bitwise_equal(close_debugger):
    assert_bitwise_equal(range(FIRST_SEED, FIRST_SEED + NUM_PROGRAMS), TorchRunner())


def test_random_programs_have_every_kind_of_part():
    assert_draws_everything(VOCABULARY)


@pytest.mark.slow
def test_twenty_random_programs_are_bitwise_equal_with_operators_recorded(close_debugger):
    assert_bitwise_equal(range(20), TorchRunner(aten=True))
