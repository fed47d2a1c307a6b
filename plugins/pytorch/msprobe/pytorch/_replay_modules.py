"""Modules of `torch.nn` that are made again from the manifest beside a dump, without the program's model.

A dump may be untrusted, so classes are only looked up if they are in the list below, and their arguments are literals.
Modules are made without memory, and then given the recorded parameters.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from msprobe_core.interception import literal
from msprobe_core.plugin import ReplayCall, ReplayError, ReplayModule, ReplayTensor

_CLASSES = """
    Linear Bilinear Embedding Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Fold Unfold
    LayerNorm RMSNorm GroupNorm BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d
    LocalResponseNorm MultiheadAttention LSTM GRU RNN Sequential GELU SiLU ReLU ReLU6 ELU SELU CELU LeakyReLU
    PReLU GLU LogSigmoid Hardshrink Softshrink Tanhshrink Softsign Softplus Tanh Sigmoid Hardsigmoid Mish
    Hardswish Hardtanh Threshold Softmin Softmax Softmax2d LogSoftmax Identity Flatten Unflatten MaxPool1d
    MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d AdaptiveAvgPool1d AdaptiveAvgPool2d
    AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d ZeroPad1d ZeroPad2d ZeroPad3d
    ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d ReplicationPad1d ReplicationPad2d
    PixelShuffle PixelUnshuffle ChannelShuffle Upsample CosineSimilarity PairwiseDistance L1Loss MSELoss
    SmoothL1Loss HuberLoss CrossEntropyLoss NLLLoss BCELoss BCEWithLogitsLoss KLDivLoss PoissonNLLLoss
    GaussianNLLLoss SoftMarginLoss MarginRankingLoss HingeEmbeddingLoss TripletMarginLoss CosineEmbeddingLoss
