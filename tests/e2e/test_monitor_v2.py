"""The second version's interface of the training monitor, and monitors that are continued and switched."""

import json
import os
import threading

import polars as pl
import pytest
import torch
from jobs import run_job
from msprobe.pytorch import TrainerMon, TrainerMonitorV2
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.monitor import csv_tree_v2
from msprobe_core.monitoring.files import read_monitored

ALL = {"module": {}, "weight_grad": {}, "optimizer": {}, "param": {}}
ALL_V1 = {"xy_distribution": True, "wg_distribution": True, "mv_distribution": True, "param_distribution": True}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def train(model, optimizer, steps=3, micro_batches=2, after=lambda step: None):
    torch.manual_seed(1)
    for step in range(steps):
        for _ in range(micro_batches):
            model(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
        after(step)
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def written(path, **settings):
    path.write_text(json.dumps(settings))
    return path


def monitor_v2(tmp_path, model, optimizer=None, ctx=None, **settings):
    path = written(tmp_path / "v2.json", output_dir=str(tmp_path / "new" / "out"), **settings)
    monitor = TrainerMonitorV2(path)
    monitor.start(model, optimizer, **(ctx or {}))
    return monitor


def monitor_v1(tmp_path, model, optimizer, **settings):
    monitor = TrainerMon(written(tmp_path / "v1.json", **settings), params_have_main_grad=False)
    monitor.set_monitor(model, optimizer, grad_acc_steps=2)
    return monitor


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


def values_of(run):
    """Return the values by place; inputs, outputs and sums of micro-batches have a number in the second version."""
    name = pl.col("name").str.replace(r"\.(input|output)\.0$", ".$1")
    stage = pl.col("stage").replace(0, None)
    keys = ["quantity", "stage", "name", "micro_step", "step"]
    micro_step = pl.col("micro_step").fill_null(0)
    found = run.frame.with_columns(name=name, stage=stage, micro_step=micro_step).select(
        *keys, "norm", "max", "min", "mean", "nans"
    )
    return found.with_columns(pl.col(pl.Float64).round(15)).sort(keys)


def test_both_versions_write_the_same_values(tmp_path, out):
    for begin in (
        lambda model, optimizer: (
            monitor_v2(tmp_path, model, optimizer, {"grad_acc_steps": 2}, monitors=ALL, step_count_per_record=2).stop
        ),
        lambda model, optimizer: (
            monitor_v1(
                tmp_path, model, optimizer, ops=["norm", "min", "max", "mean", "nans"], ndigits=20, **ALL_V1
            ).close
        ),
    ):
        model = Net().train()
        optimizer = torch.optim.AdamW(model.parameters())
        end = begin(model, optimizer)
        weights = train(model, optimizer)
        end()
    second, first = read_monitored(tmp_path / "new" / "out"), read_monitored(out)
    assert list(second.notes) == list(first.notes) == []
    assert values_of(second).equals(values_of(first))
    assert set(second.frame["quantity"]) == {
        "actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated",
    }  # fmt: skip
    bare = Net().train()
    assert all(map(torch.equal, weights, train(bare, torch.optim.AdamW(bare.parameters()))))


def test_a_thread_writes_the_same_files(tmp_path, monkeypatch):
    threads = set()
    text_of = csv_tree_v2._text_of
    see = lambda values: threads.add(threading.current_thread().name) or text_of(values)  # noqa: E731
    monkeypatch.setattr(csv_tree_v2, "_text_of", see)
    texts = []
    for is_async in (True, False):
        path = tmp_path / str(is_async)
        path.mkdir()
        model = Net().train()
        optimizer = torch.optim.AdamW(model.parameters())
        monitor = monitor_v2(path, model, optimizer, monitors=ALL, async_write=is_async)
        train(model, optimizer, steps=3)
        monitor.stop()
        place = path / "new" / "out" / "rank_0"
        texts.append({each.name: each.read_text() for each in place.glob("*.csv")})
    assert texts[0] == texts[1]
    assert len(texts[0]) == 3 * 4 - 1  # in the first step there are no moments
    assert threads == {"msprobe-monitor-writer", threading.current_thread().name}


def test_the_tree_is_that_of_the_second_version(tmp_path):
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = monitor_v2(
        tmp_path, model, optimizer, {"micro_batch_number": 2}, monitors={**ALL, "module": {"ops": ["norm", "max"]}}
    )
    train(model, optimizer, steps=2)
    monitor.stop()
    place = tmp_path / "new" / "out" / "rank_0"
    assert {path.name for path in place.glob("*.csv")} == {
        f"{name}_step{step}-{step}.csv" for name in ("module", "weight_grad", "optimizer", "param") for step in (0, 1)
    } - {"optimizer_step0-0.csv"}
    module, gradients, moments = (
        (place / f"{name}_step1-1.csv").read_text().splitlines() for name in ("module", "weight_grad", "optimizer")
    )
    assert module[0] == "vpp_stage,step,module_name,scope,micro_step,norm,max"
    assert module[1].startswith("-1,1,.input.0,forward,0,")
    assert gradients[0] == "vpp_stage,step,module_name,scope,micro_step,min,max,mean,norm,nans"
    assert {tuple(line.split(",")[2:5]) for line in gradients if ",up.weight," in line} == {
        ("up.weight", "unreduced", "0"), ("up.weight", "reduced", "0"),
    }  # fmt: skip
    assert moments[0] == "vpp_stage,step,module_name,scope,min,max,mean,norm,nans"
    assert moments[1].startswith("-1,1,up.weight.exp_avg,exp_avg,")


def test_monitors_have_targets_steps_and_stages_of_their_own(tmp_path):
    models = [Net().train(), Net().train()]
    optimizer = torch.optim.SGD([each for model in models for each in model.parameters()], lr=0.1)
    monitors = {"module": {"targets": ["up"]}, "weight_grad": {"targets": ["down.b"], "ops": ["norm", "median"]}}
    monitor = monitor_v2(
        tmp_path, models, optimizer, monitors=monitors, rank=0, start_step=1, stop_step=4, step_interval=2
    )
    for model in models:
        model(torch.randn(5, 8)).square().mean().backward()
    for _ in range(6):
        for model in models:
            model(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
    monitor.stop()
    run = read_monitored(tmp_path / "new" / "out")
    assert run.steps == [1, 3]
    assert set(run.frame["stage"]) == {0, 1}
    assert set(run.frame["name"]) == {"up.input.0", "up.output.0", "down.bias"}
    seen = json.loads((tmp_path / "new" / "out" / "rank_0" / "coverage.json").read_text())
    assert seen["grad_reduced"]["expected"] == seen["grad_reduced"]["seen"] == 2


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_steps_may_be_ended_by_the_script(has_optimizer, tmp_path):
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitor_v2(
        tmp_path, model, optimizer if has_optimizer else None, monitors={"weight_grad": {}, "param": {}},
        patch_optimizer_step=False,
    )  # fmt: skip
    gradients = []

    def after(_step):
        gradients.append(model.up.weight.grad.norm().item())
        monitor.step()

    train(model, optimizer, steps=2, micro_batches=1, after=after)
    monitor.stop()
    frame = read_monitored(tmp_path / "new" / "out").frame
    found = frame.filter((pl.col("quantity") == "grad_reduced") & (pl.col("name") == "up.weight"))
    assert found["norm"].to_list() == pytest.approx(gradients)
    assert ("param_origin" in frame["quantity"].to_list()) == has_optimizer


def of_a_rank(rank, world, directory):
    model = DistributedDataParallel(Net().train())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = written(
        directory / f"v2_{rank}.json", output_dir=str(directory / "out"), monitors={"weight_grad": {}, "param": {}}
    )
    monitor = TrainerMonitorV2(path, fr="pt")
    monitor.start(model, optimizer)
    torch.manual_seed(10 + rank)
    model(torch.randn(5, 8)).square().mean().backward()
    optimizer.step()
    monitor.stop()


@pytest.mark.slow
def test_ranks_have_rows_from_before_the_reduction(tmp_path):
    run_job(of_a_rank, 2, tmp_path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank_0", "rank_1"]
    frame = read_monitored(tmp_path / "out").frame.filter(pl.col("name") == "module.up.weight")
    norms = {kind: set(part["norm"]) for (kind,), part in frame.group_by("quantity")}
    sizes = {kind: len(found) for kind, found in norms.items()}
    assert sizes == {"grad_unreduced": 2, "grad_reduced": 1, "param_origin": 1, "param_updated": 1}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "nothing is to be collected"),
        ({"monitors": {"param": {"enabled": False}}}, "nothing is to be collected"),
        ({"monitors": {"param": 1}}, "'monitors' is"),
        ({"monitors": {"param": {}}, "framework": "jax"}, "'framework' is 'jax'"),
        ({"monitors": {"param": {}}, "step_interval": 0}, "must be at least 1"),
        ({"monitors": {"param": {}}, "rank": "0"}, "'rank' is '0'"),
    ],
)
def test_wrong_settings_are_refused(settings, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        TrainerMonitorV2(written(tmp_path / "v2.json", **settings))


def test_moments_need_an_optimizer_and_a_start_comes_once(tmp_path):
    model = Net()
    with pytest.raises(SessionError, match="got no optimizer"):
        monitor_v2(tmp_path, model, monitors=ALL)
    monitor = monitor_v2(tmp_path, model, monitors={"param": {}})
    with pytest.raises(SessionError, match="twice"):
        monitor.start(model)
    monitor.stop()


def test_a_writer_without_its_methods_is_refused_at_once(tmp_path):
    monitor = monitor_v2(tmp_path, Net(), monitors={"param": {}})
    with pytest.raises(SessionError, match=r"got builtin_function_or_method, which lacks add\(step, values\) or close"):
        monitor.add_writer(print)
    monitor.stop()


def test_unknown_monitors_and_fields_are_said(tmp_path, caplog):
    monitors = {"param": {"targts": []}, "gradient": {}}  # codespell:ignore targts
    TrainerMonitorV2(written(tmp_path / "v2.json", monitors=monitors, ranks=[0]))
    for said in ("did you mean 'rank'?", "did you mean 'targets'?", "unknown field 'gradient'"):
        assert said in caplog.text


# --- continuing ---------------------------------------------------------------------------------------------------


def test_a_continued_training_adds_to_the_directory_of_its_rank(tmp_path, out, caplog):
    for times in ([], ["Jan01_00-00-00", "Dec31_23-59-59"]):
        model = Net().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = monitor_v1(tmp_path, model, optimizer, wg_distribution=True, append_output=times)
        train(model, optimizer, steps=2)
        monitor.close()
    (place,) = out.iterdir()
    assert read_monitored(out).steps == [0, 1, 2, 3]
    assert "append_output" not in caplog.text
    place.rename(out / place.name.replace("rank0", "rank7"))
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitor_v1(tmp_path, model, optimizer, wg_distribution=True, append_output=times)
    train(model, optimizer, steps=1)
    monitor.close()
    assert "nothing of rank 0" in caplog.text
    assert "(ranks there: 7)" in caplog.text
    assert read_monitored(out).ranks == [0, 7]


def test_steps_of_a_table_are_continued(tmp_path, out):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    settings = {"wg_distribution": True, "msprobe": {"writers": ["arrow"]}}
    for times in ([], ["Jan01_00-00-00", "Dec31_23-59-59"]):
        model = Net().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = monitor_v1(tmp_path, model, optimizer, append_output=times, **settings)
        train(model, optimizer, steps=2)
        monitor.close()
    assert read_monitored(out).steps == [0, 1, 2, 3]
    assert len(list(out.iterdir())) == 1


@pytest.mark.parametrize("times", [["yesterday", "today"], ["Jan01_00-00-00"]])
def test_times_are_checked(times, tmp_path):
    with pytest.raises(ConfigError, match="must be two times"):
        TrainerMon(written(tmp_path / "v1.json", wg_distribution=True, append_output=times))


# --- switching ----------------------------------------------------------------------------------------------------


class Edited:
    """A training whose monitor's file is edited after some steps."""

    def __init__(self, tmp_path, out, **settings):
        self.path, self.out, self.settings = tmp_path / "v1.json", out, {"wg_distribution": True, **settings}
        self.model = Net().train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.monitor = monitor_v1(tmp_path, self.model, self.optimizer, **self.settings)

    def edit(self, text=None, **settings):
        self.path.write_text(json.dumps({**self.settings, **settings}) if text is None else text)
        os.utime(self.path, ns=(1, self.path.stat().st_mtime_ns - 10**9))  # a while ago

    def run(self, steps, **edits):
        edits = {int(step[1:]): how for step, how in edits.items()}
        train(self.model, self.optimizer, steps, 1, lambda step: edits[step]() if step in edits else None)
        self.monitor.close()
        return read_monitored(self.out).steps if self.out.exists() else []

    def content(self):
        return json.loads(self.path.read_text())


def test_without_the_variable_the_field_has_no_effect(tmp_path, out, monkeypatch):
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)
    edited = Edited(tmp_path, out, dynamic_on=False, collect_times=2)
    assert edited.run(4, s2=lambda: edited.edit(dynamic_on=True)) == [0, 1]


