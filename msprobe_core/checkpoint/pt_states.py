"""Open state dicts and training states in files of ``torch.save``: one file, or several with an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from msprobe_core.checkpoint.contents import CheckpointFormat, Kind
from msprobe_core.checkpoint.directory import Draft, flattened, read_config, step_in, tie_by_config
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.optimizer_names import (
    given_names,
    groups_of,
    kind_of_state,
    names_by_order,
    numbers_of,
    state_name,
)
from msprobe_core.checkpoint.pieces import damaged, note, unreadable, whole
from msprobe_core.checkpoint.safetensors_files import files_of, index_of
from msprobe_core.errors import DumpError, clip
from msprobe_core.store.pt_trees import Key, Opaque, PathInTree, PtTree, open_pt_tree
from msprobe_core.store.tensor_source import Storage, StoredTensor

BIN_INDEX_ENDING = ".bin.index.json"

_WRAPPERS = frozenset({
    "model", "state_dict", "model_state_dict", "module", "net", "network", "weights", "params", "app", "ema",
})  # fmt: skip
OPTIMIZERS = frozenset({"optimizer", "optim", "optimizer_state_dict", "optim_state_dict", "opt", "optimizer_states"})
_STATE_WORDS = ("rng", "scheduler", "random", "loader", "sampler", "scaler")
_PLAIN_STATE_WORDS = ("sched", "loader", "sampler", "scaler")
"""In keys of states that are numbers rather than tensors: what a resumed job must go on with."""
_SETTINGS = frozenset({"args", "hyper_parameters", "config", "cfg", "hparams"})
_MODULE_PARTS = frozenset({"_modules", "_parameters", "_buffers"})

_View = tuple[Storage, int, tuple[int, ...], tuple[int, ...]]


def open_pt_states(path: Path, files: Iterable[Path], index: Path | None = None) -> Draft:
    """Return a checkpoint of files of ``torch.save``.

    Raises:
        DumpError: the only file, or the index, cannot be read; or it holds flat parameters of FSDP.
    """
    draft = Draft(path, CheckpointFormat.PT)
    directory = path if path.is_dir() else path.parent
    expected = {} if index is None else index_of(draft, index)
    chosen = files_of(draft, directory, expected) if index is not None else dict.fromkeys(files, ())
    for file, names in chosen.items():
        draft.count(file)
        try:
            tree = open_pt_tree(file)
        except DumpError as problem:
            if len(chosen) == 1:
                raise
            draft.notes.append(unreadable(str(problem)))
            for name in names:
                draft.add(damaged(name, unreadable(str(problem))))
            continue
        add_tree(draft, tree)
    config = read_config(draft, directory / "config.json")
    tie_by_config(draft, config)
    if draft.step is None:
        draft.step = step_in(path.name if path.is_dir() else path.stem)
    return draft


def add_tree(draft: Draft, tree: PtTree) -> None:
    """Add the tensors of a file by their paths: weights, states of optimizers, other states.

    Raises:
        DumpError: it holds flat parameters of FSDP.
    """
    known: dict[_View, str] = {}
    num_objects = 0
    for path, value in tree.leaves():
        optimizer = next((i for i, key in enumerate(path) if key in OPTIMIZERS), None)
        if optimizer is not None or _is_bare_optimizer(tree.value):
            continue
        if isinstance(value, StoredTensor):
            name, kind = weight_name(path)
            _refuse_flat(tree.path, name)
            view = (value.storage, value.offset, value.shape, value.strides)
            if kind is Kind.WEIGHT and value.numel and view in known:
                draft.aliases[name] = known[view]
            else:
                known[view] = name
                draft.add(whole(name, value, tree.path, kind=kind))
        elif isinstance(value, Opaque) and value.reason:
            draft.add(damaged(weight_name(path)[0], unreadable(f"{value.name}: {value.reason}")))
        elif isinstance(value, Opaque):
            num_objects += 1
    draft.skip("objects", num_objects)
    _add_optimizers(draft, tree)
    _add_settings(draft, tree)


def add_trainer_files(draft: Draft, files: Iterable[Path]) -> None:
    """Add what a trainer saved beside the weights, such as ``optimizer.pt``, ``scheduler.pt`` and ``rng_state.pth``."""
    for file in files:
        draft.count(file)
        try:
            tree = open_pt_tree(file)
        except DumpError as problem:
            draft.notes.append(unreadable(str(problem)))
            continue
        if _is_bare_optimizer(tree.value):
            _add_optimizers(draft, tree)
            continue
        for path, value in tree.leaves():
            name = ".".join((file.stem, *map(str, path)))
            if isinstance(value, StoredTensor):
                draft.add(whole(name, value, file, kind=Kind.STATE))
            elif isinstance(value, (bool, int, float, str)):
                draft.settings |= flattened(value, name)


def weight_name(path: PathInTree) -> tuple[str, Kind]:
    """Return the name of a tensor without what only wraps the state dict, and what it is."""
    keys = [str(key) for key in path if key not in _MODULE_PARTS]
    while len(keys) > 1 and keys[0] in _WRAPPERS and not _is_layer(keys[1]):
        keys = keys[1:]
    name = ".".join(keys) or "tensor"
    is_state = any(word in key.lower() for key in keys[:1] for word in _STATE_WORDS)
    return name, Kind.STATE if is_state else Kind.WEIGHT


def _is_layer(key: str) -> bool:
    """Whether a key is a part of a module's name rather than a whole name, as in nested state dicts."""
    return key.isdigit()