"""
"""Classes of `torch.nn` that compute what their arguments and parameters say, and nothing else."""

_RECURRENT = {
    name: ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", *others)
    for name, others in (("LSTM", ("proj_size",)), ("GRU", ()), ("RNN", ("nonlinearity",)))
}
"""Arguments of the classes whose signature does not name them."""

_NO_SETTINGS = frozenset(["self", "device", "dtype", "size_average", "reduce", "weight", "pos_weight"])
"""Arguments that need not be given: where recorded parameters are, the former names, and buffers, which are refused."""

_INSTEAD = "record with level mix, which has the calls inside it: these are checked, and have scripts"

_MAX_TEXT = 400


@dataclass(frozen=True)
class Plan:
    """How a module is made.

    Attributes:
        name: Its class in `torch.nn`.
        settings: Arguments of the class.
        inside: The modules in a ``Sequential``.
    """

    name: str
    settings: Mapping[str, Any]
    inside: tuple[Plan, ...] = ()

    def make(self) -> nn.Module:
        """Return the module, on the current device."""
        return getattr(nn, self.name)(*(each.make() for each in self.inside), **self.settings)

    @property
    def text(self) -> str:
        """The expression that makes it."""
        arguments = [each.text for each in self.inside]
        arguments += [f"{name}={literal(value)}" for name, value in self.settings.items()]
        return f"torch.nn.{self.name}({', '.join(arguments)})"

    @property
    def writes(self) -> bool:
        """Whether it, or a module inside it, writes to its input."""
        return self.settings.get("inplace") is True or any(each.writes for each in self.inside)


def plan_of(call: ReplayCall) -> Plan:
    """Return how the module of a call is made again.

    Raises:
        ReplayError: it cannot be; the message says what to record.
    """
    if not call.modules:
        raise ReplayError(
            f"no manifest beside the dump says how this {call.site.type_name} was made; set manifest to true, "
            f"or {_INSTEAD}"
        )
    plan = _plan(call.modules)
    for module in call.modules:
        missing = [name for name in module.parameters if _join(module.path, name) not in call.parameters]
        if missing:
            name = _join(module.path, missing[0])
            raise ReplayError(f"its parameter {name} is not in the dump; use the task tensor, or {_INSTEAD}")
    return plan


def settings_of(call: ReplayCall) -> list[Any]:
    """Return the arguments that the module of a call, and those inside it, are made with."""
    pending, found = [plan_of(call)], list[Any]()
    while pending:
        plan = pending.pop()
        found += plan.settings.values()
        pending += plan.inside
    return found


def made_again(call: ReplayCall, tensor_of: Callable[[ReplayTensor], Tensor]) -> nn.Module:
    """Return the module of a call with its recorded parameters.

    Args:
        call: The call.
        tensor_of: Makes a parameter.

    Raises:
        ReplayError: it cannot be made again; the message says what to record.
    """
    plan = plan_of(call)
    with torch.device("meta"):
        module = plan.make()
    module.load_state_dict({name: tensor_of(value) for name, value in call.parameters.items()}, assign=True)
    return module.requires_grad_(False)


def _plan(modules: Sequence[ReplayModule]) -> Plan:
    """Return the plan of the first of the modules; the others are inside it."""
    first, *others = modules
    place, _, name = first.type.rpartition(".")
    if name not in _CLASSES.split() or place.partition(".nn.modules.")[0] != "torch":
        raise ReplayError(f"it is a {first.type}, whose code is not in a dump; {_INSTEAD}")
    if first.has_hooks:
        raise ReplayError(f"hooks of the program may change what this {name} does; {_INSTEAD}")
    if first.buffers:
        raise ReplayError(f"values of buffers, such as its {first.buffers[0]}, are not in a dump; {_INSTEAD}")
    if name == "Sequential":
        children = [each for each in others if "." not in each.path[len(first.path) :].lstrip(".")]
        numbers = [each.path.rpartition(".")[2] for each in children]
        if numbers != [str(i) for i in range(len(children))]:
            raise ReplayError(f"the modules inside it are not numbered; {_INSTEAD}")
        return Plan(name, {}, tuple(_plan([each, *_inside(each, others)]) for each in children))
    settings = {argument: _setting(first, name, argument) for argument in _arguments_of(name)}
    if settings.get("dropout"):
        raise ReplayError(f"it may have drawn random numbers, which no replay draws again; {_INSTEAD}")
    if int(settings.get("num_layers") or 0) > len(first.parameters):
        raise ReplayError("it has fewer parameters than layers")
    return Plan(name, settings)


def _inside(module: ReplayModule, others: Sequence[ReplayModule]) -> list[ReplayModule]:
    return [each for each in others if each.path.startswith(f"{module.path}.")]


@cache
def _arguments_of(name: str) -> tuple[str, ...]:
    known = _RECURRENT.get(name) or inspect.signature(getattr(nn, name)).parameters
    return tuple(each for each in known if each not in _NO_SETTINGS and each[0] != "_")


def _setting(module: ReplayModule, name: str, argument: str) -> Any:
    """Return an argument of a module's class."""
    if argument == "bias":
        return any("bias" in each and each not in ("bias_k", "bias_v") for each in module.parameters)
    if argument == "add_bias_kv":
        return "bias_k" in module.parameters
    if argument == "nonlinearity" and argument not in module.settings:
        return "relu" if module.settings.get("mode") == "RNN_RELU" else "tanh"
    if name == "PReLU" and argument == "init":
        return 0.25  # its weight is recorded
    if name == "Identity":
        return None
    if argument not in module.settings:
        raise ReplayError(f"the manifest does not say the {argument} of this {name}; {_INSTEAD}")
    value = module.settings[argument]
    if isinstance(value, str) and value[:1] in "[(" and len(value) <= _MAX_TEXT:
        return _tuple(value)
    return value


def _tuple(text: str) -> tuple[Any, ...]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ReplayError("the manifest beside the dump has a sequence that is none") from error
    return tuple(found)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
