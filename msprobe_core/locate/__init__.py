"""Where two runs part first, and by what kind of fault: judge, order, descend."""

from msprobe_core.locate.engine import LocateOptions, locate
from msprobe_core.locate.result import FaultKind, LocateResult, LocateVerdict, Suspect

__all__ = ["FaultKind", "LocateOptions", "LocateResult", "LocateVerdict", "Suspect", "locate"]
