"""PyTorch for msprobe: record what flows through a model's modules and APIs.

::

    from msprobe.pytorch import PrecisionDebugger, compare, compare_distributed, seed_all
"""

from typing import TYPE_CHECKING

from msprobe.pytorch.hooks import __version__
from msprobe_core.plugin import former_attribute, lazy_names, offer_former_names, refuse_shadowing

if TYPE_CHECKING:
    from msprobe.pytorch._flight import FlightRecorder
    from msprobe.pytorch._random_save import random_save
    from msprobe.pytorch._routing import RoutingRecorder
    from msprobe.pytorch._seed import seed_all
    from msprobe.pytorch._shadow import shadow_step
    from msprobe.pytorch.debugger import PrecisionDebugger, module_dump, module_dump_end
    from msprobe.pytorch.monitor import TrainerMon, TrainerMonitorV2
    from msprobe_core.comparison import compare, compare_distributed
    from msprobe_core.recording import bisect_step, calibration, repeats
else:  # imported on first use: finding this plugin must not import torch
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe.pytorch._flight": "FlightRecorder",
            "msprobe.pytorch._random_save": "random_save",
            "msprobe.pytorch._routing": "RoutingRecorder",
            "msprobe.pytorch._seed": "seed_all",
            "msprobe.pytorch._shadow": "shadow_step",
            "msprobe.pytorch.debugger": "PrecisionDebugger module_dump module_dump_end",
            "msprobe.pytorch.monitor": "TrainerMon TrainerMonitorV2",
            "msprobe_core.comparison": "compare compare_distributed",
            "msprobe_core.recording": "bisect_step calibration repeats",
        },
        former_attribute,
    )

__all__ = [
    "FlightRecorder",
    "PrecisionDebugger",
    "RoutingRecorder",
    "TrainerMon",
    "TrainerMonitorV2",
    "__version__",
    "bisect_step",
    "calibration",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "random_save",
    "repeats",
    "seed_all",
    "shadow_step",
]

refuse_shadowing()
offer_former_names()
