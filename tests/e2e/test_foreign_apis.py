"""Functions that PyTorch does not dispatch, recorded like those that it does; Ascend's and Triton's are stand-ins."""

import ctypes
import json
import pickle
import sys
import threading
import types

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from msprobe_core.errors import ConfigError, SessionError

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.fixture
def probe(tmp_path):
    def probe(level="L1", risk_level="ALL", task="statistics", custom=None, **options):
        fields = {"risk_level": risk_level, "task": task, task: options, **(custom or {})}
        (tmp_path / "c.json").write_text(json.dumps(fields))
        return PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run", level=level)

    return probe


@pytest.fixture
def dump(tmp_path):
    return lambda: Recorded(tmp_path / "run").data


def module(monkeypatch, name, **members):
    made = types.ModuleType(name)
    for member, value in members.items():
        if isinstance(value, types.FunctionType):
            value.__module__, value.__name__, value.__qualname__ = name, member, member
        setattr(made, member, value)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def write_unseen(x, value):
    """Write as a kernel does: neither the version nor any call that PyTorch dispatches shows it."""
    with torch._C.DisableTorchFunction():
        (ctypes.c_float * x.numel()).from_address(x.data_ptr())[:] = [value] * x.numel()


class Scale(torch.autograd.Function):
    """What a kernel of a device looks like: no function that PyTorch dispatches, a gradient of its own."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


@pytest.fixture
def torch_npu(monkeypatch):
    def npu_scale(x, by=2.0):
        return Scale.apply(x, by)

    def npu_scale_(x):
        write_unseen(x, 7.0)

    def npu_recursive(x, times):
        return x if times == 0 else sys.modules["torch_npu"].npu_recursive(Scale.apply(x, 2.0), times - 1)

    def npu_fails(x):
        raise RuntimeError("planted")

    return module(
        monkeypatch, "torch_npu", npu_scale=npu_scale, npu_scale_=npu_scale_, npu_recursive=npu_recursive,
        npu_fails=npu_fails, fast_gelu=lambda x: F.gelu(x), helper=lambda x: x, npu_alloc_float_status=lambda x: x,
        npu=types.ModuleType("torch_npu.npu"), npu_Config=type("npu_Config", (), {}),
    )  # fmt: skip


def test_functions_of_torch_npu(probe, dump, torch_npu):
    before = dict(vars(torch_npu))
    x = torch.arange(1.0, 5.0, requires_grad=True)
    with probe().start():
        torch_npu.npu_scale(x, by=3.0).sum().backward()
        torch_npu.fast_gelu(x)
        torch_npu.helper(x)
        torch_npu.npu_alloc_float_status(x)
        torch_npu.npu_recursive(x, 3)
        with pytest.raises(RuntimeError, match="planted"):
            torch_npu.npu_fails(x)
        torch_npu.npu_scale(x)
    assert dict(vars(torch_npu)) == before
    names = [entry for entry in dump() if entry.startswith("NPU") or ".gelu" in entry or ".mul" in entry]
    assert names == [
        "NPU.npu_scale.0.forward", "NPU.npu_scale.0.backward", "NPU.fast_gelu.0.forward", "NPU.npu_recursive.0.forward",
        "NPU.npu_fails.0.forward", "NPU.npu_scale.1.forward",
    ]  # fmt: skip
    forward, backward = (dump()[f"NPU.npu_scale.0.{phase}"] for phase in ("forward", "backward"))
    assert forward["input_args"][0]["Max"] == 4.0
    assert forward["output"][0]["Max"] == 12.0
    assert backward["input"][0]["Max"] == 1.0
    assert backward["output"][0]["Max"] == 3.0


@pytest.mark.parametrize("risk_level", ["CORE", "FOCUS"])
def test_they_count_at_every_risk_level(probe, dump, torch_npu, risk_level):
    with probe(risk_level=risk_level).start():
        torch_npu.npu_scale(torch.ones(2))
    assert list(dump()) == ["NPU.npu_scale.0.forward"]


def test_what_returns_nothing_has_what_it_wrote(probe, dump, torch_npu):
    with probe().start():
        x = torch.zeros(3)
        y = x + 0
        torch_npu.npu_scale_(y)
        y + 0
    assert dump()["NPU.npu_scale_.0.forward"]["input_args"][0]["Max"] == 0.0
    assert dump()["NPU.npu_scale_.0.forward"]["output"][0]["Max"] == 7.0
    assert dump()["Tensor.__add__.1.forward"]["input_args"][0]["Max"] == 7.0


def test_operators_of_the_npu_have_its_prefix_also_where_they_are_not_stood_for(probe, dump, monkeypatch):
    library = torch.library.Library("npu", "DEF")
    try:
        library.define("npu_twice(Tensor x) -> Tensor")
        library.impl("npu_twice", lambda x: x * 2, "CompositeImplicitAutograd")
        held = torch.ops.npu.npu_twice
        npu = module(monkeypatch, "torch_npu", npu_twice=held)
        with probe(risk_level="CORE").start():
            assert npu.npu_twice.default(torch.ones(2)).sum() == 4  # an attribute of the original
            npu.npu_twice(torch.ones(2))
            [f(torch.ones(2)) for f in [held]]
        assert npu.npu_twice is held
        names = [f"NPU.npu_twice.{i}.forward" for i in range(3)]
        assert list(dump()) == names  # each once, though they are dispatched too
    finally:
        library._destroy()


def test_a_recorded_call_hides_what_is_called_inside(probe, dump, torch_npu, monkeypatch):
    class Handler(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.relu:
                return torch_npu.npu_scale(args[0].as_subclass(torch.Tensor))
            return super().__torch_function__(func, types, args, kwargs)

    with probe().start():
        torch.relu(torch.ones(2).as_subclass(Handler))
        torch_npu.npu_scale(torch.ones(2))
    names = [entry for entry in dump() if "relu" in entry or "NPU" in entry]
    assert names == ["Torch.relu.0.forward", "NPU.npu_scale.0.forward"]


def test_functions_of_mindspeed_also_where_they_are_imported_by_name(probe, dump, monkeypatch):
    def fusion(x):
        return Scale.apply(x, 2.0)

    def _private(x):
        return x

    module(monkeypatch, "mindspeed")
    module(monkeypatch, "mindspeed.ops")
    ops = module(monkeypatch, "mindspeed.ops.fusion", fusion=fusion, _private=_private, Scale=Scale)
    ops.imported = F.gelu  # defined elsewhere
    user = module(monkeypatch, "model_code")
    user.fusion = fusion
    with probe(risk_level="CORE").start():
        user.fusion(torch.ones(2))
        ops.fusion(torch.ones(2))
        ops._private(torch.ones(2))
    assert user.fusion is ops.fusion is fusion
    assert list(dump()) == ["MindSpeed.fusion.0.forward", "MindSpeed.fusion.1.forward"]


def triton(monkeypatch):
    """Return a module like Triton's runtime: ``kernel[grid](…)`` runs ``kernel.run(…, grid=…, warmup=False)``."""

    class Launcher:
        def __init__(self, fn):
            self.fn = fn

        def __getitem__(self, grid):
            return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    class JITFunction(Launcher):
        def run(self, *args, grid, warmup, **kwargs):
            if not warmup:
                self.fn(*args, **{key: value for key, value in kwargs.items() if key != "num_warps"})
            return "compiled"

    class Autotuner(Launcher):
        def run(self, *args, **kwargs):
            return self.fn.run(*args, num_warps=4, **kwargs)

    class Heuristics(Launcher):
        def run(self, *args, **kwargs):
            return self.fn.run(*args, block=8, **kwargs)

    return module(monkeypatch, "triton.runtime", JITFunction=JITFunction, Autotuner=Autotuner, Heuristics=Heuristics)


