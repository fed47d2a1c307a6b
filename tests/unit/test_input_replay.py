"""``load``: inputs of named calls come from an earlier run."""

import logging
import os
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework, Network, train_step
from numpy_rig import ArrayDebugger
from recorded import Recorded

from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError, DumpError, PluginError, SessionError
from msprobe_core.findings import Finding
from msprobe_core.store.run_codes import RunCode
from msprobe_core.store.runs import find_unit

LAST = "Module.last.Dense.forward.0"


class Pair(NamedTuple):
    left: Any
    right: Array


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a debugger; an earlier one is closed."""
    made = []

    def make(**settings):
        for debugger in made:
            debugger.close()
        made.append(ArrayDebugger(**{"dump_path": tmp_path / "run", "level": "mix", **settings}))
        return made[-1]

    yield make
    made[-1].close()


@pytest.fixture
def earlier(make, tmp_path):
    """Two steps of another model, whole tensors."""
    debugger, model = make(dump_path=tmp_path / "earlier", task="tensor"), Network(7)
    for seed in range(2):
        with debugger.start(model):
            train_step(model, seed)
        debugger.step()
    return tmp_path / "earlier"


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def output_of(model, make, settings, step=0):
    debugger = make(load=settings)
    debugger.set_init_step(step)
    with debugger.start(model):
        return model.forward(Array(np.random.default_rng(5).normal(size=(6, 4))))


def test_the_call_computes_from_the_recorded_inputs_and_nothing_is_dumped(make, earlier, tmp_path, caplog):
    model = Network(0)
    for step in (0, 1):
        y = output_of(model, make, {"path": str(earlier), "modules": [LAST]}, step)
        dump = Recorded(earlier, step)
        recorded = dump.tensor(dump.data[LAST]["input_args"][0])
        assert np.array_equal(y.values, recorded @ model.last.parameters["weight"].values * 0.5)
    assert not (tmp_path / "run").exists()
    assert "forward" not in vars(model.last)
    (said, _) = warnings(caplog)
    assert "the inputs of 1 module calls are replaced by those recorded in" in said
    assert "this run computes something else than it would without" in said


def test_a_dump_after_loading_has_the_loaded_inputs(make, earlier, tmp_path):
    debugger, model = make(load={"path": str(earlier), "modules": [LAST], "dump_after_load": True}), Network(0)
    with debugger.start(model):
        train_step(model)
    ours, theirs = Recorded(tmp_path / "run"), Recorded(earlier)
    assert ours.data[LAST]["input_args"][0]["Norm"] == theirs.data[LAST]["input_args"][0]["Norm"]
    assert ours.data["Module.middle.Relu.forward.0"]["output"] != theirs.data["Module.middle.Relu.forward.0"]["output"]


def test_only_the_selected_steps_ranks_and_calls(make, earlier):
    model, plain = Network(0), Network(0).forward(Array(np.random.default_rng(5).normal(size=(6, 4)))).values
    settings = {"path": str(earlier), "modules": [LAST]}
    assert not np.array_equal(output_of(model, make, settings).values, plain)
    for other in ({"step": ["1-9"]}, {"rank": [1]}, {"modules": ["Module.last.Dense.forward.1"]}):
        assert np.array_equal(output_of(model, make, settings | other).values, plain)
    debugger = make(load=settings, dump_enable=False)
    with debugger.start(model):
        assert np.array_equal(model.forward(Array(np.random.default_rng(5).normal(size=(6, 4)))).values, plain)


def test_calls_are_counted_over_the_windows_of_a_step(make, earlier, caplog):
    debugger, model = make(load={"path": str(earlier), "modules": ["Module.first.Dense.forward.1"]}), Network(0)
    for _ in range(2):
        with debugger.start(model):
            train_step(model)
    said = warnings(caplog)
    assert "Module.first.Dense.forward.1 was not called until now" in said[1]  # at the end of the first window
    assert "its module was called 1 times in this step" in said[1]
    assert "keeps its value: there is no" in said[2]  # the earlier run has one call only
    assert len(said) == 3


def test_a_name_that_no_module_has_is_said_with_the_nearest(make, earlier, caplog):
    debugger = make(load={"path": str(earlier), "modules": ["Module.last.Linear.forward.0"]})
    with debugger.start(Network(0)):
        pass
    assert "Module.last.Linear.forward.0 was not called until now, so nothing was replaced; the model has no such " in (
        caplog.text
    )
    assert "did you mean Module.last.Dense.forward.0?" in caplog.text


def test_what_is_missing_or_damaged_is_kept_and_what_does_not_fit_is_said(make, earlier, caplog):
    directory = Recorded(earlier).directory / "dump_tensor_data"
    file = directory / f"{LAST}.input.0.npy"
    model = Network(0)
    x = Array(np.random.default_rng(5).normal(size=(6, 4)))
    plain = Network(0).forward(x).values
    settings = {"path": str(earlier), "modules": [LAST]}
    np.save(file, np.ones((2, 5), np.float32))
    assert output_of(model, make, settings).values.shape == (2, 3)
    assert f"{LAST}: input 0 was float64 of shape [6, 5] and is replaced by float32 of shape [2, 5]" in caplog.text
    file.write_bytes(b"garbage")
    assert np.array_equal(output_of(model, make, settings).values, plain)
    assert "cannot be loaded" in caplog.text
    file.unlink()
    assert np.array_equal(output_of(model, make, settings).values, plain)
    assert "keeps its value: there is no" in caplog.text


def test_a_step_that_the_earlier_run_lacks_is_said(make, earlier, caplog):
    model = Network(0)
    output_of(model, make, {"path": str(earlier), "modules": [LAST]}, step=5)
    (said,) = warnings(caplog)
    assert "nothing is replaced in step 5" in said
    assert "forward" not in vars(model)


def test_lists_dicts_and_keyword_arguments(make, tmp_path):
    class Adder(Network):
        def forward(self, pair, *, more):
            assert type(pair[1]) is Pair
            return Array(pair[0].values + pair[1].left["x"].values + pair[1].right.values + more.values)

    def arguments(value):
        parts = [Array(np.full(2, value * 10**i)) for i in range(4)]
        return [parts[0], Pair({"x": parts[1]}, parts[2])], {"more": parts[3]}

    debugger, model = make(dump_path=tmp_path / "earlier", task="tensor"), Adder()
    args, kwargs = arguments(1.0)
    with debugger.start(model):
        model.forward(args, **kwargs)
    debugger = make(load={"path": str(tmp_path / "earlier"), "modules": ["Module.Adder.forward.0"]})
    args, kwargs = arguments(5.0)
    with debugger.start(model):
        assert model.forward(args, **kwargs).values.tolist() == [1111.0, 1111.0]
    assert args[0].values.tolist() == [5.0, 5.0]  # the caller's own are as they were


def test_a_model_and_a_framework_that_can_load_are_needed(make, earlier):
    debugger = make(level="L1", load={"path": str(earlier), "modules": [LAST]})
    with pytest.raises(SessionError, match="'load' replaces inputs of modules: call start"):
        debugger.start()

    class PlainDebugger(ArrayDebugger):
        def _framework(self, model):
            return type("Plain", (ArrayFramework,), {"watch": None})()

    debugger.close()
    with pytest.raises(PluginError, match="'load' is not available for numpy"):
        PlainDebugger(load={"path": str(earlier), "modules": [LAST]})


@pytest.mark.parametrize(("settings", "expected"), [
    ({"path": "gone"}, "'path' is 'gone', which is no directory"),
    ({"modules": []}, "'modules' is empty"),
    ({"modules": [LAST, LAST]}, "twice"),
    ({"modules": ["Module.last.Dense.backward.0"]}, "no forward call of a module"),
    ({"modules": ["Module.last.Dense.forward"]}, "no forward call of a module"),
    ({"modules": ["Functional.linear.0.forward"]}, "no forward call of a module"),
    ({"step": ["3-1"]}, "runs backwards"),
])  # fmt: skip
def test_settings_are_checked(tmp_path, settings, expected):
    with pytest.raises(ConfigError, match=expected):
        load_config(load={"path": str(tmp_path), "modules": [LAST], **settings})


def test_a_path_that_begins_with_a_digit_is_a_name(tmp_path):
    load_config(load={"path": str(tmp_path), "modules": ["Module.0.Linear.forward.0"]})


# --- which directory ------------------------------------------------------------------------------------------------


def test_ranks_are_paired_by_number_and_of_processes_the_last_is_taken(tmp_path):
    for name in ("proc30", "proc4", "proc9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dump.json").write_text("{}")
    for name, time in (("proc30", 100), ("proc4", 300), ("proc9", 200)):
        os.utime(tmp_path / name / "dump.json", (time, time))
    for rank in (None, 0):
        unit, (note,) = find_unit(tmp_path, rank)
        assert unit.label == "proc4"
        fields = {"path": str(tmp_path), "last": "proc4", "others": ["proc30", "proc9"]}
        assert note == Finding(RunCode.SEVERAL_PROCESSES, fields=fields)
    with pytest.raises(DumpError, match="holds no rank1, but processes"):
        find_unit(tmp_path, 1)
    for name in ("rank0", "rank10"):
        (tmp_path / name).mkdir()
    assert [find_unit(tmp_path, rank)[0].label for rank in (None, 0, 10)] == ["rank0", "rank0", "rank10"]
    with pytest.raises(DumpError, match="holds no rank2, but rank0, rank10"):
        find_unit(tmp_path, 2)


# --- tensors in shards ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["json", "arrow"])
def sharded(request, make, tmp_path):
    """The same as ``earlier``, in shards."""
    debugger = make(dump_path=tmp_path / "sharded", task="tensor", tensor_format="safetensors", writer=request.param)
    model = Network(7)
    with debugger.start(model):
        train_step(model, 0)
    debugger.close()  # tests change its files
    return tmp_path / "sharded"


def directory_of(run):
    (directory,) = (run / "step0").iterdir()
    return directory


def test_tensors_in_shards_are_found_by_their_records(make, earlier, sharded):
    """The input of the last layer is stored under the name of the output before it, which has the same values."""
    model = Network(0)
    assert not list(sharded.rglob("*.npy"))
    expected = output_of(model, make, {"path": str(earlier), "modules": [LAST]})
    assert np.array_equal(output_of(model, make, {"path": str(sharded), "modules": [LAST]}).values, expected.values)


@pytest.mark.parametrize(("spoil", "reason"), [
    (lambda content: content[: (128 << 10) + 16], "is cut off: the file ends before it"),
    (lambda content: content[:1000], "is not a safetensors file, or is cut off in its header"),
    (lambda content: content[:3], "is not a safetensors file, or is cut off in its header"),
    (lambda _: b"", "is not a safetensors file, or is cut off in its header"),
    (lambda content: b"\xff" * 8 + content[8:], "is not a safetensors file"),
    (lambda content: content[:8] + b"?" * 200 + content[208:], "is not a whole tensor file"),
    (lambda content: content.replace(b'"F64"', b'"X64"'), "which is not known here"),
    (lambda content: content.replace(b'"shape":[6', b'"shape":[9'), "does not fit its shape; the file is damaged"),
    (lambda content: content.replace(b"forward", b"forwerd"), "does not hold the tensor"),
], ids=["end", "header", "length", "empty", "length wrong", "garbage", "dtype", "shape", "key"])  # fmt: skip
def test_a_damaged_shard_keeps_the_value_with_one_warning(make, sharded, caplog, spoil, reason):
    (shard,) = sharded.rglob("*.safetensors")
    shard.write_bytes(spoil(shard.read_bytes()))
    model = Network(0)
    plain = model.forward(Array(np.random.default_rng(5).normal(size=(6, 4)))).values
    assert np.array_equal(output_of(model, make, {"path": str(sharded), "modules": [LAST]}).values, plain)
    (_, said) = warnings(caplog)
    assert f"{LAST}: input 0 keeps its value" in said
    assert reason in said


def test_a_shard_that_is_gone_keeps_the_value(make, sharded, caplog):
    (shard,) = sharded.rglob("*.safetensors")
    shard.rename(shard.with_name("shard-00007.safetensors"))
    model = Network(0)
    plain = model.forward(Array(np.random.default_rng(5).normal(size=(6, 4)))).values
    assert np.array_equal(output_of(model, make, {"path": str(sharded), "modules": [LAST]}).values, plain)
    assert "cannot be read (No such file or directory)" in warnings(caplog)[1]


def test_records_that_cannot_be_read_are_said_once_and_the_values_kept(make, sharded, caplog):
    (dump,) = (path for path in directory_of(sharded).iterdir() if path.stem == "dump")
    dump.write_bytes(b"{")
    model = Network(0)
    plain = model.forward(Array(np.random.default_rng(5).normal(size=(6, 4)))).values
    assert np.array_equal(output_of(model, make, {"path": str(sharded), "modules": [LAST]}).values, plain)
    _, records, value = warnings(caplog)
    assert "the records that lead to the tensors in shards cannot be read: " in records
    assert f"{LAST}: input 0 keeps its value: there is no " in value


def test_a_reference_that_leads_elsewhere_is_refused(make, sharded, caplog):
    directory = directory_of(sharded)
    if not (dump := directory / "dump.json").exists():
        pytest.skip("made in the text of dump.json")
    (shard,) = sharded.rglob("*.safetensors")
    (directory / shard.name).write_bytes(shard.read_bytes())
    dump.write_text(dump.read_text().replace(shard.name, f"../{shard.name}"))
    model = Network(0)
    plain = model.forward(Array(np.random.default_rng(5).normal(size=(6, 4)))).values
    assert np.array_equal(output_of(model, make, {"path": str(sharded), "modules": [LAST]}).values, plain)
    assert "leads out of dump_tensor_data" in warnings(caplog)[1]


def test_a_dump_that_is_cut_off_gives_what_it_has(make, sharded, caplog):
    directory = directory_of(sharded)
    if not (dump := directory / "dump.json").exists():
        pytest.skip("a stream that is cut off in its first batch gives nothing")
    text = dump.read_text()
    dump.write_text(text[: text.index('"Module.last.Dense.backward')])
    model = Network(0)
    plain = model.forward(Array(np.random.default_rng(5).normal(size=(6, 4)))).values
    assert not np.array_equal(output_of(model, make, {"path": str(sharded), "modules": [LAST]}).values, plain)
    _, said = warnings(caplog)
    assert "which were recovered" in said
