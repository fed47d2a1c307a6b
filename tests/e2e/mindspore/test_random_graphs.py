"""Random programs in static graphs leave the same losses, gradients and weights with points as without."""

import pytest
from random_mindspore_graphs import Runner
from random_programs import Summary, run_seeds


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a compiler that fails leaves files behind


def check(seeds):
    summary = Summary()
    findings = run_seeds(seeds, Runner(), summary, print)
    assert not findings, "\n\n".join(map(str, findings))
    assert summary.num_repeatable == summary.num_run
    assert summary.num_ended_by_errors < summary.num_run / 2


def test_a_few_programs():
    check(range(5))


@pytest.mark.nightly  # ten programs take minutes
def test_many_programs():
    check(range(5, 305))
