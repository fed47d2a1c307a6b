"""Programs that are unusual: the probe changes nothing in them, raises nothing into them, and records what is there."""

import copy
import ctypes
import io
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import run_job, sum_in_place
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded, leaves
from torch import nn
from torch.overrides import TorchFunctionMode
from torch_has import needs_fused, needs_scaler
from torch_traces import HOOKS, traces_in

import msprobe_core

REPOSITORY = Path(msprobe_core.__file__).parents[1]


@pytest.fixture
def probe(tmp_path, close_debugger):
    """Return a debugger that records everything to ``tmp_path/run``."""

    def probe(level="L1", task="statistics", **options):
        (tmp_path / "c.json").write_text(json.dumps({"risk_level": "ALL", "task": task, task: options}))
        return PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run", level=level)

    return probe


@pytest.fixture
def dump(tmp_path):
    return lambda: Recorded(tmp_path / "run").data


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def modes():
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


# --- nothing is changed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_fused_transformer_layers_stay_fused(probe, dump, has_mask, level):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 8, 16), torch.zeros(2, 8, dtype=torch.bool)
    mask[1, 5:] = True
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=mask if has_mask else None)
        with probe(level).start(model):
            found = model(x, src_key_padding_mask=mask if has_mask else None)
    assert torch.equal(found, expected)
    if level == "L1":  # hooks on modules, which the layers look for too, keep them from fusing more than the attention
        assert "Torch._transformer_encoder_layer_fwd.0.forward" in dump()


