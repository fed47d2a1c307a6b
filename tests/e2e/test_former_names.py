"""Scripts written for other releases: their imports, and how they make and use the debugger."""

import msprobe.pytorch
import pytest
import torch
from former_names import former_names, import_former
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.mark.parametrize("name", former_names("msprobe.pytorch"))
def test_imports(name):
    found, expected = import_former(name)
    assert found is expected or callable(found)  # a module that can be called


def test_a_package_and_a_function_of_one_name():
    from msprobe.pytorch.compare.distributed_compare import compare_distributed

    assert compare_distributed is msprobe.pytorch.compare_distributed
    assert callable(msprobe.pytorch.compare)


def test_the_model_is_given_to_the_constructor(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix", model=model)
    debugger.start()
    model(torch.ones(1, 2)).sum().backward()
    debugger.forward_backward_dump_end()
    debugger.step()
    assert "Module.0.Linear.backward.0" in Recorded(tmp_path).data


def test_a_model_given_later(tmp_path):
    models = [nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.ReLU())]
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    assert PrecisionDebugger(model=models[0]) is debugger
    for step, model in enumerate((None, models[1])):
        debugger.start(model)
        for each in models:
            each(torch.ones(1, 2))
        debugger.stop()
        debugger.step()
        assert ("Module.1.ReLU.forward.0" in Recorded(tmp_path, step).data) == (step == 1)
