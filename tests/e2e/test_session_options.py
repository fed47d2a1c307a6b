"""`tensor_list` and `slice` of real tensors."""

import json

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