def _refuse_flat(path: Path, name: str) -> None:
    if name.rpartition(".")[2] in ("_flat_param", "flat_param") or "._flat_param_" in name:
        raise DumpError(
            f"{path}: holds flat parameters of FSDP ({clip(name)}), whose layout is not in the file; save it with "
            "torch.distributed.checkpoint, or with StateDictType.FULL_STATE_DICT"
        )


def _is_bare_optimizer(value: Any) -> bool:
    """Whether a value is the state dict of an optimizer itself."""
    return isinstance(value, dict) and "param_groups" in value and "state" in value


def _optimizers(value: Any) -> list[dict[Key, Any]]:
    if _is_bare_optimizer(value):
        return [value]
    if not isinstance(value, dict):
        return []
    found: list[dict[Key, Any]] = []
    for key, part in cast("dict[Key, Any]", value).items():
        if key in OPTIMIZERS:
            parts: list[Any] = cast("list[Any]", part) if isinstance(part, list) else [part]
            found += [cast("dict[Key, Any]", each) for each in parts if _is_bare_optimizer(each)]
    return found


def _add_optimizers(draft: Draft, tree: PtTree) -> None:
    shapes = {name: tensor.shape for name, tensor in draft.tensors.items() if tensor.kind is Kind.WEIGHT}
    for number, optimizer in enumerate(_optimizers(tree.value)):
        add_optimizer(draft, tree.path, optimizer, shapes, prefix=f"{number}." if number else "")


def add_optimizer(
    draft: Draft, file: Path, optimizer: Mapping[Key, Any], shapes: Mapping[str, tuple[int, ...]], prefix: str = ""
) -> None:
    """Add the states of an optimizer's state dict, by the names of its parameters if they are known.

    Args:
        draft: Where they are added.
        file: The file that they are in.
        optimizer: ``state`` and ``param_groups``.
        shapes: Shapes of parameters, in the order of the model.
        prefix: Of the parameter's name, for a second optimizer.
    """
    state: Any = optimizer.get("state")
    states = cast("dict[Key, Any]", state) if isinstance(state, dict) else {}
    names = names_of_states(draft, states, optimizer.get("param_groups"), shapes)
    for number, values in states.items():
        parameter = prefix + (names.get(number) or str(number))
        if not isinstance(values, dict):
            continue
        for what, value in cast("dict[Key, Any]", values).items():
            name = state_name(parameter, str(what))
            if isinstance(value, StoredTensor):
                draft.add(whole(name, value, file, kind=kind_of_state(str(what))))
            elif isinstance(value, Opaque) and value.reason:
                draft.add(damaged(name, unreadable(value.reason), kind=kind_of_state(str(what))))
    for number, group in enumerate(groups_of(optimizer.get("param_groups"))):
        own = {key: each for key, each in group.items() if key not in ("params", "param_names")}
        draft.settings |= flattened(own, f"optimizer.{prefix}param_groups.{number}")


def names_of_states(
    draft: Draft, states: Mapping[Key, Any], groups: Any, shapes: Mapping[str, tuple[int, ...]]
) -> dict[Key, str]:
    """Return the parameter of each key of an optimizer's states; notes how it is known, or that it is not."""
    numbers = [number for number in states if isinstance(number, int)]
    if not numbers:
        return {key: key for key in states if isinstance(key, str)}
    if names := given_names(groups):
        return names
    sizes: dict[Key, tuple[int, ...]] = {}
    for number in numbers:
        values = cast("dict[Key, Any]", states[number]) if isinstance(states[number], dict) else {}
        for what, value in values.items():
            if isinstance(value, StoredTensor) and kind_of_state(str(what)) is Kind.MOMENT:
                sizes[number] = value.shape
                break
    names = names_by_order([numbers_of(group) for group in groups_of(groups)], sizes, shapes)
    if names:
        draft.notes.append(note(OpeningCode.NAMED_BY_ORDER, count=len(names)))
    elif numbers:
        draft.notes.append(note(OpeningCode.UNNAMED_STATES, count=len(numbers)))
    return names


def _is_plain(value: Any) -> bool:
    return not isinstance(value, (dict, list, tuple))


def _add_settings(draft: Draft, tree: PtTree) -> None:
    content: Any = tree.value
    if not isinstance(content, dict):
        return
    for key, value in cast("dict[Key, Any]", content).items():
        is_state = any(word in str(key).lower() for word in _PLAIN_STATE_WORDS)
        if is_state or _is_plain(value) or key in _SETTINGS:
            if isinstance(value, (StoredTensor, Opaque)) or value is None:
                continue
            draft.settings |= flattened(value, "" if key == "args" else str(key))
        if key in ("step", "global_step", "iteration", "global_steps") and type(value) is int:
            draft.step = value
