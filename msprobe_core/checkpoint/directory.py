"""What all formats have in common: small files beside the tensors, settings, ties, drafts of checkpoints."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.checkpoint.contents import Checkpoint, CheckpointFormat, LogicalTensor
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.pieces import damaged, error, note, unreadable
from msprobe_core.errors import DumpError, MissingDumpError, clip
from msprobe_core.findings import Finding
from msprobe_core.manifest.facts import Scalar
from msprobe_core.store.pt_trees import Opaque
from msprobe_core.untrusted.files import read_plain
from msprobe_core.untrusted.json_text import without_depth

MAX_JSON_BYTES = 256 << 20
_MAX_SETTINGS = 4096
_MAX_SETTING_CHARS = 500

_TABLES = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|shared)\.weight$")
_TABLE_ENDINGS = ("_tokens.weight", "wte.weight", "_embeddings.weight", "embed_in.weight", "shared.weight")
"""Endings of all that `_TABLES` matches: searching for the pattern in 100,000 names takes longer."""
_HEADS = ("lm_head.weight", "model.lm_head.weight")


@dataclass
class Draft:
    """A checkpoint that is being opened."""

    path: Path
    form: CheckpointFormat
    tensors: dict[str, LogicalTensor] = field(default_factory=dict[str, LogicalTensor])
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    settings: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    step: int | None = None
    files: dict[Path, int] = field(default_factory=dict[Path, int])
    notes: list[Finding] = field(default_factory=list[Finding])

    def add(self, tensor: LogicalTensor) -> None:
        """Add a tensor; one of the same name makes both unusable."""
        if tensor.name in self.tensors:
            self.tensors[tensor.name] = damaged(
                tensor.name, error(OpeningCode.DUPLICATE, name=clip(tensor.name)), kind=tensor.kind
            )
        else:
            self.tensors[tensor.name] = tensor

    def count(self, path: Path) -> None:
        """Count a file and its size."""
        try:
            self.files[path] = path.stat().st_size
        except OSError:
            self.files[path] = 0

    def skip(self, what: str, count: int) -> None:
        """Note what is not read."""
        if count:
            self.notes.append(note(OpeningCode.SKIPPED, what=what, count=count))

    def done(self) -> Checkpoint:
        """Return the checkpoint.

        Raises:
            DumpError: it has no tensors.
        """
        if not self.tensors:
            why = f": {self.notes[0]}" if self.notes else ""
            raise MissingDumpError(f"{self.path}: holds no tensors{why}")
        return Checkpoint(
            path=self.path,
            format=self.form,
            tensors=self.tensors,
            aliases=self.aliases,
            settings=self.settings,
            step=self.step,
            num_files=max(1, len(self.files)),
            size_bytes=sum(self.files.values()),
            notes=tuple(self.notes),
        )


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DumpError: it cannot be read, or is malformed.
    """
    try:
        return msgspec.json.decode(without_depth(read_plain(path, MAX_JSON_BYTES)))
    except OSError as error_:
        raise DumpError(f"{path}: cannot be read ({error_.strerror or error_})") from error_
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error_:
        raise DumpError(f"{path}: is no JSON ({error_})") from error_


def read_config(draft: Draft, path: Path) -> dict[str, Any]:
    """Return ``config.json`` and add it to the settings; empty, and noted, if it cannot be read."""
    if not path.is_file():
        return {}
    try:
        found = read_json(path)
    except DumpError as error_:
        draft.notes.append(unreadable(str(error_)))
        return {}
    if not isinstance(found, dict):
        return {}
    config = cast("dict[str, Any]", found)
    draft.settings |= flattened(config)
    return config


def flattened(value: Any, prefix: str = "") -> dict[str, Scalar]:
    """Return the scalars within dictionaries and lists by their path, with dots; enumerations and dtypes as text."""
    found: dict[str, Scalar] = {}
    waiting: list[tuple[str, Any, int]] = [(prefix, value, 0)]
    left = 4 * _MAX_SETTINGS
    while waiting and left and len(found) < _MAX_SETTINGS:
        left -= 1
        name, part, depth = waiting.pop()
        items: Iterable[tuple[Any, Any]] | None = None
        if isinstance(part, Mapping):
            items = cast("Mapping[Any, Any]", part).items()
        elif isinstance(part, (list, tuple)):
            items = enumerate(cast("list[Any]", part))
        if items is not None and depth < 16:
            inner = [
                (clip(f"{name}.{key}" if name else str(key)), each, depth + 1)
                for key, each in itertools.islice(items, _MAX_SETTINGS)
            ]
            waiting += reversed(inner)
        elif part is None or isinstance(part, (bool, float)):
            found[name] = part
        elif isinstance(part, int):
            found[name] = part if abs(part) < 1 << 63 else str(part)[:40]
        elif isinstance(part, str):
            found[name] = clip(part, _MAX_SETTING_CHARS)
        elif isinstance(part, Opaque):
            scalars = [str(each) for each in part.args if isinstance(each, (str, int))]
            found[name] = clip(part.name + (f"({', '.join(scalars)})" if scalars else ""))
    return found


def tie_by_config(draft: Draft, config: Mapping[str, Any]) -> None:
    """Add aliases of tied embeddings whose second name is not stored, as the configuration says."""
    text = config.get("text_config")
    tied = config.get("tie_word_embeddings")
    if tied is None and isinstance(text, dict):
        tied = cast("dict[str, Any]", text).get("tie_word_embeddings")
    tables = sorted((name for name in draft.tensors if name.endswith(_TABLE_ENDINGS) and _TABLES.search(name)), key=len)
    if not tables:
        return
    if config.get("is_encoder_decoder") is True and "shared.weight" in draft.tensors:
        for stack in ("encoder", "decoder"):
            name = f"{stack}.embed_tokens.weight"
            if name not in draft.tensors:
                draft.aliases[name] = "shared.weight"
    has_head = any(name.rpartition(".")[0].endswith(("lm_head", "output_layer", "embed_out")) for name in draft.tensors)
    architectures: Any = config.get("architectures") or [""]
    first = cast("list[object]", architectures)[0] if isinstance(architectures, list) else ""
    is_model_with_head = str(first).endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    if tied is True or (tied is None and is_model_with_head):
        table = "shared.weight" if "shared.weight" in draft.tensors else tables[0]
        if not has_head:
            draft.aliases[_HEADS[0]] = table
            draft.notes.append(note(OpeningCode.TIED_BY_CONFIG, name=_HEADS[0], table=clip(table)))


def inside(directory: Path, name: str) -> Path | None:
    """Return the path of a file that another file names; ``None`` if it is not in the directory."""
    if not name or "\0" in name or name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
        return None
    return directory / name


def absence_of(file: Path, name: str) -> Finding:
    """Return why a file that a checkpoint names is none that can be read: it is missing, or is another thing."""
    if os.path.lexists(file):
        return unreadable(f"{clip(name)} is no regular file, or a link to none")
    return error(OpeningCode.MISSING_FILE, file=clip(name))


def step_in(text: str) -> int | None:
    """Return the training step in the name of a directory, such as ``checkpoint-500`` or ``global_step10``."""
    found = re.search(r"(?:^|[a-z_-])(?:iter_|step[-_]?|checkpoint-|global_step)(\d{1,12})$", text)
    return int(found[1]) if found else None
