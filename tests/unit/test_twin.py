"""Two jobs that record while they train: the follower in its training, and ``msprobe twin watch``."""

import itertools
import json
import re
import shutil

import pytest
from click.testing import CliRunner
from numpy_layers import Array, ArrayFramework, Network, PerturbedFramework, train_step

from msprobe_core import PrecisionDebugger
from msprobe_core.capture.features import reference_run
from msprobe_core.cli.twin import twin as command
from msprobe_core.config import load_config
from msprobe_core.errors import CompareError, ConfigError, StoreError
from msprobe_core.locate.engine import LocateOptions
from msprobe_core.locate.result import LocateVerdict
from msprobe_core.recording import repeats
from msprobe_core.store.following import Progress, growth_of
from msprobe_core.twin import follower as follower_module
from msprobe_core.twin.watch import Watch

FAULTY = "Module.middle.Relu.forward.0"


def faulty_relu(model):
    """The activation is off by a per cent."""
    forward = type(model.middle).forward

    class Faulty(type(model.middle)):
        def forward(self, x):
            return Array(forward(self, x).values * 1.01, requires_grad=True)

    Faulty.__name__ = "Relu"
    model.middle = Faulty()


@pytest.fixture
def record(tmp_path):
    """Return a function that trains some steps under a new debugger, and returns losses and weights."""

    def record(name, *, fault_at=None, num_steps=3, rank=None, first=0, task="statistics", twin=None, **options):
        class ArrayDebugger(PrecisionDebugger):
            framework_name = "numpy"

            def _framework(self, model):
                return ArrayFramework()

        options = {"summary_mode": "sketch", **options}
        fields = {"task": task, task: options} | ({} if twin is None else {"twin": twin})
        path = tmp_path / "config.json"
        path.write_text(json.dumps(fields))
        debugger = ArrayDebugger(path, dump_path=tmp_path / name, level="mix")
        debugger.set_init_step(first)
        model, losses = Network(), []
        try:
            for step in range(num_steps):
                if step == fault_at:
                    faulty_relu(model)
                debugger.start(model, rank_id=rank)
                losses.append(train_step(model))
                debugger.stop()
                debugger.step()
        finally:
            debugger.close()
        return losses, model.last.parameters["weight"].values.tobytes()

    return record


def lines(tmp_path, name="follower"):
    (file,) = (tmp_path / name).glob("twin_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- the configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"twin": {}}, "lacks the field 'leader'"),
        ({"twin": {"leader": " "}}, "lacks the field 'leader'"),
        ({"twin": {"leader": "x", "wait": 1e9}}, "'wait' is 1000000000.0, but must be from 0 to 60"),
        ({"twin": {"leader": "x", "budget": 0}}, "'budget' is 0.0, but must be more than 0"),
        ({"twin": {"leader": "x", "on_difference": "halt"}}, "allowed: report, stop"),
        ({"twin": {"lead": "x"}}, "did you mean 'leader'?"),
        ({"twin": {"leader": "x"}, "level": "debug"}, "'twin' compares calls of each step"),
        ({"twin": {"leader": "x"}, "task": "acc_check"}, "take the task statistics or tensor"),
    ],
)
def test_what_a_follower_cannot_be(tmp_path, fields, what):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=re.escape(what)):
        load_config(path)


def test_a_run_does_not_follow_itself(record, tmp_path):
    with pytest.raises(ConfigError, match=r"'twin\.leader' and 'dump_path' are both"):
        record("run", twin={"leader": str(tmp_path / "run")})


# --- the follower -----------------------------------------------------------------------------------------------


def test_the_first_call_that_disagrees_is_named_while_the_training_stays_as_it_is(record, tmp_path, caplog):
    record("leader")
    plain = record("plain", fault_at=1)
    followed = record("follower", fault_at=1, twin={"leader": str(tmp_path / "leader"), "budget": 1000})
    assert followed == plain
    assert [(line["step"], line["verdict"], line.get("entry")) for line in lines(tmp_path)] == [
        (0, "agree", None), (1, "fault", FAULTY)
    ]  # fmt: skip
    said = [each.getMessage() for each in caplog.records if each.getMessage().startswith("step 1: twin: ")]
    assert len(said) == 1
    assert f"{FAULTY} disagrees with {tmp_path / 'leader'}: " in said[0]
    assert (tmp_path / "follower" / "step2").is_dir()
    (file,) = (tmp_path / "follower").glob("twin_*")
    assert file.stat().st_mode & 0o77 == 0


