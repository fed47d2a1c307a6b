"""Columns of plugins in the table of compared tensors."""

import json
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from msprobe_core.cli.main import _run
from msprobe_core.compare import compare_dumps, custom_metrics
from msprobe_core.compare.custom_metrics import CustomMetrics
from msprobe_core.compare.pairing_codes import MadeAlikeCode
from msprobe_core.hookspecs import hookimpl
from msprobe_core.plugins import Plugin, registry
from msprobe_core.protocols.presentation import TableChoices
from msprobe_core.report.files import format_called
from msprobe_core.store.tensor_source import HeldTensor
from msprobe_core.view.build import build
from msprobe_core.view.stored_graphs import StoredGraphs


class Metric:
    def __init__(self, name, compare):
        self.name, self.compare = name, compare


def ask(*metrics, target=(1.0, 2.0), golden=(1.0, 4.0), dtype=np.float32):
    found = CustomMetrics(metrics)
    found.compare(0, HeldTensor(np.array(target, dtype)), HeldTensor(np.array(golden, dtype)))
    return found


def fail(target, golden):
    raise ZeroDivisionError("nothing to divide by")


def test_cells_are_numbers_or_text():
    found = ask(
        Metric("float", lambda t, g: np.float32(np.abs(t - g).max())),
        Metric("int", lambda t, g: int((t != g).sum())),
        Metric("text", lambda t, g: "far apart"),
        Metric("other", lambda t, g: [t, g]),
    )
    cells = {column.name: column.to_list() for column in found.columns(2)}
    assert cells["metric:float"] == [2.0, None]
    assert cells["metric:int"] == [1.0, None]
    assert cells["metric:text"] == ["far apart", None]
    assert cells["metric:other"] == [None, None]
    [note] = found.notes(["x", "y"])
    assert note.code is MadeAlikeCode.METRIC_FAILED
    assert (note.fields["metric"], note.fields["count"], note.fields["first"]) == ("'other'", 1, "x")
    assert note.fields["why"].startswith("TypeError: it returned")


def test_what_a_metric_raises_costs_its_cell_and_is_noted():
    found = CustomMetrics([Metric("fails", fail), Metric("works", lambda t, g: 1.5)])
    for row in (7, 3):
        found.compare(row, HeldTensor(np.ones(3)), HeldTensor(np.ones(3)))
    assert [column.to_list()[3] for column in found.columns(8)] == [None, 1.5]
    names = [f"row {i}" for i in range(8)]
    [note] = found.notes(names)
    assert (note.fields["count"], note.fields["first"]) == (2, "row 3")
    assert note.fields["why"] == "ZeroDivisionError: nothing to divide by"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64), (np.int64, np.float64),
     (np.bool_, np.float64), (np.complex64, np.complex128)],
)  # fmt: skip
def test_arrays_are_floats_of_the_tensors_shape(stored, expected):
    seen = []
    found = CustomMetrics([Metric("m", lambda t, g: seen.extend((t, g)) or 0)])
    values = np.arange(6).reshape(2, 3).astype(stored)
    found.compare(0, HeldTensor(values), HeldTensor(values.T.copy()))
    assert [(array.shape, array.dtype) for array in seen] == [((2, 3), expected), ((3, 2), expected)]
    np.testing.assert_array_equal(seen[0], values)


@pytest.mark.parametrize("name", ["Cosine", "cosine", "Result", "NPU max", "", "taken", "verdict", "target_x"])
def test_those_with_names_of_other_columns_alone_are_left_out(name):
    found = CustomMetrics([Metric(name, fail), Metric("other", fail)], reserved=["taken"])
    assert [column.name for column in found.columns(1)] == ["metric:other"]
    (note,) = found.notes(["x"])
    assert note.code is MadeAlikeCode.METRIC_LEFT_OUT
    assert note.fields["metric"].startswith(f"the metric '{name}'")


def test_the_titles_of_the_core_s_tables_are_reserved(tmp_path):
    path = write_dump(tmp_path, [np.ones(3, np.float32)])
    unit = compare_dumps(path, path).units[0]
    tables = [format_called(name).table(unit, TableChoices(has_stacks=True)) for name in ("ours", "a", "c")]
    titles = {column.header for table in tables for column in table.columns}
    assert len(titles) > 50
    for title in titles:
        assert not CustomMetrics([Metric(title, fail)], unit.rows.columns)


