"""Operators below the APIs: what is recorded of them, in what order and under which names, and that nothing changes."""

import json
import math
import warnings

import pytest
import redistributing
import torch
from architectures import ARCHITECTURES, train
from click.testing import CliRunner
from jobs import run_job
from msprobe.pytorch import PrecisionDebugger
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from msprobe_core.cli.locate import locate
from msprobe_core.compare import compare_dumps
from msprobe_core.errors import ConfigError
from msprobe_core.store import layout
from msprobe_core.store.reading import read_dump

pytestmark = pytest.mark.usefixtures("close_debugger")


def debugger_of(directory, **fields):
    path = directory.with_suffix(".json")
    path.write_text(json.dumps({"level": "mix", "aten": True, "dump_path": str(directory)} | fields))
    return PrecisionDebugger(str(path))


def recorded(directory):
    (unit,) = layout.find_units(directory / "step0")
    return read_dump(unit.directory)


def dump_of(directory, program, model=None, **fields):
    debugger = debugger_of(directory, **({"level": "L1"} if model is None else {}) | fields)
    debugger.start(model)
    program()
    debugger.stop()
    debugger.close()
    return recorded(directory)


def entries_of(dump):
    return list(dict.fromkeys(dump.frame["entry"].to_list()))


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def step(model):
    model.zero_grad()
    nn.functional.cross_entropy(model(X), torch.tensor([0, 2])).backward()


@pytest.mark.parametrize("level", ["mix", "L1"])
def test_each_operator_stands_before_the_call_that_it_is_part_of(tmp_path, level):
    model = model_of()
    dump = dump_of(tmp_path / "run", lambda: step(model), model, level=level)
    entries = entries_of(dump)
    for operator, call in {
        "Aten.addmm.0.forward": "Functional.linear.0.forward",
        "Aten.addmm.1.forward": "Functional.linear.1.forward",
        "Aten.native_layer_norm.0.forward": "Functional.layer_norm.0.forward",
        "Aten._log_softmax.0.forward": "Functional.cross_entropy.0.forward",
        "Aten.nll_loss_forward.0.forward": "Functional.cross_entropy.0.forward",
        "AtenBackward.nll_loss_backward.0.forward": "Functional.cross_entropy.0.backward",
        "AtenBackward.native_layer_norm_backward.0.forward": "Functional.layer_norm.0.backward",
        "AtenBackward.mm.0.forward": "Functional.linear.1.backward",
        "AtenBackward.mm.2.forward": "Functional.linear.0.backward",
    }.items():
        assert dump.parents[operator] == call
        assert entries.index(operator) < entries.index(call)
    frame = dict(dump.frame.select("name", "norm").iter_rows())
    assert frame["Aten.addmm.0.forward.output.0"] == frame["Functional.linear.0.forward.output.0"]
    assert frame["AtenBackward.mm.0.forward.input.0"] == frame["Functional.linear.1.backward.input.0"]
    assert not [entry for entry in entries if entry.startswith(("Aten.t.", "Aten.detach", "Aten.view"))]


def test_risk_level_all_has_views_and_copies_too(tmp_path):
    model = model_of()
    entries = entries_of(dump_of(tmp_path / "run", lambda: step(model), model, risk_level="ALL"))
    assert {"Aten.t.0.forward", "Aten.addmm.0.forward"} <= set(entries)


def test_an_operator_that_is_called_by_its_name_is_recorded_once(tmp_path):
    entries = entries_of(dump_of(tmp_path / "run", lambda: torch.ops.aten.mm(X, X.T)))
    assert [entry for entry in entries if "mm" in entry] == ["Aten.mm.0.forward"]


def test_a_list_brings_the_operators_inside_of_what_it_names(tmp_path):
    model = model_of()
    for level, pattern in (("L1", "layer_norm"), ("mix", "Module.2.LayerNorm")):
        dump = dump_of(tmp_path / level, lambda: step(model), model, level=level, statistics={"list": [pattern]})
        operators = [entry for entry in entries_of(dump) if entry.startswith("Aten")]
        assert operators == ["Aten.native_layer_norm.0.forward", "AtenBackward.native_layer_norm_backward.0.forward"]


