"""One warning at the end of a program of which no step, or not its rank, is selected."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger

from msprobe_core.config import ConfigWatch
from msprobe_core.config.watch import POLL_SECONDS


@pytest.fixture
def run(tmp_path, caplog, monkeypatch):
    """Return a function that trains, closes the debugger, and returns what was said about an empty recording."""
    for name in ("WORLD_SIZE", "RANK_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def run(num_steps=3, begin=0, *, rank_id=None, edits=None, counts=True, train=None, **fields):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"level": "L0", "dump_path": str(tmp_path / "run"), **fields}))
        debugger = ArrayDebugger(path)
        controller = debugger._controller
        if controller.settings.watch is not None:
            now = iter(range(1000))
            clock = lambda: 2 * POLL_SECONDS * next(now)  # noqa: E731
            controller.settings.watch = ConfigWatch(path, {}, debugger.config, clock=clock)
        model = Network()
        if begin:
            debugger.set_init_step(begin)
        if train is not None:
            train(debugger, model)
            num_steps = 0
        for number in range(num_steps):
            if edits and number in edits:
                path.write_text(json.dumps({"level": "L0", "dump_path": str(tmp_path / "run"), **edits[number]}))
                debugger._maybe_reload_config(force=True)
            debugger.start(model, rank_id=rank_id)
            train_step(model)
            debugger.stop()
            if counts:
                debugger.step()
        debugger.close()
        debugger.close()
        return [
            one.getMessage()
            for one in caplog.records
            if one.levelno == logging.WARNING and "nothing was recorded: '" in one.getMessage()
        ]

    return run


def test_steps_that_never_come_are_said_once(run, tmp_path):
    (said,) = run(step=[7])
    assert said == (
        "nothing was recorded: 'step' selects 7, but start() covered steps 0 to 2 only (steps count from 0); "
        "select steps that the program has"
    )
    assert not (tmp_path / "run").exists()


def test_steps_before_the_first_one_are_said(run):
    (said,) = run(begin=1000, step=["0-3", 7])
    assert "'step' selects 0-3, 7, but" in said
    assert "1000 to 1002" in said


def test_a_program_that_never_counts_its_steps_is_told_to(run):
    (said,) = run(step=[1], counts=False)
    assert said.endswith("select steps that the program has, and call step() at the end of each")


def test_a_rank_that_a_single_process_is_not_is_said(run):
    (said,) = run(rank=[1])
    assert said.startswith("nothing was recorded: 'rank' selects 1, but this process is in no job")


def test_ranks_that_a_job_does_not_have_are_said_by_its_first_process(run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, expected in ((1, 0), (0, 1)):
        monkeypatch.setattr("numpy_rig.ArrayFramework.rank", lambda _, rank=rank: rank)
        said = run(rank=[2])
        assert len(said) == expected
    assert "the ranks of this job are 0 to 1" in said[0]


@pytest.mark.parametrize(("rank", "selected", "expected"), [(1, [], 0), (0, [], 1), (1, [1, 2], 1), (2, [1, 2], 0)])
def test_steps_are_said_by_one_process_of_a_job(run, monkeypatch, rank, selected, expected):
    monkeypatch.setattr("numpy_rig.ArrayFramework.rank", lambda _: rank)
    assert len(run(step=[7], rank=selected)) == expected


def test_a_window_over_several_steps_covers_those_that_ended(run):
    def train(debugger, model):
        debugger.start(model)
        for _ in range(3):
            train_step(model)
            debugger.step()

    (said,) = run(step=[3], train=train)
    assert "start() covered steps 0 to 2 only" in said


def test_values_that_are_saved_without_a_window_count(run, tmp_path):
    def train(debugger, model):
        with debugger.start(model):
            train_step(model)
        debugger.step()
        debugger.save(np.ones(2), "x")
        debugger.step()

    assert run(step=[1], level="debug", train=train) == []
    assert (tmp_path / "run").exists()


def test_a_framework_that_fails_to_tell_the_rank_ends_the_recording_alone(run, monkeypatch):
    def fail(_):
        raise RuntimeError("no rank")

    monkeypatch.setattr("numpy_rig.ArrayFramework.rank", fail)
    assert run(step=[7]) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"step": [2]},
        {"step": [2, 7]},
        {"step": [7], "num_steps": 0},
        {"step": [7], "dump_enable": False},
        {"rank": [1], "rank_id": 0},  # another process may be selected
        {"step": [7], "rank": [1], "rank_id": 0},
        {},
    ],
)
def test_nothing_is_said_of_others(run, fields):
    assert run(**fields) == []


def test_a_configuration_that_is_switched_off_is_not_complained_about(run):
    assert run(step=[7], dump_enable=True, edits={1: {"dump_enable": False}}) == []


def test_of_an_edited_configuration_only_its_own_steps_are_named(run):
    (said,) = run(num_steps=5, dump_enable=False, edits={3: {"dump_enable": True, "step": [1]}})
    assert "selects 1, but" in said
    assert "3 to 4" in said


def test_what_was_recorded_before_an_edit_is_not_denied(run):
    assert run(num_steps=5, dump_enable=True, edits={3: {"dump_enable": True, "step": [1]}}) == []


def test_it_is_said_also_when_the_program_ends_without_close(tmp_path):
    script = """
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger

debugger, model = ArrayDebugger(dump_path="run", level="L0", step=[7]), Network()
with debugger.start(model):
    train_step(model)
debugger.step()
"""
    support = Path(__file__).parents[1] / "support"
    environment = {"PYTHONPATH": str(support), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("nothing was recorded: 'step' selects 7") == 1
