"""Statistics that plugins offer: recorded, stored, merged, shown and judged; the example of such a plugin."""

import csv
import importlib
import json
import math
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dumps import api, tensor, write_dump
from numpy_layers import ArrayFramework, ArrayReducer, Network, train_step

from msprobe_core import PrecisionDebugger
from msprobe_core.capture import Session
from msprobe_core.cli.main import _run
from msprobe_core.compare.extra_statistics import merged_extra
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.unit import compare_unit
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError, PluginError
from msprobe_core.plugin import Merging, Statistic, hookimpl
from msprobe_core.plugins import Plugin, registry
from msprobe_core.store.frame import numbers_of
from msprobe_core.store.reading import read_dump
from msprobe_core.testing import StatisticContract
from msprobe_core.view.calls import calls_of_dump, calls_of_pair

EXAMPLE = Path(__file__).parents[2] / "examples" / "statistics_plugin"


@contextmanager
def offered(*statistics, name="own"):
    @hookimpl(specname="msprobe_register_statistics")
    def offer():
        return statistics

    registry().add(Plugin(name, "1.0", f"msprobe-{name}"), lambda: SimpleNamespace(msprobe_register_statistics=offer))
    try:
        yield
    finally:
        registry().manager.unregister(name=name)
        registry()._plugins.pop(name)


def statistic(name="own", reduce=lambda values, _: abs(values).max(), **settings):
    return Statistic(name=name, summary="a number", reduce=reduce, **settings)


# --- the example --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    assert 'moments = "msprobe_moments.hooks"' in (EXAMPLE / "pyproject.toml").read_text()
    sys.path.insert(0, str(EXAMPLE))
    module = importlib.import_module("msprobe_moments.hooks")
    sys.path.remove(str(EXAMPLE))
    return module


@pytest.fixture(params=["zeros", "absmax", "kurtosis"])
def of_example(example, request):
    return next(each for each in example.msprobe_register_statistics() if each.name == request.param)


class TestExample(StatisticContract):
    @pytest.fixture
    def statistic(self, of_example):
        return of_example


@pytest.mark.parametrize("scale", [1, 1e-30, 1e12])
def test_the_kurtosis_is_that_of_its_source(example, scale):
    values = np.random.default_rng(1).exponential(size=1000)
    centred = values - values.mean()
    expected = np.mean(centred**4) / np.mean(centred**2) ** 2
    assert example.kurtosis((values * scale).astype(np.float32), None) == pytest.approx(expected, rel=1e-4)


# --- recording ----------------------------------------------------------------------------------------------------


def recorded(path, *names, writer="json", framework=None, model=None, **settings):
    config = load_config(None, dump_path=path, level="mix", writer=writer, extra_statistics=names, **settings)
    session = Session(config, framework or ArrayFramework())
    model = model or Network()
    session.start([model])
    loss = train_step(model, 0)
    session.stop()
    session.step()
    session.close()
    return loss


BARE = train_step(Network(), 0)


@pytest.mark.parametrize("writer", ["json", "arrow"])
@pytest.mark.parametrize("mode", ["statistics", "hash"])
def test_they_are_recorded_of_every_tensor_in_both_formats(tmp_path, example, writer, mode):
    (tmp_path / "c.json").write_text(json.dumps({"statistics": {"summary_mode": mode}}))
    with offered(*example.msprobe_register_statistics()):
        settings = {"level": "mix", "writer": writer, "extra_statistics": ["absmax", "zeros"]}
        config = load_config(tmp_path / "c.json", dump_path=tmp_path / "run", **settings)
        session = Session(config, ArrayFramework())
        session.start([model := Network()])
        assert train_step(model, 0) == BARE
        session.stop()
        session.step()
        session.close()
    rows = read_dump(next((tmp_path / "run").glob("step0/*"))).frame.filter(kind="tensor")
    assert rows.height > 10
    for name, text, high, low, numel in rows.select("name", "extra", "max", "min", "numel").rows():
        if numel:
            found = numbers_of(text)
            assert list(found) == ["absmax", "zeros"], name
            assert 0 <= found["zeros"] <= 1
            if mode == "statistics":
                assert found["absmax"] == max(abs(high), abs(low))
    assert rows["max"].null_count() == (0 if mode == "statistics" else rows.height)


