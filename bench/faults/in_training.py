"""Faults in the backward of a model and in the optimizer; the forward of the first step is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.faults.in_forward import MODEL_FAULTS, at, cast_to, coarser, input_of, scaled_by
from bench.faults.planting import BARE, Change, in_kernel, in_place_of, inside, same
from bench.faults.training import Training
from bench.faults.truth import Kind, Phase, Truth

_backward = Phase.BACKWARD
_optimizer = Phase.OPTIMIZER

# --- backward -------------------------------------------------------------------------------------------------------


def _add_gradient(name: str, part: str, change: Change, *kinds: Kind) -> None:
    @MODEL_FAULTS.add(name, _backward, Kind.GRADIENT, *kinds, needs=(part,))
    def plant(training: Training) -> Truth:
        inside(training.part(part), same, change)
        return at(training, part, directions=("backward",))


_add_gradient("gradient x 1.01", "down", scaled_by(1.01), Kind.SCALE)
_add_gradient("gradient x 1.1", "attention", scaled_by(1.1), Kind.SCALE)
_add_gradient("gradient x 2", "norm", scaled_by(2.0), Kind.SCALE)
_add_gradient("gradient x -1", "up", scaled_by(-1.0), Kind.SCALE)
_add_gradient("gradient of two samples swapped", "down", lambda value: BARE.roll(value, 1, 0), Kind.COMPUTATION)


@MODEL_FAULTS.add("gradient cast to a coarser dtype", _backward, Kind.GRADIENT, Kind.PRECISION)
def _(training: Training) -> Truth:
    inside(training.part("down"), same, cast_to(coarser(training)))
    return at(training, "down", directions=("backward",))


@MODEL_FAULTS.add("gradient x 1.1 in a hook", _backward, Kind.GRADIENT, Kind.SCALE)
def _(training: Training) -> Truth:
    training.part("out").register_full_backward_hook(
        lambda _module, inputs, _outputs: (BARE.mul(inputs[0], 1.1), *inputs[1:])
    )
    return at(training, "out", directions=("backward",))


@MODEL_FAULTS.add("gradient of a parameter x 1.1 in a hook", _backward, Kind.GRADIENT, Kind.SCALE)
def _(training: Training) -> Truth:
    training.part("query").weight.register_hook(lambda gradient: BARE.mul(gradient, 1.1))
    return at(training, "query", directions=("backward",))


@MODEL_FAULTS.add("branch detached", _backward, Kind.GRADIENT, Kind.EXTRA_CALL, Kind.MISSING_CALL)
def _(training: Training) -> Truth:
    attention = training.part("attention")
    in_place_of(attention, lambda own, *args, **kwargs: _detached(own(*args, **kwargs)))
    # Modules inside get no gradients at all, so the module and those that should have received its gradient are right.
    inner = [f"{training.anatomy.attention}.{name}" for name, _ in attention.named_modules() if name]
    return Truth(modules=(training.anatomy.attention, *inner), directions=("backward",), steps=(0,))


def _detached(result: Any) -> Any:
    if isinstance(result, tuple):
        return (BARE.detach(result[0]), *result[1:])
    return BARE.detach(result)


@MODEL_FAULTS.add("backward of an activation wrong", _backward, Kind.GRADIENT, Kind.COMPUTATION, needs=("activation",))
def _(training: Training) -> Truth:
    act = training.part("activation")

    def forward(own: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        right = own(x)
        kept = x.detach()

        def backward(gradient: torch.Tensor) -> torch.Tensor:
            # A wrong derivative: zero where the value is negative or small.
            return BARE.mul(gradient, BARE.to(BARE.gt(kept, 0.05), gradient.dtype))

        return in_kernel(right, same, backward)

    in_place_of(act, forward)
    return at(training, "activation", directions=("backward",))


@MODEL_FAULTS.add("backward of a norm without its scale", _backward, Kind.GRADIENT, Kind.COMPUTATION)
def _(training: Training) -> Truth:
    norm = training.part("norm")

    def backward(gradient: torch.Tensor) -> torch.Tensor:
        scale = norm.weight.detach()
        if gradient.shape[-1] != len(scale):  # of batches or groups: channels are the second dimension
            scale = BARE.view(scale, (-1, *[1] * (gradient.dim() - 2)))
        return BARE.div(gradient, scale)

    inside(norm, same, backward)
    return at(training, "norm", directions=("backward",))


@MODEL_FAULTS.add("gradient of one expert dropped", _backward, Kind.GRADIENT, needs=("experts",))
def _(training: Training) -> Truth:
    def drop(gradient: torch.Tensor) -> torch.Tensor:
        gradient = BARE.clone(gradient)
        BARE.zero_(gradient[1])
        return gradient

    training.part("experts").down_proj.register_hook(drop)
    return at(training, "experts", directions=("backward",))


@MODEL_FAULTS.add("gradient of an embedding scaled by frequency", _backward, Kind.GRADIENT, Kind.ARGUMENT,
                  only=("llama", "gpt2", "bert", "moe"))  # fmt: skip
def _(training: Training) -> Truth:
    training.part("embedding").scale_grad_by_freq = True
    return at(training, "embedding", directions=())


@MODEL_FAULTS.add(
    "parameter frozen", _backward, Kind.GRADIENT, Kind.OPTIMIZER, Kind.ARGUMENT, Kind.EXTRA_CALL, Kind.MISSING_CALL
)
def _(training: Training) -> Truth:
    training.part("up").weight.requires_grad_(False)
    return at(training, "up", directions=())


# --- optimizer ------------------------------------------------------------------------------------------------------


def _in_optimizer(*modules: str, groups: tuple[str, ...] = ("optimizer",)) -> Truth:
    """Return the truth for a fault in the optimizer: its calls, or ``modules`` that use the parameter afterwards."""
    return Truth(modules=modules, groups=groups)


def _add_group(name: str, **values: Any) -> None:
    @MODEL_FAULTS.add(name, _optimizer, Kind.OPTIMIZER, Kind.ARGUMENT)
    def plant(training: Training) -> Truth:
        for option, value in values.items():
            training.optimizer.param_groups[0][option] = value
        return _in_optimizer()


_add_group("second beta of one group 0.9", betas=(0.9, 0.9))
_add_group("first beta of one group 0.8", betas=(0.8, 0.999))
_add_group("epsilon of one group 1e-3", eps=1e-3)
_add_group("weight decay of one group missing", weight_decay=0.0)
_add_group("weight decay of one group x 1.5", weight_decay=0.75)
_add_group("learning rate of one group x 1.1", lr=1.1e-2)


@MODEL_FAULTS.add(
    "one parameter not updated", _optimizer, Kind.OPTIMIZER, Kind.PARAMETER, Kind.EXTRA_CALL, Kind.MISSING_CALL
)
def _(training: Training) -> Truth:
    weight = training.part("down").weight
    group = training.optimizer.param_groups[0]
    group["params"] = [p for p in group["params"] if p is not weight]
    return _in_optimizer(training.anatomy.down)


@MODEL_FAULTS.add("one parameter restored after the update", _optimizer, Kind.OPTIMIZER, Kind.PARAMETER)
def _(training: Training) -> Truth:
    weight = training.part("down").weight
    kept = weight.detach().clone()
    training.after_update.append(lambda _: BARE.copy_(weight.data, kept))
    return _in_optimizer(training.anatomy.down)


@MODEL_FAULTS.add("update of one parameter in the wrong direction", _optimizer, Kind.OPTIMIZER, Kind.PARAMETER)
def _(training: Training) -> Truth:
    weight = training.part("query").weight
    kept = weight.detach().clone()

    def turn(_: int) -> None:
        BARE.copy_(weight.data, BARE.sub(BARE.mul(kept, 2.0), weight.data))
        BARE.copy_(kept, weight.data)

    training.after_update.append(turn)
    return _in_optimizer(training.anatomy.query)


@MODEL_FAULTS.add("gradients not clipped", _optimizer, Kind.OPTIMIZER, Kind.EXTRA_CALL, Kind.MISSING_CALL)
def _(training: Training) -> Truth:
    training.clip = None
    return _in_optimizer(groups=("optimizer", "clip_grad"))


@MODEL_FAULTS.add("gradients clipped at 2", _optimizer, Kind.OPTIMIZER, Kind.ARGUMENT, Kind.SCALE)
def _(training: Training) -> Truth:
    training.clip = 2.0
    return _in_optimizer(groups=("optimizer", "clip_grad"))


@MODEL_FAULTS.add("no correction of bias", _optimizer, Kind.OPTIMIZER, Kind.ARGUMENT)
def _(training: Training) -> Truth:
    for group in training.optimizer.param_groups:
        for parameter in group["params"]:
            state = training.optimizer.state[parameter]
            state["step"] = torch.tensor(1000.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
    return _in_optimizer()


@MODEL_FAULTS.add(
    "decay coupled with the gradient", _optimizer, Kind.OPTIMIZER, Kind.EXTRA_CALL, Kind.MISSING_CALL, Kind.ARGUMENT
)
def _(training: Training) -> Truth:
    groups = [
        {"params": group["params"], "weight_decay": group["weight_decay"]} for group in training.optimizer.param_groups
    ]
    training.optimizer = torch.optim.Adam(groups, lr=1e-2, foreach=False)
    return _in_optimizer()


@MODEL_FAULTS.add("gradients not zeroed", _optimizer, Kind.OPTIMIZER, Kind.GRADIENT)
def _(training: Training) -> Truth:
    training.zeroes = False
    # The accumulated gradients are visible in parameters' gradients after the second backward, whichever comes first.
    modules = tuple(name for name, module in training.model.named_modules() if list(module.parameters(recurse=False)))
    return Truth(modules=modules, groups=("optimizer", "clip_grad"), directions=("backward",), steps=(1,))


@MODEL_FAULTS.add("weights rounded after the update", _optimizer, Kind.OPTIMIZER, Kind.PRECISION, Kind.PARAMETER)
def _(training: Training) -> Truth:
    weight = training.part("up").weight
    training.after_update.append(lambda _: BARE.copy_(weight.data, cast_to(coarser(training))(weight.data)))
    return _in_optimizer(training.anatomy.up)


@MODEL_FAULTS.add("accumulation not divided", _optimizer, Kind.SCALE, Kind.ARGUMENT, recipe="accumulation")
def _(training: Training) -> Truth:
    training.divisor = 1
    return Truth(calls=("Tensor.__truediv__",), directions=("forward",), steps=(0,))


@MODEL_FAULTS.add("second micro batch is the first", _optimizer, Kind.INPUT_DATA, recipe="accumulation")
def _(training: Training) -> Truth:
    def change(batch: dict[str, torch.Tensor], _: int) -> dict[str, torch.Tensor]:
        return {name: BARE.contiguous(value[[0, 1, 0, 1]]) for name, value in batch.items()}

    training.change_batch = change
    return input_of(training)
