"""Whether config_check names differences that its rules were not made for, in architectures that they were not made on.

    python bench/config_unseen.py [NAME ...]

The same measurement as `config_differences.py`, with other architectures and other differences.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn.utils import parametrizations

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from architectures import SIZES, TOKENS, Architecture, tokens
from config_differences import ADAM_W, Planted, linear_of, loss_of, norms_of, run, variables

_SMALL = {key: value for key, value in SIZES.items() if key != "intermediate_size"}


def _images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}


UNSEEN: dict[str, Architecture] = {
    "phi": Architecture(
        lambda: transformers.PhiConfig(**TOKENS, partial_rotary_factor=0.5), "PhiForCausalLM", tokens
    ),
    "neox": Architecture(
        lambda: transformers.GPTNeoXConfig(**TOKENS, rotary_pct=0.5), "GPTNeoXForCausalLM", tokens
    ),
    "falcon": Architecture(
        lambda: transformers.FalconConfig(vocab_size=60, alibi=True, multi_query=True, **_SMALL),
        "FalconForCausalLM",
        tokens,
    ),
    "gemma2": Architecture(
        lambda: transformers.Gemma2Config(**TOKENS, num_key_value_heads=2, head_dim=8, sliding_window=6),
        "Gemma2ForCausalLM",
        tokens,
    ),
    "cohere": Architecture(
        lambda: transformers.CohereConfig(**TOKENS, num_key_value_heads=2, pad_token_id=0), "CohereForCausalLM", tokens
    ),
    "deepseek": Architecture(
        lambda: transformers.DeepseekV3Config(
            **TOKENS, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
            num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
            v_head_dim=8, first_k_dense_replace=1,
        ),
        "DeepseekV3ForCausalLM",
        tokens,
    ),
    "modernbert": Architecture(
        lambda: transformers.ModernBertConfig(
            **TOKENS, local_attention=6, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
        ),
        "ModernBertForMaskedLM",
        tokens,
    ),
    "deberta": Architecture(
        lambda: transformers.DebertaV2Config(
            **TOKENS, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
        ),
        "DebertaV2ForMaskedLM",
        tokens,
    ),
    "electra": Architecture(
        lambda: transformers.ElectraConfig(**TOKENS, embedding_size=16), "ElectraForMaskedLM", tokens
    ),
    "bart": Architecture(
        lambda: transformers.BartConfig(
            vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32,
        ),
        "BartForConditionalGeneration",
        tokens,
    ),
    "swin": Architecture(
        lambda: transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=3
        ),
        "SwinForImageClassification",
        _images,
    ),
    "convnext": Architecture(
        lambda: transformers.ConvNextConfig(
            image_size=32, patch_size=4, hidden_sizes=[16, 32], depths=[2, 2], num_stages=2, num_labels=3
        ),
        "ConvNextForImageClassification",
        _images,
    ),
    "resnet": Architecture(
        lambda: transformers.ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic", num_labels=3
        ),
        "ResNetForImageClassification",
        _images,
    ),
}  # fmt: skip


# --- what is planted -------------------------------------------------------------------------------------------------


def parent_of(model: nn.Module, child: nn.Module) -> tuple[nn.Module, str]:
    """Return the module that has another as a child, and the child's name."""
    for module in model.modules():
        for name, each in module.named_children():
            if each is child:
                return module, name
    raise LookupError


