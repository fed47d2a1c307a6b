"""Open checkpoints of Megatron-LM with one file for each model parallel rank: ``mp_rank_*/model_optim_rng.pt``.

Directories are ``mp_rank_TT``, with ``_PPP`` if there are pipeline stages and ``_EEE`` if there are expert parallel
ranks. Each file counts layers and experts from 0; with virtual stages it has ``model0``, ``model1``, … instead of
``model``.

Source: ``get_checkpoint_name`` and ``generate_state_dict`` in ``megatron/training/checkpointing.py`` of Megatron-LM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msprobe_core.checkpoint.contents import CheckpointFormat, Kind
from msprobe_core.checkpoint.directory import Draft, flattened, step_in
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.optimizer_names import (
    groups_of,
    kind_of_state,
    names_by_order,
    numbers_of,
    state_name,
)
from msprobe_core.checkpoint.pieces import damaged, error, note, unreadable
from msprobe_core.checkpoint.rank_parts import (
    Chunk,
    Grid,
    Holder,
    Part,
    Together,
    add_states,
    add_unnamed,
    global_name,
    note_missing,
    put_together,
)
from msprobe_core.compare.shards.placement import MeshCoordinate
from msprobe_core.errors import DumpError, clip
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.pt_trees import Key, Opaque, PtTree, open_pt_tree, path_text
from msprobe_core.store.tensor_source import StoredTensor

if TYPE_CHECKING:
    from msprobe_core.checkpoint.declared_ranks import RankLayout

_RANK = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_(\d{1,6}))?")
_MODEL = re.compile(r"model(\d{0,3})")
_WEIGHT_FILES = ("model_optim_rng.pt", "model_rng.pt", "model.pt")
_TABLE, _HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
_MASTER_KEYS = ("fp32_from_fp16_params", "fp32_groups")


@dataclass(frozen=True)
class _RankFile:
    """One file and the rank that it is of."""

    holder: Holder
    tree: PtTree

    @property
    def value(self) -> Mapping[Key, Any]:
        """What the file holds, by key."""
        return cast("dict[Key, Any]", self.tree.value)


def open_megatron(path: Path, layout: RankLayout | None = None) -> Draft:
    """Return the checkpoint in the directory of one iteration.

    Args:
        path: The directory.
        layout: What a layout file says of its ranks, where the arguments of the training do not.

    Raises:
        DumpError: none of its files can be read.
    """
    draft = Draft(path, CheckpointFormat.MEGATRON)
    ranks = _rank_files(draft, layout)
    grid = _grid_of(draft, ranks, layout)
    note_missing(draft, [rank.holder for rank in ranks], grid)
    chunks = [chunk for rank in ranks for chunk in _chunks(draft, rank)]
    together = put_together(draft, chunks, grid)
    _tie(draft, is_tied=_args([rank.value for rank in ranks]).get("untie_embeddings_and_output_weights") is False)
    _add_optimizers(draft, ranks, chunks, together, grid)
    draft.step = draft.step if draft.step is not None else step_in(path.name)
    return draft


# --- files ----------------------------------------------------------------------------------------------------------


def _rank_files(draft: Draft, layout: RankLayout | None) -> list[_RankFile]:
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
    if layout is None:
        has_stages = _has_stages([numbers for numbers, _ in found], [tree for _, tree in found])
    else:
        has_stages = layout.size_of("pp") > 1 or any(len(numbers) == 3 for numbers, _ in found)
    return [_rank_file(numbers, tree, has_stages=has_stages) for numbers, tree in found]


def _rank_file(numbers: tuple[int, ...], tree: PtTree, *, has_stages: bool) -> _RankFile:
    if len(numbers) == 3:
        tp, pp, ep = numbers
    elif len(numbers) == 2:
        tp, pp, ep = (numbers[0], numbers[1], 0) if has_stages else (numbers[0], 0, numbers[1])
    else:
        tp, pp, ep = numbers[0], 0, 0
    return _RankFile(Holder(tree.path, MeshCoordinate((("ep", ep), ("pp", pp), ("tp", tp)))), tree)


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


def _grid_of(draft: Draft, ranks: Sequence[_RankFile], layout: RankLayout | None) -> Grid:
    args = _args([rank.value for rank in ranks])
    draft.settings |= flattened(args)
    for rank in ranks:
        step = rank.value.get("iteration")
        if type(step) is int and draft.path.name != "release":
            draft.step = step
    gated = args.get("swiglu") is True or args.get("gated_linear_unit") is True
    expert_tp = _int(args, "expert_tensor_parallel_size")
    holders = [rank.holder for rank in ranks]

    def size(axis: str, argument: str) -> int:
        declared = 1 if layout is None else layout.size_of(axis)
        return max(_int(args, argument) or 1, declared, *(holder.place.on(axis) + 1 for holder in holders))

    return Grid(
        tp=size("tp", "tensor_model_parallel_size"),
        pp=size("pp", "pipeline_model_parallel_size"),
        ep=size("ep", "expert_model_parallel_size"),
        experts_are_cut=expert_tp is None or expert_tp > 1,
        num_experts=_int(args, "num_experts"),
        is_gated=gated if args else None,
        first_layers=() if layout is None else layout.ranks.first_layers,
        rules=() if layout is None else layout.rules,
    )


def _chunks(draft: Draft, rank: _RankFile) -> Iterator[Chunk]:
    num_skipped = 0
    for key in rank.value:
        found = _MODEL.fullmatch(key) if isinstance(key, str) else None
        if found is None:
            continue
        tensors: dict[str, TensorSource] = {}
        for path, leaf in rank.tree.leaves(key):
            name = path_text(path)
            if name.endswith("_extra_state"):
                num_skipped += isinstance(leaf, (StoredTensor, Opaque))
            elif isinstance(leaf, StoredTensor):
                tensors[name] = leaf
            elif isinstance(leaf, Opaque) and leaf.reason:
                draft.add(damaged(f"{name} ({rank.tree.path.parent.name})", unreadable(leaf.reason)))
        yield Chunk(rank.holder, int(found[1] or 0), tensors)
    draft.skip("extra states", num_skipped)


def _tie(draft: Draft, *, is_tied: bool) -> None:
    """Make the head an alias of the embedding if they are tied; the copy of the last stage is a replica."""
    if not is_tied or _TABLE not in draft.tensors:
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
    draft: Draft, ranks: Sequence[_RankFile], chunks: Sequence[Chunk], together: Together, grid: Grid
) -> None:
    """Add moments and copies in float32, put together as their parameters are."""
    parts: dict[tuple[str, str], list[Part]] = {}
    unnamed = 0
    named = 0
    for rank in ranks:
        holder = rank.holder
        own = [chunk for chunk in chunks if chunk.rank == holder]
        shapes = {f"{chunk.virtual} {name}": x.shape for chunk in own for name, x in chunk.tensors.items()}
        for optimizer in _optimizers(rank.value.get("optimizer")):
            states, groups = _states_of(optimizer)
            found = names_by_order(groups, _sizes(states), shapes)
            named += len(found)
            unnamed += 0 if found else len({number for number, _, _ in states})
            for number, what, tensor in states:
                virtual, _, local = found.get(number, "0 ").partition(" ")
                stages = [chunk.virtual for chunk in own if local in chunk.tensors]
                name = global_name(local, together.names[holder].get(local, ()), int(virtual), stages)
                if name is None:
                    add_unnamed(draft, state_name(f"{grid.label(holder)}.{number}", what), tensor, holder, grid)
                else:
                    parts.setdefault((name, what), []).append(Part(name, tensor, holder, local))
            for i, group in enumerate(groups_of(optimizer.get("param_groups"))):
                scalars = {key: each for key, each in group.items() if key != "params"}
                draft.settings |= flattened(scalars, f"optimizer.param_groups.{i}")
    add_states(draft, parts, together, grid)
    if named:
        draft.notes.append(note(OpeningCode.NAMED_BY_ORDER, count=named))
    if unnamed:
        draft.notes.append(note(OpeningCode.UNNAMED_STATES, count=unnamed))


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
