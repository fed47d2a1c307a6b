"""A configuration file that is edited while the training runs, by hand and by ``msprobe control``."""

import json
import logging
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest
import yaml
from limited import grows_linearly
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger
from recorded import Recorded

from msprobe_core.cli import main
from msprobe_core.config import ConfigWatch, edit, load_config
from msprobe_core.config.edit import edit_config
from msprobe_core.config.watch import POLL_SECONDS
from msprobe_core.errors import ConfigError


class Clock:
    """Goes on by more than the time between two looks whenever it is asked."""

    def __init__(self, stride=2 * POLL_SECONDS):
        self.now = 0.0
        self.stride = stride

    def __call__(self):
        self.now += self.stride
        return self.now


def write(path, **fields):
    write_text(path, json.dumps(fields))


def write_text(path, text):
    path.write_text(text)
    os.utime(path, ns=(path.stat().st_mtime_ns - 10**10,) * 2)  # as if it had rested for ten seconds


@pytest.fixture
def path(tmp_path):
    return tmp_path / "config.json"


@pytest.fixture
def make(path, tmp_path):
    """Return a function that makes a debugger whose file is looked at whenever there is an occasion."""
    made = []

    def make(**fields):
        write(path, **{"dump_enable": True, "level": "mix", "dump_path": str(tmp_path / "run"), **fields})
        debugger = ArrayDebugger(path)
        made.append(debugger)
        if debugger._controller.settings.watch is not None:
            debugger._controller.settings.watch = ConfigWatch(path, {}, debugger.config, clock=Clock())
        return debugger

    yield make
    for debugger in made:
        debugger.close()


def train(debugger, model, num_steps=1):
    for _ in range(num_steps):
        debugger.start(model)
        train_step(model)
        debugger.stop()
        debugger.step()


def steps_of(run):
    return sorted(path.name for path in run.iterdir()) if run.exists() else []


# --- the watch ------------------------------------------------------------------------------------------------------


def watch_of(path, clock, wall_clock=lambda: 1e12):
    return ConfigWatch(path, {}, load_config(path), clock=clock, wall_clock=wall_clock)


def test_the_file_is_looked_at_twice_a_second_at_the_most(path):
    write(path, dump_enable=True)
    clock = Clock(stride=0.0)
    watch = watch_of(path, clock)
    assert watch.poll() is None
    write(path, dump_enable=False)
    clock.now = POLL_SECONDS * 0.99
    assert watch.poll() is None
    clock.now = POLL_SECONDS
    assert watch.poll().dump_enable is False
    clock.now = 10.0
    assert watch.poll() is None


def test_a_file_edited_between_loading_and_watching_is_seen(path):
    write(path, dump_enable=True)
    config = load_config(path)
    write(path, dump_enable=False)
    assert ConfigWatch(path, {}, config, clock=Clock()).poll().dump_enable is False


