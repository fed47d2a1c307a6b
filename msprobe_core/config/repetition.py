"""Repetitions of a golden run: where they are recorded, and how a whole program is made to run as one.

An environment variable makes a program run as a repetition, so that its command line stays the same, and the processes
that it starts inherit the request.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from msprobe_core.config.schema import Config
from msprobe_core.config.text import given_path
from msprobe_core.errors import ConfigError
from msprobe_core.model import Perturbation, PerturbMode, RoundingUnit

REQUEST_VARIABLE = "MSPROBE_PERTURB"

CALIBRATION_DIRECTORY = "calibration"
SHADOW_DIRECTORY = "shadow"
REPEATS_DIRECTORY = "repeats"


class RepetitionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The repetition that a process is to run.

    Attributes:
        number: From 1; also the seed of its perturbation.
        mode: See `Perturbation`.
        dtype: See `Perturbation`.
        golden: The directory of the golden run; ``None``: the one in the program's own configuration.
    """

    number: int
    mode: PerturbMode = PerturbMode.EVERYWHERE
    dtype: RoundingUnit | None = None
    golden: str | None = None

    def encoded(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()


def repetition_directory(golden: Path, number: int) -> Path:
    """Return the directory of repetition ``number``, from 1, of the run in ``golden``."""
    return golden / CALIBRATION_DIRECTORY / f"run{number}"


def repetition_of(config: Config, golden: Path, perturbation: Perturbation, number: int) -> Config:
    """Return the configuration of a repetition of the run that ``config`` records."""
    directory = repetition_directory(golden, number)
    return msgspec.structs.replace(config, dump_path=str(directory), perturb=perturbation, twin=None)


def as_repetition(config: Config) -> Config:
    """Return the configuration of the repetition that this process is to run; ``config`` if it is not to run one.

    Raises:
        ConfigError: the environment variable is not a valid request.
    """
    value = os.environ.get(REQUEST_VARIABLE, "").strip()
    if not value or value == "0":
        return config
    request = _read(value)
    golden = config.directory if request.golden is None else given_path(request.golden, REQUEST_VARIABLE)
    perturbation = Perturbation(seed=request.number, mode=request.mode, dtype=request.dtype)
    return repetition_of(config, golden, perturbation, request.number)


def _read(value: str) -> RepetitionRequest:
    try:
        if value.isdecimal():
            return RepetitionRequest(number=int(value))
        request = msgspec.json.decode(value, type=RepetitionRequest)
    except msgspec.MsgspecError as error:
        raise _refusal(value, str(error)) from error
    if request.number < 1:
        raise _refusal(value, "repetitions count from 1")
    return request


def _refusal(value: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the environment variable {REQUEST_VARIABLE} is {value!r} ({reason}); give the number of a repetition, from "
        "1, or unset it"
    )
