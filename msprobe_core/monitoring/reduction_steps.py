"""Sketches of gradients of all ranks, put together step by step for the check of their reduction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import DumpError, MissingDumpError
from msprobe_core.fingerprint.distance import SIZE_BYTES, decoded
from msprobe_core.fingerprint.sketch import SIZE
from msprobe_core.monitoring.layout_file import Layouts
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.monitoring.rank_directories import rank_of_directory
from msprobe_core.monitoring.reduction_codes import ReductionCode
from msprobe_core.monitoring.sketch_files import SketchedTensor, read_sketch_file, sketch_file_range
from msprobe_core.monitoring.whole_norms import layouts_of

Floats = NDArray[np.float64]


class Parameter(NamedTuple):
    """A parameter of a model."""

    stage: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One parameter in one step.

    Attributes:
        step: Number of the step.
        parameter: Whose gradient it is.
        ranks: That are expected to reduce it together.
        own: Sketches of what each of these ranks has accumulated, ``[ranks, 64]``; zeros where there was no gradient.
        reduced: Sketches of what each of them has afterwards, ``[ranks, 64]``.
        norms: Euclidean norms of ``own``'s gradients, ``[ranks]``.
        num_elements: Of the gradient.
        dtype: Of the reduced gradient.
    """

    step: int
    parameter: Parameter
    ranks: tuple[int, ...]
    own: Floats
    reduced: Floats
    norms: Floats
    num_elements: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """A parameter in one step that cannot be judged.

    Attributes:
        step: Number of the step.
        parameter: Whose gradient it is.
        ranks: That have it.
        code: Why.
    """

    step: int
    parameter: Parameter
    ranks: tuple[int, ...]
    code: ReductionCode


@dataclass
class _Kept:
    """What one rank has kept of one parameter in one step."""

    by_quantity: dict[Quantity, _Gradient] = field(default_factory=dict[Quantity, "_Gradient"])


class _Gradient(NamedTuple):
    tensor: SketchedTensor
    sketch: Floats
    norm: float


_Ranks = dict[int, _Kept]