class Clipped(nn.Linear):
    """A linear layer that a user replaced for a test."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(*inputs).clamp(-1e4, 1e4)


def other_class(model: nn.Module) -> None:
    """Replace a linear layer by one of another class."""
    linear_of(model).__class__ = Clipped


def without_layer(model: nn.Module) -> None:
    """Replace a normalisation by nothing."""
    module, name = parent_of(model, norms_of(model)[-1][0])
    setattr(module, name, nn.Identity())


def with_bias(model: nn.Module) -> None:
    """Give a linear layer a bias, or take it away."""
    linear = linear_of(model)
    size = linear.weight.shape[0]
    linear.bias = None if linear.bias is not None else nn.Parameter(torch.zeros(size))


def in_float64(model: nn.Module) -> None:
    """Convert all parameters, if all kernels can do that."""
    if any(name.endswith(".experts") for name, _ in model.named_modules()):
        raise LookupError
    model.double()


def tied(model: nn.Module) -> None:
    """Tie two equal linear layers."""
    found: dict[tuple[int, ...], nn.Linear] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            shape = tuple(module.weight.shape)
            if shape in found and module.weight is not found[shape].weight:
                module.weight = found[shape].weight
                return
            found[shape] = module
    raise LookupError


def with_lora(model: nn.Module) -> None:
    """Give a linear layer a parametrisation of its weight."""
    parametrizations.weight_norm(linear_of(model))


def with_padding(model: nn.Module) -> None:
    """Set another padding index of an embedding."""
    found = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    embedding = found[0]
    embedding.padding_idx = 7


def less_rotary(given: dict[str, Any]) -> dict[str, Any]:
    """Rotate fewer dimensions of each head."""
    return {**given, "partial_rotary_factor": given["partial_rotary_factor"] / 2}


def in_slices(batch: dict[str, Any], size: int) -> dict[str, Any]:
    """Return a batch whose samples are cut."""
    batch["input_ids"]
    return {
        key: each[:, :size].contiguous() if torch.is_tensor(each) and each.ndim == 2 else each
        for key, each in batch.items()
    }


def one_element(batch: dict[str, Any]) -> dict[str, Any]:
    """Change one element of the last sample."""
    name = "input_ids" if "input_ids" in batch else "pixel_values"
    changed = batch[name].clone()
    changed[-1].view(-1)[3] += 1
    return {**batch, name: changed}


def other_labels(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "labels": batch["labels"].roll(1, 0)}


def more_samples(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: torch.cat([each, each[:1]]) if torch.is_tensor(each) else each for key, each in batch.items()}


def other_integers(batch: dict[str, Any]) -> dict[str, Any]:
    """Give token ids in another dtype."""
    return {key: each.int() if key == "input_ids" else each for key, each in batch.items()}


def in_double(batch: dict[str, Any]) -> dict[str, Any]:
    """Give images the dtype of the model."""
    return {key: each.double() if key == "pixel_values" else each for key, each in batch.items()}


def reversed_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(batch.items()))


def setting(
    set_it: Callable[[], object], reset: Callable[[], object]
) -> Callable[[Path], AbstractContextManager[None]]:
    """Return a context in which something of the framework is set."""

    @contextmanager
    def around(_directory: Path) -> Iterator[None]:
        set_it()
        try:
            yield
        finally:
            reset()

    return around


@contextmanager
def in_bfloat16(_directory: Path) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield


def in_autocast_after_start(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Enter autocast where trainings do: around the forward."""
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of(model, batch)


@contextmanager
def other_numpy_seed(_directory: Path) -> Iterator[None]:
    np.random.seed(77)
    random.seed(77)
    yield


@contextmanager
def other_arguments(_directory: Path) -> Iterator[None]:
    given = [each.replace("--lr=0.01", "--lr=0.02") for each in sys.argv]
    with mock.patch.object(sys, "argv", given):
        yield


