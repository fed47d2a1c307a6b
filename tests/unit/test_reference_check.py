"""``bench_path``: each call is checked against an earlier run while it is recorded."""

import json
import logging
import shutil

import numpy as np
import pytest
from numpy_layers import API, Array, ArrayFramework, Layer, Network, train_step
from numpy_rig import DeferringFramework
from recorded import Recorded, leaves

from msprobe_core import PrecisionDebugger
from msprobe_core.capture.features import reference_check
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError


@pytest.fixture(params=[ArrayFramework, DeferringFramework], ids=["host", "device"])
def framework(request):
    return request.param()


@pytest.fixture
def record(tmp_path, framework):
    """Return a function that trains a model, prepared in some way, under a new debugger, and returns the dump."""

    def record(name, prepare, *, program=train_step, rank=None, num_steps=1, level="mix", task="tensor", **options):
        class ArrayDebugger(PrecisionDebugger):
            framework_name = "numpy"

            def _framework(self, model):
                return framework

        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": task, task: {"summary_mode": "md5", **options}}))
        debugger = ArrayDebugger(path, dump_path=tmp_path / name, level=level)
        try:
            for _ in range(num_steps):
                model = Network()
                prepare(model)
                debugger.start(model, rank_id=rank)
                program(model)
                debugger.stop()
                debugger.step()
        finally:
            debugger.close()
        return Recorded(tmp_path / name)

    return record


def healthy(model):
    """Leave it as it is."""


def faulty_relu(model):
    """The first layer's activation is off by a little."""
    forward = type(model.middle).forward

    class Faulty(type(model.middle)):
        def forward(self, x):
            return Array(forward(self, x).values + 1e-9, requires_grad=True)

    Faulty.__name__ = "Relu"
    model.middle = Faulty()


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def saved(dump):
    return {entry for entry, record in dump.data.items() if any("data_name" in v for v in leaves(record).values())}


def test_the_first_call_that_differs_is_named_saved_and_the_last(record, tmp_path, framework, caplog):
    golden = record("golden", healthy, task="statistics")
    faulty_relu(model := Network())
    loss, losses = train_step(model), []
    dump = record("run", faulty_relu, program=lambda model: losses.append(train_step(model)),
                  bench_path=str(tmp_path / "golden"))  # fmt: skip
    assert losses == [loss]  # training goes on, and is what it is
    relu = "Module.middle.Relu.forward.0"
    assert saved(dump) == {relu}
    assert sorted(path.name for path in (dump.directory / "dump_tensor_data").iterdir()) == [
        f"{relu}.input.0.npy", f"{relu}.output.0.npy"
    ]  # fmt: skip
    value = dump.data[relu]["output"][0]
    assert dump.tensor(value).max() == value["Max"]
    assert value["Max"] != golden.data[relu]["output"][0]["Max"]
    said = warnings(caplog)
    assert f"step 0: {relu} has the inputs that it has in {tmp_path / 'golden'}, but other outputs (0)" in said[0]
    assert "2 of its 2 tensors are saved" in said[0]
    assert f"the first call that differs is {relu} (1 found" in said[1]
    assert len(said) == 2
    if not isinstance(framework, DeferringFramework):
        assert "Module.last.Dense.forward.0" not in dump.data
        assert not any("backward" in entry for entry in dump.data)


def test_nothing_is_saved_of_an_equal_run(record, tmp_path, caplog):
    record("golden", healthy)
    dump = record("run", healthy, bench_path=str(tmp_path / "golden"), diff_nums=-1)
    assert not saved(dump)
    assert dump.data.keys() == Recorded(tmp_path / "golden").data.keys()
    assert not warnings(caplog)


def test_several_differences(record, tmp_path, caplog):
    record("golden", healthy)
    dump = record("two", faulty_relu, bench_path=str(tmp_path / "golden"), diff_nums=2)
    assert saved(dump) == {"Module.middle.Relu.forward.0", "Module.Network.forward.0"}
    assert "the first call that differs is Module.middle.Relu.forward.0 (2 found" in caplog.text
    dump = record("all", faulty_relu, bench_path=str(tmp_path / "golden"), diff_nums=-1)
    assert saved(dump) == {"Module.middle.Relu.forward.0", "Module.Network.forward.0"}
    assert "Module.first.Dense.backward.0" in dump.data  # recorded to the end
    assert "recording ends" not in warnings(caplog)[-1]


