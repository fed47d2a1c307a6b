"""Open a checkpoint of any format by its content; only headers are read.

Imports of formats are in functions, so that opening one does not load the others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_core.checkpoint.contents import Checkpoint, CheckpointFormat
from msprobe_core.checkpoint.directory import Draft, inside
from msprobe_core.errors import DumpError, LargeDumpError, MissingDumpError, clip
from msprobe_core.garbage import paused_collection
from msprobe_core.untrusted.files import read_plain

if TYPE_CHECKING:
    from msprobe_core.checkpoint.declared_ranks import RankLayout

_TRACKER = "latest_checkpointed_iteration.txt"
_LATEST = "latest"
_MAX_TRACKER_BYTES = 4096
_MAX_FILES = 100_000

TENSOR_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz")
_STATES = ("optimizer", "scheduler", "rng_state", "scaler")
_BESIDE_WEIGHTS = (*_STATES, "training_args")
_STATE_ENDINGS = (".pt", ".pth", ".bin")
"""Beginnings of names of files that trainers write beside the weights."""


def open_checkpoint(path: str | os.PathLike[str], layout: RankLayout | None = None) -> Checkpoint:
    """Return what a checkpoint holds.

    Args:
        path: A file, or a directory; of several checkpoints in a directory the latest one, if a file names it.
        layout: How a directory's files, one for each rank, form the model, where they do not say it themselves.

    Raises:
        DumpError: it does not exist, is of an unknown format, or nothing of it can be read. What concerns single
            tensors is their ``damage``.
    """
    path = Path(path)
    try:
        with paused_collection():
            if path.is_dir():
                return _open_directory(path, layout).done()
            if layout is not None and path.exists():
                raise DumpError(
                    f"{path}: is one file, of which no layout of ranks can be declared; give their directory"
                )
            return _open_file(path).done()
    except OSError as problem:
        raise DumpError(f"{path}: cannot be read ({problem.strerror or problem})") from problem
    except MemoryError as problem:
        raise LargeDumpError(f"{path}: what describes its tensors does not fit into memory") from problem
    except RecursionError as problem:
        raise DumpError(f"{path}: what describes its tensors is nested too deeply") from problem


def _open_directory(path: Path, layout: RankLayout | None = None) -> Draft:
    if (path / ".metadata").is_file():
        if layout is not None:
            raise DumpError(f"{path}: says itself how its tensors are divided; leave its side out of --layout")
        from msprobe_core.checkpoint.dcp import open_dcp

        return open_dcp(path)
    if (path / _TRACKER).is_file():
        tag = _tracked(path / _TRACKER)
        name = "release" if tag == "release" else f"iter_{int(tag):07d}"
        return _open_directory(_existing(path, name, _TRACKER), layout)
    if (path / _LATEST).is_file():
        return _open_directory(_existing(path, _tracked(path / _LATEST), _LATEST), layout)
    names = _listed(path)
    if any(name.startswith("mp_rank_") and (path / name).is_dir() for name in names):
        from msprobe_core.checkpoint.megatron import open_megatron

        return open_megatron(path, layout)
    if layout is not None:
        from msprobe_core.checkpoint.declared_ranks import open_declared

        return open_declared(path, layout, TENSOR_ENDINGS, _open_rank)
    if any(name.endswith("_model_states.pt") for name in names):
        from msprobe_core.checkpoint.deepspeed import open_deepspeed

        return open_deepspeed(path)
    for ending, head in _HEADS.items():
        if any(name.endswith(ending) for name in names):
            raise DumpError(f"{path}: lacks {head}, without which its files *{ending} cannot be put together")
    if "common.pt" in names and ("metadata.json" in names or path.name.startswith("iter_")):
        raise DumpError(
            f"{path}: has common.pt alone, which Megatron-LM writes beside the tensors; .metadata and the files "
            "*.distcp are missing: copy them too"
        )
    return _open_files(path, names)


def _open_rank(path: Path) -> Draft:
    return _open_directory(path) if path.is_dir() else _open_file(path)


_HEADS = {".distcp": ".metadata", "_optim_states.pt": "mp_rank_00_model_states.pt"}
"""Files without which others, by the end of their names, are of no use."""


def _open_files(path: Path, names: list[str]) -> Draft:
    draft = _open_weights(path, names)
    beside = [path / name for name in names if name.startswith(_STATES) and name.endswith(_STATE_ENDINGS)]
    if beside:
        from msprobe_core.checkpoint.pt_states import add_trainer_files

        add_trainer_files(draft, [file for file in beside if file.is_file()])
    return draft


def _open_weights(path: Path, names: list[str]) -> Draft:
    from msprobe_core.checkpoint.pt_states import BIN_INDEX_ENDING, open_pt_states
    from msprobe_core.checkpoint.safetensors_files import INDEX_ENDING, open_safetensors

    for ending, open_indexed in ((INDEX_ENDING, open_safetensors), (BIN_INDEX_ENDING, open_pt_states)):
        indices = sorted((name for name in names if name.endswith(ending)), key=lambda name: (len(name), name))
        if indices:
            return open_indexed(path, (), path / indices[0])
    files = [path / name for name in names if name.endswith(TENSOR_ENDINGS) and (path / name).is_file()]
    weights = [file for file in files if not file.name.startswith(_BESIDE_WEIGHTS)]
    for ending in TENSOR_ENDINGS:
        own = [file for file in weights if file.name.endswith(ending)]
        if own and ending == ".safetensors":
            return open_safetensors(path, own)
        if own and ending in (".bin", ".pt", ".pth"):
            return open_pt_states(path, own)
        if len(own) == 1:
            return _open_file(own[0])
        if own:
            raise DumpError(f"{path}: holds {len(own)} files of the kind {ending}, each of its own; give one of them")
    inner = [name for name in names if (path / name).is_dir()]
    shown = f"; give one of its directories, such as {clip(inner[0])}" if inner else ""
    raise MissingDumpError(f"{path}: holds no checkpoint of a known format{shown}")


def _open_file(path: Path) -> Draft:
    from msprobe_core.tensor_files.contents import FileFormat
    from msprobe_core.tensor_files.opening import opened
    from msprobe_core.tensor_files.recognition import format_of

    if path.name.endswith((".safetensors.index.json", ".bin.index.json")):
        return _open_files(path.parent, [path.name])
    with opened(path) as file:
        form = format_of(file)
    if form in (FileFormat.SAFETENSORS, FileFormat.FLASHINFER) and path.suffix != ".pt":
        from msprobe_core.checkpoint.safetensors_files import open_safetensors

        return open_safetensors(path, [path])
    if form in (FileFormat.PT, FileFormat.SGLANG, FileFormat.FLASHINFER):
        from msprobe_core.checkpoint.pt_states import open_pt_states

        return open_pt_states(path, [path])
    if form.value in _OF_ONE_FILE:
        return _open_identified(path, _OF_ONE_FILE[form.value])
    raise DumpError(f"{path}: is no checkpoint of a known format; safetensors, torch.save, npz and MindSpore's are")


_OF_ONE_FILE = {"npz": CheckpointFormat.NPZ, "mindspore checkpoint": CheckpointFormat.MINDSPORE}


def _open_identified(path: Path, form: CheckpointFormat) -> Draft:
    from msprobe_core.checkpoint.mindspore_states import add_identified
    from msprobe_core.tensor_files.recognition import identify

    draft = Draft(path, form)
    add_identified(draft, identify(path))
    return draft


def _tracked(path: Path) -> str:
    """Return the text of a file that names the latest checkpoint.

    Raises:
        DumpError: it cannot be read, or does not name one.
    """
    try:
        text = read_plain(path, _MAX_TRACKER_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise DumpError(
            f"{path}: does not name a checkpoint ({problem}); give the checkpoint's own directory"
        ) from problem
    is_step = text == "release" or (text.isascii() and text.isdigit() and len(text) < 12)
    if not (is_step if path.name == _TRACKER else text and "/" not in text and "\n" not in text):
        raise DumpError(f"{path}: says {clip(text)!r}, which names no checkpoint; give the checkpoint's own directory")
    return text


def _existing(directory: Path, name: str, tracker: str) -> Path:
    found = inside(directory, name)
    if found is None or not found.is_dir():
        raise DumpError(f"{directory / tracker}: names {clip(name)!r}, which is missing; give another directory")
    return found


def _listed(path: Path) -> list[str]:
    names = sorted(each.name for each in path.iterdir())
    if len(names) > _MAX_FILES:
        raise DumpError(f"{path}: has {len(names):,} files, which is too many for a checkpoint; give one of them")
    return names
