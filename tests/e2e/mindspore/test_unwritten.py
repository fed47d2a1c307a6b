"""Results that the CPU's kernels leave unwritten are recorded as such, and never as values."""

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from mindspore_programs import record  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402
from msprobe.mindspore._unwritten import _UNWRITTEN, shown  # noqa: E402
from unwritten import fill_free_memory, unwritten  # noqa: E402

from msprobe_core.cli import main  # noqa: E402


def values(*shape):
    return Tensor(np.random.RandomState(0).rand(*shape).astype(np.float32))


def ones(*shape):
    return Tensor(np.ones(shape, np.float32))


def state(*shape):
    return Parameter(ones(*shape))


def number(value):
    return Tensor(value, ms.float32)


RATES = [number(value) for value in (0.9, 0.9, 0.1, 0.9, 0.9, 1e-8)]
ROWS = Tensor([0, 1], ms.int32)


def batch():
    return values(2, 3, 4, 4), ones(3), ones(3), state(3), state(3)


CALLS = {
    "BatchNorm in training": (ops.BatchNorm(is_training=True), batch),
    "BatchNorm": (ops.BatchNorm(is_training=False), batch),
    "LayerNorm": (ops.LayerNorm(-1, -1), lambda: (values(2, 3, 4), ones(4), ones(4))),
    "Dropout": (ops.Dropout(0.5), lambda: (values(2, 3, 4),)),
    "Dropout2D": (ops.Dropout2D(0.5), lambda: (values(2, 3, 4, 4),)),
    "TopK": (ops.TopK(), lambda: (values(8), 3)),
    "MaxPoolWithArgmaxV2": (ops.MaxPoolWithArgmaxV2(2), lambda: (values(2, 3, 4, 4),)),
    "LSTM": (
        ops.LSTM(4, 5, 1, has_bias=True, bidirectional=False, dropout=0.0),
        lambda: (values(3, 2, 4), values(1, 2, 5), values(1, 2, 5), values(220, 1, 1)),
    ),
    "Eig": (ops.Eig(), lambda: (values(2, 2),)),
    "Eig with vectors": (ops.Eig(compute_v=True), lambda: (values(2, 2),)),
    "UniqueConsecutive": (ops.UniqueConsecutive(), lambda: (values(4),)),
    "UniqueConsecutive with indices": (ops.UniqueConsecutive(True), lambda: (values(4),)),
    "UniqueConsecutive with all": (ops.UniqueConsecutive(True, True), lambda: (values(4),)),
    "ApplyMomentum": (ops.ApplyMomentum(), lambda: (state(3), state(3), number(0.1), ones(3), number(0.1))),
    "SGD": (ops.SGD(), lambda: (state(3), ones(3), number(0.1), state(3), number(0.1), state(3))),
    "ApplyAdagrad": (ops.ApplyAdagrad(), lambda: (state(3), state(3), number(0.1), ones(3))),
    "ApplyRMSProp": (ops.ApplyRMSProp(), lambda: (state(3), state(3), state(3), 0.1, ones(3), 0.9, 0.9, 0.1)),
    "Adam": (ops.Adam(), lambda: (state(3), state(3), state(3), *RATES, ones(3))),
    "AdamWeightDecay": (
        ops.AdamWeightDecay(),
        lambda: (state(3), state(3), state(3), *RATES[:3], RATES[5], RATES[2], ones(3)),
    ),
    "FusedSparseAdam": (
        ops.FusedSparseAdam(),
        lambda: (state(3, 2), state(3, 2), state(3, 2), *RATES, values(2, 2), ROWS),
    ),
    "FusedSparseLazyAdam": (
        ops.FusedSparseLazyAdam(),
        lambda: (state(3, 2), state(3, 2), state(3, 2), *RATES, values(2, 2), ROWS),
    ),
    "FusedSparseFtrl": (
        ops.FusedSparseFtrl(0.1, 0.1, 0.1, -0.5),
        lambda: (state(3, 2), state(3, 2), state(3, 2), values(2, 2), ROWS),
    ),
    "FusedSparseProximalAdagrad": (
        ops.FusedSparseProximalAdagrad(),
        lambda: (state(3, 2), state(3, 2), *[number(0.1)] * 3, values(2, 2), ROWS),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_table_is_what_the_kernels_do(call):
    primitive, make = CALLS[call]
    find = _UNWRITTEN.get(type(primitive).__name__)
    # A kernel may happen to leave no mark where the table says that the result is nothing, but not the other way round.
    found, expected = unwritten(primitive, make), set(find(primitive) if find else ())
    assert found <= expected
    assert found or not expected


def test_each_line_of_the_table_is_tried():
    assert {type(primitive).__name__ for primitive, _ in CALLS.values()} >= set(_UNWRITTEN)


def test_all_results_are_shown_on_a_device(monkeypatch):
    monkeypatch.setattr("msprobe.mindspore._unwritten.is_host", lambda: False)
    assert shown(ops.BatchNorm(is_training=True)) is None


def program(mark):
    """Return a net, and a function that trains and evaluates it where free memory holds ``mark``."""
    net = nn.SequentialCell(nn.BatchNorm2d(3), nn.ReLU())
    train = ms.value_and_grad(lambda x: net(x).square().mean(), None, net.trainable_params())

    def run():
        for is_training in (True, False):
            net.set_train(is_training)
            train(values(2, 3, 4, 4))

    fill_free_memory(mark)
    return net, run


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_two_equal_runs_agree(tmp_path, capsys, caplog, task):
    runs = [tmp_path / side for side in ("target", "golden")]
    for directory, mark in zip(runs, (float("nan"), 3.0), strict=True):
        directory.mkdir()
        net, run = program(mark)
        dump = record(directory, run, model=net, level="mix", task=task, summary_mode="statistics")
    for call, written in (("bn_train", [0, 3, 4]), ("bn_infer", [0])):
        outputs = dump.data[f"Primitive.{call}.BatchNorm.0.forward"]["output"]
        assert [i for i, output in enumerate(outputs) if output["Max"] is not None] == written
        assert {output.get("error") for output in outputs} == {None, "this kernel does not write this result"}
    assert "not recorded" not in caplog.text
    with pytest.raises(SystemExit) as ended:
        main(["compare", "-tp", str(runs[0] / "run"), "-gp", str(runs[1] / "run"), "-o", str(tmp_path / "out")])
    assert ended.value.code == 0, capsys.readouterr().out


def test_memory_that_holds_nan_is_no_overflow(tmp_path, caplog):
    net, run = program(float("nan"))
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "run"), level="mix", task="overflow_check")
    try:
        with debugger.start(net):
            run()
        debugger.step()
    finally:
        debugger.close()
    assert "no overflow" in caplog.text
