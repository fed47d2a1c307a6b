"""Functions of the package take paths as text, and as any object that has one, like `compare_dumps`."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from dumps import api, tensor, write_dump

from msprobe_core import compare_dumps
from msprobe_core.api_check.dump_check import check_dump
from msprobe_core.calibrate import calibrate, find_repeats
from msprobe_core.compare.run import compare_run
from msprobe_core.config_check.runs import compare_runs
from msprobe_core.errors import MsprobeError
from msprobe_core.gradients.compare import compare_gradients
from msprobe_core.locate import LocateVerdict, locate
from msprobe_core.overflow import search
from msprobe_core.report.files import ResultFiles, TableOptions
from msprobe_core.view.build import build
from msprobe_core.view.stored_graphs import StoredGraphs


class Place:
    """An object of a path that is no `Path`."""

    def __init__(self, text):
        self.text = text

    def __fspath__(self):
        return self.text


@pytest.fixture(params=[str, Place], ids=["text", "object"])
def given(request, tmp_path, monkeypatch):
    for side, factor in (("a", 1.0), ("b", 2.0)):
        place = tmp_path / side / "step0" / "rank0"
        place.mkdir(parents=True)
        value = np.arange(6, dtype=np.float32).reshape(2, 3)
        record = api(tensor(value), output=tensor(value * factor))
        write_dump(place, {"Torch.f.0.forward": record}, parents={}, stacks={})
    monkeypatch.chdir(tmp_path)
    return request.param


def test_comparisons(given, tmp_path):
    assert locate(given("b"), given("a")).verdict is LocateVerdict.FAULT
    assert not compare_dumps(given("b"), given("a")).agrees
    result, _ = compare_run(given("b"), given("a"), ResultFiles(tmp_path / "out", TableOptions(stamp="1")))
    assert not result.agrees
    graphs = StoredGraphs()
    assert build(given("b"), given("a"), graphs, checks=None).units
    graphs.close()


def test_searches_of_one_run(given):
    assert os.fspath(search(given("a")).path) == "a"
    graphs = StoredGraphs()
    assert build(given("a"), None, graphs).units
    graphs.close()


def test_calibration(given):
    found = calibrate(given("a"), [given("b")], output=given("noise.parquet"))
    assert [os.fspath(found.path), *map(os.fspath, found.repeats)] == ["noise.parquet", "b"]
    shutil.copytree("b", "a/calibration/run1")
    assert [os.fspath(path) for path in find_repeats(given("a"))] == ["a/calibration/run1"]


@pytest.mark.parametrize("function", [compare_runs, compare_gradients])
def test_what_is_missing_is_an_error_of_the_package(given, function):
    with pytest.raises(MsprobeError):
        function(given("b"), given("a"))


def test_a_check_of_a_missing_dump_is_an_error_of_the_package(given):
    with pytest.raises(MsprobeError):
        list(check_dump(given("none")))
