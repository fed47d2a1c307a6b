"""A page of a real training of two processes with a fault on one of them: what it says, and where it leads."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys

import msgspec
import pytest
import view_training
from jobs import run_job

from msprobe_core.view.data import Graph, ViewData

NODE = "Functional.layer_norm.1.forward"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    run_job(view_training.record, 2, directory, "tensor")
    return directory


def msprobe(*arguments):
    command = [sys.executable, "-m", "msprobe_core", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def data_of(page):
    text = page.read_text()
    packed = re.findall(r'id="msprobe-data">([A-Za-z0-9+/=]*)</script>', text)
    assert len(packed) == 1
    content = json.loads(gzip.decompress(base64.b64decode(packed[0])))
    graphs = [unit.pop("graph") for unit in content["units"]]
    data = msgspec.convert(content, ViewData)
    units = [
        msgspec.structs.replace(unit, graph=msgspec.convert(graph, Graph))
        for unit, graph in zip(data.units, graphs, strict=True)
    ]
    return msgspec.structs.replace(data, units=units)


@pytest.fixture(scope="module")
def data(job):
    done = msprobe("view", job / "target", job / "golden", "-o", job / "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"The runs first diverge in step 0, rank 1 at {NODE} in Module.layers.1.norm.LayerNorm")
    assert lines[-1].endswith(f": {job / 'page.html'}")
    assert (job / "page.html").stat().st_size < 2_500_000
    return data_of(job / "page.html")


def graph_of(data, number):
    graph = data.units[number].graph
    assert isinstance(graph, Graph)
    return graph


def test_the_culprit_is_the_planted_fault_and_is_in_its_graph(data):
    culprit = data.culprits[0]
    assert (culprit.node, culprit.step, list(culprit.ranks), culprit.kind) == (NODE, 0, [1], "other epsilon")
    assert data.units[culprit.unit].label == "step0/rank1"
    graph = graph_of(data, culprit.unit)
    place = graph.name.index(NODE)
    assert graph.own[place] == 1.0
    assert "0.5 and 1e-05" in graph.reason[place].text
    assert any("view_training.py" in frame for frame in graph.stacks[graph.stack[place]])
    assert graph.label[graph.parent[place]] == "norm"


def test_the_overview_shows_how_the_fault_spreads_over_ranks_and_steps(data):
    layers = [layer.name for layer in data.layers]
    heat = data.heat.forward
    # In the second step rank 0 has parameters that the fault has moved, and computes right what follows from them.
    assert [severity <= 0.5 for severity in heat[layers.index("layers.1")]] == [True, False, True, False]
    assert heat[layers.index("layers.0")][:2] == [0.0, 0.0]
    backward = data.heat.backward[layers.index("layers.0")]
    assert (backward[0], backward[1] > 0.5) == (0.0, True)


def test_gradients_that_are_averaged_connect_the_ranks(data):
    graph = graph_of(data, 0)
    reduced = [name for name, peers in zip(graph.name, graph.communication, strict=True) if peers is not None]
    assert len(reduced) == 23  # one for each parameter
    peers = graph.communication[graph.name.index(reduced[0])]
    assert peers.peers == [(1, reduced[0])]


def test_values_flow_from_layer_to_layer(data):
    graph = graph_of(data, 0)
    edges = {(graph.name[a], graph.name[b]) for a, b, _ in graph.edges}
    assert ("Tensor.__add__.1.forward", NODE) in edges  # the end of one layer, the begin of the next
    assert (NODE, "Functional.linear.4.forward") in edges
    assert ("Functional.linear.7.backward", "Functional.gelu.1.backward") in edges


def test_maps_show_whole_tensors_of_the_culprit(data):
    first = next(each for each in data.tensors if each.node == NODE)
    assert (first.unit, first.slot, first.axes) == (1, "output.0", ("token", "channel"))
    assert first.sizes == (2 * view_training.TOKENS, view_training.WIDTH)
    assert len(first.worst) == 3
    assert max(max(row) for row in first.error) > 0.1


def test_a_hostile_name_is_data_only(job, data):
    text = (job / "page.html").read_text()
    assert view_training.HOSTILE not in text
    assert any(view_training.HOSTILE in name for name in graph_of(data, 0).name)


@pytest.mark.slow
def test_results_are_looked_at_and_one_run_is_explored(job, tmp_path):
    assert msprobe("locate", job / "target", job / "golden", "-o", tmp_path).returncode == 1
    done = msprobe("view", tmp_path, "-o", tmp_path / "located.html", "--no-maps")
    assert done.returncode == 0, done.stderr
    located = data_of(tmp_path / "located.html")
    assert located.culprits[0].node == NODE
    assert located.tensors == []
    done = msprobe("view", job / "golden", "-o", tmp_path / "one.html", "--steps", "1")
    assert done.returncode == 0, done.stderr
    one = data_of(tmp_path / "one.html")
    assert ([unit.label for unit in one.units], one.kind) == (["step1/rank0", "step1/rank1"], "dump")
