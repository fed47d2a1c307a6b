"""Checkpoints with a file or directory for each rank, whose layout a layout file declares."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.checkpoint.contents import Kind, LogicalTensor
from msprobe_core.checkpoint.directory import Draft
from msprobe_core.checkpoint.optimizer_names import state_name
from msprobe_core.checkpoint.pieces import damaged
from msprobe_core.checkpoint.rank_parts import (
    Chunk,
    Grid,
    Holder,
    Part,
    add_states,
    add_unnamed,
    experts_are_local,
    global_name,
    note_missing,
    put_together,
)
from msprobe_core.compare.layouts.rules import LayoutRules, PlacementRule, Ranks, Side
from msprobe_core.errors import DumpError, clip
from msprobe_core.protocols.storage import TensorSource

_RANK = re.compile(r"rank[_-]?(\d{1,6})")
_NUMBER = re.compile(r"\d{1,6}")
_VIRTUAL = re.compile(r"model(\d{1,3})\.(.+)")
_OF_MODEL = "_model_states.pt"
"""Ending of DeepSpeed's files of a model parallel rank; its others are of optimizers that are divided once more."""


@dataclass(frozen=True)
class RankLayout:
    """What a layout file says of the ranks of one side.

    Attributes:
        ranks: Their arrangement.
        rules: How they share parameters, where built-in rules do not say it, or say otherwise.
    """

    ranks: Ranks
    rules: tuple[PlacementRule, ...] = ()

    def size_of(self, axis: str) -> int:
        """Return the number of ranks along an axis."""
        groups = self.ranks.groups.get(axis)
        return dict(self.ranks.sizes).get(axis, 1) if groups is None else max(map(len, groups), default=1)


def layout_of(rules: LayoutRules, side: Side) -> RankLayout | None:
    """Return what a layout file says of the ranks of a side; ``None`` if nothing."""
    ranks = rules.ranks.get(side)
    return None if ranks is None else RankLayout(ranks, rules.placements)


def open_declared(path: Path, layout: RankLayout, endings: Sequence[str], opened: Callable[[Path], Draft]) -> Draft:
    """Return the checkpoint that the files or directories of several ranks are.

    Args:
        path: The directory that has them.
        layout: Their layout.
        endings: Endings of files of tensors.
        opened: Opens the file or directory of one rank.

    Raises:
        DumpError: the ranks are not those that the layout declares, or none of them can be read.
    """
    files = files_of_ranks(path, endings)
    _check_ranks(path, files, layout)
    drafts = {Holder(file, layout.ranks.place_of(rank)): opened(file) for rank, file in files.items()}
    first = next(iter(drafts.values()))
    draft = Draft(path, first.form, settings=first.settings, step=first.step)
    for own in drafts.values():
        draft.files |= own.files
        draft.notes += [each for each in own.notes if each not in draft.notes]
    chunks = [chunk for holder, own in drafts.items() for chunk in _chunks(draft, holder, own)]
    axes = ("dp", "cp")
    grid = Grid(
        tp=layout.size_of("tp"),
        pp=layout.size_of("pp"),
        ep=layout.size_of("ep"),
        replicas=tuple(axis for axis in axes if layout.size_of(axis) > 1),
        experts_are_local=experts_are_local(chunks),
        first_layers=layout.ranks.first_layers,
        rules=layout.rules,
    )
    note_missing(draft, list(drafts), grid)
    together = put_together(draft, chunks, grid)
    _add_aliases(draft, drafts, chunks, together.names)
    states: dict[tuple[str, str], list[Part]] = {}
    for holder, own in drafts.items():
        for tensor in own.tensors.values():
            source = _source(tensor)
            if source is None or tensor.kind not in (Kind.MOMENT, Kind.MASTER):
                continue
            named, _, what = tensor.name.removeprefix(state_name("", "")[:-1]).rpartition(".")
            virtual, local = _split(named)
            stages = [chunk.virtual for chunk in chunks if chunk.rank == holder and local in chunk.tensors]
            name = global_name(local, together.names[holder].get(local, ()), virtual, stages)
            if name is None:
                add_unnamed(draft, state_name(f"{grid.label(holder)}.{named}", what), source, holder, grid)
            else:
                states.setdefault((name, what), []).append(Part(name, source, holder, local))
    add_states(draft, states, together, grid)
    for tensor in first.tensors.values():
        if tensor.kind is Kind.STATE and tensor.name not in draft.tensors:
            draft.add(tensor)
    return draft