def test_healthy_twins_agree_at_another_offset_and_on_another_device(record, tmp_path, caplog):
    record("leader", first=10)
    record("follower", twin={"leader": str(tmp_path / "leader"), "offset": 10, "budget": 1000}, num_steps=3)
    assert [(line["step"], line["leader_step"], line["verdict"]) for line in lines(tmp_path)] == [
        (step, step + 10, "agree") for step in range(3)
    ]  # fmt: skip
    assert "twin: 3 steps judged, 0 not; no disagreement" in caplog.text


def test_it_stops_recording_if_it_is_told(record, tmp_path):
    record("leader")
    twin = {"leader": str(tmp_path / "leader"), "budget": 1000, "on_difference": "stop"}
    plain = record("plain", fault_at=0)
    assert record("follower", fault_at=0, twin=twin) == plain
    assert not (tmp_path / "follower" / "step1").exists()


def test_a_missing_leader_is_said_once_and_waited_for_no_longer_than_told(record, tmp_path, monkeypatch, caplog):
    waited = []
    monkeypatch.setattr(reference_run.ReferenceRun.__init__, "__defaults__",
                        (0, 0.0, lambda: sum(waited), waited.append))  # fmt: skip
    plain = record("plain")
    assert record("follower", twin={"leader": str(tmp_path / "gone"), "wait": 0.1}) == plain
    said = [each.getMessage() for each in caplog.records if "is not there yet" in each.getMessage()]
    assert len(said) == 1
    assert sum(waited) == pytest.approx(0.3)  # three steps
    assert "twin: 0 steps judged, 3 not (see `msprobe twin watch " in caplog.text


def test_it_does_not_wait_by_default(record, tmp_path, monkeypatch):
    def refuse(seconds):
        raise AssertionError(seconds)

    monkeypatch.setattr(reference_run.time, "sleep", refuse)
    record("follower", twin={"leader": str(tmp_path / "gone")})


def test_a_leader_that_was_killed_in_a_step_and_one_that_skipped_a_step(record, tmp_path, caplog):
    record("leader", num_steps=4)
    shutil.rmtree(tmp_path / "leader" / "step1")
    (dump,) = (tmp_path / "leader" / "step3").glob("*/dump.json")
    dump.write_text(dump.read_text().partition('\n},\n"end"')[0])
    record("follower", num_steps=4, twin={"leader": str(tmp_path / "leader"), "budget": 1000})
    assert [line["step"] for line in lines(tmp_path)] == [0, 2]
    assert "twin: 2 steps judged, 2 not" in caplog.text


def test_a_damaged_dump_of_the_leader_is_a_failure_that_is_said_once(record, tmp_path, caplog):
    record("leader")
    for dump in (tmp_path / "leader").glob("step*/*/dump.json"):
        dump.write_text("{" + dump.read_text()[-2000:])
    plain = record("plain")
    assert record("follower", twin={"leader": str(tmp_path / "leader"), "budget": 1000}) == plain
    assert caplog.text.count("it could not be judged") == 1


def test_a_full_disk_ends_the_file_and_nothing_else(record, tmp_path, monkeypatch, caplog):
    def full(path, line):
        raise StoreError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr(follower_module, "append_line", full)
    record("leader")
    record("follower", fault_at=1, twin={"leader": str(tmp_path / "leader"), "budget": 1000})
    assert caplog.text.count("twin: no further verdicts are written: ") == 1
    assert f"the first disagreement is {FAULTY} in step 1" in caplog.text


def test_its_share_of_the_time_is_kept_and_the_rest_is_judged_at_the_end(record, tmp_path, monkeypatch, caplog):
    judged_at = []
    monkeypatch.setattr(follower_module, "_CLOSING_S", 0.0)
    original = follower_module.Follower._judge
    monkeypatch.setattr(follower_module.Follower, "_judge",
                        lambda self, one: (judged_at.append(one.step), original(self, one))[1])  # fmt: skip
    record("leader", num_steps=4)
    record("follower", num_steps=4, twin={"leader": str(tmp_path / "leader"), "budget": 1e-9})
    assert judged_at == [0]
    assert "twin: 1 steps judged, 3 not" in caplog.text
    monkeypatch.setattr(follower_module, "_CLOSING_S", 100.0)
    shutil.rmtree(tmp_path / "follower")
    record("follower", num_steps=4, twin={"leader": str(tmp_path / "leader"), "budget": 1e-9})
    assert judged_at == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["md5", "hash"])
