"""The noise profile of a golden run: floors of its rows, in one file next to its steps.

``noise_profile.parquet`` has one row per step, rank and row of the golden dump:

============  =======  ================================================================================
``step``      Int64
``rank``      Int64    -1 for a process outside of a job
``name``      String   row name in the golden dump
``flips``     UInt16   number of repetitions in which it broke a rule of exact equality, such as that of integers
``norm`` …    Float32  a column for each measure: the floor; null if unknown
``about``     String   JSON: version, repetitions, their perturbation, the distributions of scores, and the
                       identity of the dump; the same in all rows of a step and rank
============  =======  ================================================================================

The file is untrusted input: its size is bounded, its columns must have these types, and none of it is executed.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from msprobe_core.errors import CompareError, NoNoiseError
from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.noise.null_distribution import ScoreDistribution, ScoreDistributions
from msprobe_core.store import layout
from msprobe_core.untrusted.files import most_unfolded, open_plain
from msprobe_core.untrusted.parquet import check_parquet
from msprobe_core.untrusted.paths import source_of

PROFILE_FILE = "noise_profile.parquet"

VERSION = 1

MAX_BYTES = 16 << 30
"""Largest profile that is read."""

NO_RANK = -1

SCHEMA: Mapping[str, Any] = {
    "step": pl.Int64,
    "rank": pl.Int64,
    "name": pl.String,
    "flips": pl.UInt16,
    **{measure.value: pl.Float32 for measure in MEASURES},
    "about": pl.String,
}

_DUMPS = (layout.DUMP_FILE, layout.ARROW_DUMP_FILE, layout.DEBUG_FILE)
_STEP = re.compile(r"step(0|[1-9]\d{0,17})", re.ASCII)
_RANK = re.compile(r"rank(0|[1-9]\d{0,17})", re.ASCII)
_IDENTIFYING_BYTES = 1 << 16


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one dump in a profile.

    Attributes:
        version: Version of the file format.
        repeats: Number of repetitions.
        perturbation: Sentence on how they differ from the golden run.
        identity: Identity of the golden dump, see `identity_of`.
        nulls: Distributions of scores, by measure.
        parameters_vary: Whether the repetitions began with different parameters, as whole trainings do.
        masked_sizes: Whether errors of masked tensors are relative to their other elements, see
            `msprobe_core.judge.noise.masks`; false in profiles of former versions.
    """

    version: int
    repeats: int
    perturbation: str
    identity: str
    nulls: dict[str, ScoreDistribution]
    parameters_vary: bool = False
    masked_sizes: bool = False


@dataclass(frozen=True)
class UnitNoise:
    """The part of a profile for one dump.

    Attributes:
        rows: ``name``, ``flips`` and a column for each measure; names are unique.
        nulls: Distributions of scores.
        repeats: Number of repetitions.
        parameters_vary: Whether they began with different parameters.
        masked_sizes: Whether errors of masked tensors are relative to their other elements.
    """

    rows: pl.DataFrame
    nulls: ScoreDistributions
    repeats: int
    parameters_vary: bool
    masked_sizes: bool


@dataclass(frozen=True)
class NoiseProfile:
    """A profile on disk; the part for a dump is read when that dump is compared."""

    path: Path

    def unit(self, golden: Path) -> UnitNoise | str:
        """Return the noise of a golden dump, or the reason why there is none.

        Args:
            golden: Directory or file of the dump.

        Raises:
            CompareError: the file cannot be read, or is not a profile.
        """
        directory = golden.parent if golden.is_file() else golden
        place = place_of(directory)
        if place is None:
            return f"{directory} is not of one step and rank"
        found = self._read(*place)
        if not found.height:
            return f"{self.path.name} has nothing of {directory.parent.name}/{directory.name}"
        about = self._about(found["about"][0])
        if about.identity != identity_of(directory):
            return f"{self.path.name} is of another dump than {directory}; measure it again with msprobe calibrate"
        rows = found.unique("name", keep="first").select("name", "flips", *[measure.value for measure in MEASURES])
        return UnitNoise(rows, self._nulls(about), about.repeats, about.parameters_vary, about.masked_sizes)

    def _read(self, step: int, rank: int) -> pl.DataFrame:
        try:
            size = self._checked_size()
            table = pl.scan_parquet(source_of(self.path), glob=False)
            schema = table.collect_schema()
            if dict(schema) != dict(SCHEMA):
                raise self._no_profile("its columns are others")
            found = table.filter((pl.col("step") == step) & (pl.col("rank") == rank)).collect()
        except CompareError:
            raise
        except OSError as error:
            raise NoNoiseError(f"{self.path}: cannot be read ({error.strerror or error})") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
            raise self._no_profile(" ".join(str(error).split())[:200]) from error
        # Many rows may refer to the same long text.
        if (found["name"].str.len_bytes().sum() or 0) > most_unfolded(size):
            raise self._no_profile("its names are longer than those of a file of its length should be")
        return found

    def _checked_size(self) -> int:
        """Return the file's size in bytes, after a check that its headers do not declare an excessive unpacked size."""
        with open_plain(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise NoNoiseError(f"{self.path}: has {size:,} bytes, more than a noise profile; remove it")
            check_parquet(file)
        return size

    def _about(self, text: str | None) -> About:
        try:
            about = msgspec.json.decode(text or "", type=About)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._no_profile(str(error)) from error
        if about.version != VERSION:
            raise self._no_profile(f"its version is {about.version}, and {VERSION} is read")
        return about

    def _nulls(self, about: About) -> dict[Measure, ScoreDistribution]:
        known = {measure.value: measure for measure in MEASURES}
        for name, null in about.nulls.items():
            if name not in known or not (
                null.dof > 0 and null.factor > 0 and math.isfinite(null.factor + null.least + null.most)
            ):
                raise self._no_profile(f"it says nothing that can be of '{name}'")
        if missing := known.keys() - about.nulls.keys():
            raise self._no_profile(f"it says nothing of '{min(missing)}'")
        return {known[name]: null for name, null in about.nulls.items()}

    def _no_profile(self, reason: str) -> CompareError:
        return NoNoiseError(
            f"{self.path}: is no noise profile of this version ({reason}); measure it again with msprobe calibrate, or "
            "remove it"
        )


def find_profile(golden: Path) -> Path | None:
    """Return the path of the profile for a golden dump, step or run; ``None`` if there is none."""
    start = golden.parent if golden.is_file() else golden
    for directory in (start, *start.absolute().parents[:2]):
        path = directory / PROFILE_FILE
        if path.is_file():
            return path
    return None


def place_of(directory: Path) -> tuple[int, int] | None:
    """Return step and rank of a dump's directory from its name; ``None`` if the name does not have this form."""
    directory = directory.absolute()
    step, rank = _STEP.fullmatch(directory.parent.name), _RANK.fullmatch(directory.name)
    if step is None:
        return None
    return int(step[1]), NO_RANK if rank is None else int(rank[1])


def identity_of(directory: Path) -> str:
    """Return the identity of a dump: a hash of its file's size, beginning and end; empty without a file.

    Raises:
        CompareError: the file cannot be read.
    """
    for name in _DUMPS:
        path = directory / name
        try:
            with open_plain(path) as file:
                begin = file.read(_IDENTIFYING_BYTES)
                size = file.seek(0, 2)
                file.seek(max(0, size - _IDENTIFYING_BYTES))
                end = file.read(_IDENTIFYING_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NoNoiseError(f"{path}: cannot be read ({error.strerror})") from error
        return hashlib.blake2b(b"%d %b%b" % (size, begin, end), digest_size=16).hexdigest()
    return ""
