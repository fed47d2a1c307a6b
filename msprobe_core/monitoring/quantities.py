"""What monitors measure of a training: the quantities of a step, the operations on their values, names of curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum


class Quantity(str, Enum):
    """Monitored quantities, in the order in which a step computes them; files may have others."""

    PARAM_ORIGIN = "param_origin"
    LINEAR = "linear_hook"
    ROUTER_WEIGHT = "moe_router_weight_hook"
    ACTIVATION = "actv"
    ATTENTION = "attention_hook"
    ROUTER_LOGIT = "moe_router_logit_hook"
    ACTIVATION_GRADIENT = "actv_grad"
    GRADIENT_UNREDUCED = "grad_unreduced"
    COMMUNICATION = "cc"
    GRADIENT_REDUCED = "grad_reduced"
    DIRECTION = "mg_direction"
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    UPDATE = "update"
    PARAM_UPDATED = "param_updated"
    ADHOC = "adhoc"


MONITORS: Mapping[str, Sequence[Quantity]] = {
    "module": (Quantity.ACTIVATION, Quantity.ACTIVATION_GRADIENT),
    "weight_grad": (Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED),
    "optimizer": (Quantity.EXP_AVG, Quantity.EXP_AVG_SQ),
    "param": (Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED),
}
"""Quantities by the names that the established monitor's second version has for them together."""

SCOPES: Mapping[str, Quantity] = {
    "forward": Quantity.ACTIVATION,
    "backward": Quantity.ACTIVATION_GRADIENT,
    "unreduced": Quantity.GRADIENT_UNREDUCED,
    "reduced": Quantity.GRADIENT_REDUCED,
}
"""Quantities that have another name there."""


class Op(str, Enum):
    """One number about the values of one tensor, in the order in which files list them.

    ``zeros`` is the share of elements whose magnitude is below ``eps``, ``nans`` the number of NaN, ``id`` the identity
    of the tensor in its process. ``p01`` to ``p99`` are percentiles. Underflow is the share of elements that are not 0
    and would be 0 in a format, overflow the share of finite elements beyond its range; ``fp8`` is E4M3.
    """

    NORM = "norm"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    ZEROS = "zeros"
    NANS = "nans"
    ID = "id"
    P01 = "p01"
    P05 = "p05"
    P25 = "p25"
    P50 = "p50"
    P75 = "p75"
    P95 = "p95"
    P99 = "p99"
    FP8_UNDERFLOW = "fp8_underflow"
    FP8_OVERFLOW = "fp8_overflow"
    FP8_E5M2_UNDERFLOW = "fp8_e5m2_underflow"
    FP8_E5M2_OVERFLOW = "fp8_e5m2_overflow"
    FP16_UNDERFLOW = "fp16_underflow"
    FP16_OVERFLOW = "fp16_overflow"
    BF16_UNDERFLOW = "bf16_underflow"
    BF16_OVERFLOW = "bf16_overflow"


def tag_of(stage: int | None, name: str, micro_step: int | None, statistic: str) -> str:
    """Return the name of a curve, as the established monitor's converter has it: ``vp0:up.weight:micro1/norm``."""
    micro = "" if micro_step is None else f":micro{micro_step}"
    return f"vp{max(stage or 0, 0)}:{name}{micro}/{statistic}"
