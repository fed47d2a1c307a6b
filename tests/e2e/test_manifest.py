"""The manifest of trainings with PyTorch: what it says of models, trainers and ranks, and that nothing changes."""

from __future__ import annotations

import gc
import importlib
import itertools
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._manifest_optimizers import SteppedOptimizers, optimizers_of
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe_core.store.manifest_file import read_data_rows, read_manifest


@pytest.fixture
def record(tmp_path):
    """Train a model for some steps, recorded or not; return the losses, the weights and the random state."""

    def run(make, *, train, steps=2, name="run", recorded=True, **settings):
        gc.collect()  # first rates are unknown as long as an optimizer of an earlier training exists
        torch.manual_seed(1)
        model, optimizer = make()
        debugger = PrecisionDebugger(dump_path=tmp_path / name, level="L0", **settings) if recorded else None
        losses = []
        for step in range(steps):
            if debugger is not None:
                debugger.start(model)
            losses.append(train(model, optimizer, step))
            if debugger is not None:
                debugger.stop()
                debugger.step()
        if debugger is not None:
            debugger.close()
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        return losses, state, torch.get_rng_state()

    return run


def manifest_in(directory: Path):
    (path,) = directory.glob("step*/*/manifest.json")
    return read_manifest(path)


def assert_equal_runs(one, other):
    assert [loss.hex() for loss in one[0]] == [loss.hex() for loss in other[0]]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(value, other[1][name]) for name, value in one[1].items())
    assert torch.equal(one[2], other[2])


def llama(**settings):
    def make():
        config = LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=64, tie_word_embeddings=True, attention_dropout=0.1, **settings,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
        groups = [
            {"params": [each for each in model.parameters() if each.dim() > 1], "weight_decay": 0.1},
            {"params": [each for each in model.parameters() if each.dim() < 2], "weight_decay": 0.0},
        ]
        return model, torch.optim.AdamW(groups, lr=1e-3)

    return make


def train_llama(model, optimizer, _step):
    losses = []
    for _ in range(2):
        ids = torch.randint(0, 64, (4, 12))
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses)


@pytest.mark.slow
def test_a_llama_is_described_and_unchanged(record, tmp_path):
    assert_equal_runs(record(llama(), train=train_llama), record(llama(), train=train_llama, recorded=False))
    manifest = manifest_in(tmp_path / "run")
    assert manifest.notes == ()
    (model,) = manifest.run.models
    assert model.settings["_attn_implementation"] == "sdpa"
    assert model.settings["rope_parameters.rope_theta"] == 10000.0
    assert model.settings["num_key_value_heads"] == 2
    modules = {module.path: module for module in model.modules}
    assert modules["model.layers.1.self_attn"].settings["attention_dropout"] == 0.1
    assert modules["model.layers.0.mlp.gate_proj"].settings["out_features"] == 48
    (tied,) = modules["lm_head"].parameters
    assert tied.tied_to == "model.embed_tokens.weight"
    (optimizer,) = manifest.run.optimizers
    assert optimizer.type == "torch.optim.adamw.AdamW"
    assert [group.settings["weight_decay"] for group in optimizer.groups] == [0.1, 0.0]
    assert "model.norm.weight" in optimizer.groups[1].parameters
    assert all(name for group in optimizer.groups for name in group.parameters)
    assert optimizer.state_dtypes["exp_avg"] == "float32"
    assert (optimizer.steps, optimizer.first_rates) == (1, (1e-3, 1e-3))
    assert {(rows.name, rows.micro_step, rows.count) for rows in manifest.data} == {
        (f"kwargs.{name}", micro, 4) for name in ("input_ids", "labels") for micro in (0, 1)
    }
    assert "transformers" in {library.name for library in manifest.libraries}
    (later,) = (tmp_path / "run").glob("step1/*")
    assert len(read_data_rows(later)) == 4


