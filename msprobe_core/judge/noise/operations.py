"""Kinds of operations, as far as they matter to rounding.

Names are canonical, those of PyTorch; classes of modules are mapped to the operation after which they are named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache


class Kind(Enum):
    """One formula describes the effect on errors of all operations of a kind."""

    COPY = "copy"
    ROUND = "round"
    PRODUCT = "product"
    QUOTIENT = "quotient"
    CONTRACTION = "contraction"
    CONVOLUTION = "convolution"
    SUM = "sum"
    DIFFERENCE = "difference"
    NORM = "norm"
    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log softmax"
    FUNCTION = "function"
    RECURRENT = "recurrent"
    OTHER = "other"


_KINDS: dict[Kind, str] = {
    Kind.COPY: """
        reshape view flatten unflatten ravel transpose permute t mt swapaxes movedim moveaxis contiguous clone detach
        copy cat stack hstack vstack split chunk unbind meshgrid unsqueeze squeeze expand expandas broadcastto repeat
        repeatinterleave tile roll flip getitem setitem narrow select indexselect indexput gather takealongdim take
        scatter embedding onehot unfold pixelshuffle pixelunshuffle channelshuffle pad zeropad constantpad
        reflectionpad replicationpad tril triu diagonal diag interpolate upsample where maskedfill maskedselect
        identity dropout to type astype float double cpu zeros ones full arange empty fill zero
        relu relu6 leakyrelu prelu hardtanh threshold clamp clip abs neg sign
        max min amax amin maximum minimum topk sort kthvalue maxpool adaptivemaxpool""",
    Kind.ROUND: "add sub rsub lerp addcmul addcdiv",
    Kind.PRODUCT: "mul square",
    Kind.QUOTIENT: "div reciprocal rdiv",
    Kind.CONTRACTION: """
        linear bilinear matmul bmm mm mv dot inner outer addmm addmv baddbmm addbmm einsum tensordot kron cdist
        scaleddotproductattention""",
    Kind.CONVOLUTION: "conv convtranspose",
    Kind.SUM: """
        sum nansum mean nanmean cumsum trace avgpool adaptiveavgpool indexadd scatteradd scatterreduce
        tensorscatteradd""",
    Kind.DIFFERENCE: "mse l1 smoothl1 huber",
    Kind.NORM: """
        layernorm rmsnorm batchnorm syncbatchnorm groupnorm instancenorm normalize norm var std varmean stdmean""",
    Kind.SOFTMAX: "softmax",
    Kind.LOG_SOFTMAX: "logsoftmax logsumexp crossentropy nll",
    Kind.FUNCTION: """
        exp exp2 expm1 log log1p log2 log10 sqrt rsqrt pow sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh
        erf erfc sigmoid logsigmoid silu gelu softplus softsign elu selu celu mish hardswish hardsigmoid glu
        bce bcewithlogits binarycrossentropy binarycrossentropywithlogits kldiv""",
    Kind.RECURRENT: "lstm gru rnn lstmcell grucell rnncell",
}
"""Operations of each kind, by the names that `known_as` returns."""

_KIND_OF = {name: kind for kind, listed in _KINDS.items() for name in listed.split()}


@lru_cache(4096)
def known_as(operation: str) -> str:
    """Return the name of an operation or of a class of modules, without differences in spelling.

    ``layer_norm`` and ``LayerNorm`` are equal, and so are ``conv2d`` and ``Conv1d``, ``cross_entropy`` and
    ``CrossEntropyLoss``.
    """
    plain = re.sub(r"[^a-z0-9]", "", operation.rpartition(".")[2].lower()).removesuffix("loss")
    return _OPERATORS.get(plain) or re.sub(r"\dd$", "", plain)


_OPERATORS = {
    f"{place}{operator}": name
    for operator, name in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div"))
    for place in ("", "i")
}
"""Operators of Python and their in-place forms, ``__truediv__`` and ``__itruediv__``."""


_LAYERS = """
    linear bilinear conv convtranspose embedding identity dropout flatten unflatten pixelshuffle pixelunshuffle upsample
    zeropad constantpad reflectionpad replicationpad maxpool adaptivemaxpool avgpool adaptiveavgpool
    layernorm rmsnorm batchnorm syncbatchnorm groupnorm instancenorm softmax logsoftmax
    relu relu6 leakyrelu prelu hardtanh threshold sigmoid logsigmoid tanh silu gelu softplus softsign elu selu celu mish
    hardswish hardsigmoid glu lstm gru rnn lstmcell grucell rnncell
    crossentropy nll mse l1 smoothl1 huber bce bcewithlogits kldiv"""
"""Module classes of the frameworks themselves."""

_LAYER_NAMES = frozenset(_LAYERS.split())


def is_layer(class_name: str) -> bool:
    """Whether a module class computes what its name says; classes of users may have any name."""
    return known_as(class_name) in _LAYER_NAMES


def kind_of(operation: str) -> Kind:
    """Return the kind of a canonical operation or class of modules."""
    return _KIND_OF.get(known_as(operation), Kind.OTHER)


@dataclass(frozen=True)
class Operations:
    """Operations of a golden dump's calls.

    Attributes:
        names: Canonical name of the operation, or class of the module, by entry.
        inexact: Approximation errors of operations: by canonical name, pairs of the largest input magnitude and the
            error bound up to it; see `msprobe_core.plugin.ApiMap`.
    """

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    inexact: Mapping[str, Sequence[tuple[float, float]]] = field(
        default_factory=dict[str, Sequence[tuple[float, float]]]
    )

    def approximation(self, operation: str, largest: float) -> float:
        """Return the error bound of an operation's approximation for inputs of magnitude up to ``largest``."""
        return _step_at(self.inexact.get(known_as(operation), ()), largest)


def merged(*sides: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """Return the bounds for the difference between two frameworks' approximations: the sums of their error bounds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in {name for side in sides for name in side}:
        listed = [side[name] for side in sides if name in side]
        reaches = sorted({reach for steps in listed for reach, _ in steps})
        found[name] = [(reach, sum(_step_at(steps, reach) for steps in listed)) for reach in reaches]
    return found


def _step_at(steps: Sequence[tuple[float, float]], largest: float) -> float:
    return next((error for reach, error in steps if largest <= reach), steps[-1][1] if steps else 0.0)
