"""Programs of many kinds in static graphs: what they compute stays bitwise the same, under the usual names."""

import logging

import numpy as np
import pytest
from mindspore.train import Model
from msprobe.mindspore import PrecisionDebugger

from msprobe_core.errors import ConfigError, SessionError
from tests.support.graph_nets import Block, Parameter, Tensor, arrays_in, dense, filled, ms, nn, ops, record, step_of


@pytest.fixture(autouse=True)
def graph_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a compiler that fails leaves files
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Steps(nn.Cell):
    """A loop that runs as often as a tensor says, around a Cell, and a branch that a tensor decides."""

    def __init__(self):
        super().__init__()
        self.fc = dense()
        self.other = dense(seed=2)

    def construct(self, x, n):
        i = Tensor(0, ms.int32)
        while i < n:
            x = ops.tanh(self.fc(x))
            i = i + 1
        if x.sum() > -100:
            x = self.other(x)
        return x.sum()


class Recomputed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = dense()
        self.second = dense(seed=2)
        self.second.recompute()

    def construct(self, x):
        return ops.tanh(self.second(ops.tanh(self.first(x)))).sum()


class OwnBackward(nn.Cell):
    """Says itself what its gradient is, and not the truth."""

    def __init__(self):
        super().__init__()
        self.gain = Parameter(Tensor([1.0, 2.0, 3.0], ms.float32), name="gain")

    def construct(self, x, y):
        return x * y

    def bprop(self, x, y, out, dout):
        return dout * y * 100, dout * x * 10


