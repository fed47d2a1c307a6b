"""`torch.compile` and `torch.jit`: the probe steps aside, says so, and records what there is outside."""

import copy
import io
import json
import logging
import subprocess
import sys
from functools import cache

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn
from torch_traces import traces_in

pytestmark = [
    pytest.mark.usefixtures("close_debugger"),
    # Of PyTorch's own compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.*treespec.*"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]

OF_MODEL = ["Module.Network", "Module.first.Linear", "Module.second.Layer"]


class Layer(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 1.5


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = Layer(4, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.second(self.drop(nn.functional.gelu(self.first(x)))).sin()


class Compiler:
    """A backend that counts what it compiles."""

    def __init__(self):
        self.num_graphs = 0

    def __call__(self, graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        self.num_graphs += 1
        return aot_eager(graph, inputs)


def whole(model, backend):
    return torch.compile(model, backend=backend, fullgraph=True)


def inner(model, backend):
    model.first = torch.compile(model.first, backend=backend)
    return model


def in_place(model, backend):
    model.compile(backend=backend, fullgraph=True)
    return model


def inner_in_place(model, backend):
    model.second.compile(backend=backend)
    return model


def function(model, backend):
    return torch.compile(lambda x: model(x) * 2, backend=backend)


KINDS = [whole, inner, in_place, inner_in_place, function]


def train(kind, debugger, *, is_warm, given):
    """Train for three steps; return everything that was computed, how much was compiled, and the model."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, compiler = Network(), Compiler()
    run = kind(model, compiler)
    if is_warm:
        run(torch.zeros(2, 4)).sum().backward()
        model.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    seen = []
    for _ in range(3):
        if debugger is not None:
            debugger.start(run if given and isinstance(run, nn.Module) else model)
        loss = run(torch.randn(2, 4)).square().sum()
        loss.backward()
        if debugger is not None:
            debugger.stop()
        seen += [loss.item(), *(p.grad.tolist() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, torch.get_rng_state().tolist()], compiler.num_graphs, model


@cache
def trained_bare(kind, is_warm):
    """Train without the probe, once for all levels."""
    return train(kind, None, is_warm=is_warm, given=True)[:2]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_and_nothing_is_compiled_anew(tmp_path, kind, is_warm, level, caplog):
    bare, num_graphs = trained_bare(kind, is_warm)
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    with caplog.at_level(logging.WARNING):
        probed, num_probed, model = train(kind, debugger, is_warm=is_warm, given=True)
    debugger.close()
    assert num_graphs > 0
    assert (probed, num_probed) == (bare, num_graphs)
    before = traces_in(model)
    debugger = PrecisionDebugger(dump_path=tmp_path / "again", level=level)
    debugger.start(model)
    during = traces_in(model)
    debugger.close()
    assert during != before == traces_in(model)
    assert not [entry for entry in Recorded(tmp_path / "run").data if entry.startswith("Aten.")]


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (whole, OF_MODEL[:1]),
        (in_place, OF_MODEL[:1]),
        (inner, OF_MODEL),
        (inner_in_place, OF_MODEL),
        (function, []),
    ],
)
def test_what_is_outside_is_recorded_under_the_names_it_has_uncompiled(tmp_path, kind, seen):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    train(kind, debugger, is_warm=False, given=True)
    debugger.close()
    data = Recorded(tmp_path / "run").data
    assert [name for name in OF_MODEL if f"{name}.forward.2" in data] == seen
    assert [name for name in OF_MODEL if f"{name}.backward.2" in data] == seen
    # Parameters take their gradients outside, whatever is compiled.
    assert {f"{name}.parameters_grad.2" for name in OF_MODEL[1:]} <= data.keys()


def test_functions_around_a_compiled_region_are_recorded(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L1")
    train(inner, debugger, is_warm=True, given=True)
    debugger.close()
    names = {entry.rpartition(".")[0].rpartition(".")[0] for entry in Recorded(tmp_path / "run").data}
    assert names == {
        "Functional.linear",
        "Functional.gelu",
        "Functional.dropout",
        "Torch.randn",
        "Tensor.__mul__",
        "Tensor.sin",
        "Tensor.square",
        "Tensor.sum",
    }
    assert len(Recorded(tmp_path / "run").starting("Functional.linear.")) == 6  # the second layer's only


def test_an_exception_in_compiled_code_leaves_everything_in_place(tmp_path):
    class Failing(Network):
        def forward(self, x):
            if x.shape[0] == 3:
                raise ArithmeticError("planted")
            return super().forward(x)

    torch._dynamo.reset()
    model = Failing()
    run = torch.compile(model, backend=Compiler())
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="mix")
    with debugger.start(model):
        with pytest.raises(ArithmeticError, match="planted"):
            run(torch.zeros(3, 4))
        model(torch.zeros(2, 4))
    debugger.close()
    data = Recorded(tmp_path / "run").data
    assert {"Module.Network.forward.0".replace("Network", "Failing"), "Functional.gelu.0.forward"} <= data.keys()


PROGRAM = """
import json, sys
import torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger
assert "torch._dynamo" not in sys.modules
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
debugger = PrecisionDebugger(dump_path=sys.argv[1], level=sys.argv[2])
for step in range(2):
    with debugger.start(model):
        run = torch.compile(model, backend="eager", fullgraph=True)
        run(torch.ones(2, 4)).sum().backward()
assert type(torch.compile).__name__ == "function"
"""


@pytest.mark.parametrize("level", [pytest.param("L1", marks=pytest.mark.slow), "mix"])
def test_a_program_that_compiles_for_the_first_time_in_a_window(tmp_path, level):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "run", level],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("compiled with torch.compile") == 1
    assert "Tensor.sum.0.forward" in Recorded(tmp_path / "run").data


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(2, 4))])
def test_scripted_and_traced_modules_are_recorded_from_outside(tmp_path, make, caplog):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

        def forward(self, x):
            return self.inner(x) + 1

    torch.manual_seed(0)
    model = Holder()
    expected = model(torch.ones(2, 4))
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="mix")
    with caplog.at_level(logging.WARNING), debugger.start(model):
        assert torch.equal(model(torch.ones(2, 4)), expected)
    with debugger.start(model):
        scripted = torch.jit.script(nn.Linear(2, 2))  # under the probe
        scripted(torch.ones(1, 2))
    debugger.close()
    data = Recorded(tmp_path / "run").data
    assert data["Module.inner.Sequential.forward.0"]["output"][0]["Max"] == pytest.approx(expected.max().item() - 1)
    assert len([one for one in caplog.messages if "scripted or traced" in one]) <= 1
    torch.jit.save(model.inner, io.BytesIO())  # nothing of ours is in it


def test_a_copy_of_a_compiled_model_made_in_a_window_holds_nothing_of_ours(tmp_path):
    torch._dynamo.reset()
    model = Network()
    in_place(model, Compiler())
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    with debugger.start(model):
        model(torch.zeros(2, 4))
        copied = copy.deepcopy(model)
    debugger.close()
    copied(torch.zeros(2, 4))
    assert json.dumps(list(Recorded(tmp_path / "run").data)).count("forward") == 1
