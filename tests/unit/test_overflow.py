"""The task `overflow_check`: which call is blamed, what is kept of it, and how much memory it needs."""

import json
import logging

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework, Dense, Layer, Network
from numpy_rig import DeferringFramework
from recorded import Recorded

from msprobe_core.capture import Session
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError

FINITE, HUGE = 1.0, 1e200


@pytest.fixture
def open_session(tmp_path):
    def make(*, level="L1", framework=None, settings=None, **options):
        path = tmp_path / "config.json"
        content = {"task": "overflow_check", "level": level, "overflow_check": options, **(settings or {})}
        path.write_text(json.dumps(content))
        config = load_config(path, dump_path=str(tmp_path / "run"))
        framework = framework or ArrayFramework()
        return Session(config, framework)

    return make


def array(value=FINITE):
    return Array(np.full((2, 2), value), requires_grad=True)


def call(session, name, *inputs, output, **kwargs):
    """Report a call of an API."""
    recorder = session._recorder
    opened = recorder.open_api("Functional", name)
    recorder.record_inputs(opened, inputs, kwargs)
    recorder.record_outputs(opened, output)
    recorder.close(opened)
    return opened


def begin(session):
    session.start([Network()])
    return session._recorder


def kept(run, step=0):
    return list(Recorded(run, step).data)


NAN, INF = float("nan"), float("inf")


def test_the_call_that_makes_nan_is_kept_whole_and_nothing_else(tmp_path, open_session, caplog):
    session = open_session()
    begin(session)
    call(session, "add", array(), output=array(2.0))
    call(session, "exp", array(3.0), array(4.0), scale=array(5.0), output=(array(), array(NAN)))
    call(session, "mul", array(NAN), output=array(NAN))
    session.step()
    session.close()
    dump = Recorded(tmp_path / "run")
    assert dump.header["task"] == "overflow_check"
    assert list(dump.data) == ["Functional.exp.0.forward"]
    record = dump.data["Functional.exp.0.forward"]
    assert [dump.tensor(value).max() for value in record["input_args"]] == [3.0, 4.0]
    assert dump.tensor(record["input_kwargs"]["scale"]).max() == 5.0
    assert np.isnan(dump.tensor(record["output"][1])).all()
    assert record["execution"]["sequence"] == 1  # its place among all calls
    assert len(list((dump.directory / "dump_tensor_data").iterdir())) == 5
    [(entries, frames)] = dump.json("stack.json").values()
    assert entries == ["Functional.exp.0.forward"]
    assert frames
    first, summary = caplog.messages
    assert first.startswith("step 0: overflow: Functional.exp.0.forward makes 4 NaN and 0 Inf of finite inputs; called")
    assert f"called from File {__file__}, line " in first
    assert 'opened = recorder.open_api("Functional", name)' in first
    assert summary.startswith("step 0: calls that make NaN or Inf of finite inputs: 1, the first Functional.exp.0")
    assert "so recording ends" in summary


@pytest.mark.parametrize(
    ("inputs", "kwargs", "output", "is_culprit"),
    [
        ((array(),), {}, array(INF), True),
        ((array(),), {}, {"a": [array(), array(-INF)]}, True),
        ((array(), 3, "x", 1.5), {"k": [array()]}, array(NAN), True),
        ((array(INF),), {}, array(NAN), False),
        ((array(), [array(NAN)]), {}, array(NAN), False),
        ((array(),), {"k": array(-INF)}, array(NAN), False),
        ((array(), -INF), {}, array(-INF), False),  # masked_fill(mask, -inf) does what it is meant to do
        ((array(),), {"value": NAN}, array(NAN), False),
        ((array(),), {}, array(), False),
        ((array(HUGE),), {}, array(HUGE), False),  # large is not infinite
        ((array(INF),), {}, array(), False),
        ((array(),), {}, 3.5, False),
    ],
    ids=str,
)
def test_a_culprit_has_finite_inputs_and_an_output_that_is_not(
    tmp_path, open_session, inputs, kwargs, output, is_culprit
):
    session = open_session()
    begin(session)
    call(session, "f", *inputs, output=output, **kwargs)
    session.close()
    assert kept(tmp_path / "run") == (["Functional.f.0.forward"] if is_culprit else [])


def test_a_backward_is_judged_by_its_gradients(tmp_path, open_session, caplog):
    session = open_session()
    recorder = begin(session)
    output = array()
    opened = call(session, "sqrt", array(), output=output)
    bad = call(session, "mul", array(), output=array())
    slots = {}
    for one in (opened, bad):
        out, inside = recorder.output_gradients(one, array()), recorder.input_gradients(one, (array(),), {})
        recorder.expect_gradients(one, 1, 1)
        slots[one] = (out[0][0], inside[0][0])
    recorder.record_gradient(opened, slots[opened][0], array(7.0))
    recorder.record_gradient(opened, slots[opened][1], array(INF))
    recorder.record_gradient(bad, slots[bad][0], array(INF))
    recorder.record_gradient(bad, slots[bad][1], array(NAN))
    session.close()
    dump = Recorded(tmp_path / "run")
    assert list(dump.data) == ["Functional.sqrt.0.backward"]
    record = dump.data["Functional.sqrt.0.backward"]
    assert dump.tensor(record["input"][0]).max() == 7.0
    assert np.isinf(dump.tensor(record["output"][0])).all()
    assert f"called from File {__file__}, line " in caplog.text  # where its forward was


