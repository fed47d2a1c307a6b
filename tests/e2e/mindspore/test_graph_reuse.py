"""A Cell that is called several times in one graph, each time with other Parameters, keeps computing what it did."""

import numpy as np
import pytest

from tests.support.graph_nets import Parameter, Tensor, arrays_in, filled, ms, nn, record
from tests.support.mindspore_layers import LAYERS
from tests.support.mindspore_reuse import REUSED, Scale

QUICK = {("ByPosition", "graph"), ("ByName", "jit"), ("InContainers", "jit mix")}


@pytest.fixture(autouse=True)
def modes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a compiler that fails leaves files
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class ThreeWeights(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (
            Parameter(Tensor(np.full(3, value, np.float32)), name=f"w{value}") for value in (1, 10, 100)
        )
        self.inner = Scale()

    def construct(self, x):
        return self.inner(x, self.w1).sum(), self.inner(x, self.w2).sum(), self.inner(x, w=self.w3).sum()


def jitted(net):
    def call(x):
        return net(x)

    return ms.jit(call)


HOW = {"graph": (ms.GRAPH_MODE, "L0"), "jit": (ms.PYNATIVE_MODE, "L0"), "jit mix": (ms.PYNATIVE_MODE, "mix")}


def function_of(net, how):
    """Return the net or a function under ``jit``, in the mode that belongs to it; and the level to record at."""
    mode, level = HOW[how]
    ms.set_context(mode=mode)
    return (net if how == "graph" else jitted(net)), level


@pytest.mark.parametrize("how", HOW)
def test_each_call_gets_its_own_parameter(how, tmp_path):
    net = ThreeWeights()
    function, level = function_of(net, how)
    dump, result = record(net, lambda: function(Tensor(np.ones(3, np.float32))), tmp_path, level=level)
    assert [value.item() for value in result] == [3, 30, 300]
    arguments = [
        dump.entries[f"Cell.inner.Scale.forward.{i}"]["input_kwargs" if i == 2 else "input_args"] for i in range(3)
    ]
    assert [arguments[0][1]["Max"], arguments[1][1]["Max"], arguments[2]["w"]["Max"]] == [1, 10, 100]


def test_steps_that_are_not_selected_compute_the_same(tmp_path):
    from msprobe.mindspore import PrecisionDebugger

    ms.set_context(mode=ms.GRAPH_MODE)
    net, x, found = ThreeWeights(), Tensor(np.ones(3, np.float32)), []
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"), task="statistics", level="L0", step=[1])
    try:
        for _ in range(3):
            with debugger.start(net):
                found.append([value.item() for value in net(x)])
            debugger.step()
    finally:
        debugger.close()
    assert found == [[3, 30, 300]] * 3


def results_of(net, x, function):
    """Return the result of a net, its gradients, and its parameters, which it may write to."""

    def loss(x):
        return (function(x) * filled(3, seed=4)).sum()

    gradients = ms.value_and_grad(loss, 0, net.trainable_params())
    return lambda: (function(x), gradients(x), tuple(net.get_parameters()))


def mark_of(name, how):
    if (name, how) in QUICK:
        return ()
    return pytest.mark.slow if how == "graph" else pytest.mark.nightly


CASES = [pytest.param(name, how, marks=mark_of(name, how)) for how in HOW for name in REUSED]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_values_and_gradients_stay(name, how, tmp_path):
    x, results = filled(3) + 1, []
    for is_recorded in (False, True):
        net = REUSED[name]()
        function, level = function_of(net, how)
        run = results_of(net, x, function)
        if is_recorded:
            dump, result = record(net, run, tmp_path / "dump", level=level)
            assert any("forward" in entry for entry in dump.entries)
        else:
            result = run()
        results.append(arrays_in(result))
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ["LSTMBothWays", pytest.param("GRULayers", marks=pytest.mark.slow)])
def test_recurrent_layers_compute_the_same(name, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    layer, results = LAYERS[name], []
    for is_recorded in (False, True):
        net = layer.build()
        gradients = ms.value_and_grad(net, 0, net.trainable_params())

        def run(gradients=gradients):
            return gradients(*layer.inputs())

        results.append(record(net, run, tmp_path)[1] if is_recorded else run())
    assert arrays_in(results[0]) == arrays_in(results[1])
