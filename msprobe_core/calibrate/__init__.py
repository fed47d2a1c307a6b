"""Measure the noise of a golden run from repetitions of it."""

from msprobe_core.calibrate.engine import Calibration, DumpCalibration, calibrate, find_repeats

__all__ = ["Calibration", "DumpCalibration", "calibrate", "find_repeats"]
