"""Outputs of modules in one stage, by sample and position, however the stage cut and ordered its batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from msprobe_core.compare.layouts.serving import served_path
from msprobe_core.errors import CompareError, DumpError, EntryNameError, NothingInCommonError
from msprobe_core.model import Phase, Role, SiteKind
from msprobe_core.names import parse_entry
from msprobe_core.protocols.storage import Dump
from msprobe_core.rl.module_maps import FSDP, MEGATRON
from msprobe_core.rl.recorded import RecordedRun
from msprobe_core.store import BatchLayout, CallPhase, Row, StageSamples, read_whole
from msprobe_core.store.frame import RowKind

Array: TypeAlias = NDArray[Any]

_CACHE_BYTES = 512 << 20
"""Bytes of tensors kept in memory, since one call's tensor has many samples."""


@dataclass(frozen=True)
class Place:
    """Location of some positions of a sample.

    Attributes:
        rank: Index of the dump: of the rank, or of one of another step.
        call: Index of the call.
        layout: Layout of the call.
        phase: Phase of the call.
        num_rows: Number of samples in the call.
        row: Location within the call.
    """

    rank: int
    call: int
    layout: BatchLayout
    phase: CallPhase
    num_rows: int
    row: Row


@dataclass(frozen=True)
class ModuleValue:
    """One value of a module's calls.

    Attributes:
        path: Path of the module; empty for the outermost.
        type_name: Its class.
        role: ``input`` or ``output``.
        place: Position in the call, such as ``0``.
        parts: For values that the other side has as one, such as the projections of an attention: the values of which
            it consists, along the last dimension.
    """

    path: str
    type_name: str
    role: str
    place: str
    parts: tuple[ModuleValue, ...] = ()


@dataclass(frozen=True)
class Positions:
    """A module's values at some positions of a sample.

    Attributes:
        number: Indices of the positions in the sample, ascending, ``[n]``.
        is_decoded: Whether each was decoded, rather than part of a prompt, ``[n]``.
        values: ``[n, …]``.
    """

    number: Array
    is_decoded: Array
    values: Array

    def at(self, number: Array) -> Positions:
        """Return the values at some positions, all of which must exist."""
        places = np.searchsorted(self.number, number)
        return Positions(number, self.is_decoded[places], self.values[places])


def _side_by_side(parts: Sequence[Positions]) -> Positions:
    common = parts[0].number
    for part in parts[1:]:
        common = np.intersect1d(common, part.number, assume_unique=True)
    own = [part.at(common) for part in parts]
    return Positions(common, own[0].is_decoded, np.concatenate([part.values for part in own], axis=-1))


@dataclass(frozen=True)
class _Stored:
    """One tensor of one call."""

    file_name: str
    dtype: str


class StatisticsOnlyError(CompareError):
    """A stage has statistics but no tensors; callers may compare those instead."""


