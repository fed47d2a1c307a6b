"""Classes of parameters, told from their names: trainers treat experts, embeddings and norms differently."""

from __future__ import annotations

import re
from enum import Enum


class ParameterClass(str, Enum):
    """What a parameter is for, as far as its name says; ``dense`` if it says nothing else."""

    EXPERT = "expert"
    EMBEDDING = "embedding"
    NORM = "norm"
    BIAS = "bias"
    DENSE = "dense"


_PATTERNS = (
    (ParameterClass.EXPERT, re.compile(r"experts?\b|\bexpert_?\d")),
    (ParameterClass.BIAS, re.compile(r"bias\d*$")),
    (ParameterClass.EMBEDDING, re.compile(r"embed|\bw[tp]e\b")),
    (ParameterClass.NORM, re.compile(r"norm|\bln_|\bbn\d*\b")),
)
"""In the order of precedence: the bias of a norm is a bias."""


def class_of(name: str) -> ParameterClass:
    """Return the class of a parameter, by the first pattern that its name has."""
    lowered = name.lower()
    return next((kind for kind, pattern in _PATTERNS if pattern.search(lowered)), ParameterClass.DENSE)