class StaleView(nn.Module):
    """Hands on a view whose base has been written to since: asking for its node makes it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x0):
        x = x0 * 1.0
        v = x[:]
        x.mul_(1.1)
        self.inner((v,))
        a, b = x * 0.3, x.sin()
        return (a + b + v.exp()).sum()


class Use(nn.Module):
    def forward(self, inputs):
        return inputs[0] * 2


@pytest.mark.parametrize("inner", [nn.Identity, Use])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_stale_views_are_left_stale(probe, level, inner):
    model = StaleView(inner())
    torch.manual_seed(0)
    values = torch.randn(4096)

    def gradient():
        x0 = values.clone().requires_grad_()
        model(x0).backward()
        return x0.grad

    expected = gradient()
    with probe(level).start(model):
        found = gradient()
    assert torch.equal(found, expected)


class CopiesItself(nn.Linear):
    """Hands on all that it has, as classes do that define how they are copied and pickled."""

    def __getstate__(self):
        return self.__dict__

    def __deepcopy__(self, memo):
        copied = type(self).__new__(type(self))
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied


def test_a_probed_model_is_copied_pickled_and_saved_without_us(probe, tmp_path):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), CopiesItself(2, 2), nn.TransformerEncoderLayer(2, 2, 4, 0))

    bare, model = build().eval(), build().eval()
    debugger = probe("mix")
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.optim.swa_utils.AveragedModel(model).module,
    ]
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"msprobe" not in buffer.getvalue()
    buffer.seek(0)
    copies.append(torch.load(buffer, weights_only=False))
    x = torch.randn(3, 2)
    for other in copies:
        assert torch.equal(other(x), bare(x))
    debugger.stop()
    for other in copies:
        assert all(vars(module).get("_compiled_call_impl") is None for module in other.modules())
        assert all(not vars(module)[name] for module in other.modules() for name in HOOKS)
        assert torch.equal(other(x), bare(x))
        with torch.no_grad():  # the layer computes fused
            assert torch.equal(other(x), bare(x))
    assert traces_in(model) == traces_in(bare)
    names = [entry for entry in Recorded(tmp_path / "run").data if entry.startswith("Module.0.Linear.forward")]
    assert len(names) == 1  # those of the model itself only


# --- nothing is raised ------------------------------------------------------------------------------------------


class Lazily(dict):
    def __iter__(self):
        raise KeyError("not now")

    items = values = __iter__


def circular():
    found = {}
    found["me"] = found
    return found


@pytest.mark.parametrize("make", [circular, Lazily, lambda: [torch.ones(2), object()], lambda: torch.ones(2)])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_may_return_anything(probe, make, level):
    class Odd(nn.Module):
        def forward(self, x):
            return make()

    model = Odd()
    with probe(level).start(model):
        assert type(model(torch.ones(2, requires_grad=True))) is type(make())


class OddInt(int):
    pass


def jagged():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return nested.view(nested.shape)


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.sin(torch.ones(2))


ODD_CALLS = {
    **({"jagged": jagged} if hasattr(torch, "jagged") else {}),
    "traced": lambda: torch.jit.trace(lambda x: x.view(x.shape) + 1, (torch.ones(2),)),
    "vmap": lambda: torch.func.vmap(torch.sin)(torch.ones(3, 2)),
    "grad": lambda: torch.func.grad(lambda t: t.sin().sum())(torch.ones(2)),
    "fake": fake,
    "sparse": lambda: torch.ones(2, 2).to_sparse() * 2,
    "strided": lambda: torch.sin(torch.ones(4, 3)[:1, 0]),
}


@pytest.mark.parametrize("name", ODD_CALLS)
@pytest.mark.parametrize(
    ("task", "mode"), [("statistics", "statistics"), ("statistics", "md5"), ("tensor", "statistics")]
)
@pytest.mark.filterwarnings("ignore")
def test_odd_tensors_cost_neither_the_step_nor_the_other_records(probe, dump, name, task, mode):
    debugger = probe(task=task, summary_mode=mode)
    with debugger.start():
        ODD_CALLS[name]()
        torch.cos(torch.ones(2))
    debugger.step()
    cosine = dump()["Torch.cos.0.forward"]
    assert cosine["output"][0]["Max"] == pytest.approx(0.5403, abs=1e-4)
    assert ("data_name" in cosine["output"][0]) == (task == "tensor")


def test_odd_arguments_cost_neither_the_step_nor_the_other_records(probe, dump):
    class Module(nn.Module):
        def forward(self, *args, **kwargs):
            return args[0] + 1

    tensor = torch.ones(2)
    model = Module()
    with probe("L0").start(model):
        model(tensor, np.longdouble(1.5), slice(OddInt(1), None), {"\udcff": tensor, 1: tensor, "1": tensor * 2})
    inputs = dump()["Module.Module.forward.0"]["input_args"]
    assert inputs[1]["value"] == 1.5
    assert inputs[2]["value"] == [1, None, None]
    assert {key: value["Max"] for key, value in inputs[3].items()} == {"\\udcff": 1.0, "1": 1.0, "1'": 2.0}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")  # as PyTorch 2.1 says
def test_start_survives_odd_modules(probe, dump):
    class Renamed(nn.Linear):
        def named_parameters(self, prefix=""):
            return super().named_parameters(prefix)

    def build():
        model = nn.Sequential(Renamed(2, 2), nn.LazyLinear(3), nn.Linear(3, 1))
        with torch.no_grad():
            model[2].weight = nn.Parameter(model[2].weight)
        del model[2]._parameters["bias"]
        bias = torch.ones(1, requires_grad=True) * 2  # meta-learners put tensors that have a history in this place
        model[2]._parameters["bias"] = bias
        return model

    bare, model = build(), build()
    bare(torch.ones(1, 2)).sum().backward()
    with probe("L0").start(model):
        model(torch.ones(1, 2)).sum().backward()
    assert {"Module.0.Renamed.forward.0", "Module.1.LazyLinear.forward.0", "Module.2.Linear.forward.0"} <= dump().keys()
    assert traces_in(model) == traces_in(bare)


def test_a_failing_attachment_leaves_nothing_behind(probe, monkeypatch, caplog):
    from msprobe.pytorch._parameters import ParameterGradients

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = traces_in(model)
    hook, seen = ParameterGradients.hook, []

    def fail_at_the_third(self, module, stem):
        if len(seen) == 2:
            raise RuntimeError("planted")
        seen.append(stem)
        hook(self, module, stem)

    monkeypatch.setattr(ParameterGradients, "hook", fail_at_the_third)
    probe("mix").start(model)
    assert "training goes on" in caplog.text
    assert "planted" in caplog.text
    assert len(seen) == 2
    assert traces_in(model) == before


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_disk_that_fills_up_ends_recording_and_not_training(tmp_path):
    script = """
import resource, sys, torch
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1", task="tensor")
with debugger.start():
    torch.sin(torch.ones(8))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    total = sum(torch.sin(torch.ones(100_000)).sum().item() for _ in range(3))
debugger.step()
print(total)
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) == pytest.approx(3e5 * np.sin(1), rel=1e-4)
    assert "Traceback" not in run.stderr
    assert "recording ends at step 0" in run.stderr
    recorded = Recorded(tmp_path)
    whole = recorded.tensor(recorded.data["Torch.sin.0.forward"]["output"][0])
    np.testing.assert_allclose(whole, np.full(8, np.sin(1)), rtol=1e-6)
    assert "data_name" not in recorded.data["Torch.sin.1.forward"]["output"][0]


