"""The documented import path of noise models; see `msprobe_core.judge.noise`."""

from msprobe_core.judge.noise import NoiseModel, load_noise, measured_noise

__all__ = ["NoiseModel", "load_noise", "measured_noise"]
