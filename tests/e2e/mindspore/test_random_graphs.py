"""Random programs in static graphs leave the same losses, gradients and weights with points as without."""

import pytest
from random_mindspore_graphs import SMALL, Runner
from random_programs import Summary, run_seeds


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a compiler that fails leaves files


def check(seeds, runner):
    summary = Summary()
    findings = run_seeds(seeds, runner, summary, print)
    assert not findings, "\n\n".join(map(str, findings))
    assert summary.num_repeatable == summary.num_run
    assert summary.num_ended_by_errors < summary.num_run / 2


@pytest.mark.slow
def test_two_programs():
    check(range(2), Runner(SMALL))


@pytest.mark.slow
def test_small_programs():
    check(range(2, 20), Runner(SMALL))


@pytest.mark.nightly
def test_more_small_programs():
    check(range(20, 45), Runner(SMALL))


@pytest.mark.nightly  # compiling ten programs takes minutes
def test_large_programs():
    check(range(300), Runner())