# --- modes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [Mode, lambda: torch.device("cpu")], ids=["mode", "device"])
def test_blocks_of_the_user_may_end_inside_ours(probe, dump, context):
    debugger = probe()
    with context():
        debugger.start()
        torch.ones(2) + 1
    torch.ones(2) * 2
    debugger.stop()
    assert modes() == []
    assert {"Tensor.__add__.0.forward", "Tensor.__mul__.0.forward"} <= dump().keys()


@pytest.mark.parametrize("context", [Mode, lambda: torch.device("cpu")], ids=["mode", "device"])
def test_our_blocks_may_end_inside_the_users(probe, dump, context):
    debugger = probe()
    debugger.start()
    with context():
        torch.ones(2) + 1
        debugger.stop()
        assert len(modes()) == 1
    assert modes() == []
    assert "Tensor.__add__.0.forward" in dump()


def test_stop_on_another_thread_ends_recording(probe, dump):
    debugger = probe()
    debugger.start()
    torch.ones(2) + 1
    thread = threading.Thread(target=debugger.stop)
    thread.start()
    thread.join()
    torch.ones(2) * 2
    debugger.start()
    torch.ones(2) - 1
    debugger.stop()
    assert modes() == []
    assert {entry.split(".")[1] for entry in dump()} == {"ones", "__add__", "__sub__"}


def test_stop_inside_backward_ends_recording(probe):
    debugger = probe()
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    y = x * 2
    y.register_hook(lambda gradient: debugger.stop())
    y.sum().backward()
    debugger.start()
    debugger.stop()
    assert modes() == []


# --- values are those of the moment -----------------------------------------------------------------------------


def maxima(data, entry, part="input_args"):
    return [leaf["Max"] for leaf in leaves(data[entry][part]).values() if "Max" in leaf]


@needs_fused
def test_fused_optimizers_write_unnoticed(probe, dump):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, fused=True)
    means = []
    with probe("mix").start(model):
        for _ in range(2):
            means.append(model.weight.mean().item())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = [dump()[f"Module.Linear.forward.{i}"]["parameters"]["weight"]["Mean"] for i in range(2)]
    assert found == pytest.approx(means, abs=1e-6)


class Unseen(torch.optim.Optimizer):
    """Writes as the kernels of other packages do: to addresses, which it has known from the beginning."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self._places = [(parameter.data_ptr(), parameter.numel()) for parameter in parameters]

    def step(self):
        for address, count in self._places:
            values = (ctypes.c_float * count).from_address(address)
            values[:] = [value + 1 for value in values]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_optimizers_of_other_packages_write_unnoticed(level, probe, dump):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = Unseen(model.parameters())
    maxima_then = []
    with probe(level).start(model):
        for _ in range(2):
            maxima_then.append([layer.weight.max().item() for layer in model])
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            maxima_then.append([layer.weight.max().item() for layer in model])
            model(torch.ones(1, 4))
            model(torch.ones(1, 4))  # nothing in between
            optimizer.step()
    data = dump()
    for layer in range(2):
        for i, seen in enumerate((0, 1, 1, 2, 3, 3)):
            wanted = pytest.approx(maxima_then[seen][layer])
            if level != "L1":
                assert data[f"Module.{layer}.Linear.forward.{i}"]["parameters"]["weight"]["Max"] == wanted
            if level != "L0":
                assert data[f"Functional.linear.{2 * i + layer}.forward"]["input_args"][1]["Max"] == wanted


def test_a_gradient_that_becomes_the_parameters_is_read_anew_when_it_is_written_to(probe, dump):
    model = nn.Linear(4, 7, bias=False)
    with probe("mix").start(model):
        model(torch.ones(1, 4)).sum().backward()
        model.weight.grad.mul_(3)
        model.weight.grad.add(1)
    data = dump()
    sent = data["Functional.linear.0.backward"]["output"][1]
    assert sent["Max"] == data["Module.Linear.parameters_grad.0"]["weight"][0]["Max"] == 1.0
    assert data["Tensor.mul_.0.forward"]["input_args"][0]["Max"] == 1.0
    assert data["Tensor.add.0.forward"]["input_args"][0]["Max"] == 3.0


@needs_fused
@needs_scaler
def test_writes_of_functions_that_are_not_recorded_are_followed(tmp_path, close_debugger, dump):
    """Level CORE leaves gradient scaling out, and records the fused optimizer that reads the gradients after it."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    (tmp_path / "c.json").write_text('{"risk_level": "CORE"}')
    with PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run", level="mix").start(model):
        scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        scaler.unscale_(optimizer)
        optimizer.step()
    assert dump()["Module.Linear.parameters_grad.0"]["weight"][0]["Max"] == 1024.0
    gradients = dump()["Torch._fused_adamw_.0.forward"]["input_args"][1]
    assert [leaf["Max"] for leaf in leaves(gradients).values()] == [1.0]


