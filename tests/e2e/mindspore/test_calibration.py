"""Repetitions of a golden step in MindSpore's dynamic graph."""

import pytest

pytest.importorskip("mindspore")

import mindspore as ms
import numpy as np
import polars as pl
from mindspore import Tensor, nn
from mindspore_rig import Network
from msprobe.mindspore import PrecisionDebugger, calibration

from msprobe_core.compare import compare_dumps

pytestmark = pytest.mark.usefixtures("close_debugger")


class Trained(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.embedding.embedding_table.set_data(Tensor(np.random.RandomState(5).normal(size=(7, 4)), ms.float32))
        self.network = Network(1)

    def construct(self, ids):
        return self.network(self.embedding(ids))


def train(directory, *, repeats=0, level="mix", mode="everywhere"):
    ms.manual_seed(3)
    np.random.seed(3)
    net = Trained()
    net.set_train()
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 1e-2)
    debugger = PrecisionDebugger(dump_path=directory, level=level, step=[1])
    losses = []

    def one_step(ids):
        factor = float(np.random.rand())
        loss, gradients = ms.value_and_grad(lambda ids: net(ids).square().mean() * factor, None, optimizer.parameters)(
            ids
        )
        optimizer(gradients)
        return float(loss.asnumpy())

    for step in range(3):
        ids = Tensor(np.random.RandomState(step).randint(0, 7, size=300), ms.int32)
        if repeats:
            with calibration(debugger, net, optimizer, repeats, mode=mode) as runs:
                for run in runs:
                    loss = one_step(ids)
                    if run.is_golden:
                        losses.append(loss)
        else:
            debugger.start(net)
            losses.append(one_step(ids))
            debugger.stop()
        debugger.step()
    debugger.close()
    held = [parameter.asnumpy().copy() for cell in (net, optimizer) for parameter in cell.get_parameters()]
    return losses, [*held, ms.get_rng_state().asnumpy(), np.random.get_state()[1]]


def unit(root):
    (found,) = (root / "step1").iterdir()
    return found


def differing(target, golden):
    compared = compare_dumps(target, golden).units[0]
    assert {name for name, number in compared.counts.items() if number} <= {"pass"}
    return set(compared.rows.filter((pl.col("max_diff") != 0) | (pl.col("norm_diff") != 0))["name_golden"])


@pytest.mark.slow
def test_the_training_goes_on_as_if_there_had_been_no_repetitions(tmp_path):
    bare, calibrated = train(tmp_path / "bare"), train(tmp_path / "run", repeats=2)
    assert bare[0] == calibrated[0]
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(bare[1], calibrated[1], strict=True))
    golden = unit(tmp_path / "run")
    assert not differing(unit(tmp_path / "bare"), golden)
    first, second = (differing(unit(tmp_path / f"run/calibration/run{number}"), golden) for number in (1, 2))
    assert any("network" in name and ".backward." in name for name in first)
    assert any("network" in name and ".forward." in name for name in first)
    assert any("parameters_grad" in name for name in second)


def test_inputs_only(tmp_path):
    train(tmp_path / "run", repeats=1, mode="inputs", level="L0")
    names = differing(unit(tmp_path / "run/calibration/run1"), unit(tmp_path / "run"))
    assert any("Cell.embedding.Embedding.forward.0.output" in name for name in names)


def test_dropout_that_cannot_be_repeated_is_said(tmp_path, caplog):
    net = nn.SequentialCell(nn.Dense(2, 2), nn.Dropout(p=0.5))
    net.set_train()
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    with calibration(debugger, net) as runs:
        assert [run.number for run in runs if net(Tensor(np.ones((1, 2)), ms.float32)) is not None] == [0]
    assert "cannot be drawn again" in caplog.text
