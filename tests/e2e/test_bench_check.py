"""``bench_path`` with PyTorch: in place operations, dropout, backward, on the host and as on a device."""

import json
import logging

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._framework import PyTorchFramework
from msprobe.pytorch._reduce import TorchReducer
from recorded import Recorded, leaves
from torch import nn
from torch.nn import functional as F  # noqa: N812

pytestmark = pytest.mark.usefixtures("close_debugger")


class Scale(torch.autograd.Function):
    """``2 x``, with a backward that can be made wrong."""

    slope = 2.0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Scale.slope


class Double(nn.Module):
    def forward(self, x):
        return Scale.apply(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.twice = Double()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(F.dropout(self.twice(self.act(self.fc(x))), 0.5))


def train(model, dropout_seed=1):
    torch.manual_seed(2)
    x = torch.randn(6, 4)
    model.zero_grad()
    torch.manual_seed(dropout_seed)
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    return loss.item(), [p.detach().clone() for p in model.parameters()]


@pytest.fixture(params=["host", "device"])
def record(request, tmp_path, monkeypatch):
    if request.param == "device":
        monkeypatch.setattr(PyTorchFramework, "reducer", lambda self: TorchReducer(defer_host=True))

    def record(name, level, bench=None, dropout_seed=1, **options):
        block = {"summary_mode": "md5", **options} | ({"bench_path": str(tmp_path / bench)} if bench else {})
        task = "tensor" if bench else "statistics"
        path = tmp_path / "c.json"
        path.write_text(json.dumps({"task": task, task: block, "risk_level": "ALL"}))
        expected = train(Net(), dropout_seed)
        debugger = PrecisionDebugger(path, dump_path=tmp_path / name, level=level)
        model = Net()
        with debugger.start(model):
            loss, parameters = train(model, dropout_seed)
        assert loss == expected[0]
        assert all(map(torch.equal, parameters, expected[1]))
        debugger.step()
        debugger.close()
        assert torch._C._len_torch_function_stack() == 0
        return Recorded(tmp_path / name)

    return record


def saved(dump):
    return [entry for entry, record in dump.data.items() if any("data_name" in v for v in leaves(record).values())]


def test_an_equal_run_has_no_findings(record, caplog):
    record("golden", "mix")
    dump = record("run", "mix", "golden", diff_nums=-1)
    assert not saved(dump)
    assert not list((dump.directory / "dump_tensor_data").iterdir())
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_other_random_numbers_are_found_where_they_are_drawn(record, level, caplog):
    record("golden", level)
    dump = record("run", level, "golden", dropout_seed=9)
    assert saved(dump) == ["Functional.dropout.0.forward"]
    assert "the first call that differs is Functional.dropout.0.forward (1 found" in caplog.text
    value = dump.data["Functional.dropout.0.forward"]["output"][0]
    assert dump.tensor(value).max() == pytest.approx(value["Max"])


def test_a_wrong_backward_is_found_where_it_is(record, monkeypatch, caplog):
    record("golden", "L0")
    monkeypatch.setattr(Scale, "slope", 2.5)
    dump = record("run", "L0", "golden")
    assert saved(dump) == ["Module.twice.Double.backward.0"]
    assert "but other gradients of its inputs (0); 2 of its 2 tensors are saved" in caplog.text
    entry = dump.data["Module.twice.Double.backward.0"]
    arrived, sent = dump.tensor(entry["input"][0]), dump.tensor(entry["output"][0])
    assert (sent == arrived * 2.5).all()


def test_inputs_of_an_operation_in_place_are_saved_as_they_were(record, monkeypatch):
    record("golden", "L0")
    monkeypatch.setattr(F, "relu", lambda x, inplace=False: F.leaky_relu(x, 0.25, inplace=inplace))
    dump = record("run", "L0", "golden")
    assert saved(dump) == ["Module.act.ReLU.forward.0"]
    entry = dump.data["Module.act.ReLU.forward.0"]
    before, after = dump.tensor(entry["input_args"][0]), dump.tensor(entry["output"][0])
    assert before.min() < 0
    assert (after == np.where(before > 0, before, before * 0.25)).all()
