"""The flight recorder on MindSpore's dynamic graph: nothing changes, and what it writes names the place."""

from __future__ import annotations

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, nn, ops  # noqa: E402
from mindspore_rig import dense  # noqa: E402
from msprobe.mindspore import FlightRecorder  # noqa: E402
from msprobe.mindspore import _flight as flight  # noqa: E402

from msprobe_core.errors import SessionError  # noqa: E402
from msprobe_core.overflow import Kind, search  # noqa: E402


class Block(nn.Cell):
    def __init__(self, random):
        super().__init__()
        self.up, self.down = dense(8, 16, random), dense(16, 8, random)
        self.fault = None

    def construct(self, x):
        hidden = ops.relu(self.up(x))
        if self.fault is not None:
            hidden = self.fault(hidden)
        return x + self.down(hidden), hidden


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        random = np.random.RandomState(0)
        self.blocks = nn.CellList([Block(random) for _ in range(3)])
        self.head = dense(8, 2, random)

    def construct(self, x):
        for block in self.blocks:
            x, _ = block(x)
        return self.head(x)


def train(net, recorder=None, steps=4, before=None):
    """Train with two micro-batches a step; return everything that a program can see of it."""
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 1e-2)
    forward = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, net.trainable_params())
    random = np.random.RandomState(1)
    seen = []
    for step in range(steps):
        if before is not None:
            before(step)
        for _ in range(2):
            loss, gradients = forward(Tensor(random.normal(size=(5, 8)).astype(np.float32)))
            seen += [loss.asnumpy(), *(each.asnumpy() for each in gradients)]
            optimizer(gradients)
        if recorder is not None:
            recorder.step()
    return [*seen, *(each.asnumpy() for each in net.get_parameters())]


def are_equal(one, other):
    return len(one) == len(other) and all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("defers", [False, True], ids=["host", "as on a device"])
@pytest.mark.parametrize("weights", [True, False])
def test_the_training_is_bit_for_bit_the_same(tmp_path, monkeypatch, weights, defers):
    monkeypatch.setattr(flight, "is_host", lambda: not defers)
    bare = train(Net())
    net = Net()
    with FlightRecorder(net, tmp_path / "flight", weights=weights) as recorder:
        assert are_equal(train(net, recorder), bare)
        roles = {(seen.phase.value, seen.role.value) for step in recorder.steps[:-1] for seen in step.seen}
        assert len(roles) == (5 if weights else 3)
    assert not (tmp_path / "flight").exists()
    for _, cell in net.cells_and_names():
        assert not cell._forward_hook
        assert not cell._forward_pre_hook
    assert are_equal(train(Net()), bare)


@pytest.mark.slow
@pytest.mark.parametrize("defers", [False, True], ids=["host", "as on a device"])
def test_the_block_that_makes_nan_is_named(tmp_path, monkeypatch, defers):
    monkeypatch.setattr(flight, "is_host", lambda: not defers)
    net = Net()

    def before(step):
        net.blocks[1].fault = (lambda x: ops.log(x - 1e9)) if step == 3 else None

    with FlightRecorder(net, tmp_path, steps=3) as recorder:
        train(net, recorder, before=before)
    result = search(tmp_path)
    assert [step.step for step in result.steps] == [1, 2, 3]
    (finding,) = result.first.first
    assert (result.first.step, finding.entry) == (3, "Cell.blocks.1.down.Dense.forward.0")
    assert "Cell.blocks.1.Block.forward.0" in finding.parents


def test_nothing_is_fetched_from_a_device_inside_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(flight, "is_host", lambda: False)
    net = Net()
    forward = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    fetched = []
    asnumpy = Tensor.asnumpy
    with FlightRecorder(net, tmp_path) as recorder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "asnumpy", lambda tensor: fetched.append(tensor.shape) or asnumpy(tensor))
        forward(Tensor(np.ones((5, 8), np.float32)))
        assert not fetched
        assert recorder.steps[0].tape.extremes(waits=False) is None
        recorder.step()
        assert len(fetched) == 1


def test_a_bad_gradient_is_seen(tmp_path):
    net = Net()

    def before(step):
        net.blocks[0].fault = (lambda x: x + ops.sqrt(x * 0)) if step == 2 else None

    with FlightRecorder(net, tmp_path) as recorder:
        train(net, recorder, steps=3, before=before)
    first = search(tmp_path).first
    assert first.step == 2
    assert first.first[0].entry.startswith("Cell.blocks.0.up.Dense.")


def test_a_bad_weight_is_named(tmp_path):
    net = Net()

    def before(step):
        if step == 1:
            weight = net.head.weight.asnumpy().copy()
            weight[0, 0] = np.nan
            net.head.weight.set_data(Tensor(weight))

    with FlightRecorder(net, tmp_path) as recorder:
        train(net, recorder, steps=2, before=before)
    (finding,) = search(tmp_path).first.first
    assert (finding.kind, finding.value) == (Kind.WEIGHT, "Cell.head.Dense.forward.0.parameters.weight")


def test_bad_data_are_named(tmp_path):
    net = Net()
    with FlightRecorder(net, tmp_path) as recorder:
        net(Tensor(np.full((5, 8), np.inf, np.float32)))
        recorder.step()
    (finding,) = search(tmp_path).first.first
    assert finding.kind is Kind.DATA


def test_a_training_that_raises_leaves_its_last_steps(tmp_path):
    net = Net()

    def fail():
        with FlightRecorder(net, tmp_path) as recorder:
            train(net, recorder, steps=2)
            net(Tensor(np.ones((5, 8), np.float32)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step0", "step1", "step2"]
    assert search(tmp_path).first is None


def test_dtypes_of_all_kinds(tmp_path):
    class Odd(nn.Cell):
        def construct(self, x):
            kinds = [x.astype(ms.float16), x.astype(ms.float64), x.astype(ms.bfloat16), x > 0, x.astype(ms.int32)]
            return (*kinds, {"x": x * float("inf")})

    net = Odd()
    with FlightRecorder(net, tmp_path) as recorder:
        net(Tensor(np.ones((2, 2), np.float32)))
        recorder.step()
    dtypes = {seen.meta.dtype for seen in recorder.steps[0].seen}
    assert dtypes == {"Float16", "Float64", "BFloat16", "Float32"}
    assert search(tmp_path).first.first[0].entry == "Cell.Odd.forward.0"


def test_a_compiled_net_trains_on(tmp_path):
    """Inside of a compiled function nothing is seen, and nothing is changed."""
    net = Net()
    x = Tensor(np.ones((5, 8), np.float32))

    def compiled():
        @ms.jit
        def run(value):
            return net(value)

        return run(x).asnumpy()

    bare = compiled()
    with FlightRecorder(net, tmp_path) as recorder:
        assert compiled().tobytes() == bare.tobytes()
        recorder.step()
        net(x)
        assert any(seen.module == "head" for seen in recorder.steps[-1].seen)


def test_graph_mode_is_refused(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(SessionError, match="PYNATIVE_MODE"):
            FlightRecorder(Net(), tmp_path)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
