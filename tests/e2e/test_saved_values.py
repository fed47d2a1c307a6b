"""`PrecisionDebugger.save` on real tensors: true gradients, nothing changed by it, nothing left of it."""

import copy
import io
import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._reduce import TorchReducer
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

import msprobe_core
from msprobe_core.errors import SessionError
from msprobe_core.store.tensors import read_tensor

pytestmark = pytest.mark.usefixtures("close_debugger")

REPOSITORY = Path(msprobe_core.__file__).parents[1]


@pytest.fixture
def debugger(tmp_path):
    return PrecisionDebugger(dump_path=tmp_path, task="tensor", level="debug")


def saved(run, step=0):
    (directory,) = (run / f"step{step}").iterdir()
    return json.loads((directory / "debug.json").read_text())["data"]


def tensor_of(run, value, step=0):
    (directory,) = (run / f"step{step}").iterdir()
    return read_tensor(directory / "dump_tensor_data" / value["data_name"])


def test_values_and_gradients_are_those_of_autograd(tmp_path, debugger):
    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(4, 3)
    hidden = x @ w
    halves = hidden.chunk(2)  # one node with two outputs
    PrecisionDebugger.save({"hidden": hidden, "halves": halves, "n": 3, "ok": True}, "state")
    PrecisionDebugger.save(w, "w")
    PrecisionDebugger.save(x, "x")
    loss = (halves[0].square().sum() + (halves[1] * 2).sum()) * hidden.sum()
    PrecisionDebugger.save(loss, "loss")
    expected = torch.autograd.grad(loss, [hidden, *halves, w], retain_graph=True)
    debugger.step()  # what came so far was of this step
    PrecisionDebugger.save({"hidden": hidden, "halves": halves}, "state")
    PrecisionDebugger.save(w, "w")
    loss.backward()
    debugger.step()
    first = saved(tmp_path)
    assert list(first)[:4] == ["state.0.debug", "w.0.debug", "x.0.debug", "x_grad.0.debug"]
    assert first["state.0.debug"]["n"] == {"type": "int", "value": 3}
    assert np.array_equal(tensor_of(tmp_path, first["state.0.debug"]["hidden"]), hidden.detach().numpy())
    assert (first["x_grad.0.debug"], first["state_grad.0.debug"]["n"]) == (None, None)
    gradients = saved(tmp_path, 1)["state_grad.0.debug"]
    found = [gradients["hidden"], *gradients["halves"], saved(tmp_path, 1)["w_grad.0.debug"]]
    for value, gradient in zip(found, expected, strict=True):
        assert np.array_equal(tensor_of(tmp_path, value, 1), gradient.numpy())
    assert (next((tmp_path / "step1").iterdir()) / "dump_tensor_data" / "w_grad.0.debug.pt").is_file()


def test_the_gradient_is_that_of_the_value_before_later_writes(tmp_path, debugger):
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    debugger.save(y, "y")
    y.mul_(5)
    y.sum().backward()
    debugger.step()
    data = saved(tmp_path)
    assert (data["y.0.debug"]["Max"], data["y_grad.0.debug"]["Max"]) == (3.0, 5.0)


