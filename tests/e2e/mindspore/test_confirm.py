"""Who is wrong at a call of MindSpore's: faults on either side are distinguished from rounding and other arguments."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from msprobe.mindspore import PrecisionDebugger

from msprobe_core.confirm import Cause, Verdict, confirm
from msprobe_core.store.reading import read_dump


class Net(nn.Cell):
    """Attention by hand after a norm, with casts inside, and a head."""

    def __init__(self, eps=1e-5, shift=0):
        super().__init__()
        ms.set_seed(0)
        self.fc = nn.Dense(16, 32)
        self.norm = nn.LayerNorm((32,), epsilon=eps)
        self.head = nn.Dense(32, 8)
        self.shift = shift

    def construct(self, x, *, mask):
        y = self.norm(ops.gelu(self.fc(x)).astype(ms.float32))
        mask = mask.astype(ms.int32)
        mask = (
            ops.concat((mask[self.shift :], mask[: self.shift])).astype(ms.bool_)
            if self.shift
            else mask.astype(ms.bool_)
        )
        scores = ops.masked_fill(ops.matmul(y, y.T) / 32, mask, -30.0)
        return self.head(ops.matmul(ops.softmax(scores, axis=-1), y))[:, 1:]


def record(place, **net):
    """Train one step and record it; return the directory of the one dump."""
    ms.runtime.launch_blocking()
    config = place.with_suffix(".json")
    config.write_text(json.dumps({"task": "tensor", "level": "mix", "risk_level": "ALL", "dump_path": str(place)}))
    debugger, model = PrecisionDebugger(str(config)), Net(**net)
    x = ms.Tensor(np.random.default_rng(1).standard_normal((6, 16)), ms.float32)
    mask = ms.Tensor(np.triu(np.ones((6, 6), bool), 1))
    train = ms.value_and_grad(lambda x: (model(x, mask=mask) ** 2).mean(), 0, model.trainable_params())
    try:
        debugger.start(model)
        train(x)
        debugger.stop()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return unit


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return record(tmp_path_factory.mktemp("golden") / "run")


@pytest.fixture(scope="module")
def model():
    return Net()


def ask(target, golden, entry, model=None):
    return confirm(read_dump(target), read_dump(golden), entry, model=model)


def planted(golden, place, entry, path, do):
    """Return a copy of a dump in which one result of a call is changed."""
    place.mkdir()
    for file in golden.iterdir():
        if file.is_file():
            (place / file.name).write_bytes(file.read_bytes())
    (place / "dump_tensor_data").mkdir()
    for file in (golden / "dump_tensor_data").iterdir():
        (place / "dump_tensor_data" / file.name).write_bytes(file.read_bytes())
    changed = place / "dump_tensor_data" / f"{entry}.output.{path}.npy"
    np.save(changed, do(np.load(changed)))
    data = json.loads((place / "dump.json").read_text())
    data["dump_data_dir"] = str(place / "dump_tensor_data")
    (place / "dump.json").write_text(json.dumps(data))
    return place


def test_every_call_that_can_be_made_again_is_right_on_both_sides(golden, model):
    entries = read_dump(golden).frame["entry"].unique(maintain_order=True).to_list()
    seen = set()
    for entry in sorted({*entries[::3], *(entry for entry in entries if entry.startswith("Cell."))}):
        if "parameters_grad" in entry:
            continue
        found = ask(golden, golden, entry, model)
        seen.add((entry.partition(".")[0], "backward" in entry, found.verdict))
        assert found.verdict in {Verdict.NEITHER, Verdict.CANNOT_TELL}, (entry, found)
    assert {
        (kind, is_backward, Verdict.NEITHER) for kind in ("Functional", "Tensor", "Cell") for is_backward in (0, 1)
    } <= seen


@pytest.mark.parametrize(
    ("entry", "path"),
    [("Functional.gelu.0.forward", "0"), ("Functional.softmax.0.backward", "0"), ("Cell.head.Dense.forward.0", "0")],
)
@pytest.mark.parametrize("side", ["target", "golden"])
def test_who_computed_wrong_is_named(golden, model, tmp_path, entry, path, side):
    wrong = planted(golden, tmp_path / "wrong", entry, path, lambda values: values * 1.01)
    sides = (wrong, golden) if side == "target" else (golden, wrong)
    assert ask(*sides, entry, model).verdict is {"target": Verdict.TARGET, "golden": Verdict.GOLDEN}[side]


def test_another_epsilon_is_named_by_the_model(golden, model, tmp_path):
    target = record(tmp_path / "target", eps=1e-2)
    assert ask(target, golden, "Cell.norm.LayerNorm.forward.0", model).verdict is Verdict.TARGET


def test_other_inputs_are_no_fault_of_the_call(golden, tmp_path):
    target = record(tmp_path / "target", shift=1)
    found = ask(target, golden, "Functional.masked_fill.0.forward")
    assert (found.verdict, found.cause) == (Verdict.NEITHER, Cause.INPUTS)


def test_a_random_call_and_a_primitive_are_refused_with_the_reason(golden):
    found = ask(golden, golden, "Primitive.matmul.MatMul.0.forward")
    assert found.verdict is Verdict.CANNOT_TELL
    assert "attributes are not in a dump" in str(found)


def test_a_name_of_a_dump_is_not_looked_up_in_mindspore(golden, tmp_path):
    evil = planted(golden, tmp_path / "evil", "Functional.gelu.0.forward", "0", lambda values: values)
    text = (evil / "dump.json").read_text().replace("Functional.gelu.0.forward", "Functional.print_.0.forward")
    (evil / "dump.json").write_text(text)
    found = ask(evil, evil, "Functional.print_.0.forward")
    assert found.verdict is Verdict.CANNOT_TELL
    assert "not among the numerical functions" in str(found)
