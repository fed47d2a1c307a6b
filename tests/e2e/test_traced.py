"""Models are scripted, traced, exported and quantized in a window as they are without the probe."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch_traces import traces_in

quantization = pytest.importorskip("torch.ao.quantization")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x):
        y = self.norm(F.relu(self.first(x))) + x
        y = y * torch.sigmoid(y[:, :1])
        return self.block(y).clamp(min=0.1)


def plain(graph):
    """Return the text of a graph without addresses, places in files and numbers of classes."""
    return re.sub(r"0x[0-9a-f]+|/[^ ]*?\.py:\d+(:\d+)?|#.*|___torch_mangle_\d+\.", "", str(graph))


def script(model, x):
    scripted = torch.jit.script(model)
    return plain(scripted.graph), plain(scripted.code), scripted(x).tolist()


def trace_part(part):
    return torch.jit.trace(part, torch.zeros(3, 4))


def function(x: torch.Tensor) -> torch.Tensor:
    return F.relu(torch.sin(x) + 1)


def script_function(model, x):
    scripted = torch.jit.script(function)
    return plain(scripted.graph), scripted(model(x)).tolist()


def freeze(model, x):
    return plain(torch.jit.freeze(torch.jit.script(model.eval())).graph)


def trace(model, x):
    traced = torch.jit.trace(model, x)
    return plain(traced.graph), plain(traced.code), traced(x).tolist()


def trace_function(model, x):
    model.requires_grad_(False)
    traced = torch.jit.trace(lambda x: torch.sin(model(x) + 1).relu(), x)
    return plain(traced.graph), plain(traced.code), traced(x).tolist()


def symbolic_trace(model, x):
    traced = torch.fx.symbolic_trace(model)
    return traced.code, traced(x).tolist()


def make_graph(model, x):
    return make_fx(lambda x: model(x).sum(), pre_dispatch=True)(x).code


def export(model, x):
    exported = torch.export.export(model, (x,))
    return plain(exported.graph), str(exported.graph_signature), exported.module()(x).tolist()


def script_a_part(model, x):
    model.block = torch.jit.script(model.block)
    return model(x).tolist()


def quantize_dynamically(model, x):
    quantized = quantization.quantize_dynamic(model, {nn.Linear})
    return str(quantized), quantized(x).tolist()


def quantize(model, x):
    layers = quantization.QuantStub(), model.first, nn.ReLU(), quantization.DeQuantStub()
    fused = quantization.fuse_modules(nn.Sequential(*layers).eval(), [["1", "2"]])
    fused.qconfig = quantization.default_qconfig
    prepared = quantization.prepare(fused)
    prepared(x)
    converted = quantization.convert(prepared)
    return str(converted), converted(x).tolist(), [len(module._forward_hooks) for module in converted.modules()]


PROGRAMS = [
    script, script_function, freeze, trace, trace_function, symbolic_trace, make_graph, export, script_a_part,
    quantize_dynamically, quantize,
]  # fmt: skip


def built():
    torch.manual_seed(0)
    return Network(), torch.randn(3, 4)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.filterwarnings("ignore")
def test_models_are_read_as_without_the_probe(program, level, tmp_path, close_debugger):
    (bare, x), (model, _) = built(), built()
    expected = program(*built())
    assert program(bare, x) == expected
    with PrecisionDebugger(dump_path=tmp_path / "run", level=level).start(model):
        found = program(model, x)
    assert found == expected
    if program is not script_a_part:
        assert traces_in(model) == traces_in(bare)


@pytest.mark.parametrize("program", [script, trace, trace_function, make_graph, export])
@pytest.mark.filterwarnings("ignore")
def test_what_is_read_is_not_recorded_and_what_follows_is(program, tmp_path, close_debugger):
    model, x = built()
    with PrecisionDebugger(dump_path=tmp_path / "run", level="mix").start(model):
        program(model, x)
        y = x.cosh()
        model(y)
    recorded = Recorded(tmp_path / "run")
    for entry in ("Module.first.Linear.forward.0", "Functional.layer_norm.0.forward"):
        assert "error" not in recorded.data[entry]["input_args"][0]
    inputs = recorded.data["Module.first.Linear.forward.0"]["input_args"]
    assert inputs[0]["Max"] == pytest.approx(y.max().item())
    assert "Module.first.Linear.forward.1" not in recorded.data


@pytest.mark.filterwarnings("ignore")
def test_a_copy_of_a_probed_model_can_be_scripted(tmp_path, close_debugger):
    model, x = built()
    expected = model(x)
    with PrecisionDebugger(dump_path=tmp_path / "run", level="mix").start(model):
        copied = copy.deepcopy(model)
    assert torch.equal(torch.jit.script(copied)(x), expected)


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("is_in_window", [True, False])
@pytest.mark.parametrize("convert", [torch.jit.script, trace_part])
@pytest.mark.filterwarnings("ignore")
def test_a_scripted_part_trains_and_its_gradients_are_recorded(convert, is_in_window, level, tmp_path, close_debugger):
    (bare, x), (model, _) = built(), built()
    for each in (bare, model):
        each.first, each.block = convert(each.first), convert(each.block)
    for _ in range(2):  # the second gradient is added to the first
        bare(x).sum().backward()
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level)
    debugger.start(model)
    losses = [model(x).sum() for _ in range(2)]
    if not is_in_window:
        debugger.stop()
    for loss in losses:
        loss.backward()
    debugger.stop()
    for expected, found in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)
    debugger.step()
    recorded = Recorded(tmp_path / "run").data
    sums = [recorded[f"Module.first.Linear.parameters_grad.{i}"]["weight"][0]["Norm"] for i in range(2)]
    norm = model.first.weight.grad.norm().item()
    assert sums == pytest.approx([norm / 2, norm])
