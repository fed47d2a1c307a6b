"""`PrecisionDebugger` as users hold it: one per process, reachable through the class, loud when misused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger, seed_all
from recorded import Recorded
from torch import nn

import msprobe_core
from msprobe_core.errors import ConfigError, PluginError, SessionError, StoreError

REPOSITORY = Path(msprobe_core.__file__).parents[1]

pytestmark = pytest.mark.usefixtures("close_debugger")


def steps_of(run):
    return sorted(path.name for path in run.iterdir())


def test_methods_work_through_the_class(tmp_path):
    PrecisionDebugger(dump_path=tmp_path, level="mix")
    model = nn.Sequential(nn.Linear(2, 2))
    PrecisionDebugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert "Module.0.Linear.backward.0" in Recorded(tmp_path).data


def modules_of(run, step=0):
    return {name for name in Recorded(run, step).data if name.startswith("Module.") and ".forward." in name}


def test_models_in_a_list_are_named_by_their_position(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)
    one = {"Module.0.0.Linear.forward.0", "Module.0.Sequential.forward.0"}
    expected = [
        (model, {"Module.0.Linear.forward.0", "Module.Sequential.forward.0"}),
        ([model], one),
        ([model], one),  # the step that begins while recording goes on
        ((model, other), one | {"Module.1.Linear.forward.0"}),
    ]
    for step, (given, names) in enumerate(expected):
        if step != 2:
            debugger.start(given)
        other(model(torch.ones(1, 2)))
        if step != 1:
            debugger.stop()
        debugger.step()
        assert modules_of(tmp_path, step) == names, step


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ({"list": ["fc9"]}, "nothing was recorded: no call matched 'list' ['fc9']"),
        ({"scope": ["Cell.0.Linear.forward.0"] * 2}, "no entry was named 'Cell.0.Linear.forward.0'"),
    ],
    ids=["list", "scope"],
)
def test_a_selection_of_nothing_is_complained_about_once(selection, said, tmp_path, caplog):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": "L0", "dump_path": str(tmp_path / "run"), "statistics": selection}))
    debugger = PrecisionDebugger(config)
    model = nn.Sequential(nn.Linear(2, 2))
    for is_last in (False, False, True):
        with debugger.start(model):
            model(torch.ones(1, 2))
        if not is_last:
            debugger.step()
    debugger.close()
    (message,) = [message for message in caplog.messages if message.startswith("step ")]
    assert message.startswith("step 0: ")
    assert said in message
    assert "Module.0.Linear.forward.0" in message


def test_before_construction_the_methods_say_what_to_do():
    for method in (PrecisionDebugger.start, PrecisionDebugger.stop, PrecisionDebugger.step):
        with pytest.raises(SessionError, match="no PrecisionDebugger has been made yet; construct one"):
            method()


def test_a_second_construction(tmp_path, caplog):
    first = PrecisionDebugger(dump_path=tmp_path, level="L0")
    assert PrecisionDebugger() is first
    assert PrecisionDebugger(dump_path=tmp_path, level="L0") is first
    assert not caplog.messages
    for arguments in ({"level": "L1"}, {"level": "L9"}, {"config_path": tmp_path / "missing.json"}):
        caplog.clear()
        assert PrecisionDebugger(**{"dump_path": tmp_path, **arguments}) is first
        (message,) = caplog.messages
        assert message.startswith("this process already has a PrecisionDebugger; it is returned, and the arguments")
        assert first.config.level.value == "L0"
    first.close()
    assert PrecisionDebugger(dump_path=tmp_path, level="L1") is not first


def test_only_selected_steps_are_recorded(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", step=[1, "3-4"])
    for step in range(7):
        debugger.start()
        torch.full((2,), float(step)) + 1
        debugger.stop()
        debugger.step()
    assert steps_of(tmp_path) == ["step1", "step3", "step4"]
    assert Recorded(tmp_path, 3).data["Tensor.__add__.0.forward"]["input_args"][0]["Max"] == 3.0


def test_step_without_stop_goes_on_with_the_next_step(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", step=[0, 1])
    debugger.start()
    for _ in range(3):
        torch.ones(2) + 1
        debugger.step()
    assert steps_of(tmp_path) == ["step0", "step1"]
    assert list(Recorded(tmp_path, 1).data) == ["Tensor.__add__.0.forward"]
    assert torch._C._len_torch_function_stack() == 0


def test_the_context_manager_stops_also_when_an_exception_leaves_it(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ArithmeticError), debugger.start(model):  # noqa: PT012  # the block is what is tested
        model(torch.ones(1, 2))
        raise ArithmeticError
    assert torch._C._len_torch_function_stack() == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "Module.0.Linear.forward.0" in Recorded(tmp_path).data
    debugger.step()
    with debugger.start(model):
        model(torch.ones(1, 2))
    assert "Module.0.Linear.forward.0" in Recorded(tmp_path, 1).data


def test_a_block_in_a_step_that_is_not_selected_does_nothing(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", step=[1])
    model = nn.Linear(2, 2)
    for _ in range(3):
        with debugger.start(model):
            model(torch.ones(1, 2))
        debugger.step()
    assert steps_of(tmp_path) == ["step1"]
    with pytest.raises(SessionError, match="call start"), debugger:  # no start() before it
        pass


def test_a_window_that_an_exception_left_open_is_closed_by_the_next(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    model = nn.Sequential(nn.Linear(2, 2))
    debugger.start(model)
    model(torch.ones(1, 2))  # and then the step dies, and the caller catches the error
    debugger.start(model)
    model(torch.ones(1, 2))
    debugger.stop()
    assert [len(module._forward_hooks) for module in model.modules()] == [0, 0]
    assert Recorded(tmp_path).starting("Module.0.Linear.forward") == [
        "Module.0.Linear.forward.0",
        "Module.0.Linear.forward.1",
    ]


def test_what_is_not_available_yet_is_refused_not_ignored(tmp_path):
    for task, block, expected in (
        ("nan_check", {}, "there is no task 'nan_check': take the task 'overflow_check', which records"),
        (
            "statistics",
            {"summary_mode": "sum"},
            r"c\.json: 'statistics': 'summary_mode' is 'sum'; allowed: fp8, hash, md5, sketch, statistics, xor",
        ),
    ):
        (tmp_path / "c.json").write_text(json.dumps({"task": task, task: block}))
        with pytest.raises(ConfigError, match=expected):
            PrecisionDebugger(tmp_path / "c.json")
        PrecisionDebugger(dump_path=tmp_path).close()  # the failed one does not block it
    block = {"list": ["Functional.linear.0.forward"]}
    for enabled in ({}, {"dump_enable": False}):
        config = {"task": "tensor", "level": "L2", "tensor": block}
        (tmp_path / "c.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=r"torch_npu.npu.init_dump.*inputs and outputs of 'Functional.linear.0.f"):
            PrecisionDebugger(tmp_path / "c.json", **enabled)
    (tmp_path / "c.json").write_text(json.dumps({"writer": "parquet"}))
    expected = "'writer' is 'parquet'; allowed: arrow, json"
    with pytest.raises(ConfigError, match=rf"c\.json: {expected}"):
        PrecisionDebugger(tmp_path / "c.json")
    with pytest.raises(ConfigError, match=f"the arguments of PrecisionDebugger: {expected}"):
        PrecisionDebugger(tmp_path / "c.json", writer="parquet")
    (tmp_path / "c.json").write_text(json.dumps({"live_checks": ["no"], "extra_statistics": []}))
    with pytest.raises(ConfigError, match=r"c\.json: 'live_checks' is 'no'; allowed"):
        PrecisionDebugger(tmp_path / "c.json")
    (tmp_path / "c.json").write_text(json.dumps({"extra_statistics": ["no"]}))
    with pytest.raises(ConfigError, match=r"c\.json: 'extra_statistics' is 'no'; allowed"):
        PrecisionDebugger(tmp_path / "c.json")


@pytest.mark.parametrize("place", ["file", "file/run", "new\0"])
def test_a_directory_that_cannot_be_written_is_said_when_the_debugger_is_made(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another directory"):
        PrecisionDebugger(dump_path=tmp_path / place)
    PrecisionDebugger(dump_path=tmp_path / "new").close()  # the failed one does not block it
    assert not (tmp_path / "new").exists()


def test_without_extra_info_there_are_no_extra_files(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", extra_info=False)
    with debugger.start():
        torch.ones(2) + 1
    assert {path.name for path in Recorded(tmp_path).directory.iterdir()} == {"dump.json", "manifest.json"}


def test_checksums_tell_any_difference(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"statistics": {"summary_mode": "md5"}}))
    debugger = PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run")
    with debugger.start():
        torch.tensor([1.0, 2.0]) + 0
        torch.tensor([2.0, 1.0]) + 0
    first, second = (Recorded(tmp_path / "run").data[f"Tensor.__add__.{i}.forward"]["output"][0] for i in range(2))
    assert first["md5"] != second["md5"]
    assert [first[k] for k in ("Max", "Min", "Mean", "Norm")] == [second[k] for k in ("Max", "Min", "Mean", "Norm")]


def test_the_core_finds_the_framework_by_the_model(tmp_path):
    with msprobe_core.PrecisionDebugger(dump_path=tmp_path, level="L0").start(nn.Linear(2, 2)) as debugger:
        pass
    debugger.close()
    assert Recorded(tmp_path).header["framework"] == "pytorch"
    core = msprobe_core.PrecisionDebugger(dump_path=tmp_path, level="L0")
    with pytest.raises(SessionError, match=r"got str, .* none of the frameworks in use \(pytorch\)"):
        core.start("model")
    with pytest.raises(SessionError, match="already has a msprobe_core"):
        PrecisionDebugger(dump_path=tmp_path, level="L0")


def test_a_plugin_that_is_missing_is_named(tmp_path, monkeypatch):
    from msprobe_core.plugins import Registry

    monkeypatch.setattr(Registry, "frameworks", lambda _self: {})
    with pytest.raises(PluginError, match="the framework 'pytorch' is not available; `msprobe plugins` says"):
        PrecisionDebugger(dump_path=tmp_path)


def run_script(tmp_path, body, **environment):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / 'plugins' / 'pytorch')!r}]\n"
        "import torch\nfrom torch import nn\nfrom msprobe.pytorch import PrecisionDebugger\n" + body
    )
    return subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **environment}
    )


@pytest.mark.slow
def test_an_uncaught_exception_leaves_a_valid_dump(tmp_path):
    done = run_script(
        tmp_path,
        "model = nn.Sequential(nn.Linear(2, 2))\n"
        "debugger = PrecisionDebugger(dump_path='run', level='mix')\n"
        "debugger.start(model)\n"
        "model(torch.ones(1, 2))\n"
        "torch.ones(2) + 1\n"
        "raise ArithmeticError('planted')\n",
    )
    assert "ArithmeticError: planted" in done.stderr
    assert "msprobe" not in done.stderr
    dump = Recorded(tmp_path / "run")
    assert list(dump.data)[-1] == "Tensor.__add__.0.forward"


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_forked_children_leave_the_parents_dump_alone(tmp_path):
    done = run_script(
        tmp_path,
        "from torch.utils.data import DataLoader\n"
        "debugger = PrecisionDebugger(dump_path='run', level='L1')\n"
        "debugger.start()\n"
        "loader = DataLoader([torch.ones(2) * i for i in range(4)], batch_size=2, num_workers=2,\n"
        "                    collate_fn=lambda batch: torch.stack(batch) * 10)\n"
        "total = sum(batch.sum() for batch in loader)\n"
        "debugger.stop()\n"
        "print(total.item())\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "120.0\n"
    dump = Recorded(tmp_path / "run")
    multiplications = dump.starting("Tensor.__mul__.")
    assert len(multiplications) == 4  # the four in the parent, none of the workers'


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_the_launchers_rank_names_the_directory(tmp_path):
    body = "with PrecisionDebugger(dump_path='run', rank=[3]).start():\n    torch.ones(2) + 1\n"
    assert run_script(tmp_path, body, RANK="3", WORLD_SIZE="8").returncode == 0
    assert [path.name for path in (tmp_path / "run" / "step0").iterdir()] == ["rank3"]
    assert run_script(tmp_path, body.replace("'run'", "'other'"), RANK="2", WORLD_SIZE="8").returncode == 0
    assert not (tmp_path / "other").exists()


def test_a_process_outside_of_a_job_is_rank_0_to_the_configuration(tmp_path):
    with PrecisionDebugger(dump_path=tmp_path, rank=[0]).start():
        torch.ones(2) + 1
    assert Recorded(tmp_path).directory.name == f"proc{os.getpid()}"


def test_a_rank_directory_is_overwritten_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    for num_calls in (3, 1):
        debugger = PrecisionDebugger(dump_path=tmp_path, task="tensor")
        with debugger.start():
            for _ in range(num_calls):
                torch.ones(2) + 1
        debugger.close()
    dump = Recorded(tmp_path)
    assert list(dump.data) == ["Tensor.__add__.0.forward"]
    assert len(list((dump.directory / "dump_tensor_data").iterdir())) == 2


def test_seed_all_repeats_and_leaves_determinism_on():
    was = torch.are_deterministic_algorithms_enabled()
    try:
        seed_all(7, mode=True)
        first = torch.rand(3)
        seed_all(7)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.equal(torch.rand(3), first)
        seed_all(8)
        assert not torch.equal(torch.rand(3), first)
    finally:
        torch.use_deterministic_algorithms(was)


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"seed": -1}, "'seed' is -1"), ({"seed": 2**32}, "from 0 to 4294967295"), ({"seed": True}, "'seed' is True"),
    ({"mode": 1}, "'mode' is 1"), ({"rm_dropout": 1}, "'rm_dropout' is 1"),
    ({"is_enhanced": None}, "'is_enhanced' is None"),
])  # fmt: skip
def test_seed_all_refuses_what_it_cannot_do(arguments, expected):
    with pytest.raises(ConfigError, match=expected):
        seed_all(**arguments)
