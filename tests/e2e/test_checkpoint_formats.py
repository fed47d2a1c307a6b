"""Checkpoints that real libraries write are opened without them, and every tensor is equal bit by bit."""

import json
import math

import numpy as np
import pytest
import saving_ranks
import torch
import torch.distributed.checkpoint as dcp
from jobs import run_job
from megatron_layout import megatron_state, shape_of, write_megatron
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

from msprobe_core.checkpoint.boxes import read_tensor
from msprobe_core.checkpoint.contents import CheckpointFormat, Kind
from msprobe_core.checkpoint.opening import open_checkpoint
from msprobe_core.checkpoint.resume import compare_resumed
from msprobe_core.errors import DumpError

SIZES = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 8,
         "num_key_value_heads": 4}  # fmt: skip


def llama(**options):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=4, **SIZES, **options))


def moe():
    torch.manual_seed(0)
    sizes = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_experts": 4}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(num_hidden_layers=2, num_experts_per_tok=2, **sizes, **SIZES))


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for name, tensor in found.items():
        assert tensor.damage is None, tensor.damage
        np.testing.assert_array_equal(read_tensor(tensor), expected[name].detach().float().numpy(), err_msg=name)


def weights(checkpoint):
    return {name: tensor for name, tensor in checkpoint.tensors.items() if tensor.kind is Kind.WEIGHT}


@pytest.mark.parametrize("size", ["10GB", "20KB"])
def test_save_pretrained(tmp_path, size):
    model = llama().bfloat16()
    model.save_pretrained(tmp_path, max_shard_size=size)
    found = open_checkpoint(tmp_path)
    assert found.format is CheckpointFormat.SAFETENSORS
    assert found.settings["num_hidden_layers"] == 4
    assert_equal(found.tensors, model.state_dict())


def test_tied_and_missing_files(tmp_path):
    llama(tie_word_embeddings=True).save_pretrained(tmp_path, max_shard_size="20KB")
    assert open_checkpoint(tmp_path).aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    gone = sorted(set(index.values()))[1]
    (tmp_path / gone).unlink()
    found = open_checkpoint(tmp_path)
    lost = {name for name, tensor in found.tensors.items() if tensor.damage is not None}
    assert lost == {name for name, file in index.items() if file == gone}
    assert gone in next(iter(found.notes)).text


@pytest.mark.parametrize(("tp", "pp", "vpp", "stages"), [
    (1, 1, 1, None), (2, 1, 1, None), (4, 1, 1, None), (2, 2, 1, None), (1, 2, 2, None), (2, 2, 1, [3, 1]),
])  # fmt: skip
def test_megatron(tmp_path, tp, pp, vpp, stages):
    model = llama()
    options = {"tp": tp, "pp": pp, "vpp": vpp, "stage_layers": stages, "has_optimizer": True}
    write_megatron(model.state_dict(), tmp_path, shape_of(model.config), **options)
    found = open_checkpoint(tmp_path)
    expected = megatron_state(model.state_dict(), shape_of(model.config), tp=tp)
    assert (found.format, found.step) == (CheckpointFormat.MEGATRON, 10)
    assert_equal(weights(found), expected)
    moments = {name: tensor for name, tensor in found.tensors.items() if name.endswith(".exp_avg")}
    assert_equal(moments, {f"optimizer.state.{name}.exp_avg": x * 0.1 for name, x in expected.items()})
    masters = {name: tensor for name, tensor in found.tensors.items() if tensor.kind is Kind.MASTER}
    assert_equal(masters, {f"optimizer.state.{name}.fp32_param": x for name, x in expected.items()})
    if tp > 1:
        assert "gate and up" in found.tensors["decoder.layers.0.mlp.linear_fc1.weight"].rule
        assert len(found.tensors["decoder.final_layernorm.weight"].replicas) == tp - 1


