"""The training monitor on MindSpore's dynamic graph: what its files say, and that the training does not notice it."""

from __future__ import annotations

import csv
import itertools
import json
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Parameter, Tensor, mint, nn, ops  # noqa: E402
from mindspore.dataset import GeneratorDataset  # noqa: E402
from mindspore.experimental import optim  # noqa: E402
from mindspore.train import Model  # noqa: E402
from mindspore_jobs import run_job  # noqa: E402
from mindspore_rig import dense  # noqa: E402
from msprobe.mindspore import PrecisionDebugger, TrainerMon  # noqa: E402
from msprobe.mindspore._compiling import api  # noqa: E402

from msprobe_core.cli import main  # noqa: E402
from msprobe_core.errors import SessionError  # noqa: E402
from msprobe_core.monitoring.files import read_monitored  # noqa: E402

OPS = ["norm", "min", "max", "mean", "zeros", "nans"]
QUANTITIES = dict.fromkeys(("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution"), True)
NUM_STEPS = 3


def batch(step):
    random = np.random.RandomState(step)
    return Tensor(random.normal(size=(4, 8)).astype(np.float32)), Tensor(np.zeros((4, 2), np.float32))


def make_net():
    random = np.random.RandomState(0)
    return nn.SequentialCell(dense(8, 6, random), nn.ReLU(), dense(6, 2, random))