class StageTensors:
    """The tensors of one stage of one step.

    Attributes:
        label: Name in messages.
        places: Locations of each sample, by its id, in the order of the calls.
        values: Outputs of modules, in the order in which their first calls ended.
    """

    def __init__(
        self,
        run: RecordedRun,
        stage: str,
        step: int,
        *,
        minis: Collection[int] | None = None,
        also: Collection[int] = (),
    ) -> None:
        """Read descriptions; elements are read on demand.

        Args:
            run: The recorded run.
            stage: Name of the stage.
            step: The trainer's step.
            minis: Mini-batches to use; all by default.
            also: Earlier steps with further samples of this one.

        Raises:
            StatisticsOnlyError: the stage has no tensors.
            CompareError: it has no samples, or no values of modules.
            DumpError: a file cannot be read.
        """
        self.label = f"{stage} of step {step} in {run.path}"
        samples = {
            (number, rank): own
            for number in dict.fromkeys([step, *sorted(also, reverse=True)])
            for rank, own in sorted(run.samples(stage, number).items())
        }
        if not samples:
            raise CompareError(f"{self.label}: there is no samples.json, so it is unknown which sample is which")
        self.places: dict[str, list[Place]] = {}
        steps: dict[str, int] = {}
        for unit, ((number, _), own) in enumerate(samples.items()):
            for place in self._places_in(own, unit, minis):
                if steps.setdefault(place.row.id, number) == number:  # the same tokens may be of an earlier policy too
                    self.places.setdefault(place.row.id, []).append(place)
        directories = [run.ranks(stage, number)[rank] for number, rank in samples]
        self._dumps: dict[int, Dump] = {unit: run.dump(directory) for unit, directory in enumerate(directories)}
        self._stored: dict[ModuleValue, dict[tuple[int, int], _Stored]] = {}
        self.has_statistics = False
        for rank, dump in self._dumps.items():
            self._index(rank, dump)
        if not self._stored:
            what = (
                "statistics only, which are of whole micro-batches" if self.has_statistics else "no outputs of modules"
            )
            kind = StatisticsOnlyError if self.has_statistics else CompareError
            raise kind(
                f"{self.label}: holds {what}; to compare samples that are cut and ordered differently, record the "
                'stage at level L0 or mix with "task": "tensor"'
            )
        self._cache: OrderedDict[tuple[int, str], Array] = OrderedDict()
        self._cached_bytes = 0

    def _places_in(self, samples: StageSamples, unit: int, minis: Collection[int] | None) -> Iterator[Place]:
        for call in samples.micro_batches:
            if minis is not None and call.mini not in minis:
                continue
            for row in call.rows:
                if min(row.row, row.offset, row.length, row.start) < 0:
                    raise DumpError(f"{self.label}: samples.json has a negative place of sample {row.id}")
                yield Place(unit, call.call, call.layout, call.phase, len(call.rows), row)

    @property
    def values(self) -> list[ModuleValue]:
        """Outputs of modules, in the order in which their first calls ended."""
        return [value for value in self._stored if value.role == Role.OUTPUT.value]

    def dtype(self, value: ModuleValue) -> str:
        """Return the dtype of a value in its first call."""
        return next(iter(self._stored[(value.parts or (value,))[0]].values())).dtype

    def has(self, value: ModuleValue) -> bool:
        """Whether the value exists."""
        return value in self._stored

    def _index(self, rank: int, dump: Dump) -> None:
        rows = dump.frame.filter(
            (pl.col("kind") == RowKind.TENSOR.value)
            & (pl.col("phase") == Phase.FORWARD.value)
            & pl.col("role").is_in([Role.OUTPUT.value, Role.INPUT.value])
        )
        columns = ("entry", "key", "role", "dtype", "file_name")
        sites: dict[str, tuple[str, str, int] | None] = {}
        for entry, key, role, dtype, file_name in rows.select(columns).iter_rows():
            if entry not in sites:
                sites[entry] = module_of(entry)
            site = sites[entry]
            if site is None:
                continue
            if file_name is None:
                self.has_statistics = True
                continue
            path, type_name, index = site
            place = key.removeprefix(f"{entry}.{role}.")
            value = ModuleValue(path, type_name, role, place)
            stored = _Stored(file_name, str(dtype))
            self._stored.setdefault(value, {})[rank, index] = stored

    def gather(self, value: ModuleValue, sample: str) -> Positions:
        """Return a module's values at the positions of a sample.

        Positions without a value, such as those of an engine that returns only the last logits, are left out. If a
        position occurs several times, the first value is returned.

        Raises:
            DumpError: a tensor cannot be read.
        """
        if value.parts:
            return _side_by_side([self.gather(part, sample) for part in value.parts])
        numbers: list[Array] = []
        decoded: list[Array] = []
        values: list[Array] = []
        for place in self.places.get(sample, ()):
            stored = self._stored[value].get((place.rank, place.call))
            part: Any = None if stored is None else _part(self._read(place.rank, stored), place)
            if part is None or (values and part.shape[1:] != values[0].shape[1:]):
                continue
            count = int(part.shape[0])
            numbers.append(np.arange(place.row.start, place.row.start + count))
            decoded.append(np.full(count, place.phase is CallPhase.DECODE))
            values.append(part)
        if not values:
            return Positions(np.empty(0, np.int64), np.empty(0, bool), np.empty(0))
        number, first = np.unique(np.concatenate(numbers), return_index=True)
        return Positions(number, np.concatenate(decoded)[first], np.concatenate(values)[first])

    def _read(self, rank: int, stored: _Stored) -> Array:
        key = rank, stored.file_name
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        whole = read_whole(self._dumps[rank].open_tensor(stored.file_name))
        self._cache[key] = whole
        self._cached_bytes += whole.nbytes
        while self._cached_bytes > _CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        return whole

    def micro_batches(self) -> dict[str, tuple[int, ...]]:
        """Return for each sample the sizes, in samples, of the micro-batches that it is in."""
        sizes: dict[tuple[int, int], int] = {}
        for places in self.places.values():
            for place in places:
                sizes[place.rank, place.call] = sizes.get((place.rank, place.call), 0) + 1
        return {
            sample: tuple(sizes[place.rank, place.call] for place in places) for sample, places in self.places.items()
        }


