"""Cells of the dynamic graph, on nets of the kinds that training has."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from msprobe.mindspore import MsprobeStep, PrecisionDebugger, module_dump, module_dump_end  # noqa: E402

import msprobe_core  # noqa: E402
from msprobe_core.store.tensors import read_tensor  # noqa: E402


def tensor(*shape, seed=0):
    return Tensor(np.random.RandomState(seed).normal(size=shape).astype(np.float32))


@pytest.fixture
def record(tmp_path):
    """Return a function that runs a program under the probe and returns its dump and its tensors."""
    made = []

    def run(program, *models, debugger=PrecisionDebugger, num_steps=1, as_list=False, **settings):
        settings = {"level": "L0", "task": "tensor", "dump_path": str(tmp_path / f"run{len(made)}"), **settings}
        probe = debugger(**settings)
        made.append(probe)
        try:
            for _ in range(num_steps):
                with probe.start(models if as_list or len(models) > 1 else models[0]):
                    program()
                probe.step()
        finally:
            probe.close()
        return Recorded(tmp_path / f"run{len(made) - 1}" / "step0" / f"proc{os.getpid()}")

    yield run
    for probe in made:
        probe.close()


class Recorded:
    def __init__(self, directory):
        self.directory = directory
        self.data = json.loads((directory / "dump.json").read_text())["data"]
        self.parents = json.loads((directory / "construct.json").read_text())

    def __getitem__(self, entry):
        return self.data[entry]

    def __contains__(self, entry):
        return entry in self.data

    def value(self, record):
        return read_tensor(self.directory / "dump_tensor_data" / record["data_name"])


def test_cells_of_a_list_of_one_model_are_named_by_its_position(record):
    model = nn.SequentialCell(nn.ReLU())
    recorded = record(lambda: model(tensor(2)), model, as_list=True)
    assert list(recorded.data) == ["Cell.0.0.ReLU.forward.0", "Cell.0.SequentialCell.forward.0"]


class Nested(nn.Cell):
    """Takes and returns structures, with a part of them unused."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(tensor(4, 4, seed=1), name="weight")

    def construct(self, pair, *, table, scale=None):
        first, second = pair
        product = ops.matmul(first, self.weight) + second * table["k"]
        return {"sum": product + first, "rest": [second * 2.0, product * scale]}


