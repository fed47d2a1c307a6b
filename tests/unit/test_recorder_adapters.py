"""Parts of a window: some forwards, one module; where a job's numbers come from."""

import numpy as np
import pytest
from numpy_layers import API, Array, ArrayFramework, Network, train_step
from numpy_rig import ArrayDebugger
from recorded import Recorded

from msprobe_core.errors import SessionError


@pytest.fixture
def make(tmp_path):
    made = []

    def make(**settings):
        made.append(ArrayDebugger(dump_path=tmp_path, **settings))
        return made[-1]

    yield make
    for debugger in made:
        debugger.close()


def indices(dump, start):
    return [int(name.rpartition(".")[2]) for name in dump.starting(start)]


# --- token_range ----------------------------------------------------------------------------------------------------


def test_both_ends_of_a_range_are_recorded_and_apis_outside_are_not(make, tmp_path):
    debugger, model = make(level="mix"), Network()
    debugger.start(model, token_range=[1, 2])
    for seed in range(5):
        API["multiply"](Array(np.ones((1, 1))), Array(np.ones((1, 1))))
        train_step(model, seed)
    debugger.stop()
    dump = Recorded(tmp_path)
    assert indices(dump, "Module.Network.forward") == [0, 1]
    assert indices(dump, "Module.first.Dense.backward") == [0, 1]
    assert indices(dump, "Module.first.Dense.parameters_grad") == [0, 1]
    assert len(dump.starting("Functional.multiply")) == 4  # two in each forward, none of the loop


def test_a_range_counts_from_start_and_counts_anew_in_the_next_window_and_step(make, tmp_path):
    debugger, model = make(level="L1"), Network()
    for _ in range(2):
        debugger.start(model, token_range=[1, 1])
        for _ in range(3):
            train_step(model)
        debugger.stop()
    debugger.step()
    debugger.start(model, token_range=(0, 0))
    train_step(model)
    debugger.step()  # without stop: the next step has the same range
    train_step(model)
    train_step(model)
    debugger.stop()
    assert [len(Recorded(tmp_path, step).data) for step in range(3)] == [4, 2, 2]


def test_a_range_ends_with_the_window(make, tmp_path):
    debugger, model = make(level="L0"), Network()
    debugger.start(model, token_range=[5, 6])
    train_step(model)
    debugger.stop()
    debugger.start(model)
    train_step(model)
    debugger.stop()
    assert indices(Recorded(tmp_path), "Module.Network.forward") == [0]


def test_a_forward_that_raises_is_counted_and_ends(make, tmp_path):
    debugger, model = make(level="L0"), Network()
    debugger.start(model, token_range=[0, 1])
    model.fails = True
    with pytest.raises(ArithmeticError):
        train_step(model)
    model.fails = False
    train_step(model)
    train_step(model)
    debugger.stop()
    dump = Recorded(tmp_path)
    assert indices(dump, "Module.Network.forward") == [0, 1]
    assert ["output" in dump.data[f"Module.Network.forward.{i}"] for i in range(2)] == [False, True]


def test_each_of_several_models_counts_for_itself(make, tmp_path):
    debugger, models = make(level="L0"), [Network(0), Network(1)]
    debugger.start(models, token_range=[1, 1])
    for model in (models[0], models[1], models[1], models[0]):
        train_step(model)
    debugger.stop()
    dump = Recorded(tmp_path)
    assert len(dump.starting("Module.0.Network.forward")) == len(dump.starting("Module.1.Network.forward")) == 1


@pytest.mark.parametrize("wrong", [[1], [1, 2, 3], [2, 1], [-1, 1], [0, 1.5], [True, 2], "01", 3])
def test_what_is_no_range_is_refused(make, wrong):
    debugger = make(level="L0")
    with pytest.raises(SessionError, match=r"token_range=.*give the first and the last forward"):
        debugger.start(Network(), token_range=wrong)
    assert not debugger._controller.session.is_running


def test_a_range_needs_a_model_and_a_framework_that_can_tell(make):
    debugger = make(level="L1")
    with pytest.raises(SessionError, match="token_range counts the forwards of a model"):
        debugger.start(token_range=[0, 1])
    debugger._controller.session.framework = type("Plain", (ArrayFramework,), {"watch": None})()
    with pytest.raises(SessionError, match="'token_range' is not available for numpy"):
        debugger.start(Network(), token_range=[0, 1])
    assert not debugger._controller.session.is_running


# --- rank_id and set_init_step --------------------------------------------------------------------------------------


def test_rank_id_names_the_directory_and_is_what_rank_selects(make, tmp_path):
    debugger, model = make(level="L0", rank=[3]), Network()
    for rank in (3, 4):
        debugger.start(model, rank_id=rank)
        train_step(model)
        debugger.stop()
        debugger.step()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")] == ["step0/rank3"]