@pytest.mark.slow
def test_one_planted_difference_is_the_only_one(record, tmp_path):
    record(llama(), train=train_llama, name="a", steps=1)
    record(llama(rope_theta=500.0), train=train_llama, name="b", steps=1)
    first, second = (manifest_in(tmp_path / name).run for name in ("a", "b"))
    settings = [dict(each.models[0].settings) for each in (first, second)]
    assert {name for name in settings[0] if settings[0][name] != settings[1].get(name)} <= {
        "rope_parameters.rope_theta", "rope_theta",
    }  # fmt: skip
    assert settings[0] != settings[1]
    assert first.models[0].modules == second.models[0].modules
    assert first.switches == second.switches
    assert first.optimizers == second.optimizers
    assert first.generators[-1] == second.generators[-1]


def tiny():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_tiny(model, optimizer, _step):
    loss = model(torch.randn(6, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@pytest.mark.slow
def test_hooks_of_users_are_named_and_ours_are_not(record, tmp_path):
    def spy(*_):
        return None

    def make():
        model, optimizer = tiny()
        model[0].register_forward_hook(spy)
        model[3].register_full_backward_pre_hook(spy)
        model[3].weight.register_hook(spy)
        return model, optimizer

    record(make, train=train_tiny)
    modules = {module.path: module for module in manifest_in(tmp_path / "run").run.models[0].modules}
    name = f"{__name__}.{spy.__qualname__}"
    assert {path: module.hooks for path, module in modules.items() if module.hooks} == {
        "0": {"forward": (name,)},
        "3": {"backward_pre": (name,), "weight.gradient": (name,)},
    }
    assert modules["1"].settings == {"p": 0.1, "inplace": False}
    assert modules["0"].is_training


@pytest.mark.slow
def test_switches_are_those_in_effect(record, tmp_path):
    before = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")

    def make():
        return tiny()

    def train(model, optimizer, step):
        return train_tiny(model, optimizer, step)

    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            record(make, train=train, steps=1)
            assert torch.is_autocast_enabled("cpu")
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_float32_matmul_precision(before[1])
    switches = manifest_in(tmp_path / "run").run.switches
    assert switches["deterministic_algorithms"] is True
    assert switches["deterministic_warn_only"] is True
    assert switches["float32_matmul_precision"] == "medium"
    assert switches["autocast.cpu"] == "bfloat16"
    assert switches["grad_enabled"] is True


@pytest.mark.slow
def test_autocast_that_is_entered_after_start_is_seen_and_changes_nothing(record, tmp_path):
    def train(model, optimizer, step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(6, 4)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    assert_equal_runs(record(tiny, train=train), record(tiny, train=train, recorded=False))
    assert manifest_in(tmp_path / "run").run.switches["autocast.cpu"] == "bfloat16"


@pytest.mark.slow
def test_flushed_denormals_are_seen(record, tmp_path):
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        record(tiny, train=train_tiny, name="flushed")
    finally:
        torch.set_flush_denormal(False)
    record(tiny, train=train_tiny, name="kept")
    found = [manifest_in(tmp_path / name).run.switches["flush_denormal"] for name in ("flushed", "kept")]
    assert found == [True, False]


@pytest.mark.slow
def test_a_compiled_model_is_described_and_unchanged(record, tmp_path):
    def make():
        model, optimizer = tiny()
        return torch.compile(model, backend="eager"), optimizer

    assert_equal_runs(record(make, train=train_tiny), record(make, train=train_tiny, recorded=False))
    manifest = manifest_in(tmp_path / "run")
    assert [module.path for module in manifest.run.models[0].modules] == ["", "0", "1", "2", "3"]
    assert manifest.run.models[0].modules[0].settings["torch.compile"] is True
    assert manifest.run.optimizers[0].groups[0].parameters == ("0.weight", "0.bias", "3.weight", "3.bias")
    assert [(rows.name, rows.count) for rows in manifest.data] == [("args.0", 6)]


@pytest.mark.slow
def test_an_optimizer_is_found_where_the_machine_is_busy(record, tmp_path, monkeypatch):
    """The search for it is bounded by its own work: here the clock runs a second each time it is read."""
    importlib.import_module("torch._dynamo")  # optimizers are not watched from then on, but searched
    ballast = []

    def make():
        made = tiny()
        gc.collect()
        ballast.extend([] for _ in range(150_000))  # made later, so looked at first
        gc.collect()
        monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
        return made

    record(make, train=train_tiny, steps=1)
    assert [each.type for each in manifest_in(tmp_path / "run").run.optimizers] == ["torch.optim.sgd.SGD"]


def test_an_earlier_training_in_the_process_is_not_taken_for_this_one():
    """A new hook would have compiled code compiled again, so optimizers that step later may not be seen to."""
    earlier = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=0.5)
    stepped = SteppedOptimizers()
    stepped.add(earlier)
    model, _optimizer = tiny()
    found = optimizers_of([SimpleNamespace(name="", model=model)], stepped)
    assert [each.type for each in found] == ["torch.optim.sgd.SGD"]


@pytest.mark.slow
def test_a_search_that_is_cut_off_finds_the_optimizer_of_now(record, tmp_path, monkeypatch):
    """Many objects are older, another training's optimizer among them; the clock allows one part of the search."""
    importlib.import_module("torch._dynamo")
    other = torch.optim.AdamW([torch.ones(1, requires_grad=True)], lr=0.5)
    ballast = [[] for _ in range(150_000)]
    gc.collect()
    gc.disable()  # so that nothing moves on from the youngest generation
    try:
        monkeypatch.setattr(time, "thread_time", itertools.count().__next__)
        record(tiny, train=train_tiny, steps=1)
    finally:
        gc.enable()
    assert [each.type for each in manifest_in(tmp_path / "run").run.optimizers] == ["torch.optim.sgd.SGD"]
    del other, ballast


@pytest.mark.slow
def test_without_a_model_the_rest_is_described(tmp_path):
    debugger = PrecisionDebugger(dump_path=tmp_path / "run", level="L1")
    debugger.start()
    torch.ones(2) + 1
    debugger.close()
    manifest = manifest_in(tmp_path / "run")
    assert manifest.run.models == ()
    assert manifest.run.switches
    assert manifest.notes == ("start() got no model, so no modules are described",)


RANKS = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from msprobe.pytorch import PrecisionDebugger

def train(kind, out, mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    debugger = PrecisionDebugger(dump_path=out + "/run", level="L0") if mode == "recorded" else None
    losses = []
    for step in range(2):
        if debugger:
            debugger.start(model)
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        if debugger:
            debugger.stop()
            debugger.step()
    if debugger:
        debugger.close()
    open(f"{out}/{mode}{dist.get_rank()}.txt", "w").write(" ".join(losses))

dist.init_process_group("gloo")
for mode in ("bare", "recorded"):  # bare before there is a probe
    train(sys.argv[1], sys.argv[2], mode)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # when Python ends, gloo's threads sometimes abort the process, with the probe or without it
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.usefixtures("has_torch_imported")
def test_two_ranks(tmp_path, kind):
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*command, program, kind, tmp_path], check=True, timeout=600)
    for rank in range(2):
        texts = [(tmp_path / f"{mode}{rank}.txt").read_text() for mode in ("recorded", "bare")]
        assert texts[0] == texts[1]
        manifest = read_manifest(tmp_path / "run" / "step0" / f"rank{rank}" / "manifest.json")
        assert (manifest.rank, manifest.world_size, manifest.notes) == (rank, 2, ())
        assert (0, 1) in {group.ranks for group in manifest.run.groups}
        prefix = "module." if kind == "ddp" else ""
        (optimizer,) = manifest.run.optimizers
        assert optimizer.groups[0].parameters[0] == f"{prefix}0.weight"
        modules = {module.path: module for module in manifest.run.models[0].modules}
        weight = modules[f"{prefix}0"].parameters[0]
        if kind == "fsdp2":
            assert weight.placement == "dp=Shard(0) of [8, 4]"
            assert weight.shape == (4, 4)
            assert "mesh.dp" in {group.name for group in manifest.run.groups}
        else:
            assert weight.placement is None
            assert "gloo" in {group.backend for group in manifest.run.groups}
    data = [read_data_rows(tmp_path / "run" / "step1" / f"rank{rank}") for rank in range(2)]
    assert data[0][0].rows != data[1][0].rows
