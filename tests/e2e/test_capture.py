"""What is recorded of real models: names, nesting, statistics, arguments; and what odd calls do to it."""

import json
import threading
from enum import IntEnum

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded, leaves
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.utils._python_dispatch import TorchDispatchMode
from torch_has import needs_dtype, needs_indexing

from msprobe_core import compare_dumps, names
from msprobe_core.model import Phase, SiteKind

relu_bound_before_the_probe = F.relu
STATISTICS = ("Max", "Min", "Mean", "Norm")


@pytest.fixture
def record(tmp_path, close_debugger):
    """Run a function under the probe and return the dump."""

    def run(function, *, level="L1", model=None, risk_level="ALL", **settings):
        options = {key: settings.pop(key) for key in ("list", "scope", "data_mode", "summary_mode") if key in settings}
        task = settings.setdefault("task", "statistics")
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"risk_level": risk_level, task: options, **settings}))
        debugger = PrecisionDebugger(path, dump_path=tmp_path / "run", level=level)
        with debugger.start(model):
            function()
        debugger.close()
        return Recorded(tmp_path / "run")

    return run


def train_once(model, architecture):
    return lambda: model(**architecture.batch()).loss.backward()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_statistics_of_every_record_agree_with_numpy_in_float64(name, record):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    dump = record(train_once(model, architecture), level="mix", model=model, task="tensor")
    num_checked = 0
    for entry in dump.data.values():
        for value in leaves({key: part for key, part in entry.items() if key != "execution"}).values():
            if "data_name" not in value:
                continue
            high, low, mean, norm = (None if value[k] is None else float(value[k]) for k in STATISTICS)
            array = dump.tensor(value)
            assert list(array.shape) == value["shape"]
            if array.size:
                # Sums of float32 values are taken in float32, which bounds the mean by the size of the values.
                wide = array.astype(np.float64)
                assert (high, low) == (wide.max(), wide.min())
                assert norm == pytest.approx(np.sqrt((wide**2).sum()), rel=1e-5)
                assert mean == pytest.approx(wide.mean(), rel=1e-5, abs=1e-6 * norm / np.sqrt(array.size))
                num_checked += 1
    assert num_checked > 300


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_names_and_nesting_are_the_models(name, record):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    called, stack, parents = {}, [], {}

    def before(path, module):
        def hook(_module, _args):
            index = called.get(path, 0)
            called[path] = index + 1
            entry = f"{names.module_stem('Module', path, type(module).__name__)}.forward.{index}"
            parents[entry] = stack[-1] if stack else None
            stack.append(entry)

        return hook

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(path, module)))
        handles.append(module.register_forward_hook(lambda *_: stack.pop() and None))
    model(**architecture.batch())
    for handle in handles:
        handle.remove()

    dump = record(train_once(model, architecture), level="mix", model=model)
    construct = dump.json("construct.json")
    sites = {entry: names.parse_entry(entry) for entry in dump.data}
    forwards = {e for e, s in sites.items() if s.kind is SiteKind.MODULE and s.phase is Phase.FORWARD}
    assert forwards == set(parents)
    assert {entry: construct[entry] for entry in forwards} == parents
    assert list(dump.data)[-1] in dump.data
    apis = [entry for entry, site in sites.items() if site.kind is SiteKind.API]
    assert all(construct[entry] in {*dump.data, None} for entry in apis)
    linears = sum(type(module) is nn.Linear for module in model.modules())
    assert len(dump.starting("Functional.linear.")) >= linears
    # A backward has the forward's parent, in the other direction.
    for entry in apis:
        forward = names.forward_of(entry)
        if sites[entry].phase is Phase.BACKWARD and construct[forward] is not None:
            assert names.forward_of(construct[entry]) == construct[forward]


def test_stacks_lead_to_the_users_line(record):
    model = nn.Sequential(nn.Linear(2, 2))
    dump = record(lambda: model(torch.ones(1, 2)), level="mix", model=model)
    stacks = dump.json("stack.json").values()
    (frames,) = [frames for entries, frames in stacks if "Functional.linear.0.forward" in entries]
    assert frames[0].startswith("File ")
    assert "in forward, \n return F.linear(" in frames[0]
    assert any("test_capture.py" in frame and "model(torch.ones(1, 2))" in frame for frame in frames)
    assert not any("msprobe" in frame for frame in frames)
    assert not any("torch/overrides.py" in frame for frame in frames)
    assert not [entry for entries, _ in stacks for entry in entries if "backward" in entry]


