"""Open checkpoints in safetensors: one file, several, or several with an index, of Hugging Face and of MindSpore.

A file that the index names and that is missing makes its tensors damaged. Source: ``modeling_utils.py`` of transformers
for the index, ``hf_storage.py`` of ``torch.distributed.checkpoint`` for the offsets of parts in the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.checkpoint.contents import CheckpointFormat, Piece
from msprobe_core.checkpoint.directory import (
    Draft,
    absence_of,
    flattened,
    inside,
    read_config,
    read_json,
    step_in,
    tie_by_config,
)
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.pieces import damaged, error, joined, unreadable, whole
from msprobe_core.errors import DumpError, clip
from msprobe_core.store.tensor_source import StoredTensor
from msprobe_core.store.tensors import shard_tensors

INDEX_ENDING = ".safetensors.index.json"
_PARTS_KEY = "DCP_SHARDING_INFO"


def open_safetensors(path: Path, files: Iterable[Path], index: Path | None = None) -> Draft:
    """Return a checkpoint of safetensors files.

    Args:
        path: The file or directory that was given.
        files: Files, if there is no index.
        index: The index of the files.

    Raises:
        DumpError: the index cannot be read.
    """
    draft = Draft(path, CheckpointFormat.SAFETENSORS)
    directory = path if path.is_dir() else path.parent
    expected = {} if index is None else index_of(draft, index)
    chosen = files_of(draft, directory, expected) if index is not None else dict.fromkeys(files, ())
    parts: dict[str, list[Piece]] = {}
    for file, names in chosen.items():
        draft.count(file)
        _add_file(draft, file, names, parts)
    for name, pieces in parts.items():
        draft.add(joined(name, pieces, rule="placed by the offsets in its files"))
    for name in expected:
        if name not in draft.tensors:
            draft.add(damaged(name, error(OpeningCode.MISSING_ENTRY, file=clip(expected[name]))))
    config = read_config(draft, directory / "config.json")
    tie_by_config(draft, config)
    draft.step = _step(directory)
    return draft


def index_of(draft: Draft, index: Path) -> dict[str, str]:
    """Return the file of each tensor in an index; names of files that lead out of its directory make damage.

    Raises:
        DumpError: it cannot be read, or has no such table.
    """
    draft.count(index)
    content = read_json(index)
    table: Any = cast("dict[str, Any]", content).get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise DumpError(f"{index}: has no table 'weight_map' of tensors and files")
    files = {file for file in cast("dict[str, Any]", table).values() if isinstance(file, str)}
    sound = {file for file in files if inside(index.parent, file) is not None}
    found: dict[str, str] = {}
    for name, file in cast("dict[str, Any]", table).items():
        if not isinstance(file, str) or file not in sound:
            draft.add(damaged(name, error(OpeningCode.OUTSIDE, file=clip(str(file)))))
        else:
            found[name] = file
    return found


def files_of(draft: Draft, directory: Path, expected: Mapping[str, str]) -> dict[Path, Sequence[str]]:
    """Return the files of an index that exist, and the tensors of each; those of the others are damaged."""
    names: dict[str, list[str]] = {}
    for name, file in expected.items():
        names.setdefault(file, []).append(name)
    found: dict[Path, Sequence[str]] = {}
    for file in sorted(names):
        if (directory / file).is_file():
            found[directory / file] = names[file]
            continue
        missing = absence_of(directory / file, file)
        draft.notes.append(missing)
        for name in names[file]:
            draft.add(damaged(name, missing))
    return found


def _add_file(draft: Draft, file: Path, expected: Iterable[str], parts: dict[str, list[Piece]]) -> None:
    try:
        tensors, metadata = shard_tensors(file)
    except DumpError as problem:
        finding = unreadable(str(problem))
        draft.notes.append(finding)
        for name in expected:
            draft.add(damaged(name, finding))
        return
    offsets = _offsets(metadata)
    overlapping = _overlaps(tensors)
    for name, tensor in tensors.items():
        if isinstance(tensor, str):
            draft.add(damaged(name, unreadable(tensor)))
        elif name in overlapping:
            finding = error(OpeningCode.OVERLAP, first=clip(name), second=clip(overlapping[name]))
            draft.add(damaged(name, finding, dtype=tensor.dtype, shape=tensor.shape))
        elif name in offsets and len(offsets[name]) == len(tensor.shape):
            parts.setdefault(name, []).append(Piece(source=tensor, begin=offsets[name], file=file, rank=file.name))
        else:
            draft.add(whole(name, tensor, file))
    if offsets:
        metadata = {key: value for key, value in metadata.items() if key != _PARTS_KEY}
    draft.settings |= flattened(metadata, "metadata")


def _offsets(metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return where the tensors of a file begin in larger ones, as PyTorch's distributed checkpoints say."""
    if _PARTS_KEY not in metadata:
        return {}
    try:
        content = msgspec.json.decode(metadata[_PARTS_KEY], type=dict[str, dict[str, Any]])
        return {
            name: msgspec.convert(each["saved_offsets"], tuple[int, ...])
            for name, each in content.items()
            if "saved_offsets" in each
        }
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _overlaps(tensors: Mapping[str, StoredTensor | str]) -> dict[str, str]:
    """Return tensors whose bytes overlap with those of another one, and its name."""
    places = sorted(
        (tensor.storage.begin, tensor.storage.begin + tensor.storage.num_bytes, name)
        for name, tensor in tensors.items()
        if isinstance(tensor, StoredTensor) and tensor.storage.num_bytes
    )
    found: dict[str, str] = {}
    end, last = 0, ""
    for begin, own_end, name in places:
        if begin < end:
            found[name] = last
            found.setdefault(last, name)
        if own_end > end:
            end, last = own_end, name
    return found


def _step(directory: Path) -> int | None:
    state = directory / "trainer_state.json"
    if state.is_file():
        try:
            content = read_json(state)
        except DumpError:
            return step_in(directory.name)
        step: Any = cast("dict[str, Any]", content).get("global_step") if isinstance(content, dict) else None
        if isinstance(step, int):
            return step
    return step_in(directory.name)