@pytest.mark.parametrize(("tp", "pp", "ep"), [(1, 1, 2), (2, 1, 2), (2, 2, 2), (1, 2, 4)])
@pytest.mark.parametrize("experts", ["local", "te", "grouped"])
def test_megatron_experts(tmp_path, tp, pp, ep, experts):
    model = moe()
    write_megatron(model.state_dict(), tmp_path, shape_of(model.config), tp=tp, pp=pp, ep=ep, experts=experts)
    assert_equal(open_checkpoint(tmp_path).tensors, megatron_state(model.state_dict(), shape_of(model.config), tp=tp))


def test_megatron_release_ties_and_missing_ranks(tmp_path):
    model = llama(tie_word_embeddings=True)
    step = write_megatron(model.state_dict(), tmp_path, shape_of(model.config), tp=2, pp=2, release=True)
    found = open_checkpoint(tmp_path)
    assert found.aliases == {"output_layer.weight": "embedding.word_embeddings.weight"}
    assert len(found.tensors["embedding.word_embeddings.weight"].replicas) == 2
    file = step / "mp_rank_01_001" / "model_optim_rng.pt"
    file.write_bytes(file.read_bytes()[:1000])
    found = open_checkpoint(tmp_path)
    lost = {name for name, tensor in found.tensors.items() if tensor.damage is not None}
    assert lost
    assert all(name.startswith(("decoder.layers.2", "decoder.layers.3")) for name in lost)
    assert any("mp_rank_01_001" in note.text for note in found.notes)


def state():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6)).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoint(tmp_path):
    model, optimizer = state()
    own = dict(zip(dict(model.named_parameters()), optimizer.state.values(), strict=True))
    saved = {"model": model.state_dict(), "optim": {"state": own, "param_groups": []}, "step": 7}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    found = open_checkpoint(tmp_path)
    assert (found.format, found.step) == (CheckpointFormat.DCP, 7)
    assert_equal(weights(found), model.state_dict())
    moments = {name: tensor for name, tensor in found.tensors.items() if name.endswith("exp_avg")}
    assert_equal(moments, {f"optimizer.state.{name}.exp_avg": each["exp_avg"] for name, each in own.items()})
    [file] = tmp_path.glob("*.distcp")
    file.write_bytes(file.read_bytes()[:3000])
    cut = open_checkpoint(tmp_path)
    assert any(tensor.damage is not None and "is cut off" in tensor.damage.text for tensor in cut.tensors.values())
    file.unlink()
    assert all(tensor.damage is not None for tensor in open_checkpoint(tmp_path).tensors.values())


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_a_distributed_checkpoint_of_several_ranks(tmp_path, size):
    """Saved over gloo, with uneven shards in one or two dimensions."""
    run_job(saving_ranks.save, size, tmp_path)
    found = open_checkpoint(tmp_path / "dcp")
    assert (found.format, found.step) == (CheckpointFormat.DCP, 7)
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == size
    assert_equal(weights(found), saving_ranks.state())


def test_training_state_in_one_file(tmp_path):
    model, optimizer = state()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, tmp_path / "x.pt")
    found = open_checkpoint(tmp_path / "x.pt")
    assert found.step == 3
    assert_equal(weights(found), model.state_dict())
    moments = {name: tensor for name, tensor in found.tensors.items() if name.endswith("exp_avg")}
    states = zip(dict(model.named_parameters()), optimizer.state.values(), strict=True)
    assert_equal(moments, {f"optimizer.state.{name}.exp_avg": each["exp_avg"] for name, each in states})


