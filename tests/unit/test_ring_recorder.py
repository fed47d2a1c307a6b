"""The flight recorder's ring, without a framework: what is kept, and when it is written."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe_core.capture.ring_recorder import MAX_WRITTEN, Emergency, FlightRing, Seen
from msprobe_core.errors import ConfigError
from msprobe_core.model import Phase, Role, TensorMeta
from msprobe_core.overflow import search

META = TensorMeta("torch.Tensor", "torch.float32", (2, 3))


class Tape:
    """Extremes that are available after a wait, or if ``is_there`` is set."""

    is_there = True

    def __init__(self):
        self.values, self.is_sealed = [], False

    def put(self, tensor):
        self.values.append(tensor)
        return len(self.values) - 1

    def seal(self):
        self.is_sealed = True

    def extremes(self, *, waits):
        assert self.is_sealed
        return self.values if self.is_there or waits else None


def ring_in(directory, size=3):
    return FlightRing(directory, Tape, framework="pytorch", prefix="Module", rank=lambda: 5, size=size)


def see(ring, module, *extremes, phase=Phase.FORWARD, role=Role.OUTPUT, name="", index=0):
    for value in extremes:
        place = ring.step.tape.put(value)
        ring.step.seen.append(Seen(module, "Linear", phase, index, role, name, place, META))


def steps_in(directory):
    return sorted(int(path.name.removeprefix("step")) for path in directory.iterdir())


def test_a_healthy_training_writes_nothing(tmp_path):
    ring = ring_in(tmp_path / "flight")
    for _ in range(10):
        see(ring, "fc", (1.0, -1.0))
        ring.end_step()
    ring.finish()
    assert not (tmp_path / "flight").exists()
    assert [step.number for step in ring.steps] == [8, 9, 10]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_the_last_steps_are_written_when_a_value_is_not_finite(tmp_path, bad, caplog):
    ring = ring_in(tmp_path)
    for step in range(7):
        see(ring, "fc", (1.0, -1.0), (2.0, bad if step == 5 else -2.0))
        ring.end_step()
    assert steps_in(tmp_path) == [3, 4, 5]
    assert "NaN or Inf in 1 of 2 tensors of step 5: steps 3 to 5 are in" in caplog.text
    dump = json.loads((tmp_path / "step5" / "rank5" / "dump.json").read_text())
    (entry,) = dump["data"].values()
    assert entry["output"][0]["Max"] == 1.0
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*"))
    assert search(tmp_path).first.step == 5


def test_steps_that_are_still_on_a_device_are_looked_at_later(tmp_path, monkeypatch):
    monkeypatch.setattr(Tape, "is_there", False)
    ring = ring_in(tmp_path)
    see(ring, "fc", (math.nan, math.nan))
    ring.end_step()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(Tape, "is_there", True)
    ring.end_step()
    assert steps_in(tmp_path) == [0]


def test_a_training_that_goes_on_with_nan_is_not_written_at_every_step(tmp_path, caplog):
    ring = ring_in(tmp_path, size=1)
    for step in range(20):
        see(ring, "fc", (math.nan, math.nan) if step % 2 else (1.0, 1.0))
        ring.end_step()
    assert len(steps_in(tmp_path)) == MAX_WRITTEN
    for _ in range(5):
        see(ring, "fc", (math.nan, math.nan))
        ring.end_step()
    assert len(steps_in(tmp_path)) == MAX_WRITTEN


def test_what_is_written_is_a_dump_of_modules(tmp_path):
    ring = ring_in(tmp_path)
    see(ring, "", (1.0, 0.0), role=Role.INPUT)
    see(ring, "net.fc", (3.0, -3.0), role=Role.PARAMETERS, name="weight")
    see(ring, "net.fc", (math.inf, 0.0))
    see(ring, "", (math.nan, math.nan))
    see(ring, "", (math.nan, math.nan), phase=Phase.BACKWARD, role=Role.INPUT)
    see(ring, "net.fc", (math.nan, math.nan), phase=Phase.PARAMETERS_GRAD, role=Role.PARAMETERS_GRAD, name="weight")
    ring.end_step()
    dump = json.loads((tmp_path / "step0" / "rank5" / "dump.json").read_text())
    assert list(dump["data"]) == [
        "Module.net.fc.Linear.forward.0",
        "Module.Linear.forward.0",
        "Module.Linear.backward.0",
        "Module.net.fc.Linear.parameters_grad.0",
    ]
    assert dump["data"]["Module.net.fc.Linear.forward.0"]["parameters"]["weight"]["Max"] == 3.0
    parents = json.loads((tmp_path / "step0" / "rank5" / "construct.json").read_text())
    assert parents["Module.net.fc.Linear.forward.0"] == "Module.Linear.forward.0"
    (finding,) = search(tmp_path).first.first
    assert finding.entry == "Module.net.fc.Linear.forward.0"


def test_a_signal_writes_and_the_handler_that_was_there_runs(tmp_path):
    ring = ring_in(tmp_path)
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append("before"))
    emergency = Emergency(ring, [signal.SIGUSR1], at_exit=False)
    try:
        emergency.install()
        see(ring, "fc", (1.0, 1.0))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == ["before"]
        assert steps_in(tmp_path) == [0]
        emergency.remove()
        assert signal.getsignal(signal.SIGUSR1) is not before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == ["before"] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_exception_writes_and_is_shown_as_before(tmp_path, capsys):
    ring = ring_in(tmp_path)
    before = sys.excepthook
    emergency = Emergency(ring, [], at_exit=False)
    emergency.install()
    see(ring, "fc", (1.0, 1.0))
    try:
        sys.excepthook(ValueError, ValueError("lost"), None)
    finally:
        emergency.remove()
    assert sys.excepthook is before
    assert "ValueError: lost" in capsys.readouterr().err
    assert steps_in(tmp_path) == [0]


PROGRAM = """
import os, signal, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_ring_recorder import Emergency, ring_in, see
ring = ring_in(Path(sys.argv[1]))
Emergency(ring, [signal.SIGTERM], at_exit=sys.argv[2] == "exit").install()
see(ring, "fc", (1.0, 1.0))
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("how", "status"), [("kill", -signal.SIGTERM), ("exit", 0), ("silence", 0)])
def test_a_process_that_ends_has_written(tmp_path, how, status):
    here = Path(__file__).parent
    program = PROGRAM.format(paths=[str(here), str(here.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "flight"), how], capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    assert (tmp_path / "flight").exists() == (how != "silence")


def test_a_full_disk_is_said_and_the_training_goes_on(tmp_path, caplog):
    (tmp_path / "flight").write_text("no directory")
    ring = ring_in(tmp_path / "flight")
    see(ring, "fc", (math.nan, math.nan))
    ring.end_step()
    assert "training goes on" in caplog.text


def test_a_ring_has_room_for_a_step(tmp_path):
    with pytest.raises(ConfigError, match="at least the running step"):
        ring_in(tmp_path, size=0)
