"""`save`, `save_grad` and `step`: values that a MindSpore program saves itself, as files."""

import json
import logging
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import saving_net
from mindspore import Parameter, Tensor, ops
from msprobe.mindspore import PrecisionDebugger, _saving_graph, save, save_grad, saving, step

from msprobe_core.errors import SessionError

ms.runtime.launch_blocking()


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Steps and numbers count from 0, and the mode is the dynamic graph's again."""
    monkeypatch.chdir(tmp_path)
    saving._saver.cache_clear()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def files_in(directory):
    """Arrays by step and name without number, in the order of the numbers."""
    paths = sorted(Path(directory).glob("step*/rank0/*.npy"), key=lambda path: int(path.stem.rpartition("_")[2]))
    assert [int(path.stem.rpartition("_")[2]) for path in paths] == list(range(len(paths)))
    return {f"{path.parts[-3]} {path.stem.rpartition('_')[0]}": np.load(path) for path in paths}


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["dynamic", "static"])
def test_a_net_saves_its_values_and_computes_the_same(tmp_path, mode):
    ms.set_context(mode=mode)
    plain = saving_net.loss_and_gradients(None)()
    run = saving_net.loss_and_gradients(str(tmp_path / "saved"))
    for _ in range(2):
        for found, expected in zip(run(), plain, strict=True):
            assert np.array_equal(found, expected)
        step()
    files = files_in(tmp_path / "saved")
    names = [
        "x_float32",
        "nested.pair.0_float32",
        "nested.pair.1_float32",
        "nested.half_bfloat16",
        "hidden_grad_float32",
    ]
    assert sorted(files) == sorted(f"step{n} {name}" for n in (0, 1) for name in names)
    x = saving_net.x().asnumpy()
    hidden = ops.matmul(saving_net.x(), saving_net.Net(None).weight).asnumpy()
    assert np.array_equal(files["step0 x_float32"], x)
    assert np.array_equal(files["step1 nested.pair.0_float32"], hidden)
    assert (files["step0 nested.pair.1_float32"].shape, files["step0 nested.pair.1_float32"]) == ((), 15.0)
    assert files["step0 nested.half_bfloat16"].dtype == np.float32
    assert np.array_equal(files["step0 nested.half_bfloat16"], x)
    assert np.array_equal(files["step1 hidden_grad_float32"], 2 * hidden + 1)


def test_a_function_that_is_compiled_saves(tmp_path):
    assert saving_net.compiled(saving_net.x(), str(tmp_path)).asnumpy()[0, 1] == 2
    step()
    assert list(files_in(tmp_path)) == ["step0 in_jit_float32"]


def test_files_are_for_their_owner_and_named_safely(tmp_path):
    save(tmp_path / "new", "a/b c", Tensor([1, 2], ms.int32))
    save(tmp_path / "new", "k", (Tensor(True), {"x": None, 3: Tensor([0.5], ms.float16)}))
    paths = sorted((tmp_path / "new" / "step0" / "rank0").iterdir(), key=lambda path: path.name)
    assert [path.name.partition("-")[0] for path in paths] == ["a_b_c", "k.0_bool_1.npy", "k.1.3_float16_2.npy"]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}


def test_gradients_of_leaves_and_of_views_are_those_of_what_is_returned(tmp_path):
    weight = Parameter(Tensor(np.arange(6).reshape(2, 3).astype(np.float32)), name="w")

    def loss(x, *, saves):
        given, own = x, weight
        if saves:
            given, own = save_grad(tmp_path, "x", x), save_grad(tmp_path, "w", weight)
        turned = (given * own).swapaxes(0, 1)
        if saves:
            turned = save_grad(tmp_path, "turned", turned)
            assert save_grad(tmp_path, "int", ops.cast(turned, ms.int32)).dtype == ms.int32
        return (turned * turned).sum() + x.sum()  # x is used besides

    x = Tensor(np.random.RandomState(1).randn(2, 3).astype(np.float32))
    results = []
    for saves in (False, True, True):
        value, (of_x, (of_weight,)) = ms.value_and_grad(lambda x, saves=saves: loss(x, saves=saves), 0, [weight])(x)
        results.append([each.asnumpy() for each in (value, of_x, of_weight)])
    for found in results[1:]:
        assert all(np.array_equal(*pair) for pair in zip(found, results[0], strict=True))
    files = files_in(tmp_path)
    assert len(list(tmp_path.glob("step0/rank0/*"))) == 6  # three for each run: no leaf keeps a hook
    turned = (x * weight).swapaxes(0, 1).asnumpy()
    assert np.array_equal(files["step0 turned_grad_float32"], 2 * turned)
    assert np.array_equal(files["step0 x_grad_float32"], results[0][1] - 1)
    assert np.array_equal(files["step0 w_grad_float32"], results[0][2])
    save_grad(tmp_path / "none", "x", x)
    assert not (tmp_path / "none").exists()


