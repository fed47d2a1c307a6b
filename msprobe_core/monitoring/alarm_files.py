"""Alarms that monitors wrote while trainings ran: ``anomaly_detected/rank{R}/anomaly.json``, in causal order.

A record has a key of its own, and says rank, step, micro-batch, stages and ``tag_name``, such as
``0:fc1.output:0/rank0/actv``, which ends with the quantity. Both this monitor and the established one write it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from msprobe_core.errors import MissingDumpError
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.store.struct_files import load_struct

_FILE = "anomaly.json"
_DIRECTORY = "anomaly_detected"
_RANK = re.compile(r"rank\d{1,5}$")

_STAGES = (
    Quantity.ACTIVATION, Quantity.ACTIVATION_GRADIENT, Quantity.GRADIENT_UNREDUCED, Quantity.GRADIENT_REDUCED,
    Quantity.EXP_AVG, Quantity.EXP_AVG_SQ, None, Quantity.PARAM_ORIGIN, Quantity.PARAM_UPDATED,
)  # fmt: skip
"""Quantities in causal order: forward, backward, reduction, moments, what is not known, parameters."""

_OF_MICRO_BATCHES = _STAGES[:3]


class Alarm(msgspec.Struct, frozen=True):
    """An alarm.

    Attributes:
        rank: Of the process.
        step: Of the value.
        tag_name: Stage, name, micro-batch, rank and quantity.
        message: What the rule said.
        micro_step: Micro-batch; 0 if the value belongs to the whole step.
        pp_stage: Stage of the pipeline.
        vpp_stage: Stage of the virtual pipeline.
        call_id: Number of the reading in its process.
        group_mates: Ranks of the same stage.
        op: Which number of the value; only this monitor writes it.
        value: The number.
    """

    rank: int
    step: int
    tag_name: str
    message: str
    micro_step: int = 0
    pp_stage: int = 0
    vpp_stage: int = 0
    call_id: int = 0
    group_mates: list[int] | int | None = None
    op: str | msgspec.UnsetType = msgspec.UNSET
    value: float | str | msgspec.UnsetType | None = msgspec.UNSET


def read_alarms(directory: Path) -> list[Alarm]:
    """Return the alarms of all ranks, in causal order.

    Args:
        directory: With a directory ``rank{R}`` for each rank, or with ``anomaly_detected`` in it.

    Raises:
        DumpError: there are none, or a file cannot be read.
    """
    files = _files_in(directory) or _files_in(directory / _DIRECTORY)
    if not files:
        raise MissingDumpError(
            f"{directory}: holds no alarms of a monitor; give the directory anomaly_detected, which has "
            f"rank0/{_FILE} where a rule of 'alert' held and 'dump' was true"
        )
    return sorted((alarm for file in files for alarm in _read(file)), key=_order)


def first_alarms(alarms: Sequence[Alarm], most: int, steps: Collection[int] = ()) -> list[Alarm]:
    """Return the first alarms.

    Args:
        alarms: In causal order.
        most: How many.
        steps: Steps to return alarms of; empty for all.
    """
    return [alarm for alarm in alarms if not steps or alarm.step in steps][:most]


def _files_in(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    ranks = [each for each in directory.iterdir() if _RANK.match(each.name)]
    return sorted(each / _FILE for each in ranks if (each / _FILE).is_file())


def _read(path: Path) -> list[Alarm]:
    return list(load_struct(path, dict[str, Alarm], otherwise="does not hold the alarms of a monitor").values())


def _order(alarm: Alarm) -> tuple[int, ...]:
    name = alarm.tag_name.rpartition("/")[2]
    quantity = next((each for each in _STAGES if each is not None and each.value == name), None)
    is_forward = quantity is Quantity.ACTIVATION
    stages = (alarm.vpp_stage, alarm.pp_stage)
    is_whole = quantity not in _OF_MICRO_BATCHES  # reduction and updates follow all micro-batches
    return (
        alarm.step,
        is_whole,
        0 if is_whole else alarm.micro_step,
        _STAGES.index(quantity),
        *(stage if is_forward else -stage for stage in stages),  # a backward begins in the last stage
        alarm.call_id,
        alarm.rank,
    )
