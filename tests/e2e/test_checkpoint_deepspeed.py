"""Checkpoints that DeepSpeed itself writes: of two ranks on CPUs, by every stage of ZeRO.

They need an environment of their own: where DeepSpeed is installed, accelerate and TRL import it in every training.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from msprobe_core.checkpoint.boxes import read_tensor
from msprobe_core.checkpoint.compare import compare_checkpoints
from msprobe_core.checkpoint.contents import CheckpointFormat, Kind
from msprobe_core.checkpoint.opening import open_checkpoint

JOB = Path(__file__).parent.parent / "support" / "deepspeed_job.py"
WORLD = 2
TIMEOUT_S = 600

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed; 0.19.8 is known to work"
    ),
]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_checkpoint_of_two_ranks_is_the_model(tmp_path, stage):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}"]
    job = [sys.executable, *launcher, JOB, str(stage), tmp_path]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(job, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    check(tmp_path, stage)


def check(directory, stage):
    """Compare weights with those of the model, and the optimizer's copies with the weights that they were cast to."""
    found = open_checkpoint(directory / "zero")
    assert (found.format, found.step) == (CheckpointFormat.DEEPSPEED, 2)
    result = compare_checkpoints(found, open_checkpoint(directory / "plain.safetensors"))
    assert result.is_same_model, result.headline
    assert len(result.rows) == 8
    whole = load_file(directory / "plain.safetensors")
    copies = {
        tensor.name.removeprefix("optimizer.state.").removesuffix(".fp32_param"): tensor
        for tensor in found.tensors.values()
        if tensor.kind is (Kind.WEIGHT if stage == 3 else Kind.MASTER)
    }
    assert set(copies) == set(whole)
    for name, tensor in copies.items():
        assert f"ZeRO stage {stage}" in tensor.rule
        rounded = torch.from_numpy(np.asarray(read_tensor(tensor), np.float32)).bfloat16()
        assert torch.equal(rounded, whole[name]), name
    moments = {name for name, tensor in found.tensors.items() if tensor.kind is Kind.MOMENT}
    assert moments == {f"optimizer.state.{name}.{what}" for name in whole for what in ("exp_avg", "exp_avg_sq")}
