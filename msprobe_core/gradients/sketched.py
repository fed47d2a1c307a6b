"""Compare gradients by the sketches that a training monitor has kept of them: 256 bytes for each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.fingerprint.distance import SIZE_BYTES, decoded
from msprobe_core.fingerprint.sketch import SIZE
from msprobe_core.gradients.gradients_codes import GradientCode
from msprobe_core.gradients.similarity import Agreement, Basis, GradientComparison
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.monitoring.rank_directories import rank_of_directory
from msprobe_core.monitoring.sketch_files import SketchedTensor, read_sketch_file, sketch_file_range

_SPREAD = math.sqrt(2 / SIZE)
"""Largest relative standard deviation of a squared distance, see `msprobe_core.fingerprint.distance`."""

_QUANTITIES = (Quantity.GRADIENT_REDUCED, Quantity.GRADIENT_UNREDUCED)
"""Compared is the first of which there are sketches."""

_RESOLUTION = 2.0**-23


@dataclass(frozen=True)
class Cosine:
    """An estimated cosine.

    Attributes:
        value: Between -1 and 1.
        error: Its standard error, which is smaller the nearer the cosine is to 1 or -1: 0.177 of that distance.
    """

    value: float
    error: float


def cosine(target: bytes, golden: bytes, target_norm: float, golden_norm: float) -> Cosine:
    """Estimate the cosine of two tensors from their sketches and norms.

    Of tensors with norm 1, the squared distance is ``2 - 2 cos`` and that of one to the negative of the other
    ``2 + 2 cos``. The smaller one is estimated with the smaller error.

    Args:
        target: 64 little-endian float32.
        golden: The same of the other tensor.
        target_norm: Euclidean norm of the whole tensor.
        golden_norm: The same of the other.

    Returns: 1 of two tensors of zeros, 0 if only one is zero; NaN if anything is not finite.
    """
    if not target_norm and not golden_norm:
        return Cosine(1.0, 0.0)
    if not target_norm or not golden_norm:
        return Cosine(0.0, 0.0)
    own, other = decoded([target, golden]).astype(np.float64)
    with np.errstate(all="ignore"):
        one, another = own / target_norm, other / golden_norm
        apart, opposite = float(((one - another) ** 2).sum()), float(((one + another) ** 2).sum())
    nearest = min(apart, opposite) / 2
    if not math.isfinite(nearest):
        return Cosine(math.nan, math.nan)
    nearest = 0.0 if nearest < _RESOLUTION**2 else min(nearest, 1.0)
    return Cosine(1 - nearest if apart <= opposite else nearest - 1, _SPREAD * nearest)


def agreement_of(estimate: Cosine) -> tuple[float, float]:
    """Return the share of elements with equal signs, and its standard error.

    Elements are assumed to be jointly normally distributed with mean 0; the share is then ``1 - arccos(cos) / pi``.
    Source: Sheppard, *On the application of the theory of error to cases of normal distribution and normal
    correlation*, 1899.
    """
    if math.isnan(estimate.value):
        return math.nan, math.nan
    angle = math.acos(max(-1.0, min(1.0, estimate.value)))
    return 1 - angle / math.pi, estimate.error / (math.pi * math.sin(angle)) if 0 < angle < math.pi else 0.0


@dataclass(frozen=True)
class _Sketch:
    tensor: SketchedTensor
    sketch: bytes
    norm: float


_Place = tuple[int, int, int, str]
"""Rank, step, position of the model, name."""


def sketched_ranks(path: Path) -> dict[int, list[Path]]:
    """Return the files of sketches in a monitor's directory, by rank; empty if there are none."""
    found: dict[int, list[Path]] = {}
    try:
        directories = [path, *sorted(each for each in path.iterdir() if each.is_dir())]
        for directory in directories:
            rank = rank_of_directory(directory.resolve().name)
            files = [] if rank is None else [each for each in directory.iterdir() if sketch_file_range(each.name)]
            if rank is not None and files:
                found.setdefault(rank, []).extend(
                    sorted(files, key=lambda each: sketch_file_range(each.name) or (0, 0))
                )
    except (OSError, ValueError):
        return {}
    return found


def compare_sketches(target: Path, golden: Path) -> GradientComparison:
    """Compare the gradients of two monitored trainings.

    Args:
        target: Directory of the monitor of the training under test.
        golden: That of the trusted one.

    Raises:
        DumpError: a file is damaged, or there are no sketches of the same quantity.
    """
    own, other = _gradients(target), _gradients(golden)
    quantity = next((each for each in _QUANTITIES if own.get(each) and other.get(each)), None)
    if quantity is None:
        raise DumpError(f"{target} and {golden} have sketches of different gradients; monitor both alike")
    mine, theirs = own[quantity], other[quantity]
    lacking = [Finding(GradientCode.ESTIMATED)]
    ranks, others = ({place[0] for place in each} for each in (mine, theirs))
    if ranks ^ others:
        lacking.append(Finding.of(GradientCode.RANK_MISSING, ranks=sorted(ranks ^ others)))
    positions: dict[tuple[int, int, str], int] = {}
    found: list[Agreement] = []
    for place, sketch in theirs.items():
        rank, step, stage, name = place
        position = positions.setdefault((rank, stage, name), len(positions))
        if place in mine:
            found.append(_agreement(mine[place], sketch, rank, step, f"{stage}:{name}" if stage else name, position))
    for rank in sorted(ranks & others):
        lacking += _missing(
            {each for each in mine if each[0] == rank} ^ {each for each in theirs if each[0] == rank}, rank
        )
    found.sort(key=lambda each: (each.rank, each.step, each.position))
    return GradientComparison(basis=Basis.SKETCHES, agreements=found, lacking=lacking)


def _missing(places: set[_Place], rank: int) -> Iterator[Finding]:
    if places:
        _, step, _, name = min(places, key=lambda each: each[1:])
        yield Finding.of(GradientCode.PARAMETERS_MISSING, count=len(places), rank=rank, parameter=name, step=step)


def _gradients(path: Path) -> dict[Quantity, dict[_Place, _Sketch]]:
    found: dict[Quantity, dict[_Place, _Sketch]] = {}
    for rank, files in sketched_ranks(path).items():
        for file in files:
            content = read_sketch_file(file)
            for number, (step, place) in enumerate(zip(content.steps, content.places, strict=True)):
                tensor = content.tensors[place]
                begin = number * SIZE_BYTES
                sketch = _Sketch(tensor, content.sketches[begin : begin + SIZE_BYTES], content.norms[number])
                found.setdefault(tensor.quantity, {})[rank, step, tensor.stage, tensor.name] = sketch
    return found


def _agreement(own: _Sketch, other: _Sketch, rank: int, step: int, name: str, position: int) -> Agreement:
    estimate = cosine(own.sketch, other.sketch, own.norm, other.norm)
    similarity, error = agreement_of(estimate)
    return Agreement(
        rank=rank,
        step=step,
        parameter=name,
        position=position,
        num_elements=other.tensor.num_elements,
        similarity=similarity,
        num_counted=other.tensor.num_elements,
        counted_similarity=similarity,
        cosine=estimate.value,
        cosine_error=estimate.error,
        error=error,
        norm_ratio=own.norm / other.norm if other.norm else None,
    )
