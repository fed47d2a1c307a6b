"""The training monitor for PyTorch."""

from __future__ import annotations

from msprobe_core.recording import TrainerMon as AnyTrainerMon
from msprobe_core.recording import TrainerMonitorV2 as AnyTrainerMonitorV2

__all__ = ["TrainerMon", "TrainerMonitorV2"]

__path__: list[str] = []  # a package in other releases; modules below it are found by msprobe_core.former_names


class TrainerMon(AnyTrainerMon):
    """See `msprobe_core.monitor.trainer_mon.TrainerMon`."""

    framework_name = "pytorch"


class TrainerMonitorV2(AnyTrainerMonitorV2):
    """See `msprobe_core.monitor.trainer_monitor_v2.TrainerMonitorV2`."""

    framework_name = "pytorch"