@pytest.mark.parametrize("foreach", [True, False])
def test_what_optimizers_and_clipping_call_belongs_to_them(record, foreach):
    from torch.nn.utils import clip_grad_norm_

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)

    class Own(torch.optim.Optimizer):
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.data.lerp_(parameter.grad, 0.1)

    def train():
        loss = model(torch.ones(1, 2)).sum() * 2
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        Own(model.parameters(), {}).step()
        torch.ones(1).neg()

    dump = record(train, level="mix", model=model)
    construct = dump.json("construct.json")
    assert (construct["clip_grad"], construct["optimizer"]) == (None, None)
    assert construct["Functional.linear.0.forward"] == "Module.0.Linear.forward.0"
    assert construct["Tensor.neg.0.forward"] is None
    assert construct["Tensor.__mul__.0.forward"] is None
    norm = "Torch._foreach_norm.0.forward" if foreach else "Torch.linalg_vector_norm.0.forward"
    assert construct[norm] == "clip_grad"
    lerps = [entry for entry in construct if ".lerp_." in entry or "._foreach_lerp_." in entry]
    assert len(lerps) >= 2
    assert {construct[entry] for entry in lerps} == {"optimizer"}
    assert "optimizer" not in dump.data


@pytest.mark.parametrize("is_named", [True, False])
def test_the_loss_that_a_closure_computes_is_none_of_the_optimizers(record, is_named):
    """Lightning passes the last micro-batch of every step to the optimizer as a closure."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def closure():
        loss = nn.functional.mse_loss(model(torch.ones(1, 2)), torch.ones(1, 2)) * 2
        loss.backward()
        return loss

    construct = record(
        lambda: optimizer.step(closure=closure) if is_named else optimizer.step(closure), level="mix", model=model
    ).json("construct.json")
    of_loss = [f"{name}.0.{phase}" for name in ("Functional.mse_loss", "Tensor.__mul__") for phase in _PHASES]
    assert {entry: construct[entry] for entry in of_loss} == dict.fromkeys(of_loss)
    assert construct["Tensor.lerp_.0.forward"] == "optimizer"


_PHASES = ("forward", "backward")


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_structure_is_what_statistics_has_beside_the_values(tmp_path, close_debugger, level, monkeypatch, caplog):
    from msprobe.pytorch._reduce import TorchReducer

    architecture, found, looked_at = ARCHITECTURES["llama"], {}, []
    for task in ("statistics", "structure"):
        if task == "structure":
            monkeypatch.setattr(TorchReducer, "statistics", lambda _, tensor, __: looked_at.append(tensor))
        model = architecture.build()
        debugger = PrecisionDebugger(dump_path=tmp_path / task, level=level, task=task)
        with debugger.start(model):
            train_once(model, architecture)()
        debugger.close()
        found[task] = Recorded(tmp_path / task)
    assert "not recorded" not in caplog.text
    assert looked_at == []
    assert found["structure"].header["task"] == "structure"
    assert found["structure"].data == {}
    assert found["structure"].json("construct.json") == found["statistics"].json("construct.json")
    entries = [
        sorted(entry for group, _ in found[task].json("stack.json").values() for entry in group) for task in found
    ]
    assert entries[0] == entries[1] != []
    (unit,) = compare_dumps(found["structure"].directory, found["statistics"].directory).units
    assert (unit.mode.value, unit.agrees) == ("structure", True)
    assert unit.num_rows >= 50


def test_operators_and_methods_are_told_apart(record):
    def calls():
        x = torch.ones(2, 2)
        y = x + 1
        y = x.add(1)
        y = torch.add(x, 1)
        y = 1 - x
        y += 1
        y.add_(1)
        y = -x @ x / 2 // 1 % 3
        y = x**2
        assert bool((x == y).all())
        y[0] = 3
        torch.linalg.norm(x)
        torch.norm(x)
        torch.fft.fft(x)
        torch.special.erf(x)
        F.max_pool2d(torch.ones(1, 1, 4, 4), 2)
        torch.ops.aten.mul(x, x)
        relu_bound_before_the_probe(x)

    dump = record(calls)
    calls_of = {entry.removesuffix(".0.forward") for entry in dump.data}
    assert {
        "Tensor.__add__", "Tensor.add", "Torch.add", "Tensor.__rsub__", "Tensor.__iadd__", "Tensor.add_",
        "Tensor.__neg__", "Tensor.__matmul__", "Tensor.__truediv__", "Tensor.__floordiv__", "Tensor.__mod__",
        "Tensor.__pow__", "Tensor.__eq__", "Tensor.__setitem__",
        "Torch.linalg_norm", "Torch.norm", "Torch.fft_fft", "Torch.special_erf",
        "Functional.max_pool2d", "Aten.mul", "Functional.relu",
    } <= calls_of  # fmt: skip


def test_what_computes_nothing_is_not_recorded(record):
    def calls():
        x = torch.ones(2, 2)
        _ = (x.shape, x.size(), x.dim(), x.T.device, x.is_contiguous(), len(x), x.sum().item(), x.tolist(), repr(x))
        _ = (x.numpy(), x.data_ptr(), torch.is_tensor(x), bool(x.sum()), x.requires_grad, torch.equal(x, x))

    dump = record(calls)
    assert set(dump.data) == {"Torch.ones.0.forward", "Tensor.sum.0.forward", "Tensor.sum.1.forward"}


def test_writing_calls_have_what_they_wrote(record):
    def calls():
        x = torch.zeros(3)
        x[1] = 5.0
        x.masked_fill_(torch.tensor([True, False, False]), -7.0)
        torch._foreach_add_([x], 1.0)

    dump = record(calls)
    (written,) = leaves(dump.data["Tensor.__setitem__.0.forward"]["output"]).values()
    assert (written["Max"], written["Min"]) == (5.0, 0.0)
    before = dump.data["Tensor.masked_fill_.0.forward"]["input_args"][0]
    after = dump.data["Tensor.masked_fill_.0.forward"]["output"][0]
    assert (before["Min"], after["Min"]) == (0.0, -7.0)
    (added,) = leaves(dump.data["Torch._foreach_add_.0.forward"]["output"]).values()
    assert (added["Max"], added["Min"]) == (6.0, -6.0)


class HandsOn(TorchDispatchMode):
    """Does nothing, as one that counts operations; lists that are written to below it keep their versions."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_lists_that_are_written_to_below_a_mode_of_the_user_are_read_anew(record):
    def calls():
        x, y = torch.zeros(3), torch.ones(3)
        with HandsOn():
            torch._foreach_add_([x, y], 1.0)
            torch._foreach_mul_([x, y], 3.0)
        x.neg()

    dump = record(calls)
    added, multiplied = (
        [value["Max"] for value in leaves(dump.data[f"Torch._foreach_{name}_.0.forward"]["output"]).values()]
        for name in ("add", "mul")
    )
    assert (added, multiplied) == ([1.0, 2.0], [3.0, 6.0])
    assert dump.data["Tensor.neg.0.forward"]["input_args"][0]["Max"] == 3.0


