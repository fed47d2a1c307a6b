"""The points for Ascend, as far as they can be looked at without one: what is compiled, and what becomes of the files.

The operator that they use is `TensorDump`. In GRAPH_MODE the CPU has no kernel for it, so that graphs can be compiled
but not run; called from Python it writes the files that it writes on Ascend.
"""

import re

import mindspore as ms
import pytest
from mindspore import nn, ops
from msprobe.mindspore._quiet import executor
from msprobe.mindspore.graph.attempts import Attempts
from msprobe.mindspore.graph.collector import station
from msprobe.mindspore.graph.point_installation import compilation
from msprobe.mindspore.graph.tensordump import Arrivals, Kind

from tests.support.graph_nets import Net, dense, filled, record, step_of


@pytest.fixture(autouse=True)
def graph_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Small(nn.Cell):
    """Calls a Cell twice, with one argument by name; has parameters of its own and a result that nothing uses."""

    def __init__(self):
        super().__init__()
        self.fc = dense()
        self.pair = Pair()

    def construct(self, x, w):
        return self.pair(self.fc(x), scale=self.fc(w))["first"].sum()


class Pair(nn.Cell):
    def construct(self, x, scale=None):
        return {"first": x * scale, "second": (x, scale)}


@pytest.mark.slow
def test_what_is_compiled_writes_every_value_once(tmp_path, monkeypatch):
    net = Small()
    inputs = filled(2, 3, seed=5), filled(2, 3, seed=6)
    on_cpu, _ = record(net, step_of(net, *inputs, positions=(0, 1)), tmp_path / "cpu")
    monkeypatch.setattr(compilation(), "writes_files", True)
    # The CPU has no kernel for the points, of which MindSpore finds as little for fewer of them, in half a minute.
    monkeypatch.setattr(Attempts, "_lesser", lambda *_: iter(()))
    net = Small()
    ms.set_context(save_graphs=1, save_graphs_path=str(tmp_path / "ir"))
    try:
        dump, _ = record(net, step_of(net, *inputs, positions=(0, 1)), tmp_path / "files")
    finally:
        ms.set_context(save_graphs=0)
    assert dump.entries == {}  # in the end it was compiled without points, for want of a kernel
    written = []
    for path in (tmp_path / "ir").glob("*validate*.ir"):
        names = re.findall(r"= TensorDump\(\"([^\"]+)\"", path.read_text())
        written = max(written, names, key=len)
    kinds = [int(name.rpartition("/")[2].partition("_")[0]) for name in written]
    values = on_cpu.values()
    assert kinds.count(Kind.VALUE) == len([key for key in values if ".forward." in key[0]]) > 15
    assert kinds.count(Kind.GRADIENT) == len([key for key in values if ".backward." in key[0]]) > 7
    assert kinds.count(Kind.PARAMETER) == len([key for key in values if "parameters_grad" in key[0]]) == 2
    # Both calls of the one Cell write under the same names: the order of the files tells which is which.
    assert 0 < len(set(written)) < len(written)


class Writer:
    """Writes what arrives as the points for Ascend would; takes what a `Recording` takes."""

    def __init__(self, arrivals):
        self._arrivals = arrivals
        self._layouts = {}
        self._early = []
        self.is_open = True

    def _write(self, kind, first, second, array):
        ops.TensorDump()(self._arrivals.stem(kind, first, second), ms.Tensor(array))

    def _number(self, layout):
        return next(i for i in range(10_000) if station().layouts[i] is layout)

    def begin(self, number, layout, arrays):
        self._layouts[number, 0] = self._number(layout)
        for i, array in enumerate(arrays):
            self._write(Kind.VALUE, self._number(layout), i, array)

    def end(self, number, layout, arrays):
        self._layouts[number, 1] = self._number(layout)
        # Constants, which come before the call has ended; a graph knows the layout all the time.
        early, self._early = self._early, []
        for gradient in early:
            self.gradient(*gradient)
        for i, array in enumerate(arrays):
            self._write(Kind.VALUE, self._number(layout), i, array)

    def gradient(self, number, place, array):
        layout = self._layouts.get((number, int(place >= 1 << 20)))
        if layout is None:
            self._early.append((number, place, array.copy()))
        else:
            self._write(Kind.GRADIENT, layout, place, array)

    def parameter_gradient(self, parameter, array):
        self._write(Kind.PARAMETER, parameter, 0, array)

    def end_run(self):
        pass


@pytest.mark.slow
def test_what_is_written_becomes_the_same_dump(tmp_path, monkeypatch):
    """The files of a run are replayed within a window in which nothing runs."""
    net = Net()
    run = step_of(net, filled(2, 3, seed=5), filled(2, 3, seed=6), positions=(0, 1))
    golden, _ = record(net, run, tmp_path / "golden")
    arrivals = Arrivals()
    writer = Writer(arrivals)
    station().add(writer)
    run()
    executor.sync()
    station().remove(writer)

    monkeypatch.setattr("msprobe.mindspore.graph.attachment.arrivals", lambda: arrivals)
    monkeypatch.setattr(arrivals, "drop", lambda: None)  # what another window has left
    monkeypatch.setattr(compilation(), "writes_files", True)
    found, _ = record(net, lambda: None, tmp_path / "found")
    assert set(found.entries) == set(golden.entries)
    assert found.parents == golden.parents
    mine, its = found.values(), golden.values()
    assert mine.keys() == its.keys()
    assert mine == its
    assert not list(arrivals._directory.glob("0_*"))
