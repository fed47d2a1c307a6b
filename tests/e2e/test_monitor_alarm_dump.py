"""What an alarm of the monitor opens: a window of recording that the training does not notice."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from jobs import run_job, run_script
from msprobe.pytorch import FlightRecorder, PrecisionDebugger, TrainerMon
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import msprobe_core
from msprobe_core.cli import main
from msprobe_core.errors import ConfigError
from msprobe_core.monitor.recording_requests import NOTICE, RecordingRequests

REPOSITORY = Path(msprobe_core.__file__).parents[1]
STEPS, AT = 52, 45


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.down(self.drop(torch.relu(self.up(x))))


def settings_of(directory, name="monitor.json", **own):
    path = directory / name
    fields = {"xy_distribution": True, "wg_distribution": True, "ops": ["norm"], "step_count_per_record": 10}
    path.write_text(json.dumps({**fields, "msprobe": {"alarm_action": "dump", **own}}))
    return path


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


def train(model, path=None, at=(AT,), steps=STEPS, seed=1, on_step=None):
    """Return the losses and what is left; at some steps, a gradient is scaled before the optimizer's step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.5)
    monitor = None if path is None else TrainerMon(path, params_have_main_grad=False)
    if monitor is not None:
        monitor.set_monitor(model, optimizer)
    torch.manual_seed(seed)
    losses = []
    for step in range(steps):
        if on_step is not None:
            on_step(step, monitor)
        loss = model(torch.randn(5, 8)).square().mean()
        loss.backward()
        losses.append(loss.item().hex())
        if step in at:
            next(model.parameters()).grad *= 1e4
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    return losses, [parameter.tolist() for parameter in model.parameters()], torch.get_rng_state().tolist()


def entries(directory):
    (rank,) = directory.iterdir()
    return json.loads((rank / "dump.json").read_text())["data"]


def alarms(out, rank=0):
    return list(json.loads((out / "anomaly_detected" / f"rank{rank}" / "anomaly.json").read_text()).values())


def test_an_alarm_records_the_next_step_and_changes_no_bit(out, tmp_path, caplog):
    seen = {}
    watched = train(Net(), settings_of(tmp_path), on_step=lambda step, monitor: seen.setdefault(step, monitor.window))
    assert watched == train(Net())
    dump = out / "alarm_dump" / f"step{AT + 1}"
    assert {step: window for step, window in seen.items() if window} == {AT + 1: dump}
    first = alarms(out)[0]
    assert (first["step"], first["dump"]) == (AT, str(dump))
    assert f"msprobe locate {dump} GOLDEN" in first["next"]
    assert f"is recorded: msprobe locate {dump} GOLDEN" in caplog.text
    assert "was recorded after an alarm" in caplog.text

    # The dump is the one that a debugger makes of this step of the same training.
    def record(step, _monitor):
        if step == AT + 1:
            debugger.start(model)
        elif step == AT + 2:
            debugger.stop()
        debugger.step() if step else None

    model = Net()
    with_debugger = PrecisionDebugger(dump_path=str(tmp_path / "golden"), level="mix", step=[AT + 1])
    debugger = with_debugger
    try:
        assert train(model, on_step=record) == watched
    finally:
        debugger.close()
    ours, golden = entries(dump), entries(tmp_path / "golden" / f"step{AT + 1}")
    assert {name for name in golden if name.startswith("Module")} <= set(ours)
    assert all(ours[name] == golden[name] for name in golden if name.startswith("Module"))
    with pytest.raises(SystemExit) as end:
        main(["locate", str(dump), str(tmp_path / "golden" / f"step{AT + 1}")])
    assert end.value.code == 0


def test_a_program_with_a_debugger_of_its_own_records_by_itself(out, tmp_path, caplog):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dump_enable": False, "dump_path": str(tmp_path / "own")}))
    debugger = PrecisionDebugger(config)
    try:
        train(Net(), settings_of(tmp_path))
    finally:
        debugger.close()
    assert not (out / "alarm_dump").exists()
    assert f"msprobe control {config} on" in caplog.text
    assert alarms(out)[0]["dump"] is None


def test_an_alarm_without_a_window_says_what_to_record(out, tmp_path):
    train(Net(), settings_of(tmp_path, max_windows=0))
    first = alarms(out)[0]
    settings = json.loads(first["next"].partition("PrecisionDebugger with ")[2])
    assert settings == {"level": "mix", "step": [AT], "statistics": {"list": ["up"]}}


@pytest.mark.slow
def test_windows_are_as_many_and_as_far_apart_as_is_said(out, tmp_path):
    at = tuple(range(AT, AT + 6))
    train(Net(), settings_of(tmp_path, "soon.json", cooldown_s=0, max_windows=2), at=at)
    assert sorted(path.name for path in (out / "alarm_dump").iterdir()) == [f"step{AT + 1}", f"step{AT + 2}"]
    # Those of an earlier training stay: a later one takes the next step that is free.
    train(Net(), settings_of(tmp_path), at=at)
    assert sorted(path.name for path in (out / "alarm_dump").iterdir())[2:] == [f"step{AT + 3}"]


def test_windows_record_what_is_asked_for(out, tmp_path):
    elsewhere = {"dump_path": str(tmp_path / "elsewhere"), "level": "L0", "task": "tensor"}
    train(Net(), settings_of(tmp_path, dump=elsewhere))
    assert list((tmp_path / "elsewhere" / f"step{AT + 1}").glob("*/dump_tensor_data"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**elsewhere, "dump_path": str(tmp_path / "third")}))
    train(Net(), settings_of(tmp_path, dump=str(config)))
    assert (tmp_path / "third" / f"step{AT + 1}").exists()