@pytest.mark.parametrize(("mode", "prefix"), [("forward", "Aten."), ("backward", "AtenBackward.")])
def test_data_mode_counts_what_runs_in_a_backward_pass_as_backward(tmp_path, mode, prefix):
    model = model_of()
    dump = dump_of(tmp_path / "run", lambda: step(model), model, statistics={"data_mode": [mode]})
    operators = dump.frame.filter(dump.frame["entry"].str.starts_with("Aten"))
    assert operators.height
    assert operators["entry"].str.starts_with(prefix).all()
    assert set(operators["role"]) == {"input", "output"}


def test_what_is_computed_again_is_part_of_the_call_that_does_so(tmp_path):
    layers = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))

    def program():
        checkpoint(layers, X.clone().requires_grad_(), use_reentrant=False).sum().backward()

    dump = dump_of(tmp_path / "run", program, layers)
    assert dump.parents["Aten.addmm.2.forward"] == "Functional.linear.2.forward"
    assert dump.parents["AtenBackward.gelu_backward.0.forward"] == "Functional.gelu.0.backward"
    assert len([entry for entry in entries_of(dump) if entry.startswith("AtenBackward.mm.")]) == 4


def test_memory_that_is_not_set_is_not_read(tmp_path):
    def program():
        torch.empty(1000).copy_(torch.ones(1000))

    frame = dump_of(tmp_path / "run", program, risk_level="ALL").frame
    values = dict(frame.select("name", "max").iter_rows())
    assert not [name for name in values if "Aten.empty" in name]
    assert values["Aten.copy_.0.forward.input.0"] is None
    assert values["Aten.copy_.0.forward.output.0"] == 1.0


def test_operators_that_write_to_lists_have_these_as_outputs(tmp_path):
    tensors = [torch.ones(2), torch.ones(3)]
    versions = [tensor._version for tensor in tensors]
    frame = dump_of(tmp_path / "run", lambda: torch._foreach_mul_(tensors, 2.0)).frame
    values = dict(frame.select("name", "max").iter_rows())
    assert values["Aten._foreach_mul_.0.forward.input.0.1"] == 1.0
    assert values["Aten._foreach_mul_.0.forward.output.1"] == 2.0
    assert [tensor._version for tensor in tensors] == [version + 1 for version in versions]