@pytest.mark.parametrize(
    ("risk_level", "expected"),
    [
        ("ALL", {"Functional.linear", "Tensor.__add__", "Tensor.view", "Torch.cat", "Tensor.to", "Torch.ones"}),
        ("FOCUS", {"Functional.linear", "Tensor.__add__"}),
        ("CORE", {"Functional.linear"}),
    ],
)
def test_risk_levels(risk_level, expected, record):
    def calls():
        x = torch.ones(2, 2)
        x = F.linear(x, x) + 1
        torch.cat([x.view(4), x.to(torch.float64).view(4)])

    found = {entry.rsplit(".", 2)[0] for entry in record(calls, risk_level=risk_level).data}
    assert found == expected


def test_a_list_brings_what_runs_inside_the_modules_it_names(record):
    architecture = ARCHITECTURES["llama"]
    model = architecture.build()
    dump = record(train_once(model, architecture), level="mix", model=model, list=["layers.1.mlp"])
    construct = dump.json("construct.json")
    assert "Module.model.layers.1.mlp.LlamaMLP.forward.0" in dump.data
    assert "Module.model.layers.1.mlp.LlamaMLP.backward.0" in dump.data
    apis = [entry for entry in dump.data if entry.startswith(("Functional.", "Tensor."))]
    assert len([entry for entry in apis if entry.endswith("forward")]) == 5
    assert len([entry for entry in apis if entry.endswith("backward")]) == 5
    assert all("layers.1.mlp" in construct[entry] for entry in apis)
    assert "Functional.linear.11.forward" in dump.data
    assert len(construct) > 5 * len(dump.data) / 2


