"""Cells of a net in GRAPH_MODE are recorded as those of the dynamic graph are, and the net computes the same."""

import json
import math

import numpy as np
import pytest

from msprobe_core.capture import step_record
from tests.support.graph_nets import Net, arrays_in, filled, ms, record, step_of


@pytest.fixture(scope="module")
def inputs():
    return filled(2, 3, seed=5), filled(2, 3, seed=6)


@pytest.fixture(scope="module")
def graph(inputs, tmp_path_factory):
    """A step in GRAPH_MODE, undumped and dumped."""
    ms.set_context(mode=ms.GRAPH_MODE)
    place = tmp_path_factory.mktemp("graph")
    try:
        plain = step_of(Net(), *inputs, positions=(0, 1))()
        net = Net()
        run = step_of(net, *inputs, positions=(0, 1))
        dump, result = record(net, run, place / "dump", task="tensor")
        yield net, run, dump, plain, result
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture(scope="module")
def dynamic(inputs, tmp_path_factory, graph):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.runtime.launch_blocking()
    net = Net()
    dump, _ = record(net, step_of(net, *inputs, positions=(0, 1)), tmp_path_factory.mktemp("dynamic"), task="tensor")
    ms.set_context(mode=ms.GRAPH_MODE)
    return dump


def test_nothing_that_is_computed_changes(graph):
    _, _, _, plain, result = graph
    assert arrays_in(plain) == arrays_in(result)
    assert len(arrays_in(plain)) == 1 + 2 + 9


def test_names_are_those_of_the_dynamic_graph(graph, dynamic):
    _, _, dump, _, _ = graph
    assert set(dump.entries) == set(dynamic.entries)
    assert "Cell.block.Block.forward.1" in dump.entries
    assert "Cell.block.fc.Dense.parameters_grad.0" in dump.entries
    assert dump.parents == dynamic.parents


def test_values_are_those_of_the_dynamic_graph(graph, dynamic):
    _, _, dump, _, _ = graph
    golden, found = dynamic.tensors, dump.tensors
    assert len(found) > 60
    # A result that nothing uses has a gradient of zeros in one, or none at all.
    assert not [name for name in golden.keys() - found.keys() if golden[name].any()]
    assert not [name for name in found.keys() - golden.keys() if found[name].any()]
    assert len(found.keys() ^ golden.keys()) <= 3
    for name in found.keys() & golden.keys():
        np.testing.assert_allclose(found[name], golden[name], rtol=1e-5, atol=1e-5, err_msg=name)
        assert found[name].shape == golden[name].shape, name


def test_records_have_the_same_shape(graph, dynamic):
    _, _, dump, _, _ = graph
    for name, entry in dynamic.entries.items():
        if "forward" in name:
            assert _without_values(dump.entries[name]) == _without_values(entry), name


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_when_entries_are_written_does_not_show_in_the_dump(inputs, tmp_path, monkeypatch, graph, mode):
    net, run, _, _, _ = graph
    ms.set_context(mode=mode)
    if mode == ms.PYNATIVE_MODE:
        net = Net()
        run = step_of(net, *inputs, positions=(0, 1))
    written = []
    try:
        for seconds in (0.0, math.inf):
            monkeypatch.setattr(step_record, "BACKLOG_SECONDS", seconds)
            record(net, lambda run=run: [run() for _ in range(2)], tmp_path / str(seconds))
            (path,) = (tmp_path / str(seconds)).rglob("dump.json")
            written.append(list(json.loads(path.read_text())["data"].items()))
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    assert len(written[0]) > 20
    assert written[0] == written[1]


def _without_values(tree):
    if isinstance(tree, dict):
        left_out = {"Max", "Min", "Mean", "Norm", "requires_grad", "execution", "data_name", "num_nan", "num_inf"}
        return {key: _without_values(item) for key, item in tree.items() if key not in left_out}
    return [_without_values(item) for item in tree] if isinstance(tree, list) else tree


def test_a_graph_runs_forward_first_in_the_dump(graph):
    _, _, dump, _, _ = graph
    phases = [name.split(".")[-2] for name in dump.entries]
    assert phases == sorted(phases, key=("forward", "backward", "parameters_grad").index)


def test_nothing_is_left_in_the_cells(graph):
    net, _, _, _, _ = graph
    for _, cell in net.cells_and_names():
        assert "construct" not in vars(cell)
        assert not [name for name in vars(cell) if "msprobe" in name]
    assert not any(parameter.hooks() for parameter in net.get_parameters())


@pytest.mark.parametrize("summary_mode", ["md5", "xor", "hash", "sketch", "statistics"])
def test_every_summary_is_had_of_the_same_graph(graph, summary_mode, tmp_path):
    net, run, _, plain, _ = graph
    dump, result = record(net, run, tmp_path / "dump", block={"summary_mode": summary_mode})
    assert arrays_in(plain) == arrays_in(result)
    (value,) = dump.entries["Cell.layers.0.Dense.forward.0"]["input_args"]
    assert (value["dtype"], value["shape"]) == ("Float32", [2, 3])
    assert {"statistics": "Max", "sketch": "sketch"}.get(summary_mode, "md5") in value


def test_structure_list_and_direction_are_respected(graph, tmp_path):
    net, run, _, _, _ = graph
    structure, _ = record(net, run, tmp_path / "structure", task="structure")
    assert structure.parents["Cell.block.fc.Dense.forward.1"] == "Cell.block.Block.forward.1"
    listed, _ = record(net, run, tmp_path / "list", block={"list": ["layers"]})
    assert {name.split(".")[1] for name in listed.entries} == {"layers"}
    names = ["Cell.sequence.0.Dense.forward.0", "Cell.layers.0.Dense.forward.0"]
    scope, _ = record(net, run, tmp_path / "scope", block={"scope": names})
    found = [name for name in scope.entries if "forward" in name]
    assert found == [names[0], "Cell.sequence.1.Tanh.forward.0", names[1]]
    forward, _ = record(net, run, tmp_path / "forward", block={"data_mode": ["forward"]})
    assert not [name for name in forward.entries if "forward" not in name]
    assert len(forward.entries) == 10


@pytest.mark.slow
def test_an_unselected_step_is_compiled_with_points_too(inputs, tmp_path, graph):
    from msprobe.mindspore import PrecisionDebugger

    net = Net()
    run = step_of(net, *inputs)
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L0", step=[1])
    try:
        for _ in range(3):
            debugger.start(net)
            run()
            debugger.stop()
            debugger.step()
    finally:
        debugger.close()
    assert [path.parent.parent.name for path in tmp_path.rglob("dump.json")] == ["step1"]
    (path,) = tmp_path.rglob("dump.json")
    assert "Cell.block.Block.backward.1" in path.read_text()