def test_a_dump_that_cannot_be_written_does_not_end_the_training(out, tmp_path, caplog):
    path = settings_of(tmp_path, dump={"dump_path": str(tmp_path / "file" / "dump")})
    (tmp_path / "file").write_text("no directory")
    assert train(Net(), path) == train(Net())
    assert "training goes on" in caplog.text


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"dump": {"level": "L2"}}, "'level' is L2"),
        ({"dump": {"task": "overflow_check"}}, "an alarm only records"),
        ({"dump": {"levle": "L1"}}, "levle"),  # codespell:ignore levle
        ({"dump": "missing.json"}, "missing.json"),
        ({"dump": 3}, "'msprobe'"),
    ],
)
def test_wrong_settings_are_refused_before_the_first_step(own, said, out, tmp_path):
    with pytest.raises(ConfigError, match=said):
        TrainerMon(settings_of(tmp_path, **own))


def of_a_rank(rank, world, directory):
    del world
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    fields = {"xy_distribution": True, "forward_only": True, "msprobe": {"alarm_action": "dump"}}
    path = directory / f"monitor{rank}.json"
    path.write_text(json.dumps(fields))
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    torch.manual_seed(5 + rank)
    for step in range(STEPS):
        batch = torch.randn(5, 8) * (1e4 if (rank, step) == (1, AT) else 1)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()


@pytest.mark.slow
def test_all_ranks_record_the_step_that_one_of_them_asks_for(tmp_path):
    run_job(of_a_rank, 2, tmp_path)
    out = tmp_path / "out"
    assert not (out / "anomaly_detected" / "rank0").exists()
    step = AT + 1 + NOTICE
    assert {Path(alarm["dump"]).name for alarm in alarms(out, rank=1)} == {f"step{step}"}
    assert sorted(path.name for path in (out / "alarm_dump").iterdir()) == [f"step{step}"]
    assert sorted(path.name for path in (out / "alarm_dump" / f"step{step}").iterdir()) == ["rank0", "rank1"]


def test_ranks_agree_on_steps_through_a_directory(tmp_path):
    (tmp_path / "step7").mkdir()  # of an earlier training
    now = [100.0]
    one, other = (
        RecordingRequests(tmp_path, most=2, cooldown_s=300, is_shared=True, clock=lambda: now[0]) for _ in range(2)
    )
    assert one.poll() == []
    assert one.ask(5) == 5 + NOTICE + 1  # step7 is taken
    assert (one.ask(9), one.poll(), other.poll(), other.poll()) == (None, [], [8], [])
    assert other.ask(20) is None
    now[0] += 301
    assert other.ask(20) == 20 + NOTICE
    now[0] += 301
    assert (one.poll(), one.ask(40), other.ask(40)) == ([22], None, None)


@pytest.mark.slow
def test_the_demo_records_and_locates_the_planted_fault(tmp_path):
    script = REPOSITORY / "examples" / "monitor" / "train.py"
    trained = run_script(script, tmp_path / "train.log", "--output", tmp_path, "--steps", 64, "--fault-at", 60)
    (planted,) = re.findall(r"planted a fault in (\S+)", trained)
    out = tmp_path / "monitor_output"
    first = alarms(out)[0]
    assert (first["step"], first["tag_name"]) == (60, f"0:{planted}.output:0/rank0/actv")
    with pytest.raises(SystemExit) as end:
        main(["monitor", "analyze", str(out), "-s", "[60]", "-o", str(tmp_path)])
    assert end.value.code == 1
    (found, *_) = json.loads((tmp_path / "anomaly_analyse.json").read_text())
    assert (found["step"], found["name"]) == (60, f"{planted}.output")
    run_script(script, tmp_path / "repeat.log", "--output", tmp_path, "--repeat")
    with pytest.raises(SystemExit) as end:
        main(["locate", str(out / "alarm_dump"), str(tmp_path / "golden"), "-o", str(tmp_path / "result")])
    assert end.value.code == 1
    suspect = json.loads((tmp_path / "result" / "locate.json").read_text())["suspects"][0]
    assert f"Module.{planted}.LayerNorm.forward.0" in json.dumps(suspect)


def test_an_alarm_has_the_last_steps_of_a_flight_recorder_written(out, tmp_path, caplog):
    model = Net()
    settings = settings_of(tmp_path, alarm_action="flight", max_windows=1, cooldown_s=0)
    with FlightRecorder(model, tmp_path / "flight", steps=3, signals=()) as recorder:
        at = (AT, AT + 3)
        watched = train(model, settings, at, on_step=lambda step, _monitor: recorder.step() if step else None)
    assert watched == train(Net(), at=at)
    # The step of the alarm, and those before it.
    assert {path.name for path in (tmp_path / "flight").iterdir()} == {f"step{AT - back}" for back in range(3)}
    first, second = alarms(out)[0], alarms(out)[-1]
    assert (first["step"], first["dump"]) == (AT, str(tmp_path / "flight"))
    assert first["next"] == f"the last steps are recorded: msprobe overflow_check {tmp_path / 'flight'}"
    assert (second["step"], second["dump"]) == (AT + 3, None)  # no more than max_windows
    assert caplog.text.count("an alarm of the monitor: steps") == 1


def test_a_program_without_a_flight_recorder_is_told_so_once(out, tmp_path, caplog):
    train(Net(), settings_of(tmp_path, alarm_action="flight"))
    assert caplog.text.count("the program has none: with FlightRecorder") == 1
    assert alarms(out)[0]["dump"] is None
