"""A training that `bench.deep_runs` searches: ``[torchrun …] -m bench.deep_training --kind one|ddp|fsdp …``.

A Llama of two layers on texts that follow from the step and the rank. From a step on, the kernel of one activation in
the last layer, on the last rank alone, is wrong.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from bench.faults.kernels import OtherKernels

_SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def main() -> None:
    """Train."""
    asked = _arguments()
    torch.set_num_threads(1)
    rank = _joined() if asked.kind != "one" else 0
    is_last = rank == (dist.get_world_size() - 1 if dist.is_initialized() else 0)
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**_SIZES))
    model = _wrapped(llama, asked.kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    begin = _resumed(asked.resume, model, optimizer) if asked.resume else 0
    debugger = PrecisionDebugger(asked.config)
    for step in range(begin, asked.steps):
        is_wrong = is_last and asked.wrong_from is not None and step >= asked.wrong_from
        seed = torch.Generator().manual_seed(1000 * step + rank)
        ids = torch.randint(2, 64, (2, 16), generator=seed)
        debugger.start(model)
        with (
            WrongKernel() if is_wrong else nullcontext(),
            OtherKernels() if asked.kernels == "other" else nullcontext(),
        ):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
        if asked.save and step % asked.every == asked.every - 1:
            _save(asked.save / f"step-{step + 1}", model, optimizer, is_one=asked.kind == "one")
    if dist.is_initialized():
        dist.barrier()
        os._exit(0)  # the destructor of DDP's reducer may wait, with the GIL, for a thread of gloo that wants it


class WrongKernel(TorchDispatchMode):
    """Returns 1.01 times what SiLU gives, in the second call of it."""

    num_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.silu.default:
            self.num_calls += 1
            return result * 1.01 if self.num_calls == 2 else result
        return result


def _joined() -> int:
    dist.init_process_group("gloo")
    return dist.get_rank()


def _wrapped(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]
            fully_shard(layer)
        fully_shard(model)
    return model


def _save(place: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, is_one: bool) -> None:
    state, moments = get_state_dict(model, optimizer)
    save({"model": state, "optimizer": moments}, checkpoint_id=place, no_dist=is_one)


def _resumed(place: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    state, moments = get_state_dict(model, optimizer)
    content = {"model": state, "optimizer": moments}
    load(content, checkpoint_id=place, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"])
    return int(place.name.partition("-")[2])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="what is recorded of a window")
    parser.add_argument("--kind", choices=("one", "ddp", "fsdp"), default="one")
    parser.add_argument("--kernels", choices=("same", "other"), default="same")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=40, help="steps between checkpoints")
    parser.add_argument("--wrong-from", type=int)
    parser.add_argument("--resume", type=lambda text: Path(text) if text else None)
    parser.add_argument("--save", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
