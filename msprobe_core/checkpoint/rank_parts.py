"""Put the tensors of parallel ranks together: global numbers of layers and experts, and shards of each parameter.

Ranks count layers and experts from 0, or by their numbers in the model. Virtual stage ``v`` of rank ``p`` is stage
``v * stages + p`` of the model, so layers are numbered by counting those of all stages in this order, whatever the
stages' sizes are.

Source: ``get_transformer_layer_offset`` of Megatron-Core 0.16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from msprobe_core.checkpoint.boxes import Box, part_of
from msprobe_core.checkpoint.contents import Kind, Piece
from msprobe_core.checkpoint.directory import Draft
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.optimizer_names import kind_of_state, state_name
from msprobe_core.checkpoint.parameter_rules import GATED, placement_over_tp, text_of
from msprobe_core.checkpoint.pieces import damaged, error, joined, note
from msprobe_core.compare.layouts.numbering import are_global, holds_layers, number_in_path, offset_at
from msprobe_core.compare.layouts.rules import PlacementRule
from msprobe_core.compare.shards.assembly import CannotMerge
from msprobe_core.compare.shards.placement import AxisPlacement, MeshCoordinate, assemble_declared
from msprobe_core.errors import DumpError, clip
from msprobe_core.fingerprint.shard_ranges import SHARD
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.tensor_source import StoredTensor

_EXPERT = re.compile(r"(.*\.(?:local_)?experts\.)(\d+)(\..+)", re.DOTALL)
_GROUPED = re.compile(r"(.*\.experts\.)(linear_fc[12])\.(weight|bias)(\d+)")
_TOGETHER = re.compile(r"(.*\.experts\.)weight([12])")
_MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Holder:
    """The file of one rank.

    Attributes:
        path: The file.
        place: Coordinate of the rank.
    """

    path: Path
    place: MeshCoordinate

    @property
    def tp(self) -> int:
        """Number among the tensor parallel ranks."""
        return self.place.on("tp")

    @property
    def pp(self) -> int:
        """Number of the pipeline stage."""
        return self.place.on("pp")

    @property
    def ep(self) -> int:
        """Number among the expert parallel ranks."""
        return self.place.on("ep")


@dataclass(frozen=True)
class Grid:
    """Sizes of the parallel axes, and what else is known of how ranks share the model.

    Attributes:
        tp: Number of tensor parallel ranks.
        pp: Number of pipeline stages.
        ep: Number of expert parallel ranks.
        replicas: Axes along which ranks have copies, of several ranks each.
        experts_are_cut: Whether tensor parallel ranks share experts.
        experts_are_local: Whether each expert parallel rank counts its experts from 0.
        num_experts: Number of experts of a layer.
        is_gated: Whether MLPs have gate and up, if shapes do not say so.
        first_layers: Number of the first layer of each stage, if declared.
        rules: Declared rules.
    """

    tp: int
    pp: int
    ep: int
    replicas: tuple[str, ...] = ()
    experts_are_cut: bool = True
    experts_are_local: bool = True
    num_experts: int | None = None
    is_gated: bool | None = None
    first_layers: tuple[int, ...] = ()
    rules: tuple[PlacementRule, ...] = ()

    def label(self, rank: Holder) -> str:
        """Return the numbers of a rank as text: ``tp1 pp0``."""
        axes = ["tp", *(["pp"] if self.pp > 1 else []), *(["ep"] if self.ep > 1 else []), *self.replicas]
        return " ".join(f"{axis}{rank.place.on(axis)}" for axis in axes)


@dataclass(frozen=True)
class Part:
    """A tensor of one rank.

    Attributes:
        name: Its name, with global numbers.
        tensor: Its elements.
        rank: The rank.
        local: Its name on the rank.
    """

    name: str
    tensor: TensorSource
    rank: Holder
    local: str


@dataclass(frozen=True)
class Chunk:
    """The parameters of one virtual stage on one rank, by their own names.

    Attributes:
        rank: The rank.
        virtual: Number of the virtual stage on the rank.
        tensors: Its tensors.
    """

    rank: Holder
    virtual: int
    tensors: Mapping[str, TensorSource]


@dataclass(frozen=True)
class Together:
    """What is known after the parameters have been put together, for the states of their optimizers.

    Attributes:
        names: For each rank, the names in the model of each of its own names, in the order of virtual stages.
        gated: By name, whether a first matrix of an MLP has gate and up.
    """

    names: Mapping[Holder, Mapping[str, Sequence[str]]] = field(default_factory=dict[Holder, dict[str, list[str]]])
    gated: Mapping[str, bool] = field(default_factory=dict[str, bool])


def note_missing(draft: Draft, ranks: Sequence[Holder], grid: Grid) -> None:
    """Note the ranks without a file.

    Raises:
        DumpError: there are said to be more than there can be.
    """
    if grid.tp * grid.pp * grid.ep > _MOST_RANKS:
        raise DumpError(
            f"{draft.path}: says that it has {grid.tp} x {grid.pp} x {grid.ep} ranks, more than there can be"
        )
    dense = {(rank.tp, rank.pp) for rank in ranks}
    experts = {(rank.pp, rank.ep) for rank in ranks}
    missing = [f"tp{tp} pp{pp}" for tp in range(grid.tp) for pp in range(grid.pp) if (tp, pp) not in dense]
    missing += [f"pp{pp} ep{ep}" for pp in range(grid.pp) for ep in range(grid.ep) if (pp, ep) not in experts]
    draft.notes += [error(OpeningCode.MISSING_RANK, rank=rank) for rank in missing[:16]]


def put_together(draft: Draft, chunks: Sequence[Chunk], grid: Grid) -> Together:
    """Add the parameters of all ranks."""
    offsets = _offsets(draft, chunks, grid)
    parts: dict[str, list[Part]] = {}
    names: dict[Holder, dict[str, list[str]]] = {}
    for chunk in chunks:
        own = names.setdefault(chunk.rank, {})
        for part in _renamed(chunk, offsets, grid):
            parts.setdefault(part.name, []).append(part)
            own.setdefault(part.local, []).append(part.name)
    together = Together(names, _gated(parts, grid))
    for name, found in parts.items():
        add_parts(draft, name, found, together, grid, Kind.WEIGHT)
    return together


# --- names ----------------------------------------------------------------------------------------------------------

_Offsets = Mapping[tuple[str, int], int]
"""What is added to numbers of layers, by container and stage of the model."""


def _stage(chunk: Chunk, grid: Grid) -> int:
    return chunk.virtual * grid.pp + chunk.rank.pp


def _offsets(draft: Draft, chunks: Sequence[Chunk], grid: Grid) -> _Offsets:
    have: dict[str, dict[int, set[int]]] = {}
    for chunk in chunks:
        stage = _stage(chunk, grid)
        for name in chunk.tensors:
            if found := number_in_path(name, holds_layers):
                have.setdefault(found[0], {}).setdefault(stage, set()).add(found[1])
    num_stages = grid.pp * (1 + max((chunk.virtual for chunk in chunks), default=0))
    for container, own in sorted(have.items()):
        sizes = [str(max(own.get(stage, {-1})) + 1) for stage in range(num_stages)]
        if len(set(sizes)) > 1 and not grid.first_layers and not are_global(own):
            draft.notes.append(note(OpeningCode.STAGES_COUNTED, stages=f"{clip(container)} {' + '.join(sizes)}"))
    return {
        (container, stage): offset_at(own, stage, grid.first_layers) for container, own in have.items() for stage in own
    }


def _renamed(chunk: Chunk, offsets: _Offsets, grid: Grid) -> Iterator[Part]:
    """Yield the tensors of a chunk with global numbers of layers and experts."""
    num_local = _experts_in(chunk, grid)
    first = chunk.rank.ep * num_local if grid.experts_are_local else 0
    stage = _stage(chunk, grid)
    for local, tensor in chunk.tensors.items():
        name = local
        if found := number_in_path(name, holds_layers):
            container, number, at = found
            name = ".".join([container, str(number + offsets[container, stage]), *name.split(".")[at + 1 :]])
        if found := _EXPERT.fullmatch(name):
            name = f"{found[1]}{int(found[2]) + first}{found[3]}"
        elif found := _GROUPED.fullmatch(name):
            name = f"{found[1]}local_experts.{int(found[4]) + first}.{found[2]}.{found[3]}"
        elif (
            (found := _TOGETHER.fullmatch(name))
            and isinstance(tensor, StoredTensor)
            and len(tensor.shape) == 2
            and tensor.is_contiguous
            and num_local
        ):
            for expert in range(num_local):
                whole = f"{found[1]}local_experts.{expert + first}.linear_fc{found[2]}.weight"
                yield Part(whole, _expert_of(tensor, int(found[2]), expert, num_local), chunk.rank, local)
            continue
        yield Part(name, tensor, chunk.rank, local)


def experts_are_local(chunks: Sequence[Chunk]) -> bool:
    """Whether expert parallel ranks have the same numbers of experts, so that each counts its own from 0."""
    have: dict[str, dict[int, set[int]]] = {}
    for chunk in chunks:
        for name in chunk.tensors:
            if found := _EXPERT.fullmatch(name):
                where = f"{chunk.virtual} {chunk.rank.pp} {found[1]}"
                have.setdefault(where, {}).setdefault(chunk.rank.ep, set()).add(int(found[2]))
    return not (have and all(are_global(own) for own in have.values()))


def _experts_in(chunk: Chunk, grid: Grid) -> int:
    """Return the number of experts of each layer in a chunk."""
    count = 0
    for name in chunk.tensors:
        if found := _EXPERT.fullmatch(name):
            count = max(count, int(found[2]) + 1)
        elif found := _GROUPED.fullmatch(name):
            count = max(count, int(found[4]) + 1)
    return count or (grid.num_experts or 0) // grid.ep


def _expert_of(tensor: StoredTensor, which: int, expert: int, num_experts: int) -> StoredTensor:
    """Return the matrix ``[out, in]`` of one expert of those together, whose bytes are ``[experts, in, out]``."""
    hidden = tensor.shape[which - 1]
    width = tensor.shape[2 - which] // num_experts
    rows, columns = (hidden, width) if which == 1 else (width, hidden)
    offset = tensor.offset + expert * rows * columns
    return replace(tensor, shape=(columns, rows), strides=(1, columns), offset=offset)


def _gated(parts: Mapping[str, Sequence[Part]], grid: Grid) -> dict[str, bool]:
    """Return whether first matrices of an MLP have gate and up: if they have twice the columns of the second one."""
    found: dict[str, bool] = {}
    for name, own in parts.items():
        module = name.rpartition(".")[0]
        for first, second in GATED:
            if not module.endswith(first):
                continue
            others = parts.get(f"{module.removesuffix(first)}{second}.weight")
            if others and len(others[0].tensor.shape) == 2 and own[0].tensor.shape:
                found[name] = own[0].tensor.shape[0] == 2 * others[0].tensor.shape[1]
            else:
                found[name] = grid.is_gated is True
    return found


# --- putting together -----------------------------------------------------------------------------------------------


def add_parts(
    draft: Draft, name: str, parts: Sequence[Part], together: Together, grid: Grid, kind: Kind, of: str = ""
) -> None:
    """Add a tensor of the parts of all ranks.

    Args:
        draft: Where it is added.
        name: Its name.
        parts: What ranks have of it.
        together: What is known of the parameters.
        grid: Sizes of the parallel axes.
        kind: What it is.
        of: Name of the parameter, for a state of an optimizer; empty for the parameter itself.
    """
    parameter = of or name
    is_whole = grid.tp == 1 or (_EXPERT.fullmatch(parameter) is not None and not grid.experts_are_cut)
    placement = None
    if not is_whole:
        is_gated = together.gated.get(parameter, False)
        placement = placement_over_tp(parameter, is_gated=is_gated, declared=grid.rules)
        dim = None if placement is None else placement.placement.dim
        if placement is None or (dim is not None and dim >= len(parts[0].tensor.shape)):
            _add_apart(draft, name, parts, grid, kind)
            return
    if placement is None or placement.placement.kind != SHARD:
        first, copies = parts[0], parts[1:]
        rule = "replicated" if grid.tp > 1 and copies else ""
        replicas = [_piece(part, grid) for part in copies]
        draft.add(joined(name, [_piece(first, grid)], kind=kind, rule=rule, replicas=replicas))
        return
    _add_sharded(draft, name, parts, placement, grid, kind)


def _add_sharded(
    draft: Draft, name: str, parts: Sequence[Part], placement: AxisPlacement, grid: Grid, kind: Kind
) -> None:
    ordered = sorted(parts, key=lambda part: part.rank.tp)
    have = {part.rank.tp for part in parts}
    missing = [tp for tp in range(grid.tp) if tp not in have]
    # A missing rank has as much as the first of those that there are.
    places = [part.rank.place for part in ordered] + [MeshCoordinate((("tp", tp),)) for tp in missing]
    shapes = [tuple(part.tensor.shape) for part in ordered] + [tuple(parts[0].tensor.shape)] * len(missing)
    made = assemble_declared([placement], range(len(places)), places, shapes)
    if isinstance(made, CannotMerge):
        draft.add(damaged(name, error(OpeningCode.UNLIKE, what=clip(made.reason, 300)), kind=kind))
        return
    pieces: list[Piece] = []
    replicas: list[Piece] = []
    for piece in made.pieces:
        for number in (piece.part, *piece.copies):
            if number >= len(ordered):
                continue
            own = replicas if number != piece.part else pieces
            own += [_piece(ordered[number], grid, Box(b.begin, b.sizes), b.whole) for b in piece.blocks]
    damage = error(OpeningCode.MISSING_RANK, rank=", ".join(f"tp{tp}" for tp in missing)) if missing else None
    rule = f"tensor parallel over {grid.tp} ranks, {text_of(placement)}"
    draft.add(joined(name, pieces, shape=made.shape, kind=kind, rule=rule, replicas=replicas, damage=damage))


def _piece(part: Part, grid: Grid, box: Box | None = None, begin: tuple[int, ...] | None = None) -> Piece:
    """Return a box of a part as a piece that begins at a place of the whole; all of it, at the whole's begin."""
    source = part.tensor if box is None else part_of(part.tensor, box)
    place = (0,) * len(source.shape) if begin is None else begin
    return Piece(source=source, begin=place, file=part.rank.path, rank=grid.label(part.rank))