def test_launches_of_triton_kernels(probe, dump, monkeypatch):
    runtime = triton(monkeypatch)
    before = {name: dict(vars(getattr(runtime, name))) for name in ("JITFunction", "Autotuner", "Heuristics")}

    def double_kernel(out, x, n, block=1):
        write_unseen(out, 2.0 * x[0].item())

    plain = runtime.JITFunction(double_kernel)
    tuned = runtime.Autotuner(runtime.Heuristics(plain))
    with probe(risk_level="FOCUS").start():
        x, out = torch.ones(4), torch.zeros(4)
        assert plain[(1,)](out, x, 4, block=16) == "compiled"
        plain.run(out, x, 4, grid=(1,), warmup=True)
        tuned[(1,)](out, x * 3, 4)
        out + 0
    assert {name: dict(vars(getattr(runtime, name))) for name in before} == before
    first, second = (dump()[f"Triton.double_kernel.{i}.forward"] for i in range(2))
    assert [entry for entry in dump() if entry.startswith("Triton")] == [
        "Triton.double_kernel.0.forward", "Triton.double_kernel.1.forward",
    ]  # fmt: skip
    assert [each["Max"] for each in first["input_args"][:2]] == [0.0, 1.0]
    assert first["input_args"][2]["value"] == 4
    assert first["input_kwargs"] == {"block": {"type": "int", "value": 16}}
    assert [each["Max"] for each in first["output"]] == [2.0, 1.0]
    assert [each["Max"] for each in second["input_args"][:2]] == [2.0, 3.0]
    assert [each["Max"] for each in second["output"]] == [6.0, 3.0]
    assert dump()["Tensor.__add__.0.forward"]["input_args"][0]["Max"] == 6.0


