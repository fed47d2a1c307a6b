"""What is recorded is what is there, also where a dispatch mode keeps versions from being raised."""

from __future__ import annotations

import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch.utils._python_dispatch import TorchDispatchMode


class Through(TorchDispatchMode):
    """Changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_writes_to_lists_of_tensors_are_seen_under_a_mode(tmp_path):
    x = torch.ones(4)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), level="L1")
    debugger.start()
    x.add(0.0)
    with Through():
        torch._foreach_mul_([x], 3.0)
    x.sub(1.0)
    debugger.stop()
    debugger.step()
    debugger.close()
    data = Recorded(tmp_path).data
    assert data["Tensor.add.0.forward"]["input_args"][0]["Max"] == 1.0
    assert data["Tensor.sub.0.forward"]["input_args"][0]["Max"] == 3.0