def test_one_that_raises_is_dropped_and_the_others_go_on(tmp_path, caplog):
    calls = []

    def fail_later(values, _):
        calls.append(len(values))
        if len(calls) == 3:
            raise SystemExit(3)
        return 1.0

    with offered(statistic("first", fail_later), statistic("second", lambda values, _: len(values))):
        assert recorded(tmp_path / "run", "first", "second") == BARE
    rows = read_dump(next((tmp_path / "run").glob("step0/*"))).frame.filter(kind="tensor")
    found = [numbers_of(text) for text in rows["extra"] if text is not None]
    assert sum("first" in each for each in found) == 2
    assert all(each["second"] == numel for each, numel in zip(found, rows["numel"], strict=True))
    assert rows["failure"].null_count() == rows.height
    assert len(calls) == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "the statistic 'first' of the plugin 'own' failed at reduce (SystemExit: 3); it is recorded no"
    )


@pytest.mark.parametrize("result", [None, "3", np.ones(2)], ids=["nothing", "text", "several"])
def test_what_is_no_number_is_said(tmp_path, caplog, result):
    with offered(statistic(reduce=lambda *_: result)):
        assert recorded(tmp_path / "run", "own") == BARE
    assert len(caplog.records) == 1
    assert "the statistic 'own' of the plugin 'own'" in caplog.text


def test_it_cannot_write_to_the_training(tmp_path, caplog):
    def overwrite(values, _):
        values[:] = 0

    with offered(statistic(reduce=overwrite)):
        assert recorded(tmp_path / "run", "own") == BARE
    assert "read-only" in caplog.text


def test_what_cannot_be_recorded_is_refused(tmp_path):
    with offered(statistic()):
        with pytest.raises(ConfigError, match="'extra_statistics' is 'other'; allowed: own"):
            recorded(tmp_path / "run", "other")
        with pytest.raises(ConfigError, match="'extra_statistics' is 'owns'; did you mean 'own'\\? allowed: own"):
            recorded(tmp_path / "run", "owns")
        for settings in ({"task": "structure"}, {"task": "acc_check", "level": "L1"}, {"level": "L2"}):
            with pytest.raises(
                ConfigError, match="'extra_statistics' are recorded by the tasks statistics, tensor, over"
            ):
                load_config(None, dump_path=tmp_path, extra_statistics=["own"], **settings)

        class Reducer:
            def __init__(self):
                self._own = ArrayReducer()

            def __getattr__(self, name):
                if name == "extra_statistics":
                    raise AttributeError(name)
                return getattr(self._own, name)

        class Framework(ArrayFramework):
            def reducer(self):
                return Reducer()

        with pytest.raises(PluginError, match="'extra_statistics' are not available for numpy"):
            recorded(tmp_path / "run", "own", framework=Framework())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "max"}, "cannot be named 'max'"),
        ({"name": "fp8_x"}, "cannot be named"),
        ({"name": "Zeros"}, "cannot be named"),
        ({"name": "a b"}, "cannot be named"),
        ({"name": "a" * 41}, "cannot be named"),
        ({"limit": -1.0}, "the limit of the statistic 'own' is -1.0"),
        ({"limit": math.nan}, "the limit of the statistic 'own' is nan"),
    ],
)
def test_a_wrong_declaration_is_refused(settings, reason):
    with pytest.raises(PluginError, match=reason):
        statistic(**settings)


@pytest.mark.parametrize("wrong", [{"merge": "median"}, {"limit": "much"}, {"reduce": 3}, {"is_relative": 2}], ids=str)
def test_a_field_of_another_type_leaves_the_offer_out(wrong):
    offer = statistic()
    for name, value in wrong.items():
        object.__setattr__(offer, name, value)
    with offered(offer):
        assert registry().statistics() == {}
        assert "own" in next(each.problem for each in registry().plugins if each.name == "own")


# --- comparing ----------------------------------------------------------------------------------------------------

ENTRY = "Functional.relu.0.forward"


def valued(**extra):
    """Return a tensor that is equal on all sides, with these statistics."""
    return {**tensor(1.0), "extra_statistics": extra}