def module_of(entry: str) -> tuple[str, str, int] | None:
    """Return path, class and index of a module's call; ``None`` for other entries."""
    try:
        site = parse_entry(entry)
    except EntryNameError:
        return None
    return (site.path, site.type_name, site.index) if site.kind is SiteKind.MODULE else None


def _part(whole: Any, place: Place) -> Array | None:
    """Return ``[positions, …]`` of a sample; ``None`` if the tensor has no such positions."""
    row = place.row
    end = row.offset + row.length
    if place.layout is BatchLayout.PACKED:
        # [1, tokens, …] from a trainer, [tokens, …] from a router.
        if whole.ndim >= 2 and whole.shape[0] == 1 and whole.shape[1] >= end:
            return whole[0, row.offset : end]
        return whole[row.offset : end] if whole.ndim >= 1 and whole.shape[0] >= end else None
    if place.layout is BatchLayout.REQUEST and whole.ndim == 2 and not row.row and whole.shape[0] >= end:
        return whole[row.offset : end]  # from an engine that packs requests, or from a router
    if whole.ndim >= 1 and whole.shape[0] > place.num_rows and not whole.shape[0] % place.num_rows:
        whole = whole.reshape(place.num_rows, -1, *whole.shape[1:])  # routers have one dimension for rows and positions
    if whole.ndim < 2 or whole.shape[0] <= row.row or whole.shape[1] < end:
        return None
    return whole[row.row, row.offset : end]


def common_samples(target: StageTensors, golden: StageTensors) -> list[str]:
    """Return the samples that both stages have, in the target's order.

    Raises:
        CompareError: there is none.
    """
    found = [sample for sample in target.places if sample in golden.places]
    if not found:
        raise NothingInCommonError(
            f"{target.label} and {golden.label} have no sample in common: none of {len(target.places)} and "
            f"{len(golden.places)} has the same token ids; are they of the same step, and was nothing retokenised?"
        )
    return found


def matched(target: StageTensors, golden: StageTensors) -> Sequence[tuple[ModuleValue, ModuleValue]]:
    """Return the outputs that both stages have, in the order of the target: modules are paired by path, of any class.

    A serving engine may have other names, and one module for several: see `msprobe_core.rl.module_maps`.
    """
    others = {(value.path, value.place): value for value in golden.values}
    own = {(value.path, value.place) for value in target.values}
    lone = [value for value in target.values if (value.path, value.place) not in others]
    served = {_served(value): value for value in golden.values if (value.path, value.place) not in own}
    wholes = {_served(value): value for value in lone}
    of_target = _made_up(lone, served)
    of_golden = {whole: parts for parts, whole in _made_up(list(served.values()), wholes).values()}
    found: list[tuple[ModuleValue, ModuleValue]] = []
    for value in target.values:
        partner = others.get((value.path, value.place)) or served.get(_served(value)) or of_golden.get(value)
        if partner is not None:
            found.append((value, partner))
        elif value in of_target:
            found.append(of_target[value])
    return found


def _served(value: ModuleValue) -> tuple[str, str]:
    path = served_path(served_path(value.path, FSDP), MEGATRON)
    # Megatron stores these elements in another order, which only a comparison of statistics tolerates.
    is_reordered = path != value.path and path.rpartition(".")[2] in MEGATRON.reordered
    return value.path if is_reordered and value.path.endswith("linear_qkv") else path, value.place


def _made_up(
    values: Sequence[ModuleValue], wholes: Mapping[tuple[str, str], ModuleValue]
) -> dict[ModuleValue, tuple[ModuleValue, ModuleValue]]:
    """Return, by the last of its parts, each value that consists of several, and its counterpart on the other side."""
    by_path = {_served(value): value for value in values}
    found: dict[ModuleValue, tuple[ModuleValue, ModuleValue]] = {}
    for (path, place), whole in wholes.items():
        parent, _, name = path.rpartition(".")
        parts = [by_path.get((f"{parent}.{part}", place)) for part in FSDP.fused.get(name, ())]
        known = tuple(part for part in parts if part is not None)
        if parts and len(known) == len(parts):
            made = ModuleValue(f"{known[0].path.rpartition('.')[0]}.{name}", whole.type_name, whole.role, place, known)
            last = max(known, key=values.index)
            found[last] = made, whole
    return found
