"""Backward passes that come through the same graph again: each has entries of its own, with its own gradients."""

import copy
import gc
import json
import subprocess
import sys
import weakref

import msgspec
import numpy as np
import pytest
import torch
from branches import Scaled, Two
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe_core.compare import compare_dumps
from msprobe_core.locate import LocateVerdict, locate
from msprobe_core.view.build import build
from msprobe_core.view.data import Graph
from msprobe_core.view.stored_graphs import StoredGraphs

pytestmark = pytest.mark.usefixtures("close_debugger")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class Net(nn.Module):
    """Two heads over a trunk."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = Block()
        self.left = nn.Linear(4, 2)
        self.right = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.trunk(x)
        return self.left(hidden), self.right(hidden)


def batch(seed=0):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def losses_of(model, x):
    left, right = model(x)
    return left.pow(2).sum(), right.exp().sum()


def record(directory, model, step, **settings):
    settings = {"task": "tensor", "level": "mix", "risk_level": "ALL", **settings}
    (directory.parent / "c.json").write_text(json.dumps(settings))
    debugger = PrecisionDebugger(directory.parent / "c.json", dump_path=directory)
    with debugger.start(model):
        step()
    debugger.close()
    return Recorded(directory)


def gradient(dump, entry, part, place=0):
    return dump.tensor(dump.data[entry][part][place])


TRUNK = "Module.trunk.Block"


def trunk_entry(backward_pass):
    return f"{TRUNK}{f'-pass{backward_pass}' if backward_pass else ''}.backward.0"


def test_two_losses_over_one_trunk(tmp_path, caplog):
    model, x = Net(), batch()

    def step():
        one, two = losses_of(model, x)
        one.backward(retain_graph=True)
        two.backward()

    dump = record(tmp_path / "run", model, step)
    plain, y = Net(), batch()
    hidden = plain.trunk(y)
    losses = plain.left(hidden).pow(2).sum(), plain.right(hidden).exp().sum()
    for i, loss in enumerate(losses):
        in_hidden, in_x, weight = torch.autograd.grad(loss, [hidden, y, plain.trunk.fc.weight], retain_graph=True)
        np.testing.assert_array_equal(gradient(dump, trunk_entry(i), "input"), in_hidden)
        np.testing.assert_array_equal(gradient(dump, trunk_entry(i), "output"), in_x)
        linear = f"Functional.linear{'-pass1' if i else ''}.0.backward"
        np.testing.assert_array_equal(gradient(dump, linear, "output"), in_x)
        np.testing.assert_array_equal(gradient(dump, linear, "output", 1), weight)
        added = dump.data[f"{TRUNK.replace('Block', 'fc.Linear')}.parameters_grad.{i}"]
        name = "weight.contribution" if i else "weight"
        np.testing.assert_array_equal(dump.tensor(added[name][0]), weight)
    accumulated = dump.data["Module.trunk.fc.Linear.parameters_grad.1"]["weight"][0]
    np.testing.assert_array_equal(dump.tensor(accumulated), model.trunk.fc.weight.grad)
    # Each head is reached by one of the passes, which is its first.
    assert [name for name in dump.data if "pass" in name and ("left" in name or "right" in name)] == []
    assert [entry for entry in dump.data if "backward.0" in entry and ".Net" in entry] == [
        "Module.Net.backward.0", "Module.Net-pass1.backward.0"
    ]  # fmt: skip
    root = dump.data["Module.Net.backward.0"]["input"], dump.data["Module.Net-pass1.backward.0"]["input"]
    assert [[value is not None for value in each] for each in root] == [[True], [False, True]]
    assert "second time" not in caplog.text


def test_what_is_inside_stands_in_the_module_of_the_same_pass(tmp_path):
    model, x = Net(), batch()

    def step():
        for loss in losses_of(model, x):
            loss.backward(retain_graph=True)

    dump = record(tmp_path / "run", model, step)
    parents = dump.json("construct.json")
    assert parents["Torch.tanh-pass1.0.backward"] == "Module.trunk.Block-pass1.backward.0"
    assert parents["Module.trunk.Block-pass1.backward.0"] == "Module.Net-pass1.backward.0"
    assert parents["Module.Net-pass1.backward.0"] is None
    entries = list(dump.data)
    order = [entries.index(name) for name in (
        "Torch.tanh.0.backward", "Module.trunk.Block.backward.0", "Module.Net.backward.0",
        "Torch.tanh-pass1.0.backward", "Module.trunk.Block-pass1.backward.0", "Module.Net-pass1.backward.0",
    )]  # fmt: skip
    assert order == sorted(order)
    assert set(dump.data) <= {*parents, *[name for name in dump.data if "parameters_grad" in name]}


def test_a_gradient_penalty(tmp_path):
    """The pass that trains is the second one; it comes to nodes that the first has made, and through those to ours."""
    model, x = Net(), batch()

    def step(model=model, x=x):
        loss, _ = losses_of(model, x)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (slope.norm() - 1).pow(2).backward()

    dump = record(tmp_path / "run", model, step)
    assert "Module.trunk.fc.Linear.parameters_grad.1" not in dump.data
    weight = dump.data["Module.trunk.fc.Linear.parameters_grad.0"]["weight"][0]
    np.testing.assert_array_equal(dump.tensor(weight), model.trunk.fc.weight.grad)
    plain, y = Net(), batch()
    hidden = plain.trunk(y)
    loss = plain.left(hidden).pow(2).sum()
    (slope,) = torch.autograd.grad(loss, y, create_graph=True)
    (first,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    np.testing.assert_array_equal(gradient(dump, trunk_entry(0), "input"), first)
    np.testing.assert_array_equal(gradient(dump, trunk_entry(0), "output"), slope.detach())
    (second,) = torch.autograd.grad((slope.norm() - 1).pow(2), y, retain_graph=True)
    np.testing.assert_allclose(gradient(dump, trunk_entry(1), "output"), second, rtol=1e-6)


def test_many_passes(tmp_path, caplog):
    """As PCGrad does: the gradients of each task by themselves."""
    model, x = Net(), batch()
    found = []

    def step():
        hidden = model.trunk(x)
        for i in range(5):
            grads = torch.autograd.grad(hidden[:, i % 4].sum() * (i + 1), [x, model.trunk.fc.weight], retain_graph=True)
            found.append([each.clone() for each in grads])

    dump = record(tmp_path / "run", model, step)
    for i, (in_x, weight) in enumerate(found):
        np.testing.assert_array_equal(gradient(dump, trunk_entry(i), "output"), in_x)
        linear = f"Functional.linear{f'-pass{i}' if i else ''}.0.backward"
        np.testing.assert_array_equal(gradient(dump, linear, "output", 1), weight)
    assert trunk_entry(5) not in dump.data
    assert not [entry for entry in dump.data if "parameters_grad" in entry]
    assert caplog.text == ""


def test_passes_that_come_to_other_parts_of_a_call_are_not_added_up(tmp_path):
    model, x = Scaled(Two()), batch()

    def step():
        left, right = model(x)
        for part in (left, right, left + right):
            part.sum().backward(retain_graph=True)

    dump = record(tmp_path / "run", model, step, level="L0")
    passes = [dump.data[f"Module.two.Two{ending}.backward.0"] for ending in ("", "-pass1", "-pass2")]
    assert [dump.tensor(each["output"][0]).max() for each in passes] == [2.0, 3.0, 5.0]
    assert [[value is not None for value in each["input"]] for each in passes] == [[True], [False, True], [True, True]]


def test_a_pass_that_a_hook_begins_inside_of_another(tmp_path, caplog):
    """Both reach the two uses of the argument, alternately."""

    class Hooked(Two):
        def forward(self, x):
            left, right = super().forward(x)
            result = left + right
            begun = []

            def begin_another(_):
                if not begun:
                    begun.append(True)
                    torch.autograd.grad(result, x, torch.full_like(result, 10), retain_graph=True)

            left.register_hook(begin_another)
            return result

    model, x = Scaled(Hooked()), batch()
    dump = record(tmp_path / "run", model, lambda: model(x).sum().backward(retain_graph=True), level="L0")
    passes = [dump.data[f"Module.two.Hooked{ending}.backward.0"] for ending in ("", "-pass1")]
    assert [dump.tensor(each["input"][0]).max() for each in passes] == [1.0, 10.0]
    assert [dump.tensor(each["output"][0]).max() for each in passes] == [5.0, 50.0]
    assert caplog.text == ""


def test_a_pass_that_was_begun_before_a_window_ended_and_one_behind_it(tmp_path, caplog):
    model, x = Net(), batch()
    (tmp_path / "c.json").write_text(json.dumps({"task": "tensor", "level": "mix"}))
    debugger = PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run")
    debugger.start(model)
    one, two = losses_of(model, x)
    one.backward(retain_graph=True)
    debugger.stop()
    two.backward(retain_graph=True)
    debugger.step()
    assert caplog.text == ""
    one.backward()
    debugger.close()
    dump = Recorded(tmp_path / "run")
    again, y = Net(), batch()
    hidden = again.trunk(y)
    for i, loss in enumerate((again.left(hidden).pow(2).sum(), again.right(hidden).exp().sum())):
        (in_x,) = torch.autograd.grad(loss, y, retain_graph=True)
        np.testing.assert_array_equal(gradient(dump, trunk_entry(i), "output"), in_x)
        assert f"Module.trunk.fc.Linear.parameters_grad.{i}" in dump.data
    assert trunk_entry(2) not in dump.data
    assert list((tmp_path / "run").iterdir()) == [tmp_path / "run" / "step0"]


def test_accumulated_micro_batches_with_two_passes_each(tmp_path):
    model = Net()

    def step():
        for i in range(2):
            one, two = losses_of(model, batch(i))
            one.backward(retain_graph=True)
            two.backward()

    dump = record(tmp_path / "run", model, step, level="L0")
    shown = {
        name: record["execution"].get("micro_step", 0) for name, record in dump.data.items() if "trunk.Block" in name
    }
    assert shown == {
        f"{TRUNK}.forward.0": 0, f"{TRUNK}.backward.0": 0, f"{TRUNK}-pass1.backward.0": 0,
        f"{TRUNK}.forward.1": 1, f"{TRUNK}.backward.1": 1, f"{TRUNK}-pass1.backward.1": 1,
    }  # fmt: skip
    gradients = [dump.data[f"Module.trunk.fc.Linear.parameters_grad.{i}"] for i in range(4)]
    assert [each["execution"].get("micro_step", 0) for each in gradients] == [0, 0, 1, 1]
    assert ["weight.contribution" in each for each in gradients] == [False, True, True, True]
    sums = [dump.tensor(each["weight"][0]) for each in gradients]
    for before, after, each in zip(sums, sums[1:], gradients[1:], strict=False):
        np.testing.assert_array_equal(before + dump.tensor(each["weight.contribution"][0]), after)


class Checkpointed(Net):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x):
        hidden = checkpoint(self.trunk, x, use_reentrant=self.use_reentrant)
        return self.left(hidden), self.right(hidden)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_calls(tmp_path, use_reentrant, caplog):
    model, x = Checkpointed(use_reentrant), batch()

    def step():
        one, two = losses_of(model, x)
        one.backward(retain_graph=True)
        two.backward()

    dump = record(tmp_path / "run", model, step, level="L0")
    backwards = [name for name in dump.data if name.startswith(f"{TRUNK}") and "backward" in name]
    if use_reentrant:  # each pass runs a graph that it has computed again
        assert backwards == [f"{TRUNK}.backward.1", f"{TRUNK}.backward.2"]
    else:
        assert backwards == [f"{TRUNK}.backward.0", f"{TRUNK}-pass1.backward.0"]
    plain, y = Net(), batch()
    for name, loss in zip(backwards, losses_of(plain, y), strict=True):
        (in_x,) = torch.autograd.grad(loss, y, retain_graph=True)
        np.testing.assert_array_equal(gradient(dump, name, "output"), in_x)
    assert "Module.Checkpointed-pass1.backward.0" in dump.data
    assert "second time" not in caplog.text


MODELS = {"plain": Net, "reentrant": lambda: Checkpointed(True), "not reentrant": lambda: Checkpointed(False)}


def train(model, optimizer, kind, seed):
    x = batch(seed)
    one, two = losses_of(model, x)
    if kind == "penalty":
        (slope,) = torch.autograd.grad(one, x, create_graph=True)
        (two + slope.norm()).backward()
    elif kind == "tasks":
        grads = [
            torch.autograd.grad(each, model.parameters(), retain_graph=True, allow_unused=True) for each in (one, two)
        ]
        for parameter, *parts in zip(model.parameters(), *grads, strict=True):
            parameter.grad = sum(part for part in parts if part is not None)
    else:
        one.backward(retain_graph=True)
        two.backward()
    optimizer.step()
    optimizer.zero_grad()
    return one.item(), two.item(), x.grad


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("kind", ["losses", "penalty", "tasks"])
@pytest.mark.parametrize(
    "make", [Net, lambda: Checkpointed(True), lambda: Checkpointed(False)], ids=["plain", "re", "non"]
)
def test_training_is_bitwise_the_same(tmp_path, kind, level, make):
    if make().__dict__.get("use_reentrant") and kind != "losses":
        pytest.skip("such checkpoints refuse torch.autograd.grad")
    plain = make()
    probed = copy.deepcopy(plain)
    results = []
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level, task="statistics")
    for model, is_probed in ((plain, False), (probed, True)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for seed in range(3):
            if is_probed:
                debugger.start(model)
            results.append(train(model, optimizer, kind, seed))
            if is_probed:
                debugger.stop()
                debugger.step()
    debugger.close()
    for (*losses, grad), (*others, other) in zip(results[:3], results[3:], strict=True):
        assert losses == others
        assert (grad is None and other is None) or torch.equal(grad, other)
    for left, right in zip(plain.parameters(), probed.parameters(), strict=True):
        assert torch.equal(left, right)
    assert any("-pass1" in name for name in Recorded(tmp_path / "run").data) or level == "L0" or make is not Net


def test_the_graph_is_given_up_with_its_last_user(tmp_path):
    model, x = Net(), batch()

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.kept = value.detach().clone()
            alive.append(weakref.ref(ctx.kept))
            return value * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    alive = []
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="mix", task="statistics")
    with debugger.start(model):
        hidden = Kept.apply(model.trunk(x))
        hidden.view(-1).mul_(2)  # the node of a view that is written to is stood for by another
        loss = model.left(hidden).sum()
        del hidden
        for _ in range(3):
            loss.backward(retain_graph=True)
        del loss
        gc.collect()
        assert alive[0]() is None
    debugger.close()


# --- what reads the dumps -------------------------------------------------------------------------------------------


class Turned(torch.autograd.Function):
    """Does nothing, but sends another gradient back in the pass with a given number."""

    @staticmethod
    def forward(ctx, x, wrong):
        ctx.wrong, ctx.num_passes = wrong, 0
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.num_passes += 1
        return (gradient * 1.5 if ctx.num_passes - 1 == ctx.wrong else gradient), None


class Faulty(Net):
    def __init__(self, wrong=None, num_more=0):
        super().__init__()
        self.wrong, self.num_more = wrong, num_more

    def forward(self, x):
        for _ in range(self.num_more):
            torch.tanh(torch.zeros(2, requires_grad=True)).sum().backward()
        hidden = self.trunk(x)
        self.middle = hidden
        hidden = torch.sigmoid(Turned.apply(hidden, self.wrong))
        return self.left(hidden), self.right(hidden)


def record_faulty(directory, wrong=None, num_more=0, **settings):
    model = Faulty(wrong, num_more)

    def step():
        for loss in losses_of(model, batch()):
            loss.backward(retain_graph=True)

    return record(directory, model, step, **{"task": "statistics", **settings}).directory


def test_equal_runs_agree(tmp_path):
    golden = record_faulty(tmp_path / "golden")
    (tmp_path / "b").mkdir()
    result = compare_dumps(record_faulty(tmp_path / "b" / "target"), golden)
    assert result.agrees
    rows = result.units[0].rows
    assert rows.filter(entry="Torch.tanh-pass1.0.backward").height == 2
    assert set(rows["match"]) == {"both"}


def test_calls_are_paired_with_those_of_their_pass_where_numbers_have_shifted(tmp_path):
    golden = record_faulty(tmp_path / "golden")
    result = compare_dumps(record_faulty(tmp_path / "target", num_more=1), golden)
    pairs = dict(result.units[0].rows.filter(match="both").select("entry", "entry_golden").unique().rows())
    assert pairs["Torch.tanh.1.backward"] == "Torch.tanh.0.backward"
    assert pairs["Torch.tanh-pass1.1.backward"] == "Torch.tanh-pass1.0.backward"


def test_a_fault_of_the_second_pass_is_found_there(tmp_path):
    golden = record_faulty(tmp_path / "golden")
    target = record_faulty(tmp_path / "target", wrong=1)
    result = compare_dumps(target, golden)
    assert not result.agrees
    wrong = set(result.units[0].rows.filter(verdict="error")["entry"].to_list())
    assert "Torch.tanh-pass1.0.backward" in wrong
    assert "Torch.tanh.0.backward" not in wrong
    found = locate(tmp_path / "target", tmp_path / "golden")
    assert found.verdict is LocateVerdict.FAULT
    assert "-pass1" in found.suspects[0].entry


def test_view_shows_the_passes(tmp_path):
    golden = record_faulty(tmp_path / "golden")
    graphs = StoredGraphs()
    build(golden, None, graphs)
    graph = msgspec.json.decode(graphs.content(0), type=Graph)
    graphs.close()
    nodes = zip(graph.name, graph.label, graph.parent, strict=True)
    shown = {name: (label, graph.name[parent]) for name, label, parent in nodes}
    assert shown["Torch.tanh-pass1.0.backward"] == ("tanh.0 pass 1", "Module.trunk.Block-pass1.backward.0")
    assert shown["Module.trunk.Block-pass1.backward.0"] == ("trunk pass 1", "Module.Faulty-pass1.backward.0")
    assert shown["Torch.tanh.0.backward"] == ("tanh.0", "Module.trunk.Block.backward.0")


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_call_of_a_later_pass_can_be_confirmed(tmp_path):
    golden = record_faulty(tmp_path / "golden", task="tensor")
    done = subprocess.run(
        [sys.executable, "-m", "msprobe_core", "confirm", golden, golden, "Torch.tanh-pass1.0.backward"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Torch.tanh-pass1.0.backward" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("converted_to", ["json", "arrow"])
def test_dumps_of_the_other_format_read_the_same(tmp_path, converted_to):
    written = {"json": "arrow", "arrow": "json"}[converted_to]
    (tmp_path / "c.json").write_text(json.dumps({"level": "mix", "risk_level": "ALL", "writer": written}))
    debugger = PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run")
    with debugger.start(model := Faulty()):
        for loss in losses_of(model, batch()):
            loss.backward(retain_graph=True)
    debugger.close()
    (unit,) = (tmp_path / "run" / "step0").iterdir()
    convert = [sys.executable, "-m", "msprobe_core", "convert", unit, tmp_path / "other", "--to", converted_to]
    subprocess.run(convert, check=True, capture_output=True)
    (tmp_path / "golden").mkdir()
    result = compare_dumps(tmp_path / "other", record_faulty(tmp_path / "golden" / "run"))
    assert result.agrees
    assert set(result.units[0].rows["match"]) == {"both"}
    assert "Torch.tanh-pass1.0.backward" in set(result.units[0].rows["entry"])
