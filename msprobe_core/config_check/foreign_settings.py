"""Settings of runs in two frameworks under one name, and the forms in which two frameworks write one size.

PyTorch's names are used. Source: constructors and attributes of ``torch.nn`` and ``torch.optim`` of PyTorch 2.13, and
of ``mindspore.nn`` of MindSpore 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msprobe_core.config_check.values import same
from msprobe_core.manifest.facts import Module, Scalar

_MODULES = {
    "epsilon": "eps", "in_channels": "in_features", "out_channels": "out_features", "vocab_size": "num_embeddings",
    "embedding_size": "embedding_dim", "group": "groups",
}  # fmt: skip
_OF_PARAMETERS = frozenset({"bias", "has_bias"})
"""Settings that say which parameters there are; these are compared themselves."""
_OPTIMIZERS = {"use_nesterov": "nesterov", "use_amsgrad": "amsgrad", "learning_rate": "lr"}
_OPTIMIZER_CLASSES = {"momentum": "sgd"}
"""Lower-case names of optimizers that make PyTorch's updates under another name. ``AdamWeightDecay`` is none of them:
it corrects no bias, so its first updates are larger than those of ``AdamW``."""
_SWITCHES = {"deterministic": "deterministic_algorithms"}

_NEUTRAL = {"kernel_size": "1", "stride": "1", "dilation": "1", "padding": "0", "output_padding": "0"}
"""Sizes of convolutions and poolings, and what they are along a dimension of size 1 that a framework adds."""

_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "SequentialCell", "CellList", "CellDict"})
_HAVE_MODES = re.compile(r"dropout|batch_?norm|instance_?norm|rrelu|rnn|lstm|gru|attention|stochastic", re.IGNORECASE)


def of_module(settings: Mapping[str, Scalar], texts: frozenset[str]) -> dict[str, Scalar]:
    """Return the settings of a module under common names, without ``texts`` and those that parameters show."""
    left_out = texts | _OF_PARAMETERS | ({"padding"} if settings.get("pad_mode") in ("same", "valid") else set[str]())
    return {_MODULES.get(name, name): value for name, value in settings.items() if name not in left_out}


def of_optimizer(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings of an optimizer under common names; the two betas of Adam as two settings."""
    found = {_OPTIMIZERS.get(name, name): value for name, value in settings.items()}
    betas = _parts(found.pop("betas", None))
    if len(betas) == 2:
        found |= {"beta1": betas[0], "beta2": betas[1]}
    return found


def optimizer_class(name: str) -> str:
    """Return the common name of a class of optimizers, in lower case."""
    return _OPTIMIZER_CLASSES.get(name.lower(), name.lower())


def of_switches(switches: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the switches of a framework under common names."""
    return {_SWITCHES.get(name, name): value for name, value in switches.items()}


def is_same_setting(name: str, target: Scalar, golden: Scalar) -> bool:
    """Whether a setting of a module means the same; sizes may be one number, or one for each dimension or side."""
    if same(target, golden):
        return True
    neutral = _NEUTRAL.get(name)
    return neutral is not None and _sizes(target, neutral) == _sizes(golden, neutral) != ()


def _sizes(value: Scalar, neutral: str) -> tuple[str, ...]:
    parts = _parts(value)
    if len(parts) in (4, 6) and neutral == "0" and parts[::2] == parts[1::2]:  # before and after each dimension
        parts = parts[::2]
    while len(parts) > 1 and parts[0] == neutral:
        parts = parts[1:]
    return parts[:1] if len(set(parts)) == 1 else parts


def _parts(value: Scalar) -> tuple[str, ...]:
    return () if value is None else tuple(part.strip() for part in str(value).strip("[]() ").split(","))


def is_made_by_framework(module: Module, framework: str) -> bool:
    """Whether modules inside of a module are those that the framework's own class makes, such as an LSTM's cell."""
    package, _, rest = module.type.partition(".")
    return package == framework and bool(rest) and module.type.rpartition(".")[2] not in _CONTAINERS


def depends_on_mode(module: Module) -> bool:
    """Whether a module may compute something else while it is trained, by the name of its class."""
    return _HAVE_MODES.search(module.type.rpartition(".")[2]) is not None