@pytest.fixture
def monitored(tmp_path, monkeypatch):
    """Return a function that begins to monitor, and where its files will be."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    began = []

    def begin(net, optimizer, *, grad_acc_steps=1, **settings):
        path = tmp_path / "monitor.json"
        path.write_text(json.dumps({"targets": {}, "ops": OPS, "ndigits": 14, **settings}))
        monitor = TrainerMon(path)
        began.append(monitor)
        monitor.set_monitor(net, optimizer, grad_acc_steps=grad_acc_steps)
        return monitor

    yield begin, tmp_path / "out"
    for monitor in began:
        monitor.close()


def by_gradients(net, optimizer):
    loss_and_gradients = ms.value_and_grad(lambda x, y: nn.MSELoss()(net(x), y), None, net.trainable_params())
    losses = []
    for step in range(NUM_STEPS):
        loss, gradients = loss_and_gradients(*batch(step))
        optimizer(gradients)
        losses.append(loss.asnumpy())
    return losses


def by_one_step_cell(net, optimizer):
    train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    train.set_train()
    return [train(*batch(step)).asnumpy() for step in range(NUM_STEPS)]


def by_model(net, optimizer):
    rows = [(x, y) for step in range(NUM_STEPS) for x, y in zip(*(each.asnumpy() for each in batch(step)), strict=True)]
    data = GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(4)
    Model(net, nn.MSELoss(), optimizer).train(1, data, dataset_sink_mode=False)
    return []


def weights(net):
    return [parameter.asnumpy().copy() for parameter in net.trainable_params()]


def row(run, quantity, name, step, micro_step=None):
    micro = pl.col("micro_step").is_null() if micro_step is None else pl.col("micro_step") == micro_step
    found = run.frame.filter(
        (pl.col("quantity") == quantity) & (pl.col("name") == name) & (pl.col("step") == step) & micro
    )
    assert found.height == 1, (quantity, name, step, found)
    return found.row(0, named=True)


def assert_values(found, values, rel=1e-5):
    wide = np.float64(values)
    expected = {
        "norm": np.sqrt((wide**2).sum()), "min": wide.min(), "max": wide.max(), "mean": wide.mean(),
        "zeros": (np.abs(wide) < 1e-8).mean(), "nans": np.isnan(wide).sum(),
    }  # fmt: skip
    for op, value in expected.items():
        assert found[op] == pytest.approx(value, rel=rel, abs=1e-7), (found["name"], op)


def coverage(out):
    (path,) = out.glob("*/coverage.json")
    return json.loads(path.read_text())


def assert_all_seen(out):
    for quantity, each in coverage(out).items():
        assert each["seen"] == each["finite"] > 0, quantity
        assert each["expected"] in (None, each["seen"]), quantity


@pytest.mark.parametrize("train", [by_gradients, by_one_step_cell, by_model])
def test_every_kind_of_training_is_seen_whole_and_is_the_same_to_the_bit(train, monitored):
    begin, out = monitored
    net, bare = make_net(), make_net()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
    monitor = begin(net, optimizer, **QUANTITIES)
    losses = train(net, optimizer)
    monitor.close()
    expected = train(bare, nn.Adam(bare.trainable_params(), learning_rate=0.01))
    for one, other in zip([*losses, *weights(net)], [*expected, *weights(bare)], strict=True):
        assert one.tobytes() == other.tobytes()
    assert_all_seen(out)
    run = read_monitored(out)
    assert run.steps == list(range(NUM_STEPS))
    assert_values(row(run, "param_updated", "2.weight", NUM_STEPS - 1), net[2].weight.asnumpy())


def test_activations_and_their_gradients_are_those_of_the_formula(monitored):
    """Of two maps with a rectifier between them, and of the mean of squares."""
    begin, out = monitored
    net = make_net()
    first, second = net[0], net[2]
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    x = batch(0)[0].asnumpy()
    hidden = x @ first.weight.asnumpy().T + first.bias.asnumpy()
    result = np.maximum(hidden, 0) @ second.weight.asnumpy().T + second.bias.asnumpy()
    of_result = 2 * result / result.size
    of_hidden = of_result @ second.weight.asnumpy() * (hidden > 0)
    monitor = begin(net, optimizer, **QUANTITIES)
    by_gradients(net, optimizer)
    monitor.close()
    run = read_monitored(out)
    expected = {
        ("actv", "0.input", 0): x,
        ("actv", "0.output", 0): hidden,
        ("actv", ".output", 0): result,
        ("actv_grad", "2.output", 0): of_result,
        ("actv_grad", "1.input", 0): of_hidden,
        ("grad_unreduced", "0.weight", None): of_hidden.T @ x,
        ("grad_reduced", "2.bias", None): of_result.sum(0),
    }
    for (quantity, name, micro_step), values in expected.items():
        assert_values(row(run, quantity, name, 0, micro_step), values, rel=1e-4)
    assert coverage(out)["exp_avg"]["seen"] == 0  # SGD without a momentum


OPTIMIZERS = {
    "SGD": lambda each: nn.SGD(each, 0.1, momentum=0.9),
    "Momentum": lambda each: nn.Momentum(each, 0.1, 0.9),
    "Adam": nn.Adam,
    "AdamWeightDecay": nn.AdamWeightDecay,
    "AdaFactor": lambda each: nn.AdaFactor(each, beta1=0.9),
    "Adagrad": nn.Adagrad,
    "experimental Adam": lambda each: optim.Adam(each, 0.1),
    "experimental AdamW": lambda each: optim.AdamW(each, 0.1),
    "experimental SGD": lambda each: optim.SGD(each, 0.1, momentum=0.9),
    "mint Adam": lambda each: mint.optim.Adam(each, 0.1),
    "mint SGD": lambda each: mint.optim.SGD(each, 0.1, momentum=0.9),
}
MOMENTS = {
    "SGD": (4, 0), "Momentum": (4, 0), "AdaFactor": (4, 2), "Adagrad": (0, 0), "experimental SGD": (4, 0),
    "mint SGD": (4, 0),
}  # fmt: skip
"""Numbers of parameters with a first and a second moment; AdaFactor keeps those of matrices by row and column."""

KEPT = {
    "SGD": "accum.", "Momentum": "moments.", "AdamWeightDecay": "adam_m.", "experimental SGD": "accum.",
    "mint SGD": "momentum_buf.",
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_seen_with_what_they_are_given_and_keep(name, monitored):
    begin, out = monitored
    net = make_net()
    optimizer = OPTIMIZERS[name](net.trainable_params())
    loss_and_gradients = ms.value_and_grad(lambda x, y: nn.MSELoss()(net(x), y), None, net.trainable_params())
    monitor = begin(net, optimizer, wg_distribution=True, mv_distribution=True, param_distribution=True)
    kept = {parameter.name: parameter for parameter in optimizer.get_parameters()}
    stem = KEPT.get(name) or next((each for each in ("moment1.", "exp_avg.") if f"{each}0.weight" in kept), None)
    seen = []
    for step in range(NUM_STEPS):
        gradients = loss_and_gradients(*batch(step))[1]
        moment = kept[f"{stem}0.weight"].asnumpy().copy() if stem else None
        before = net[0].weight.asnumpy().copy()
        optimizer(gradients)
        seen.append((gradients[0].asnumpy(), before, moment, net[0].weight.asnumpy().copy()))
    monitor.close()
    run = read_monitored(out)
    for step, (gradient, weight, moment, updated) in enumerate(seen):
        assert_values(row(run, "grad_reduced", "0.weight", step), gradient)
        assert_values(row(run, "param_origin", "0.weight", step), weight)
        assert_values(row(run, "param_updated", "0.weight", step), updated)
        if moment is not None:
            assert_values(row(run, "exp_avg", "0.weight", step), moment)
    assert tuple(coverage(out)[each]["seen"] for each in ("exp_avg", "exp_avg_sq")) == MOMENTS.get(name, (4, 4))
    # MindSpore's own: on the CPU the optimizers of mint do not change parameters.
    assert name.startswith("mint") or seen[0][1].tobytes() != seen[0][3].tobytes()
    bare = make_net()
    by_gradients(bare, OPTIMIZERS[name](bare.trainable_params()))
    assert [each.tobytes() for each in weights(net)] == [each.tobytes() for each in weights(bare)]


def test_gradients_belong_to_their_parameters_in_groups_of_another_order(monitored):
    begin, out = monitored
    net = make_net()
    parameters = net.trainable_params()
    groups = [{"params": parameters[2:], "lr": 0.05}, {"params": parameters[:2]}, {"order_params": parameters[::-1]}]
    optimizer = nn.Momentum(groups, 0.1, 0.9)
    monitor = begin(net, optimizer, wg_distribution=True)
    gradients = ms.grad(lambda x: net(x).sum(), None, optimizer.parameters)(batch(0)[0])
    optimizer(gradients)
    monitor.close()
    run = read_monitored(out)
    for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
        assert_values(row(run, "grad_reduced", parameter.name, 0), gradient.asnumpy())
        assert_values(row(run, "grad_unreduced", parameter.name, 0), gradient.asnumpy())


@pytest.mark.parametrize("every", [False, True])
def test_micro_batches_are_told_apart_and_their_sum_is_what_the_optimizer_gets(every, monitored):
    begin, out = monitored
    net = make_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    gradients_of = ms.grad(lambda x: net(x).square().mean(), None, net.trainable_params())
    monitor = begin(
        net, optimizer, grad_acc_steps=2, wg_distribution=True, xy_distribution=True, monitor_mbs_grad=every
    )
    for step in range(2):
        parts = [gradients_of(batch(2 * step + part)[0]) for part in range(2)]
        optimizer(tuple(one + other for one, other in zip(*parts, strict=True)))
    monitor.close()
    run = read_monitored(out)
    for part in range(2):
        assert_values(row(run, "actv", "0.input", 1, part), batch(2 + part)[0].asnumpy())
        if every or part == 1:
            assert_values(row(run, "grad_unreduced", "0.weight", 1, part if every else None), parts[part][0].asnumpy())
    assert run.frame.filter(pl.col("quantity") == "grad_unreduced").height == (16 if every else 8)
    assert_values(row(run, "grad_reduced", "0.weight", 1), (parts[0][0] + parts[1][0]).asnumpy())


class Repeated(nn.Cell):
    """Recomputes one Cell, calls another twice, and ties a parameter."""

    def __init__(self):
        super().__init__()
        random = np.random.RandomState(0)
        self.up, self.shared, self.down = dense(8, 6, random), dense(6, 6, random), dense(6, 2, random)
        self.tied = nn.CellList([self.shared])
        self.scale = Parameter(Tensor(np.ones(6, np.float32)), name="scale")
        self.frozen = Parameter(Tensor(np.ones(6, np.float32)), name="frozen", requires_grad=False)

    def construct(self, x):
        return self.down(self.shared(ops.relu(self.shared(self.up(x)))) * self.scale)


def test_recomputed_and_repeated_cells(monitored):
    begin, out = monitored

    def run_it(watched):
        net = Repeated()
        net.up.recompute()
        net.shared.recompute()
        optimizer = nn.Adam(net.trainable_params())
        monitor = begin(net, optimizer, **QUANTITIES) if watched else None
        losses = by_gradients(net, optimizer)
        if monitor is not None:
            monitor.close()
        return [each.tobytes() for each in (*losses, *weights(net))]

    assert run_it(watched=True) == run_it(watched=False)
    assert_all_seen(out)
    run = read_monitored(out)
    names = set(run.frame.filter(pl.col("quantity") == "grad_reduced")["name"].to_list())
    assert names == {"scale", *(f"{cell}.{each}" for cell in ("up", "shared", "down") for each in ("weight", "bias"))}
    # The second call of a Cell in a step replaces the first, and a recomputation counts for nothing.
    last = row(run, "actv", "shared.output", 1, 0)
    assert last["max"] != row(run, "actv", "shared.input", 1, 0)["max"]
    one, other = row(run, "grad_unreduced", "shared.weight", 1), row(run, "grad_reduced", "shared.weight", 1)
    assert [one[op] for op in OPS] == [other[op] for op in OPS]


def test_a_nan_is_reported_at_once_and_named_first(monitored, caplog):
    begin, out = monitored
    net = make_net()
    optimizer = nn.Adam(net.trainable_params())
    rules = {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}
    monitor = begin(net, optimizer, alert=rules, **QUANTITIES)
    gradients_of = ms.grad(lambda x: net(x).square().mean(), None, net.trainable_params())
    for step in range(4):
        gradients = list(gradients_of(batch(step)[0]))
        if step == 2:
            spoilt = gradients[2].asnumpy().copy()
            spoilt[0, 0] = np.nan
            gradients[2] = Tensor(spoilt)
        optimizer(tuple(gradients))
    monitor.close()
    records = json.loads((out / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
    first = next(iter(records.values()))
    assert (first["step"], first["tag_name"]) == (2, "0:2.weight:0/rank0/grad_reduced")
    assert "AnomalyNan" in caplog.text
    with pytest.raises(SystemExit) as end:
        main(["monitor", "analyze", str(out), "-o", str(out)])
    assert end.value.code == 1
    (found, *_) = json.loads((out / "anomaly_analyse.json").read_text())
    assert (found["quantity"], found["name"], found["step"]) == ("grad_reduced", "2.weight", 2)


def test_a_healthy_training_has_no_anomaly(monitored, capsys):
    begin, out = monitored
    random = np.random.RandomState(0)
    weights = [random.uniform(-0.35, 0.35, size=size).astype(np.float32) for size in ((6, 8), (2, 6))]
    net = nn.SequentialCell(
        nn.Dense(8, 6, weight_init=Tensor(weights[0])), nn.ReLU(), nn.Dense(6, 2, weight_init=Tensor(weights[1]))
    )
    optimizer = nn.Adam(net.trainable_params())
    monitor = begin(net, optimizer, ops=["norm", "zeros"], step_count_per_record=100, **QUANTITIES)
    gradients_of = ms.grad(lambda x: net(x).square().mean(), None, net.trainable_params())
    for step in range(60):
        optimizer(gradients_of(batch(step)[0]))
    monitor.close()
    with pytest.raises(SystemExit) as end:
        main(["monitor", "analyze", str(out)])
    assert end.value.code == 0, capsys.readouterr().out


def test_an_evaluation_between_steps_is_not_recorded(monitored):
    begin, out = monitored
    net = make_net()
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = begin(net, optimizer, xy_distribution=True)
    by_gradients(net, optimizer)
    gradients = ms.grad(lambda x: net(x).sum(), None, net.trainable_params())(batch(5)[0])
    net.set_train(False)
    net(Tensor(np.ones((3, 8), np.float32)))
    optimizer(gradients)
    monitor.close()
    assert_values(row(read_monitored(out), "actv", "0.input", NUM_STEPS, 0), batch(5)[0].asnumpy())


def traces(net, optimizer):
    cells = [cell for root in (net, optimizer) for _, cell in root.cells_and_names()]
    hooks = [[len(getattr(cell, name)) for name in ("_forward_pre_hook", "_forward_hook")] for cell in cells]
    return hooks, [len(each.hooks()) for each in net.get_parameters()], api._JitExecutor.compile


@pytest.mark.parametrize("step_interval", [1, 2])  # with 2, the monitor takes its hooks out and in meanwhile
def test_a_debugger_beside_the_monitor_may_end_before_or_after_it(step_interval, monitored, tmp_path):
    begin, _ = monitored
    net = make_net()
    optimizer = nn.Adam(net.trainable_params())
    before = traces(net, optimizer)
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"), level="L0", task="statistics")
    for starts_first, ends_first in itertools.product((True, False), repeat=2):
        if starts_first:
            debugger.start(net)
        monitor = begin(net, optimizer, step_interval=step_interval, **QUANTITIES)
        if not starts_first:
            debugger.start(net)
        by_gradients(net, optimizer)
        if not ends_first:
            monitor.close()
        debugger.stop()
        debugger.step()
        monitor.close()
        assert traces(net, optimizer) == before
    debugger.close()
    assert len(list((tmp_path / "dump").glob("step*/*/dump.json"))) == 4


@pytest.mark.parametrize("tool", ["monitor", "debugger"])
def test_a_hook_of_the_user_may_call_a_compiled_function(tool, monitored, tmp_path):
    begin, out = monitored
    net = make_net()
    optimizer = nn.Adam(net.trainable_params())
    called = []

    @ms.jit
    def double(x):
        return x * 2

    def hook(_cell, _args):
        called.append(double(Tensor(np.ones(2, np.float32))))

    for cell in (net, net[0], optimizer):
        cell.register_forward_pre_hook(hook)
    before = traces(net, optimizer)
    if tool == "monitor":
        monitor = begin(net, optimizer, **QUANTITIES)
        by_gradients(net, optimizer)
        monitor.close()
        assert_all_seen(out)
    else:
        debugger = PrecisionDebugger(dump_path=str(tmp_path), level="L0", task="statistics")
        with debugger.start(net):
            by_gradients(net, optimizer)
        debugger.close()
    assert len(called) == 3 * NUM_STEPS
    assert traces(net, optimizer) == before


def test_a_cell_that_holds_the_optimizer_is_a_model_too(monitored):
    begin, out = monitored
    net = make_net()
    optimizer = nn.Adam(net.trainable_params())
    train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    monitor = begin(
        train, optimizer, start_step=1, step_interval=2, **QUANTITIES
    )  # hooks change in the optimizer's call
    for step in range(4):
        train(*batch(step))
    monitor.close()
    assert_all_seen(out)
    assert coverage(out)["grad_reduced"]["expected"] == 4
    assert read_monitored(out).steps == [1, 3]


def test_what_is_no_optimizer_is_refused(monitored):
    begin, _ = monitored
    net = make_net()
    for wrong in (None, net, "Adam"):
        with pytest.raises(SessionError, match="no Cell with the parameters that it updates"):
            begin(net, wrong, wg_distribution=True)


def test_graph_mode_is_refused(monitored):
    begin, _ = monitored
    net = make_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(SessionError, match="in GRAPH_MODE there are none"):
            begin(net, optimizer, wg_distribution=True)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_what_is_compiled_is_said_not_to_be_seen(monitored, caplog):
    begin, out = monitored
    net = make_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)

    @ms.jit
    def forward(x):
        return net(x).square().mean()

    monitor = begin(net, optimizer, wg_distribution=True, xy_distribution=True)
    loss_and_gradients = ms.value_and_grad(forward, None, net.trainable_params())
    for step in range(2):
        optimizer(loss_and_gradients(batch(step)[0])[1])
    monitor.close()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("sees nothing inside of" in each and "forward" in each for each in said) == 1
    assert sum("saw nothing of actv, actv_grad in 2 steps" in each for each in said) == 1
    assert len(said) == 2
    assert coverage(out)["grad_unreduced"]["seen"] == coverage(out)["grad_reduced"]["seen"] == 4


def test_an_optimizer_inside_of_a_compiled_function_is_said_not_to_be_seen(monitored, caplog):
    begin, out = monitored
    net = make_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)

    def loss_of(x):
        return net(x).square().mean()

    loss_and_gradients = ms.value_and_grad(loss_of, None, optimizer.parameters)

    @ms.jit
    def train(x):
        loss, gradients = loss_and_gradients(x)
        optimizer(gradients)
        return loss

    monitor = begin(net, optimizer, wg_distribution=True)
    losses = [float(train(batch(0)[0]).asnumpy()) for _ in range(2)]
    monitor.close()
    assert losses[1] < losses[0]
    assert "the monitor saw no step of SGD and wrote nothing" in caplog.text
    assert not out.exists()


@pytest.mark.slow
def test_gradients_of_ranks_are_seen_before_and_after_they_are_reduced(tmp_path):
    run_job("monitored_ranks.py", tmp_path, str(tmp_path))
    run = read_monitored(tmp_path / "out")
    assert run.ranks == [0, 1]
    own = [np.load(tmp_path / f"own{rank}.npy") for rank in range(2)]
    for rank in range(2):
        rows = run.frame.filter((pl.col("rank") == rank) & (pl.col("name") == "0.weight"))
        norms = dict(rows.select("quantity", "norm").rows())
        assert norms["grad_unreduced"] == pytest.approx(np.linalg.norm(own[rank]), rel=1e-5)
        assert norms["grad_reduced"] == pytest.approx(np.linalg.norm((own[0] + own[1]) / 2), rel=1e-5)
    assert np.linalg.norm(own[0]) != pytest.approx(np.linalg.norm(own[1]), rel=1e-3)


@pytest.mark.slow
def test_what_ranks_exchange_is_seen_and_stays_the_same(tmp_path):
    run_job("monitored_exchange.py", tmp_path, str(tmp_path))
    for rank in range(2):
        bare, *watched = np.load(tmp_path / f"weights{rank}.npy")
        assert [each.tobytes() for each in watched] == 3 * [bare.tobytes()]
        rows = exchanged(tmp_path / "out", rank)
        assert {Path(row["caller"].partition("[")[0]).name for row in rows.values()} == {"monitored_exchange.py"}
        norms = {name: float(row["norm"]) for name, row in rows.items()}
        assert norms["all_reduce.2.input"] == pytest.approx(2 * (1 + rank))
        assert norms["all_reduce.2.output"] == pytest.approx(6)
        assert norms["all_reduce.0.output"] == pytest.approx(norms["all_reduce.0.input"] * 3 / (1 + rank))
        assert "broadcast.0.input" in norms
        for order, num_steps in (("last", 2), ("first", 1)):  # beside a debugger, each sees all that the other sees
            assert exchanged(tmp_path / f"out_debugger_{order}", rank) == rows
            dumps = sorted((tmp_path / f"dump_{order}").glob(f"step*/rank{rank}/dump.json"))
            assert len(dumps) == num_steps
            names = [name for path in dumps for name in json.loads(path.read_text())["data"]]
            recorded = Counter(name.split(".")[1] for name in names)
            assert (recorded["all_reduce"], recorded["broadcast"]) == (2 * 3, 2 * 1)


def exchanged(directory, rank):
    (path,) = directory.glob(f"*rank{rank}*/cc_0-0.csv")
    with path.open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}
