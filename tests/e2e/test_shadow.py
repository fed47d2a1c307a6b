"""A step once more in a finer format, beside the training, which notices nothing of it."""

import polars as pl
import pytest
import torch
from architectures import ARCHITECTURES
from msprobe.pytorch import PrecisionDebugger, shadow_step

from msprobe_core.compare import compare_dumps
from msprobe_core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("close_debugger")


def train(directory, *, shadow, kind, steps=2):
    torch.manual_seed(0)
    architecture = ARCHITECTURES["llama"]
    model = architecture.build(attention_dropout=0.1)
    if kind == "bfloat16":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    debugger = PrecisionDebugger(dump_path=directory, level="mix", step=[1])
    losses = []

    def one_step(batch):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    for step in range(steps):
        batch = architecture.batch(step)
        if shadow:
            with shadow_step(debugger, model, optimizer) as runs:
                for run in runs:
                    loss = one_step(batch)
                    if run.is_golden:
                        losses.append(loss)
        else:
            with debugger.start(model):
                losses.append(one_step(batch))
        debugger.step()
    debugger.close()
    held = [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
    for state in optimizer.state.values():
        held += state.values()
    return losses, [(value.dtype, value.clone()) for value in held], len(optimizer.state)


def unit(root):
    (found,) = (root / "step1").iterdir()
    return found


@pytest.mark.parametrize("kind", ["bfloat16", "autocast"])
def test_the_shadow_is_in_float32_and_the_training_goes_on_as_if_there_were_none(tmp_path, kind):
    bare, shadowed = train(tmp_path / "bare", shadow=False, kind=kind), train(tmp_path / "run", shadow=True, kind=kind)
    assert bare[0] == shadowed[0]
    assert bare[2] == shadowed[2]
    for (mine, value), (theirs, other) in zip(bare[1], shadowed[1], strict=True):
        assert mine == theirs
        assert torch.equal(value, other)
    # The step as trained is the target, its shadow the golden run.
    rows = compare_dumps(unit(tmp_path / "run"), unit(tmp_path / "run/shadow")).units[0].rows
    tensors = rows.filter(
        pl.col("dtype_golden").str.starts_with("torch.float") | pl.col("dtype_golden").str.starts_with("torch.bfloat")
    )
    assert set(tensors["dtype_golden"]) == {"torch.float32"}
    assert "torch.bfloat16" in set(tensors["dtype_target"])
    loss = rows.filter(pl.col("name_target").str.contains("cross_entropy.0.forward.output"))
    assert 0 < loss["norm_rel"].item() < 0.02


def test_a_golden_run_in_float64_for_one_in_float32(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0", step=[0])
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with shadow_step(debugger, model, dtype=torch.float64) as runs:
        numbers = [run.number for run in runs if model(torch.ones(3, 4)).sum().backward() is None]
    assert numbers == [0, 1]
    assert model[1].num_batches_tracked == 1
    assert model[1].running_mean.dtype is torch.float32
    assert not torch.equal(model[1].running_mean, kept["1.running_mean"])  # once, as the step itself has left it
    (step,) = (tmp_path / "run/shadow/step0").iterdir()
    assert "torch.float64" in (step / "dump.json").read_text()


def test_another_dtype_is_refused(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L0")
    with (
        pytest.raises(ConfigError, match="'dtype' is torch"),
        shadow_step(debugger, None, dtype=torch.bfloat16),
    ):
        pass
