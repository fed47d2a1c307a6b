"""Random programs compute with the probe what they compute without it; see `random_programs`.

`python tests/support/random_mindspore.py --programs 5000 --seed 1000000` runs others, in processes of a hundred each.
"""

import os

import pytest

pytest.importorskip("mindspore")

from random_mindspore import VOCABULARY, MindSporeRunner
from random_programs import Summary, draw, run_seeds

NUM_PROGRAMS = int(os.environ.get("MSPROBE_RANDOM_PROGRAMS", "300"))
FIRST_SEED = int(os.environ.get("MSPROBE_RANDOM_SEED", "100000"))


def check(seeds):
    summary = Summary()
    findings = run_seeds(seeds, MindSporeRunner(), summary)
    print(summary)
    assert not findings, "\n".join(map(str, findings))
    # Programs that differ between runs without the probe, and those that end with an error, test little.
    assert summary.num_repeatable >= 0.9 * summary.num_run, summary
    assert summary.num_ended_by_errors <= 0.2 * summary.num_run, summary


def test_five_random_programs_are_bitwise_equal(close_debugger):
    check(range(5))


@pytest.mark.slow
def test_forty_random_programs_are_bitwise_equal(close_debugger):
    check(range(5, 45))


@pytest.mark.nightly
def test_many_random_programs_are_bitwise_equal(close_debugger):
    check(range(FIRST_SEED, FIRST_SEED + NUM_PROGRAMS))


def test_random_programs_have_every_kind_of_part():
    drawn = [draw(seed, VOCABULARY) for seed in range(500)]

    def names(parts):
        for part in parts:
            yield part.name
            yield from names(part.inside)

    assert {name for program in drawn for name in names(program.layers)} == VOCABULARY.layers.keys()
    assert {habit.name for program in drawn for habit in program.habits} == set(VOCABULARY.habits)
    assert {program.probe.windows for program in drawn} == set(VOCABULARY.windows)
