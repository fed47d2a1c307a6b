"""PyTorch for msprobe: record what flows through a model's modules and APIs.

::

    from msprobe.pytorch import PrecisionDebugger, compare, compare_distributed, seed_all
"""

from typing import TYPE_CHECKING, Any

from msprobe.pytorch.hooks import __version__
from msprobe_core.compat.imports import former_attribute, offer_former_names
from msprobe_core.plugins import refuse_shadowing

if TYPE_CHECKING:
    from msprobe.pytorch._flight import FlightRecorder
    from msprobe.pytorch._random import random_save
    from msprobe.pytorch._seed import seed_all
    from msprobe.pytorch._shadow import shadow_step
    from msprobe.pytorch.debugger import PrecisionDebugger, module_dump, module_dump_end
    from msprobe_core.capture.repetition import calibration
    from msprobe_core.report import compare, compare_distributed

__all__ = [
    "FlightRecorder",
    "PrecisionDebugger",
    "__version__",
    "calibration",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "random_save",
    "seed_all",
    "shadow_step",
]

refuse_shadowing()
offer_former_names()


def __getattr__(name: str) -> Any:
    # Imported on first use: finding this plugin must not import torch.
    if name in {"PrecisionDebugger", "module_dump", "module_dump_end"}:
        from msprobe.pytorch import debugger

        return getattr(debugger, name)
    if name == "FlightRecorder":
        from msprobe.pytorch._flight import FlightRecorder

        return FlightRecorder
    if name == "seed_all":
        from msprobe.pytorch._seed import seed_all

        return seed_all
    if name == "random_save":
        from msprobe.pytorch._random import random_save

        return random_save
    if name == "shadow_step":
        from msprobe.pytorch._shadow import shadow_step

        return shadow_step
    if name == "calibration":
        from msprobe_core.capture.repetition import calibration

        return calibration
    if name in {"compare", "compare_distributed"}:
        from msprobe_core import report

        return getattr(report, name)
    return former_attribute(__name__, name)
