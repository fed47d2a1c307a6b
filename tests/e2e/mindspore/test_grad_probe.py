"""The task grad_probe in MindSpore: bitwise neutral, equal runs are equal, a flipped layer is found first."""

import csv
import json

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import mindspore_rig  # noqa: E402, F401  # sets the mode
from mindspore import Tensor, nn, ops  # noqa: E402
from mindspore_rig import dense  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402

from msprobe_core.gradients.compare import compare_gradients  # noqa: E402
from msprobe_core.gradients.similarity import Basis  # noqa: E402

NUM_STEPS = 3


def train(directory=None, *, level="L1", gives="optimizer", flips=False):
    random = np.random.RandomState(0)
    net = nn.SequentialCell(dense(8, 16, random), nn.Tanh(), dense(16, 16, random), nn.Tanh(), dense(16, 4, random))
    optimizer = nn.Adam(net.trainable_params(), learning_rate=1e-2)
    debugger = None
    if directory is not None:
        directory.mkdir()
        block = {"grad_level": level, "param_list": [], "bounds": [-1, 0, 1]}
        config = {"task": "grad_probe", "rank": [], "step": [], "dump_path": str(directory), "grad_probe": block}
        (directory / "config.json").write_text(json.dumps(config))
        debugger = PrecisionDebugger(str(directory / "config.json"))
        debugger.monitor(*{"optimizer": (optimizer,), "both": (net, optimizer), "net": (net,)}[gives])
    names = [each.name for each in net.trainable_params()]
    calculate = ms.value_and_grad(lambda x, y: nn.MSELoss()(net(x), y), None, net.trainable_params())
    losses = []
    for step in range(NUM_STEPS):
        data = np.random.RandomState(step)
        loss, gradients = calculate(*(Tensor(data.normal(size=(4, size)).astype(np.float32)) for size in (8, 4)))
        if flips:
            gradients = tuple(
                ops.neg(each) if name == "2.weight" else each for name, each in zip(names, gradients, strict=True)
            )
        optimizer(gradients)
        losses.append(loss.asnumpy().tobytes())
    if debugger is not None:
        debugger.close()
    return losses, [each.asnumpy().tobytes() for each in net.trainable_params()]


@pytest.mark.parametrize(("level", "gives"), [("L0", "optimizer"), ("L1", "both"), ("L2", "net")])
def test_training_stays_the_same_to_the_bit(tmp_path, level, gives):
    assert train(tmp_path / "run", level=level, gives=gives) == train()
    rank = tmp_path / "run/rank0"
    for step in range(NUM_STEPS):
        rows = list(csv.DictReader((rank / f"grad_summary_{step}.csv").read_text().splitlines()))
        assert [row["param_name"] for row in rows] == ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
        assert all(float(row["norm"]) > 0 for row in rows)
    assert (rank / "step0").exists() == (level != "L0")


def test_equal_runs_agree_and_a_flipped_layer_is_first(tmp_path):
    for name, options in {"golden": {}, "equal": {}, "flipped": {"flips": True}}.items():
        train(tmp_path / name, **options)
    equal = compare_gradients(tmp_path / "equal", tmp_path / "golden")
    assert not equal.problems
    assert {each.similarity for each in equal.agreements} == {1.0}
    first = compare_gradients(tmp_path / "flipped", tmp_path / "golden").problems[0].agreement
    assert (first.step, first.parameter) == (0, "2.weight")
    assert first.counted_similarity < 0.01


def test_norms_alone_do_not_show_a_flip_in_its_step(tmp_path):
    for name, flips in (("golden", False), ("flipped", True)):
        train(tmp_path / name, level="L0", flips=flips)
    found = compare_gradients(tmp_path / "flipped", tmp_path / "golden")
    assert found.basis is Basis.NORMS
    assert {each.norm_ratio for each in found.agreements if each.step == 0} == {1.0}
    assert {each.agreement.step for each in found.problems} <= {1, 2}
