"""Trainings of a small Llama that differ in one setting, for tests and ``bench/explained.py``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 64
STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One difference of the target.

    Attributes:
        config: Settings of the model's configuration.
        both: Settings of both sides, which make the difference show.
        change: Changes the model before the training.
        lr: Learning rate of the second group.
        seed: Of the training, after weights were made.
        order: Order of the samples of each batch.
        around: A context around each step.
        expected: What the path of the difference ends with; empty if none is expected.
        faulty: Whether the search finds a fault.
    """

    config: dict[str, Any] | None = None
    both: dict[str, Any] | None = None
    change: Callable[[LlamaForCausalLM], object] = lambda model: None
    lr: float = 0.01
    seed: int = 1
    order: Sequence[int] = (0, 1, 2)
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    expected: str = ""
    faulty: bool = True


def _set(path: str, name: str, value: object) -> Callable[[LlamaForCausalLM], object]:
    return lambda model: setattr(model.get_submodule(path), name, value)


def _scaled(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return output * 1.1


PLANTED = {
    "nothing": Planted(faulty=False),
    "rope base": Planted(
        config={"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, expected="rope_theta"
    ),
    "epsilon of all norms": Planted(config={"rms_norm_eps": 1e-2}, expected="variance_epsilon"),
    "epsilon of one norm": Planted(
        change=_set("model.layers.1.post_attention_layernorm", "variance_epsilon", 1e-2), expected="variance_epsilon"
    ),
    "dropout": Planted(config={"attention_dropout": 0.1}, expected="attention_dropout"),
    "scale of attention": Planted(change=_set("model.layers.1.self_attn", "scaling", 0.5), expected="scaling"),
    "implementation of attention": Planted(
        config={"attn_implementation": "eager"}, expected="attn_implementation", faulty=False
    ),
    "activation": Planted(config={"hidden_act": "gelu"}, expected="act_fn"),
    "learning rate of one group": Planted(lr=0.02, expected="lr"),
    "seed": Planted(both={"attention_dropout": 0.1}, seed=2, expected="python"),
    "other samples": Planted(order=(0, 1, 1), expected="input_ids"),
    "order of samples": Planted(order=(2, 0, 1), expected="input_ids", faulty=False),
    "hook": Planted(
        change=lambda model: model.get_submodule("model.layers.1.mlp").register_forward_hook(_scaled),
        expected="forward",
    ),
    "evaluation mode": Planted(
        both={"attention_dropout": 0.1},
        change=lambda model: model.model.layers[1].self_attn.eval(),
        expected="self_attn",
    ),
    "autocast": Planted(around=lambda: torch.autocast("cpu", torch.bfloat16), expected="autocast.cpu", faulty=False),
    "frozen parameter": Planted(
        change=lambda model: model.model.layers[1].mlp.down_proj.weight.requires_grad_(False),
        expected="takes_gradient",
    ),
}


def model_with(**settings: Any) -> LlamaForCausalLM:
    """Return a model of two layers; its weights depend on nothing."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    implementation = settings.pop("attn_implementation", "sdpa")
    config = LlamaConfig(**sizes, **settings)
    return LlamaForCausalLM._from_config(config, attn_implementation=implementation)


def batches(order: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yield tokens [samples, length]."""
    rng = np.random.default_rng(3)
    for _ in range(STEPS):
        yield torch.from_numpy(rng.integers(0, VOCABULARY, (3, 24)))[list(order)]


def record(directory: Path, planted: Planted, *, is_target: bool) -> Path:
    """Train and record two steps of one side; return the run."""
    settings = {**(planted.both or {}), **(planted.config or {} if is_target else {})}
    model = model_with(**settings)
    if is_target:
        planted.change(model)
    weights = [each for name, each in model.named_parameters() if "norm" not in name and each.requires_grad]
    norms = [each for name, each in model.named_parameters() if "norm" in name]
    groups = [{"params": weights}, {"params": norms, "lr": planted.lr if is_target else 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.01)
    seed = planted.seed if is_target else 1
    torch.manual_seed(seed)
    random.seed(seed)
    debugger = PrecisionDebugger(dump_path=str(directory), level="mix")
    for tokens in batches(planted.order if is_target else (0, 1, 2)):
        with planted.around() if is_target else nullcontext():
            debugger.start(model)
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    debugger.close()
    return directory