def compared(tmp_path, target, golden, *options, rank="rank0"):
    for side, extra in (("target", target), ("golden", golden)):
        write_dump(tmp_path / side / "step0" / rank, {ENTRY: api(tensor(1.0), output=valued(**extra))})
    sides = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden")]
    status = _run(["compare", *sides, "-o", str(tmp_path / "out"), *options])
    (table,) = (tmp_path / "out").glob("**/compare_result*.csv")
    with table.open() as file:
        return status, {row["target_name"]: row for row in csv.DictReader(file)}[f"{ENTRY}.output.0"]


@pytest.mark.parametrize(
    ("settings", "target", "golden", "status"),
    [
        ({"limit": 0.01}, 1.005, 1.0, 0),
        ({"limit": 0.01}, 1.02, 1.0, 1),
        ({"limit": 0.01}, -98.0, -100.0, 1),
        ({"limit": 0.01, "is_relative": False}, 100.005, 100.0, 0),
        ({"limit": 0.01, "is_relative": False}, 100.02, 100.0, 1),
        ({"limit": 0.0}, 3.0, 3.0, 0),
        ({"limit": 0.0}, 3.0000001, 3.0, 1),
        ({"limit": 0.5}, 1e-9, 0.0, 1),
        ({"limit": 0.5}, "NaN", "NaN", 0),
        ({"limit": 0.5}, "NaN", 1.0, 1),
        ({"limit": 0.5}, 1.0, "Infinity", 1),
        ({"limit": 0.5}, "-Infinity", "Infinity", 1),
        ({"limit": 0.5}, "Infinity", "Infinity", 0),
        ({"limit": 0.5}, None, 1.0, 0),
        ({}, 5.0, 1.0, 0),
    ],
    ids=str,
)
def test_a_limit_decides_as_declared(tmp_path, capsys, settings, target, golden, status):
    with offered(statistic(**settings)):
        found, row = compared(tmp_path, {"own": target}, {"own": golden})
    assert (found, row["verdict"]) == (status, "error" if status else "pass")
    assert ("row.statistic" in row["codes"]) == bool(status)
    assert (f"First fault: {ENTRY}" in capsys.readouterr().out) == bool(status)
    if isinstance(target, float) and isinstance(golden, float):
        assert (float(row["target_own"]), float(row["golden_own"])) == (target, golden)
        assert float(row["own_diff"]) == target - golden


def test_the_worst_of_several_is_named(tmp_path):
    both = statistic("first", limit=0.1), statistic("second", limit=0.001), statistic("third")
    with offered(*both):
        _, row = compared(
            tmp_path, {"first": 1.2, "second": 1.1, "third": 9.0}, {"first": 1.0, "second": 1.0, "third": 1.0}
        )
    assert row["reason"] == "error: the statistic second differs by 0.1, and its limit is 0.001."


def test_a_limit_by_name_takes_precedence(tmp_path):
    with offered(statistic(limit=0.01)):
        status, row = compared(tmp_path, {"own": 2.0}, {"own": 1.0}, "--limit", "relu", "rel<=0.1")
    assert (status, row["verdict"]) == (0, "pass")


@pytest.mark.parametrize("noise", ["auto", "closed"])
def test_a_model_of_noise_excuses_nothing_of_it(tmp_path, noise):
    with offered(statistic(limit=0.01)):
        status, row = compared(tmp_path, {"own": 2.0}, {"own": 1.0}, "--noise", noise)
    assert (status, row["verdict"]) == (1, "error")


def test_one_that_no_plugin_offers_is_shown_and_not_judged(tmp_path, capsys):
    status, row = compared(tmp_path, {"strange": 2.0, "max": 3.0}, {"strange": 1.0, "max": 4.0})
    assert (status, row["verdict"], row["target_strange"], row["strange_diff"]) == (0, "pass", "2.0", "1.0")
    assert "because no plugin here offers them: strange" in capsys.readouterr().out
    assert row["target_max"] != "3.0"


