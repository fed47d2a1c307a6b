"""Open checkpoints of DeepSpeed's ZeRO, whose ranks share flat vectors of all parameters of a group.

Stages 1 and 2 divide the vector of each group among ranks; stage 3 divides every parameter, and stores no others.

Source: ``utils/zero_to_fp32.py`` of DeepSpeed 0.19.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from msprobe_core.checkpoint.contents import CheckpointFormat, Kind
from msprobe_core.checkpoint.directory import Draft, flattened, step_in
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.optimizer_names import kind_of_state, state_name
from msprobe_core.checkpoint.pieces import damaged, error, unreadable, whole
from msprobe_core.errors import DumpError, clip
from msprobe_core.store.joined_tensor import JoinedTensor
from msprobe_core.store.pt_trees import Key, Opaque, PtTree, open_pt_tree, path_text
from msprobe_core.store.tensor_source import StoredTensor

_STATES = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MASTER = "fp32_param"


def open_deepspeed(path: Path) -> Draft:
    """Return the checkpoint in the directory of one step.

    Raises:
        DumpError: its files cannot be read; or it is of several model parallel ranks.
    """
    draft = Draft(path, CheckpointFormat.DEEPSPEED)
    names = sorted(each.name for each in path.iterdir())
    models = [name for name in names if name.endswith("mp_rank_00_model_states.pt")]
    if not models or any(re.search(r"mp_rank_(?!00)\d+_", name) for name in names):
        raise DumpError(
            f"{path}: is of several model parallel ranks, whose layout DeepSpeed does not store; convert it to a "
            "universal checkpoint with deepspeed.checkpoint.ds_to_universal, or save full parameters"
        )
    draft.count(path / models[0])
    model = open_pt_tree(path / models[0])
    content: Any = model.value
    value = cast("dict[Key, Any]", content) if isinstance(content, dict) else {}
    step: object = value.get("global_steps")
    draft.step = step if type(step) is int else step_in(path.name)
    draft.settings |= flattened(value.get("ds_config"), "ds_config")
    ranks = _ranks(draft, names)
    stage = max((_stage(tree) for tree in ranks.values()), default=0)
    if stage < 3:
        _add_module(draft, model)
    _add_states(draft, ranks, _shapes(value.get("param_shapes")), stage)
    return draft


def _add_module(draft: Draft, model: PtTree) -> None:
    if "module" not in model.value:
        return
    for keys, tensor in model.leaves("module"):
        if isinstance(tensor, StoredTensor):
            draft.add(whole(path_text(keys), tensor, model.path))


def _ranks(draft: Draft, names: Sequence[str]) -> dict[int, PtTree]:
    found: dict[int, PtTree] = {}
    for name in names:
        if match := _STATES.fullmatch(name):
            draft.count(draft.path / name)
            try:
                found[int(match[1])] = open_pt_tree(draft.path / name)
            except DumpError as problem:
                draft.notes.append(unreadable(str(problem)))
    return found


def _state_of(tree: PtTree) -> Mapping[Key, Any]:
    value: Any = tree.value
    inner: Any = cast("dict[Key, Any]", value).get("optimizer_state_dict") if isinstance(value, dict) else None
    return cast("dict[Key, Any]", inner) if isinstance(inner, dict) else {}


def _stage(tree: PtTree) -> int:
    """Return the stage: a number, or a member of DeepSpeed's enumeration, which is not made but says its value."""
    stage = _state_of(tree).get("zero_stage")
    if isinstance(stage, Opaque) and stage.name.endswith(".ZeroStageEnum") and len(stage.args) == 1:
        stage = stage.args[0]
    return stage if type(stage) is int else 0


def _shapes(value: Any) -> list[dict[str, tuple[int, ...]]]:
    """Return shapes of parameters by name, for each group."""
    groups: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    found: list[dict[str, tuple[int, ...]]] = []
    for group in groups:
        own: dict[str, tuple[int, ...]] = {}
        for name, shape in (cast("dict[Key, Any]", group) if isinstance(group, dict) else {}).items():
            if type(shape) is not tuple:
                continue
            sizes = cast("tuple[int, ...]", shape)
            if all(type(each) is int and each >= 0 for each in sizes):
                own[str(name)] = sizes
        found.append(own)
    return found


