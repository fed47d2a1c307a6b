"""Level L2: what of the configuration reaches MindSpore's own dump, what is refused, and what a session does then.

MindSpore itself is a stand-in here; that it reads the file, and what comes of it, is tested with the real one.
"""

import json
import logging
import os
from types import SimpleNamespace

import click.testing
import pytest
from msprobe.mindspore._commands import kernel_dump
from msprobe.mindspore._kernel_dump import KernelDump, check_machine, dump_settings
from numpy_layers import ArrayFramework, Network
from numpy_rig import ArrayDebugger

from msprobe_core.capture.kernel_dump import kernel_options
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.model import KernelOptions


def write(tmp_path, task="statistics", block=None, **fields):
    path = tmp_path / "config.json"
    fields = {"task": task, "level": "L2", "dump_path": str(tmp_path / "run"), **fields}
    path.write_text(json.dumps(fields | ({task: block} if block is not None else {})))
    return path


def settings_of(tmp_path, version="2.10.0", **given):
    return json.loads(encoded(dump_settings(kernel_options(load_config(write(tmp_path, **given))), version)))


def encoded(settings):
    import msgspec

    return msgspec.json.encode(settings)


def test_everything_that_is_left_out(tmp_path):
    assert settings_of(tmp_path) == {
        "common_dump_settings": {
            "dump_mode": 0,
            "path": str(tmp_path / "run"),
            "net_name": "Net",
            "iteration": "all",
            "saved_data": "statistic",
            "input_output": 0,
            "kernels": [],
            "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
            "statistic_category": ["max", "min", "avg", "l2norm"],
        },
        "e2e_dump_settings": {
            "enable": True,
            "trans_flag": True,
            "stat_calc_mode": "host",
            "device_stat_precision_mode": "high",
        },
    }


@pytest.mark.parametrize(("given", "part", "expected"), [
    ({"step": [0, 2]}, "common", {"iteration": "0|2"}),
    ({"step": ["3-5"]}, "common", {"iteration": "3|4|5"}),
    ({"rank": [1, 3]}, "common", {"support_device": [1, 3]}),
    ({"task": "tensor"}, "common", {"saved_data": "tensor", "statistic_category": []}),
    ({"block": {"data_mode": ["input"]}}, "common", {"input_output": 1}),
    ({"block": {"data_mode": ["output"]}}, "common", {"input_output": 2}),
    ({"block": {"list": ["MatMul", "Default/a-Dense/MatMul-op0", "name-regex(.*Norm.*)"]}}, "common",
     {"dump_mode": 1, "kernels": ["MatMul", "Default/a-Dense/MatMul-op0", "name-regex(.*Norm.*)"]}),
    ({"block": {"summary_mode": ["mean", "max", "nan count", "max"]}}, "common",
     {"statistic_category": ["avg", "max", "nan count"]}),
    ({"block": {"summary_mode": "md5"}}, "common", {"statistic_category": ["hash:md5"]}),
    ({"block": {"summary_mode": "md5"}, "version": "2.7.1"}, "common", {"statistic_category": ["hash:md5"]}),
    ({"block": {"summary_mode": "md5"}, "version": "2.7.0"}, "common", {"statistic_category": ["md5"]}),
    ({"block": {"summary_mode": ["md5", "l2norm"]}, "version": "2.6.0rc1"}, "common",
     {"statistic_category": ["md5", "l2norm"]}),
    ({"block": {"device": "device", "precision": "low"}}, "e2e",
     {"stat_calc_mode": "device", "device_stat_precision_mode": "low"}),
    ({"async_dump": True}, "e2e", {"enable": False}),
], ids=str)  # fmt: skip
def test_what_each_field_becomes(tmp_path, given, part, expected):
    found = settings_of(tmp_path, **given)[f"{part}_dump_settings"]
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(("given", "expected"), [
    ({"block": {"data_mode": ["forward"]}}, "'data_mode' is forward, but at level L2 it must be one of all, input"),
    ({"block": {"data_mode": ["input", "output"]}}, "'data_mode' is input, output"),
    ({"block": {"list": ["name-regex(a(b)"]}}, r"'name-regex\(a\(b\)', which is no regular expression"),
    ({"block": {"list": ["name-regex(a"]}}, "is not closed"),
    ({"block": {"list": ["name-regex()"]}}, "holds nothing"),
    ({"block": {"list": [" "]}}, "empty text"),
    ({"block": {"summary_mode": ["means"]}}, "'means'; did you mean 'mean'"),
    ({"block": {"summary_mode": "sketch"}}, "'summary_mode' has 'sketch'"),
    ({"block": {"summary_mode": ["statistics", "max"]}}, "'summary_mode' has 'statistics'"),
    ({"block": {"tensor_list": ["a"]}}, "'tensor_list' does not apply at level L2"),
    ({"block": {"slice": [{"dim": 0, "end": 2}]}}, "'slice' does not apply at level L2"),
    ({"block": {"scope": ["a", "b"]}}, "'scope' does not apply at level L2"),
    ({"writer": "arrow"}, "'writer' does not apply at level L2"),
    ({"dump_enable": True}, "at level L2 the framework reads its settings once"),
    ({"task": "overflow_check"}, "the task 'overflow_check' does not apply at level L2; use statistics or tensor"),
], ids=str)  # fmt: skip
def test_what_a_dump_of_kernels_does_not_have_is_refused(tmp_path, given, expected):
    with pytest.raises(ConfigError, match=expected):
        settings_of(tmp_path, **given)