def test_a_file_that_is_being_written_is_left_alone_until_it_rests(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("dump_enable: true\nstep: [0]\n")
    os.utime(path, (100.0, 100.0))
    now = [200.0]
    watch = watch_of(path, Clock(), lambda: now[0])
    assert watch.poll() is None
    path.write_text("dump_enable: true\nstep: [0]\nlevel: L0\n")  # valid, and half of what is being written
    os.utime(path, (300.0, 300.0))
    now[0] = 300.1
    assert watch.poll() is None
    with path.open("a") as file:
        file.write("rank: [3]\n")
    os.utime(path, (300.2, 300.2))
    now[0] = 300.3
    assert watch.poll() is None
    now[0] = 300.8
    config = watch.poll()
    assert (config.level.value, config.rank) == ("L0", (3,))


def test_a_file_server_with_another_clock_only_costs_one_look_more(path):
    write(path, dump_enable=True)
    watch = watch_of(path, Clock(), lambda: 0.0)  # every file is from the future
    assert [watch.poll(), watch.poll()] == [None, None]
    write(path, dump_enable=True, level="L0")
    assert watch.poll() is None
    assert watch.poll().level.value == "L0"


def test_what_is_wrong_is_said_once_and_tried_again(path):
    write(path, dump_enable=True)
    watch = watch_of(path, Clock())
    watch.poll()
    write(path, dump_enable=True, level="L7")
    with pytest.raises(ConfigError, match="'level' is 'L7'"):
        watch.poll()
    assert [watch.poll(), watch.poll()] == [None, None]
    path.write_text('{"dump_enable": tr')
    with pytest.raises(ConfigError, match="not valid JSON"):
        watch.poll()
    write(path, dump_enable=True)
    assert watch.poll() == load_config(path)  # the same as at first, and told, because recording was off


def test_a_file_that_is_gone_for_a_moment_is_waited_for(path):
    write(path, dump_enable=True)
    watch = watch_of(path, Clock())
    watch.poll()
    path.unlink()
    assert watch.poll() is None
    write(path, dump_enable=True, level="L0")
    assert watch.poll().level.value == "L0"
    path.unlink()
    assert watch.poll() is None
    with pytest.raises(ConfigError, match="cannot be read"):
        watch.poll()


def test_a_deleted_key_keeps_the_last_value(path):
    write(path, dump_enable=True)
    watch = watch_of(path, Clock())
    write(path, dump_enable=False)
    assert watch.poll().dump_enable is False
    write(path, level="L0")
    config = watch.poll()
    assert (config.dump_enable, config.level.value) == (False, "L0")


# --- the debugger ---------------------------------------------------------------------------------------------------


def test_switching_off_and_on_keeps_the_numbers_of_the_steps(make, path, tmp_path):
    model = Network()
    debugger = make()
    train(debugger, model)
    write(path, dump_enable=False, level="mix", dump_path=str(tmp_path / "run"))
    train(debugger, model, 2)
    write(path, dump_enable=True, level="mix", dump_path=str(tmp_path / "run"))
    train(debugger, model)
    assert steps_of(tmp_path / "run") == ["step0", "step3"]
    assert "Module.first.Dense.backward.0" in Recorded(tmp_path / "run", 0).data
    assert list(Recorded(tmp_path / "run", 0).data) == list(Recorded(tmp_path / "run", 3).data)


def test_the_whole_configuration_changes_at_the_border_of_a_step_and_not_inside(make, path, tmp_path):
    model = Network()
    debugger = make(level="mix")
    debugger.start(model)
    train_step(model)
    debugger.stop()
    write(path, dump_enable=True, level="L0", task="tensor", dump_path=str(tmp_path / "other"),
          tensor={"list": ["first"], "summary_mode": "md5"})  # fmt: skip
    debugger.start(model)
    train_step(model)
    debugger.stop()
    first = Recorded(tmp_path / "run")
    assert first.header["level"] == "mix"
    assert "Functional.multiply.3.forward" in first.data  # of the second window
    debugger.step()
    train(debugger, model)
    second = Recorded(tmp_path / "other", 1)
    assert (second.header["task"], second.header["level"]) == ("tensor", "L0")
    assert set(second.data) == {
        "Module.first.Dense.forward.0", "Module.first.Dense.backward.0", "Module.first.Dense.parameters_grad.0"
    }  # fmt: skip
    assert second.data["Module.first.Dense.forward.0"]["output"][0]["md5"]
    assert steps_of(tmp_path / "run") == ["step0"]


def test_a_debugger_that_goes_on_over_steps_changes_too(make, path, tmp_path):
    model = Network()
    debugger = make(level="L0")
    debugger.start(model)
    train_step(model)
    write(path, dump_enable=True, level="L1", dump_path=str(tmp_path / "run"))
    debugger.step()
    train_step(model)
    write(path, dump_enable=False, level="L1", dump_path=str(tmp_path / "run"))
    debugger.step()
    train_step(model)
    debugger.stop()
    assert [Recorded(tmp_path / "run", step).header["level"] for step in (0, 1)] == ["L0", "L1"]
    assert steps_of(tmp_path / "run") == ["step0", "step1"]


def test_a_broken_file_switches_off_with_a_warning_until_it_is_corrected(make, path, tmp_path, caplog):
    model = Network()
    debugger = make()
    train(debugger, model)
    write_text(path, '{"dump_enable": true, "level"')
    train(debugger, model, 3)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "is not valid JSON" in warnings[0]
    assert "nothing is recorded until the file is corrected" in warnings[0]
    write(path, dump_enable=True, level="mix", dump_path=str(tmp_path / "run"))
    train(debugger, model)
    assert steps_of(tmp_path / "run") == ["step0", "step4"]


@pytest.mark.parametrize("edited", [
    {"level": "L2"}, {"task": "nan_check"}, {"statistics": {"summary_mode": "other"}}, {"dump_path": "/proc/none/of"},
    {"dump_path": "~nobody-of-that-name/x"}, {"load": {"path": None, "modules": ["Module.x.Y.forward.0"]}},
    {"dump_path": "new\0"},
], ids=["level", "task", "summary_mode", "dump_path", "home", "null", "null character"])  # fmt: skip
def test_what_cannot_be_recorded_never_reaches_the_training(make, path, tmp_path, caplog, edited):
    model = Network()
    debugger = make()
    train(debugger, model)
    write(path, **{"dump_enable": True, "level": "mix", "dump_path": str(tmp_path / "run"), **edited})
    train(debugger, model, 2)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "nothing is recorded until the file is corrected" in warning
    write(path, dump_enable=True, level="mix", dump_path=str(tmp_path / "run"))
    train(debugger, model)
    assert steps_of(tmp_path / "run") == ["step0", "step3"]


def test_a_level_that_needs_the_model_is_no_exception_in_a_program_that_gives_none(make, path, tmp_path, caplog):
    debugger = make(level="L1")
    debugger.start()
    debugger.stop()
    debugger.step()
    write(path, dump_enable=True, level="mix", dump_path=str(tmp_path / "run"))
    debugger.start()
    assert "level mix records modules: call start(model)" in caplog.text
    assert not debugger._controller.session.is_running
    write(path, dump_enable=True, level="L1", dump_path=str(tmp_path / "run"))
    debugger.start()
    assert debugger._controller.session.is_running


def test_arguments_win_over_the_edited_file_too(path, tmp_path):
    write(path, dump_enable=True, level="L0")
    debugger = ArrayDebugger(path, dump_path=tmp_path / "mine")
    try:
        debugger._controller.settings.watch = ConfigWatch(
            path, {"dump_path": tmp_path / "mine"}, debugger.config, clock=Clock()
        )
        write(path, dump_enable=True, level="mix", dump_path=str(tmp_path / "file"))
        train(debugger, Network())
        assert Recorded(tmp_path / "mine").header["level"] == "mix"
        assert not (tmp_path / "file").exists()
    finally:
        debugger.close()


def test_a_file_that_does_not_say_dump_enable_is_not_watched(path, tmp_path):
    for fields, arguments in (({}, {}), ({"dump_enable": None}, {}), ({"dump_enable": True}, {"dump_enable": True})):
        write(path, level="L0", dump_path=str(tmp_path / "run"), **fields)
        debugger = ArrayDebugger(path, **arguments)
        assert debugger._controller.settings.watch is None
        debugger.close()


def test_a_second_construction_from_an_edited_file_is_the_same_debugger(make, path, tmp_path, caplog):
    debugger = make()
    given = {"task": None, "dump_path": None, "level": None, "step": None}
    debugger._controller.settings.watch = ConfigWatch(path, given, debugger.config, clock=Clock())
    write(path, dump_enable=False)
    assert ArrayDebugger(path) is debugger
    assert not caplog.messages
    assert ArrayDebugger(path, level="L1") is debugger
    assert "the arguments of this construction are ignored" in caplog.text


def test_while_switched_off_nothing_is_in_the_model(make, path):
    model = Network()
    before = [dict(vars(layer)) for _, layer in model.named_layers()]
    debugger = make(dump_enable=False)
    debugger.start(model)
    assert [dict(vars(layer)) for _, layer in model.named_layers()] == before
    assert not debugger._controller.session.is_running


# --- msprobe control ------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.delenv("MSPROBE_DEBUG", raising=False)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["control", *map(str, arguments)])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_control_switches_what_a_debugger_then_follows(run, make, path, tmp_path):
    model = Network()
    debugger = make()
    debugger._controller.settings.watch = ConfigWatch(path, {}, debugger.config, clock=Clock(), wall_clock=lambda: 1e12)
    said = "recording is off\na running job that reads this file takes this over at its next step\n"
    assert run(path, "off") == (0, said, "")
    train(debugger, model)
    assert run(path, "on")[0] == 0
    assert run(path, "set", "level=L0", 'step=["1-3", 7]', 'statistics.list=["first"]')[0] == 0
    train(debugger, model)
    assert steps_of(tmp_path / "run") == ["step1"]
    assert Recorded(tmp_path / "run", 1).starting("Module.first.Dense.forward") == ["Module.first.Dense.forward.0"]
    code, out, _ = run(path, "status")
    said = "task statistics; level L0; summary_mode statistics; step 1-3, 7; rank all; list first"
    assert (code, out.splitlines()[0]) == (0, f"recording is on: {said}; to {tmp_path / 'run'}")
    assert out.splitlines()[1] == "a running job that reads this file does this at its next step"


def test_control_says_who_does_not_follow(run, path):
    write(path, level="L0")
    assert "no job follows this file while it runs, because it has no 'dump_enable'" in run(path, "status")[1]
    assert "one that runs already does not" in run(path, "off")[1]


def test_control_keeps_form_comments_permissions_and_other_keys(run, tmp_path):
    path = tmp_path / "c.yaml"
    text = "# mine\ntask: statistics  # keep\nlevel: L1   # which\nstatistics:\n  list: [a, b]\n"
    path.write_text(text)
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    assert run(link, "off")[2] == ""
    assert run(link, "set", "level=mix")[2] == ""
    assert path.read_text() == text.replace("L1 ", '"mix" ') + "dump_enable: false\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert "its comments are lost" in run(path, "set", 'statistics.list=["c"]', "statistics.summary_mode=md5")[2]
    assert yaml.safe_load(path.read_text()) == {
        "task": "statistics", "level": "mix", "statistics": {"list": ["c"], "summary_mode": "md5"}, "dump_enable": False
    }  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.yaml", "link.yaml"]


@pytest.mark.parametrize("filling", ["\n", " ", "level: \n", "# "], ids=["lines", "spaces", "keys", "comments"])
def test_control_takes_time_that_is_linear_in_the_file(tmp_path, filling):
    def change(size):
        path = tmp_path / "config.yaml"
        path.write_text(f"dump_enable: true\nlevel: L0 {filling * (size // len(filling))}\nrank: []\n")
        with suppress(ConfigError):
            edit_config(path, {"level": "L1"})

    assert grows_linearly(change, 4_000)


def test_control_changes_the_key_of_the_right_block(run, path):
    write(path, dump_enable=True, tensor={"summary_mode": "md5"}, statistics={"summary_mode": "md5"})
    assert run(path, "set", "statistics.summary_mode=xor")[0] == 0
    content = json.loads(path.read_text())
    assert (content["tensor"], content["statistics"]) == ({"summary_mode": "md5"}, {"summary_mode": "xor"})


@pytest.mark.parametrize(("arguments", "expected"), [
    (("set", "level=L7"), "'level' is 'L7'; did you mean 'L2'?"),
    (("set", "levle=L1"), "unknown field 'levle'"),  # codespell:ignore levle
    (("set", "statistics.lists=[]"), "unknown field 'lists'"),
    (("set", "level"), "'level' is no KEY=VALUE"),
    (("set",), "set what?"),
    (("on", "level=L1"), "takes no KEY=VALUE"),
    (("offf",), "is not one of"),
])  # fmt: skip
def test_control_leaves_the_file_alone_when_the_change_is_wrong(run, path, arguments, expected):
    write(path, dump_enable=True)
    before = path.read_bytes(), path.stat().st_mtime_ns
    code, out, err = run(path, *arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_control_of_a_file_that_is_none(run, path):
    code, _, err = run(path, "on")
    assert code == 2
    assert "cannot be read" in err
    path.write_text("{")
    assert "is not valid JSON" in run(path, "on")[2]
    assert path.read_text() == "{"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("may_give", [True, False])
def test_control_leaves_the_file_to_its_owner(may_give, run, path, monkeypatch):
    write(path, dump_enable=True)
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    if not may_give:  # as of a colleague's file in a shared directory

        def refuse(*_):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "chown", refuse)
    assert run(path, "set", "level=mix")[0] == 0
    after = path.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (12345, 23456, 0o640)
    assert json.loads(path.read_text()) == {"dump_enable": True, "level": "mix"}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_control_loses_no_concurrent_edit(tmp_path):
    path = tmp_path / "c.json"
    write(path, dump_enable=True)
    together = Barrier(2)

    def edits_that_were_lost(key):
        num_lost = 0
        together.wait()
        for number in range(30):
            edit_config(path, {key: [number]})
            time.sleep(0.002)
            num_lost += json.loads(path.read_text())[key] != [number]
        return num_lost

    with ThreadPoolExecutor(2) as pool:  # the lock holds between threads as it does between processes
        assert list(pool.map(edits_that_were_lost, ["step", "rank"])) == [0, 0]


def test_control_takes_up_what_an_editor_saves_meanwhile(run, path, monkeypatch):
    write(path, dump_enable=True)
    check, calls = edit.check_config, []

    def save_meanwhile(*arguments):
        calls.append(1)
        if len(calls) == 1:
            path.write_text(json.dumps({"dump_enable": True, "rank": [3]}))
        return check(*arguments)

    monkeypatch.setattr(edit, "check_config", save_meanwhile)
    assert run(path, "off")[0] == 0
    assert json.loads(path.read_text()) == {"dump_enable": False, "rank": [3]}