@pytest.mark.parametrize("extra", [3, [1], {"own": "text"}, {"own": [1]}, {"own": {}}, {"": 1}], ids=str)
def test_what_is_malformed_costs_no_more_than_itself(tmp_path, extra):
    for side in ("target", "golden"):
        record = {**tensor(1.0), "extra_statistics": extra}
        write_dump(tmp_path / side / "step0" / "rank0", {ENTRY: api(tensor(1.0), output=record), **_SECOND})
    sides = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden")]
    with offered(statistic(limit=0.0)):
        assert _run(["compare", *sides, "-o", str(tmp_path / "out")]) in (0, 2)


_SECOND = {"Functional.relu.1.forward": api(tensor(1.0), output=tensor(2.0))}


def test_a_page_shows_them(tmp_path):
    with offered(statistic(limit=0.01)):
        compared(tmp_path, {"own": 2.0}, {"own": 1.0})
        target, golden = (tmp_path / side / "step0" / "rank0" for side in ("target", "golden"))
        pair = calls_of_pair(compare_unit(UnitPair("", 0, 0, target, golden)))
        one = calls_of_dump(read_dump(target))
    assert "own" in pair.statistics
    assert pair.values.select("own_target", "own_golden").drop_nulls().rows() == [(2.0, 1.0)]
    assert "own" in one.statistics
    assert one.values["own_target"].drop_nulls().to_list() == [2.0]


# --- merging ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "expected"), [("sum", 7.0), ("max", 6.0), ("min", 1.0), ("mean", 2.25), (None, None)], ids=str
)
def test_parts_are_merged_as_declared(how, expected):
    own = statistic(merge=None if how is None else Merging(how))
    found = merged_extra(['{"own": 1.0, "other": 2}', '{"own": 6.0, "other": 2}'], [3, 1], {"own": own})
    assert found == (None if expected is None else f'{{"own":{expected}}}')


def test_a_part_without_it_leaves_the_whole_without():
    assert merged_extra(['{"own": 1.0}', "{}"], [3, 1], {"own": statistic(merge=Merging.MAX)}) is None
    found = merged_extra(['{"own": "nan"}', '{"own": 1}'], [3, 1], {"own": statistic(merge=Merging.MAX)})
    assert math.isnan(numbers_of(found)["own"])


def test_shards_of_ranks_are_compared_with_the_whole(tmp_path):
    """Two halves against the whole that has been recorded on one rank."""
    mesh = {"device_mesh": [0, 1], "placements": [{"Shard": {"dim": 0}}], "local_shape": [2]}
    for rank, value in enumerate((0.5, 1.0)):
        record = {**tensor(1.0), "shape": [4], **mesh, "local_offset": [2 * rank], "extra_statistics": {"own": value}}
        write_dump(tmp_path / "target" / "step0" / f"rank{rank}", {ENTRY: api(tensor(1.0), output=record)})
    whole = {**tensor(1.0), "shape": [4], "Norm": 2**0.5, "extra_statistics": {"own": 0.75}}
    write_dump(tmp_path / "golden" / "step0" / "rank0", {ENTRY: api(tensor(1.0), output=whole)})
    sides = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden")]
    with offered(statistic(merge=Merging.MEAN, limit=1e-9)):
        assert _run(["compare", *sides, "-o", str(tmp_path / "out"), "--layout", "auto"]) == 0
    (table,) = (tmp_path / "out").glob("**/compare_result*.csv")
    with table.open() as file:
        row = {row["target_name"]: row for row in csv.DictReader(file)}[f"{ENTRY}.output.0"]
    assert (row["target_own"], row["golden_own"]) == ("0.75", "0.75")


def test_a_debugger_goes_on_without_a_broken_one(tmp_path, caplog):
    """A plugin whose hook fails: nothing is recorded, and the training is unharmed."""

    class Debugger(PrecisionDebugger):
        framework_name = "numpy"

        def _framework(self, model):
            return ArrayFramework()

    with offered(SimpleNamespace(name="own")):
        debugger = Debugger(dump_path=tmp_path / "run", level="mix", extra_statistics=["own"])
        debugger.start(model := Network())
        assert train_step(model, 0) == BARE
        debugger.stop()
        debugger.close()
    assert "own" in caplog.text
    assert not (tmp_path / "run").exists()