def files_of_ranks(path: Path, endings: Sequence[str]) -> dict[int, Path]:
    """Return the files or directories of a directory that have the number of a rank in their names, by rank.

    Raises:
        DumpError: there are none, or two of one rank.
    """
    entries = sorted(path.iterdir())
    files = [each for each in entries if each.name.endswith(tuple(endings)) and each.is_file()]
    files = [each for each in files if each.name.endswith(_OF_MODEL)] or files
    directories = [each for each in entries if each.is_dir() and _RANK.search(each.name.lower())]
    found: dict[int, Path] = {}
    for each in directories or files:
        numbers = _RANK.findall(each.name.lower()) or _NUMBER.findall(each.stem)
        if not numbers:
            continue
        rank = int(numbers[-1])
        if rank in found:
            raise DumpError(
                f"{path}: {clip(found[rank].name)} and {clip(each.name)} are both of rank {rank} by their names; "
                "expected is a file or directory for each rank, with its number"
            )
        found[rank] = each
    if not found:
        raise DumpError(
            f"{path}: has no file or directory with the number of a rank in its name, such as rank_0, although its "
            "layout is declared; leave its side out of --layout, or give another directory"
        )
    return dict(sorted(found.items()))


def _check_ranks(path: Path, files: Mapping[int, Path], layout: RankLayout) -> None:
    if layout.ranks.groups:
        return
    sizes = dict(layout.ranks.sizes)
    declared = math.prod(sizes.values())
    last = max(files)
    is_copied = "dp" not in sizes and last + 1 == len(files) and len(files) % declared == 0
    if last >= declared and not is_copied:
        shown = " x ".join(f"{axis} {size}" for axis, size in sizes.items()) or "nothing"
        raise DumpError(
            f"{path}: has files of {len(files)} ranks up to rank {last}, but the layout declares {shown}, which makes "
            f"{declared}; give the size of each axis"
        )


def _split(name: str) -> tuple[int, str]:
    """Return virtual stage and name of a parameter."""
    found = _VIRTUAL.fullmatch(name)
    return (0, name) if found is None else (int(found[1]), found[2])


def _source(tensor: LogicalTensor) -> TensorSource | None:
    """Return the elements of a tensor that is in one piece."""
    return tensor.pieces[0].source if len(tensor.pieces) == 1 and tensor.damage is None else None


def _chunks(draft: Draft, holder: Holder, own: Draft) -> list[Chunk]:
    """Return the parameters of a rank by virtual stage; those that cannot be read are added as they are."""
    stages: dict[int, dict[str, TensorSource]] = {}
    num_divided = 0
    for tensor in own.tensors.values():
        if tensor.damage is not None:
            name = f"{tensor.name} ({holder.path.name})"
            draft.add(damaged(name, tensor.damage, dtype=tensor.dtype, shape=tensor.shape, kind=tensor.kind))
        if tensor.kind not in (Kind.WEIGHT, Kind.BUFFER) or tensor.damage is not None:
            continue
        source = _source(tensor)
        if source is None:
            num_divided += 1
            continue
        virtual, local = _split(tensor.name)
        stages.setdefault(virtual, {})[local] = source
    draft.skip("tensors in several pieces", num_divided)
    return [Chunk(holder, virtual, tensors) for virtual, tensors in sorted(stages.items())]


def _add_aliases(
    draft: Draft,
    drafts: Mapping[Holder, Draft],
    chunks: Sequence[Chunk],
    names: Mapping[Holder, Mapping[str, Sequence[str]]],
) -> None:
    """Add the ties within the files of ranks."""
    for holder, own in drafts.items():
        for alias, name in own.aliases.items():
            virtual, local = _split(name)
            stages = [chunk.virtual for chunk in chunks if chunk.rank == holder and local in chunk.tensors]
            whole = global_name(local, names[holder].get(local, ()), virtual, stages)
            second = _split(alias)[1]
            if whole in draft.tensors and second not in draft.tensors:
                draft.aliases[second] = whole