def test_our_own_kernels_are_not_recorded(probe, dump, monkeypatch):
    runtime = triton(monkeypatch)

    def moments(out, x):
        write_unseen(out, 1.0)

    moments.__module__ = "msprobe.pytorch._fused"
    with probe(risk_level="FOCUS").start():
        x = torch.ones(4)
        runtime.JITFunction(moments)[(1,)](torch.zeros(1), x)
        x + 0
    assert list(dump()) == ["Tensor.__add__.0.forward"]


@pytest.mark.parametrize("namespaces", [None, ["own_ops"]])
def test_operators_of_libraries(probe, dump, namespaces):
    library = torch.library.Library("own_ops", "DEF")
    try:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        custom = {} if namespaces is None else {"custom_op_namespaces": namespaces}
        with probe(risk_level="CORE", custom=custom).start():
            torch.ops.own_ops.twice(torch.ones(2))
            torch.ops.own_ops.twice.default(torch.ones(2))
        names = list(dump())
    finally:
        library._destroy()
    assert names == ([] if namespaces is None else ["own_ops.twice.0.forward", "own_ops.twice.1.forward"])


@pytest.fixture
def kernels():
    """Operators as serving engines have them, which write to a tensor that they are given."""
    library = torch.library.Library("serving", "DEF")
    library.define("scaled(Tensor x, Tensor(a!) out, float scale, *, Tensor(b!)? most=None) -> ()")

    def scaled(x, out, scale, *, most=None):
        write_unseen(out, x.max().item() * scale)
        if most is not None:
            write_unseen(most, x.max().item())

    library.impl("scaled", scaled, "CPU")
    library.define("hidden(Tensor[] xs) -> Tensor")  # writes all the same

    def hidden(xs):
        for x in xs:
            write_unseen(x, 9.0)
        return xs[0].clone()

    library.impl("hidden", hidden, "CPU")
    yield torch.ops.serving
    library._destroy()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("risk_level", ["ALL", "CORE"])
def test_what_operators_of_libraries_write_to_is_read_anew(probe, dump, kernels, level, risk_level):
    x, out, most, seen, unset = torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(4), torch.empty(4)
    with probe(level, risk_level).start(nn.Linear(1, 1)):
        torch.matmul(out, most)
        torch.matmul(seen, seen)
        kernels.scaled(x, out, 3.0, most=most)
        kernels.scaled.default(x, unset, 5.0)
        kernels.hidden([seen])
        torch.matmul(out, most)
        torch.matmul(seen, unset)
        assert [tensor._version for tensor in (out, most, seen, unset)] == [0] * 4
    data = dump()
    found = [[value["Max"] for value in data[f"Torch.matmul.{i}.forward"]["input_args"]] for i in range(4)]
    assert found == [[0.0, 0.0], [1.0, 1.0], [3.0, 1.0], [9.0, 5.0]]


def test_operators_of_libraries_that_return_nothing_have_what_they_wrote_to(probe, dump, kernels):
    x, out, most = torch.ones(4), torch.empty(4), torch.zeros(4)
    with probe().start():
        kernels.scaled(x, out, 3.0, most=most)
        kernels.scaled(x, out=out, scale=4.0)
    data = dump()
    outputs = [[value["Max"] for value in data[f"serving.scaled.{i}.forward"]["output"]] for i in range(2)]
    assert outputs == [[3.0, 1.0], [4.0]]


def test_what_runs_in_recurrent_layers_is_dispatched_already(probe, dump):
    x = torch.ones(3, 2, 4)
    layers = [kind(4, 4) for kind in (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)]
    with probe(risk_level="FOCUS").start():
        for layer in layers:
            layer(x if isinstance(layer, nn.RNNBase) else x[0])
    names = {entry.split(".")[1] for entry in dump()}
    assert {"lstm", "gru", "rnn_tanh", "lstm_cell", "gru_cell", "rnn_tanh_cell"} <= names


