"""While nothing is recorded, nothing of ours is anywhere: what a debugger that does nothing costs."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from msprobe.pytorch import PrecisionDebugger, module_dump, module_dump_end
from torch import nn
from torch.autograd import Variable
from torch.nn.modules import module as module_of_torch

import msprobe_core

REPOSITORY = Path(msprobe_core.__file__).parents[1]

pytestmark = pytest.mark.usefixtures("close_debugger")

NAMESPACES = {
    "torch": torch, "Tensor": torch.Tensor, "functional": nn.functional, "Module": nn.Module, "Linear": nn.Linear,
    "module": module_of_torch, "autograd": torch.autograd, "Variable": Variable, "overrides": torch.overrides,
    "Optimizer": torch.optim.Optimizer, "SGD": torch.optim.SGD, "linalg": torch.linalg, "C": torch._C,
    "nn": torch._C._nn, "VF": torch._VF, "checkpoint": torch.utils.checkpoint, "distributed": torch.distributed,
    "clip_grad": nn.utils.clip_grad, "backward": torch.autograd.graph, "amp": torch.amp, "fft": torch.fft,
}  # fmt: skip


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.TransformerEncoderLayer(3, 1, 4))

    def forward(self, x):
        return self.layers(x)


def traces(model, optimizer):
    """Return what is hooked, patched or running, wherever code could do so."""
    patched = {name: {key: id(value) for key, value in vars(owner).items()} for name, owner in NAMESPACES.items()}
    hooks = [
        {key: list(value) if isinstance(value, dict) else type(value) for key, value in vars(module).items()}
        for module in model.modules()
    ]
    tensors = [
        # PyTorch leaves an empty table where hooks have been.
        (
            list(parameter._backward_hooks or ()),
            list(parameter._post_accumulate_grad_hooks or ()),
            list(vars(parameter)),
        )
        for parameter in model.parameters()
    ]
    return {
        "patched": patched,
        "hooks": hooks,
        "tensors": tensors,
        "optimizer": [*sorted(vars(optimizer)), len(optimizer._optimizer_step_pre_hooks)],
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tracing": (sys.gettrace(), sys.getprofile()),
    }


def step(model, optimizer):
    model(torch.ones(2, 4, 3)).square().mean().backward()
    optimizer.step()


def constructed(debugger, model):
    """Do nothing."""


def unselected(debugger, model):
    debugger.start(model)


def unselected_with_everything(debugger, model):
    debugger.start(model, token_range=[0, 1], rank_id=7)
    module_dump(model.layers, "layers")


def finished(debugger, model):
    debugger.set_init_step(3)
    for _ in range(3):
        debugger.start(model)
        debugger.stop()
        debugger.step()
    debugger.start(model)


def stopped(debugger, model):
    debugger.start(model)
    debugger.stop()


def stepped(debugger, model):
    debugger.start(model)
    module_dump(model.layers, "layers")
    module_dump_end()
    debugger.stop()
    debugger.step()


STATES = {
    "constructed": (constructed, {}),
    "unselected step": (unselected, {"step": [5]}),
    "unselected step, all arguments": (unselected_with_everything, {"step": [5]}),
    "unselected rank": (unselected, {"rank": [3]}),
    "switched off": (unselected, {"dump_enable": False}),
    "finished": (finished, {"step": [3, 4]}),
    "stopped": (stopped, {}),
    "stepped": (stepped, {}),
}


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("state", STATES)
def test_nothing_is_in_place(tmp_path, state, level):
    enter, settings = STATES[state]
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    before = traces(model, optimizer)
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"dump_enable": True, "level": level, "dump_path": str(tmp_path / "run"), **settings}))
    debugger = PrecisionDebugger(config)
    enter(debugger, model)
    now = traces(model, optimizer)
    if state in {"finished", "stopped", "stepped"}:  # it has recorded, and its writer waits for more
        assert now["threads"] == sorted([*before["threads"], "msprobe-writer"])
        now["threads"] = before["threads"]
    assert now == before
    step(model, optimizer)
    debugger.stop()
    assert not (tmp_path / "run").exists() or state in {"finished", "stopped", "stepped"}
    debugger.close()
    assert traces(model, optimizer) == before


@pytest.mark.parametrize(("level", "expected"), [
    ("L0", {"hooks", "tensors", "patched"}), ("L1", {"hooks", "patched", "function modes"}),
    ("mix", {"hooks", "tensors", "patched", "function modes"}),
])  # fmt: skip
def test_what_is_in_place_while_recording_is_seen_by_this_test(tmp_path, level, expected):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = traces(model, optimizer)
    with PrecisionDebugger(dump_path=tmp_path, level=level).start(model):
        now = traces(model, optimizer)
    assert {name for name, value in now.items() if value != before[name]} == expected


def test_a_file_that_is_watched_is_hardly_ever_looked_at(tmp_path, monkeypatch):
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"dump_enable": False, "level": "mix"}))
    debugger = PrecisionDebugger(config)
    model = Model()
    looks = []
    look = os.stat
    monkeypatch.setattr(os, "stat", lambda path, *args, **kwargs: looks.append(path) or look(path, *args, **kwargs))
    for _ in range(100):
        debugger.start(model)
        debugger.stop()
        debugger.step()
    assert 1 <= len(looks) <= 8  # of three hundred occasions; the first look reads the file


@pytest.mark.slow
def test_importing_and_constructing_replaces_nothing(tmp_path):
    program = f"""
import sys
sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / "plugins" / "pytorch")!r}]
import torch, torch.utils.checkpoint, torch.distributed
from torch.autograd import Variable
owners = [torch, torch.Tensor, torch.nn.functional, torch.nn.Module, torch.autograd, Variable, torch.overrides,
          torch.optim.Optimizer, torch.linalg, torch._C, torch._C._nn, torch.distributed, torch.utils.checkpoint]
before = [dict(vars(owner)) for owner in owners]
from msprobe.pytorch import PrecisionDebugger
PrecisionDebugger(dump_path="run", level="mix", step=[7])
PrecisionDebugger.start(torch.nn.Linear(2, 2))
for owner, attributes in zip(owners, before):
    for name, value in attributes.items():
        assert vars(owner).get(name) is value, (owner, name)
print("clean")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout == "clean\n"
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("nothing was recorded: 'step' selects 7")
