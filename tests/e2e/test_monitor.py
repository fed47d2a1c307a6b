"""The training monitor on real trainings: what its files say, and that the training does not notice it."""

import json
import os
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from architectures import ARCHITECTURES
from jobs import VOCABULARY, make_model, run_job
from monitored_trainers import train_in_parallel
from msprobe.pytorch import TrainerMon
from msprobe.pytorch._reduce import TorchReducer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msprobe_core.cli import main
from msprobe_core.errors import ConfigError, SessionError
from msprobe_core.monitoring.files import read_monitored

QUANTITIES = {
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
}
OPS = ["norm", "min", "max", "mean", "zeros", "nans"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.drop, self.down = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(self.drop(torch.relu(self.up(x))))


@pytest.fixture
def monitored(tmp_path, monkeypatch):
    """Return a function that monitors a training, and one that reads what was written."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))

    def begin(model, optimizer, *, steps_of_batch=1, **settings):
        path = tmp_path / "monitor.json"
        path.write_text(json.dumps({"targets": {}, "ops": OPS, "ndigits": 14, **settings}))
        monitor = TrainerMon(path, params_have_main_grad=False)
        monitor.set_monitor(model, optimizer, grad_acc_steps=steps_of_batch)
        return monitor

    return begin, tmp_path / "out"


def train(model, optimizer, steps=3, micro_batches=2, fault=None):
    torch.manual_seed(1)
    seen = []
    for step in range(steps):
        for _ in range(micro_batches):
            loss = model(torch.randn(5, 8)).square().mean()
            loss.backward()
            seen.append(loss.item().hex())
        if fault is not None:
            fault(step, model)
        optimizer.step()
        seen += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.zero_grad()
    return seen, [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()


def row(run, quantity, name, step, micro_step=None):
    micro = pl.col("micro_step").is_null() if micro_step is None else pl.col("micro_step") == micro_step
    found = run.frame.filter(
        (pl.col("quantity") == quantity) & (pl.col("name") == name) & (pl.col("step") == step) & micro
    )
    assert found.height == 1, found
    return found.row(0, named=True)


def statistics(tensor):
    values = tensor.detach().double().numpy()
    return {
        "norm": np.sqrt((values**2).sum()), "min": values.min(), "max": values.max(), "mean": values.mean(),
        "zeros": (np.abs(values) < 1e-8).mean(), "nans": np.isnan(values).sum(),
    }  # fmt: skip


def test_values_are_those_of_the_tensors(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    calls, gradients = [], []
    hook = model.up.register_forward_hook(lambda _module, args, output: calls.append((args[0], output)))
    before = optimizer.register_step_pre_hook(
        lambda *_: gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    )
    monitor = begin(model, optimizer, steps_of_batch=2, **QUANTITIES)
    origin = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer)
    hook.remove()
    before.remove()
    monitor.close()
    run = read_monitored(out)

    expected = {
        ("actv", "up.input", 0): calls[0][0],
        ("actv", "up.output", 0): calls[0][1],
        ("grad_reduced", "up.weight", None): gradients[0][0],
        ("grad_unreduced", "up.weight", None): gradients[0][0],
        ("param_origin", "down.bias", None): origin[3],
    }
    for (quantity, name, micro_step), tensor in expected.items():
        found = row(run, quantity, name, 0, micro_step)
        for op, value in statistics(tensor).items():
            assert found[op] == pytest.approx(value, rel=1e-5, abs=1e-9), (quantity, name, op)
    # What one step leaves is what the next begins with, and moments are those that the step before has made.
    assert row(run, "param_updated", "up.weight", 0)["norm"] == row(run, "param_origin", "up.weight", 1)["norm"]
    first = row(run, "exp_avg", "up.weight", 1)
    assert first["norm"] == pytest.approx(0.1 * row(run, "grad_reduced", "up.weight", 0)["norm"], rel=1e-5)
    assert not run.frame.filter((pl.col("quantity") == "exp_avg") & (pl.col("step") == 0)).height


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_the_training_is_the_same_to_the_bit(monitored):
    begin, _ = monitored
    bare = Net().train()
    expected = train(bare, torch.optim.AdamW(bare.parameters()), steps=6)
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = begin(model, optimizer, steps_of_batch=2, step_interval=2, **QUANTITIES)
    assert same(train(model, optimizer, steps=6), expected)
    monitor.close()


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_transformers_train_the_same_to_the_bit(name, monitored):
    begin, out = monitored
    architecture = ARCHITECTURES[name]

    def run(watched):
        model = architecture.build()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        monitor = begin(model, optimizer, **QUANTITIES) if watched else None
        losses = []
        for step in range(3):
            loss = model(**architecture.batch(step)).loss
            loss.backward()
            losses.append(loss.item().hex())
            optimizer.step()
            optimizer.zero_grad()
        if monitor is not None:
            monitor.close()
        return losses, [parameter.detach().clone() for parameter in model.parameters()]

    assert same(run(watched=True), run(watched=False))
    (coverage,) = out.glob("*/coverage.json")
    seen = json.loads(coverage.read_text())
    assert all(each["expected"] == each["seen"] for each in seen.values() if each["expected"] is not None), seen
    assert min(each["seen"] for each in seen.values()) > 0


def test_only_selected_steps_parameters_and_modules_are_collected(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = begin(model, optimizer, targets={"up": {}}, start_step=1, step_interval=2, collect_times=2, **QUANTITIES)
    train(model, optimizer, steps=8, micro_batches=1)
    monitor.close()
    run = read_monitored(out)
    assert run.steps == [1, 3]
    names = set(run.frame["name"].to_list())
    assert names == {"up.input", "up.output", "up.weight", "up.bias"}
    assert row(run, "exp_avg", "up.weight", 1)["norm"] > 0  # a momentum is a first moment
    assert not model._forward_hooks
    assert not model.up.weight._post_accumulate_grad_hooks


def test_all_modules_may_be_collected_beside_named_parameters(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(
        model, optimizer, targets={"up.weight": {}}, all_xy=True, xy_distribution=True, wg_distribution=True
    )
    train(model, optimizer, steps=1, micro_batches=1)
    monitor.close()
    by_quantity = dict(read_monitored(out).frame.group_by("quantity").agg(pl.col("name")).rows())
    assert set(by_quantity["grad_unreduced"]) == set(by_quantity["grad_reduced"]) == {"up.weight"}
    assert "down.output" in by_quantity["actv"]


def test_a_nan_is_reported_at_once_and_named_first(monitored, caplog):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    rules = {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}
    monitor = begin(model, optimizer, steps_of_batch=2, alert=rules, step_count_per_record=2, **QUANTITIES)

    def fault(step, model):
        if step == 2:
            model.down.weight.grad[0, 0] = float("nan")

    train(model, optimizer, steps=4, fault=fault)
    monitor.close()
    records = json.loads((out / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
    first = next(iter(records.values()))
    assert (first["step"], first["tag_name"]) == (2, "0:down.weight:0/rank0/grad_reduced")
    assert "AnomalyNan" in caplog.text
    with pytest.raises(SystemExit) as end:
        main(["monitor", "analyze", str(out), "-o", str(out)])
    assert end.value.code == 1
    (found, *_) = json.loads((out / "anomaly_analyse.json").read_text())
    assert (found["quantity"], found["name"], found["step"]) == ("grad_reduced", "down.weight", 2)
    assert found["finding"]["code"] == "anomaly.not-finite"


def test_gradients_of_every_micro_batch_can_be_collected(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, steps_of_batch=2, wg_distribution=True, monitor_mbs_grad=True)
    train(model, optimizer, steps=2)
    monitor.close()
    run = read_monitored(out)
    for step in (0, 1):
        first, second = (row(run, "grad_unreduced", "up.weight", step, micro_step) for micro_step in (0, 1))
        assert first["norm"] != second["norm"] == row(run, "grad_reduced", "up.weight", step)["norm"]


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, first, nothing, second, *, pair):
        return nothing, first * self.weight, {"sum": second + pair[1] * self.weight}


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd, self.one = Odd(), nn.Identity()

    def forward(self, x):
        _, product, rest = self.odd(x, None, x * 2, pair=(x * 3, x * 4))
        return {"loss": (self.one(input=product) + rest["sum"]).sum()}


def test_tensors_are_numbered_or_named_by_their_path(monitored):
    begin, out = monitored
    model = Outer().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, xy_distribution=True)
    model(torch.ones(3, requires_grad=True))["loss"].backward()
    optimizer.step()
    monitor.close()
    frame = read_monitored(out).frame
    norms = {(row["quantity"], row["name"]): round(row["norm"] ** 2 / 3) for row in frame.iter_rows(named=True)}
    assert norms == {
        ("actv", ".input"): 1, ("actv", "odd.input_0"): 1, ("actv", "odd.input_1"): 4, ("actv", "odd.input.pair.0"): 9,
        ("actv", "odd.input.pair.1"): 16, ("actv", "odd.output_1"): 1, ("actv", "odd.output_2.sum"): 36,
        ("actv", "one.input"): 1, ("actv", "one.output"): 1, ("actv", ".output.loss"): 147,
        ("actv_grad", ".input"): 49, ("actv_grad", "odd.input_0"): 1, ("actv_grad", "odd.input_1"): 1,
        ("actv_grad", "odd.input.pair.1"): 1, ("actv_grad", "odd.output_1"): 1, ("actv_grad", "odd.output_2.sum"): 1,
        ("actv_grad", "one.input"): 1, ("actv_grad", "one.output"): 1, ("actv_grad", ".output.loss"): 0,
    }  # fmt: skip


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)

    def forward(self, x):
        return self.down(self.act(self.up(self.act(x) + 1)))


def test_a_module_that_is_called_twice_has_two_names_in_each_micro_batch(monitored):
    begin, out = monitored
    model = Twice().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    hook = model.act.register_forward_hook(lambda _module, args, output: calls.append(output))
    monitor = begin(model, optimizer, steps_of_batch=2, xy_distribution=True, forward_only=True)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    monitor.close()
    hook.remove()
    run = read_monitored(out)
    places = [(name, micro_step) for micro_step in (0, 1) for name in ("act.output", "act#1.output")]
    for (name, micro_step), output in zip(places, calls, strict=True):
        assert row(run, "actv", name, 0, micro_step)["norm"] == pytest.approx(output.norm().item(), rel=1e-6)


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["in turn", "as a pipeline"])
def test_a_model_that_is_called_twice_before_a_backward_has_two_names(monitored, runs_ahead):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    monitor = begin(model, optimizer, steps_of_batch=2, xy_distribution=True)
    for step in range(2):
        losses = []
        for _ in range(2):
            both = [model(torch.randn(4, 8)) for _ in range(2)]
            losses.append(both[0].square().mean() - both[1].square().mean())
            outputs += both if step == 1 else []
            if not runs_ahead:
                losses.pop().backward()
        for loss in losses:
            loss.backward()
        optimizer.step()
    monitor.close()
    run = read_monitored(out)
    places = [(name, micro_step) for micro_step in (0, 1) for name in (".output", "#1.output")]
    for (name, micro_step), output in zip(places, outputs, strict=True):
        assert row(run, "actv", name, 1, micro_step)["norm"] == pytest.approx(output.norm().item(), rel=1e-6)
    gradients = run.frame.filter((pl.col("quantity") == "actv_grad") & (pl.col("step") == 1))
    assert {"up.output", "up#1.output"} <= set(gradients["name"])
    assert set(gradients["micro_step"]) == {0, 1}


def test_micro_batches_that_were_not_told_are_no_further_calls(monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = begin(model, optimizer, xy_distribution=True)
    for _ in range(2):
        for _ in range(2):
            model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    monitor.close()
    assert not any("#" in name for name in read_monitored(out).frame["name"])


def of_a_rank(rank, world, directory):
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    path = directory / f"monitor{rank}.json"
    path.write_text(json.dumps({"ops": OPS, "ndigits": 14, "wg_distribution": True, "squash_name": True}))
    model = DistributedDataParallel(Net().train())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    torch.manual_seed(10 + rank)
    model(torch.randn(5, 8)).square().mean().backward()
    torch.save([parameter.grad for parameter in model.parameters()], directory / f"reduced{rank}.pt")
    optimizer.step()
    monitor.close()
    # The same batch without the other rank.
    alone = Net().train()
    torch.manual_seed(10 + rank)
    alone(torch.randn(5, 8)).square().mean().backward()
    torch.save([parameter.grad for parameter in alone.parameters()], directory / f"own{rank}.pt")


def test_gradients_of_ranks_are_seen_before_and_after_they_are_reduced(tmp_path):
    run_job(of_a_rank, 2, tmp_path)
    run = read_monitored(tmp_path / "out")
    assert run.ranks == [0, 1]
    for rank in (0, 1):
        own, reduced = (torch.load(tmp_path / f"{what}{rank}.pt") for what in ("own", "reduced"))
        rows = run.frame.filter((pl.col("rank") == rank) & (pl.col("name") == "up.weight"))
        norms = dict(rows.select("quantity", "norm").rows())
        assert norms["grad_unreduced"] == pytest.approx(own[0].norm().item(), rel=1e-5)
        assert norms["grad_reduced"] == pytest.approx(reduced[0].norm().item(), rel=1e-5)
    assert len(set(run.frame.filter(pl.col("name") == "up.weight")["norm"].to_list())) == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "tp"])
def test_sharded_trainings_are_the_same_to_the_bit_and_seen_whole(kind, tmp_path):
    bare, watched = (
        run_job(train_in_parallel, 2, tmp_path / str(settings is not None), kind, settings)
        for settings in (None, {"ops": OPS, **QUANTITIES})
    )
    assert watched == bare
    for path in (tmp_path / "True" / "out").glob("*/coverage.json"):
        coverage = json.loads(path.read_text())
        assert all(each["expected"] in (None, each["seen"]) for each in coverage.values()), coverage
    assert read_monitored(tmp_path / "True" / "out").ranks == [0, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "nothing is to be collected"),
        ({"wg_distribution": "yes"}, "'wg_distribution' is 'yes'"),
        ({"wg_distribution": True, "ops": ["median"]}, "'ops' lists no operation"),
        ({"wg_distribution": True, "step_interval": 0}, "must be at least 1"),
        ({"wg_distribution": True, "alert": {"rules": [{"rule_name": "Other"}]}}, "the rule 'Other'"),
    ],
)
def test_wrong_settings_are_refused_before_the_first_step(settings, said, tmp_path):
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=said):
        TrainerMon(path)


def test_what_is_no_optimizer_is_refused(tmp_path):
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps({"wg_distribution": True}))
    with pytest.raises(SessionError, match="has no method step"):
        TrainerMon(path).set_monitor(Net(), None)


def test_an_unknown_field_is_said_and_ignored(tmp_path, caplog):
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps({"wg_distribution": True, "step_intervall": 3}))
    TrainerMon(path)
    assert "did you mean 'step_interval'?" in caplog.text


def test_a_full_disk_does_not_end_the_training(monitored, monkeypatch, caplog):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    out.write_text("a file where the directory should be")
    monitor = begin(model, optimizer, wg_distribution=True)
    train(model, optimizer)
    monitor.close()
    assert "training goes on" in caplog.text


@pytest.mark.parametrize("factor", [1e4, float("nan")])
def test_the_calibrated_alarm_names_what_the_files_say_afterwards(factor, monitored):
    begin, out = monitored
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    alert = {"rules": [{"rule_name": "AnomalyUnusual", "args": {"false_alarms": 1e-3}}], "dump": True}
    monitor = begin(model, optimizer, steps_of_batch=2, alert=alert, step_count_per_record=70, **QUANTITIES)

    def fault(step, model):
        if step == 60:
            model.down.weight.grad *= factor

    train(model, optimizer, steps=70, fault=fault)
    monitor.close()
    first = next(iter(json.loads((out / "anomaly_detected" / "rank0" / "anomaly.json").read_text()).values()))
    assert (first["step"], first["tag_name"]) == (60, "0:down.weight:0/rank0/grad_reduced")
    with pytest.raises(SystemExit):
        main(["monitor", "analyze", str(out), "-o", str(out)])
    (found, *_) = json.loads((out / "anomaly_analyse.json").read_text())
    assert (found["quantity"], found["name"], found["step"]) == ("grad_reduced", "down.weight", 60)
    assert found["message"].partition(" usual deviations")[0] in first["message"]


def test_a_bound_of_the_overhead_widens_the_interval_and_says_so(monitored):
    begin, out = monitored
    bare = Net().train()
    expected = train(bare, torch.optim.AdamW(bare.parameters()), steps=40)
    model = Net().train()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = begin(model, optimizer, steps_of_batch=2, msprobe={"max_overhead": 1e-4}, **QUANTITIES)
    assert same(train(model, optimizer, steps=40), expected)
    monitor.close()
    (path,) = out.glob("*/overhead.json")
    found = json.loads(path.read_text())
    # Whatever the machine: four collected steps of such a small training take more than this.
    assert found["intervals"][0]["interval"] > 100
    assert found["intervals"][0]["expected_share"] <= 1e-4
    assert (found["num_collected"], read_monitored(out).steps) == (3, [0, 1, 2, 3])
    assert 0 < found["share"] < 1


def test_the_host_waits_for_a_device_once_a_step_and_not_inside_of_it(monitored, monkeypatch):
    begin, out = monitored
    # Tensors of the host are treated like those of a device, and what fetches a number is counted.
    monkeypatch.setattr("msprobe.pytorch._framework.TorchReducer", partial(TorchReducer, defer_host=True))
    waits, tolist, item = [], torch.Tensor.tolist, torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: waits.append("tolist") or tolist(tensor))
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: waits.append("item") or item(tensor))
    model = Net().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = begin(model, optimizer, **{**QUANTITIES, "ops": ["norm", "min", "max", "mean", "nans"]})
    for step in range(4):
        model(torch.randn(5, 8)).square().mean().backward()
        assert waits == []
        optimizer.step()
        assert waits == ["tolist"] * min(step, 1)  # of the step before
        waits.clear()
        optimizer.zero_grad()
    monitor.close()
    assert read_monitored(out).steps == [0, 1, 2, 3]


def reduce_a_part_alone(rank, world, directory, fault):
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    path = directory / f"monitor{rank}.json"
    path.write_text(json.dumps({"msprobe": {"sketch": "grad"}, "step_count_per_record": 2, "squash_name": True}))
    bare = Net().train()
    if fault == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(bare, ["down.weight"])
    model = DistributedDataParallel(bare)
    if fault == "scaled":

        def exchange(_state, bucket):
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if rank == 1 and parameter is bare.down.weight:
                    gradient.mul_(1.1)
            work = torch.distributed.all_reduce(bucket.buffer().div_(world), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, exchange)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer, grad_acc_steps=2)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        with model.no_sync():
            model(torch.randn(5, 8)).square().mean().backward()
        model(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("none", "RIGHT: 12 gradients are what the ranks' add up to."),
        ("ignored", "WRONG: down.weight at step 0: it was not reduced on rank 0, 1"),
        ("scaled", "WRONG: down.weight at step 0: rank 1 contributes 1.1 times its gradient"),
    ],
)
def test_what_data_parallelism_leaves_out_or_changes_is_named(fault, said, tmp_path, capsys):
    run_job(reduce_a_part_alone, 2, tmp_path, fault)
    assert sorted(path.name for path in tmp_path.glob("out/*rank1*/*.msgpack")) == [
        "grad_sketches_0-1.msgpack", "grad_sketches_2-2.msgpack",
    ]  # fmt: skip
    (size,) = {path.stat().st_size for path in tmp_path.glob("out/*rank1*/grad_sketches_0-1.msgpack")}
    assert size < 2 * 8 * 300  # steps, gradients before and after
    with pytest.raises(SystemExit) as end:
        main(["monitor", "reduction-check", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert said in shown
    assert end.value.code == (fault != "none")
    if fault != "none":
        assert "3 of 12 gradients are wrong" in shown


@pytest.mark.slow
def test_parts_of_gradients_add_up_to_what_the_ranks_should_have(tmp_path, capsys):
    run_job(sketch_of_parts, 2, tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["monitor", "reduction-check", str(tmp_path / "out")])
    assert end.value.code == 0
    assert "RIGHT: 26 gradients are what the ranks' add up to." in capsys.readouterr().out


def sketch_of_parts(rank, world, directory):
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory / "out")
    path = directory / f"monitor{rank}.json"
    path.write_text(json.dumps({"msprobe": {"sketch": "grad"}}))
    model = make_model("fsdp2", world).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    for _ in range(2):
        model(torch.randint(0, VOCABULARY, (4, 6))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