def test_large_tensors_are_left_out_and_others_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(custom_metrics, "MAX_BYTES", 8 * 100)
    found = CustomMetrics([Metric("m", lambda t, g: 1)])
    found.compare(0, HeldTensor(np.ones(101)), HeldTensor(np.ones(101)))
    assert found.columns(1)[0].to_list() == [None]
    assert "is not read whole" in found.notes(["x"])[0].fields["why"]

    monkeypatch.setattr(custom_metrics, "_SMALL_BYTES", 8)
    together, most = 0, 0

    def count(target, golden):
        nonlocal together, most
        together += 1
        most = max(most, together)
        threading.Event().wait(0.02)
        together -= 1
        return 0

    found = CustomMetrics([Metric("m", count)])
    ones = HeldTensor(np.ones(50))
    threads = [threading.Thread(target=found.compare, args=(row, ones, ones)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def write_dump(directory, values):
    (directory / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for i, array in enumerate(values):
        np.save(directory / "dump_tensor_data" / f"{i}.npy", array)
        record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(array.shape), "requires_grad": False}
        record |= {"Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0, "data_name": f"{i}.npy"}
        data[f"Functional.relu.{i}.forward"] = {"input_args": [], "input_kwargs": {}, "output": [record]}
    content = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (directory / "dump.json").write_text(json.dumps(content))
    return directory / "dump.json"


@pytest.fixture
def plug_in():
    def add(*metrics):
        module = SimpleNamespace(msprobe_register_metrics=hookimpl(lambda: list(metrics)), __doc__="An example.")
        registry().add(Plugin("example", None, "test"), lambda: module)

    yield add
    if registry().manager.get_plugin("example") is not None:
        registry().manager.unregister(name="example")
    registry()._plugins.pop("example", None)


def test_a_plugin_adds_a_column(tmp_path, plug_in):
    plug_in(Metric("SignChanges", lambda t, g: int((np.sign(t) != np.sign(g)).sum())), Metric("fails", fail))
    ones = np.ones(3, np.float32)
    target = write_dump(tmp_path / "t", [-ones, ones, np.ones((2, 2), np.float32)])
    golden = write_dump(tmp_path / "g", [ones, ones, np.ones(4, np.float32)])
    unit = compare_dumps(target, golden).units[0]
    assert unit.rows["metric:SignChanges"].to_list() == [3.0, 0.0, None]
    assert any("'fails' could not be computed for 2 tensors" in note for note in unit.notes)


def test_a_metric_with_the_name_of_a_column_costs_no_comparison(tmp_path, plug_in):
    plug_in(Metric("error", fail))
    path = write_dump(tmp_path / "t", [np.ones(3, np.float32)])
    (unit,) = compare_dumps(path, path).units
    assert unit.agrees
    assert any("the metric 'error' of the plugin 'example' is left out" in note for note in unit.notes)


def test_of_a_name_that_is_offered_twice_the_first_is_taken(tmp_path, plug_in, caplog):
    plug_in(Metric("m", lambda t, g: 1), Metric("m", fail))
    path = write_dump(tmp_path / "t", [np.ones(3, np.float32)])
    assert compare_dumps(path, path).units[0].rows["metric:m"].to_list() == [1.0]
    assert "offers 'm' twice" in caplog.text


@pytest.mark.parametrize("cells", [("far apart", "far apart"), ("far apart", 2.5)], ids=["text", "text and number"])
def test_text_is_shown_on_the_page_and_exported(tmp_path, plug_in, cells):
    plug_in(Metric("words", lambda t, g: cells[int(t[0] > 0)]))
    for side, sign in (("t", 1), ("g", 2)):
        write_dump(tmp_path / side / "step0" / "rank0", [-np.ones(3, np.float32), sign * np.ones(3, np.float32)])
    subject = [str(tmp_path / side) for side in "tg"]
    with closing(StoredGraphs()) as graphs:
        data = build(*map(Path, subject), graphs)
        graph = json.loads(graphs.content(0) or b"null")
    assert len(data.units) == 1
    assert graph["values"]["metrics"]["words"] == [*map(str, cells)]
    assert _run(["export", *subject, "-o", str(tmp_path / "e"), "--tb-database", "--model-explorer", "--perfetto"]) == 0