@contextmanager
def elsewhere(directory: Path) -> Iterator[None]:
    """Have what differs between two starts on two machines and affects no result."""
    directory.mkdir()
    given = {
        "HOSTNAME": "worker-7", "USER": "b", "HOME": str(directory), "TMPDIR": str(directory), "LANG": "de_DE.UTF-8",
        "TORCH_HOME": str(directory), "RANK_TABLE_FILE": str(directory / "table.json"), "PYTHONPATH": str(directory),
        "SLURM_JOB_ID": "7", "WANDB_RUN_ID": "abc", "TORCHELASTIC_RUN_ID": "2", "NCCL_DEBUG_FILE": str(directory),
        "GLOO_SOCKET_IFNAME": "eth2", "CUDA_CACHE_PATH": str(directory), "ASCEND_PROCESS_LOG_PATH": str(directory),
        "HF_DATASETS_CACHE": str(directory), "HCCL_IF_IP": "10.0.0.9", "HCCL_IF_BASE_PORT": "6000",
    }  # fmt: skip
    arguments = [*sys.argv, f"--seed_file={directory}/s", f"--cache-dir={directory}", f"--master-port={29_777}"]
    before = [*sys.argv, "--seed_file=/a/s", "--cache-dir=/a", "--master-port=29776"]
    with variables(**given)(directory), mock.patch.object(sys, "argv", arguments if before else before):
        yield


def _group_moved(groups: list[dict[str, Any]], **more: Any) -> torch.optim.Optimizer:
    first, second = groups
    moved = first["params"][-1]
    second["params"] = [*second["params"], moved]
    first["params"] = first["params"][:-1]
    return torch.optim.AdamW([first, second], lr=0.01, weight_decay=0.1, **more)