# --- APIs that the user registers ---------------------------------------------------------------------------------


def test_a_registered_function_has_inputs_outputs_and_gradients(probe, dump, monkeypatch):
    def attend(x, *, scale):
        return [F.softmax(x * scale, -1), {"mean": x.mean()}]

    kernels = module(monkeypatch, "own_kernels", attend=attend)
    debugger = probe("mix")
    debugger.register_custom_api(kernels, "attend")
    PrecisionDebugger.register_custom_api(Scale, "apply", "Kernel")
    apply = vars(Scale).get("apply")
    layer = nn.Sequential(nn.Linear(3, 3))
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    with debugger.start(layer):
        results = kernels.attend(layer(x), scale=0.5)
        (results[0].square().sum() + Scale.apply(results[1]["mean"], 3.0)).backward()
    assert kernels.attend is attend
    assert vars(Scale).get("apply") is apply
    record = dump()["own_kernels.attend.0.forward"]
    assert record["input_kwargs"]["scale"]["value"] == 0.5
    assert record["output"][1]["mean"]["type"] == "torch.Tensor"
    assert not [entry for entry in dump() if "softmax" in entry]
    assert dump()["own_kernels.attend.0.backward"]["output"][0]["Max"] is not None
    assert dump()["Kernel.apply.0.backward"]["output"][1]["Max"] == 3.0  # the class comes first
    assert dump()["Kernel.apply.0.backward"]["input"][0]["Max"] == 1.0


def test_registering_while_recording_and_restoring(probe, dump, monkeypatch):
    kernels = module(monkeypatch, "own_kernels", twice=lambda x: x * 2)
    twice = kernels.twice
    debugger = probe()
    with debugger.start():
        debugger.register_custom_api(kernels, "twice", api_prefix="Own")
        kernels.twice(torch.ones(2))
        pickle.dumps(kernels.twice)
        debugger.restore_custom_api(kernels, "twice")
        assert kernels.twice is twice
        kernels.twice(torch.ones(2))
    assert [name for name in dump() if "twice" in name or "mul" in name] == [
        "Own.twice.0.forward", "Tensor.__mul__.0.forward",
    ]  # fmt: skip


def test_misuse_is_a_clear_error(probe, monkeypatch):
    kernels = module(monkeypatch, "own_kernels", twice=lambda x: x * 2)
    with pytest.raises(SessionError, match="construct one before"):
        PrecisionDebugger.register_custom_api(kernels, "twice")
    debugger = probe()
    with pytest.raises(ConfigError, match=r"own_kernels\.missing does not exist"):
        debugger.register_custom_api(kernels, "missing")
    with pytest.raises(ConfigError, match="'api_prefix' is 3"):
        debugger.register_custom_api(kernels, "twice", 3)
    with pytest.raises(SessionError, match=r"own_kernels\.twice is not registered"):
        debugger.restore_custom_api(kernels, "twice")


def test_other_threads_are_recorded_too(probe, dump, torch_npu):
    with probe().start():
        thread = threading.Thread(target=lambda: torch_npu.npu_scale(torch.ones(2)))
        thread.start()
        thread.join()
    assert list(dump()) == ["NPU.npu_scale.0.forward"]


def test_recording_them_changes_nothing(probe, torch_npu):
    def run():
        torch.manual_seed(0)
        layer = nn.Linear(8, 8)
        loss = torch_npu.npu_scale(torch_npu.npu_recursive(layer(torch.randn(4, 8)), 2)).square().mean()
        loss.backward()
        return [loss.item(), layer.weight.grad.clone(), torch.get_rng_state()]

    expected = run()
    with probe("mix", task="tensor").start(nn.Sequential()):
        found = run()
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[2], expected[2])


def test_a_failure_of_ours_does_not_reach_the_program(probe, torch_npu, monkeypatch, caplog):
    from msprobe_core.capture.recorder import Recorder

    def break_(self, *args):
        raise KeyError("planted")

    monkeypatch.setattr(Recorder, "record_inputs", break_)
    with probe().start():
        assert torch_npu.npu_scale(torch.ones(2)).sum() == 4
    assert "planted" in caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_calls_the_originals(probe, dump, torch_npu):
    torch._dynamo.reset()

    def run(x):
        return torch_npu.npu_scale(x) + 1

    compiled = torch.compile(run, backend="eager")
    debugger = probe()
    debugger.register_custom_api(torch_npu, "helper")
    with debugger.start():
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