def test_flat_parameters_are_refused(tmp_path):
    torch.save({"model": {"_flat_param": torch.ones(5)}}, tmp_path / "x.pt")
    with pytest.raises(DumpError, match="flat parameters of FSDP"):
        open_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed(tmp_path, stage):
    """The files are written as DeepSpeed 0.19 does, which its own zero_to_fp32.py reads back."""
    model, _ = state()
    shapes = {name: x.shape for name, x in model.named_parameters()}
    step = tmp_path / "global_step5"
    step.mkdir()
    world = 2
    vectors = [[] for _ in range(world)]
    if stage == 2:
        flat = torch.cat([x.detach().reshape(-1) for x in model.parameters()])
        flat = torch.cat([flat, torch.zeros(-flat.numel() % (2 * world))])
        vectors = list(flat.chunk(world))
    else:
        for x in model.parameters():
            share = math.ceil(x.numel() / world)
            padded = torch.cat([x.detach().reshape(-1), torch.zeros(share * world - x.numel())])
            for rank, part in enumerate(padded.chunk(world)):
                vectors[rank].append(part)
        vectors = [torch.cat(parts) for parts in vectors]
    for rank, vector in enumerate(vectors):
        moments = {"state": {0: {"step": 5, "exp_avg": vector * 0.5}}, "param_groups": []}
        own = {"zero_stage": stage, "partition_count": [world] if stage == 2 else world}
        own |= {"single_partition_of_fp32_groups": [vector], "base_optimizer_state": moments} if stage == 2 else {
            "fp32_flat_groups": [vector], "optimizer_state_dict": moments}  # fmt: skip
        torch.save({"optimizer_state_dict": own}, step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    module = {name: x.detach().bfloat16() for name, x in model.named_parameters()} if stage == 2 else {}
    prefix = "" if stage == 2 else "zero_pp_rank_0_"
    content = {"module": module, "param_shapes": [shapes], "global_steps": 5, "ds_config": {"train_batch_size": 4}}
    torch.save(content, step / f"{prefix}mp_rank_00_model_states.pt")
    (tmp_path / "latest").write_text("global_step5")
    found = open_checkpoint(tmp_path)
    assert (found.format, found.step) == (CheckpointFormat.DEEPSPEED, 5)
    exact = dict(model.named_parameters())
    assert_equal(weights(found), module if stage == 2 else exact)
    moments = {name: tensor for name, tensor in found.tensors.items() if name.endswith("exp_avg")}
    assert_equal(moments, {f"optimizer.state.{name}.exp_avg": x * 0.5 for name, x in exact.items()})


def write_trainer_directory(directory, model, optimizer, schedule, step):
    """Write what the Trainer of transformers does."""
    model.save_pretrained(directory)
    torch.save(optimizer.state_dict(), directory / "optimizer.pt")
    torch.save(schedule.state_dict(), directory / "scheduler.pt")
    torch.save({"python": None, "cpu": torch.get_rng_state()}, directory / "rng_state.pth")
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return directory


def test_a_directory_of_the_trainer_has_its_optimizer_and_a_reset_one_is_seen(tmp_path):
    model = llama()
    paths = []
    for name in ("optimizer", "reset"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        for step in range(1, 4 if name == "optimizer" else 2):
            model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            number = step if name == "optimizer" else 3
            paths.append(write_trainer_directory(tmp_path / f"{name}-{step}", model, optimizer, schedule, number))
    before, after, _, reset = (open_checkpoint(path) for path in (*paths[1:3], paths[0], paths[3]))
    kinds = {tensor.kind for tensor in before.tensors.values()}
    assert kinds == {Kind.WEIGHT, Kind.MOMENT, Kind.STATE}
    assert any(name.startswith("rng_state.cpu") for name in before.tensors)
    assert before.settings["scheduler.last_epoch"] == 2
    assert compare_resumed(before, after).is_sound
    found = {finding.code.value for finding in compare_resumed(before, reset).findings}
    assert "checkpoint.resume.steps" in found


def test_a_damaged_file_beside_the_weights_is_a_note(tmp_path):
    llama().save_pretrained(tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(b"PK\x03\x04 cut off")
    found = open_checkpoint(tmp_path)
    assert {tensor.kind for tensor in found.tensors.values()} == {Kind.WEIGHT}
    assert any("optimizer.pt" in note.text for note in found.notes)