def _add_apart(draft: Draft, name: str, parts: Sequence[Part], grid: Grid, kind: Kind) -> None:
    """Add the part of each tensor parallel rank as a tensor of its own."""
    by_rank: dict[int, list[Part]] = {}
    for part in parts:
        by_rank.setdefault(part.rank.tp, []).append(part)
    for tp, own in by_rank.items():
        replicas = [_piece(part, grid) for part in own[1:]]
        rule = f"part of tensor parallel rank {tp}; it is not known how ranks share it"
        draft.add(joined(f"{name}[tp{tp}]", [_piece(own[0], grid)], kind=kind, rule=rule, replicas=replicas))
    if kind is Kind.WEIGHT:
        earlier = [each for each in draft.notes if each.code is OpeningCode.UNKNOWN_RULE]
        count = 1 + sum(int(cast("int", each.fields["count"])) for each in earlier)
        first = earlier[0].fields["name"] if earlier else clip(name)
        draft.notes = [each for each in draft.notes if each not in earlier]
        draft.notes.append(note(OpeningCode.UNKNOWN_RULE, count=count, name=first))


def add_states(draft: Draft, states: Mapping[tuple[str, str], Sequence[Part]], together: Together, grid: Grid) -> None:
    """Add states of optimizers, put together as their parameters are.

    Args:
        draft: Where they are added.
        states: The parts of all ranks, by name of the parameter in the model and of the state.
        together: What is known of the parameters.
        grid: Sizes of the parallel axes.
    """
    for (name, what), parts in states.items():
        add_parts(draft, state_name(name, what), parts, together, grid, kind_of_state(what), of=name)


def add_unnamed(draft: Draft, name: str, tensor: TensorSource, rank: Holder, grid: Grid) -> None:
    """Add a state of one rank whose parameter is not known."""
    part = Part(name, tensor, rank, name)
    draft.add(joined(name, [_piece(part, grid)], kind=kind_of_state(name.rpartition(".")[2])))


def global_name(local: str, names: Sequence[str], virtual: int, stages: Sequence[int]) -> str | None:
    """Return the name in the model of a parameter of one rank; ``None`` if it is not known.

    Args:
        local: Its name on the rank.
        names: Names in the model of this name, in the order of virtual stages.
        virtual: Its virtual stage.
        stages: Virtual stages of the rank that have this name.
    """
    if not local or not names:
        return None
    if len(names) == 1:
        return names[0]
    order = sorted(stages)
    return names[order.index(virtual)] if len(order) == len(names) and virtual in order else None