def test_scope_by_modules_takes_everything_between_them(record):
    architecture = ARCHITECTURES["llama"]
    model = architecture.build()
    first = "Module.model.layers.0.self_attn.q_proj.Linear.forward.0"
    last = "Module.model.layers.0.self_attn.o_proj.Linear.forward.0"
    dump = record(train_once(model, architecture), level="mix", model=model, scope=[first, last])
    entries = list(dump.data)
    assert entries[0] == "Functional.linear.0.forward"
    assert entries[-1] == last
    assert dump.data[last]["output"]
    assert "Functional.scaled_dot_product_attention.0.forward" in entries
    assert not [entry for entry in entries if "mlp" in entry or "backward" in entry]


def test_scope_by_apis_in_the_backward(record):
    architecture = ARCHITECTURES["llama"]
    model = architecture.build()
    scope = ["Functional.cross_entropy.0.backward", "Functional.linear.14.backward"]
    dump = record(train_once(model, architecture), level="L1", scope=scope)
    entries = list(dump.data)
    assert (entries[0], entries[-1]) == tuple(scope)
    assert leaves(dump.data[scope[1]]["output"]).keys() == {"0", "1"}
    assert all(entry.endswith("backward") for entry in entries)


def test_a_scope_that_never_opens_is_said(tmp_path, close_debugger, caplog):
    (tmp_path / "c.json").write_text(
        json.dumps({"statistics": {"scope": ["Tensor.x.0.forward", "Tensor.y.0.forward"]}})
    )
    debugger = PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run")
    with debugger.start():
        torch.ones(2) + 1
    debugger.step()
    assert "'scope' never opened: no entry was named 'Tensor.x.0.forward'" in caplog.text