def mindspore(target="Ascend", jit_level="O0", *, has_communication=False):
    """What of MindSpore is asked."""
    counted = []
    return SimpleNamespace(
        get_context={"device_target": target, "jit_level": jit_level}.get,
        communication=SimpleNamespace(GlobalComm=SimpleNamespace(INITED=has_communication)),
        _c_expression=SimpleNamespace(_set_init_iter=counted.append),
        counted=counted,
    )


def options_of(tmp_path, **given):
    return kernel_options(load_config(write(tmp_path, **given)))


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_on_ascend_the_environment_names_the_file_and_the_other_way_to_dump_is_off(tmp_path, caplog):
    environment = {"MS_ACL_DUMP_CFG_PATH": "acl.json", "OTHER": "1"}
    dump = KernelDump(mindspore(), options_of(tmp_path), environment)
    path = tmp_path / "run" / "kernel_kbyk_dump.json"
    assert environment == {"MINDSPORE_DUMP_CONFIG": str(path), "OTHER": "1"}
    assert json.loads(path.read_bytes())["common_dump_settings"]["path"] == str(tmp_path / "run")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [line.partition(" ")[0] for line in warnings_of(caplog)] == ["MS_ACL_DUMP_CFG_PATH"]
    (tmp_path / "run/rank_0/Net/0/0").mkdir(parents=True)
    (tmp_path / "run/rank_0/Net/0/0/statistic.csv").touch()
    dump.finish()
    assert len(warnings_of(caplog)) == 1


def test_what_comes_too_late_or_to_nothing_is_said(tmp_path, caplog):
    environment = {}
    dump = KernelDump(mindspore(has_communication=True), options_of(tmp_path), environment)
    assert "before communication.init(), or start the program with `msprobe kernel-dump" in warnings_of(caplog)[0]
    dump.finish()
    assert "no kernel was dumped" in warnings_of(caplog)[1]
    caplog.clear()
    KernelDump(mindspore(has_communication=True), options_of(tmp_path), environment)  # as `msprobe kernel-dump` sets it
    assert warnings_of(caplog) == []
    (tmp_path / "run/rank_0").mkdir()
    KernelDump(mindspore(), options_of(tmp_path), environment)
    assert "is of an earlier run" in warnings_of(caplog)[0]
    caplog.clear()
    KernelDump(mindspore(), options_of(tmp_path, dump_path=str(tmp_path / "other")), environment)
    assert "and the dump that was set there is not made" in warnings_of(caplog)[0]


@pytest.mark.parametrize(("framework", "given", "expected"), [
    (mindspore("CPU"), {}, "on the CPU MindSpore dumps whole tensors of kernels and no statistics; set the task 'ten"),
    (mindspore(jit_level="O2"), {}, "MindSpore dumps no kernels at jit_level O2"),
], ids=["cpu", "O2"])  # fmt: skip
def test_what_mindspore_does_not_dump_is_refused(tmp_path, framework, given, expected):
    environment = {}
    with pytest.raises(ConfigError, match=expected):
        KernelDump(framework, options_of(tmp_path, **given), environment)
    assert environment == {}


def test_on_the_cpu_ranks_are_chosen_here_and_steps_counted_as_the_program_does(tmp_path, caplog):
    environment = {"RANK_ID": "1"}
    dump = KernelDump(mindspore("CPU"), options_of(tmp_path, task="tensor", rank=[0]), environment)
    dump.finish()
    assert environment == {"RANK_ID": "1"}
    framework = mindspore("CPU")
    dump = KernelDump(framework, options_of(tmp_path, task="tensor", rank=[1]), environment)
    assert "MINDSPORE_DUMP_CONFIG" in environment
    dump.next_step()  # a program that never calls start() leaves it to MindSpore
    dump.begin()
    dump.begin()
    dump.next_step()
    dump.begin_at(7)
    dump.next_step()
    assert framework.counted == [0, 1, 7, 8]
    assert warnings_of(caplog) == []


def test_on_ascend_mindspore_counts_and_can_be_told_where_to_begin(tmp_path):
    framework = mindspore()
    dump = KernelDump(framework, options_of(tmp_path), {})
    dump.begin()
    dump.next_step()
    dump.begin_at(100)
    dump.next_step()
    assert framework.counted == [100]
    del framework._c_expression._set_init_iter
    dump = KernelDump(framework, options_of(tmp_path), {})
    with pytest.raises(SessionError, match="counts the steps of a dump of kernels by itself"):
        dump.begin_at(3)


def test_a_release_that_cannot_be_told_counts_by_itself_on_the_cpu(tmp_path):
    framework = mindspore("CPU")
    del framework._c_expression._set_init_iter
    dump = KernelDump(framework, options_of(tmp_path, task="tensor"), {})
    dump.begin()
    dump.next_step()
    assert framework.counted == []


