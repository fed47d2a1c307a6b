"""Compare gradients by the norms in the tables of the task ``grad_probe``, where signs were not recorded (level L0)."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.errors import DumpError
from msprobe_core.gradients.gradients_codes import GradientCode
from msprobe_core.gradients.lacking import Lacking
from msprobe_core.gradients.probe_layout import matched_ranks, matched_steps, summary_file, summary_steps, tabled_ranks
from msprobe_core.gradients.similarity import Agreement, Basis, GradientComparison
from msprobe_core.untrusted.files import read_plain

_MAX_BYTES = 256 << 20
_SIZE = re.compile(r"\d{1,18}", re.ASCII)
_NAME, _NORM, _SHAPE, _CHECKSUM = "param_name", "norm", "shape", "MD5"


@dataclass(frozen=True)
class _Row:
    norm: float
    num_elements: int
    checksum: str


def compare_norms(target: Path, golden: Path) -> GradientComparison:
    """Compare the norms of two trainings' gradients.

    Args:
        target: What was recorded of the training under test: the directory of all ranks, or of one.
        golden: That of the trusted one.

    Raises:
        DumpError: a directory cannot be read.
    """
    lacking = Lacking()
    lacking.note(GradientCode.NORMS_ALONE)
    agreements: list[Agreement] = []
    for rank, own, other in matched_ranks(tabled_ranks(target), tabled_ranks(golden), lacking):
        for step in matched_steps(rank, summary_steps(own), summary_steps(other), lacking):
            agreements += _of_step(rank, step, own, other, lacking)
    return GradientComparison(basis=Basis.NORMS, agreements=agreements, lacking=lacking.result())


def _of_step(rank: int, step: int, target: Path, golden: Path, lacking: Lacking) -> list[Agreement]:
    try:
        own, other = _rows(summary_file(target, step)), _rows(summary_file(golden, step))
    except DumpError as error:
        lacking.note(GradientCode.UNREADABLE, rank=rank, parameter=f"rank {rank}", step=step, why=str(error))
        return []
    for name in [*other, *own]:
        if name not in own or name not in other:
            lacking.note(GradientCode.PARAMETERS_MISSING, rank=rank, parameter=name, step=step)
    found: list[Agreement] = []
    for position, (name, one) in enumerate(other.items()):
        if name in own and own[name].num_elements == one.num_elements:
            found.append(_agreement(rank, step, name, position, own[name], one))
        elif name in own:
            sizes = {"own": own[name].num_elements, "other": one.num_elements}
            lacking.note(GradientCode.SIZE_DIFFERS, rank=rank, parameter=name, step=step, **sizes)
    return found


def _agreement(rank: int, step: int, name: str, position: int, own: _Row, other: _Row) -> Agreement:
    return Agreement(
        rank=rank, step=step, parameter=name, position=position, num_elements=other.num_elements,
        similarity=math.nan, num_counted=0, counted_similarity=math.nan, norm_ratio=_ratio(own, other),
    )  # fmt: skip


def _ratio(own: _Row, other: _Row) -> float:
    """Return the target's norm over the golden one: 1 of equal ones, NaN if only one of them is finite."""
    if (own.checksum and own.checksum == other.checksum) or own.norm == other.norm:
        return 1.0
    if math.isnan(own.norm) and math.isnan(other.norm):
        return 1.0
    if not (math.isfinite(own.norm) and math.isfinite(other.norm)):
        return math.nan
    return own.norm / other.norm if other.norm else math.inf


def _rows(path: Path) -> Mapping[str, _Row]:
    """Return the rows of a table by parameter, in its order.

    Raises:
        DumpError: it cannot be read, or is no such table.
    """
    try:
        text = read_plain(path, _MAX_BYTES).decode("utf-8", "replace")
        table = list(csv.DictReader(io.StringIO(text)))
    except (OSError, csv.Error) as error:
        raise DumpError(f"{path}: cannot be read ({error})") from error
    found: dict[str, _Row] = {}
    for number, cells in enumerate(table, 2):
        name, norm, shape = (cells.get(column) for column in (_NAME, _NORM, _SHAPE))
        if not name or norm is None or shape is None:
            raise DumpError(f"{path}: line {number} has no {_NAME}, {_NORM} or {_SHAPE}; it is no table of gradients")
        try:
            value = float(norm or "nan")
        except ValueError:
            raise DumpError(f"{path}: line {number} has the norm {norm[:40]!r}, which is no number") from None
        sizes = [int(each) for each in _SIZE.findall(shape)]
        found[name] = _Row(value, math.prod(sizes), cells.get(_CHECKSUM) or "")
    if not found:
        raise DumpError(f"{path}: has no rows")
    return found
