"""MindSpore recordings that are killed, or that a disk or a writer fails: marked as such, and the training goes on."""

import logging
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from msprobe_core.errors import DumpError
from msprobe_core.locate import LocateVerdict, locate
from msprobe_core.model import EndState
from msprobe_core.overflow import search
from msprobe_core.plugins import registry
from msprobe_core.store.json_writer import JsonWriter, JsonWriterFactory
from msprobe_core.store.reading import read_dump
from tests.support.graph_nets import PrecisionDebugger, arrays_in, dense, filled, ms, nn, step_of

MODES = {"dynamic": ms.PYNATIVE_MODE, "static": ms.GRAPH_MODE}
WRITERS = ["json", "arrow"]
NUM_STEPS = 3


@pytest.fixture(params=MODES)
def mode(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.set_context(mode=MODES[request.param])
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer, self.tanh = dense(), nn.Tanh()

    def construct(self, x):
        return self.tanh(self.layer(x)).sum()


def train(place, *, around=None, **settings):
    """Return what each step computes, as bytes; ``around`` is a block around the work of step 1."""
    debugger = None if place is None else PrecisionDebugger(dump_path=str(place), level="L0", **settings)
    model, results = Net(), []
    try:
        for number in range(NUM_STEPS):
            if debugger is not None:
                debugger.start(model)
            if number == 1 and around is not None:
                with around():
                    results.append(arrays_in(step_of(model, filled(4, 3))()))
                    PrecisionDebugger.stop()
            else:
                results.append(arrays_in(step_of(model, filled(4, 3))()))
            if debugger is not None:
                debugger.stop()
                debugger.step()
    finally:
        if debugger is not None:
            debugger.close()
    return results


@contextmanager
def full_disk():
    """No file grows any more."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def check_given_up(place, caplog, said=""):
    """One message says why; the step before reads as whole, and the one that broke off does not.

    Rows of data, which are a file of their own, may be missing too, and are said beside it.
    """
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (line,) = [record.getMessage() for record in warned if not record.name.endswith(".manifest")]
    assert len(warned) <= 2
    assert line.startswith("recording ends at step ")
    assert "training goes on" in line
    assert said in line
    ends = {path.parts[-2]: state_of(path) for path in place.glob("step*/*")}
    assert ends.pop("step0") is EndState.COMPLETE
    assert set(ends.items()) <= {("step1", EndState.EARLY), ("step1", None)}


def state_of(unit):
    try:
        return read_dump(unit).ending.state
    except DumpError:  # not even the first call of it had room
        return None


@pytest.mark.parametrize("settings", [
    pytest.param({}, id="json"),
    pytest.param({"writer": "arrow"}, id="arrow", marks=pytest.mark.slow),
    pytest.param({"task": "tensor"}, id="tensors"),
])  # fmt: skip
def test_a_full_disk_does_not_reach_the_training(mode, settings, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert train(tmp_path / "run", around=full_disk, **settings) == train(None)
    check_given_up(tmp_path / "run", caplog)


class FailingFactory(JsonWriterFactory):
    """Its writers fail from the second step on, as ``sys.exit`` in a thread of ours would."""

    def open(self, directory, header):
        writer = JsonWriter(directory, header)
        if directory.parent.name != "step0":
            writer.write = lambda _: sys.exit("planted")
        return writer


def test_a_writer_that_fails_does_not_reach_the_training(mode, tmp_path, caplog, monkeypatch):
    writers = {**registry().writers(), "failing": FailingFactory()}
    monkeypatch.setattr(type(registry()), "writers", lambda _: writers)
    with caplog.at_level(logging.WARNING):
        assert train(tmp_path / "run", writer="failing") == train(None)
    check_given_up(tmp_path / "run", caplog, "failed at writing (SystemExit: planted)")


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from msprobe_core.capture import step_record
from tests.support.graph_nets import Net, PrecisionDebugger, filled, ms, step_of
step_record.BACKLOG_ENTRIES = 3
ms.set_context(mode={mode})
debugger, model = PrecisionDebugger(dump_path={place!r}, level="L0", writer={writer!r}), Net()
step = step_of(model, filled(4, 3), filled(4, 3, seed=7))
for number in range(2):
    debugger.start(model)
    step()
    debugger.stop()
    debugger.start(model)
    if number:
        step()
        os.kill(os.getpid(), signal.SIGKILL)
    debugger.stop()
    debugger.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_was_killed_ended_early(mode, writer, tmp_path):
    place = tmp_path / "run"
    code = KILLED.format(root=str(Path(__file__).parents[3]), mode=int(MODES[mode]), place=str(place), writer=writer)
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    (whole,), (killed,) = (list(place.glob(f"step{number}/*")) for number in (0, 1))
    assert read_dump(whole).ending.state is EndState.COMPLETE
    end = read_dump(killed).ending
    assert end.state is EndState.EARLY
    assert end.num_calls > 0
    assert locate(killed, whole).verdict is LocateVerdict.INSUFFICIENT
    line = search(killed).incomplete[0].text
    assert line.endswith(f"ended early, after {end.num_calls} calls")