def test_what_saves_is_not_recorded(tmp_path):
    weight = Parameter(Tensor(np.ones((3, 2), np.float32)), name="w")

    def loss(x):
        hidden = save_grad(tmp_path / "saved", "hidden", ops.matmul(x, weight))
        save(tmp_path / "saved", "x", x)
        return ops.tanh(hidden).sum()

    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L1", risk_level="ALL")
    try:
        debugger.start()
        ms.value_and_grad(loss, 0, [weight])(saving_net.x())
        debugger.stop()
    finally:
        debugger.close()
    (path,) = (tmp_path / "run" / "step0").glob("*/dump.json")
    calls = {entry.split(".")[1] for entry in json.loads(path.read_text())["data"]}
    assert calls == {"matmul", "tanh", "sum"}
    assert len(files_in(tmp_path / "saved")) == 2


def test_what_goes_wrong_is_said_once_and_does_not_reach_the_training(tmp_path, caplog):
    (tmp_path / "file").touch()
    for _ in range(2):
        save(tmp_path / "file", "x", Tensor([1.0]))
    assert saving_net.compiled(saving_net.x(), str(tmp_path / "file")).asnumpy()[0, 1] == 2
    step()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "a value could not be saved (StoreError: " in record.getMessage()
    save(tmp_path, "x", {"n": 3})
    assert "save('x'): got dict, in which there is no tensor" in caplog.text
    for call, expected in (
        (lambda: save(tmp_path, 3, Tensor([1.0])), "got 3 as the name"),
        (lambda: save(None, "x", Tensor([1.0])), "got NoneType as the directory"),
        (lambda: save_grad(tmp_path, "x", [Tensor([1.0])]), "got list; give a tensor"),
    ):
        with pytest.raises(SessionError, match=expected):
            call()


def test_on_ascend_the_graph_holds_operators_that_write(tmp_path, monkeypatch):
    """By the graph as it is compiled: the operator itself is not there on the CPU."""
    monkeypatch.setattr(_saving_graph.arrivals(), "is_on_host", lambda: False)
    ms.set_context(mode=ms.GRAPH_MODE, save_graphs=2, save_graphs_path=str(tmp_path / "graphs"))
    try:
        with pytest.raises(RuntimeError, match=r"Unsupported op \[TensorDump\] on CPU"):
            saving_net.loss_and_gradients("/saved")()
    finally:
        ms.set_context(save_graphs=0)
    graph = max((tmp_path / "graphs").rglob("*_validate_*.ir"), key=lambda path: "TensorDump(" in path.read_text())
    lines = [line for line in graph.read_text().splitlines() if "= TensorDump(" in line]
    paths = sorted(line.partition('TensorDump("')[2].partition('"')[0] for line in lines)
    names = ["hidden_grad", "nested.half", "nested.pair.0", "nested.pair.1", "x"]
    assert paths == [f"/saved/{{step}}/{{rank}}/{name}" for name in names]
    assert all("side_effect_io: Bool(1)" in line for line in lines)


def test_on_ascend_a_step_is_counted_by_the_operator_too(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(_saving_graph.arrivals(), "is_on_host", lambda: False)
    monkeypatch.setattr(_saving_graph, "_dump", lambda path, mark: counted.append(path))
    monkeypatch.setattr(_saving_graph, "_run_op", lambda operator, name, given: counted.append(given[0]))
    monkeypatch.setattr(_saving_graph._dump, "name", "TensorDump", raising=False)
    step()
    assert counted == ["<tensordump-update-step>"] * 2


def test_a_link_in_the_place_of_a_step_is_not_followed(tmp_path, caplog):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "step0").symlink_to(tmp_path / "theirs")
    with caplog.at_level(logging.WARNING):
        save(str(tmp_path / "saved"), "x", saving_net.x())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "step0: is a symbolic link" in line
    assert not list((tmp_path / "theirs").iterdir())
