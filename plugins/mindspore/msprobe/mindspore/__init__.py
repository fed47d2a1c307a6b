"""MindSpore for msprobe: record what flows through a net's Cells and APIs.

::

    from msprobe.mindspore import MsprobeStep, PrecisionDebugger, compare, compare_distributed, seed_all
    from msprobe.mindspore import module_dump, module_dump_end, save, save_grad, step
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msprobe.mindspore.hooks import __version__
from msprobe_core.compat.imports import former_attribute, offer_former_names
from msprobe_core.plugins import refuse_shadowing

if TYPE_CHECKING:
    from msprobe.mindspore._callbacks import MsprobeStep
    from msprobe.mindspore._random import random_save
    from msprobe.mindspore._seed import seed_all
    from msprobe.mindspore.debugger import PrecisionDebugger
    from msprobe.mindspore.saving import save, save_grad, step
    from msprobe_core.capture.debugger import module_dump, module_dump_end
    from msprobe_core.capture.repetition import calibration
    from msprobe_core.report import compare, compare_distributed

__all__ = [
    "MsprobeStep",
    "PrecisionDebugger",
    "__version__",
    "calibration",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "random_save",
    "save",
    "save_grad",
    "seed_all",
    "step",
]

refuse_shadowing()
offer_former_names()

_PLACES = {
    "MsprobeStep": "msprobe.mindspore._callbacks",
    "PrecisionDebugger": "msprobe.mindspore.debugger",
    "calibration": "msprobe_core.capture.repetition",
    "compare": "msprobe_core.report",
    "compare_distributed": "msprobe_core.report",
    "module_dump": "msprobe_core.capture.debugger",
    "module_dump_end": "msprobe_core.capture.debugger",
    "random_save": "msprobe.mindspore._random",
    "save": "msprobe.mindspore.saving",
    "save_grad": "msprobe.mindspore.saving",
    "seed_all": "msprobe.mindspore._seed",
    "step": "msprobe.mindspore.saving",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: finding this plugin must not import MindSpore.
    if name not in _PLACES:
        return former_attribute(__name__, name)
    return getattr(import_module(_PLACES[name]), name)
