"""The ablation of rounding rules: which settings are asked, and what the table counts."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from bench.faults.answers import Answer, Suspect
from bench.faults.scoring import Case, HealthyCase, Score
from bench.faults.truth import Truth
from bench.rounding_ablation import (
    ALL_OFF,
    ALL_ON,
    EXCUSES,
    OWN,
    SETTINGS,
    TOGETHER,
    AskWithout,
    details_of,
    name_of,
    table_of,
)
from msprobe_core.judge.rounding_rules import RoundingRule

AGREES, FAULT = Answer("agree", []), Answer("fault", [Suspect(0, (), "Functional.linear.0.forward", "scale", "9 off")])
UPDATES = frozenset({RoundingRule.UPDATED_PARAMETERS})
UNGROUPED = EXCUSES.difference(*TOGETHER)


@pytest.mark.parametrize(
    ("answers", "num_asked"),
    [
        ({}, 3),  # all on, all that excuse off, the other one off
        ({OWN: FAULT}, 4),  # and all off
        # None of the groups is to blame alone, so of rules only those outside groups are asked.
        ({EXCUSES: FAULT, ALL_OFF: FAULT}, 4 + len(TOGETHER) + len(UNGROUPED)),
        (dict.fromkeys(SETTINGS[1:], FAULT), len(SETTINGS)),
    ],
)
def test_settings_that_cannot_differ_are_not_judged(monkeypatch, answers, num_asked):
    asked = []

    def judged(ask, target, golden):
        asked.append(ask.off)
        return answers.get(ask.off, AGREES)

    monkeypatch.setattr(AskWithout, "judged", judged)
    known = {}
    found = {off: AskWithout("closed", off, known)(Path(), Path(), Path()) for off in SETTINGS}
    assert len(asked) == num_asked
    assert found == {off: answers.get(off, AGREES) for off in SETTINGS}


def test_the_table_says_what_a_rule_excuses_and_hides():
    healthy = [
        HealthyCase(name_of(off), "llama", "fp32", "unseen", "other kernels", AGREES)
        for off in SETTINGS
    ]  # fmt: skip
    healthy = [replace(one, answer=FAULT) if one.tool == name_of(UPDATES) else one for one in healthy]
    missed, named = Score(False, False, False, False), Score(True, True, True, True)
    blank = Case("", "llama", "fp32", "unseen", "other", "gradient x 1.1", "backward", Truth(), applicable=True)
    cases = [
        replace(blank, tool=name_of(off), score=named if off == OWN else missed, answer=FAULT if off == OWN else AGREES)
        for off in SETTINGS
    ]
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in table_of(cases, healthy) if "|" in line}
    numbers = {name: [int(cell) for cell in cells] for name, cells in rows.items() if cells[0].strip().isdigit()}
    assert numbers[name_of(ALL_ON)] == [0, 0, 0, 0, 0, 0, 0]
    assert numbers[name_of(UPDATES)] == [1, 0, 0, 0, 0, 0, 0]
    assert numbers[name_of(OWN)] == [0, 0, 1, 1, 0, 1, 1]
    details = sorted(details_of(cases, healthy))
    assert [line.split(":")[0] for line in details] == [
        "* not detected",
        "* without own_rounding",
        "* without updated_parameters",
    ]
