"""The task ``free_benchmark`` in the dynamic graph: trainings stay as they are, and noisy kernels are found."""

from __future__ import annotations

import json

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, mint, nn, ops  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402

from msprobe_core.errors import ConfigError  # noqa: E402


class Classifier(nn.Cell):
    """Calls functions of ``ops`` and of ``mint`` in one format."""

    def __init__(self, dtype):
        super().__init__()
        random = np.random.default_rng(0)
        self.first = ms.Parameter(Tensor(random.standard_normal((32, 16)).astype(np.float32)).astype(dtype), name="a")
        self.second = ms.Parameter(Tensor(random.standard_normal((8, 32)).astype(np.float32)).astype(dtype), name="b")

    def construct(self, x):
        hidden = ops.gelu(mint.matmul(x, self.first.T), approximate="tanh")
        scores = mint.matmul(hidden, self.second.T)
        return ops.softmax(scores, -1).astype(ms.float32).sum() + scores.astype(ms.float32).square().mean()


def trained(debugger, dtype, num_steps=2):
    """Train for some steps, and return all losses and weights."""
    net = Classifier(dtype)
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.01)
    gradient_of = ms.value_and_grad(net, None, optimizer.parameters)
    seen = []
    for step in range(num_steps):
        x = Tensor(np.random.default_rng(step).standard_normal((4, 16)).astype(np.float32)).astype(dtype)
        if debugger is not None:
            debugger.start(net)
        loss, gradients = gradient_of(x)
        optimizer(gradients)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        seen.append(loss.asnumpy().tobytes())
    if debugger is not None:
        debugger.close()
    return [*seen, *(parameter.astype(ms.float32).asnumpy().tobytes() for parameter in net.trainable_params())]


@pytest.fixture
def perturbed(tmp_path):
    """Train under the task; return what `trained` returns, and the verdicts."""

    def run(dtype, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": "free_benchmark", "free_benchmark": {"budget": 1000, **options}}))
        found = trained(PrecisionDebugger(str(path), dump_path=str(tmp_path / "run")), dtype)
        files = sorted((tmp_path / "run").glob("step*/*/free_benchmark.jsonl"))
        return found, [json.loads(line) for file in files for line in file.read_text().splitlines()]

    return run


@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        (ms.float32, "bit_noise"),
        (ms.float32, "exchange_value"),
        (ms.float32, "no_change"),
        (ms.float16, "improve_precision"),
        (ms.float16, "bit_noise"),
        (ms.float16, "add_noise"),
    ],
    ids=str,
)
def test_training_is_bitwise_the_same_and_no_call_is_suspected(dtype, mode, stage, perturbed):
    expected = trained(None, dtype)
    found, lines = perturbed(dtype, pert_mode=mode, fuzz_stage=stage)
    assert found == expected
    assert {line["verdict"] for line in lines} <= {"right", "ill_conditioned", "cannot_tell"}
    assert sum(line["verdict"] == "right" for line in lines) >= 6
    assert {line["call"].rpartition(".")[2] for line in lines} == {stage}


def coarse(right, dtype):
    """Compute with half the digits of a format, and in others right."""

    def gelu(x, *others):
        found = right(x, *others)
        if x.dtype != dtype:
            return found
        keep = -(1 << 18) if dtype == ms.float16 else -(1 << 13)
        bits = found.astype(ms.float32).asnumpy().view(np.int32) & keep
        return Tensor(bits.view(np.float32)).astype(dtype)

    return gelu


@pytest.mark.parametrize(("dtype", "mode"), [(ms.float32, "bit_noise"), (ms.float16, "improve_precision")], ids=str)
def test_a_kernel_of_too_few_digits_is_found(dtype, mode, perturbed, monkeypatch, tmp_path):
    place = ops.gelu.__globals__
    monkeypatch.setitem(place, "gelu_", coarse(place["gelu_"], dtype))
    _, lines = perturbed(dtype, pert_mode=mode)
    assert {line["call"].split(".")[1] for line in lines if line["verdict"] in ("wrong", "suspect")} == {"gelu"}
    assert "gelu" in (tmp_path / "run" / "free_benchmark.csv").read_text()


