"""Hooks of the user: they run as they do without the probe, and what they change is recorded."""

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn
from torch_traces import traces_in


class Record:
    def __init__(self, path):
        self.path = path

    def __call__(self, level):
        return PrecisionDebugger(dump_path=self.path, level=level)

    def result(self):
        return Recorded(self.path)


@pytest.fixture
def record(tmp_path, close_debugger):
    """Return what makes a debugger of a level, and what it has recorded."""
    return Record(tmp_path / "run")


def test_replicas_of_data_parallelism_compute_with_their_own_parameters(record):
    model = nn.Linear(2, 2)
    with record("mix").start(model):
        replica = model._replicate_for_data_parallel()
        replica.weight, replica.bias = torch.eye(2) * 3, torch.ones(2)  # as replicate() does
        assert replica(torch.ones(1, 2)).tolist() == [[4, 4]]
    assert record.result().data["Module.Linear.forward.0"]["output"][0]["Max"] == 4


def test_what_hooks_of_the_user_change_is_recorded(record):
    model = nn.Sequential(nn.Identity(), nn.Identity())
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[1].register_forward_hook(lambda module, args, output: output * 2)
    handles = []
    with record("L0").start(model):
        model(torch.ones(2))
        handles.append(
            model[0].register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs), with_kwargs=True)
        )
        handles.append(model[0].register_forward_hook(lambda module, args, output: output * 3, prepend=True))
        handles.append(model[1].register_forward_pre_hook(lambda module, args: (args[0] + 5,), prepend=True))
        handles.append(model[1].register_forward_hook(lambda module, args, output: output + 7))
        result = model(torch.ones(2))
        handles.append(nn.modules.module.register_module_forward_pre_hook(lambda module, args: (args[0] * 10,)))
        handles.append(nn.modules.module.register_module_forward_hook(lambda module, args, output: output + 0.5))
        model(torch.ones(2))
        for handle in handles:
            handle.remove()
        model(torch.ones(2))
    data = record.result().data
    assert result.tolist() == [29, 29]

    def seen(i, call):
        entry = data[f"Module.{i}.Identity.forward.{call}"]
        return entry["input_args"][0]["Max"], entry["output"][0]["Max"]

    assert [(seen(0, i), seen(1, i)) for i in range(4)] == [
        ((2, 2), (2, 4)), ((2, 6), (11, 29)), ((101, 304.5), (3050, 6108)), ((2, 2), (2, 4)),
    ]  # fmt: skip


@pytest.mark.parametrize("fails_in", ["pre_hook", "forward", "hook"])
def test_calls_that_hooks_stop_are_left_well(record, fails_in):
    class Stops(nn.Module):
        def forward(self, x):
            if fails_in == "forward":
                raise ValueError("planted")
            return x * 2

    def fail(*_):
        raise ValueError("planted")

    model = nn.Sequential(Stops(), nn.Identity())
    model[0].register_forward_pre_hook(fail if fails_in == "pre_hook" else lambda module, args: None)
    if fails_in == "hook":
        model[0].register_forward_hook(fail)
    before = traces_in(model)
    with record("mix").start(model):
        with pytest.raises(ValueError, match="planted"):
            model(torch.ones(2))
        model[1](torch.ones(2))
    assert record.result().data["Module.1.Identity.forward.0"]["output"][0]["Max"] == 1
    assert record.result().json("construct.json")["Module.1.Identity.forward.0"] is None
    assert traces_in(model) == before


def test_a_module_that_a_hook_calls_is_recorded_inside(record):
    inner = nn.Linear(2, 2)
    inner.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model = nn.Sequential(nn.Identity(), inner)
    calls = []

    def hook(module, args):
        if not calls:
            calls.append(None)
            return (module(args[0] + 1),)  # the very module, once
        return (args[0] + inner(args[0]).sum() * 0,)

    model[0].register_forward_pre_hook(hook)
    with record("L0").start(model):
        result = model(torch.ones(2))
    data = record.result().data
    assert data["Module.0.Identity.forward.0"]["input_args"][0]["Max"] == 2
    assert result.shape == (2,)