def train(save, *, autocast=False):
    """Train with everything that tempts a hook to change something: views, writes in place, tied weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        for _ in range(2):
            x = torch.randn(5, 6)
            save(x, "x")
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                hidden = model[1](model[0](x))
                view = hidden[:, :3]
                save({"hidden": hidden, "view": [view]}, "first")
                hidden += 1
                save({"hidden": hidden, "view": [view], "weight": model[0].weight}, "second")
                out = F.relu(model[2](hidden), inplace=True) + view.sum(-1, keepdim=True)
                loss = out.square().mean() + view.exp().mean()
            save(loss, "loss")
            loss.backward()
            losses.append(loss.detach())
        save([parameter.grad for parameter in model.parameters()], "grads")
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, *(p.detach() for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("autocast", [False, True])
def test_training_is_bitwise_unchanged(tmp_path, debugger, autocast, caplog):
    plain = train(lambda *_: None, autocast=autocast)
    probed = train(debugger.save, autocast=autocast)
    debugger.close()
    assert all(torch.equal(a, b) for a, b in zip(plain, probed, strict=True))
    data = saved(tmp_path)
    assert data["first_grad.0.debug"]["hidden"]["shape"] == [5, 6]
    assert data["first_grad.0.debug"]["view"] == [None]  # the view that was written to has a gradient, not this value
    # Asking for the node of this view would make it, and change the order in which gradients are added up.
    assert "second_grad.0.debug.view.0: not recorded" in caplog.text
    assert data["second_grad.0.debug"]["hidden"]["shape"] == [5, 6]
    assert data["second_grad.0.debug"]["view"][0]["error"].startswith("ValueError: a view of memory that was")
    for name in ("second_grad.0.debug", "second_grad.1.debug"):
        assert tensor_of(tmp_path, data[name]["weight"]).shape == (6, 6)
    assert "came a second time" not in caplog.text


def test_nothing_is_left_on_tensors_that_live_on(tmp_path, debugger):
    weight = nn.Parameter(torch.ones(3))
    for _ in range(3):
        debugger.save(weight, "weight")
        (weight * 2).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.save(weight, io.BytesIO())
            copy.deepcopy(weight)
        debugger.step()
        assert not weight._backward_hooks
    assert saved(tmp_path, 2)["weight_grad.0.debug"]["Max"] == 2.0


def test_modes_of_the_user_do_not_see_it(tmp_path, debugger):
    class Counting(torch.overrides.TorchFunctionMode):
        num_calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.num_calls += 1
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    with torch.no_grad(), Counting():
        debugger.save([x, 3], "x")
    assert Counting.num_calls == 0
    with torch.inference_mode():
        debugger.save(torch.ones(2), "inferred")
    debugger.save(torch.ones(2).to_sparse(), "sparse")
    debugger.close()
    assert saved(tmp_path)["inferred.0.debug"]["Max"] == 1.0
    assert saved(tmp_path)["sparse.0.debug"]["Max"] == 1.0


def test_at_other_levels_save_says_once_that_it_does_nothing(tmp_path, caplog):
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    for _ in range(2):
        debugger.save(torch.ones(2), "x")
    assert caplog.messages == ["save('x'): the level is L1; values are saved at level debug only"]
    assert not list(tmp_path.iterdir())


def test_a_name_is_text(debugger):
    with pytest.raises(SessionError, match="save\\(\\) got int as the name of a value; give text"):
        debugger.save(torch.ones(2), 3)


def test_the_core_saves_where_one_framework_is_installed(tmp_path):
    msprobe_core.PrecisionDebugger(dump_path=tmp_path, level="debug").save(torch.ones(2), "x", False)
    msprobe_core.PrecisionDebugger.step()
    assert list(saved(tmp_path)) == ["x.0.debug"]


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_what_was_saved_outlives_a_killed_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        f"sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / 'plugins' / 'pytorch')!r}]\n"
        "import torch\nfrom msprobe.pytorch import PrecisionDebugger\n"
        "debugger = PrecisionDebugger(dump_path='run', level='debug')\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "debugger.save(x * 2, 'x')\n"
        "debugger.save(x, 'leaf')\n"
        "x.sum().backward()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, cwd=tmp_path, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        file = next((tmp_path / "run" / "step0").iterdir()) / "debug.json"
        while "leaf_grad" not in file.read_text():
            assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert list(saved(tmp_path / "run")) == ["x.0.debug", "leaf.0.debug", "leaf_grad.0.debug"]


def test_a_tensor_is_read_each_time_it_is_saved(tmp_path, debugger):
    y = torch.ones(2, requires_grad=True) * 2
    debugger.save(y, "y", save_backward=False)
    y.data.add_(5)  # without a new version
    debugger.save(y, "y", save_backward=False)
    debugger.close()
    assert [value["Max"] for value in saved(tmp_path).values()] == [2.0, 7.0]


def test_on_a_device_values_are_written_by_stop_and_step(tmp_path, monkeypatch):
    monkeypatch.setattr("msprobe.pytorch._framework.TorchReducer", lambda: TorchReducer(defer_host=True))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    x = torch.ones(2, requires_grad=True)
    debugger.save(x, "x")
    with torch.no_grad():
        x += 3.0
    assert saved(tmp_path) == {}  # nothing waits for a device inside a step
    debugger.stop()
    assert saved(tmp_path)["x.0.debug"]["Max"] == 1.0  # what it was then
    (x * 2).sum().backward()
    debugger.step()
    assert saved(tmp_path)["x_grad.0.debug"]["Max"] == 2.0
