"""What monitors measure of a training: the quantities of a step, and the operations on their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum


class Quantity(str, Enum):
    """Monitored quantities, in the order in which a step computes them; files may have others."""

    PARAM_ORIGIN = "param_origin"
    ACTIVATION = "actv"
    ACTIVATION_GRADIENT = "actv_grad"
    GRADIENT_UNREDUCED = "grad_unreduced"
    GRADIENT_REDUCED = "grad_reduced"
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    PARAM_UPDATED = "param_updated"


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
    of the tensor in its process.
    """

    NORM = "norm"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    ZEROS = "zeros"
    NANS = "nans"
    ID = "id"