class Seen(TorchDispatchMode):
    """Notes operators, as a mode of a user does."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("begins", ["outside", "inside"])
def test_dispatch_modes_of_the_user_stay_and_see_what_they_would(tmp_path, begins):
    model = model_of()
    with Seen() as expected:
        step(model)
    debugger = debugger_of(tmp_path / "run")
    first, second = Seen(), Seen()
    if begins == "outside":
        with first:
            debugger.start(model)
            with second:
                step(model)
            debugger.stop()
    else:
        debugger.start(model)
        with first:
            debugger.step()  # takes it out and puts it back below the mode that is on
            with second:
                step(model)
        debugger.stop()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert first.names == second.names == expected.names


def test_what_the_compiler_compiles_is_left_alone(tmp_path):
    model = model_of()
    plain = model_of()
    compiled, expected = (torch.compile(one, backend="aot_eager") for one in (model, plain))
    step(expected)
    dump = dump_of(tmp_path / "run", lambda: step(compiled), compiled)
    assert not [entry for entry in entries_of(dump) if "addmm" in entry or ".mm." in entry]
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_three_steps_are_bitwise_equal(name, precision, tmp_path):
    architecture = ARCHITECTURES[name]

    def run(debugger):
        first = torch._C._autograd._get_sequence_nr()
        model = architecture.build()
        if precision == "bfloat16":
            model = model.to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
        losses = []
        for number in range(3):
            if debugger is not None:
                debugger.start(model)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                losses.append(train(model, architecture, number))
            optimizer.step()
            optimizer.zero_grad()
            if debugger is not None:
                debugger.stop()
                debugger.step()
        numbers = torch._C._autograd._get_sequence_nr() - first
        return losses, [one.detach().clone() for one in model.parameters()], torch.get_rng_state(), numbers

    plain_losses, plain_weights, plain_state, before = run(None)
    debugger = debugger_of(tmp_path / "run", risk_level="ALL")
    losses, weights, state, after = run(debugger)
    assert losses == plain_losses
    assert all(torch.equal(one, other) for one, other in zip(weights, plain_weights, strict=True))
    assert torch.equal(state, plain_state)
    assert after == before  # as many nodes were made


@pytest.mark.parametrize("level", ["L0", "debug"])
def test_levels_without_apis_are_refused(tmp_path, level):
    with pytest.raises(ConfigError, match="'aten' records operators below the APIs"):
        debugger_of(tmp_path / "run", level=level)


# --- comparing ------------------------------------------------------------------------------------------------------


def test_equal_runs_agree(tmp_path):
    for name in ("target", "golden"):
        model = model_of()
        dump_of(tmp_path / name, lambda model=model: step(model), model)
    result = compare_dumps(tmp_path / "target" / "step0", tmp_path / "golden" / "step0")
    assert result.agrees
    assert "unmatched" not in result.units[0].rows["verdict"].to_list()


def wrong_log_softmax(x, dim, half_to_float):
    return 1.1 * (x - x.exp().sum(dim, keepdim=True).log())


def wrong_gelu_backward(gradient, x, *, approximate="none"):
    density = (-x * x / 2).exp() / (2 * math.pi) ** 0.5
    return 1.1 * gradient * ((1 + torch.erf(x / 2**0.5)) / 2 + x * density)


FAULTS = {
    "_log_softmax": (wrong_log_softmax, "Aten._log_softmax.0.forward", "Functional.cross_entropy.0.forward"),
    "gelu_backward": (wrong_gelu_backward, "AtenBackward.gelu_backward.0.forward", "Functional.gelu.0.backward"),
}


@pytest.fixture(params=FAULTS)
def faulty(request, tmp_path):
    """A run with a kernel that is wrong by a tenth, and one without: their directories, the operator, its call."""
    directory = tmp_path
    kernel, *names = FAULTS[request.param]
    model = model_of()
    dump_of(directory / "golden", lambda: step(model), model)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced
        library.impl(request.param, kernel, "CPU")
    try:
        model.zero_grad()
        dump_of(directory / "target", lambda: step(model), model)
    finally:
        library._destroy()
    return directory, *names


def test_compare_names_the_operator_that_parts_first(faulty):
    directory, operator, call = faulty
    (unit,) = compare_dumps(directory / "target" / "step0", directory / "golden" / "step0").units
    assert unit.fault.entry == operator
    assert unit.fault.is_culprit
    assert unit.fault.parent == call


def test_locate_names_the_operator_that_parts_first(faulty):
    directory, operator, _ = faulty
    found = CliRunner().invoke(locate, [str(directory / "target"), str(directory / "golden")], standalone_mode=False)
    assert found.return_value == 1
    assert operator in found.output


WRITING = {
    "_foreach_add_": lambda x, y: torch._foreach_add_([x], [y]),
    "_foreach_copy_": lambda x, y: torch._foreach_copy_([x], [y]),
    "_foreach_zero_": lambda x, y: torch._foreach_zero_([x]),
    "add_": lambda x, y: x.add_(y),
    "out": lambda x, y: torch.add(x, 1, out=y),
    "index_put_": lambda x, y: x.__setitem__(0, 1.0),
}


@pytest.mark.parametrize("name", WRITING)
def test_versions_are_raised_as_without_recording(tmp_path, name):
    def versions():
        x, y = torch.ones(2), torch.ones(2)
        WRITING[name](x, y)
        return x._version, y._version

    expected, found = versions(), []
    dump_of(tmp_path / "run", lambda: found.append(versions()))
    assert found == [expected]
    assert max(expected) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_redistributions_of_distributed_tensors_are_recorded(tmp_path):
    for result in run_job(redistributing.work, 2, tmp_path):
        assert result["recorded"] == result["bare"]
    dumps = [read_dump(unit.directory) for unit in layout.find_units(tmp_path / "run" / "step0")]
    assert len(dumps) == 2
    for dump in dumps:
        texts = dict(dump.frame.filter(kind="scalar").select("name", "text").iter_rows())
        found = {
            tuple(texts[f"{entry}.input.{which}"] for which in ("mesh", "source", "destination"))
            for entry in entries_of(dump)
            if entry.startswith("DTensor")
        }
        assert ("0=2", "S(0)", "R") in found
        assert any(entry.startswith("DTensorBackward.redistribute.") for entry in entries_of(dump))
        assert any(source.startswith("P") and destination == "R" for _, source, destination in found)
        gathered = dump.frame.filter(entry="DTensor.redistribute.0.forward", kind="tensor")
        assert gathered.select("name", "shape").rows() == [
            ("DTensor.redistribute.0.forward.input.0", "[2, 2]"),
            ("DTensor.redistribute.0.forward.output.0", "[4, 2]"),
        ]
