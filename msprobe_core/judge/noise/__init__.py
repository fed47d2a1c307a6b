"""Fault or rounding: how far two healthy runs may differ, row by row, and whether a row differs more."""

from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.noise.model import ALPHA, NoiseModel, NoiseSource, load_noise, measured_noise
from msprobe_core.judge.noise.profile_file import PROFILE_FILE, NoiseProfile

__all__ = [
    "ALPHA",
    "MEASURES",
    "PROFILE_FILE",
    "Measure",
    "NoiseModel",
    "NoiseProfile",
    "NoiseSource",
    "load_noise",
    "measured_noise",
]
