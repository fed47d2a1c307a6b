"""Faults in the forward of a model, and in its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from bench.faults.anatomy import IGNORED
from bench.faults.planting import (
    BARE,
    Change,
    change_parameter,
    in_kernel,
    in_place_of,
    in_program,
    inside,
    with_other_attention,
)
from bench.faults.training import Training
from bench.faults.truth import Kind, Phase, Registry, Truth

MODEL_FAULTS = Registry()
_forward = Phase.FORWARD
_setup = Phase.CONFIGURATION


def at(training: Training, part: str, *, directions: tuple[str, ...] = ("forward",)) -> Truth:
    """Return the truth for a fault in a part of the anatomy, in the first step."""
    return Truth(modules=training.paths_of(getattr(training.anatomy, part)), directions=directions, steps=(0,))


def scaled_by(factor: float) -> Change:
    return lambda value: BARE.mul(value, factor)


def cast_to(dtype: torch.dtype) -> Change:
    return lambda value: BARE.to(BARE.to(value, dtype), value.dtype)


def coarser(training: Training) -> torch.dtype:
    """Return a dtype with fewer digits."""
    return torch.bfloat16 if training.dtype == "fp32" else torch.float8_e4m3fn


# --- kernels with other results -------------------------------------------------------------------------------------


def _add_scale(factor: float, part: str) -> None:
    @MODEL_FAULTS.add(f"output x {factor} ({part})", _forward, Kind.SCALE, needs=(part,))
    def plant(training: Training) -> Truth:
        inside(training.part(part), scaled_by(factor))
        return at(training, part)


for _factor, _part in ((1.01, "down"), (1.1, "down"), (2.0, "query"), (1.1, "attention"), (1.05, "embedding")):
    _add_scale(_factor, _part)


@MODEL_FAULTS.add("output cast to a coarser dtype", _forward, Kind.PRECISION, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    inside(training.part("down"), cast_to(coarser(training)))
    return at(training, "down")


@MODEL_FAULTS.add("input cast to a coarser dtype", _forward, Kind.PRECISION, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    cast = cast_to(coarser(training))

    def forward(own: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        exact = own(x)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            error = own(cast(x)) - exact
        return _plus(exact, error)

    in_place_of(training.part("up"), forward)
    return at(training, "up")


def _plus(value: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    return in_kernel(value, lambda v: BARE.add(v, error))


@MODEL_FAULTS.add("elements of a row permuted", _forward, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    inside(training.part("up"), lambda value: BARE.roll(value, 1, -1), lambda value: BARE.roll(value, -1, -1))
    return at(training, "up")


@MODEL_FAULTS.add("one element dropped", _forward, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    def drop(value: torch.Tensor) -> torch.Tensor:
        value = BARE.clone(value)
        BARE.zero_(value.flatten()[7:8])
        return value

    inside(training.part("out"), drop)
    return at(training, "out")


@MODEL_FAULTS.add("last tile not computed", _forward, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    def drop(value: torch.Tensor) -> torch.Tensor:
        value = BARE.clone(value)
        BARE.zero_(value.flatten(0, -2)[-1:, -16:] if value.dim() < 4 else value[-1:, -16:])
        return value

    inside(training.part("down"), drop)
    return at(training, "down")


@MODEL_FAULTS.add("overflow to inf", _forward, Kind.NON_FINITE)
def _(training: Training) -> Truth:
    def overflow(value: torch.Tensor) -> torch.Tensor:
        value = BARE.clone(value)
        BARE.fill_(value.flatten()[3:4], float("inf"))
        return value

    inside(training.part("up"), overflow)
    return at(training, "up")


@MODEL_FAULTS.add("bias dropped", _forward, Kind.COMPUTATION, Kind.PARAMETER, Kind.ARGUMENT, needs=("biased",))
def _(training: Training) -> Truth:
    module = training.part("biased")
    inside(module, lambda value: BARE.sub(value, module.bias.detach()))
    return at(training, "biased")


# --- wrong options of the model -------------------------------------------------------------------------------------


@MODEL_FAULTS.add("epsilon of a norm 1e-2", _setup, Kind.EPSILON, Kind.ARGUMENT)
def _(training: Training) -> Truth:
    norm = training.part("norm")
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 1e-2)
    return at(training, "norm")


@MODEL_FAULTS.add("epsilon of a norm 1e-3", _setup, Kind.EPSILON, Kind.ARGUMENT)
def _(training: Training) -> Truth:
    norm = training.part("norm")
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 1e-3)
    return at(training, "norm")


@MODEL_FAULTS.add("attention scale x 1.05", _setup, Kind.SCALE, Kind.ARGUMENT, needs=("heads",))
def _(training: Training) -> Truth:
    training.part("attention").scaling *= 1.05
    return at(training, "attention")


@MODEL_FAULTS.add("attention not scaled", _setup, Kind.SCALE, Kind.ARGUMENT, needs=("heads",))
def _(training: Training) -> Truth:
    attention = training.part("attention")
    attention.scaling = 1.0 if attention.scaling != 1.0 else 0.25
    return at(training, "attention")


@MODEL_FAULTS.add("causal mask missing", _setup, Kind.MASK, Kind.ARGUMENT, needs=("causal",))
def _(training: Training) -> Truth:
    with_other_attention(training.part("causal"), lambda given: {**given, "is_causal": False})
    return at(training, "causal")


def _mask(given: dict[str, Any], diagonal: int, fill: float) -> dict[str, Any]:
    query = given["query"]
    length = query.shape[-2]
    mask = torch.full((length, length), fill, dtype=query.dtype).triu(diagonal)
    return {**given, "mask": mask[None, None].expand(query.shape[0], 1, -1, -1)}


@MODEL_FAULTS.add("causal mask off by one", _setup, Kind.MASK, Kind.ARGUMENT, needs=("causal",))
def _(training: Training) -> Truth:
    with_other_attention(training.part("causal"), lambda given: _mask(given, 2, float("-inf")))
    return at(training, "causal")


@MODEL_FAULTS.add("causal mask filled with -1", _setup, Kind.MASK, Kind.ARGUMENT, needs=("causal",))
def _(training: Training) -> Truth:
    with_other_attention(training.part("causal"), lambda given: _mask(given, 1, -1.0))
    return at(training, "causal")


@MODEL_FAULTS.add("padding not masked", _setup, Kind.MASK, Kind.ARGUMENT, needs=("padded",))
def _(training: Training) -> Truth:
    with_other_attention(training.part("padded"), lambda given: {**given, "mask": None})
    return at(training, "padded")


@MODEL_FAULTS.add("key and value swapped", _forward, Kind.ARGUMENT, Kind.COMPUTATION, needs=("heads",))
def _(training: Training) -> Truth:
    with_other_attention(
        training.part("attention"), lambda given: {**given, "key": given["value"], "value": given["key"]}
    )
    return at(training, "attention")


@MODEL_FAULTS.add("heads permuted", _forward, Kind.COMPUTATION, Kind.ARGUMENT, needs=("heads",))
def _(training: Training) -> Truth:
    def permute(value: torch.Tensor) -> torch.Tensor:
        return in_kernel(value, lambda v: BARE.roll(v, 1, 1), lambda v: BARE.roll(v, -1, 1))

    with_other_attention(training.part("attention"), lambda given: {**given, "query": permute(given["query"])})
    return at(training, "attention")


@MODEL_FAULTS.add("rotary base wrong", _setup, Kind.PARAMETER, Kind.COMPUTATION, Kind.ARGUMENT, needs=("rotary",))
def _(training: Training) -> Truth:
    rotary = training.part("rotary")
    with torch.no_grad():
        rotary.inv_freq.copy_(rotary.inv_freq ** (torch.tensor(5e5).log() / torch.tensor(1e4).log()))
    return at(training, "rotary")


@MODEL_FAULTS.add("positions off by one", _setup, Kind.ARGUMENT, Kind.INPUT_DATA, Kind.COMPUTATION, needs=("rotary",))
def _(training: Training) -> Truth:
    in_place_of(training.part("rotary"), lambda own, x, position_ids: own(x, BARE.add(position_ids, 1)))
    return at(training, "rotary")


@MODEL_FAULTS.add("learned positions off by one", _setup, Kind.ARGUMENT, Kind.INPUT_DATA, needs=("positions",))
def _(training: Training) -> Truth:
    own = training.model.forward
    training.model.forward = lambda **batch: own(**batch, position_ids=torch.arange(1, 17)[None])
    path = training.anatomy.positions
    # The positions are an argument of the model: it is a right answer, and so are the modules that pass them on.
    return Truth(modules=("", path.split(".")[0], path.rpartition(".")[0], path), directions=("forward",), steps=(0,))


@MODEL_FAULTS.add("dropout left on in one layer", _setup, Kind.RANDOMNESS, Kind.ARGUMENT, needs=("dropout",))
def _(training: Training) -> Truth:
    training.part("dropout").p = 0.1
    return at(training, "dropout")


@MODEL_FAULTS.add("attention dropout left on in one layer", _setup, Kind.RANDOMNESS, Kind.ARGUMENT, needs=("heads",))
def _(training: Training) -> Truth:
    with_other_attention(training.part("attention"), lambda given: {**given, "dropout": 0.1})
    return at(training, "attention")


@MODEL_FAULTS.add(
    "gelu of the other form",
    _setup,
    Kind.ARGUMENT,
    Kind.COMPUTATION,
    Kind.EXTRA_CALL,
    Kind.MISSING_CALL,
    needs=("gelu",),
)
def _(training: Training) -> Truth:
    act = training.part("gelu")
    form = "none" if "New" in type(act).__name__ else "tanh"
    in_place_of(act, lambda _, x: F.gelu(x, approximate=form))
    return at(training, "gelu")


@MODEL_FAULTS.add("gelu of the other form, in the kernel", _forward, Kind.COMPUTATION, needs=("gelu",))
def _(training: Training) -> Truth:
    act = training.part("gelu")
    form = "none" if "New" in type(act).__name__ else "tanh"

    def forward(own: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            other = F.gelu(x, approximate=form)
        return in_kernel(own(x), lambda _: BARE.clone(other))

    in_place_of(act, forward)
    return at(training, "gelu")


@MODEL_FAULTS.add(
    "relu for the activation",
    _setup,
    Kind.ARGUMENT,
    Kind.COMPUTATION,
    Kind.EXTRA_CALL,
    Kind.MISSING_CALL,
    needs=("activation",),
)
def _(training: Training) -> Truth:
    act = training.part("activation")
    other = F.silu if isinstance(act, (nn.ReLU, nn.LeakyReLU)) else F.relu
    in_place_of(act, lambda _, x: other(x))
    return at(training, "activation")


@MODEL_FAULTS.add(
    "gelu for silu", _setup, Kind.ARGUMENT, Kind.COMPUTATION, Kind.EXTRA_CALL, Kind.MISSING_CALL, needs=("silu",)
)
def _(training: Training) -> Truth:
    in_place_of(training.part("silu"), lambda _, x: F.gelu(x))
    return at(training, "silu")


# --- parameters -----------------------------------------------------------------------------------------------------


def _add_weight(name: str, part: str, change: Change) -> None:
    @MODEL_FAULTS.add(name, _setup, Kind.PARAMETER, needs=(part,))
    def plant(training: Training) -> Truth:
        change_parameter(training.part(part), "weight", change)
        return at(training, part)


def _one_off(weight: torch.Tensor) -> torch.Tensor:
    weight.view(-1)[5] += 1.0
    return weight


def _transposed(weight: torch.Tensor) -> torch.Tensor:
    flat = weight.flatten(1)
    return flat.reshape(flat.shape[::-1]).t().reshape(weight.shape)


def _heads_swapped(weight: torch.Tensor) -> torch.Tensor:
    order = [1, 0, *range(2, weight.shape[0] // 16)]
    return weight.unflatten(0, (-1, 16))[order].flatten(0, 1)


_add_weight("weight x 1.01", "query", lambda weight: weight * 1.01)
_add_weight("weight x 2", "up", lambda weight: weight * 2)
_add_weight("one element of a weight off", "down", _one_off)
_add_weight("weight transposed", "out", _transposed)
_add_weight("heads of a weight swapped", "value", _heads_swapped)
_add_weight("weight in a coarser dtype", "up", lambda weight: weight.to(torch.float8_e4m3fn).to(weight.dtype))
_add_weight("scale of a norm is one", "norm", torch.ones_like)
_add_weight("router's rows swapped", "router", lambda weight: weight.roll(1, 0))


@MODEL_FAULTS.add("weights of two layers swapped", _setup, Kind.PARAMETER)
def _(training: Training) -> Truth:
    path = training.anatomy.up
    peer = path.replace(training.anatomy.block, training.anatomy.peer)
    one, two = training.module(path), training.module(peer)
    with torch.no_grad():
        kept = one.weight.clone()
        one.weight.copy_(two.weight)
        two.weight.copy_(kept)
    return Truth(modules=(path, peer), directions=("forward",), steps=(0,))


@MODEL_FAULTS.add("weights of a layer not loaded", _setup, Kind.PARAMETER)
def _(training: Training) -> Truth:
    torch.manual_seed(99)
    change_parameter(training.part("down"), "weight", lambda weight: torch.randn_like(weight) * 0.02)
    return at(training, "down")


@MODEL_FAULTS.add("weight not tied", _setup, Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER, needs=("tied",))
def _(training: Training) -> Truth:
    head = training.part("tied")
    head.weight = nn.Parameter(head.weight.detach().clone())
    training.optimizer.add_param_group({"params": [head.weight], "weight_decay": 0.5})
    # The first step's forward is right. Then the gradients are not added up, and the two weights diverge.
    return Truth(modules=(training.anatomy.tied, *training.paths_of(training.anatomy.embedding)))


# --- extra and missing calls ----------------------------------------------------------------------------------------


@MODEL_FAULTS.add("extra call", _forward, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    in_program(training.part("up"), torch.tanh)
    return at(training, "up")


@MODEL_FAULTS.add("extra scale in the program", _forward, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.SCALE)
def _(training: Training) -> Truth:
    in_program(training.part("down"), lambda value: value * 1.01)
    return at(training, "down")


@MODEL_FAULTS.add(
    "activation not called", _forward, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.COMPUTATION, needs=("activation",)
)
def _(training: Training) -> Truth:
    in_place_of(training.part("activation"), lambda _, x: x)
    return at(training, "activation")


@MODEL_FAULTS.add("norm not called", _forward, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    in_place_of(training.part("norm"), lambda _, x: x)
    return at(training, "norm")


@MODEL_FAULTS.add("layer called twice", _forward, Kind.EXTRA_CALL, Kind.MISSING_CALL)
def _(training: Training) -> Truth:
    block = training.part("block")
    own = block.forward

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = own(x, *args, **kwargs)
        if isinstance(result, tuple):
            return own(result[0], *args, **kwargs)
        return own(result, *args, **kwargs)

    block.forward = forward
    # All calls of the second execution are extra: the block, and the calls inside it.
    inner = [f"{training.anatomy.block}.{name}" for name, _ in block.named_modules() if name]
    return Truth(modules=(training.anatomy.block, *inner), directions=("forward",), steps=(0,))


def _block_forward(training: Training, combine: Callable[..., torch.Tensor]) -> None:
    """Replace the order of computation in a block of a residual pre-norm transformer."""
    block: Any = training.part("residual")
    first = next(getattr(block, n) for n in ("input_layernorm", "ln_1", "layernorm_before") if hasattr(block, n))
    attention = next(getattr(block, n) for n in ("self_attn", "attn", "attention") if hasattr(block, n))
    second = next(
        getattr(block, n) for n in ("post_attention_layernorm", "ln_2", "layernorm_after") if hasattr(block, n)
    )
    in_place_of(
        block,
        lambda _, x, *args, **kwargs: combine(x, first, lambda y: attention(y, *args, **kwargs)[0], second, block),
    )


@MODEL_FAULTS.add(
    "residual missing", _forward, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.COMPUTATION, needs=("residual",)
)
def _(training: Training) -> Truth:
    def combine(x: Any, first: Any, attention: Any, second: Any, block: Any) -> torch.Tensor:
        x = x + attention(first(x))
        return _dropped(block, block.mlp(second(x)))

    _block_forward(training, combine)
    return at(training, "residual")


def _dropped(block: Any, x: torch.Tensor) -> torch.Tensor:
    return block.dropout(x) if hasattr(block, "dropout") else x


@MODEL_FAULTS.add(
    "residual after the norm",
    _forward,
    Kind.EXTRA_CALL,
    Kind.MISSING_CALL,
    Kind.COMPUTATION,
    Kind.ARGUMENT,
    needs=("residual",),
)
def _(training: Training) -> Truth:
    def combine(x: Any, first: Any, attention: Any, second: Any, block: Any) -> torch.Tensor:
        x = x + _dropped(block, attention(first(x)))
        normed = second(x)
        return normed + _dropped(block, block.mlp(normed))

    _block_forward(training, combine)
    return at(training, "residual")


@MODEL_FAULTS.add("residual of the wrong branch, in the kernel", _forward, Kind.COMPUTATION, needs=("residual",))
def _(training: Training) -> Truth:
    block = training.part("residual")

    def forward(own: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = x.detach()
        return in_kernel(own(x, *args, **kwargs), lambda value: BARE.sub(value, BARE.mul(kept, 0.5)))

    in_place_of(block, forward)
    return at(training, "residual")


# --- mixtures of experts --------------------------------------------------------------------------------------------


@MODEL_FAULTS.add("one expert per token for two", _setup, Kind.ARGUMENT, Kind.COMPUTATION, needs=("router",))
def _(training: Training) -> Truth:
    training.part("router").top_k = 1
    return at(training, "router")


@MODEL_FAULTS.add(
    "router not normalised", _setup, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.COMPUTATION, needs=("router",)
)
def _(training: Training) -> Truth:
    training.part("router").norm_topk_prob = False
    return at(training, "router")


@MODEL_FAULTS.add("experts swapped", _setup, Kind.PARAMETER, needs=("experts",))
def _(training: Training) -> Truth:
    for name in ("gate_up_proj", "down_proj"):
        change_parameter(training.part("experts"), name, lambda weight: weight[[1, 0, 2, 3]])
    return at(training, "experts")


@MODEL_FAULTS.add("second choice of experts", _forward, Kind.COMPUTATION, Kind.ARGUMENT, needs=("router",))
def _(training: Training) -> Truth:
    def forward(own: Callable[..., Any], x: torch.Tensor) -> Any:
        logits, scores, indices = own(x)
        with torch._C.DisableTorchFunction():
            indices = (indices + 1) % 4
        return logits, scores, indices

    in_place_of(training.part("router"), forward)
    return at(training, "router")


# --- data and loss --------------------------------------------------------------------------------------------------


@MODEL_FAULTS.add("one token of one sample wrong", _setup, Kind.INPUT_DATA, only=("llama", "gpt2", "bert", "moe", "t5"))
def _(training: Training) -> Truth:
    def change(batch: dict[str, torch.Tensor], _: int) -> dict[str, torch.Tensor]:
        tokens = batch["input_ids"].clone()
        tokens[2, 5] = (tokens[2, 5] + 1) % 256
        return {**batch, "input_ids": tokens}

    training.change_batch = change
    return input_of(training)


def input_of(training: Training) -> Truth:
    """Return the truth for a wrong input of the model: right answers are the model and all modules that pass it on."""
    paths: set[str] = set()
    for name in training.paths_of(training.anatomy.embedding):
        parts = name.split(".")
        paths |= {".".join(parts[:i]) for i in range(len(parts) + 1)}
    return Truth(modules=sorted(paths), directions=("forward",), steps=(0,))


@MODEL_FAULTS.add("samples in another order than labels", _setup, Kind.INPUT_DATA)
def _(training: Training) -> Truth:
    def change(batch: dict[str, torch.Tensor], _: int) -> dict[str, torch.Tensor]:
        return {name: value if name == "labels" else value[[1, 0, 2, 3]] for name, value in batch.items()}

    training.change_batch = change
    # Up to the loss, where inputs and labels meet, statistics are equal: they are of the same samples.
    return replace(input_of(training), calls=("Functional.cross_entropy",))


@MODEL_FAULTS.add("pixels not normalised", _setup, Kind.INPUT_DATA, Kind.SCALE, only=("vit",))
def _(training: Training) -> Truth:
    training.change_batch = lambda batch, _: {**batch, "pixel_values": batch["pixel_values"] * 1.1}
    return input_of(training)


def _loss() -> Truth:
    return Truth(calls=("Functional.cross_entropy", "Tensor.float", "Tensor.__getitem__"), directions=("forward",),
                 steps=(0,))  # fmt: skip


def _add_loss(name: str, needs: tuple[str, ...] = (), only: tuple[str, ...] = (), **options: Any) -> None:
    @MODEL_FAULTS.add(
        name, _setup, Kind.ARGUMENT, Kind.SCALE, Kind.COMPUTATION, Kind.INPUT_DATA, needs=needs, only=only
    )
    def plant(training: Training) -> Truth:
        own = training.loss
        training.loss = lambda logits, labels: own(logits, labels, **options)
        return _loss()


_add_loss("loss summed, not averaged", reduction="sum")
_add_loss("loss smooths labels", label_smoothing=0.1)


@MODEL_FAULTS.add("labels not shifted", _setup, Kind.ARGUMENT, Kind.INPUT_DATA, only=("llama", "gpt2", "moe"))
def _(training: Training) -> Truth:
    own = training.loss
    training.loss = lambda logits, labels: own(logits, torch._C.TensorBase.roll(labels, 1, -1))
    return _loss()


@MODEL_FAULTS.add("ignored labels counted", _setup, Kind.ARGUMENT, Kind.INPUT_DATA,
                  only=("llama", "gpt2", "bert", "moe", "t5"))  # fmt: skip
def _(training: Training) -> Truth:
    own = training.loss

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return own(logits, BARE.masked_fill(labels, BARE.eq(labels, IGNORED), 0))

    training.loss = loss
    return _loss()