def test_arguments_of_all_kinds(record):
    class Kind(IntEnum):
        ONE = 1

    def calls():
        x = torch.ones(2, 3)
        x.to(torch.float64)
        x.to("cpu", copy=True)
        torch.zeros(2, dtype=torch.int32, device=torch.device("cpu"))
        x.new_full(torch.Size([2]), Kind.ONE)
        x[..., 1:2:1]
        x.contiguous(memory_format=torch.contiguous_format)
        torch.full((1,), float("nan"))
        torch.where(x > 0, x, None if False else 1.0)
        torch.tensor(np.float32(2.5))
        torch.clamp(x, min=None, max=2**40)

    data = record(calls).data
    assert data["Tensor.to.0.forward"]["input_args"][1] == {"type": "torch.dtype", "value": "torch.float64"}
    zeros = data["Torch.zeros.0.forward"]["input_kwargs"]
    assert zeros["dtype"] == {"type": "torch.dtype", "value": "torch.int32"}
    assert zeros["device"] == {"type": "torch.device", "value": "cpu:None"}
    full = data["Tensor.new_full.0.forward"]["input_args"]
    assert full[1:] == [{"type": "torch.Size", "value": [2]}, {"type": "int", "value": 1}]
    index = data["Tensor.__getitem__.0.forward"]["input_args"][1]
    assert index == [{"type": "ellipsis", "value": "..."}, {"type": "slice", "value": [1, 2, 1]}]
    layout = data["Tensor.contiguous.0.forward"]["input_kwargs"]["memory_format"]
    assert layout == {"type": "torch.memory_format", "format": "torch.contiguous_format"}
    assert data["Torch.full.0.forward"]["input_args"][1] == {"type": "float", "value": "NaN"}
    assert data["Torch.full.0.forward"]["output"][0]["Max"] == "NaN"
    assert data["Torch.full.0.forward"]["output"][0]["num_nan"] == 1
    assert data["Torch.tensor.0.forward"]["input_args"] == [{"type": "float32", "value": 2.5}]
    assert data["Torch.clamp.0.forward"]["input_kwargs"] == {"min": None, "max": {"type": "int", "value": 2**40}}


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, dtype=torch.bfloat16),
        lambda: torch.ones(2, dtype=torch.float16),
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: torch.ones(2).to(torch.float8_e4m3fn),
        pytest.param(lambda: torch.ones(2, dtype=torch.uint16), marks=needs_dtype("uint16")),
        lambda: torch.ones(()),
        lambda: torch.ones(0, 3),
        lambda: torch.ones(2, 3).t(),
        lambda: torch.ones(1).expand(4),
        lambda: torch.ones(2, device="meta"),
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        pytest.param(
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            marks=needs_dtype("jagged"),
        ),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
    ],
    ids=["bfloat16", "float16", "complex", "float8", "uint16", "0-d", "empty", "transposed", "expanded", "meta",
         "sparse", "quantised", "nested", "conjugated"],
)  # fmt: skip
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.filterwarnings("ignore")  # of torch, about what is deprecated in it
def test_unusual_tensors_do_not_disturb_the_step(make, task, record, caplog):
    result = []

    def calls():
        value = make()
        result.append(value.clone())
        result.append(torch.ones(3) * 2)

    dump = record(calls, task=task)
    assert result[1].tolist() == [2.0, 2.0, 2.0]
    assert "Tensor.clone.0.forward" in dump.data
    assert dump.data["Tensor.__mul__.0.forward"]["output"][0]["Max"] == 2.0


def test_an_exception_inside_an_api_loses_nothing(record):
    def calls():
        x = torch.ones(2, 3)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                torch.matmul(x, x)
        torch.matmul(x, x.T)

    data = record(calls).data
    assert [entry for entry in data if "matmul" in entry] == [f"Torch.matmul.{i}.forward" for i in range(3)]
    assert "output" not in data["Torch.matmul.0.forward"]
    assert data["Torch.matmul.2.forward"]["output"][0]["Max"] == 3.0


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x, depth=2):
        return self.fc(x) if depth == 0 else self(x, depth - 1) + 1


def test_recursive_and_repeated_modules(record):
    model = Recursive()
    dump = record(
        lambda: (model(torch.ones(1, 2)).sum() + model(torch.ones(1, 2)).sum()).backward(), level="L0", model=model
    )
    forwards = dump.starting("Module.Recursive.forward.")
    assert len(forwards) == 6
    assert all(dump.data[entry]["output"] for entry in forwards)
    construct = dump.json("construct.json")
    assert construct["Module.Recursive.forward.1"] == "Module.Recursive.forward.0"
    assert construct["Module.fc.Linear.forward.0"] == "Module.Recursive.forward.2"
    assert len(dump.starting("Module.fc.Linear.backward.")) == 2


def test_a_module_that_raises_leaves_the_nesting_right(record):
    class Fragile(nn.Module):
        def forward(self, x):
            raise ArithmeticError("planted")

    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.fragile = Fragile()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            try:
                return self.fragile(x)
            except ArithmeticError:
                return self.fc(x)

    model = Careful()
    dump = record(lambda: model(torch.ones(1, 2)), level="mix", model=model)
    construct = dump.json("construct.json")
    assert construct["Module.fc.Linear.forward.0"] == "Module.Careful.forward.0"
    assert "output" not in dump.data["Module.fragile.Fragile.forward.0"]
    assert dump.data["Module.fragile.Fragile.forward.0"]["input_args"]
    assert dump.data["Module.Careful.forward.0"]["output"]


