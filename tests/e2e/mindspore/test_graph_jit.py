"""Functions and Cells under `jit` in the dynamic graph: Cells inside them are recorded with those around them."""

import pytest

from tests.support.graph_nets import Block, arrays_in, dense, filled, ms, nn, ops, record, step_of


@pytest.fixture(autouse=True)
def dynamic_graph(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()


class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = dense()

    def construct(self, x):
        return ops.tanh(self.fc(x))


def make_twice(is_compiled):
    class Twice(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def construct(self, x):
            return self.inner(x) * 2

    if is_compiled:
        Twice.construct = ms.jit(Twice.construct)
    return Twice()


class Around(nn.Cell):
    def __init__(self, *, is_compiled):
        super().__init__()
        self.twice = make_twice(is_compiled)
        self.last = dense(seed=4)

    def construct(self, x):
        return self.last(self.twice(x)).sum()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_cell_whose_construct_is_compiled(tmp_path, level):
    x = filled(2, 3)
    plain = step_of(Around(is_compiled=True), x, positions=0)()
    net = Around(is_compiled=True)
    dump, result = record(net, step_of(net, x, positions=0), tmp_path / "dump", level=level)
    assert arrays_in(result) == arrays_in(plain)
    net = Around(is_compiled=False)
    golden, _ = record(net, step_of(net, x, positions=0), tmp_path / "golden", level="L0")
    assert {name for name in dump.entries if name.startswith("Cell.")} == set(golden.entries)
    if level == "L0":
        assert dump.parents == golden.parents
    assert dump.parents["Cell.twice.inner.Inner.forward.0"] == "Cell.twice.Twice.forward.0"


@pytest.mark.parametrize("place", ["forward", "grad outside", "grad inside"])
def test_a_compiled_function_around_a_net(tmp_path, place):
    def make(net):
        if place == "grad inside":
            return ms.jit(lambda_free(ms.value_and_grad(net, 0, net.trainable_params())))
        function = ms.jit(lambda_free(net))
        return ms.value_and_grad(function, 0, net.trainable_params()) if place == "grad outside" else function

    class Summed(Inner):
        def construct(self, x):
            return ops.tanh(self.fc(x)).sum()

    x = filled(2, 3)
    plain = make(Summed())(x)
    net = Summed()
    function = make(net)
    dump, result = record(net, lambda: function(x), tmp_path / "dump")
    assert arrays_in(result) == arrays_in(plain)
    names = {"Cell.Summed.forward.0", "Cell.fc.Dense.forward.0"}
    if place != "forward":
        names |= {"Cell.Summed.backward.0", "Cell.fc.Dense.backward.0", "Cell.fc.Dense.parameters_grad.0"}
    assert set(dump.entries) == names
    again, _ = record(net, lambda: function(x), tmp_path / "again")
    assert set(again.entries) == names
    assert dict(again.values()) == dict(dump.values())


class HalfPrecision(nn.Cell):
    """Multiplies two results that the backend does not round to half precision unless something takes them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = dense(6, 6, seed=1), dense(6, 6, seed=2)
        self.to_float(ms.float16)

    def construct(self, x):
        product = ops.matmul(self.first(x), self.second(x).swapaxes(0, 1))
        return (product * product).mean()


def test_half_precision_is_rounded_where_it_is_without_the_probe(tmp_path):
    x, net = filled(2, 6), HalfPrecision()

    def compute(x):
        return net(x)

    plain = ms.jit(compute)(x)
    dump, result = record(net, lambda: ms.jit(compute)(x), tmp_path / "dump")
    assert arrays_in(result) == arrays_in(plain)
    assert "Cell.first.Dense.forward.0" in dump.entries


def lambda_free(function):
    """Return a function that the compiler can read."""

    def call(x):
        return function(x)

    return call


def test_the_net_is_recorded_as_ever_where_it_is_not_compiled(tmp_path):
    net = Block()
    x = filled(2, 3)

    @ms.jit
    def compiled(x):
        return net(x, (x, x))["y"].sum()

    def both():
        return compiled(x), net(x, (x, x))["y"].sum()

    dump, _ = record(net, both, tmp_path / "dump")
    assert {"Cell.Block.forward.0", "Cell.Block.forward.1", "Cell.fc.Dense.forward.1"} <= set(dump.entries)
    first, second = (dump.entries[f"Cell.Block.forward.{i}"]["output"][0]["y"] for i in range(2))
    assert first["Max"] == pytest.approx(second["Max"], rel=1e-6)
