"""Train a small model with DeepSpeed on CPUs, and save its checkpoint beside one of the whole weights.

Run with: python deepspeed_job.py STAGE DIRECTORY, in each process of a job; writes ``zero`` and ``plain.safetensors``.
"""

import atexit
import os
import sys

import deepspeed
import torch
from deepspeed.runtime.zero import GatheredParameters
from safetensors.torch import save_file

STEPS = 2


class Block(torch.nn.Module):
    """A gated layer with sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.gate_proj = torch.nn.Linear(7, 13, bias=False)
        self.up_proj = torch.nn.Linear(7, 13, bias=False)
        self.down_proj = torch.nn.Linear(13, 7)

    def forward(self, x):
        return x + self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def main():
    stage, directory = int(sys.argv[1]), sys.argv[2]
    # DeepSpeed would compile an extension for shared memory, which takes minutes, and which nothing here needs.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-2)
    settings = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
    for step in range(STEPS):
        torch.manual_seed(10 * step + torch.distributed.get_rank())
        engine.backward(engine(torch.randn(2, 7, dtype=torch.bfloat16)).float().square().mean())
        engine.step()
    engine.save_checkpoint(f"{directory}/zero")
    with GatheredParameters(list(model.parameters()), enabled=stage == 3):
        whole = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if torch.distributed.get_rank() == 0:
        save_file(whole, f"{directory}/plain.safetensors")
    torch.distributed.barrier()
    atexit._run_exitfuncs()
    os._exit(0)  # when Python ends, gloo's threads sometimes abort the process


if __name__ == "__main__":
    main()
