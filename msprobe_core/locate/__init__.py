"""First divergence of two runs and its kind of fault: judge all ranks, order them, and descend to a call."""

from msprobe_core.locate.engine import LocateOptions, locate
from msprobe_core.locate.result import FaultKind, LocateResult, LocateVerdict, Suspect

__all__ = ["FaultKind", "LocateOptions", "LocateResult", "LocateVerdict", "Suspect", "locate"]
