"""Train a tiny model for one step and dump it with whatever ``msprobe`` is installed: ours, or the one ours follows.

    python tiny_training.py OUT --task statistics --level mix [--summary md5] [--micro 2] [--world 2] [--factor 2]
        [--attention] [--eps 0.5]

Run with the python of an environment that has PyTorch and one of the two; both offer what is used here.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch
from torch import nn


class Model(nn.Module):
    """Linear, LayerNorm, Linear, with functions in between and one integer; then attention, masked in place."""

    def __init__(self, factor=1.0, eps=1e-5, *, has_attention=False):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16, eps=eps)
        self.fc2 = nn.Linear(16, 4)
        self.factor = factor
        self.has_attention = has_attention

    def forward(self, x, *, scale=1.0):
        y = torch.relu(self.norm(self.fc1(x))) * self.factor
        y = self.fc2(y * scale)
        return self.attend(y) if self.has_attention else y

    def attend(self, y):
        mask = torch.full((len(y), len(y)), float("-inf")).triu(diagonal=1)
        scores = y @ y.T + mask
        scores.masked_fill_(mask.isinf(), float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return weights @ y


def make_config(arguments, directory):
    config = {"task": arguments.task, "level": arguments.level, "dump_path": str(arguments.out), "risk_level": "ALL"}
    if arguments.task in {"statistics", "tensor"}:
        config[arguments.task] = {"summary_mode": arguments.summary} if arguments.summary else {}
    path = Path(directory, f"{arguments.out.name}_config.json")
    path.write_text(json.dumps(config))
    return path


def train(rank, arguments, meeting):
    if arguments.world > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # by which ranks are known to be of one job
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}/ranks", rank=rank, world_size=arguments.world
        )
    torch.manual_seed(0)
    model = Model(arguments.factor, arguments.eps, has_attention=arguments.attention)

    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(str(arguments.out.parent / f"{arguments.out.name}_config.json"))
    torch.manual_seed(1 + rank)
    is_debug = arguments.level == "debug"
    if not is_debug:
        debugger.start(model)
    for _ in range(arguments.micro):
        x = torch.randn(3, 8)
        y = model(x, scale=0.5)
        if arguments.world > 1:
            torch.distributed.all_reduce(y.detach().clone())
        if is_debug:
            debugger.save(x, "x")
            debugger.save({"y": [y, 3, "text"], "pair": (x[0], 0.5)}, "nest")
            debugger.save(y, "y", True)
        y.pow(2).mean().backward()
    if not is_debug:
        debugger.stop()
    debugger.step()
    if arguments.world > 1:
        torch.distributed.barrier()
        os._exit(0)  # when Python ends, gloo's threads sometimes abort the process


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--level", default="mix")
    parser.add_argument("--summary")
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--eps", type=float, default=1e-5)
    parser.add_argument("--attention", action="store_true")
    arguments = parser.parse_args()
    arguments.out = arguments.out.absolute()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    make_config(arguments, arguments.out.parent)
    with tempfile.TemporaryDirectory() as meeting:
        if arguments.world == 1:
            train(0, arguments, meeting)
        else:
            torch.multiprocessing.spawn(train, (arguments, meeting), nprocs=arguments.world)


if __name__ == "__main__":
    main()
