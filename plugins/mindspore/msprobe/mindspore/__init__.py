"""MindSpore for msprobe: record what flows through a net's Cells and APIs.

::

    from msprobe.mindspore import MsprobeStep, PrecisionDebugger, bisect_step, compare, compare_distributed, seed_all
    from msprobe.mindspore import FlightRecorder, TrainerMon, module_dump, module_dump_end, save, save_grad, step
"""

from typing import TYPE_CHECKING

from msprobe.mindspore.hooks import __version__
from msprobe_core.plugin import former_attribute, lazy_names, offer_former_names, refuse_shadowing

if TYPE_CHECKING:
    from msprobe.mindspore._callbacks import MsprobeStep
    from msprobe.mindspore._flight import FlightRecorder
    from msprobe.mindspore._random_save import random_save
    from msprobe.mindspore._seed import seed_all
    from msprobe.mindspore.debugger import PrecisionDebugger
    from msprobe.mindspore.monitor import TrainerMon
    from msprobe.mindspore.saving import save, save_grad, step
    from msprobe_core.comparison import compare, compare_distributed
    from msprobe_core.recording import bisect_step, calibration, module_dump, module_dump_end, repeats
else:  # imported on first use: finding this plugin must not import MindSpore
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe.mindspore._callbacks": "MsprobeStep",
            "msprobe.mindspore._flight": "FlightRecorder",
            "msprobe.mindspore._random_save": "random_save",
            "msprobe.mindspore._seed": "seed_all",
            "msprobe.mindspore.debugger": "PrecisionDebugger",
            "msprobe.mindspore.monitor": "TrainerMon",
            "msprobe.mindspore.saving": "save save_grad step",
            "msprobe_core.comparison": "compare compare_distributed",
            "msprobe_core.recording": "bisect_step calibration module_dump module_dump_end repeats",
        },
        former_attribute,
    )

__all__ = [
    "FlightRecorder",
    "MsprobeStep",
    "PrecisionDebugger",
    "TrainerMon",
    "__version__",
    "bisect_step",
    "calibration",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "random_save",
    "repeats",
    "save",
    "save_grad",
    "seed_all",
    "step",
]

refuse_shadowing()
offer_former_names()
