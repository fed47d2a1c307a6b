"""`tensor_list` and `slice` of real tensors."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.fixture
def open_debugger(tmp_path):
    def make(*, level="L1", task="statistics", **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": task, "risk_level": "ALL", task: options}))
        return PrecisionDebugger(path, dump_path=tmp_path / "run", level=level)

    return make


def test_tensor_list_keeps_whole_tensors_of_the_entries_it_names(tmp_path, open_debugger):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    debugger = open_debugger(level="mix", tensor_list=["Module.0.Linear", "relu"])
    with debugger.start(model):
        model(x).sum().backward()
    dump = Recorded(tmp_path / "run")
    kept = {name for name, record in dump.data.items() if "data_name" in json.dumps(record)}
    assert kept == {
        "Module.0.Linear.forward.0", "Module.0.Linear.backward.0", "Module.0.Linear.parameters_grad.0",
        "Functional.relu.0.forward", "Functional.relu.0.backward",
    }  # fmt: skip
    assert np.array_equal(dump.tensor(dump.data["Module.0.Linear.forward.0"]["input_args"][0]), x.numpy())
    gradient = dump.tensor(dump.data["Module.0.Linear.parameters_grad.0"]["weight"][0])
    assert np.array_equal(gradient, model[0].weight.grad.numpy())
    assert dump.data["Functional.linear.0.forward"]["output"][0]["Norm"] > 0


def test_a_slice_holds_nothing_but_its_own_bytes(tmp_path, open_debugger):
    x = torch.arange(1_000_000.0).reshape(1000, 1000).requires_grad_()
    debugger = open_debugger(task="tensor", slice=[{"dim": 0, "size": 1000, "begin": 7, "end": 8}], summary_mode="md5")
    with debugger.start():
        (x * 2).sum().backward()
    dump = Recorded(tmp_path / "run")
    multiplication = dump.data["Tensor.__mul__.0.forward"]
    value = multiplication["input_args"][0]
    assert (value["shape"], value["sliced_from"], value["requires_grad"]) == ([1, 1000], [1000, 1000], True)
    assert np.array_equal(dump.tensor(value), x.detach().numpy()[7:8])
    for path in (dump.directory / "dump_tensor_data").iterdir():
        assert path.stat().st_size < 8000
    gradient = dump.data["Tensor.__mul__.0.backward"]["output"][0]
    assert (gradient["shape"], gradient["Max"]) == ([1, 1000], 2.0)
    assert "sliced_from" not in dump.data["Tensor.sum.0.forward"]["output"][0]


def test_a_slice_of_a_tensor_that_is_written_to_is_read_anew(tmp_path, open_debugger):
    x = torch.zeros(4, 2)
    debugger = open_debugger(slice=[{"begin": 3}])
    with debugger.start():
        torch.neg(x)
        x[3] = 5.0
        torch.neg(x)
        torch.neg(x.to_sparse())
    values = [Recorded(tmp_path / "run").data[f"Torch.neg.{i}.forward"]["input_args"][0] for i in range(3)]
    assert [value["Max"] for value in values] == [0.0, 5.0, None]
    assert "sliced_from" not in values[2]


def test_one_request_of_an_inference_batch(tmp_path, open_debugger):
    debugger = open_debugger(level="L0", request_id="second")
    model = nn.Linear(2, 2)
    batch = torch.arange(12.0).reshape(6, 2)
    with debugger.start(model, scheduled_tokens={"first": 2, "second": 3, "third": 1}):
        model(batch)
    debugger.step()
    with debugger.start(model, scheduled_tokens={"first": 6}):
        model(batch)
    debugger.close()
    record = Recorded(tmp_path / "run").data["Module.Linear.forward.0"]
    assert (record["input_args"][0]["Min"], record["input_args"][0]["Max"]) == (4.0, 9.0)
    assert record["output"][0]["shape"] == [3, 2]
    assert record["parameters"]["weight"]["shape"] == [2, 2]
    assert not (tmp_path / "run" / "step1").exists()


def test_training_with_slices_is_bitwise_unchanged(tmp_path, open_debugger):
    def train(start):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
        x = torch.randn(6, 4, requires_grad=True)
        with start(model):
            model(x)[1:].square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in model.parameters())]

    debugger = open_debugger(level="mix", task="tensor", slice=[{"begin": 1, "end": 2}, {"dim": 1, "end": 2}])
    probed = train(debugger.start)
    assert all(torch.equal(a, b) for a, b in zip(probed, train(lambda _: nullcontext()), strict=True))
