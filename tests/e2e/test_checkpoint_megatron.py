"""A checkpoint that Megatron-Core itself writes: a model of transformers, converted, loaded by it and saved by it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from megatron_layout import shape_of, write_megatron
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe_core.checkpoint.compare import compare_checkpoints
from msprobe_core.checkpoint.contents import CheckpointFormat
from msprobe_core.checkpoint.opening import open_checkpoint

JOB = Path(__file__).parent.parent / "support" / "megatron_job.py"
WORLD = 2
TIMEOUT_S = 600


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
@pytest.mark.usefixtures("has_torch_imported")
def test_what_megatron_saves_of_a_converted_model_is_the_model(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=4, vocab_size=100, hidden_size=32, intermediate_size=48, num_attention_heads=8,
            num_key_value_heads=4,
        )
    )  # fmt: skip
    model.save_pretrained(tmp_path / "hf")
    files = write_megatron(model.state_dict(), tmp_path / "ranks", shape_of(model.config), tp=WORLD, fused_norms=False)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}"]
    job = [sys.executable, *launcher, JOB, files, tmp_path / "saved"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    done = subprocess.run(job, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    saved, original = open_checkpoint(tmp_path / "saved"), open_checkpoint(tmp_path / "hf")
    assert saved.format is CheckpointFormat.MEGATRON_DIST
    for target, golden in ((saved, original), (original, saved), (saved, open_checkpoint(tmp_path / "ranks"))):
        result = compare_checkpoints(target, golden)
        assert result.is_same_model, result.headline
    swapped = model.state_dict()
    swapped["model.layers.2.mlp.up_proj.weight"] = swapped["model.layers.2.mlp.gate_proj.weight"].clone()
    model.load_state_dict(swapped)
    model.save_pretrained(tmp_path / "wrong")
    result = compare_checkpoints(saved, open_checkpoint(tmp_path / "wrong"))
    assert not result.is_same_model
    assert [row.name for row in result.differing] == ["decoder.layers.2.mlp.linear_fc1.weight[up]"]
