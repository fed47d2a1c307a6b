"""Checks and reports of plugins: of dumps, of comparisons, of calls while they are recorded."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from broken_plugins import plugged
from dumps import api, tensor, write_dump
from numpy_layers import ArrayFramework, Network, train_step

from msprobe_core import PrecisionDebugger
from msprobe_core.capture.features import live_checks
from msprobe_core.cli.main import _run
from msprobe_core.findings import Finding, Level, NoteCode
from msprobe_core.plugin import tensors_of
from msprobe_core.store import recorded_units

NOTE = Finding(NoteCode.TEXT, Level.NOTE, {"text": "by the way"})


def checking(function, name="mine"):
    return SimpleNamespace(name=name, summary="a look", check=function)


def content(directory, name):
    return json.loads((directory / name).read_text())


@pytest.fixture
def run(tmp_path):
    """A run of a trainer with two stages, one of two ranks."""
    for place, norm in (("a/step0/rank0", 1.0), ("a/step0/rank1", 0.0), ("b/step3/proc7", 2.0)):
        write_dump(tmp_path / "run" / place, {"Functional.relu.0.forward": api(tensor(1.0), output=tensor([norm]))})
    return tmp_path / "run"


def dead(dump):
    for name, norm in dump.frame.select("name", "norm").rows():
        if norm == 0:
            yield f"{name} is all zero"


def test_every_dump_of_every_stage_is_checked(run, tmp_path, capsys):
    with plugged("dump_checks", lambda: [checking(dead)]):
        status = _run(["check", str(run), "-o", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert status == 1
    assert "a/step0/rank1: mine: Functional.relu.0.forward.output.0 is all zero" in said
    found = content(tmp_path / "out", "check.json")
    assert [(each["label"], len(each["findings"])) for each in found["dumps"]] == [
        ("a/step0/rank0", 0),
        ("a/step0/rank1", 1),
        ("b/step3/proc7", 0),
    ]


@pytest.mark.parametrize(
    ("place", "labels"),
    [("a", ["step0/rank0", "step0/rank1"]), ("a/step0", ["rank0", "rank1"]), ("b/step3/proc7", [""])],
)
def test_units_of_a_part_of_a_run(run, place, labels):
    assert [unit.label for unit in recorded_units(run / place)] == labels


@pytest.mark.parametrize(
    ("function", "status", "text"),
    [
        (lambda dump: [NOTE], 0, "note     step0/rank0: mine: by the way"),
        (
            lambda dump: "one text",
            2,
            "mine: could not check (the dump check 'mine' of the plugin 'broken' returned 'one",
        ),
        (lambda dump: [np.str_("of numpy")], 1, "warning  step0/rank0: mine: of numpy"),
        (lambda dump: [3], 2, "found 3, which is neither a finding nor a text"),
        (lambda dump: 1 / 0, 2, "failed at check (ZeroDivisionError: division by zero)"),
        (lambda dump: (str(i) for i in range(1 << 60)), 1, "mine: more findings than the 100 shown"),
    ],
    ids=["a note", "a text", "a text of numpy", "a number", "raises", "endless"],
)
def test_what_a_check_may_answer(run, tmp_path, capsys, function, status, text):
    with plugged("dump_checks", lambda: [checking(function)]):
        assert _run(["check", str(run / "a"), "-o", str(tmp_path / "out")]) == status
    said = capsys.readouterr()
    assert text in said.out + said.err + (tmp_path / "out" / "check.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["."], "no plugin offers a check of dumps"),
        ([".", "--only", "other"], "there is no check 'other'; known: none"),
    ],
)
def test_nothing_to_check_with_is_said(run, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(run)
    assert _run(["check", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_findings_on_a_comparison_are_notes(run, tmp_path):
    def shapes(unit):
        yield f"{unit.rows.height} rows"

    sides = ["-tp", str(run / "a/step0/rank0"), "-gp", str(run / "a/step0/rank0")]
    with plugged("comparison_checks", lambda: [checking(shapes)]):
        assert _run(["compare", *sides, "-o", str(tmp_path / "out")]) == 0
    (unit,) = content(tmp_path / "out", "summary.json")["units"]
    assert unit["notes"] == ["mine: 2 rows"]


REPORT = SimpleNamespace(
    name="brief",
    summary="one line",
    suffix="md",
    comparison=lambda summary: f"agrees: {summary['agrees']}",
    location=lambda found: f"verdict: {found['verdict']}",
)


def test_reports_are_written_beside_results(run, tmp_path, capsys):
    target, golden = (str(run / f"a/step0/rank{rank}") for rank in (1, 0))
    out = tmp_path / "out"
    with plugged("reports", lambda: [REPORT]):
        sides = ["-tp", target, "-gp", golden]
        assert _run(["compare", *sides, "-o", str(out), "--report", "brief"]) == 1
        assert _run(["locate", target, golden, "-o", str(out), "--report", "brief"]) == 1
        assert _run(["locate", target, golden, "-o", str(out), "--report", "other"]) == 2
    assert "there is no report 'other'; known: brief" in capsys.readouterr().err
    assert (out / "compare_brief.md").read_text() == "agrees: False"
    assert (out / "locate_brief.md").read_text() == "verdict: fault"


# --- while recording -------------------------------------------------------------------------------------------------


class Debugger(PrecisionDebugger):
    framework_name = "numpy"

    def _framework(self, model):
        return ArrayFramework()


def recorded(tmp_path, check, **settings):
    """Record two steps with a check; return the losses and the directories of the dumps."""
    with plugged("live_checks", lambda: [checking(check)]):
        debugger = Debugger(dump_path=tmp_path / "run", level="mix", live_checks=["mine"], **settings)
        model, losses = Network(), []
        for step in range(2):
            debugger.start(model)
            losses.append(train_step(model, step))
            debugger.stop()
            debugger.step()
        debugger.close()
    return losses, [unit.path for unit in recorded_units(tmp_path / "run")]


BARE = [train_step(model, step) for model in [Network()] for step in range(2)]


def test_calls_are_checked_while_they_are_recorded(tmp_path, caplog):
    seen = []

    def check(entry):
        seen.append(entry.name)
        for row, value in tensors_of(entry):
            if value.digest.stats.min is not None and value.digest.stats.min < 0 and ".output." in row:
                yield f"{row} is negative"

    losses, dumps = recorded(tmp_path, check)
    assert losses == BARE
    lines = [json.loads(line) for line in (dumps[0] / "live_checks.jsonl").read_text().splitlines()]
    assert {line["level"] for line in lines} == {"warning"}
    names = json.loads((dumps[0] / "dump.json").read_text())["data"]
    assert seen == [*names, *names]
    assert {line["entry"] for line in lines} <= set(names)
    assert all(line["message"].startswith(f"mine: {line['entry']}.output.") for line in lines)
    logged = [record.getMessage() for record in caplog.records if "is negative" in record.getMessage()]
    assert len(logged) == 2 * min(len(lines), live_checks.MAX_LOGGED)


def test_a_check_that_is_slow_is_dropped(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(live_checks, "GRACE_S", 0.0)
    asked = []
    losses, _ = recorded(tmp_path, lambda entry: asked.append(entry.name) or sum(range(100_000)) * [])
    assert losses == BARE
    assert "is dropped, as it took" in caplog.text
    assert len(set(asked)) == len(asked)  # not asked in the second step


def test_an_unknown_check_is_an_error_of_the_configuration(tmp_path):
    with pytest.raises(ValueError, match="'live_checks' is 'no-such'; allowed: none"):
        Debugger(dump_path=tmp_path / "run", live_checks=["no-such"])


def test_findings_of_an_earlier_run_do_not_stay(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    recorded(tmp_path, lambda entry: ["found"])
    _, dumps = recorded(tmp_path, lambda entry: [])
    assert not (dumps[0] / "live_checks.jsonl").exists()
