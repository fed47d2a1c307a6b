"""Faults in real trainings are named: in one process and in several."""

from __future__ import annotations

import json
import subprocess
import sys

import faulty_jobs
import pytest
from jobs import run_job

from msprobe_core.locate import FaultKind, LocateVerdict, locate


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    run_job(faulty_jobs.record, 2, directory)
    return directory


def first_of(job, fault):
    result = locate(job / fault, job / "golden")
    assert result.verdict is LocateVerdict.FAULT
    return result.suspects[0]


def test_a_factor_on_one_rank_is_named_there_and_not_at_the_collective_behind(job):
    first = first_of(job, "factor")
    assert (first.entry, list(first.ranks), first.module) == ("Tensor.__mul__.0.forward", [1], "1")
    assert first.kind is FaultKind.EXTRA_CALL
    assert first.seen_at == "Distributed.all_reduce.1.forward"


def test_another_reduction_is_a_fault_of_communication(job):
    first = first_of(job, "reduction")
    assert (first.entry, list(first.ranks)) == ("Distributed.all_reduce.1.forward", [0, 1])
    assert first.kind is FaultKind.COMMUNICATION


def test_a_rank_that_sends_nothing_is_named(job):
    first = first_of(job, "missing")
    assert (first.module, list(first.ranks)) == ("1", [1])


def test_the_command_line_names_the_rank(job, tmp_path):
    command = [sys.executable, "-m", "msprobe_core", "locate", job / "factor", job / "golden", "-o", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("FAULT: extra call at step 0, rank 1: Tensor.__mul__.0.forward")
    content = json.loads((tmp_path / "locate.json").read_text())
    assert (content["suspects"][0]["rank"], content["suspects"][0]["ranks"]) == (1, [1])