def test_with_checksums_each_call_is_checked_while_it_is_recorded(record, tmp_path, caplog, mode):
    record("leader", summary_mode=mode)
    record("follower", task="tensor", fault_at=1, twin={"leader": str(tmp_path / "leader")}, summary_mode=mode)
    assert f"step 1: {FAULTY} has the inputs that it has in {tmp_path / 'leader'}, but other outputs (0)" in caplog.text
    (dump,) = (tmp_path / "follower" / "step1").glob("*/dump.json")
    assert json.loads(dump.read_text())["end"]["reason"] == "the check against 'twin' ended it"


# --- following files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["json", "arrow"])
def test_how_far_a_dump_has_come(record, tmp_path, writer):
    if writer == "arrow":
        pytest.importorskip("pyarrow")
    assert growth_of(tmp_path / "nothing").progress is Progress.MISSING
    config = {"task": "statistics", "writer": writer}
    (tmp_path / "config.json").write_text(json.dumps(config))

    class ArrayDebugger(PrecisionDebugger):
        framework_name = "numpy"

        def _framework(self, model):
            return ArrayFramework()

    debugger = ArrayDebugger(tmp_path / "config.json", dump_path=tmp_path / "run", level="mix")
    model = Network()
    debugger.start(model)
    (unit,) = (tmp_path / "run" / "step0").iterdir()
    assert growth_of(unit).progress is Progress.GROWING
    train_step(model)
    debugger.stop()
    assert growth_of(unit).progress is Progress.GROWING  # another window may follow
    debugger.step()
    assert growth_of(unit).progress is Progress.OVER
    debugger.close()


# --- watching ----------------------------------------------------------------------------------------------------


def _nothing():
    """Both jobs are busy."""


class World:
    """Time that passes only in pauses, in which the two jobs go on."""

    def __init__(self, *events):
        self.now = 0.0
        self.events = list(events)

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.events:
            self.events.pop(0)()


