"""Two jobs in one directory, and what an earlier run has left there: neither is lost, nor read as part of a run."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
from dumps import api, tensor, write_dump
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger

from msprobe_core.capture.identity import job_of, own_identity
from msprobe_core.capture.run_directory import RunPlace
from msprobe_core.compare import compare_dumps
from msprobe_core.errors import StoreError
from msprobe_core.findings import Finding
from msprobe_core.model import RunIdentity
from msprobe_core.overflow import search
from msprobe_core.store.reading import read_dump
from msprobe_core.store.run_codes import RunCode
from msprobe_core.store.runs import Recorder, are_of_one_run, recorder_of, steps_of_run, units_of_step
from msprobe_core.view.build import build
from msprobe_core.view.stored_graphs import StoredGraphs

NOW = 1_800_000_000.0
HOUR = 3600.0


def recorder(job="a", host="h", process=1, started=NOW, ended=NOW + 60):
    return Recorder(RunIdentity(job=job, host=host, process=process, started=started), ended)


class TestWhoRecorded:
    @pytest.mark.parametrize(
        ("environment", "job"),
        [
            ({}, ""),
            ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, "MASTER_ADDR=10.0.0.1, MASTER_PORT=29500"),
            ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "MASTER_ADDR=127.0.0.1 of h, MASTER_PORT=1"),
            (
                {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2", "MASTER_PORT": "7"},
                "TORCHELASTIC_RUN_ID=none, TORCHELASTIC_RESTART_COUNT=2, MASTER_PORT=7",
            ),
            ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "MASTER_ADDR": "x"}, "SLURM_JOB_ID=5, SLURM_STEP_ID=0"),
            ({"MSPROBE_RUN_ID": "mine", "SLURM_JOB_ID": "5"}, "MSPROBE_RUN_ID=mine"),
        ],
    )
    def test_a_job_is_what_its_launcher_calls_it(self, environment, job):
        assert job_of(environment, "h") == job

    def test_a_process_knows_when_it_began(self):
        own = own_identity()
        assert own.process == os.getpid()
        assert 0 <= time.time() - own.started < 24 * HOUR
        code = (
            "import time; begun = time.time(); time.sleep(0.3)\n"
            "from msprobe_core.capture.identity import own_identity\n"
            "print(own_identity().started - begun)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert -60 < float(done.stdout) < 0.1  # before the first line, not when it was asked

    @pytest.mark.parametrize(
        ("one", "other", "is_one"),
        [
            (recorder(), recorder(process=2), True),
            (recorder(), recorder(job="b", process=2), False),
            (recorder(), recorder(process=2, started=NOW + HOUR, ended=NOW + 2 * HOUR), False),
            (recorder(ended=NOW + 2 * HOUR), recorder(process=2, started=NOW + HOUR, ended=NOW + 2 * HOUR), True),
            (recorder(), recorder(process=2, host="i", started=NOW + 70, ended=NOW + HOUR), True),
            (recorder(), recorder(process=2, host="h", started=NOW + 70, ended=NOW + HOUR), False),
            (recorder(), recorder(started=NOW, ended=NOW + 9 * HOUR), True),
            (
                recorder(job="MSPROBE_RUN_ID=x"),
                recorder(job="MSPROBE_RUN_ID=x", process=2, started=NOW + HOUR, ended=NOW + 2 * HOUR), True,
            ),
            (Recorder(None, NOW), Recorder(None, NOW + HOUR), True),
            (Recorder(None, NOW), recorder(), False),
        ],
        ids=[
            "ranks", "jobs", "again", "together", "clocks", "one clock", "a process", "named", "unknown", "half known",
        ],
    )  # fmt: skip
    def test_which_dumps_are_of_one_run(self, one, other, is_one):
        assert are_of_one_run(one, other) is is_one
        assert are_of_one_run(other, one) is is_one

    @pytest.mark.parametrize("writer", ["json", "arrow"])
    def test_it_is_read_without_the_dump(self, tmp_path, writer):
        if writer == "arrow":
            pytest.importorskip("pyarrow")
        debugger, model = ArrayDebugger(dump_path=tmp_path, level="mix", writer=writer), Network()
        with debugger.start(model, rank_id=3):
            train_step(model)
        debugger.close()
        unit = tmp_path / "step0" / "rank3"
        found = recorder_of(unit)
        assert found.identity == read_dump(unit).header.run == own_identity()
        assert found.ended == read_dump(unit).ending.ended
        assert abs(found.ended - time.time()) < 60


# --- what an earlier run has left ---------------------------------------------------------------------------------


def write(directory, *, begun=NOW, job="a", fault=1.0):
    data = {f"Torch.mul.{i}.forward": api(tensor([1.0, 2.0]), output=tensor([fault, 2.0])) for i in range(3)}
    run = {"job": job, "host": "h", "process": int(begun - NOW) + 7, "started": begun}
    end = {"state": "complete", "calls": 3, "windows": 1, "ended": begun + 60}
    return write_dump(directory, data, run=run, end=end)


@pytest.fixture
def runs(tmp_path):
    """A healthy golden run of two ranks, and a target of one rank over what a faulty run of two has left."""
    for step in range(2):
        for rank in range(2):
            write(tmp_path / "golden" / f"step{step}" / f"rank{rank}")
            write(tmp_path / "target" / f"step{step}" / f"rank{rank}", fault=9.0)
    write(tmp_path / "target" / "step0" / "rank0", begun=NOW + HOUR)
    return tmp_path / "target", tmp_path / "golden"


class TestLeftovers:
    def test_another_rank_is_said_and_not_judged(self, runs):
        target, golden = runs
        result = compare_dumps(target / "step0", golden / "step0")
        assert not result.differs
        assert not result.agrees
        assert result.missing == [f"rank1 is in {golden / 'step0'} only"]
        (note,) = result.units[0].note_findings
        assert note.code is RunCode.UNITS_LEFT_OUT
        units, run = note.fields["units"], note.fields["run"]
        assert (note.fields["path"], note.fields["latest"]) == (str(target / "step0"), "rank0")
        assert (units, note.fields["variable"]) == (Finding(RunCode.RANK, fields={"ranks": ["1"]}), "MSPROBE_RUN_ID")
        assert (run.code, run.fields["process"], run.fields["host"]) == (RunCode.BEGUN, 7, "h")

    def test_later_steps_are_left_out(self, runs):
        target, golden = runs
        steps, notes = steps_of_run(target)
        assert list(steps) == [0]
        (note,) = notes
        assert (note.code, note.fields["path"]) == (RunCode.STEPS_LEFT_OUT, str(target))
        assert note.fields["steps"] == Finding(RunCode.STEP, fields={"steps": ["1"]})
        result = compare_dumps(target, golden)
        assert not result.differs
        assert f"step1 is in {golden} only" in result.missing
        assert search(target).steps[0].notes[0] == note

    def test_a_page_of_both_runs_says_so_too(self, runs):
        with closing(StoredGraphs()) as graphs:
            notes = build(*runs, graphs).notes
        assert RunCode.STEPS_LEFT_OUT.value in [note.code for note in notes]

    def test_earlier_steps_stay_as_of_a_training_that_went_on(self, tmp_path):
        for step, begun in ((0, NOW), (1, NOW), (2, NOW + HOUR), (3, NOW + HOUR)):
            write(tmp_path / f"step{step}" / "rank0", begun=begun)
        steps, notes = steps_of_run(tmp_path)
        assert list(steps) == [0, 1, 2, 3]
        steps, later = (Finding(RunCode.STEPS, fields={"steps": [own]}) for own in ("0-1", "2-3"))
        fields = {"path": str(tmp_path), "steps": steps, "later": later}
        assert notes == [Finding(RunCode.EARLIER_STEPS, fields=fields)]

    def test_processes_outside_of_a_job_too(self, tmp_path):
        for side in ("t", "g"):
            write(tmp_path / side / "step0" / "proc12", job="", begun=NOW)
        write(tmp_path / "t" / "step0" / "proc99", job="", begun=NOW + HOUR)
        result = compare_dumps(tmp_path / "t" / "step0", tmp_path / "g" / "step0")
        assert result.agrees
        assert result.units[0].note_findings[0].fields["units"] == ["proc12"]

    def test_ranks_of_one_job_stay_together(self, tmp_path):
        for rank in range(4):
            write(tmp_path / "step0" / f"rank{rank}", begun=NOW + rank * 20)
        assert len(units_of_step(tmp_path / "step0").units) == 4


# --- two jobs at a time -------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
sys.path[:0] = {paths!r}
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger
debugger, model = ArrayDebugger(dump_path={run!r}, level="mix", task="tensor"), Network()
with debugger.start(model, rank_id={rank}):
    train_step(model)
debugger.step()
{more}
print("recorded", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other_job(tmp_path):
    """Start a job that records a step of a rank and then goes on living; return its process."""
    started = []

    def start(rank=0, more="", port="1"):
        program = HOLDER.format(paths=sys.path, run=str(tmp_path / "run"), rank=rank, more=more)
        environment = {**os.environ, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": port}
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout.readline() == "recorded\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def record(path, rank=0, fault=1.0):
    debugger, model = ArrayDebugger(dump_path=path, level="mix", task="tensor"), Network()
    model.last.parameters["weight"].values[...] *= fault
    try:
        with debugger.start(model, rank_id=rank):
            train_step(model)
        debugger.step()
        return debugger.directory
    finally:
        debugger.close()


def content_of(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


class TestTwoJobs:
    @pytest.mark.parametrize("rank", [0, 3], ids=["the same rank", "a further rank"])
    def test_the_second_is_recorded_beside_the_first(self, tmp_path, other_job, caplog, rank):
        other_job()
        before = content_of(tmp_path / "run" / "step0")
        directory = record(tmp_path / "run", rank, fault=2.0)
        assert directory.parents[1].parent == tmp_path
        assert directory.parents[1].name.startswith("run-")
        assert content_of(tmp_path / "run" / "step0") == before
        (warning,) = [r.getMessage() for r in caplog.records if "another job is recording there" in r.getMessage()]
        assert "MASTER_ADDR=10.0.0.1, MASTER_PORT=1" in warning
        assert str(directory.parents[1]) in warning

    def test_all_ranks_of_the_second_go_to_one_place(self, tmp_path, other_job, monkeypatch):
        other_job()
        monkeypatch.setenv("MASTER_ADDR", "10.0.0.2")
        places = {record(tmp_path / "run", rank).parents[1] for rank in range(3)}
        assert len(places) == 1

    def test_ranks_of_one_job_share_a_directory(self, tmp_path, other_job):
        other_job(0)
        other_job(1)
        other_job(5)
        assert sorted(path.name for path in (tmp_path / "run" / "step0").iterdir()) == ["rank0", "rank1", "rank5"]

    def test_one_that_was_killed_holds_nothing_and_is_said(self, tmp_path, other_job, caplog):
        process = other_job()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / "run" / ".rank0.lock").exists()
        assert record(tmp_path / "run") == tmp_path / "run" / "step0" / "rank0"
        assert "holds step 0 of an earlier run (begun at " in caplog.text
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["step0"]

    def test_a_child_of_fork_does_not_hold_what_its_parent_held(self, tmp_path, other_job):
        child = "import os\nif not os.fork():\n    os.close(1)\n    time.sleep(20)\n    os._exit(0)\n"
        process = other_job(more=child)
        process.kill()
        process.wait()
        assert record(tmp_path / "run") == tmp_path / "run" / "step0" / "rank0"

    def test_a_third_one_ends_its_recording_and_not_its_training(self, tmp_path, other_job, caplog, monkeypatch):
        other_job()
        monkeypatch.setattr("msprobe_core.capture.run_directory._tag", lambda *_: "x")
        (tmp_path / "run-x").mkdir()
        first = RunPlace(tmp_path / "run-x")
        monkeypatch.setattr("msprobe_core.capture.run_directory._lock", lambda _: False)
        with pytest.raises(StoreError, match="another job is recording rank 0 there"):
            first._claim(tmp_path / "run-x", 0, own_identity())
        assert record(tmp_path / "run") is None
        assert "recording ends at step 0, training goes on: " in caplog.text

    def test_nothing_of_it_stays(self, tmp_path):
        record(tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["step0"]
        assert (
            json.loads((tmp_path / "run" / "step0" / "rank0" / "dump.json").read_text())["run"]["process"]
            == os.getpid()
        )