def test_the_module_around_a_culprit_is_not_another(tmp_path, open_session):
    session = open_session(level="mix", overflow_nums=-1)
    recorder = begin(session)
    outer = recorder.open_module("Module", "", "Net")
    recorder.record_inputs(outer, (array(),), {})
    inner = recorder.open_module("Module", "block", "Block")
    recorder.record_inputs(inner, (array(),), {})
    call(session, "log", array(), output=array(NAN))
    recorder.record_outputs(inner, array(NAN))
    recorder.close(inner)
    call(session, "div", array(), output=array(INF))
    recorder.record_outputs(outer, array(NAN))
    recorder.close(outer)
    session.close()
    dump = Recorded(tmp_path / "run")
    assert list(dump.data) == ["Functional.log.0.forward", "Functional.div.0.forward"]
    assert dump.json("construct.json") == {
        "Functional.log.0.forward": "Module.block.Block.forward.0",
        "Functional.div.0.forward": "Module.Net.forward.0",
        "Module.block.Block.forward.0": "Module.Net.forward.0",
        "Module.Net.forward.0": None,
    }


class Exploding(Layer):
    """Finite but for its parameter's gradient."""

    def __init__(self):
        super().__init__()
        self.inside = Dense(np.random.default_rng(0), 2, 2)

    def forward(self, x):
        return self.inside.forward(x)

    def backward(self, gradient):
        return self.inside.backward(gradient)


@pytest.mark.parametrize("gradient", [HUGE, INF])
def test_a_parameters_gradient_can_be_the_first(tmp_path, open_session, gradient):
    session, model = open_session(level="L0"), Exploding()
    session.start([model])
    with np.errstate(all="ignore"):
        model.forward(Array(np.full((2, 2), HUGE), True))
        model.backward(array(gradient))
    session.close()
    expected = ["Module.inside.Dense.parameters_grad.0"] if gradient == HUGE else []
    assert kept(tmp_path / "run") == expected


def test_parameters_that_are_not_finite_are_inputs(tmp_path, open_session):
    session = open_session(level="L0")
    recorder = begin(session)
    module = recorder.open_module("Module", "fc", "Dense")
    recorder.record_inputs(module, (array(),), {})
    recorder.record_parameters(module, {"weight": array(NAN)})
    recorder.record_outputs(module, array(NAN))
    recorder.close(module)
    session.close()
    assert kept(tmp_path / "run") == []


def test_nobody_is_blamed_for_a_parameter_that_is_not_finite(tmp_path, open_session, caplog):
    session = open_session(level="mix")
    recorder = begin(session)
    outer, inner = (recorder.open_module("Module", path, "Layer") for path in ("", "fc"))
    for module in (outer, inner):
        recorder.record_inputs(module, (array(),), {})
    recorder.record_parameters(inner, {"bias": array(), "weight": array(INF)})
    linear = call(session, "linear", array(), array(INF), output=array(INF))
    slots = recorder.output_gradients(linear, array(INF)), recorder.input_gradients(linear, (array(),), {})
    recorder.expect_gradients(linear, 1, 1)
    for module in (inner, outer):
        recorder.record_outputs(module, array(INF))
        recorder.close(module)
    recorder.record_gradient(linear, slots[0][0][0], array())
    recorder.record_gradient(linear, slots[1][0][0], array(INF))
    session.step()
    session.close()
    assert kept(tmp_path / "run") == []
    said = "step 0: no recorded call makes NaN or Inf of finite inputs, but it is in the parameter weight of "
    assert caplog.messages[0] == f"{said}Module.fc.Layer.forward.0"


def test_a_parameter_that_is_not_finite_is_named(open_session, caplog):
    session = open_session(level="L0")
    recorder = begin(session)
    outer, inner = (recorder.open_module("Module", path, "Layer") for path in ("", "fc"))
    for module in (outer, inner):
        recorder.record_inputs(module, (array(),), {})
    recorder.record_parameters(inner, {"bias": array(), "weight": array(NAN)})
    for module in (inner, outer):
        recorder.record_outputs(module, array(NAN))
        recorder.close(module)
    session.close()
    assert "but it is in the parameter weight of Module.fc.Layer.forward.0" in caplog.text