@needs_scaler
def test_gradient_scaling_writes_unnoticed(probe, dump):
    x = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with probe().start():
        scaler.scale((x * 2).sum()).backward()
        scaler.unscale_(optimizer)
        x.grad.add(0)
    assert maxima(dump(), "Tensor.add.0.forward")[0] == 2.0


def test_running_statistics_and_numpy_write_unnoticed(probe, dump):
    norm, array = nn.BatchNorm1d(3), np.zeros(2)
    x, shared = torch.randn(8, 3) + 5, torch.from_numpy(array)
    with probe().start():
        norm(x)
        norm(x)
        torch.sin(shared)
        array += 1
        torch.sin(shared)
    running = [dump()[f"Functional.batch_norm.{i}.forward"] for i in range(2)]
    means = [leaves({**entry["input_args"], **entry["input_kwargs"]} if isinstance(entry["input_args"], dict)
                    else entry["input_args"])["1"]["Mean"] for entry in running]  # fmt: skip
    assert means[0] == 0.0
    assert means[1] > 0.3
    assert [maxima(dump(), f"Torch.sin.{i}.forward")[0] for i in range(2)] == [0.0, 1.0]


def test_writes_through_data_show_in_views_too(probe, dump):
    x = torch.zeros(4, requires_grad=True) * 1
    w = x.view(-1)
    with probe().start():
        torch.sin(w)
        x.data.add_(1)
        torch.sin(w)
    assert [maxima(dump(), f"Torch.sin.{i}.forward")[0] for i in range(2)] == [0.0, 1.0]


@pytest.mark.slow
def test_collectives_write_unnoticed(tmp_path):
    run_job(sum_in_place, 2, tmp_path)
    for rank in range(2):
        data = json.loads((tmp_path / "run" / "step0" / f"rank{rank}" / "dump.json").read_text())["data"]
        assert maxima(data, "Torch.sin.0.forward") == [3.0]


@pytest.mark.parametrize(
    "values",
    [
        torch.full((1 << 22,), 0.1), torch.full((4,), 1e-30), torch.randn(1 << 20) + 1e4, torch.full((4,), 3e38),
        torch.full((4,), 1e-200, dtype=torch.float64), torch.full((4,), 1e200, dtype=torch.float64),
        torch.randn(3, 5000, 7).permute(2, 0, 1), torch.randn(1, 10).expand(1000, 10), torch.randn(4097).bfloat16(),
    ],
    ids=["equal", "small", "far from zero", "large", "tiny", "huge", "permuted", "expanded", "bfloat16"],
)  # fmt: skip
def test_norms_are_accurate_at_any_size_and_scale(values):
    from msprobe.pytorch._statistics import host_statistics

    size = values.double().abs().max()
    expected = ((values.double() / size).norm() * size).item()
    assert host_statistics(values).l2_norm == pytest.approx(expected, rel=1e-5)


# --- gradients --------------------------------------------------------------------------------------------------


def test_what_another_thread_made_is_outside_of_the_call(probe, dump):
    x, made = torch.ones(3, requires_grad=True), {}

    def work():
        y = torch.ones(1, requires_grad=True)
        for _ in range(3000):  # nodes are numbered per thread
            y = y * 1.0
        made["h"] = x * 2

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with probe().start():
        torch.add(made["h"], x).sum().backward()
    assert maxima(dump(), "Torch.add.0.backward", "output") == [1.0, 1.0]


def test_stop_before_backward_keeps_gradients_of_which_a_part_never_comes(probe, dump):
    class Two(nn.Module):
        def forward(self, x):
            return x * 2, x * 3

    model = Two()
    debugger = probe("L0")
    debugger.start(model)
    first, _ = model(torch.ones(3, requires_grad=True))
    debugger.stop()
    first.sum().backward()
    debugger.step()
    assert maxima(dump(), "Module.Two.backward.0", "output") == [2.0]


