"""Train by TRL's GRPO on the CPU, send the weights to serving engines after each step, and count alarms.

    .venv/bin/python bench/weight_syncs.py DIRECTORY [--syncs 100]

Two stand-ins for engines hold the policy as engines do: one in bfloat16 with fused projections and a padded vocabulary,
one in float32 as it is. After the healthy syncs comes one at which the first engine keeps a tensor as it was; that it
is named shows that the comparison sees something.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "verl_cpu"))

from datasets import Dataset
from tiny import make_model, make_tokenizer  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from msprobe_core.rl import RunWriter
from msprobe_core.rl.recorded import open_run
from msprobe_core.rl.weights import syncs

_PADDED_TO = 64
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_KEPT = "model.layers.1.mlp.down_proj.weight"


def reward(completions: list[str], **_: Any) -> list[float | None]:
    """Give digits a point each: short answers differ, so that advantages are not zero."""
    return [float(sum(letter.isdigit() for letter in text)) - 0.01 * len(text) for text in completions]


def fused(named: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters as an engine holds them: in bfloat16, fused, with rows of padding in the vocabulary."""
    for name, values in named.items():
        whole = next((whole for whole, parts in _FUSED.items() if f".{parts[0]}." in name), None)
        if whole is not None:
            first, *_ = _FUSED[whole]
            parts = [named[name.replace(first, part)] for part in _FUSED[whole]]
            yield name.replace(first, whole), torch.cat(parts).bfloat16()
        elif not any(f".{part}." in name for _, *others in _FUSED.values() for part in others):
            rows = -len(values) % _PADDED_TO if "embed_tokens" in name or "lm_head" in name else 0
            yield name, torch.cat([values, values.new_zeros(rows, *values.shape[1:])]).bfloat16()


class Sync(TrainerCallback):
    """Sends weights before the first step and after each one."""

    def __init__(self, run: RunWriter, num_healthy: int) -> None:
        self._run, self._num_healthy = run, num_healthy
        self._before: dict[str, torch.Tensor] = {}
        self.seconds = 0.0

    def send(self, step: int, model: Any) -> None:
        """Send the weights of a step."""
        now = {name: values.detach().clone() for name, values in model.named_parameters()}
        begin = time.process_time()
        self._run.weights_sent(step, now.items(), model=model)
        self.seconds += time.process_time() - begin
        engine = dict(fused(now))
        if step > self._num_healthy:
            engine[_KEPT] = self._before[_KEPT]
        self._run.weights_received(step, engine.items(), replica=0, model=model)
        self._run.weights_received(step, now.items(), replica=1, model=model)
        self._before = engine

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Send the initial weights."""
        del args, state, control
        self.send(0, given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Send the weights that a step has made."""
        del args, control
        self.send(state.global_step, given["model"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Count alarms of the comparison of weights over many syncs.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--syncs", type=int, default=100, help="healthy ones; one with a fault comes after them")
    given = parser.parse_args()
    model = given.directory / "model"
    model.mkdir(parents=True)
    make_tokenizer(model)
    make_model(model)
    sync = Sync(RunWriter(given.directory / "run", config={}), given.syncs - 1)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager"), reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(given.directory / "checkpoints"), per_device_train_batch_size=4, num_generations=2,
            max_steps=given.syncs, max_completion_length=8, learning_rate=1e-3, report_to=[], use_cpu=True,
            save_strategy="no", logging_steps=given.syncs, seed=3, disable_tqdm=True, bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(8)]),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"), callbacks=[sync],
    )  # fmt: skip
    trainer.train()
    run = open_run(given.directory / "run")
    compared = [one for step in range(given.syncs + 1) for one in syncs(run, step)]
    healthy = [one for one in compared if one.step < given.syncs]
    alarms = [f"{one.step}, replica {one.replica}: {fault.name}" for one in healthy for fault in one.faults]
    unchanged = sum(all(each.is_unchanged for each in one.parameters) for one in healthy if one.step)
    named = [fault.name for one in compared if one.step == given.syncs for fault in one.faults]
    tensors = sum(len(one.parameters) for one in healthy)
    print(f"{len({one.step for one in healthy})} healthy syncs to 2 engines, {tensors:,} tensors or parts compared")
    print(f"alarms: {len(alarms)}{'; the first at ' + alarms[0] if alarms else ''}")
    print(f"syncs that changed nothing: {unchanged}")
    print(f"the sync with a tensor kept: {', '.join(named) or 'nothing named'}")
    print(f"digests of the sender: {1e3 * sync.seconds / (given.syncs + 1):.1f} ms of CPU time a sync")
    return int(bool(alarms) or named != [_KEPT])


if __name__ == "__main__":
    sys.exit(main())