@pytest.mark.parametrize("is_on", [True, False])
def test_the_field_says_whether_collection_begins_at_once(is_on, tmp_path, out, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    assert Edited(tmp_path, out, dynamic_on=is_on).run(2) == ([0, 1] if is_on else [])


def test_an_edit_begins_on_the_next_step_and_the_end_is_written_to_the_file(tmp_path, out, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    edited = Edited(tmp_path, out, dynamic_on=False, collect_times=2)
    # What is written after a step is seen at the end of the next one.
    steps = edited.run(
        12, s1=lambda: edited.edit(dynamic_on=True), s8=lambda: edited.edit(dynamic_on=True, ops=["max"])
    )
    assert steps == [3, 4, 10, 11]
    assert edited.content() == {**edited.settings, "dynamic_on": False, "ops": ["max"]}
    run = read_monitored(out)
    assert run.frame.filter(pl.col("step") == 11)["max"].is_not_null().all()
    assert len(list(out.iterdir())) == 2


def test_a_running_collection_is_changed_and_stopped_by_edits(tmp_path, out, monkeypatch, caplog):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    edited = Edited(tmp_path, out, dynamic_on=True)
    steps = edited.run(
        12,
        s1=lambda: edited.edit(dynamic_on=True, step_interval=3, append_output=["Jan01_00-00-00", "Jan02_00-00-00"]),
        s7=lambda: edited.edit(dynamic_on=False),
    )
    assert steps == [0, 1, 2, 3, 6]
    assert "where results go is not changed" in caplog.text
    assert not edited.content()["dynamic_on"]


def test_an_edit_that_cannot_be_used_is_said_once_and_changes_nothing(tmp_path, out, monkeypatch, caplog):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    edited = Edited(tmp_path, out, dynamic_on=True)
    steps = edited.run(
        9,
        s1=lambda: edited.edit('{"dynamic_on": tr'),
        s4=lambda: edited.edit(dynamic_on=True, msprobe={"writers": ["nowhere"]}),
        s6=lambda: edited.edit(dynamic_on=True, ops=["max"]),
    )
    assert steps == list(range(9))
    assert caplog.text.count("is not valid JSON") == 1
    assert caplog.text.count("there is no writer 'nowhere'") == 1
    assert read_monitored(out).frame.filter(pl.col("step") == 8)["max"].is_not_null().all()


@pytest.mark.parametrize(("ranks", "first"), [([], 0), ([3, 2], 2)])
def test_only_one_rank_writes_to_the_file(ranks, first, tmp_path):
    from msprobe_core.monitor.plan_file import load_plan
    from msprobe_core.monitor.plan_switch import Switch

    path = written(tmp_path / "v1.json", wg_distribution=True, dynamic_on=True, module_ranks=ranks)
    switches = [Switch(load_plan(path), rank) for rank in (first + 1, first)]
    for switch in switches:
        for _ in range(5):
            assert switch.poll(is_done=True) is None
        assert not switch.is_on
        assert json.loads(path.read_text())["dynamic_on"] == (switch is switches[0])