def test_infinities_of_a_mask_do_no_harm(open_session, caplog):
    caplog.set_level(logging.INFO)
    session = open_session()
    begin(session)
    call(session, "masked_fill", array(), -INF, output=array(-INF))
    call(session, "softmax", array(-INF), output=array())
    session.step()
    session.close()
    assert "step 0: no overflow" in caplog.messages


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (2, 2), (-1, 5)])
def test_so_many_are_kept_and_the_others_counted(tmp_path, open_session, caplog, limit, expected):
    session = open_session(overflow_nums=limit)
    begin(session)
    for _ in range(5):
        call(session, "exp", array(), output=array(INF))
    session.step()
    assert session.is_running == (limit == -1)
    session.start([Network()])
    assert session.is_running == (limit == -1)
    session.close()
    assert kept(tmp_path / "run") == [f"Functional.exp.{i}.forward" for i in range(expected)]
    assert f"of finite inputs: 5, the first Functional.exp.0.forward; kept so far: {expected}" in caplog.text
    assert (tmp_path / "run" / "step1").exists() == (limit == -1)


def test_the_number_is_of_the_run(tmp_path, open_session):
    session = open_session(overflow_nums=3)
    for _ in range(3):
        begin(session)
        for _ in range(2 if session.is_running else 0):
            call(session, "exp", array(), output=array(INF))
        session.stop()
        session.step()
    session.close()
    assert [len(kept(tmp_path / "run", step)) for step in range(2)] == [2, 1]
    assert not (tmp_path / "run" / "step2").exists()


def test_a_run_without_any_says_so(tmp_path, open_session, caplog):
    caplog.set_level(logging.INFO)
    session = open_session()
    for _ in range(2):
        begin(session)
        call(session, "add", array(), output=array())
        session.stop()
        session.step()
    session.close()
    assert kept(tmp_path / "run") == []
    assert "step 1: no overflow" in caplog.messages
    assert "no overflow: in 2 steps no call made NaN or Inf of finite inputs" in caplog.messages


def test_on_a_device_it_is_decided_at_the_end_of_the_window(tmp_path, open_session):
    session = open_session(framework=DeferringFramework())
    begin(session)
    overwritten = array(3.0)
    call(session, "add", array(), output=array())
    call(session, "exp", overwritten, output=array(INF))
    call(session, "exp", array(), output=array(INF))
    overwritten.write(9.0)
    watch = session._features[-1]
    assert watch._num_kept == 0
    session.stop()
    session.close()
    dump = Recorded(tmp_path / "run")
    assert list(dump.data) == ["Functional.exp.0.forward"]
    assert dump.tensor(dump.data["Functional.exp.0.forward"]["input_args"][0]).max() == 3.0


def test_only_the_latest_calls_are_copied(tmp_path, open_session, caplog):
    session = open_session(framework=DeferringFramework(), overflow_nums=-1)
    watch = session._features[-1]
    watch.max_bytes = 4 * 32  # of four tensors
    begin(session)
    call(session, "early", array(), output=array(INF))
    for _ in range(3):
        call(session, "add", array(), output=array())
        assert watch._num_bytes <= watch.max_bytes
    call(session, "late", array(), output=array(INF))
    session.stop()
    assert (watch._num_bytes, watch._copies) == (0, {})
    session.close()
    dump = Recorded(tmp_path / "run")
    early, late = (dump.data[f"Functional.{name}.0.forward"] for name in ("early", "late"))
    assert early["output"][0]["num_inf"] == 4
    assert "data_name" not in early["output"][0]
    assert dump.tensor(late["input_args"][0]).max() == FINITE
    assert "Functional.early.0.forward: 2 of its 2 tensors are not kept" in caplog.text
    assert '"list": ["Functional.early.0.forward"]' in caplog.text


def test_on_the_host_nothing_is_lost_when_memory_is_short(tmp_path, open_session, caplog):
    session = open_session(overflow_nums=-1)
    watch = session._features[-1]
    watch.max_bytes = 4 * 32
    begin(session)
    for _ in range(20):
        call(session, "exp", array(), output=array(INF))
        assert watch._num_bytes <= watch.max_bytes
    session.close()
    dump = Recorded(tmp_path / "run")
    assert len(dump.data) == 20
    assert all("data_name" in record["output"][0] for record in dump.data.values())
    assert "not kept" not in caplog.text


def test_list_and_scope_select_what_is_watched(tmp_path, open_session):
    session = open_session(overflow_nums=-1, list=["exp"])
    begin(session)
    call(session, "log", array(), output=array(INF))
    call(session, "exp", array(), output=array(INF))
    session.close()
    assert kept(tmp_path / "run") == ["Functional.exp.0.forward"]


def test_an_old_file_is_understood(tmp_path, open_session, caplog):
    open_session(check_mode="all", overflow_nums=1).close()
    assert "the field 'check_mode' is of an older release: it is ignored: NaN and Inf are looked for" in caplog.text


def test_saved_values_are_not_watched(open_session):
    with pytest.raises(ConfigError, match="the task 'overflow_check' does not apply at level debug"):
        open_session(level="debug")
