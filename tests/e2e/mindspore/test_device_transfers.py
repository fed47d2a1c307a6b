"""What the host fetches of tensors while a window is open, with results that wait as on a device: nothing.

There is no device whose memory could be closed to the host, so each way of MindSpore's tensors to give their elements
to Python is counted instead.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
import numpy as np  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402
from msprobe.mindspore._framework import MindSporeFramework  # noqa: E402

WAYS = (
    "asnumpy", "numpy", "item", "tolist", "get_bytes", "to_dlpack", "__bool__", "__float__", "__int__", "__index__",
    "__array__", "__complex__",
)  # fmt: skip

WRITER = "msprobe-writer"


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Dense(4, 8), nn.Dense(8, 3), nn.LayerNorm((8,))

    def construct(self, x):
        y = self.norm(ops.gelu(self.up(x)))
        return ops.softmax(self.down(y)).square().mean()


@pytest.fixture
def fetched(monkeypatch):
    """Return the ways and threads of all transfers to the host since it was cleared."""
    found = []

    def counted(way, original):
        def fetch(self, *args, **kwargs):
            caller = sys._getframe(1)
            place = f"{way} in {Path(caller.f_code.co_filename).stem}.{caller.f_code.co_name}"
            found.append((place, threading.current_thread().name))
            return original(self, *args, **kwargs)

        return fetch

    for way in WAYS:
        if hasattr(Tensor, way):
            monkeypatch.setattr(Tensor, way, counted(way, getattr(Tensor, way)))
    return found


def defer(monkeypatch, *, is_on_device):
    """Have the framework, which a process makes once, treat tensors as those of a device, or of the host."""
    chosen = property(lambda _self: is_on_device, lambda _self, _value: None)
    monkeypatch.setattr(MindSporeFramework, "_defers", chosen, raising=False)


def train(probe, fetched):
    """Train two steps; return weights and gradients, and what was fetched inside of the windows and at their ends."""
    ms.set_seed(3)
    net = Net().set_train()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    differentiate = ms.value_and_grad(net, None, optimizer.parameters)
    inside, at_end, seen = [], [], []
    for step in range(2):
        x = Tensor(np.random.RandomState(step).normal(size=(5, 4)).astype(np.float32))
        if probe is not None:
            probe.start(net)
        fetched.clear()
        loss, gradients = differentiate(x)
        optimizer(gradients)
        inside += fetched
        fetched.clear()
        if probe is not None:
            probe.stop()
            probe.step()
        at_end += fetched
        seen += [loss, *gradients]
    return [each.asnumpy().tobytes() for each in (*seen, *net.trainable_params())], inside, at_end


@pytest.mark.parametrize(
    ("level", "task", "mode"),
    [
        ("mix", "statistics", "statistics"),
        *(
            pytest.param(level, task, mode, marks=pytest.mark.slow)
            for level in ("L0", "L1", "mix")
            for task, mode in (
                *(("statistics", mode) for mode in ("statistics", "md5", "xor", "hash", "sketch")),
                ("tensor", "statistics"), ("overflow_check", None),
            )
            if (level, mode) != ("mix", "statistics") or task != "statistics"
        ),
    ],
)  # fmt: skip
def test_nothing_is_fetched_while_a_window_is_open(monkeypatch, tmp_path, fetched, level, task, mode):
    bare, inside, at_end = train(None, fetched)
    assert inside == at_end == []
    defer(monkeypatch, is_on_device=True)
    options = {} if mode is None else {"summary_mode": mode}
    config = {"task": task, "level": level, "dump_path": str(tmp_path / "run"), task: options}
    (tmp_path / "config.json").write_text(json.dumps(config))
    probe = PrecisionDebugger(str(tmp_path / "config.json"))
    try:
        state, inside, at_end = train(probe, fetched)
    finally:
        probe.close()
    assert state == bare
    assert [way for way, thread in inside if thread != WRITER] == []
    assert at_end or task == "tensor"  # the counter sees what is fetched then


def test_results_that_do_not_wait_are_seen(monkeypatch, tmp_path, fetched):
    defer(monkeypatch, is_on_device=False)
    probe = PrecisionDebugger(level="L0", task="statistics", dump_path=str(tmp_path / "run"))
    try:
        _, inside, _ = train(probe, fetched)
    finally:
        probe.close()
    assert len(inside) > 10
