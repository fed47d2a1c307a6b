"""The task grad_probe on a real Llama: bitwise neutral, equal runs are equal, a flipped layer is found first."""

import csv
import json

import pytest
import torch
from gradient_ranks import train_probed
from jobs import run_job
from msprobe.core.grad_probe.grad_compare import GradComparator
from msprobe.pytorch import PrecisionDebugger
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe_core.gradients.compare import compare_gradients


def train(directory=None, *, seed=1, flipped=None, level="L1", gives="model", num_steps=3, **fields):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = None
    if directory is not None:
        directory.mkdir()
        block = {"grad_level": level, "param_list": [], "bounds": [-1, 0, 1]}
        config = {
            "task": "grad_probe",
            "rank": [],
            "step": [],
            "grad_probe": block,
            "dump_path": str(directory),
            **fields,
        }
        (directory / "config.json").write_text(json.dumps(config))
        debugger = PrecisionDebugger(str(directory / "config.json"))
        debugger.monitor(*{"model": (model,), "optimizer": (optimizer,), "both": (model, optimizer)}[gives])
    if flipped is not None:
        model.model.layers[flipped].self_attn.q_proj.weight.register_hook(lambda gradient: -gradient)
    data = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(num_steps):
        tokens = torch.randint(0, 64, (2, 16), generator=data)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if debugger is not None:
        debugger.close()
    return losses, [each.detach().clone() for each in model.parameters()]


@pytest.mark.parametrize(("level", "gives"), [("L0", "optimizer"), ("L1", "model"), ("L2", "both")])
def test_training_stays_the_same_to_the_bit(tmp_path, level, gives):
    losses, parameters = train()
    seen, others = train(tmp_path / "run", level=level, gives=gives)
    assert losses == seen
    assert all(torch.equal(one, other) for one, other in zip(parameters, others, strict=True))
    rank = tmp_path / "run/rank0"
    for step in range(3):
        rows = list(csv.DictReader((rank / f"grad_summary_{step}.csv").read_text().splitlines()))
        assert len(rows) == len(parameters)
    head = {"L0": ["param_name", "MD5"], "L1": ["param_name"]}
    intervals = ["param_name", "(-inf, -1]", "(-1, 0]", "(0, 1]", "(1, inf)", "=0"]
    assert list(rows[0]) == [*head.get(level, intervals), "max", "min", "norm", "shape"]
    assert (rank / "step0").exists() == (level != "L0")


def test_equal_runs_agree_and_others_do_not(tmp_path):
    train(tmp_path / "golden")
    train(tmp_path / "equal")
    train(tmp_path / "other", seed=2)
    train(tmp_path / "flipped", flipped=1)
    golden = tmp_path / "golden"
    equal = compare_gradients(tmp_path / "equal", golden)
    assert not equal.problems
    assert {each.similarity for each in equal.agreements} == {1.0}
    other = compare_gradients(tmp_path / "other", golden)
    assert 0.45 < other.counted_summary(0)[0] < 0.55
    first = compare_gradients(tmp_path / "flipped", golden).problems[0].agreement
    assert (first.step, first.parameter) == (0, "model.layers.1.self_attn.q_proj.weight")
    GradComparator.compare_distributed(str(tmp_path / "flipped"), str(golden), str(tmp_path / "out"))
    rows = list(csv.reader((tmp_path / "out/rank0/similarities.csv").read_text().splitlines()))
    assert rows[0] == ["step", "0", "1", "2"]
    assert rows[-1][0] == "summary"


def test_selected_steps_and_parameters_are_recorded_only(tmp_path):
    block = {"grad_level": "L1", "param_list": ["lm_head.weight", "*.layers.0.*norm*"]}
    train(tmp_path / "run", step=[1], grad_probe=block)
    rank = tmp_path / "run/rank0"
    assert sorted(each.name for each in rank.iterdir()) == ["counted", "grad_summary_1.csv", "step1"]
    assert len(list((rank / "step1").iterdir())) == 3


@pytest.fixture(scope="module")
def trained_on_two_ranks(tmp_path_factory):
    """Return a directory with the trainings of two ranks, by what was given to the probe."""
    place = tmp_path_factory.mktemp("ranks")
    run_job(train_probed, 2, place)
    return place


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize("given", ["model", "both"])
def test_two_ranks_record_the_reduced_gradients(trained_on_two_ranks, given):
    """Under DDP all ranks use the same gradient, so one rank's fault is that of all, and is named for its layer."""
    place = trained_on_two_ranks / given
    for rank in range(2):
        assert (place / f"golden{rank}.txt").read_text() == (place / f"bare{rank}.txt").read_text()
    between = compare_gradients(place / "golden/rank0", place / "golden/rank1")
    assert {each.step for each in between.agreements} == {0, 1, 2}
    assert {each.similarity for each in between.agreements} == {1.0}
    found = compare_gradients(place / "flipped", place / "golden")
    assert found.ranks == [0, 1]
    assert not [each.text for each in found.lacking]
    first = found.problems[0].agreement
    assert (first.step, first.parameter.removeprefix("module.")) == (0, "0.weight")
    assert {each.agreement.rank for each in found.problems} == {0, 1}