def test_backward_is_checked_too(record, tmp_path, caplog):
    def faulty(model):
        class Faulty(type(model.first)):
            def backward(self, gradient):
                return Array(super().backward(gradient).values * 1.5)

        Faulty.__name__ = "Dense"
        model.last.__class__ = Faulty

    record("golden", healthy, level="L0")
    dump = record("run", faulty, bench_path=str(tmp_path / "golden"), level="L0")
    assert saved(dump) == {"Module.last.Dense.backward.0"}
    assert "Module.last.Dense.backward.0 has the inputs that it has in" in caplog.text
    assert "but other gradients of its inputs (0)" in caplog.text


class Adder(Layer):
    """``x + more``, written into x if told to."""

    def __init__(self, error=0.0, in_place=False):
        super().__init__()
        self.error = error
        self.in_place = in_place

    def forward(self, x, *, more):
        result = x.values + more.values + self.error
        if self.in_place:
            x.write(result)
            return x
        return Array(result)


def adder(**options):
    def prepare(model):
        model.adder = Adder(**options)

    return prepare


def add(model, more=1.0):
    model.adder.forward(Array(np.zeros(3)), more=Array(np.full(3, more)))


def add_two(model):
    add(model, 2.0)


def test_another_keyword_argument_is_another_input(record, tmp_path):
    record("golden", adder(), program=add)
    path = str(tmp_path / "golden")
    assert not saved(record("other", adder(), program=add_two, bench_path=path))
    wrong = record("wrong", adder(error=0.5), program=add, bench_path=path)
    assert saved(wrong) == {"Module.adder.Adder.forward.0"}


def test_inputs_are_saved_as_they_were_before_the_call_wrote_to_them(record, tmp_path):
    record("golden", adder(in_place=True), program=add)
    dump = record("run", adder(in_place=True, error=0.5), program=add, bench_path=str(tmp_path / "golden"))
    entry = dump.data["Module.adder.Adder.forward.0"]
    assert dump.tensor(entry["input_args"][0]).tolist() == [0.0, 0.0, 0.0]
    assert dump.tensor(entry["input_kwargs"]["more"]).tolist() == [1.0, 1.0, 1.0]
    assert dump.tensor(entry["output"][0]).tolist() == [1.5, 1.5, 1.5]


def test_other_parameters_are_said(record, tmp_path, caplog):
    def other_weight(model):
        model.last.parameters["weight"].write(model.last.parameters["weight"].values * 1.01)

    record("golden", healthy, level="L0")
    dump = record("run", other_weight, bench_path=str(tmp_path / "golden"), level="L0")
    assert saved(dump) == {"Module.last.Dense.forward.0"}
    assert "but other outputs (0) and other parameters (weight)" in caplog.text


def test_shapes_that_differ_are_no_finding(record, tmp_path):
    def multiply(model):
        API["multiply"](Array(np.ones((2, 2))), Array(np.ones((2, 2))))

    file = record("golden", healthy, program=multiply, level="L1").directory / "dump.json"
    content = json.loads(file.read_text())
    (output,) = content["data"]["Functional.multiply.0.forward"]["output"]
    output["md5"] = "00000000"
    for shape, are_saved in (([4], False), ([2, 2], True)):
        output["shape"] = shape
        file.write_text(json.dumps(content))
        run = record(f"run{len(shape)}", healthy, program=multiply, level="L1", bench_path=str(tmp_path / "golden"))
        assert bool(saved(run)) == are_saved


@pytest.mark.parametrize("mode", ["md5", "xor"])
def test_any_mode_that_has_checksums(record, tmp_path, mode):
    record("golden", healthy, summary_mode=mode)
    path = str(tmp_path / "golden")
    assert saved(record("run", faulty_relu, bench_path=path, summary_mode=mode)) == {"Module.middle.Relu.forward.0"}


def test_checksums_of_another_mode_end_the_recording_with_a_sentence(record, tmp_path, caplog):
    record("golden", healthy, summary_mode="xor")
    dump = record("run", healthy, bench_path=str(tmp_path / "golden"))
    assert not saved(dump)
    (said,) = warnings(caplog)
    assert "are of another summary_mode, so nothing could be compared; training goes on" in said