class SketchedRun:
    """The sketches of a training; read again whenever they are iterated over, a range of steps at a time."""

    def __init__(self, path: Path, groups: Sequence[Sequence[int]] = ()) -> None:
        """Find the files.

        Args:
            path: A directory with one directory per rank.
            groups: Ranks that reduce gradients together; without any, those of ``layout.json``, else all that have a
                parameter.

        Raises:
            DumpError: there are none, or they are of one rank only, or ranks of a group are missing.
        """
        self._groups = [tuple(sorted(group)) for group in groups]
        self._layouts: Mapping[int, Layouts] = {} if groups else layouts_of(path)
        self._files: list[tuple[int, int, Path]] = []
        self.ranks: tuple[int, ...] = ()
        found = [(rank, each) for each in _children(path) if (rank := rank_of_directory(each.name)) is not None]
        members = {rank for group in self._groups for rank in group}
        ranks: set[int] = set()
        for rank, directory in sorted(found):
            if members and rank not in members:
                continue
            for file in _children(directory):
                if (steps := sketch_file_range(file.name)) is not None:
                    self._files.append((*steps, file))
                    ranks.add(rank)
        self.ranks = tuple(sorted(ranks))
        self._check(path)

    def _check(self, path: Path) -> None:
        if not self._files:
            raise MissingDumpError(
                f'{path}: holds no sketches of gradients; collect them with "msprobe": {{"sketch": "grad"}} in the '
                "monitor's configuration, and give the directory that MONITOR_OUTPUT_DIR named"
            )
        expected = {rank for group in self._groups for rank in group} or set(range(self.ranks[-1] + 1))
        if missing := sorted(expected - set(self.ranks)):
            raise DumpError(
                f"{path}: has no sketches of rank {missing[0]}; collect all ranks of a data-parallel group (without "
                "'module_ranks'), or name those that are a group with --group"
            )
        if len(self.ranks) == 1:
            raise DumpError(f"{path}: holds sketches of one rank, which reduces nothing; give all ranks' directories")

    def __iter__(self) -> Iterator[list[Case | Unjudged]]:
        """Yield the parameters of each step, in the order of the steps.

        Raises:
            DumpError: a file cannot be read.
        """
        for files in self._ranges():
            steps: dict[int, dict[Parameter, _Ranks]] = {}
            for file in files:
                _add(file, steps)
            for step in sorted(steps):
                yield [case for parameter, kept in steps[step].items() for case in self._cases(step, parameter, kept)]

    def _ranges(self) -> Iterator[list[Path]]:
        """Yield the files of all ranks for one range of steps after the other."""
        files: list[Path] = []
        end = -1
        for first, last, path in sorted(self._files):
            if files and first > end:
                yield files
                files = []
            files.append(path)
            end = max(end, last)
        yield files

    def _cases(self, step: int, parameter: Parameter, kept: Mapping[int, _Kept]) -> Iterator[Case | Unjudged]:
        for group in self._groups or self._groups_in_layouts(parameter, sorted(kept)):
            members = [rank for rank in group if rank in kept]
            if members:
                yield _case(step, parameter, group, {rank: kept[rank] for rank in members})

    def _groups_in_layouts(self, parameter: Parameter, holding: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the ranks that reduce a parameter together; those of which that is not known are one group."""
        found: set[tuple[int, ...]] = set()
        for rank in holding:
            layout = self._layouts.get(rank)
            ranks = () if layout is None else layout.reducing(f"{parameter.stage}:{parameter.name}")
            if rank in ranks:
                found.add(tuple(sorted(ranks)))
        rest = tuple(rank for rank in holding if not any(rank in group for group in found))
        return [*sorted(found), *([rest] if rest else [])]


def _case(step: int, parameter: Parameter, group: tuple[int, ...], kept: Mapping[int, _Kept]) -> Case | Unjudged:
    def unjudged(code: ReductionCode) -> Unjudged:
        return Unjudged(step=step, parameter=parameter, ranks=tuple(kept), code=code)

    if len(group) == 1:
        return unjudged(ReductionCode.ONE_RANK)
    own = [kept[rank].by_quantity.get(Quantity.GRADIENT_UNREDUCED) if rank in kept else None for rank in group]
    reduced = [kept[rank].by_quantity.get(Quantity.GRADIENT_REDUCED) if rank in kept else None for rank in group]
    sums = _sums(own, reduced)
    if isinstance(sums, ReductionCode):
        return unjudged(sums)
    parts = np.stack([np.zeros(SIZE) if each is None else each.sketch for each in own])
    if not np.isfinite(parts).all():
        return unjudged(ReductionCode.NOT_FINITE)
    (tensor, *_) = [each.tensor for each in own if each is not None]
    if tensor.begin is not None and (parts == sums).all():  # what is accumulated has been reduced
        return unjudged(ReductionCode.SHARDED)
    norms = np.array([0.0 if each is None else each.norm for each in own])
    return Case(
        step=step,
        parameter=parameter,
        ranks=tuple(group),
        own=parts,
        reduced=sums,
        norms=np.where(np.isfinite(norms), norms, np.linalg.norm(parts, axis=1)),
        num_elements=tensor.num_elements,
        dtype=next(each.tensor.dtype for each in reduced if each is not None),
    )


def _sums(own: Sequence[_Gradient | None], reduced: Sequence[_Gradient | None]) -> Floats | ReductionCode:
    """Return the sketches of what each rank has reduced, ``[ranks, 64]``, or why they cannot be compared."""
    extents = {(each.tensor.begin, each.tensor.num_elements) for each in own if each is not None}
    kept = {(each.tensor.begin, each.tensor.num_elements) for each in reduced if each is not None}
    if len(extents) > 1:
        return ReductionCode.SHARDED
    if not kept or (kept <= extents and None in reduced):
        return ReductionCode.RANK_LACKS
    if not extents:
        return ReductionCode.NOT_ACCUMULATED
    if kept == extents:
        return np.stack([each.sketch for each in reduced if each is not None])
    ((_, num_elements),) = extents
    wholes = _wholes(reduced, num_elements)
    return ReductionCode.SHARDED if wholes is None else wholes


def _wholes(slices: Sequence[_Gradient | None], num_elements: int) -> Floats | None:
    """Return for each rank the sum of the slices that it and others have of a gradient; ``None`` if they make no whole.

    Sketches of slices are made of their places in the whole, so that they add up. If several ranks have the same slice,
    as with a mesh of replicas and shards, the first of each slice make one whole, the second ones another. A rank may
    have none of a short gradient.
    """
    holders: dict[tuple[int, ...], list[int]] = {}
    for place, each in enumerate(slices):
        if each is not None:
            holders.setdefault(each.tensor.begin or (), []).append(place)
    (count, *others) = {len(places) for places in holders.values()}
    total = sum(each.tensor.num_elements for each in slices if each is not None)
    if others or () in holders or total != count * num_elements:
        return None
    of_rank = {place: number for places in holders.values() for number, place in enumerate(places)}
    sums = [sum((_sketch(slices[places[i]]) for places in holders.values()), np.zeros(SIZE)) for i in range(count)]
    return np.stack([sums[of_rank.get(place, place * count // len(slices))] for place in range(len(slices))])


def _sketch(each: _Gradient | None) -> Floats:
    return np.zeros(SIZE) if each is None else each.sketch


def _add(path: Path, steps: dict[int, dict[Parameter, _Ranks]]) -> None:
    content = read_sketch_file(path)
    count = len(content.steps)
    sketches = decoded([content.sketches[i * SIZE_BYTES : (i + 1) * SIZE_BYTES] for i in range(count)])
    rows = zip(content.steps, content.places, content.norms, sketches.astype(np.float64), strict=True)
    for step, place, norm, sketch in rows:
        tensor = content.tensors[place]
        ranks = steps.setdefault(step, {}).setdefault(Parameter(tensor.stage, tensor.name), {})
        ranks.setdefault(content.rank, _Kept()).by_quantity[tensor.quantity] = _Gradient(tensor, sketch, norm)


def _children(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except NotADirectoryError:
        return []
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