# --- the debugger ---------------------------------------------------------------------------------------------------


class Dumper(ArrayFramework):
    """A framework that dumps kernels."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def dump_kernels(self, options):
        self.seen.append(options)
        return SimpleNamespace(
            begin=lambda: self.seen.append("begin"),
            next_step=lambda: self.seen.append("step"),
            begin_at=lambda step: self.seen.append(step),
            finish=lambda: self.seen.append("finish"),
        )


@pytest.fixture
def dumper(monkeypatch):
    framework = Dumper()
    monkeypatch.setattr(ArrayDebugger, "_framework", lambda self, model: framework)
    return framework


def test_a_debugger_at_level_l2_leaves_the_model_alone_and_hands_everything_on(dumper, tmp_path):
    debugger = ArrayDebugger(dump_path=tmp_path, level="L2", task="tensor", step=[3], rank=[0])
    model = Network(3)
    before = {name: dict(vars(layer)) for name, layer in model.named_layers()}
    debugger.start(model)
    assert {name: dict(vars(layer)) for name, layer in model.named_layers()} == before
    debugger.stop()
    debugger.step()
    debugger.set_init_step(9)
    debugger.save(1, "nothing")
    debugger.close()
    options, *events = dumper.seen
    assert isinstance(options, KernelOptions)
    assert (options.steps, options.ranks, options.directory) == ((3,), (0,), tmp_path)
    assert events == ["begin", "step", 9, "finish"]
    assert list(tmp_path.iterdir()) == []


def test_a_debugger_at_level_l2_refuses_what_kernels_do_not_have(dumper, tmp_path):
    debugger = ArrayDebugger(dump_path=tmp_path, level="L2", task="tensor")
    try:
        for call, expected in (
            (lambda: debugger.start(Network(3), token_range=[0, 1]), "token_range"),
            (lambda: debugger.start("model"), "start\\(\\) got str, which is not a model of"),
            (lambda: debugger.set_init_step(-1), "give an integer from 0"),
            (lambda: debugger.dump_module(Network(3), "a"), "select them with 'list'"),
        ):
            with pytest.raises(SessionError, match=expected):
                call()
    finally:
        debugger.close()


def test_nothing_is_dumped_where_dump_enable_is_false(dumper, tmp_path):
    debugger = ArrayDebugger(dump_path=tmp_path, level="L2", dump_enable=False)
    debugger.start()
    debugger.step()
    debugger.close()
    assert dumper.seen == []


def test_a_framework_without_kernels_says_who_has_them(tmp_path):
    with pytest.raises(ConfigError, match=r"'L2' is not available yet.*are dumped by MindSpore only"):
        ArrayDebugger(dump_path=tmp_path, level="L2")


# --- the command ----------------------------------------------------------------------------------------------------


def run_command(monkeypatch, *arguments):
    seen = []
    monkeypatch.setattr(os, "execvpe", lambda *given: seen.append(given))
    result = click.testing.CliRunner().invoke(kernel_dump, [str(argument) for argument in arguments])
    return result, seen


def test_the_command_runs_a_program_with_the_variable_set(tmp_path, monkeypatch):
    monkeypatch.setenv("MS_ACL_DUMP_CFG_PATH", "acl.json")
    config = write(tmp_path, task="tensor")
    result, ((program, command, environment),) = run_command(monkeypatch, config, "--", "python", "-c", "pass", "--x=1")
    assert result.exit_code == 0
    assert (program, list(command)) == ("python", ["python", "-c", "pass", "--x=1"])
    assert environment["MINDSPORE_DUMP_CONFIG"] == str(tmp_path / "run" / "kernel_kbyk_dump.json")
    assert "MS_ACL_DUMP_CFG_PATH" not in environment
    assert "MINDSPORE_DUMP_CONFIG" not in os.environ


def test_the_command_refuses_another_level(tmp_path, monkeypatch):
    result, seen = run_command(monkeypatch, write(tmp_path, level="L1"), "python")
    assert isinstance(result.exception, ConfigError)
    assert "'level' is L1, and kernels are dumped at level L2; set it" in str(result.exception)
    assert seen == []


def test_the_command_refuses_statistics_where_mindspore_would_end_the_program(tmp_path, monkeypatch):
    result, seen = run_command(monkeypatch, write(tmp_path), "python")
    assert isinstance(result.exception, ConfigError)
    assert "no Ascend device here, and on the CPU MindSpore dumps whole tensors" in str(result.exception)
    assert seen == []
    (devices := tmp_path / "dev").mkdir()
    (devices / "davinci0").touch()
    check_machine(options_of(tmp_path), devices)


def test_the_command_warns_of_an_earlier_dump(tmp_path, monkeypatch, caplog):
    config = write(tmp_path, task="tensor")
    run_command(monkeypatch, config, "python")
    assert warnings_of(caplog) == []
    (tmp_path / "run" / "rank_1").mkdir()
    run_command(monkeypatch, config, "python")
    (warning,) = warnings_of(caplog)
    assert f"{tmp_path / 'run' / 'rank_1'} is of an earlier run" in warning
