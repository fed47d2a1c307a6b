"""The task ``overflow_check`` in the dynamic graph."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, nn, ops  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(3, 3, weight_init=Tensor(np.eye(3, dtype=np.float32)))
        self.second = nn.Dense(3, 1, weight_init=Tensor(np.ones((1, 3), np.float32)))

    def construct(self, x, scale):
        return self.second(ops.log(self.first(x) * scale)).sum()


@pytest.mark.parametrize(("scale", "culprits"), [(1.0, []), (0.0, ["Functional.log.0.forward"])])
def test_the_call_that_makes_infinities_is_kept(tmp_path, scale, culprits):
    net = Net()
    x = Tensor(np.ones((2, 3), np.float32))
    debugger = PrecisionDebugger(dump_path=str(tmp_path), level="mix", task="overflow_check")
    try:
        with debugger.start(net):
            net(x, scale)
        debugger.step()
    finally:
        debugger.close()
    dump = tmp_path / "step0" / f"proc{os.getpid()}" / "dump.json"
    entries = list(json.loads(dump.read_text())["data"]) if dump.exists() else []
    assert [entry for entry in entries if entry.startswith("Functional")] == culprits