def _add_states(
    draft: Draft, ranks: Mapping[int, PtTree], shapes: list[dict[str, tuple[int, ...]]], stage: int
) -> None:
    if not ranks:
        return
    count = _state_of(next(iter(ranks.values()))).get("partition_count")
    size: object = max(cast("list[int]", count), default=0) if isinstance(count, list) else count
    expected = size if type(size) is int and 0 < size < 1 << 20 else 1 + max(ranks)
    missing = [f"dp{rank}" for rank in range(expected) if rank not in ranks]
    vectors = [_vectors(_state_of(tree), stage) for _, tree in sorted(ranks.items())]
    kinds = sorted({what for own in vectors for what in own})
    damage = error(OpeningCode.MISSING_RANK, rank=", ".join(missing[:16])) if missing else None
    for what in kinds:
        flats = [own.get(what, []) for own in vectors]
        for name, shape, parts in _placed(flats, shapes, stage):
            is_weight = what == _MASTER and stage >= 3
            label = name if is_weight else state_name(name, what)
            kind = Kind.WEIGHT if is_weight else kind_of_state(what)
            found = sum(part.numel for part in parts)
            if damage is not None or found != math.prod(shape):
                gap = damage or error(OpeningCode.GAP, found=found, total=math.prod(shape))
                draft.add(damaged(clip(label), gap, shape=shape, kind=kind))
                continue
            dtype = parts[0].dtype if parts else "float32"
            file = parts[0].storage.file if parts else draft.path
            source = JoinedTensor(Path(f"{file}#{clip(name)}"), tuple(parts), shape, dtype)
            tensor = whole(label, source, file, kind=kind)
            draft.add(replace(tensor, rule=f"flat vectors of {len(ranks)} ranks, ZeRO stage {stage}"))


def _vectors(state: Mapping[Key, Any], stage: int) -> dict[str, list[StoredTensor]]:
    """Return the flat vectors of one rank: copies in float32, and states of the optimizer by name."""
    masters: Any = state.get("fp32_flat_groups" if stage >= 3 else "single_partition_of_fp32_groups")
    found = {_MASTER: _flat_tensors(masters)}
    base: Any = state.get("optimizer_state_dict" if stage >= 3 else "base_optimizer_state")
    values: Any = cast("dict[Key, Any]", base).get("state") if isinstance(base, dict) else None
    for own in (cast("dict[Key, Any]", values) if isinstance(values, dict) else {}).values():
        for what, tensor in (cast("dict[Key, Any]", own) if isinstance(own, dict) else {}).items():
            if isinstance(tensor, StoredTensor) and len(tensor.shape) == 1:
                found.setdefault(str(what), []).append(tensor)
    return {what: own for what, own in found.items() if own}


def _flat_tensors(value: Any) -> list[StoredTensor]:
    if isinstance(value, StoredTensor):
        return [value]
    parts: list[Any] = cast("list[Any]", value) if isinstance(value, list) else []
    return [each for part in parts for each in ([part] if isinstance(part, StoredTensor) else _one_level(part))]


def _one_level(value: Any) -> list[StoredTensor]:
    parts: list[Any] = cast("list[Any]", value) if isinstance(value, list) else []
    return [each for each in parts if isinstance(each, StoredTensor)]


def _placed(
    flats: Sequence[Sequence[StoredTensor]], shapes: Sequence[Mapping[str, tuple[int, ...]]], stage: int
) -> Iterator[tuple[str, tuple[int, ...], list[StoredTensor]]]:
    """Yield each parameter with its shape, and the ranges of the ranks' vectors that it is in."""
    if stage < 3:
        for group, own in enumerate(shapes):
            vectors = [rank[group] for rank in flats if len(rank) > group]
            begin = 0
            for name, shape in own.items():
                yield name, shape, list(_range(vectors, begin, math.prod(shape)))
                begin += math.prod(shape)
        return
    begin = 0
    for name, shape in ((name, shape) for own in shapes for name, shape in own.items()):
        numel = math.prod(shape)
        share = -(-numel // len(flats))
        parts: list[StoredTensor] = []
        for rank, vectors in enumerate(flats):
            parts += _range(vectors, begin, max(0, min(share, numel - rank * share)))
        yield name, shape, parts
        begin += share


def _range(vectors: Sequence[StoredTensor], begin: int, count: int) -> Iterator[StoredTensor]:
    """Yield the views of vectors, one after the other, that a range of their elements is in."""
    for vector in vectors:
        size = vector.numel
        if begin < size and count:
            taken = min(count, size - begin)
            offset = vector.offset + begin * (vector.strides[0] if vector.strides else 1)
            yield replace(vector, shape=(taken,), strides=(vector.strides[0] if vector.strides else 1,), offset=offset)
            count -= taken
            begin += taken
        begin -= size
        if not count:
            return