def test_another_rank_within_a_step_is_said(make, tmp_path, caplog):
    debugger, model = make(level="L0"), Network()
    debugger.start(model, rank_id=0)
    debugger.start(model, rank_id=0)
    assert not caplog.records
    debugger.start(model, rank_id=1)
    debugger.stop()
    assert "this step is being recorded to" in caplog.text
    assert Recorded(tmp_path).directory.name == "rank0"


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "0"])
def test_what_is_no_number_is_refused(make, wrong):
    debugger = make(level="L0")
    with pytest.raises(SessionError, match=r"rank_id=.*give an integer from 0"):
        debugger.start(Network(), rank_id=wrong)
    with pytest.raises(SessionError, match=r"set_init_step\(\) got .*give an integer from 0"):
        debugger.set_init_step(wrong)


def test_steps_count_on_from_the_first(make, tmp_path):
    debugger, model = make(level="L0", step=[100, 102]), Network()
    ArrayDebugger.set_init_step(100)
    for _ in range(4):
        with debugger.start(model):
            train_step(model)
        debugger.step()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step100", "step102"]
    debugger.set_init_step(102)  # back again: it is not over
    with debugger.start(model):
        train_step(model)
    with pytest.raises(SessionError, match=r"set_init_step\(5\) comes too late: step 102 is being recorded"):
        debugger.set_init_step(5)


# --- module_dump ----------------------------------------------------------------------------------------------------


def test_one_module_alone_and_everything_again(make, tmp_path):
    debugger, model = make(level="mix"), Network()
    debugger.start(model)
    train_step(model)
    debugger.dump_module(model.last, "head")
    train_step(model)
    debugger.end_module_dump()
    debugger.end_module_dump()  # without a begin: nothing
    train_step(model)
    debugger.stop()
    dump = Recorded(tmp_path)
    assert dump.starting("Module.head") == [
        "Module.head.Dense.forward.0", "Module.head.Dense.backward.0", "Module.head.Dense.parameters_grad.0"
    ]  # fmt: skip
    assert indices(dump, "Module.last.Dense.forward") == [0, 1]
    assert len(dump.starting("Functional.multiply")) == 4
    assert indices(dump, "Module.first.Dense.parameters_grad") == [0, 1]
    assert set(dump.json("construct.json")) == {n for n in dump.data if "parameters_grad" not in n}


def test_a_module_under_the_name_that_it_has_anyway_is_recorded_once(make, tmp_path):
    debugger, model = make(level="L0"), Network()
    debugger.start(model)
    debugger.dump_module(model.last, "last")
    train_step(model)
    debugger.stop()
    assert list(Recorded(tmp_path).data) == [
        "Module.last.Dense.forward.0", "Module.last.Dense.backward.0", "Module.last.Dense.parameters_grad.0"
    ]  # fmt: skip


def test_before_start_and_over_steps(make, tmp_path):
    debugger, model = make(level="L1", step=[1, 2]), Network()
    debugger.dump_module(model.first, "a")
    for step in range(4):
        if step == 2:
            debugger.dump_module(model.last, "b")  # instead of the first
        debugger.start()
        train_step(model)
        debugger.stop()
        debugger.step()
    assert [list(Recorded(tmp_path, step).data) for step in (1, 2)] == [
        [f"Module.{name}.Dense.forward.0", f"Module.{name}.Dense.backward.0", f"Module.{name}.Dense.parameters_grad.0"]
        for name in "ab"
    ]
    assert not any({"forward", "backward"} & vars(layer).keys() for _, layer in model.named_layers())


def test_inside_a_forward_of_an_enclosing_module(make, tmp_path):
    debugger, model = make(level="mix"), Network()
    forward = model.middle.forward

    def surrounded(x):
        debugger.dump_module(model.last, "head")
        return forward(x)

    model.middle.forward = surrounded
    debugger.start(model)
    train_step(model)
    debugger.end_module_dump()
    train_step(model)
    debugger.stop()
    dump = Recorded(tmp_path)
    assert "output" in dump.data["Module.Network.forward.0"]  # had begun before
    assert dump.json("construct.json")["Module.head.Dense.forward.0"] == "Module.Network.forward.0"


def test_what_is_no_module_or_no_name_is_refused(make):
    with pytest.raises(SessionError, match="no ArrayDebugger has been made yet"):
        ArrayDebugger.dump_module(Network(), "x")
    debugger = make(level="L1")
    with pytest.raises(SessionError, match="not a model of numpy"):
        debugger.dump_module("x", "x")
    for name in ("", None, 3):
        with pytest.raises(SessionError, match="module_dump"):
            debugger.dump_module(Network(), name)
    assert not debugger._controller.session._recorder.is_single