def test_shared_modules_and_lists_of_models(record):
    shared = nn.Linear(2, 2)
    first, second = nn.Sequential(shared, nn.ReLU()), nn.Sequential(shared)
    dump = record(lambda: (first(torch.ones(1, 2)), second(torch.ones(1, 2))), level="L0", model=[first, second])
    assert dump.starting("Module.0.0.Linear.forward.") == ["Module.0.0.Linear.forward.0", "Module.0.0.Linear.forward.1"]
    assert "Module.0.1.ReLU.forward.0" in dump.data
    assert "Module.1.Sequential.forward.0" in dump.data


def test_a_tensor_that_was_written_to_is_read_again(record):
    def calls():
        x = torch.ones(3)
        y = x * 1
        y.data.mul_(5.0)  # does not count as a write for autograd
        y.add(0)
        z = x * 2
        z.numpy()[...] = 9.0
        z.add(0)

    data = record(calls).data
    assert data["Tensor.add.0.forward"]["input_args"][0]["Max"] == 5.0
    assert data["Tensor.add.1.forward"]["input_args"][0]["Max"] == 9.0


@needs_indexing
@pytest.mark.parametrize("risk_level", ["ALL", "FOCUS"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_memory_that_nobody_has_set_is_not_read(task, risk_level, record):
    order = torch.tensor([2, 0, 1])

    def run():
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(3)
        return inverse * 1

    dump = record(run, level="L1", task=task, risk_level=risk_level)
    written = dump.data["Tensor.__setitem__.0.forward"]
    unset = [written["input_args"][0]]
    if risk_level == "ALL":
        unset += dump.data["Torch.empty_like.0.forward"]["output"]
    for value in unset:
        assert (value["shape"], value["Max"], value["Norm"], "data_name" in value) == ([3], None, None, False)
    assert (written["output"][0]["Max"], "data_name" in written["output"][0]) == (2, task == "tensor")


def test_modes_of_the_user_survive(tmp_path, close_debugger):
    from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

    class Mine(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    outer, inner = Mine(), Mine()
    with outer:
        debugger.start()
        inner.__enter__()
        torch.ones(2) + 1
        debugger.stop()
        assert _get_current_function_mode_stack() == [outer, inner]
        torch.ones(2) + 1
        inner.__exit__(None, None, None)
    assert _get_current_function_mode_stack() == []
    assert Recorded(tmp_path).data.keys() == {"Tensor.__add__.0.forward"}


def test_threads_of_the_user_do_not_mix_up_the_nesting(record):
    class Inner(nn.Module):
        def forward(self, x):
            return x * 2

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x)

    model = Outer()

    def calls():
        threads = [threading.Thread(target=lambda: [model(torch.ones(2)) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    dump = record(calls, level="L0", model=model)
    construct = dump.json("construct.json")
    assert len(dump.starting("Module.inner.Inner.forward.")) == 80
    assert all(construct[e].startswith("Module.Outer.forward.") for e in dump.starting("Module.inner.Inner.forward."))


def test_a_failure_of_the_probe_does_not_reach_the_training(tmp_path, close_debugger, caplog, monkeypatch):
    from msprobe.pytorch import _reduce

    def fail(_values):
        raise RuntimeError("planted")

    monkeypatch.setattr(_reduce, "statistics_of_plain", fail)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    with debugger.start():
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
    debugger.close()
    assert caplog.text.count("training goes on") == 1
    assert "Tensor.__add__.0.forward input 0: not recorded, or not wholly (RuntimeError: planted)" in caplog.text
    value = Recorded(tmp_path).data["Tensor.__add__.0.forward"]["input_args"][0]
    assert (value["shape"], value["error"]) == ([2], "RuntimeError: planted")


def test_a_full_disk_does_not_reach_the_training(tmp_path, close_debugger, caplog, monkeypatch):
    from msprobe_core.errors import StoreError
    from msprobe_core.store.append_file import GrowingFile

    def fail(self, _content):
        raise StoreError(f"{self._path}: cannot be written (No space left on device); what was recorded before is kept")

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    with debugger.start():
        torch.ones(2) + 1
        monkeypatch.setattr(GrowingFile, "append", fail)
    debugger.step()
    with debugger.start():
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
    assert "recording ends at step 0" in caplog.text
    assert "No space left on device" in caplog.text
    assert not (tmp_path / "step1").exists()
