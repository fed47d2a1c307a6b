"""What a page holds: the tree, who feeds whom, severities, the overview, and the document around them."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from dumps import tensor, write_dump
from rank_dumps import Rank, write_ranks
from view_pages import example

from msprobe_core.cli import main
from msprobe_core.cli.view import view as command
from msprobe_core.errors import CompareError
from msprobe_core.store.tensor_source import HeldTensor
from msprobe_core.view import data as data_types
from msprobe_core.view.build import build
from msprobe_core.view.data import Graph, ViewData, severity_of
from msprobe_core.view.heatmaps import axes_of, map_of
from msprobe_core.view.inputs import requested, subject_of
from msprobe_core.view.overview import layer_of
from msprobe_core.view.page_file import document, template, units_that_fit
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.suspects import Location
from msprobe_core.view.tree import tree_of

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 8))
HOSTILE = '</script><img src=x onerror="alert(1)">'


class Run:
    """Two layers around two calls each, forward and backward, with gradients, a loss and an optimizer."""

    def __init__(self, **faults):
        self.faults = faults
        self.data, self.parents = {}, {}

    def call(self, entry, parent, given, made, **fields):
        phase = "backward" if ".backward" in entry else "forward"
        names = ("input", "output") if phase == "backward" else ("input_args", "output")
        self.data[entry] = {names[0]: given, names[1]: [tensor(made)]} | fields
        self.parents[entry] = parent

    def record(self, micro_steps=1):
        for n in range(micro_steps):
            value = X + n
            for i in range(2):
                layer = f"Module.layers.{i}.Layer.forward.{n}"
                given, weight = value, np.full((8, 8), 0.1 * (i + 1)) + np.eye(8)
                made = given @ weight * self.faults.get(f"linear{i}", 1.0)
                number = 2 * n + i
                self.call(f"Functional.linear.{number}.forward", layer, [tensor(given), tensor(weight)], made)
                value = np.maximum(made, 0.01 * made)
                self.call(f"Functional.leaky_relu.{number}.forward", layer, [tensor(made)], value)
                parameters = {"weight": tensor(weight)}
                self.call(layer, f"Module.Model.forward.{n}", [tensor(given)], value, parameters=parameters)
            self.call(f"Module.Model.forward.{n}", None, [tensor(X + n)], value)
            self.call(f"Torch.mean.{n}.forward", None, [tensor(value)], value.mean())
            gradient = np.ones((4, 8)) + X
            self.call(f"Module.Model.backward.{n}", None, [tensor(gradient)], gradient * 2)
            self.data["Module.layers.0.Layer.parameters_grad.0"] = {"weight": [tensor(X * 3)]}
        self.call("Tensor.add_.0.forward", "optimizer", [tensor(X * 3)], X * 4)
        self.call("Tensor.add_.1.forward", "optimizer", [tensor(X * 3)], X * 5)
        return self

    def write(self, place, **header):
        write_dump(place, self.data, parents=self.parents, **header)
        return place


@pytest.fixture
def graphs():
    graphs = StoredGraphs()
    yield graphs
    graphs.close()


def graph_in(graphs, number=0) -> Graph:
    return msgspec.json.decode(graphs.content(number), type=Graph)


def made(graphs, target, golden=None, **options):
    return build(target, golden, graphs, **options)


def as_columns(graph, *names):
    return {name: tuple(getattr(graph, column)[i] for column in names) for i, name in enumerate(graph.name)}


# --- the tree -----------------------------------------------------------------------------------------------------


def test_parents_stand_before_what_is_in_them_and_siblings_in_the_order_of_their_first_call(tmp_path, graphs):
    made(graphs, Run().record().write(tmp_path / "a"))
    graph = graph_in(graphs)
    assert all(parent < i for i, parent in enumerate(graph.parent))
    assert [name for name in graph.name if "forward" in name][:7] == [
        "Module.Model.forward.0",
        "Module.layers.0.Layer.forward.0",
        "Functional.linear.0.forward",
        "Functional.leaky_relu.0.forward",
        "Module.layers.1.Layer.forward.0",
        "Functional.linear.1.forward",
        "Functional.leaky_relu.1.forward",
    ]
    assert len(set(graph.name)) == len(graph.name)


def test_what_runs_in_no_module_is_collected_and_the_optimizer_is_one(tmp_path, graphs):
    run = Run().record()
    for n in range(3):
        run.call(f"Torch.abs.{n}.forward", None, [tensor(X)], X * n)
    made(graphs, run.write(tmp_path / "a"))
    shown = as_columns(graph_in(graphs), "kind", "phase", "parent", "label")
    graph = graph_in(graphs)
    assert shown["optimizer"][:2] == ("collection", "optimizer")
    assert graph.name[shown["Tensor.add_.1.forward"][2]] == "optimizer"
    assert shown["Tensor.add_.1.forward"][1] == "optimizer"
    collection = graph.name[shown["Torch.abs.2.forward"][2]]
    assert collection.startswith("Apis_Between_Modules")
    assert shown[collection][:2] == ("collection", "forward")
    assert shown["Torch.mean.0.forward"][2] == -1  # alone, beside modules
    assert shown["Module.layers.0.Layer.parameters_grad.0"][0] == "value"
    assert shown["Module.layers.1.Layer.forward.0"][3] == "1"
    assert shown["Functional.linear.1.forward"][3] == "linear.1"


def test_micro_steps_are_those_of_the_outermost_module(tmp_path, graphs):
    data = made(graphs, Run().record(micro_steps=2).write(tmp_path / "a"))
    shown = as_columns(graph_in(graphs), "micro_step")
    assert data.units[0].micro_steps == 2
    assert shown["Functional.linear.1.forward"] == (0,)
    assert shown["Functional.linear.3.forward"] == (1,)
    assert shown["Torch.mean.1.forward"] == (1,)  # in no module, after the second forward
    assert (shown["Torch.mean.0.forward"], shown["optimizer"]) == ((0,), (0,))


def test_the_overview_has_micro_steps_apart(tmp_path, graphs):
    golden = Run().record(micro_steps=2)
    target = Run().record(micro_steps=2)
    entry = "Functional.leaky_relu.3.forward"  # of the second layer, in the second micro step
    target.data[entry]["output"] = [tensor(X * 5)]
    data = made(graphs, target.write(tmp_path / "t"), golden.write(tmp_path / "g"))
    assert data.heat.micro_steps.columns == [(0, 0), (0, 1)]
    row = [layer.name for layer in data.layers].index("layers.1")
    assert [severity > 0.5 for severity in data.heat.micro_steps.forward[row]] == [False, True]
    assert data.heat.forward[row] == [max(data.heat.micro_steps.forward[row])]


def test_without_several_micro_steps_there_are_none_apart(tmp_path, graphs):
    data = made(graphs, Run().record().write(tmp_path / "t"), Run(linear1=2.0).record().write(tmp_path / "g"))
    assert data.heat.micro_steps is None


def test_a_circle_of_parents_and_a_parent_without_record_are_survived():
    tree = tree_of(["a", "b", "c"], ["forward"] * 3, {"a": "b", "b": "a", "c": "Module.lost.Lost.forward.0"})
    assert sorted(tree.names) == ["Module.lost.Lost.forward.0", "a", "b", "c"]
    assert tree.parents[tree.names.index("c")] == tree.names.index("Module.lost.Lost.forward.0")
    assert tree.calls[tree.names.index("Module.lost.Lost.forward.0")] == -1


def test_what_began_first_stands_first_also_if_it_ended_later():
    parents = {"a": "Module.m.M.forward.0", "b": "Module.n.N.forward.0"}
    entries = ["a", "b", "Module.n.N.forward.0", "Module.m.M.forward.0"]
    assert tree_of(entries, ["forward"] * 4, parents).names == [
        "Module.m.M.forward.0",
        "a",
        "Module.n.N.forward.0",
        "b",
    ]


def test_a_thousand_calls_beside_each_other_are_divided():
    tree = tree_of([f"Torch.abs.{n}.forward" for n in range(1000)], ["forward"] * 1000, {})
    assert sum(parent == -1 for parent in tree.parents) == 5


# --- who feeds whom -----------------------------------------------------------------------------------------------


def test_edges_follow_values_between_the_innermost_calls(tmp_path, graphs):
    made(graphs, Run().record().write(tmp_path / "a"))
    graph = graph_in(graphs)
    edges = {(graph.name[a], graph.name[b]): graph.values.slot[row] for a, b, row in graph.edges}
    assert edges["Functional.linear.0.forward", "Functional.leaky_relu.0.forward"] == "input.0"
    assert edges["Functional.leaky_relu.0.forward", "Functional.linear.1.forward"] == "input.0"
    assert edges["Functional.leaky_relu.1.forward", "Torch.mean.0.forward"] == "input.0"
    assert not [edge for edge in edges if "Module.layers.1.Layer.forward.0" in edge]  # what is in it has the value
    assert edges["Module.layers.0.Layer.parameters_grad.0", "Tensor.add_.0.forward"] == "input.0"


def test_where_no_inner_calls_were_recorded_modules_are_connected(tmp_path, graphs):
    run = Run().record()
    run.data = {name: record for name, record in run.data.items() if name.startswith("Module")}
    made(graphs, run.write(tmp_path / "a"))
    graph = graph_in(graphs)
    edges = {(graph.name[a], graph.name[b]) for a, b, _ in graph.edges}
    assert ("Module.layers.0.Layer.forward.0", "Module.layers.1.Layer.forward.0") in edges


def test_values_that_many_calls_make_connect_nothing(tmp_path, graphs):
    zeros = tensor(np.zeros((4, 8)))
    data = {f"Torch.abs.{n}.forward": {"input_args": [zeros], "output": [zeros]} for n in range(4)}
    write_dump(tmp_path / "a", data)
    made(graphs, tmp_path / "a")
    assert graph_in(graphs).edges == []


# --- two runs -----------------------------------------------------------------------------------------------------


def test_a_fault_is_the_verdict_the_culprit_and_the_colour(tmp_path, graphs):
    golden = Run().record().write(tmp_path / "golden")
    target = Run(linear1=1.5).record().write(tmp_path / "target")
    data = made(graphs, target, golden)
    assert data.verdict.state == "fault"
    assert "Functional.linear.1.forward in Module.layers.1.Layer.forward.0: scale" in data.verdict.sentence.text
    culprit = data.culprits[0]
    assert (culprit.unit, culprit.node, culprit.strength) == (0, "Functional.linear.1.forward", "strong")
    graph = graph_in(graphs)
    shown = as_columns(graph, "own", "severity", "side", "partner", "reason")
    assert shown["Functional.linear.0.forward"] == (0.0, 0.0, "both", "Functional.linear.0.forward", "")
    own, _, _, _, reason = shown["Functional.linear.1.forward"]
    assert own > 0.5
    assert (reason.code, reason.fields["slot"]) == ("view.call.value", "output.0")
    assert reason.fields["findings"][0]["code"] == "row.error"
    assert shown["Module.Model.forward.0"][1] >= own
    assert shown["Module.layers.0.Layer.forward.0"][1] == 0.0
    row = graph.rows[graph.name.index("Functional.linear.1.forward")][-1]
    assert (graph.values.slot[row], graph.values.verdict[row]) == ("output.0", "error")
    assert graph.values.target["norm"][row] == pytest.approx(1.5 * graph.values.golden["norm"][row])
    assert graph.values.metrics["error"][row] == pytest.approx(0.5)
    assert graph.values.metrics["score"][row] == pytest.approx(500)
    assert data.verdict.counts.flagged == data.units[0].flagged > 0


def test_calls_of_one_side_are_grey_and_stand_in_the_module_that_has_them(tmp_path, graphs):
    golden, target = Run().record(), Run().record()
    golden.call("Torch.exp.0.forward", "Module.layers.1.Layer.forward.0", [tensor(X)], X * 7)
    target.call("Torch.sin.0.forward", "Module.layers.1.Layer.forward.0", [tensor(X)], X * 8)
    data = made(graphs, target.write(tmp_path / "t"), golden.write(tmp_path / "g"))
    graph = graph_in(graphs)
    shown = as_columns(graph, "side", "own", "partner", "parent")
    for name, side in (("Torch.exp.0.forward", "golden"), ("Torch.sin.0.forward", "target")):
        assert shown[name][:3] == (side, None, None)
        assert graph.name[shown[name][3]] == "Module.layers.1.Layer.forward.0"
    assert data.verdict.counts.unmatched == 2


def test_nothing_is_flagged_in_equal_runs(tmp_path, graphs):
    sides = [Run().record().write(tmp_path / side) for side in ("t", "g")]
    data = made(graphs, *sides)
    assert (data.verdict.state, data.culprits, data.verdict.counts.flagged) == ("agree", [], 0)
    assert set(graph_in(graphs).severity) == {0.0}


def test_calls_without_partner_may_be_called_alike(tmp_path, graphs):
    golden, target = Run().record(), Run().record()
    golden.call("Torch.exp.0.forward", None, [tensor(X)], X * 7)
    target.call("Torch.exp.0.forward", "optimizer", [tensor(X[:2])], X[:2])
    made(graphs, target.write(tmp_path / "t"), golden.write(tmp_path / "g"))
    names = graph_in(graphs).name
    assert len(set(names)) == len(names)


# --- one run ------------------------------------------------------------------------------------------------------


def test_a_single_run_has_no_severity_but_of_what_makes_nan(tmp_path, graphs):
    run = Run().record()
    data = made(graphs, run.write(tmp_path / "a"))
    assert (data.kind, data.verdict.state, data.heat) == ("dump", "none", None)
    assert set(graph_in(graphs).severity) == {None}
    bad = tensor(X, num_nan=1) | {"Max": "NaN", "Min": "NaN", "Mean": "NaN", "Norm": "NaN"}
    run.data["Functional.linear.1.forward"]["output"] = [bad]
    data = made(graphs, run.write(tmp_path / "b"))
    shown = as_columns(graph_in(graphs), "own", "reason")
    own, reason = shown["Functional.linear.1.forward"]
    assert (own, reason.code, reason.fields) == (1.0, "view.call.not-finite", {"slot": "output.0"})
    assert data.verdict.state == "fault"
    assert data.culprits[0].node == "Functional.linear.1.forward"


# --- several ranks and steps --------------------------------------------------------------------------------------


def two_ranks(place, **faults):
    for step in range(2):
        ranks = {}
        for number in range(2):
            rank = Rank()
            value = X * (number + 1) * faults.get(f"rank{number}", 1.0)
            rank.call("Functional.linear", tensor(X + number), output=tensor(value))
            rank.collective("all_reduce", given=tensor(value), got=tensor(X * 3))
            rank.send(1 - number, tensor(value)) if number == 0 else rank.receive(0, tensor(value))
            ranks[number] = rank
        write_ranks(place / f"step{step}", ranks)
    return place


def test_ranks_are_connected_by_their_communication(tmp_path, graphs):
    data = made(graphs, two_ranks(tmp_path / "run"))
    assert [unit.label for unit in data.units] == ["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"]
    peers = {
        name: each
        for name, each in zip(graph_in(graphs, 2).name, graph_in(graphs, 2).communication, strict=True)
        if each is not None
    }
    assert peers["Distributed.all_reduce.0.forward"].peers == [(3, "Distributed.all_reduce.0.forward")]
    send = peers["Distributed.send.0.forward"]
    assert (send.peers, send.sends, send.receives) == ([(3, "Distributed.recv.0.forward")], [0], [])


def test_heat_and_trends_are_by_layer_unit_and_step(tmp_path, graphs):
    data = made(graphs, two_ranks(tmp_path / "t", rank1=1.5), two_ranks(tmp_path / "g"))
    assert (data.heat.layers, data.heat.units) == (1, 4)
    assert data.heat.forward[0][0] == 0.0
    assert data.heat.forward[0][1] > 0.5
    assert data.culprits[0].unit == 1
    norm, *_ = [each for each in data.trends if (each.statistic, each.slot) == ("norm", "output.0")]
    assert norm.name == data.culprits[0].node == "Functional.linear.0.forward"
    assert data.trends[0].slot == "input.0"  # of culprits, everything is followed, and stands first
    assert norm.steps == [0, 1]
    assert norm.target["1"][0] == pytest.approx(1.5 * norm.golden["1"][0])


def test_layers_stand_before_what_contains_them(tmp_path, graphs):
    run = Run()
    run.call("Torch.neg.0.forward", "Module.Model.forward.0", [tensor(X)], X)  # the model's own, before its layers
    data = made(graphs, run.record().write(tmp_path / "a"))
    names = [layer.name for layer in data.layers]
    assert names == ["layers.0", "layers.1", "Model", "(outside of modules)", "optimizer"]


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("model.layers.3.mlp.down_proj", "model.layers.3"),
        ("model.embed_tokens", "model.embed_tokens"),
        ("encoder.block.0.layer.1.x", "encoder.block.0"),
        ("0.layers.2.norm", "0.layers.2"),
        ("0", "0"),
        ("head", "head"),
    ],
)
def test_layers_are_named_as_people_do(path, layer):
    assert layer_of(path) == layer


def test_steps_and_ranks_can_be_chosen(tmp_path):
    run = two_ranks(tmp_path / "run")
    done = CliRunner().invoke(command, [str(run), "-o", str(tmp_path / "o"), "--steps", "1", "--ranks", "0"])
    assert [unit["label"] for unit in data_of(tmp_path / "o" / "view.html")["units"]] == ["step1/rank0"], done.output


# --- maps ---------------------------------------------------------------------------------------------------------


def test_a_map_shows_where_the_error_is():
    golden = RNG.standard_normal((2, 3, 5, 4))
    target = golden.copy()
    target[1, 2, 3, 1] += 5.0
    heads = next(axes for axes in axes_of(golden.shape) if axes.names == ("head", "token"))
    found = map_of(0, "n", "output.0", HeldTensor(target), HeldTensor(golden), heads)
    assert (found.shape, found.sizes, found.worst) == ((3, 5), (3, 5), [1, 2, 3, 1])
    expected = math.sqrt(25 / 8) / np.sqrt((golden**2).mean())
    assert found.error[2][3] == pytest.approx(expected, rel=1e-3)
    assert sum(map(sum, found.error)) == pytest.approx(expected, rel=1e-3)
    assert found.golden[0][0] == pytest.approx(golden[:, 0, 0].mean(), rel=1e-3)


def test_the_worst_element_is_found_in_any_piece_of_a_tensor():
    golden = np.ones((1100, 1000), np.float32)
    target = golden.copy()
    target[3, 7], target[1099, 5] = 9.0, 2.0
    found = map_of(0, "n", "output.0", HeldTensor(target), HeldTensor(golden), axes_of(golden.shape)[0])
    assert found.worst == [3, 7]


def test_large_tensors_are_binned_and_other_shapes_have_no_map():
    golden = np.ones((1000, 300))
    target = golden.copy()
    target[999, 299] = np.nan
    axes = axes_of(golden.shape)[0]
    found = map_of(0, "n", "output.0", HeldTensor(target), HeldTensor(golden), axes)
    assert (found.shape, found.sizes, found.worst) == ((128, 128), (1000, 300), [999, 299])
    assert found.error[127][127] == "nan"
    assert found.error[0][0] == 0.0
    assert map_of(0, "n", "output.0", HeldTensor(target.T), HeldTensor(golden), axes) is None


# --- the document and the page ------------------------------------------------------------------------------------


def data_of(page):
    text = page.read_text()
    found = re.findall(r'<script type="application/octet-stream;base64" id="msprobe-data">([^<]*)</script>', text)
    assert len(found) == 1
    return json.loads(gzip.decompress(base64.b64decode(found[0], validate=True)))


@pytest.mark.parametrize("excess", [0.0, 1e-9, 0.5, 1.0, 3.0, 1e9, math.inf])
def test_severity_is_a_half_at_the_limit_and_grows(excess):
    severity = severity_of(excess)
    assert 0.0 <= severity <= 1.0
    assert (severity > 0.5) == (excess > 1.0)
    assert severity_of(None) is None
    assert severity_of(math.nan) is None


def test_hostile_names_never_leave_the_data(tmp_path):
    run = Run().record()
    run.call(f"Module.{HOSTILE}.Layer.forward.0", None, [tensor(X)], X, parameters={HOSTILE: tensor(X)})
    run.call(f"Torch.{HOSTILE}.0.forward", f"Module.{HOSTILE}.Layer.forward.0", [tensor(X)], X)
    place = run.write(tmp_path / HOSTILE.replace("/", ""))
    done = CliRunner().invoke(command, [str(place), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.html").read_text()
    before, after = template().split("<!--msprobe-data-->")
    assert text.startswith(before)
    assert text.endswith(after)
    assert "onerror=" not in text[len(before) : len(text) - len(after)]
    names = data_of(tmp_path / "page.html")["units"][0]["graph"]["name"]
    assert f"Module.{HOSTILE}.Layer.forward.0" in names


def test_the_document_is_what_its_description_says(tmp_path, graphs):
    data = made(graphs, two_ranks(tmp_path / "t", rank1=1.5), two_ranks(tmp_path / "g"))
    content = b"".join(document(data, graphs, [0, 3]))
    read = msgspec.json.decode(content, type=ViewData)
    assert [unit.graph is not None for unit in read.units] == [True, False, False, True]
    graph = msgspec.convert(json.loads(content)["units"][3]["graph"], Graph)
    nodes = len(graph.name)
    for column in graph.__struct_fields__:
        if column not in {"edges", "stacks", "values"}:
            assert len(getattr(graph, column)) == nodes, column
    values = graph.values
    num_values = len(values.slot)
    columns = [values.dtype, values.shape, values.verdict, values.reason, values.file]
    columns += [*values.target.values(), *values.golden.values(), *values.metrics.values()]
    assert {len(column) for column in columns} == {num_values}
    assert sorted(row for rows in graph.rows for row in rows) == list(range(num_values))


def test_a_file_has_the_graphs_of_culprits_first(tmp_path, graphs):
    data = made(graphs, two_ranks(tmp_path / "t", rank1=1.5), two_ranks(tmp_path / "g"))
    assert data.culprits[0].unit == 1
    units = [msgspec.structs.replace(unit, severity=0.6 if i == 1 else 0.9) for i, unit in enumerate(data.units)]
    data = msgspec.structs.replace(data, units=units)
    assert units_that_fit(data, graphs, max_bytes=max(graphs.sizes.values())) == [1]
    assert units_that_fit(data, graphs) == [0, 1, 2, 3]


def test_the_page_is_for_its_owner_only(tmp_path, graphs, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = StoredGraphs()
    made(own, Run().record().write(tmp_path / "a"))
    (file,) = tmp_path.glob("msprobe-view-*/*")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    own.close()
    assert not file.parent.exists()
    run = Run().record().write(tmp_path / "run")
    CliRunner().invoke(command, [str(run), "-o", str(tmp_path / "o" / "p.html")])
    assert (tmp_path / "o" / "p.html").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "o").stat().st_mode & 0o777 == 0o700


# --- what is looked at --------------------------------------------------------------------------------------------


def test_results_say_which_runs_they_are_of(tmp_path, graphs):
    golden = Run().record().write(tmp_path / "golden")
    target = Run(linear1=1.5).record().write(tmp_path / "target")
    # By the program's own entry: a command that is invoked alone first keeps click's help option, without -h, for good.
    for arguments in (
        ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "c")],
        ["locate", str(target), str(golden), "-o", str(tmp_path / "l")],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
    compared, located = subject_of(tmp_path / "c"), subject_of(tmp_path / "l" / "locate.json")
    assert (compared.target, compared.golden, compared.location) == (target, golden, None)
    assert isinstance(located.location, Location)
    data = made(graphs, located.target, located.golden, location=located.location)
    assert data.culprits[0].node == "Functional.linear.1.forward"
    (tmp_path / "target" / "dump.json").unlink()
    (tmp_path / "target" / "construct.json").unlink()
    (tmp_path / "target").rmdir()
    with pytest.raises(CompareError, match="is not there; give the directories of the two runs"):
        subject_of(tmp_path / "l")


def test_a_compare_json_names_one_run_or_two(tmp_path):
    run = Run().record().write(tmp_path / "run")
    request = tmp_path / "compare.json"
    request.write_text(json.dumps({"npu_path": str(run)}))
    assert requested(request).golden is None
    request.write_text(json.dumps({"npu_path": str(run), "bench_path": str(run), "is_print_compare_log": True}))
    assert requested(request).golden == run
    request.write_text("[]")
    with pytest.raises(CompareError, match="is not a compare"):
        requested(request)


def test_manual_matches_are_read_back(tmp_path):
    golden, target = Run().record(), Run().record()
    golden.call("Torch.exp.0.forward", None, [tensor(X)], X * 7)
    target.call("Torch.sin.0.forward", None, [tensor(X)], X * 7)
    mapping = tmp_path / "matches.yaml"
    rows = ("input.0", "output.0")
    mapping.write_text("".join(f"Torch.sin.0.forward.{row}: Torch.exp.0.forward.{row}\n" for row in rows))
    paths = [str(target.write(tmp_path / "t")), str(golden.write(tmp_path / "g"))]
    done = CliRunner().invoke(command, [*paths, "-o", str(tmp_path / "p.html"), "--mapping", str(mapping)])
    assert done.exit_code == 0, done.output
    graph = data_of(tmp_path / "p.html")["units"][0]["graph"]
    assert graph["partner"][graph["name"].index("Torch.sin.0.forward")] == "Torch.exp.0.forward"


def test_manual_unmatches_are_read_back(tmp_path):
    paths = [str(Run().record().write(tmp_path / side)) for side in ("t", "g")]
    mapping = tmp_path / "matches.yaml"
    rows = ("input.0", "input.1", "output.0")
    mapping.write_text("".join(f"Functional.linear.1.forward.{row}: null\n" for row in rows))
    done = CliRunner().invoke(command, [*paths, "-o", str(tmp_path / "p.html"), "--mapping", str(mapping)])
    assert done.exit_code == 0, done.output
    graph = data_of(tmp_path / "p.html")["units"][0]["graph"]
    place = graph["name"].index("Functional.linear.1.forward")
    assert (graph["partner"][place], graph["own"][place]) == (None, None)
    assert graph["partner"][graph["name"].index("Functional.linear.0.forward")] == "Functional.linear.0.forward"


@pytest.mark.parametrize("arguments", [("nowhere",), ("empty",), ("dump/dump.json", "empty")], ids=str)
def test_bad_input_is_a_sentence(tmp_path, arguments):
    from msprobe_core.errors import MsprobeError

    (tmp_path / "empty").mkdir()
    Run().record().write(tmp_path / "dump")
    given = [str(tmp_path / argument) for argument in arguments]
    done = CliRunner().invoke(command, [*given, "-o", str(tmp_path / "p.html")])
    assert isinstance(done.exception, MsprobeError)
    assert not (tmp_path / "p.html").exists()


def test_a_structure_without_values_has_a_graph_all_the_same(tmp_path, graphs):
    run = Run().record()
    entries = {entry: None for entry in run.data if "parameters_grad" not in entry}
    write_dump(tmp_path / "a", {}, parents=entries | run.parents, task="structure")
    assert "whose values were not recorded" in made(graphs, tmp_path / "a").verdict.sentence.text
    shown = as_columns(graph_in(graphs), "kind", "parent")
    assert graph_in(graphs).name[shown["Functional.linear.1.forward"][1]] == "Module.layers.1.Layer.forward.0"


def test_a_missing_call_is_the_golden_run_s_node(tmp_path, graphs):
    golden, target = Run().record(), Run().record()
    golden.call("Torch.exp.0.forward", "Module.layers.1.Layer.forward.0", [tensor(X)], X * 7)
    changed = Run(linear1=1.5).record()
    target.data["Module.layers.1.Layer.forward.0"] = changed.data["Module.layers.1.Layer.forward.0"]
    data = made(graphs, target.write(tmp_path / "t"), golden.write(tmp_path / "g"))
    culprit = data.culprits[0]
    assert (culprit.kind, culprit.node) == ("missing call", "Torch.exp.0.forward")
    graph = graph_in(graphs)
    assert graph.side[graph.name.index(culprit.node)] == "golden"


def test_what_all_ranks_say_is_said_once(tmp_path, graphs):
    sides = [two_ranks(tmp_path / side) for side in ("t", "g")]
    for rank in range(2):
        path = tmp_path / "t" / "step0" / f"rank{rank}" / "construct.json"
        path.write_text("{")
    data = made(graphs, *sides)
    assert len({note.text for note in data.notes}) == len(data.notes)


# --- the format ---------------------------------------------------------------------------------------------------

REPOSITORY = Path(__file__).parents[2]
DESCRIBED = {
    "ViewData": ViewData, "Side": data_types.Side, "Verdict": data_types.Verdict, "Culprit": data_types.Culprit,
    "Unit": data_types.Unit, "Layer": data_types.Layer, "Heat": data_types.Heat, "Trend": data_types.Trend,
    "MicroHeat": data_types.MicroHeat, "Dashboard": data_types.Dashboard, "MonitorRows": data_types.MonitorRows,
    "MonitorMap": data_types.MonitorMap, "MonitorEvent": data_types.MonitorEvent,
    "CoverageRow": data_types.CoverageRow, "CheckedDump": data_types.CheckedDump,
    "CheckedCall": data_types.CheckedCall, "CheckedOutput": data_types.CheckedOutput,
    "Configured": data_types.Configured, "ConfigDifference": data_types.ConfigDifference,
    "TensorMap": data_types.TensorMap, "Graph": Graph, "Peers": data_types.Peers, "Values": data_types.Values,
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_description_has_every_field_and_no_other(name):
    text = (REPOSITORY / "docs" / "view_format.md").read_text()
    (block,) = re.findall(rf"^{name} +(\{{.*?\}})(?=\n[A-Z`]|  +\[layer)", text, re.MULTILINE | re.DOTALL)
    inner, depth, fields = block[1:-1], 0, ""
    for character in inner:  # fields of what stands inside are not its own
        depth += character in "{[("
        fields += character if depth == 0 else ""
        depth -= character in "}])"
    words = [part.split(":")[0].split("|")[0].strip() for part in fields.split(",")]
    assert [word for word in words if word] == list(DESCRIBED[name].__struct_fields__)


@pytest.mark.parametrize("name", ["dump", "comparison"])
def test_the_examples_are_of_the_format(name):
    content = example(name)
    assert (content["format"], content["version"], content["kind"]) == ("msprobe-view", 2, name)
    for unit in content["units"]:
        graph = msgspec.convert(unit.pop("graph"), Graph)
        assert len(graph.name) == unit["nodes"]
        assert any(HOSTILE.partition(" ")[0] in each for each in graph.name)
    assert msgspec.convert(content, ViewData).units