class UsesOwnBackward(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = dense()
        self.own = OwnBackward()

    def construct(self, x):
        return self.own(self.fc(x), x * 3).sum()


class Scalars(nn.Cell):
    """Tensors without dimensions, of whole numbers and truth values; and one that is written to a parameter."""

    def __init__(self):
        super().__init__()
        self.inner = ScalarsInside()
        self.count = Parameter(Tensor([0.0], ms.float32), name="count", requires_grad=False)

    def construct(self, x):
        y = self.inner(x.sum(), x > 0, Tensor([1, 2], ms.int64), x.shape[0])
        ops.assign(self.count, self.count + 1)
        return y


class ScalarsInside(nn.Cell):
    def construct(self, total, is_positive, numbers, n):
        return total * numbers.sum().astype(ms.float32) * n + ops.cast(is_positive, ms.float32).sum()


class ManyTensors(nn.Cell):
    """Takes and returns more tensors than one operator hands out."""

    def __init__(self):
        super().__init__()
        self.inner = ManyInside()

    def construct(self, x):
        many = ()
        for i in range(18):
            many = (*many, x * i)
        return self.inner(*many)[17].sum()


class ManyInside(nn.Cell):
    def construct(self, *many):
        results = ()
        for value in many:
            results = (*results, value + 1)
        return results


class Shared(nn.Cell):
    """One Cell under two names, used in branches that do not depend on each other."""

    def __init__(self):
        super().__init__()
        self.a = dense()
        self.b = self.a

    def construct(self, x, y):
        return (self.a(x) * 2).sum() + (self.b(y) * 3).sum()


class HalfPrecision(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = dense().to_float(ms.float16)

    def construct(self, x):
        return self.fc(x).astype(ms.float32).sum()


PROGRAMS = {
    "loop and branch": (Steps, lambda: (filled(2, 3), Tensor(3, ms.int32))),
    "recompute": (Recomputed, lambda: (filled(2, 3),)),
    "own backward": (UsesOwnBackward, lambda: (filled(2, 3),)),
    "scalars": (Scalars, lambda: (filled(2, 3),)),
    "many tensors": (ManyTensors, lambda: (filled(2, 3),)),
    "shared": (Shared, lambda: (filled(2, 3), filled(4, 3, seed=7))),
    "half precision": (HalfPrecision, lambda: (filled(2, 3),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name, tmp_path):
    make_net, make_inputs = PROGRAMS[name]
    inputs = make_inputs()
    plain = step_of(make_net(), *inputs, positions=0)()
    net = make_net()
    found, result = record(net, step_of(net, *inputs, positions=0), tmp_path / "graph", task="tensor")
    assert arrays_in(result) == arrays_in(plain)

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()
    net = make_net()
    golden, _ = record(net, step_of(net, *inputs, positions=0), tmp_path / "dynamic", task="tensor")
    recomputed = {entry for entry, record in golden.entries.items() if record.get("recomputed")}
    # What is computed again is no call of its own in a static graph.
    assert _of_both(found.entries) == _of_both(golden.entries) - recomputed
    assert len(found.tensors) > 5
    for file in found.tensors.keys() | golden.tensors.keys():
        array, golden_array = found.tensors.get(file), golden.tensors.get(file)
        if not _of_both([file]) or any(file.startswith(entry) for entry in recomputed):
            continue
        if array is None or golden_array is None:  # nothing uses it
            assert not (golden_array if array is None else array).any(), file
            continue
        assert array.shape == golden_array.shape, file
        rtol = 1e-5
        if name == "half precision":  # inputs are cast before the Cell begins, not within
            rtol, golden_array = 2e-3, golden_array.astype(array.dtype)
        assert array.dtype == golden_array.dtype, file
        np.testing.assert_allclose(array, golden_array, rtol=rtol, atol=1e-5)


def _of_both(names):
    """Leave out Cells with a backward of their own: in the dynamic graph, their hooks are not called."""
    return {name for name in names if "OwnBackward." not in name or "UsesOwnBackward" in name}


def test_a_backward_of_the_users_is_recorded_and_used(tmp_path):
    net = UsesOwnBackward()
    dump, _ = record(net, step_of(net, filled(2, 3), positions=0), tmp_path / "dump", task="tensor")
    stem = "Cell.own.OwnBackward"
    x, y = (dump.tensors[f"{stem}.forward.0.input.{i}"] for i in range(2))
    np.testing.assert_allclose(dump.tensors[f"{stem}.forward.0.output.0"], x * y, rtol=1e-6)
    np.testing.assert_allclose(dump.tensors[f"{stem}.backward.0.output.0"], y * 100, rtol=1e-6)
    np.testing.assert_allclose(dump.tensors[f"{stem}.backward.0.output.1"], x * 10, rtol=1e-6)
    np.testing.assert_allclose(dump.tensors["Cell.fc.Dense.backward.0.input.0"], y * 100, rtol=1e-6)


def test_gradients_find_their_call(tmp_path):
    net = Shared()
    inputs = filled(2, 3), filled(4, 3, seed=7)
    dump, _ = record(net, step_of(net, *inputs), tmp_path / "dump", task="tensor")
    first = dump.tensors["Cell.a.Dense.backward.0.input.0"]
    second = dump.tensors["Cell.a.Dense.backward.1.input.0"]
    assert (first.shape, first.flat[0]) == ((2, 3), 2.0)
    assert (second.shape, second.flat[0]) == ((4, 3), 3.0)


class Weighted(nn.Cell):
    """Uses a result of a Cell twice, once in another Cell, in a program that writes to a parameter."""

    def __init__(self, *, is_normalised):
        super().__init__()
        self.fc = dense()
        self.norm = nn.BatchNorm1d(3) if is_normalised else nn.Identity()
        self.weigh = nn.Sigmoid()
        self.count = Parameter(Tensor([0.0], ms.float32), name="count", requires_grad=False)
        self.is_normalised = is_normalised

    def construct(self, x):
        if not self.is_normalised:
            ops.assign(self.count, self.count + 1)
        h = self.norm(self.fc(x))
        w = self.weigh(h)
        return (h * w).sum()


@pytest.mark.parametrize("is_normalised", [False, True], ids=["assigned", "batch norm"])
@pytest.mark.parametrize("how", ["graph", "jit"])
def test_the_gradient_of_an_input_is_that_of_this_use(how, is_normalised, tmp_path):
    def step(net):
        def loss(x):
            return net(x)

        return step_of(net, filled(2, 3)) if how == "graph" else compiled_step(ms.jit(loss), net)

    def compiled_step(function, net):
        gradients = ms.value_and_grad(function, None, net.trainable_params())
        return lambda: gradients(filled(2, 3))

    ms.set_context(mode=ms.GRAPH_MODE if how == "graph" else ms.PYNATIVE_MODE)
    plain, net = Weighted(is_normalised=is_normalised).set_train(), Weighted(is_normalised=is_normalised).set_train()
    golden = step(plain)()
    dump, result = record(net, step(net), tmp_path, task="tensor")
    assert arrays_in(result) == arrays_in(golden)
    assert arrays_in(tuple(net.get_parameters())) == arrays_in(tuple(plain.get_parameters()))
    found = dump.tensors
    h, w = found["Cell.weigh.Sigmoid.forward.0.input.0"], found["Cell.weigh.Sigmoid.forward.0.output.0"]
    through_weigh = h * w * (1 - w)
    np.testing.assert_allclose(found["Cell.weigh.Sigmoid.backward.0.output.0"], through_weigh, rtol=1e-5, atol=1e-6)
    last = "Cell.norm.BatchNorm1d" if is_normalised else "Cell.norm.Identity"
    np.testing.assert_allclose(found[f"{last}.backward.0.input.0"], through_weigh + w, rtol=1e-5, atol=1e-6)


class Empty(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = EmptyInside()

    def construct(self, x, none):
        return self.inner(x, none)[0].astype(ms.float32).sum()


class EmptyInside(nn.Cell):
    def construct(self, x, none):
        return x * 2, none


def test_empty_tensors_and_bfloat16_are_described(tmp_path):
    net = Empty()
    inputs = filled(2, 3, dtype=ms.bfloat16), Tensor(np.ones((0, 3), np.float32))
    plain = Empty()(*inputs)
    dump, result = record(net, lambda: net(*inputs), tmp_path / "dump", block={"summary_mode": "md5"})
    assert arrays_in(result) == arrays_in(plain)
    x, none = dump.entries["Cell.inner.EmptyInside.forward.0"]["input_args"]
    assert (x["dtype"], x["shape"]) == ("BFloat16", [2, 3])
    assert (none["dtype"], none["shape"], none["Max"]) == ("Float32", [0, 3], None)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    golden, _ = record(net, lambda: net(*inputs), tmp_path / "golden", block={"summary_mode": "md5"})
    golden_x, _ = golden.entries["Cell.inner.EmptyInside.forward.0"]["input_args"]
    assert golden_x["md5"] == x["md5"]  # of the two bytes of each element, although four came out of the graph


class WithLoss(nn.Cell):
    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x, label):
        return ((self.net(x) - label) ** 2).mean()


def make_layers():
    return nn.SequentialCell(dense(), nn.ReLU(), dense(seed=2))


@pytest.mark.slow
def test_train_one_step_cell_and_new_shapes(tmp_path):
    def train(net, dumped):
        cell = nn.TrainOneStepCell(WithLoss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
        cell.set_train()
        losses, dumps = [], []
        for i, rows in enumerate((2, 2, 5)):
            batch = filled(rows, 3, seed=10 + i), filled(rows, 3, seed=20 + i)
            if dumped:
                dump, loss = record(net, lambda batch=batch: cell(*batch), tmp_path / f"step{i}", task="tensor")
                dumps.append(dump)
            else:
                loss = cell(*batch)
            losses.append(loss)
        return [*losses, *net.trainable_params()], dumps

    plain, _ = train(make_layers(), dumped=False)
    found, dumps = train(make_layers(), dumped=True)
    assert arrays_in(plain) == arrays_in(found)
    names = set(dumps[0].entries)
    assert "Cell.SequentialCell.backward.0" in names
    assert "Cell.0.Dense.parameters_grad.0" in names
    assert all(set(dump.entries) == names for dump in dumps)
    assert dumps[2].tensors["Cell.0.Dense.forward.0.input.0"].shape == (5, 3)
    # The parameters are those of before the step, though the graph writes them.
    np.testing.assert_array_equal(
        dumps[0].tensors["Cell.0.Dense.forward.0.parameters.weight"], dense().weight.asnumpy()
    )
    assert (dumps[1].tensors["Cell.0.Dense.forward.0.parameters.weight"] != dense().weight.asnumpy()).any()


@pytest.mark.parametrize("step", [0, 1])
def test_model_train(tmp_path, caplog, step):
    from msprobe.mindspore import MsprobeStep

    net = make_layers()
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"), task="statistics", level="L0", step=[step])
    batches = [(filled(2, 3, seed=i).asnumpy(), filled(2, 3, seed=30 + i).asnumpy()) for i in range(3)]
    data = ms.dataset.GeneratorDataset(lambda: iter(batches), ["x", "label"], shuffle=False)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    try:
        model.train(1, data, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
    finally:
        debugger.close()
    paths = list((tmp_path / "dump").rglob("dump.json"))
    assert [path.parts[-3] for path in paths] == [f"step{step}"]
    assert "nothing of it was recorded" not in caplog.text
    text = paths[0].read_text()
    for name in ("Dense.forward.0", "Dense.backward.0", "Dense.parameters_grad.0"):
        assert f"2.{name}" in text


def test_several_nets_have_their_position_in_front(tmp_path):
    first, second = make_layers(), Shared()
    x = filled(2, 3)

    @ms.jit
    def both(x):
        return first(x).sum() + second(x, x)

    dump, _ = record([first, second], lambda: both(x), tmp_path / "dump")
    assert {name.split(".")[1] for name in dump.entries} == {"0", "1"}
    assert {"Cell.0.2.Dense.forward.0", "Cell.1.a.Dense.forward.1", "Cell.1.Shared.forward.0"} <= set(dump.entries)


def test_inference_has_no_backward_entries(tmp_path):
    net = make_layers()
    dump, _ = record(net, lambda: net(filled(2, 3)), tmp_path / "dump")
    assert [name for name in dump.entries if "forward" not in name] == []
    assert [name for name in dump.parents if "forward" not in name] == []


def test_an_error_of_the_users_is_the_users(tmp_path):
    class Wrong(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fc = dense()

        def construct(self, x):
            return ops.matmul(self.fc(x), self.fc(x))

    x = filled(2, 3)
    with pytest.raises(RuntimeError, match="must be equal") as plain:
        Wrong()(x)
    net = Wrong()
    with pytest.raises(RuntimeError, match="must be equal") as found:
        record(net, lambda: net(x), tmp_path / "dump")
    assert str(found.value) == str(plain.value)
    assert "msprobe" not in str(found.value)
    assert "construct" not in vars(net)


def test_dynamic_shapes_are_described_without_values(tmp_path, caplog):
    net = make_layers()
    net.set_inputs(Tensor(shape=[None, 3], dtype=ms.float32))
    plain = make_layers()(filled(2, 3))
    with caplog.at_level(logging.WARNING):
        dump, result = record(net, lambda: net(filled(2, 3)), tmp_path / "dump")
    np.testing.assert_allclose(result.asnumpy(), plain.asnumpy(), rtol=1e-6)
    entry = dump.entries["Cell.0.Dense.forward.0"]
    assert entry["input_args"][0]["shape"] == [-1, 3]
    assert "set_inputs()" in entry["input_args"][0]["error"]
    assert entry["parameters"]["weight"]["Max"] is not None
    assert "set_inputs()" in caplog.text


def test_a_graph_that_was_compiled_before_is_told_of(tmp_path, caplog):
    net = make_layers()
    run = step_of(net, filled(2, 3))
    run()
    with caplog.at_level(logging.WARNING):
        dump, _ = record(net, run, tmp_path / "dump")
    assert dump.entries == {}
    assert "call start(model) before the net" in caplog.text


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_apis_are_refused_when_the_debugger_is_made(level, tmp_path):
    with pytest.raises(ConfigError, match="GRAPH_MODE there are no calls of APIs"):
        PrecisionDebugger(dump_path=str(tmp_path), level=level)
    PrecisionDebugger(dump_path=str(tmp_path), level="L0").close()  # nothing is left of the other


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_apis_are_not_recorded_where_the_mode_is_set_later(level, tmp_path, caplog):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), level=level)
    ms.set_context(mode=ms.GRAPH_MODE)
    net = make_layers()
    bare = arrays_in(net(filled(2, 3)))
    try:
        with debugger.start(net):
            assert arrays_in(net(filled(2, 3))) == bare
        debugger.step()
    finally:
        debugger.close()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("recording ends at step 0, training goes on: 'level' is " + level)
    assert not list(tmp_path.rglob("dump.json"))


def test_one_module_and_what_follows_calls_in_python(tmp_path):
    net = make_layers()
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"), task="statistics", level="L0")
    try:
        with pytest.raises(SessionError, match="GRAPH_MODE there are none"):
            debugger.start(net, token_range=[0, 1])
        debugger.stop()
        debugger.dump_module(net[2], "last")
        with debugger.start(net):
            net(filled(2, 3))
    finally:
        debugger.close()
    (path,) = (tmp_path / "dump").rglob("dump.json")
    assert "Cell.last.Dense.forward.0" in path.read_text()
    assert "Cell.0.Dense" not in path.read_text()


__all__ = ["Block"]
