"""Tensors inside of ``torch.func`` are recorded with their values, and computed as they are without the probe."""

import logging

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from recorded import Recorded, leaves
from torch import nn
from torch.func import functional_call, functionalize, grad, hessian, jacfwd, jvp, vjp, vmap

X = torch.arange(12.0).view(4, 3) - 5
MODEL = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.LayerNorm(3))


def gradients_of_each_sample(x):
    def loss(parameters, sample):
        return functional_call(MODEL, parameters, (sample[None],)).square().sum()

    return vmap(grad(loss), (None, 0))(dict(MODEL.named_parameters()), x)


def attention(x):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = x.view(1, 1, 4, 3).repeat(1, 1, 4, 1)
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="cpu")
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + i - j, block_mask=mask)


PROGRAMS = {
    "vmap": lambda x: vmap(lambda row: (row * 2).sum())(x),
    "vmap of columns": lambda x: vmap(lambda column: column * 2, in_dims=1)(x),
    "vmap twice": lambda x: vmap(vmap(lambda one: one.exp() * 2))(x),
    "vmap in place": lambda x: vmap(lambda row: row.clone().add_(1))(x),
    "grad": lambda x: grad(lambda y: (y * y).sum())(x),
    "jvp": lambda x: jvp(lambda y: y * y, (x,), (x,)),
    "vjp": lambda x: vjp(lambda y: y * y, x)[1](x),
    "jacfwd": lambda x: jacfwd(lambda y: y.sin() * 2)(x[0]),
    "hessian": lambda x: hessian(lambda y: (y**3).sum())(x[0]),
    "functionalize": lambda x: functionalize(lambda y: y.clone().mul_(2) + 1)(x),
    "gradients of each sample": gradients_of_each_sample,
    "flex attention": attention,
}


@pytest.fixture
def record(tmp_path, close_debugger):
    def run(program, level="mix", **settings):
        debugger = PrecisionDebugger(dump_path=tmp_path / "run", level=level, **settings)
        with debugger.start(MODEL):
            result = program(X)
        debugger.close()
        return Recorded(tmp_path / "run"), result

    return run


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")  # flex attention runs uncompiled, and says so
def test_results_are_the_same_and_nothing_fails(name, task, level, record, caplog):
    with caplog.at_level(logging.WARNING):
        dump, result = record(PROGRAMS[name], level, task=task)
    expected = PROGRAMS[name](X)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert "not recorded" not in caplog.text
    values = [value for entry in dump.data.values() for value in leaves(entry).values()]
    assert not [value for value in values if "error" in value]


def tensors_of(data, entry, part):
    return list(leaves(data[entry][part]).values())


def test_values_of_a_batch_are_those_of_all_samples(record):
    data = record(PROGRAMS["vmap"], "L1")[0].data
    (row, _), (total,) = (
        tensors_of(data, f"Tensor.{entry}.0.forward", part)
        for entry, part in (("__mul__", "input_args"), ("sum", "output"))
    )
    assert (row["shape"], row["Max"], row["Min"]) == ([4, 3], 6.0, -5.0)
    assert row["transforms"] == "BatchedTensor(lvl=1)"
    assert (total["shape"], total["Max"]) == ([4], 2 * X.sum(1).max())


def test_the_hidden_dimension_stands_in_front(record):
    dump = record(PROGRAMS["vmap of columns"], "L1", task="tensor")[0]
    (value,) = dump.data["Tensor.__mul__.0.forward"]["output"]
    assert value["shape"] == [3, 4]
    assert dump.tensor(value).tolist() == (2 * X.T).tolist()


def test_transforms_are_named_from_the_outermost_on(record):
    data = record(gradients_of_each_sample, "L1")[0].data
    value = tensors_of(data, "Functional.linear.0.forward", "input_args")[0]
    assert value["transforms"] == "BatchedTensor(lvl=1), GradTrackingTensor(lvl=2)"
    assert (value["shape"], value["Max"]) == ([4, 1, 3], 6.0)


def test_gradients_inside_a_transform_have_their_values(record):
    data = record(PROGRAMS["grad"], "L1")[0].data
    assert [value["Max"] for value in tensors_of(data, "Tensor.__mul__.0.backward", "output")] == [12.0, 12.0]


@pytest.mark.parametrize("summary_mode", ["md5", "hash", "sketch"])
def test_checksums_are_those_of_what_is_inside(summary_mode, tmp_path, close_debugger):
    (tmp_path / "c.json").write_text(f'{{"statistics": {{"summary_mode": "{summary_mode}"}}, "risk_level": "ALL"}}')
    with PrecisionDebugger(tmp_path / "c.json", dump_path=tmp_path / "run", level="L1").start():
        torch.square(X)
        vmap(torch.square)(X)
    data = Recorded(tmp_path / "run").data
    bare, inside = (data[f"Torch.square.{i}.forward"]["input_args"][0] for i in range(2))
    kept = "sketch" if summary_mode == "sketch" else "md5"
    assert bare[kept] == inside[kept]
