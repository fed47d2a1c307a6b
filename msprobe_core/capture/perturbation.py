"""The documented import path of perturbations; see `msprobe_core.interception`."""

from msprobe_core.interception.perturbation import FLIPPED, ModuleNoise, relative_changes

__all__ = ["FLIPPED", "ModuleNoise", "relative_changes"]