@pytest.fixture
def jobs(record, tmp_path):
    """Return a function that makes an event: a job has written a step, or a part of it."""
    record("whole/leader", num_steps=4)
    record("whole/follower", num_steps=4, fault_at=2)

    def writes(job, step, *, part=False):
        def event():
            (source,) = (tmp_path / "whole" / job / f"step{step}").iterdir()
            place = tmp_path / job / f"step{step}" / source.name
            shutil.copytree(source, place, dirs_exist_ok=True)
            if part:
                text = (source / "dump.json").read_text()
                (place / "dump.json").write_text(text[: len(text) // 2])

        return event

    return writes


def watched(tmp_path, world, **options):
    watch = Watch(tmp_path / "follower", tmp_path / "leader", LocateOptions(), clock=world.clock, sleep=world.sleep,
                  **options)  # fmt: skip
    return [
        (each.step, None if each.result is None else each.result.verdict.value, bool(each.problem))
        for each in watch.reports()
    ]


def test_steps_are_judged_as_both_finish_them(jobs, tmp_path):
    world = World(
        jobs("leader", 0), jobs("leader", 1, part=True), jobs("follower", 0), jobs("follower", 1), jobs("follower", 2),
        jobs("leader", 1), jobs("leader", 2)
    )  # fmt: skip
    assert watched(tmp_path, world, patience_s=10) == [
        (0, "agree", False), (1, "agree", False), (2, "fault", False)
    ]  # fmt: skip
    assert world.now < 20


def test_a_killed_leader_a_missing_step_and_nothing_at_all(jobs, tmp_path):
    assert watched(tmp_path, World(), patience_s=5) == []
    world = World(*(jobs("follower", step) for step in range(4)), jobs("leader", 0), jobs("leader", 2, part=True))
    found = watched(tmp_path, world, patience_s=5)
    assert [each[0] for each in found] == [0, 1, 2, 3]
    assert found[0] == (0, "agree", False)
    assert found[1] == (1, None, True)
    assert found[2][1] in (None, "fault", "insufficient")  # as far as the half goes
    assert found[2][1] != LocateVerdict.AGREE.value
    assert found[3] == (3, None, True)


def test_steps_of_a_job_that_was_started_again_are_judged_again(jobs, record, tmp_path):
    def again():
        shutil.rmtree(tmp_path / "follower")
        record("whole/again", num_steps=2, fault_at=1)
        shutil.copytree(tmp_path / "whole" / "again", tmp_path / "follower")
        for dump in (tmp_path / "follower").glob("step*/*/dump.json"):
            text = dump.read_text()
            process = json.loads(text)["run"]["process"]
            dump.write_text(text.replace(f'"process":{process}', f'"process":{process + 1}', 1))

    world = World(*(jobs(job, step) for step in range(2) for job in ("leader", "follower")), *[_nothing] * 12, again)
    found = watched(tmp_path, world, patience_s=20)
    assert [each[:2] for each in found] == [(0, "agree"), (1, "agree"), (0, "agree"), (1, "fault")]


def test_the_command_ends_with_the_first_disagreement(jobs, tmp_path):
    for step in range(4):
        jobs("leader", step)()
        jobs("follower", step)()
    out = tmp_path / "out"
    done = CliRunner().invoke(
        command, ["watch", str(tmp_path / "follower"), str(tmp_path / "leader"), "--wait", "0", "-o", str(out)],
        standalone_mode=False,
    )  # fmt: skip
    assert done.return_value == 1, done.output
    assert f"step 2: {FAULTY} disagrees" in done.output
    assert json.loads((out / "locate.json").read_text())["suspects"][0]["entry"] == FAULTY


@pytest.mark.parametrize(("num_leader", "status"), [(2, 0), (1, 2), (0, 2)])
def test_the_exit_status_says_whether_all_was_judged(jobs, tmp_path, num_leader, status):
    for step in range(2):
        jobs("follower", step)()
    for step in range(num_leader):
        jobs("leader", step)()
    arguments = ["watch", str(tmp_path / "follower"), str(tmp_path / "leader"), "--wait", "0"]
    done = CliRunner().invoke(command, [*arguments, "-o", str(tmp_path / "out")], standalone_mode=False)
    assert done.return_value == status, done.output
    assert not (tmp_path / "out").exists()


# --- repetitions of a step ---------------------------------------------------------------------------------------


@pytest.fixture
def repeated_step(tmp_path):
    """Return a function that records step 1 of 2 with two repetitions, and invokes the command."""

    class ArrayDebugger(PrecisionDebugger):
        framework_name = "numpy"

        def _framework(self, model):
            return PerturbedFramework()

    def run(prepare, mode="hash"):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": "statistics", "step": [1], "statistics": {"summary_mode": mode}}))
        debugger = ArrayDebugger(path, dump_path=tmp_path / "run", level="mix")
        model = Network()
        prepare(model)
        losses = []
        try:
            for _ in range(3):
                with repeats(debugger, model) as runs:
                    for one in runs:
                        loss = train_step(model)
                        if one.is_golden:
                            losses.append(loss)
                debugger.step()
        finally:
            debugger.close()
        done = CliRunner().invoke(command, ["repeats", str(tmp_path / "run")], standalone_mode=False)
        return losses, done

    return run


def varying_relu(model):
    """The activation gives another result each time."""
    numbers = itertools.count(1)

    class Varying(type(model.middle)):
        def forward(self, x):
            return Array(super().forward(x).values * (1 + 1e-12 * next(numbers)), requires_grad=True)

    Varying.__name__ = "Relu"
    model.middle = Varying()


def varying_between(model):
    """The activation gets another input each time, made by nothing that is recorded."""
    numbers = itertools.count(1)

    class Varying(Network):
        def forward(self, x):
            made = self.first.forward(x)
            made.values *= 1 + 1e-12 * next(numbers)
            return self.last.forward(self.middle.forward(made), scale=0.5)

    model.__class__ = Varying


def test_repetitions_that_are_the_same(repeated_step, tmp_path):
    losses, done = repeated_step(lambda _: None)
    assert done.return_value == 0, done.output
    assert "calls are bitwise the same in 3 runs" in done.output
    model = Network()
    assert losses == [train_step(model) for _ in range(3)]
    assert not (tmp_path / "run" / "repeats" / "run1" / "step0").exists()


def test_the_first_call_that_gives_several_results_for_one_input_is_named(repeated_step):
    _, done = repeated_step(varying_relu)
    assert done.return_value == 1, done.output
    assert f"{FAULTY} gives several results for one input in 3 runs (0); its inputs are bitwise the same" in done.output


def test_an_input_that_already_differed_is_said_to(repeated_step):
    _, done = repeated_step(varying_between)
    assert done.return_value == 1, done.output
    assert f"the first difference is an input of {FAULTY} (0): it already differed" in done.output
    assert "look at what runs after Module.first.Dense.forward.0" in done.output


@pytest.mark.parametrize("mode", ["statistics", "sketch"])
def test_repetitions_need_checksums(repeated_step, mode):
    with pytest.raises(ConfigError, match="does not show every difference; take one of hash, md5, xor"):
        repeated_step(lambda _: None, mode)


def test_a_run_without_repetitions_is_refused(record, tmp_path):
    record("run")
    done = CliRunner().invoke(command, ["repeats", str(tmp_path / "run")], standalone_mode=False)
    assert isinstance(done.exception, CompareError)
    assert "has no repetitions" in str(done.exception)
