"""Faults that ``bench/monitor_faults.py`` plants in real trainings are named first."""

from pathlib import Path

import pytest
from jobs import run_script

BENCH = Path(__file__).parents[2] / "bench" / "monitor_faults.py"


@pytest.mark.slow
def test_two_planted_faults_are_named_by_both_commands(tmp_path):
    cases = ["moment not updated", "data of the step before"]
    commands = ["analyze", "compare"]
    arguments = ["faults", "--seeds", "7", "--cases", *cases, "--commands", *commands]
    said = run_script(BENCH, tmp_path / "said.txt", *arguments)
    assert "| all | 2 of 2 | 2 of 2 | |" in said, said


@pytest.mark.slow
def test_a_healthy_training_has_no_finding(tmp_path):
    said = run_script(BENCH, tmp_path / "said.txt", "healthy", "--seeds", "24", "--commands", "analyze")
    assert "analyze: 0 of 1 healthy trainings have a finding" in said, said
