"""Recorded random functions of PyTorch: healthy ones are right in every dtype, and planted ones are not."""

import json

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch.nn import functional

from msprobe_core.api_check.random_calls import check_random
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.store.reading import read_dump


def record(place, function):
    common = {"task": "tensor", "level": "L1", "dump_path": str(place), "risk_level": "ALL"}
    path = place.with_suffix(".json")
    path.write_text(json.dumps(common))
    debugger = PrecisionDebugger(str(path))
    try:
        with debugger.start():
            function()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    calls = RecordedCalls(read_dump(unit), 1 << 22)
    found = {entry: check_random(calls.read(entry)) for entry in calls.entries}
    return {entry: verdict for entry, verdict in found.items() if verdict is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_healthy_functions_are_right(tmp_path, dtype):
    def run():
        torch.manual_seed(4)
        x = torch.randn(40, 50, 20).to(dtype).requires_grad_()
        functional.dropout(x, 0.1).float().pow(2).sum().backward()
        functional.dropout(x, p=0.3, training=True)
        functional.dropout(x.detach().clone(), 0.3, True, True)
        functional.dropout(x, 0.5, training=False)
        functional.alpha_dropout(x, 0.2, training=True)
        functional.dropout2d(torch.randn(150, 100, 2, 2).to(dtype), 0.4)
        torch.nn.Dropout(0.2)(x)
        torch.native_dropout(x, 0.25, True)
        torch.rand(200, 100, dtype=dtype)
        torch.randn(200, 100, dtype=dtype)
        torch.rand_like(x)
        torch.zeros(200, 100, dtype=dtype).uniform_(-3, 5)
        torch.zeros(200, 100, dtype=dtype).normal_(2, 0.1)
        torch.zeros(200, 100, dtype=dtype).exponential_(3.0)
        torch.zeros(200, 100, dtype=dtype).bernoulli_(0.3)

    found = record(tmp_path / "run", run)
    wrong = {
        entry: verdict.worst.reason.text for entry, verdict in found.items() if verdict.verdict is not Verdict.RIGHT
    }
    assert not wrong
    for name in ("dropout.0.forward", "dropout.0.backward", "dropout.3.", "alpha_dropout", "dropout2d",
                 "native_dropout", "rand.", "randn.", "rand_like", "uniform_", "normal_", "exponential_",
                 "bernoulli_"):  # fmt: skip
        assert any(name in entry for entry in found), name


def test_dropout_of_another_probability_is_wrong(tmp_path, monkeypatch):
    dropout = torch._VF.dropout
    monkeypatch.setattr(torch._VF, "dropout", lambda x, p, training: dropout(x, p / 2, training))
    found = record(tmp_path / "run", lambda: functional.dropout(torch.randn(200, 100), 0.2))
    assert {entry: verdict.verdict for entry, verdict in found.items()} == {
        "Torch.randn.0.forward": Verdict.RIGHT, "Functional.dropout.0.forward": Verdict.WRONG,
    }  # fmt: skip