class Around(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Nested()

    def construct(self, x):
        first, second = x * 1.5, x - 0.5
        result = self.inner((first, second), table={"k": x * 3.0}, scale=x + 1.0)
        return result["sum"].sum() + (result["rest"][1] * first).sum()


def test_gradients_of_nested_and_keyword_values_are_those_of_the_call(record):
    net, x = Around(), tensor(3, 4)
    recorded = record(lambda: ms.value_and_grad(net, 0, net.trainable_params())(x), net)
    entry = recorded["Cell.inner.Nested.backward.0"]
    first, second, k, scale = (value.asnumpy() for value in (x * 1.5, x - 0.5, x * 3.0, x + 1.0))
    weight = net.inner.weight.asnumpy()
    to_sum, to_product = np.ones((3, 4), np.float32), first  # what arrives at the two results that the loss uses
    at_product = to_sum + to_product * scale
    expected = {
        "first": at_product @ weight.T + to_sum,  # without what `Around` sends to it by itself
        "second": at_product * k,
        "k": at_product * second,
        "scale": to_product * (first @ weight + second * k),
    }
    arguments = entry["output"]
    found = {
        "first": recorded.value(arguments[0][0]),
        "second": recorded.value(arguments[0][1]),
        "k": recorded.value(entry["output_kwargs"]["table"]["k"]),
        "scale": recorded.value(entry["output_kwargs"]["scale"]),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    (results,) = entry["input"]
    np.testing.assert_array_equal(recorded.value(results["sum"]), to_sum)
    assert results["rest"][0] is None  # no gradient arrives there
    np.testing.assert_allclose(recorded.value(results["rest"][1]), to_product, rtol=1e-6)


class Fan(nn.Cell):
    """Values with several uses: the order in which their gradients are summed shows in the last digits."""

    def __init__(self):
        super().__init__()
        self.parts = nn.CellList([nn.Dense(16, 16, weight_init=tensor(16, 16, seed=i)) for i in range(3)])
        self.norm = nn.LayerNorm((16,))
        self.drop = nn.Dropout(p=0.3)

    def construct(self, x):
        hidden = self.norm(x)
        mixed = self.parts[0](hidden) * ops.sigmoid(self.parts[1](hidden)) + ops.tanh(self.parts[2](hidden))
        return self.drop(x + mixed + self.parts[0](mixed))


def train(num_steps, around=lambda step, run: run()):
    ms.set_seed(3)
    ms.manual_seed(3)
    np.random.seed(3)
    net = Fan()
    net.set_train()
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    gradients_of = ms.value_and_grad(lambda x: net(x).square().mean(), None, net.trainable_params())
    seen = []

    def run(step):
        loss, gradients = gradients_of(tensor(8, 16, seed=50 + step))
        optimizer(gradients)
        seen.extend(value.asnumpy().tobytes() for value in (loss, *gradients, *net.trainable_params()))

    for step in range(num_steps):
        around(step, lambda step=step: run(step))
    return seen, net


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_values_with_several_uses_keep_their_gradients_to_the_last_bit(tmp_path, level, task):
    expected, _ = train(3)
    probe = PrecisionDebugger(level=level, task=task, dump_path=str(tmp_path))
    nets = []

    def around(step, run):
        probe.start(nets[0]) if nets else None
        run()

    try:
        original = nn.Cell.set_train

        def remember(cell, *args, **kwargs):
            nets.append(cell) if isinstance(cell, Fan) else None
            return original(cell, *args, **kwargs)

        nn.Cell.set_train = remember
        found, _ = train(3, around)
    finally:
        nn.Cell.set_train = original
        probe.close()
    assert found == expected
    assert list(tmp_path.rglob("dump.json"))


class Twice(nn.Cell):
    def __init__(self):
        super().__init__()
        self.shared = nn.Dense(4, 4, weight_init=tensor(4, 4))

    def construct(self, x):
        return self.shared(ops.relu(self.shared(x)))


def test_a_cell_that_is_called_twice_has_two_calls_and_one_gradient_of_its_weight(record):
    net, x = Twice(), tensor(3, 4, seed=1)
    results = []
    recorded = record(
        lambda: results.append(ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(x)), net
    )
    for phase in ("forward", "backward"):
        assert {f"Cell.shared.Dense.{phase}.{i}" in recorded for i in range(3)} == {True, False}
    gradients = dict(zip([p.name for p in net.trainable_params()], results[0][1], strict=True))
    (weight,) = recorded["Cell.shared.Dense.parameters_grad.0"]["weight"]
    np.testing.assert_array_equal(recorded.value(weight), gradients["shared.weight"].asnumpy())
    assert "Cell.shared.Dense.parameters_grad.1" not in recorded


def test_what_is_computed_again_is_marked(record):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.block = Twice()
            self.block.recompute()
            self.head = nn.Dense(4, 1, weight_init=tensor(1, 4))

        def construct(self, x):
            return self.head(self.block(x)).sum()

    net, x = Net(), tensor(3, 4, seed=1)
    expected = ms.value_and_grad(net, None, net.trainable_params())(x)
    found = []
    recorded = record(lambda: found.append(ms.value_and_grad(net, None, net.trainable_params())(x)), net)
    assert found[0][0].asnumpy() == expected[0].asnumpy()
    for one, other in zip(found[0][1], expected[1], strict=True):
        assert one.asnumpy().tobytes() == other.asnumpy().tobytes()
    marked = [entry for entry, record in recorded.data.items() if record["execution"].get("recompute")]
    assert [entry for entry in marked if "shared" in entry and "forward" in entry]
    assert not any("_recompute_cell" in entry for entry in recorded.data)
    assert "Cell.block.Twice.backward.0" in recorded
    gradients = dict(zip([p.name for p in net.trainable_params()], found[0][1], strict=True))
    (weight,) = recorded["Cell.block.shared.Dense.parameters_grad.0"]["weight"]
    np.testing.assert_array_equal(recorded.value(weight), gradients["block.shared.weight"].asnumpy())
    assert "Cell.block.shared.Dense.parameters_grad.1" not in recorded


def test_the_pass_that_trains_by_a_gradient_penalty_has_entries_of_its_own(record):
    """It is the second to come to the calls, and goes through the first."""
    net, x = Squared(), tensor(3, 4, seed=1)

    def penalty(x):
        return (ms.grad(lambda x: net(x).sum())(x) ** 2).sum()

    def step():
        return ms.value_and_grad(penalty, None, net.trainable_params())(x)

    expected = step()
    found = []
    recorded = record(lambda: found.append(step()), net)
    assert np.array_equal(found[0][0].asnumpy(), expected[0].asnumpy())
    for one, other in zip(found[0][1], expected[1], strict=True):
        assert np.array_equal(one.asnumpy(), other.asnumpy())
    first, second = (recorded[f"Cell.fc.Dense{ending}.backward.0"]["input"][0] for ending in ("", "-pass1"))
    given = 2 * net.fc(x)  # of the squares
    np.testing.assert_allclose(recorded.value(first), given.asnumpy(), rtol=1e-6)
    weight = net.fc.weight.asnumpy()
    slope = given.asnumpy() @ weight
    np.testing.assert_allclose(recorded.value(second), 4 * slope @ weight.T, rtol=1e-5)


class Squared(nn.Cell):
    def __init__(self):
        super().__init__()
        ms.set_seed(0)
        self.fc = nn.Dense(4, 4)

    def construct(self, x):
        return self.fc(x) ** 2


def test_a_training_cell_and_a_callback(record, tmp_path):
    class Loss(nn.Cell):
        def __init__(self):
            super().__init__()
            self.body = Twice()

        def construct(self, x, y):
            return (self.body(x) - y).square().mean()

    net = Loss()
    step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
    recorded = record(lambda: step(tensor(3, 4), tensor(3, 4, seed=2)), net)
    assert "Cell.body.shared.Dense.parameters_grad.0" in recorded
    assert "Cell.Loss.backward.0" in recorded

    data = [(np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32))] * 3
    batches = ms.dataset.GeneratorDataset(data, ["x", "y"], shuffle=False)
    probe = PrecisionDebugger(level="L0", task="statistics", dump_path=str(tmp_path / "trained"), step=[0, 2])
    model = ms.train.Model(Twice(), nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    try:
        model.train(1, batches, callbacks=[MsprobeStep(probe)], dataset_sink_mode=False)
    finally:
        probe.close()
    written = sorted(path.parent.parent.name for path in (tmp_path / "trained").rglob("dump.json"))
    assert written == ["step0", "step2"]


@pytest.mark.slow
def test_a_function_that_is_compiled_in_a_window_holds_nothing_of_ours(record, caplog):
    net, x = Twice(), tensor(3, 4, seed=1)
    gradients_of = ms.value_and_grad(net_sum(net), None, net.trainable_params())
    expected = gradients_of(x)
    compiled = ms.jit(lambda_free(gradients_of))
    found = []
    with caplog.at_level(logging.WARNING):
        recorded = record(lambda: (found.append(compiled(x)), found.append(gradients_of(x))), net)
    found.append(compiled(x))
    for loss, gradients in found:
        np.testing.assert_allclose(loss.asnumpy(), expected[0].asnumpy(), rtol=1e-6)
        for one, other in zip(gradients, expected[1], strict=True):
            np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5)
    (weight,) = recorded["Cell.shared.Dense.parameters_grad.0"]["weight"]
    np.testing.assert_allclose(recorded.value(weight), expected[1][0].asnumpy(), rtol=1e-6)


def net_sum(net):
    def forward(x):
        return net(x).sum()

    return forward


def lambda_free(function):
    def step(x):
        return function(x)

    return step


def test_the_core_finds_the_framework_by_the_model(record):
    net, x = Twice(), tensor(3, 4)
    recorded = record(lambda: net(x), net, debugger=msprobe_core.PrecisionDebugger)
    assert "Cell.shared.Dense.forward.1" in recorded
    header = json.loads((recorded.directory / "dump.json").read_text())
    assert header["framework"] == "mindspore"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_error_of_an_operator_that_fails_after_its_call_reaches_the_training(tmp_path, level):
    # In a process of its own: in this one operators run where they are called, which cannot be undone.
    script = Path(__file__).parents[2] / "support/mindspore_late_error.py"
    run = subprocess.run([sys.executable, str(script), str(tmp_path), level], capture_output=True, text=True)
    assert run.stdout.startswith("RuntimeError For 'GatherD'"), run.stdout + run.stderr


def test_one_cell_alone_is_recorded_under_a_name_of_its_own(record):
    net = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU(), nn.Dense(3, 1))

    def program():
        net(tensor(2, 3))
        module_dump(net[0], "alone")
        ms.grad(lambda x: net(x).sum(), None, net.trainable_params())(tensor(2, 3))
        module_dump_end()
        net(tensor(2, 3))

    names = [".".join(entry.split(".")[1:]) for entry in record(program, net, level="mix").data]
    window = names[names.index("alone.Dense.forward.0") : names.index("alone.Dense.backward.0") + 1]
    assert window == ["alone.Dense.forward.0", "alone.Dense.backward.0"]
    assert {name for name in names if name.startswith("2.Dense")} == {"2.Dense.forward.0", "2.Dense.forward.1"}