def test_a_step_that_the_bench_lacks_is_recorded_and_not_checked(record, tmp_path, caplog):
    record("golden", healthy)
    record("run", faulty_relu, bench_path=str(tmp_path / "golden"), num_steps=2, diff_nums=-1)
    assert saved(Recorded(tmp_path / "run", 0)) == {"Module.middle.Relu.forward.0", "Module.Network.forward.0"}
    assert not saved(Recorded(tmp_path / "run", 1))
    assert "Module.last.Dense.backward.0" in Recorded(tmp_path / "run", 1).data
    assert "bench_path: step 1 is not checked: " in caplog.text


def test_a_bench_without_checksums_or_in_pieces_is_said(record, tmp_path, caplog):
    record("golden", healthy, summary_mode="statistics")
    path = str(tmp_path / "golden")
    assert not saved(record("run", faulty_relu, bench_path=path))
    assert "has no checksums; record it with summary_mode md5" in caplog.text
    (Recorded(tmp_path / "golden").directory / "dump.json").write_text("{")
    record("run2", faulty_relu, bench_path=path)
    assert "step 0 is not checked: " in warnings(caplog)[-1]


def test_ranks_are_paired_and_of_processes_the_last_is_taken(record, tmp_path, caplog):
    record("golden", healthy, rank=3)
    path = str(tmp_path / "golden")
    assert saved(record("run", faulty_relu, rank=3, bench_path=path))
    assert not saved(record("other", faulty_relu, rank=2, bench_path=path))
    assert "holds no rank2, but rank3" in caplog.text
    record("single", faulty_relu)
    step = tmp_path / "single" / "step0"
    (process,) = step.iterdir()
    process.rename(step / "proc1")
    record("single2", healthy)
    shutil.copytree(tmp_path / "single2" / "step0", step, dirs_exist_ok=True)
    assert saved(record("run3", faulty_relu, bench_path=str(tmp_path / "single")))  # against the healthy one
    assert "several processes wrote here" in caplog.text


def test_what_is_held_is_bounded(record, tmp_path, framework, monkeypatch, caplog):
    if not isinstance(framework, DeferringFramework):
        pytest.skip("on the host nothing waits")
    record("golden", healthy)
    monkeypatch.setattr(reference_check, "MAX_HELD_BYTES", 1)
    dump = record("run", faulty_relu, bench_path=str(tmp_path / "golden"))
    assert not saved(dump)
    assert "0 of its 2 tensors are saved: more than can be held were waiting; select fewer calls" in caplog.text


def test_nothing_stays_held(record, tmp_path):
    record("golden", healthy)
    checks = []

    def watched(model):
        checks.append(PrecisionDebugger._instance._controller.session._features[-1])
        train_step(model)

    record("run", faulty_relu, program=watched, bench_path=str(tmp_path / "golden"), diff_nums=-1)
    assert (checks[0]._pending, checks[0]._held_bytes) == ({}, 0)


@pytest.mark.parametrize(("options", "expected"), [
    ({"summary_mode": "statistics"}, "needs checksums"),
    ({"data_mode": ["output"]}, "'data_mode' has only one of them"),
    ({"bench_path": "gone"}, "'bench_path' is 'gone', which is no directory"),
])  # fmt: skip
def test_settings_are_checked(tmp_path, options, expected):
    path = tmp_path / "c.json"
    path.write_text(
        json.dumps({"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": str(tmp_path), **options}})
    )
    with pytest.raises(ConfigError, match=expected):
        load_config(path)


def test_diff_check_says_what_to_take_instead():
    with pytest.raises(
        ConfigError, match="no task 'diff_check': it has no run to compare with; take the task 'tensor' with 'bench_"
    ):
        load_config(task="diff_check")


def test_an_earlier_run_that_ended_early_is_said_and_checked_as_far_as_it_goes(record, tmp_path, caplog):
    bench = record("bench", healthy)
    path = bench.directory / "dump.json"
    content = json.loads(path.read_text())
    del content["end"]
    path.write_text(json.dumps(content))
    dump = record("run", faulty_relu, bench_path=str(tmp_path / "bench"))
    assert [text for text in warnings(caplog) if "ended early, after" in text and "calls that it lacks" in text]
    assert saved(dump)
    assert dump.header["end"]["reason"] == "the check against 'bench_path' ended it"