def _left_out(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    groups[0]["params"] = groups[0]["params"][:-1]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def _scheduled(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5)
    return optimizer


_LAYERS = ("num_hidden_layers", "encoder_layers")
PLANTED = {
    "nothing": Planted(expected=None),
    "another machine": Planted(expected=None, around=elsewhere),
    "order of arguments of the batch": Planted(expected=None, batch=reversed_batch),
    "token ids in int32": Planted(expected=None, batch=other_integers),
    "weights of another seed": Planted(expected=None, change=lambda model: nn.init.normal_(linear_of(model).weight)),
    "class of the optimizer": Planted(
        expected=r"optimizer: type$", optimizer=lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1)
    ),
    "betas": Planted(expected=r"optimizer: (groups\.0\.)?betas", optimizer=partial(ADAM_W, betas=(0.9, 0.95))),
    "epsilon of the optimizer": Planted(expected=r"optimizer: (groups\.0\.)?eps$", optimizer=partial(ADAM_W, eps=1e-6)),
    "amsgrad": Planted(expected=r"optimizer: (groups\.0\.)?amsgrad$", optimizer=partial(ADAM_W, amsgrad=True)),
    "a parameter in another group": Planted(expected=r"optimizer: groups\.[01]\.parameters$", optimizer=_group_moved),
    "a parameter in no group": Planted(expected=r"optimizer: groups\.0\.parameters$", optimizer=_left_out),
    "a schedule": Planted(expected=r"optimizer: groups\.0\.(initial_)?lr$", optimizer=_scheduled),
    "bfloat16 by autocast": Planted(expected=r"switches: .*autocast", around=in_bfloat16),
    "bfloat16 by autocast in the step": Planted(expected=r"switches: .*autocast", train=in_autocast_after_start),
    "deterministic algorithms": Planted(
        expected=r"switches: .*determin",  # codespell:ignore determin
        around=setting(
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            lambda: torch.use_deterministic_algorithms(False),
        ),
    ),
    "default dtype": Planted(
        expected=r"switches: .*dtype",
        around=setting(lambda: torch.set_default_dtype(torch.bfloat16), lambda: torch.set_default_dtype(torch.float32)),
    ),
    "denormals flushed": Planted(
        expected=r"switches: .*(denormal|flush)",
        around=setting(lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    ),
    "oneDNN off": Planted(
        expected=r"switches: .*(mkldnn|onednn)",
        around=setting(lambda: torch._C._set_mkldnn_enabled(False), lambda: torch._C._set_mkldnn_enabled(True)),
    ),
    "anomaly detection": Planted(
        expected=r"switches: .*anomaly",
        around=setting(
            lambda: torch.autograd.set_detect_anomaly(True), lambda: torch.autograd.set_detect_anomaly(False)
        ),
    ),
    "variable of cuBLAS": Planted(
        expected=r"environment: CUBLAS_WORKSPACE_CONFIG$", around=variables(CUBLAS_WORKSPACE_CONFIG=":4096:8")
    ),
    "variable of TF32": Planted(
        expected=r"environment: NVIDIA_TF32_OVERRIDE$", around=variables(NVIDIA_TF32_OVERRIDE="0")
    ),
    "variable of HCCL": Planted(
        expected=r"environment: HCCL_DETERMINISTIC$", around=variables(HCCL_DETERMINISTIC="true")
    ),
    "argument of the program": Planted(expected=r".*lr", around=other_arguments),
    "class of one layer": Planted(expected=r"model: ", change=other_class),
    "a normalisation replaced by nothing": Planted(expected=r"model: ", change=without_layer),
    "a bias more or less": Planted(expected=r"(parameters|model): .*bias", change=with_bias),
    "all in float64": Planted(expected=r"parameters: .*dtype$", change=in_float64, batch=in_double),
    "two layers tied": Planted(expected=r"parameters: .*(tied_to|weight)$", change=tied),
    "weight normalisation": Planted(expected=r"(model|parameters): ", change=with_lora),
    "padding of the embedding": Planted(expected=r"model: .*padding_idx$", change=with_padding),
    "one layer more": Planted(expected=r"model: .*", config=dict.fromkeys(_LAYERS, lambda value: value + 1)),
    "width of the MLP": Planted(
        expected=r"(model|parameters): ",
        config=dict.fromkeys(("intermediate_size", "encoder_ffn_dim"), lambda value: value + 16),
    ),
    "soft cap": Planted(expected=r"model: .*softcap", config={"attn_logit_softcapping": lambda value: value + 10}),
    "window": Planted(
        expected=r"model: .*(window|local_attention)",
        config=dict.fromkeys(("sliding_window", "local_attention", "window_size"), lambda value: value - 2),
    ),
    "share of rotary dimensions": Planted(
        expected=r"model: .*rotary",
        config={"rope_parameters": less_rotary},
    ),
    "experts per token": Planted(
        expected=r"model: .*(num_experts_per_tok|top_k)", config={"num_experts_per_tok": lambda value: value - 1}
    ),
    "scale of logits": Planted(expected=r"model: .*logit_scale", config={"logit_scale": lambda value: value * 2}),
    "a pre-hook of backward": Planted(
        expected=r"model: .*backward",
        change=lambda model: linear_of(model).register_full_backward_pre_hook(lambda _module, gradient: gradient),
    ),
    "whole model in evaluation mode": Planted(expected=r"model: ", change=nn.Module.eval),
    "recomputation": Planted(
        expected=r"model: .*checkpointing",
        change=lambda model: model.gradient_checkpointing_enable() if model.supports_gradient_checkpointing else None,
    ),
    "one element of a sample": Planted(expected=r"data: ", batch=one_element),
    "labels swapped": Planted(expected=r"data: ", batch=other_labels),
    "one sample more": Planted(expected=r"data: ", batch=more_samples),
    "shorter samples": Planted(expected=r"data: ", batch=lambda batch: in_slices(batch, 9)),
    "seed of NumPy and Python": Planted(expected=r"random: ", around=other_numpy_seed),
    "one rank's betas": Planted(
        expected=r"optimizer: .*betas", optimizer=partial(ADAM_W, betas=(0.9, 0.95)), is_stale=True
    ),
    "one rank's switch": Planted(
        expected=r"switches: .*(mkldnn|onednn)",
        around=setting(lambda: torch._C._set_mkldnn_enabled(False), lambda: torch._C._set_mkldnn_enabled(True)),
        is_stale=True,
    ),
    "one rank's class of a layer": Planted(expected=r"model: ", change=other_class, is_stale=True),
    "one rank's padding": Planted(expected=r"model: .*padding_idx$", change=with_padding, is_stale=True),
}


if __name__ == "__main__":
    run(PLANTED, {name: UNSEEN[name] for name in sys.argv[1:] or UNSEEN})
