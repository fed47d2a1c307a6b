"""The task ``acc_check`` in the dynamic graph: trainings stay as they are, and planted wrong kernels are found."""

from __future__ import annotations

import json

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, mint, nn, ops  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402


class Classifier(nn.Cell):
    """Calls functions of ``ops`` and of ``mint``; ``drop`` is the share of dropped elements."""

    def __init__(self, drop=0.0):
        super().__init__()
        random = np.random.default_rng(0)
        self.first = ms.Parameter(Tensor(random.standard_normal((32, 16)).astype(np.float32)), name="first")
        self.second = ms.Parameter(Tensor(random.standard_normal((8, 32)).astype(np.float32)), name="second")
        self.bias = ms.Parameter(Tensor(random.standard_normal(32).astype(np.float32)), name="bias")
        self.drop = drop

    def construct(self, x):
        hidden = ops.gelu(mint.nn.functional.linear(x, self.first, self.bias), approximate="tanh")
        if self.drop:
            hidden = ops.dropout(hidden, self.drop)
        scores = mint.matmul(hidden, self.second.T)
        return (ops.softmax(scores, -1) * mint.nn.functional.softmax(scores * 2, dim=-1)).sum()


def trained(debugger, num_steps=3, drop=0.0):
    """Train for some steps, and return all losses and weights."""
    ms.set_seed(1)
    net = Classifier(drop)
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    gradient_of = ms.value_and_grad(net, None, optimizer.parameters)
    seen = []
    for step in range(num_steps):
        x = Tensor(np.random.default_rng(step).standard_normal((4, 16)).astype(np.float32))
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
    return [*seen, *(parameter.asnumpy().tobytes() for parameter in net.trainable_params())]


@pytest.fixture
def checked(tmp_path):
    """Train under the check; return what `trained` returns, and the coverage."""

    def run(**options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": "acc_check", "acc_check": {"budget": 1000, **options.pop("block", {})}}))
        found = trained(PrecisionDebugger(str(path), dump_path=str(tmp_path / "run")), **options)
        (coverage,) = (tmp_path / "run").glob("acc_check_coverage_*.json")
        return found, json.loads(coverage.read_text())

    return run


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_training_is_bitwise_the_same_and_all_calls_are_right(checked, drop):
    expected = trained(None, drop=drop)
    assert trained(None, drop=drop) == expected
    found, coverage = checked(drop=drop)
    assert found == expected
    verdicts = coverage["totals"]["verdicts"]
    assert verdicts["right"] >= 18
    assert "wrong" not in verdicts


def of_float32(wrong, right):
    return lambda first, *others: (wrong if first.dtype == ms.float32 else right)(first, *others)


def wrong_softmax(right):
    def softmax(scores, axis):
        exponents = ops.exp(scores - ops.amax(scores, axis, keepdims=True))
        total = exponents.astype(ms.float16).sum(axis, keepdims=True).astype(ms.float32)
        return (exponents / total * 1.0005).astype(ms.float32)

    return of_float32(softmax, right)


@pytest.mark.parametrize(
    ("function", "kernel", "make", "blamed"),
    [
        (ops.softmax, "softmax_impl", wrong_softmax, {"Functional.softmax", "MintFunctional.softmax"}),
        (ops.gelu, "gelu_", lambda right: of_float32(lambda x: right(x) * 1.01, right), {"Functional.gelu"}),
        (ops.dense, "dense_op", lambda right: of_float32(lambda x, w, _: right(x, w, None), right),
         {"MintFunctional.linear"}),
    ],
    ids=["softmax", "gelu", "bias"],
)  # fmt: skip
def test_a_kernel_that_is_wrong_in_this_process_is_found(function, kernel, make, blamed, checked, monkeypatch):
    monkeypatch.setitem(function.__globals__, kernel, make(function.__globals__[kernel]))
    _, coverage = checked()
    wrong = {kind["api"] for kind in coverage["kinds"] if "wrong" in kind["verdicts"]}
    assert wrong == blamed
