"""Open checkpoints of Megatron-LM with one file for each model parallel rank: ``mp_rank_*/model_optim_rng.pt``.

Directories are ``mp_rank_TT``, with ``_PPP`` if there are pipeline stages and ``_EEE`` if there are expert parallel
ranks. Each file counts layers and experts from 0; with virtual stages it has ``model0``, ``model1``, … instead of
``model``. Virtual stage ``v`` of rank ``p`` is stage ``v * stages + p`` of the model, so layers are numbered by
counting those of all stages in this order, whatever the stages' sizes are.

Source: ``get_checkpoint_name`` and ``generate_state_dict`` in ``megatron/training/checkpointing.py``, and
``get_transformer_layer_offset`` of Megatron-Core 0.16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from msprobe_core.checkpoint.contents import CheckpointFormat, Kind, Piece
from msprobe_core.checkpoint.directory import Draft, flattened, step_in
from msprobe_core.checkpoint.megatron_rules import Cut, cut_of
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.optimizer_names import (
    groups_of,
    kind_of_state,
    names_by_order,
    numbers_of,
    state_name,
)
from msprobe_core.checkpoint.pieces import damaged, error, joined, note, unreadable
from msprobe_core.compare.shards.sources import narrowed
from msprobe_core.errors import DumpError, clip
from msprobe_core.store.pt_trees import Key, Opaque, PtTree, open_pt_tree, path_text
from msprobe_core.store.tensor_source import StoredTensor

_RANK = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_(\d{1,6}))?")
_MODEL = re.compile(r"model(\d{0,3})")
_LAYER = re.compile(r"((?:.*\.)?layers\.)(\d+)(\..+)")
_EXPERT = re.compile(r"(.*\.local_experts\.)(\d+)(\..+)")
_GROUPED = re.compile(r"(.*\.experts\.)(linear_fc[12])\.(weight|bias)(\d+)")
_TOGETHER = re.compile(r"(.*\.experts\.)weight([12])")
_WEIGHT_FILES = ("model_optim_rng.pt", "model_rng.pt", "model.pt")
_TABLE, _HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
_MASTER_KEYS = ("fp32_from_fp16_params", "fp32_groups")


@dataclass(frozen=True)
class _RankFile:
    """One file and the ranks that it is of."""

    path: Path
    tp: int
    pp: int
    ep: int
    tree: PtTree

    @property
    def value(self) -> Mapping[Key, Any]:
        """What the file holds, by key."""
        return cast("dict[Key, Any]", self.tree.value)

    def label(self, grid: _Grid) -> str:
        """Return the ranks as text."""
        parts = [f"tp{self.tp}", f"pp{self.pp}" if grid.pp > 1 else "", f"ep{self.ep}" if grid.ep > 1 else ""]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class _Grid:
    """Sizes of the parallel axes, and what else the arguments say."""

    tp: int
    pp: int
    ep: int
    experts_are_cut: bool
    num_experts: int | None
    is_gated: bool | None
    is_tied: bool


@dataclass(frozen=True)
class _Part:
    """A tensor of one rank, with the global name."""

    name: str
    tensor: StoredTensor
    rank: _RankFile
    local: str


@dataclass(frozen=True)
class _Chunk:
    """The parameters of one virtual stage on one rank, by their own names."""

    rank: _RankFile
    virtual: int
    tensors: Mapping[str, StoredTensor]


def open_megatron(path: Path) -> Draft:
    """Return the checkpoint in the directory of one iteration.

    Raises:
        DumpError: none of its files can be read.
    """
    draft = Draft(path, CheckpointFormat.MEGATRON)
    ranks = _rank_files(draft)
    grid = _grid_of(draft, ranks)
    _note_missing(draft, ranks, grid)
    chunks = [chunk for rank in ranks for chunk in _chunks(draft, rank)]
    offsets = _offsets(draft, chunks, grid)
    parts: dict[str, list[_Part]] = {}
    names: dict[int, dict[str, list[str]]] = {}
    for chunk in chunks:
        own = names.setdefault(id(chunk.rank), {})
        for part in _renamed(chunk, offsets, grid):
            parts.setdefault(part.name, []).append(part)
            own.setdefault(part.local, []).append(part.name)
    gated = _gated(parts, grid)
    for name, found in parts.items():
        _add(draft, name, found, gated, grid, Kind.WEIGHT)
    _tie(draft, grid)
    _add_optimizers(draft, ranks, chunks, names, gated, grid)
    draft.step = draft.step if draft.step is not None else step_in(path.name)
    return draft


# --- files ----------------------------------------------------------------------------------------------------------


def _rank_files(draft: Draft) -> list[_RankFile]:
    found: list[tuple[tuple[int, ...], PtTree]] = []
    num_other = 0
    for directory in sorted(draft.path.iterdir()):
        match = _RANK.fullmatch(directory.name)
        if match is None or not directory.is_dir():
            continue
        numbers = tuple(int(each) for each in match.groups() if each is not None)
        file = next((directory / name for name in _WEIGHT_FILES if (directory / name).is_file()), None)
        num_other += sum(1 for each in directory.iterdir() if each != file and each.suffix == ".pt")
        if file is None:
            draft.notes.append(error(OpeningCode.MISSING_FILE, file=f"{directory.name}/{_WEIGHT_FILES[0]}"))
            continue
        draft.count(file)
        try:
            tree = open_pt_tree(file)
        except DumpError as problem:
            draft.notes.append(unreadable(str(problem)))
            continue
        if isinstance(tree.value, dict):
            found.append((numbers, tree))
    draft.skip("files of distributed optimizers", num_other)
    if not found:
        reasons = [each.text for each in draft.notes]
        raise DumpError(f"{draft.path}: none of its files can be read: {clip('; '.join(reasons), 600)}")
    has_stages = _has_stages([numbers for numbers, _ in found], [tree for _, tree in found])
    return [_rank_file(numbers, tree, has_stages=has_stages) for numbers, tree in found]


def _rank_file(numbers: tuple[int, ...], tree: PtTree, *, has_stages: bool) -> _RankFile:
    if len(numbers) == 3:
        tp, pp, ep = numbers
    elif len(numbers) == 2:
        tp, pp, ep = (numbers[0], numbers[1], 0) if has_stages else (numbers[0], 0, numbers[1])
    else:
        tp, pp, ep = numbers[0], 0, 0
    return _RankFile(tree.path, tp, pp, ep, tree)


def _has_stages(numbers: Sequence[tuple[int, ...]], trees: Sequence[PtTree]) -> bool:
    """Whether the second of two numbers is that of a pipeline stage; else it is of an expert parallel rank."""
    if any(len(each) == 3 for each in numbers):
        return True
    args = _args([tree.value for tree in trees])
    if "pipeline_model_parallel_size" in args:
        return (_int(args, "pipeline_model_parallel_size") or 1) > 1
    # Only expert parallel ranks all have the embedding.
    texts = [" ".join(path_text(path) for path, _ in tree.tensors()) for tree in trees]
    return not all("word_embeddings" in text and "experts" in text for text in texts)


def _args(values: Sequence[Mapping[Key, Any]]) -> Mapping[Key, Any]:
    for value in values:
        args: Any = value.get("args")
        if isinstance(args, Opaque):
            args = args.fields
        if isinstance(args, dict):
            return cast("dict[Key, Any]", args)
    return {}


def _int(args: Mapping[Key, Any], name: str) -> int | None:
    value = args.get(name)
    return value if type(value) is int else None


def _grid_of(draft: Draft, ranks: Sequence[_RankFile]) -> _Grid:
    args = _args([rank.value for rank in ranks])
    draft.settings |= flattened(args)
    for rank in ranks:
        step = rank.value.get("iteration")
        if type(step) is int and draft.path.name != "release":
            draft.step = step
    untied = args.get("untie_embeddings_and_output_weights")
    gated = args.get("swiglu") is True or args.get("gated_linear_unit") is True
    expert_tp = _int(args, "expert_tensor_parallel_size")
    return _Grid(
        tp=max(_int(args, "tensor_model_parallel_size") or 1, *(rank.tp + 1 for rank in ranks)),
        pp=max(_int(args, "pipeline_model_parallel_size") or 1, *(rank.pp + 1 for rank in ranks)),
        ep=max(_int(args, "expert_model_parallel_size") or 1, *(rank.ep + 1 for rank in ranks)),
        experts_are_cut=expert_tp is None or expert_tp > 1,
        num_experts=_int(args, "num_experts"),
        is_gated=gated if args else None,
        is_tied=untied is False,
    )


def _note_missing(draft: Draft, ranks: Sequence[_RankFile], grid: _Grid) -> None:
    if grid.tp * grid.pp * grid.ep > 1 << 20:
        raise DumpError(
            f"{draft.path}: says that it has {grid.tp} x {grid.pp} x {grid.ep} ranks, more than there can be"
        )
    dense = {(rank.tp, rank.pp) for rank in ranks}
    experts = {(rank.pp, rank.ep) for rank in ranks}
    missing = [f"tp{tp} pp{pp}" for tp in range(grid.tp) for pp in range(grid.pp) if (tp, pp) not in dense]
    missing += [f"pp{pp} ep{ep}" for pp in range(grid.pp) for ep in range(grid.ep) if (pp, ep) not in experts]
    draft.notes += [error(OpeningCode.MISSING_RANK, rank=rank) for rank in missing[:16]]


# --- names ----------------------------------------------------------------------------------------------------------


def _chunks(draft: Draft, rank: _RankFile) -> Iterator[_Chunk]:
    num_skipped = 0
    for key in rank.value:
        found = _MODEL.fullmatch(key) if isinstance(key, str) else None
        if found is None:
            continue
        tensors: dict[str, StoredTensor] = {}
        for path, leaf in rank.tree.leaves(key):
            name = path_text(path)
            if name.endswith("_extra_state"):
                num_skipped += isinstance(leaf, (StoredTensor, Opaque))
            elif isinstance(leaf, StoredTensor):
                tensors[name] = leaf
            elif isinstance(leaf, Opaque) and leaf.reason:
                draft.add(damaged(f"{name} ({rank.path.parent.name})", unreadable(leaf.reason)))
        yield _Chunk(rank, int(found[1] or 0), tensors)
    draft.skip("extra states", num_skipped)


_Offsets = Mapping[tuple[str, int, int], int]
"""Number of the first layer by stack, virtual stage and stage."""


def _offsets(draft: Draft, chunks: Sequence[_Chunk], grid: _Grid) -> _Offsets:
    counts: dict[tuple[str, int, int], int] = {}
    for chunk in chunks:
        for name in chunk.tensors:
            if found := _LAYER.fullmatch(name):
                key = (found[1], chunk.virtual, chunk.rank.pp)
                counts[key] = max(counts.get(key, 0), int(found[2]) + 1)
    offsets: dict[tuple[str, int, int], int] = {}
    for stack in sorted({stack for stack, _, _ in counts}):
        first, sizes = 0, list[str]()
        for virtual in range(1 + max((chunk.virtual for chunk in chunks), default=0)):
            for pp in range(grid.pp):
                offsets[stack, virtual, pp] = first
                first += counts.get((stack, virtual, pp), 0)
                sizes.append(str(counts.get((stack, virtual, pp), 0)))
        if len(set(sizes)) > 1 and len(sizes) > 1:
            draft.notes.append(note(OpeningCode.STAGES_COUNTED, stages=f"{clip(stack)} {' + '.join(sizes)}"))
    return offsets


def _renamed(chunk: _Chunk, offsets: _Offsets, grid: _Grid) -> Iterator[_Part]:
    """Yield the tensors of a chunk with global numbers of layers and experts."""
    num_local = _experts_in(chunk, grid)
    for local, tensor in chunk.tensors.items():
        name = local
        if found := _LAYER.fullmatch(name):
            number = int(found[2]) + offsets[found[1], chunk.virtual, chunk.rank.pp]
            name = f"{found[1]}{number}{found[3]}"
        first = chunk.rank.ep * num_local
        if found := _EXPERT.fullmatch(name):
            name = f"{found[1]}{int(found[2]) + first}{found[3]}"
        elif found := _GROUPED.fullmatch(name):
            name = f"{found[1]}local_experts.{int(found[4]) + first}.{found[2]}.{found[3]}"
        elif (found := _TOGETHER.fullmatch(name)) and len(tensor.shape) == 2 and tensor.is_contiguous and num_local:
            for expert in range(num_local):
                whole = f"{found[1]}local_experts.{expert + first}.linear_fc{found[2]}.weight"
                yield _Part(whole, _expert_of(tensor, int(found[2]), expert, num_local), chunk.rank, local)
            continue
        yield _Part(name, tensor, chunk.rank, local)


def _experts_in(chunk: _Chunk, grid: _Grid) -> int:
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


def _gated(parts: Mapping[str, Sequence[_Part]], grid: _Grid) -> dict[str, bool]:
    """Return whether first matrices of an MLP have gate and up: if they have twice the columns of the second one."""
    found: dict[str, bool] = {}
    for name, own in parts.items():
        for first, second in (("linear_fc1", "linear_fc2"), ("dense_h_to_4h", "dense_4h_to_h")):
            module = name.rpartition(".")[0]
            if not module.endswith(first):
                continue
            others = parts.get(f"{module.removesuffix(first)}{second}.weight")
            if others and len(others[0].tensor.shape) == 2 and own[0].tensor.shape:
                found[name] = own[0].tensor.shape[0] == 2 * others[0].tensor.shape[1]
            else:
                found[name] = grid.is_gated is True
    return found


# --- putting together -----------------------------------------------------------------------------------------------


def _add(
    draft: Draft, name: str, parts: Sequence[_Part], gated: Mapping[str, bool], grid: _Grid, kind: Kind, of: str = ""
) -> None:
    """Add a tensor of the parts of all ranks.

    Args:
        draft: Where it is added.
        name: Its name.
        parts: What ranks have of it.
        gated: By name, whether a matrix has gate and up.
        grid: Sizes of the parallel axes.
        kind: What it is.
        of: Name of the parameter, for a state of an optimizer; empty for the parameter itself.
    """
    parameter = of or name
    size = 1 if "local_experts." in parameter and not grid.experts_are_cut else grid.tp
    cut = cut_of(parameter, is_gated=gated.get(parameter, False)) if size > 1 else Cut.NONE
    shape = parts[0].tensor.shape
    if cut is Cut.UNKNOWN or (not shape and cut is not Cut.NONE) or (cut is Cut.SECOND and len(shape) != 2):
        _add_apart(draft, name, parts, grid, kind)
        return
    first: dict[int, _Part] = {}
    copies: list[tuple[int, _Part]] = []
    for part in parts:
        slot = 0 if cut is Cut.NONE else part.rank.tp
        if slot in first:
            copies.append((slot, part))
        else:
            first[slot] = part
    if cut is Cut.NONE:
        rule = cut.value if grid.tp > 1 and copies else ""
        origin = (0,) * len(shape)
        pieces = [_piece(part, origin, grid) for part in first.values()]
        replicas = [_piece(part, origin, grid) for _, part in copies]
        draft.add(joined(name, pieces, kind=kind, rule=rule, replicas=replicas))
        return
    missing = [f"tp{i}" for i in range(grid.tp) if i not in first]
    damage = error(OpeningCode.MISSING_RANK, rank=", ".join(missing)) if missing else None
    place = _placed(cut, {slot: part.tensor.shape for slot, part in first.items()}, shape, grid.tp)
    pieces = [piece for slot, part in sorted(first.items()) for piece in place.pieces(slot, part, grid)]
    replicas = [piece for slot, part in copies for piece in place.pieces(slot, part, grid)]
    rule = f"tensor parallel over {grid.tp} ranks, {cut.value}"
    whole = place.shape if missing else None
    draft.add(joined(name, pieces, shape=whole, kind=kind, rule=rule, replicas=replicas, damage=damage))


@dataclass(frozen=True)
class _Place:
    """Where the parts of tensor parallel ranks begin."""

    cut: Cut
    begins: Mapping[int, int]
    shape: tuple[int, ...]

    def pieces(self, slot: int, part: _Part, grid: _Grid) -> list[Piece]:
        """Return the pieces of a rank's part."""
        tensor, begin = part.tensor, self.begins[slot]
        rest = (0,) * (len(tensor.shape) - 1)
        if self.cut is Cut.SECOND:
            return [_piece(part, (0, begin), grid)]
        if self.cut is Cut.FIRST:
            return [_piece(part, (begin, *rest), grid)]
        half = tensor.shape[0] // 2
        sizes = (half, *tensor.shape[1:])
        up = replace(part, tensor=cast("StoredTensor", narrowed(tensor, (half, *rest), sizes)))
        gate = replace(part, tensor=cast("StoredTensor", narrowed(tensor, (0, *rest), sizes)))
        return [
            _piece(gate, (begin // 2, *rest), grid),
            _piece(up, (self.shape[0] // 2 + begin // 2, *rest), grid),
        ]


def _placed(cut: Cut, shapes: Mapping[int, tuple[int, ...]], like: tuple[int, ...], size: int) -> _Place:
    """Return where parts begin; a missing rank has as much as the first of those that there are."""
    dim = 1 if cut is Cut.SECOND else 0
    begins: dict[int, int] = {}
    begin = 0
    for slot in range(size):
        begins[slot] = begin
        shape = shapes.get(slot, like)
        begin += shape[dim] if len(shape) > dim else 0
    return _Place(cut, begins, tuple(begin if i == dim else n for i, n in enumerate(like)))


def _piece(part: _Part, begin: tuple[int, ...], grid: _Grid) -> Piece:
    return Piece(source=part.tensor, begin=begin, file=part.rank.path, rank=part.rank.label(grid))


def _add_apart(draft: Draft, name: str, parts: Sequence[_Part], grid: _Grid, kind: Kind) -> None:
    """Add the part of each tensor parallel rank as a tensor of its own."""
    by_rank: dict[int, list[_Part]] = {}
    for part in parts:
        by_rank.setdefault(part.rank.tp, []).append(part)
    for tp, own in by_rank.items():
        origin = (0,) * len(own[0].tensor.shape)
        replicas = [_piece(part, origin, grid) for part in own[1:]]
        rule = f"part of tensor parallel rank {tp}; it is not known how ranks share it"
        draft.add(joined(f"{name}[tp{tp}]", [_piece(own[0], origin, grid)], kind=kind, rule=rule, replicas=replicas))
    if kind is Kind.WEIGHT:
        earlier = [each for each in draft.notes if each.code is OpeningCode.UNKNOWN_RULE]
        count = 1 + sum(int(cast("int", each.fields["count"])) for each in earlier)
        first = earlier[0].fields["name"] if earlier else clip(name)
        draft.notes = [each for each in draft.notes if each not in earlier]
        draft.notes.append(note(OpeningCode.UNKNOWN_RULE, count=count, name=first))


def _tie(draft: Draft, grid: _Grid) -> None:
    """Make the head an alias of the embedding if they are tied; the copy of the last stage is a replica."""
    if not grid.is_tied or _TABLE not in draft.tensors:
        return
    table, head = draft.tensors[_TABLE], draft.tensors.pop(_HEAD, None)
    draft.aliases[_HEAD] = _TABLE
    if head is not None and head.shape == table.shape:
        replicas = (*table.replicas, *head.pieces, *head.replicas)
        draft.tensors[_TABLE] = replace(table, replicas=replicas)
    elif head is not None:
        draft.tensors[_HEAD] = head
        del draft.aliases[_HEAD]


# --- optimizer ------------------------------------------------------------------------------------------------------


def _add_optimizers(
    draft: Draft,
    ranks: Sequence[_RankFile],
    chunks: Sequence[_Chunk],
    names: Mapping[int, Mapping[str, Sequence[str]]],
    gated: Mapping[str, bool],
    grid: _Grid,
) -> None:
    """Add moments and copies in float32, put together as their parameters are."""
    parts: dict[tuple[str, str], list[_Part]] = {}
    unnamed = 0
    named = 0
    for rank in ranks:
        own = [chunk for chunk in chunks if chunk.rank is rank]
        shapes = {f"{chunk.virtual} {name}": x.shape for chunk in own for name, x in chunk.tensors.items()}
        for optimizer in _optimizers(rank.value.get("optimizer")):
            states, groups = _states_of(optimizer)
            found = names_by_order(groups, _sizes(states), shapes)
            named += len(found)
            unnamed += 0 if found else len({number for number, _, _ in states})
            for number, what, tensor in states:
                local = found.get(number, "").partition(" ")[2]
                globals_ = names[id(rank)].get(local, ())
                virtual = found.get(number, "").partition(" ")[0]
                name = _global_name(local, globals_, own, virtual)
                if name is None:
                    label = f"{rank.label(grid)}.{number}"
                    draft.add(joined(state_name(label, what), [Piece(source=tensor, begin=(0,) * len(tensor.shape),
                                     file=rank.path, rank=rank.label(grid))], kind=kind_of_state(what)))  # fmt: skip
                    continue
                parts.setdefault((name, what), []).append(_Part(name, tensor, rank, local))
            own_groups = groups_of(optimizer.get("param_groups"))
            for i, group in enumerate(own_groups):
                scalars = {key: each for key, each in group.items() if key != "params"}
                draft.settings |= flattened(scalars, f"optimizer.param_groups.{i}")
    for (name, what), own_parts in parts.items():
        _add(draft, state_name(name, what), own_parts, gated, grid, kind_of_state(what), of=name)
    if named:
        draft.notes.append(note(OpeningCode.NAMED_BY_ORDER, count=named))
    if unnamed:
        draft.notes.append(note(OpeningCode.UNNAMED_STATES, count=unnamed))


def _global_name(local: str, names: Sequence[str], chunks: Sequence[_Chunk], virtual: str) -> str | None:
    """Return the global name of a parameter of one rank; ``None`` if it is not known."""
    if not local or not names:
        return None
    if len(names) == 1:
        return names[0]
    # The same local name in several virtual stages: names are in the order of the stages.
    order = sorted(chunk.virtual for chunk in chunks if local in chunk.tensors)
    return names[order.index(int(virtual))] if len(order) == len(names) else None


def _optimizers(value: Any) -> list[dict[Key, Any]]:
    """Return the state dicts of an optimizer: one, or those of several that are chained."""
    if isinstance(value, list):
        return [each for part in cast("list[Any]", value) for each in _optimizers(part)]
    if not isinstance(value, dict):
        return []
    content = cast("dict[Key, Any]", value)
    inner: Any = content.get("optimizer")
    if isinstance(inner, dict) and "state" in inner:
        masters = next((content[key] for key in _MASTER_KEYS if key in content), None)
        return [{**cast("dict[Key, Any]", inner), "masters": masters}]
    if "state" in content and "param_groups" in content:
        return [content]
    chained = [content[key] for key in content if isinstance(key, int)]
    return [each for part in chained for each in _optimizers(part)]


def _states_of(optimizer: Mapping[Key, Any]) -> tuple[list[tuple[Key, str, StoredTensor]], list[list[Key]]]:
    """Return number, name and tensor of each state, and the numbers in each group."""
    groups = [numbers_of(group) for group in groups_of(optimizer.get("param_groups"))]
    found: list[tuple[Key, str, StoredTensor]] = []
    state: Any = optimizer.get("state")
    for number, values in (cast("dict[Key, Any]", state) if isinstance(state, dict) else {}).items():
        for what, value in (cast("dict[Key, Any]", values) if isinstance(values, dict) else {}).items():
            if isinstance(value, StoredTensor) and type(number) is int:
                found.append((number, str(what), value))
    masters: Any = optimizer.get("masters")
    if isinstance(masters, list):
        for group, own in zip(groups, cast("list[Any]", masters), strict=False):
            for number, value in zip(group, cast("list[Any]", own) if isinstance(own, list) else [], strict=False):
                if isinstance(value, StoredTensor):
                    found.append((number, "fp32_param", value))
    return found, groups


def _sizes(states: Sequence[tuple[Key, str, StoredTensor]]) -> dict[Key, tuple[int, ...]]:
    return {number: x.shape for number, what, x in states if kind_of_state(what) in (Kind.MOMENT, Kind.MASTER)}