@pytest.fixture
def fixed(tmp_path, monkeypatch):
    """Run a function with a coarse kernel while its results are fixed; also return what was fixed."""
    place = ops.gelu.__globals__
    monkeypatch.setitem(place, "gelu_", coarse_with_gradient(place["gelu_"]))

    def run(function, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": "free_benchmark", "free_benchmark": {"handler_type": "fix", **options}}))
        debugger = PrecisionDebugger(str(path), dump_path=str(tmp_path / "run"))
        debugger.start()
        try:
            found = function()
        finally:
            debugger.stop()
            debugger.step()
            debugger.close()
        return found, json.loads((tmp_path / "run" / "free_benchmark_fixed_rank.json").read_text())

    return run


def coarse_with_gradient(right):
    """Compute float16 with a tenth missing, and its gradient too."""

    def gelu(x, *others):
        found = right(x, *others)
        return found * Tensor(0.9, ms.float16) if x.dtype == ms.float16 else found

    return gelu


X = np.linspace(-2, 2, 32, dtype=np.float32)


def outcome():
    """Return the result of a call, and the gradient of its argument."""
    seen = []

    def loss(x):
        seen.append(ops.gelu(x, approximate="tanh"))
        return seen[-1].astype(ms.float32).sum()

    _, gradient = ms.value_and_grad(loss)(Tensor(X).astype(ms.float16))
    return seen[0].asnumpy(), gradient.asnumpy()


def test_a_result_is_replaced_and_its_gradient_stays_or_the_reverse(fixed):
    wrong, wrong_gradient = outcome()
    gelu = ops.gelu(Tensor(X).astype(ms.float16).astype(ms.float32), approximate="tanh")
    right = gelu.astype(ms.float16).asnumpy()
    (found, gradient), said = fixed(outcome, list=["gelu"])
    assert not np.array_equal(wrong, right)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(gradient, wrong_gradient)
    assert said["fixed"] == {"ops.gelu": 1} or list(said["fixed"].values()) == [1]
    (found, gradient), said = fixed(outcome, list=["gelu"], fuzz_stage="backward")
    np.testing.assert_array_equal(found, wrong)
    np.testing.assert_allclose(
        gradient.astype(np.float32), wrong_gradient.astype(np.float32) / 0.9, rtol=0.02, atol=0.01
    )
    (found, _), said = fixed(outcome, list=["softmax"])
    np.testing.assert_array_equal(found, wrong)
    assert said["fixed"] == {}


def test_what_is_no_computation_is_not_fixed(fixed):
    x = Tensor(X).astype(ms.float16)

    def views():
        ops.dropout(x, 0.5)
        return x.reshape(4, 8)

    found, said = fixed(views)
    np.testing.assert_array_equal(found.asnumpy(), x.asnumpy().reshape(4, 8))
    assert said["fixed"] == {}
    assert any("draws random numbers" in why for why in said["not_fixed"].values())


class Layers(nn.Cell):
    """Calls functions, and Cells that hold operators; one of them draws, and one writes to its statistics."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm, self.drop = nn.Dense(4, 3).to_float(ms.float16), nn.BatchNorm1d(3), nn.Dropout(p=0.5)

    def construct(self, x):
        scores = self.dense(x).astype(ms.float32)
        return ops.softmax(self.drop(self.norm(scores)).astype(ms.float16), -1)


def test_operators_that_cells_hold_are_fixed_but_for_those_that_draw_or_write(tmp_path):
    net = Layers().set_train()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "free_benchmark", "free_benchmark": {"handler_type": "fix"}}))
    debugger = PrecisionDebugger(str(path), dump_path=str(tmp_path / "run"))
    debugger.start(net)
    x = Tensor(np.random.default_rng(0).standard_normal((8, 4)).astype(np.float16))
    found = net(x)
    debugger.stop()
    debugger.step()
    debugger.close()
    said = json.loads((tmp_path / "run" / "free_benchmark_fixed_rank.json").read_text())
    assert found.dtype == ms.float16
    assert {"Functional.softmax"} <= set(said["fixed"])
    assert any(name.startswith("Primitive.") for name in said["fixed"]), said
    assert not any(name.rpartition(".")[2] in ("BatchNorm", "Dropout", "Shape") for name in said["fixed"])


def test_the_host_cannot_be_fixed_by_the_host(fixed):
    with pytest.raises(ConfigError, match="runs on the host already"):
        fixed(outcome, pert_mode="to_cpu", fuzz_device="cpu")
