"""The training monitor for PyTorch."""

from __future__ import annotations

from msprobe_core import recording

__all__ = ["TrainerMon"]


class TrainerMon(recording.TrainerMon):
    """See `msprobe_core.monitor.trainer_mon.TrainerMon`."""

    framework_name = "pytorch"
