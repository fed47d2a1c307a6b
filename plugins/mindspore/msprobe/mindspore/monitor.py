"""The training monitor for MindSpore's dynamic graph."""

from __future__ import annotations

from msprobe_core.recording import TrainerMon as AnyTrainerMon

__all__ = ["TrainerMon"]


class TrainerMon(AnyTrainerMon):
    """See `msprobe_core.monitor.trainer_mon.TrainerMon`."""

    framework_name = "mindspore"