# --- processes --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_forked_child_may_make_its_own_debugger(tmp_path):
    script = """
import os, sys, torch
from msprobe.pytorch import PrecisionDebugger
from msprobe_core.errors import SessionError
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L1")
with debugger.start():
    torch.ones(2) + 1
pid = os.fork()
if pid == 0:
    try:
        PrecisionDebugger.start()
    except SessionError as error:
        print("child:", error, flush=True)
    own = PrecisionDebugger(dump_path=sys.argv[2], level="L1")
    with own.start():
        torch.ones(2) * 3
    own.close()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    command = [sys.executable, "-c", script, str(tmp_path / "parent"), str(tmp_path / "child")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode == 0, run.stderr
    assert "child: no PrecisionDebugger has been made yet" in run.stdout
    assert "Tensor.__add__.0.forward" in Recorded(tmp_path / "parent").data
    assert "Tensor.__mul__.0.forward" in Recorded(tmp_path / "child").data


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)", "os._exit(3)"]
)
@pytest.mark.usefixtures("has_torch_imported")
def test_a_process_that_dies_in_a_window_loses_a_second_of_it(tmp_path, end):
    script = f"""
import os, sys, time, torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
debugger.start(model)
begin, number = time.monotonic(), 0
while time.monotonic() - begin < 2.5 or number < 60:
    number += 1
    model(torch.ones(2, 4)).sum().backward()
    time.sleep(0.01)
{end}
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode != 0
    recorded = Recorded(tmp_path)  # the file is whole
    indices = [int(entry.split(".")[2]) for entry in recorded.starting("Functional.linear.")]
    assert max(indices) > 20
    assert {
        "Functional.linear.0.backward",
        "Module.0.Linear.forward.0",
        "Module.2.Linear.backward.0",
    } <= recorded.data.keys()
    sequences = [record["execution"]["sequence"] for record in recorded.data.values()]
    assert sequences == list(range(len(sequences)))
    assert recorded.json("construct.json")["Functional.linear.0.forward"] == "Module.0.Linear.forward.0"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_backward_after_stop_brings_the_gradients_of_parameters_too(probe, dump, level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    expected = copy.deepcopy(model)
    for _ in range(2):
        expected(torch.ones(2, 3)).sum().backward()
    debugger = probe(level)
    model(torch.ones(2, 3)).sum().backward()  # there is a gradient already, not recorded
    with debugger.start(model):
        loss = model(torch.ones(2, 3)).sum()
    unrecorded = model(torch.ones(2, 3)).sum()
    loss.backward()
    accumulated = {name: p.grad.clone() for name, p in model.named_parameters()}
    debugger.step()
    unrecorded.backward()
    debugger.close()
    data = dump()
    assert {name: p.grad.tolist() for name, p in expected.named_parameters()} == {
        n: g.tolist() for n, g in accumulated.items()
    }
    for path in ("0", "1"):
        record = data[f"Module.{path}.Linear.parameters_grad.0"]
        assert record["weight"][0]["Norm"] == pytest.approx(accumulated[f"{path}.weight"].norm().item())
        assert record["weight.contribution"][0]["Norm"] == pytest.approx(
            accumulated[f"{path}.weight"].norm().item() / 2
        )
        assert f"Module.{path}.Linear.backward.0" in data
    assert not [entry for entry in data if "parameters_grad.1" in entry]


def test_functions_of_a_model_that_runs_on_another_thread_are_recorded(probe, dump):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    debugger = probe("mix")
    left_over = []

    def work():
        model(torch.ones(2, 3))
        left_over.extend(modes())

    with debugger.start(model):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    debugger.close()
    assert {"Functional.linear.0.forward", "Functional.relu.0.forward", "Module.0.Linear.forward.0"} <= dump().keys()
    assert left_over == []


@pytest.mark.filterwarnings("ignore")
def test_a_job_that_begins_inside_of_a_window_is_recorded(probe, dump, tmp_path):
    published = torch.distributed.init_process_group, torch.distributed.all_reduce
    inside = [function.__closure__[0].cell_contents for function in published]
    debugger = probe("L1")
    with debugger.start():
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            x = torch.full((2,), 3.0)
            torch.distributed.all_reduce(x)
        finally:
            torch.distributed.destroy_process_group()
    assert [function.__closure__[0].cell_contents for function in published] == inside
    debugger.close()
    assert dump()["Distributed.all_reduce.0.forward"]["output"][0]["Max"] == 3.0
