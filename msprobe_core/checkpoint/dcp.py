"""Open distributed checkpoints of PyTorch, also those that Megatron-Core writes in the format ``torch_dist``.

``.metadata`` has the shape of every tensor and the place of each chunk; a chunk is a file of ``torch.save`` within a
``.distcp`` file, and is opened when it is read. Megatron-Core stores layers, and experts, of equal shape together, with
one dimension more; they are separate tensors here.

Source: ``filesystem.py`` in ``torch/distributed/checkpoint`` of PyTorch 2.13, and
``dist_checkpointing/strategies/torch.py`` of Megatron-Core 0.16.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from msprobe_core.checkpoint.contents import CheckpointFormat, Kind, Piece
from msprobe_core.checkpoint.dcp_metadata import DcpMetadata, StoredRange, TensorInfo, read_metadata
from msprobe_core.checkpoint.directory import Draft, absence_of, flattened, inside, step_in
from msprobe_core.checkpoint.opening_codes import OpeningCode
from msprobe_core.checkpoint.optimizer_names import kind_of_state, state_name
from msprobe_core.checkpoint.pieces import damaged, error, joined, unreadable
from msprobe_core.checkpoint.pt_states import OPTIMIZERS, weight_name
from msprobe_core.compare.shards.sources import narrowed, reshaped
from msprobe_core.errors import DamagedDumpError, DumpError, clip
from msprobe_core.findings import Finding
from msprobe_core.store.pt_trees import Opaque, open_pt_part, open_pt_tree
from msprobe_core.store.tensor_source import StoredTensor

_STACKED = re.compile(r"(.*(?:^|\.)layers\.)(?!\d)(.+)", re.DOTALL)
_EXPERTS = re.compile(r"(.*\.mlp\.experts\.)experts\.(.+)", re.DOTALL)
_DIST_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(exp_avg|exp_avg_sq|fp32_param|step)\.(.+)")
_MAX_VALUE_BYTES = 64 << 10
_MAX_VALUES = 2000
_MAX_SLICES = 1 << 20
"""Of layers and experts that are stored together."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk in a ``.distcp`` file, opened when it is read; see `msprobe_core.plugin.TensorSource`.

    Attributes:
        file: The file.
        begin: Start of the chunk's range.
        num_bytes: Length of the range.
        shape: Shape of the chunk.
        dtype: Its dtype.
    """

    file: Path
    begin: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str

    def opened(self) -> StoredTensor:
        """Return the stored tensor.

        Raises:
            DumpError: it cannot be read, or is another tensor than the metadata says.
        """
        tree = open_pt_part(self.file, self.begin, self.num_bytes)
        if isinstance(tree.value, Opaque) and tree.value.reason:
            raise DumpError(tree.value.reason)
        if not isinstance(tree.value, StoredTensor):
            raise DamagedDumpError(f"{self.file}: holds no tensor at byte {self.begin}, where the metadata says one is")
        found = tree.value
        if found.shape != self.shape or found.dtype != self.dtype:
            raise DumpError(
                f"{self.file}: holds {found.dtype} of the shape {list(found.shape)} at byte {self.begin}, where the "
                f"metadata says {self.dtype} of the shape {list(self.shape)}"
            )
        return found

    def chunks(self, num_elements: int) -> Iterator[NDArray[Any]]:
        """Yield the elements in C order as vectors of at most ``num_elements``.

        Raises:
            DumpError: it cannot be read.
        """
        return self.opened().chunks(num_elements)


def open_dcp(path: Path) -> Draft:
    """Return the checkpoint in a directory with ``.metadata``.

    Raises:
        DumpError: the metadata cannot be read.
    """
    draft = Draft(path, CheckpointFormat.DCP)
    draft.count(path / ".metadata")
    metadata = read_metadata(path / ".metadata")
    is_megatron = (path / "common.pt").is_file() or (path / "metadata.json").is_file()
    num_layers = _read_common(draft, path) if is_megatron else None
    sizes = _sizes_of_files(draft, metadata)
    for key, why in metadata.wrong.items():
        draft.add(damaged(clip(key), unreadable(f"{path / '.metadata'}: {why}")))
    for key, info in metadata.tensors.items():
        name, kind = _named(key, metadata, is_megatron=is_megatron)
        pieces, damage = _pieces(path, info, sizes)
        if is_megatron and pieces and damage is None:
            for part, own, shape in _unstacked(name, info, pieces, num_layers):
                draft.add(joined(part, own, shape=shape, kind=kind, rule=_rule(own)))
        elif pieces:
            rule = _rule(pieces)
            draft.add(joined(name, pieces, shape=info.shape, kind=kind, rule=rule, damage=damage))
        else:
            damage = damage or error(OpeningCode.GAP, found=0, total=1)
            draft.add(damaged(name, damage, dtype=info.dtype, shape=info.shape, kind=kind))
    _read_values(draft, metadata, sizes)
    draft.step = draft.step if draft.step is not None else step_in(path.name)
    return draft


def _rule(pieces: Sequence[Piece]) -> str:
    return "placed by the offsets in .metadata" if len(pieces) > 1 else ""


def _sizes_of_files(draft: Draft, metadata: DcpMetadata) -> dict[str, int]:
    """Return the sizes of all files that the metadata names and that exist."""
    places = [chunk.place for info in metadata.tensors.values() for chunk in info.chunks]
    names = dict.fromkeys(place.file for place in (*places, *metadata.values.values()) if place is not None)
    sizes: dict[str, int] = {}
    for name in names:
        file = inside(draft.path, name)
        if file is not None and file.is_file():
            draft.count(file)
            sizes[name] = draft.files[file]
        else:
            draft.notes.append(_absence_of(draft.path, name))
    return sizes


def _absence_of(directory: Path, name: str) -> Finding:
    file = inside(directory, name)
    return error(OpeningCode.OUTSIDE, file=clip(name)) if file is None else absence_of(file, name)


def _pieces(path: Path, info: TensorInfo, sizes: dict[str, int]) -> tuple[list[Piece], Finding | None]:
    pieces: list[Piece] = []
    damage: Finding | None = None
    for chunk in info.chunks:
        place = chunk.place
        if place is None:
            damage = error(
                OpeningCode.UNREADABLE, why=f".metadata does not say where its chunk at {list(chunk.begin)} is"
            )
        elif place.file not in sizes:
            damage = _absence_of(path, place.file)
        elif min(place.begin, place.num_bytes) < 0 or place.begin + place.num_bytes > sizes[place.file]:
            damage = error(OpeningCode.UNREADABLE, why=f"{clip(place.file)} is cut off: it ends before byte "
                           f"{place.begin + place.num_bytes}")  # fmt: skip
        elif place.transforms:
            damage = error(
                OpeningCode.UNREADABLE, why=f"its bytes are transformed: {clip(', '.join(place.transforms))}"
            )
        elif len(chunk.begin) != len(info.shape) or len(chunk.shape) != len(info.shape):
            damage = error(OpeningCode.UNLIKE, what=f"{list(chunk.shape)}, {list(info.shape)}")
        else:
            source = Chunk(path / place.file, place.begin, place.num_bytes, chunk.shape, info.dtype)
            pieces.append(Piece(source=source, begin=chunk.begin, file=source.file, rank=Path(place.file).stem))
    return pieces, damage


# --- names ----------------------------------------------------------------------------------------------------------


def _named(key: str, metadata: DcpMetadata, *, is_megatron: bool) -> tuple[str, Kind]:
    if is_megatron:
        if found := _DIST_STATE.fullmatch(key):
            return state_name(found[2], found[1]), kind_of_state(found[1])
        return (key, Kind.STATE) if "optimizer" in key or "rng_state" in key else (key, Kind.WEIGHT)
    path = metadata.paths.get(key) or (key,)
    at = next((i for i, part in enumerate(path) if part in OPTIMIZERS), None)
    if at is None and path[0] == key:
        # The state dict was flat when it was saved.
        head, _, rest = key.partition(".")
        path = (head, *rest.split(".")) if head in OPTIMIZERS and rest else path
        at = 0 if head in OPTIMIZERS and rest else None
    if at is None:
        return weight_name(path)
    inner = path[at + 1 :]
    if inner[:1] == ("state",) and len(inner) > 2:
        what = str(inner[-1])
        return state_name(".".join(map(str, inner[1:-1])), what), kind_of_state(what)
    return ".".join(("optimizer", *map(str, inner))), Kind.STATE


def _unstacked(
    name: str, info: TensorInfo, pieces: Sequence[Piece], num_layers: int | None
) -> Iterator[tuple[str, list[Piece], tuple[int, ...]]]:
    """Yield the tensors of which layers and experts of equal shape were stored together: names, pieces, shapes."""
    prefix = ""
    if name.startswith("optimizer.state."):
        prefix, name = "optimizer.state.", name.removeprefix("optimizer.state.")
    axes: list[str] = []
    parts: list[str] = [name]
    stacked = _STACKED.fullmatch(name)
    if stacked is not None and info.shape and (num_layers is None or info.shape[0] == num_layers):
        axes.append("layer")
        parts = [stacked[1], "." + stacked[2]]
    experts = _EXPERTS.fullmatch(parts[-1])
    if experts is not None and len(info.shape) > len(axes) + 1:
        axes.append("expert")
        parts = [*parts[:-1], f"{experts[1]}local_experts.", f".{experts[2]}"]
    num_slices = sum(math.prod(piece.source.shape[: len(axes)]) for piece in pieces)
    if not axes or num_slices > _MAX_SLICES:
        yield prefix + name, list(pieces), info.shape
        return
    found: dict[tuple[int, ...], list[Piece]] = {}
    depth = len(axes)
    for piece in pieces:
        counts = piece.source.shape[:depth]
        if 0 in counts:  # and the other one, which a damaged file claims, may be huge
            continue
        for index in product(*map(range, counts)):
            own = _slice_of(piece, index)
            at = tuple(a + b for a, b in zip(piece.begin[:depth], index, strict=True))
            found.setdefault(at, []).append(own)
    for at, own in found.items():
        label = "".join(f"{part}{number}" for part, number in zip(parts, at, strict=False)) + parts[-1]
        yield prefix + label, own, info.shape[depth:]


def _slice_of(piece: Piece, index: tuple[int, ...]) -> Piece:
    """Return the part of a piece at the first indices."""
    depth = len(index)
    rest = piece.source.shape[depth:]
    source = piece.source
    if piece.source.shape[:depth] != (1,) * depth:
        source = narrowed(source, (*index, *[0] * len(rest)), (*[1] * depth, *rest))
    return replace(piece, source=reshaped(source, rest), begin=piece.begin[depth:])


# --- values ---------------------------------------------------------------------------------------------------------


def _read_common(draft: Draft, path: Path) -> int | None:
    """Read what Megatron-Core stores once for all ranks; return the number of layers if it says so."""
    draft.form = CheckpointFormat.MEGATRON_DIST
    common = path / "common.pt"
    if not common.is_file():
        return None
    draft.count(common)
    try:
        value = open_pt_tree(common).value
    except DumpError as problem:
        draft.notes.append(unreadable(str(problem)))
        return None
    if not isinstance(value, dict):
        return None
    content = cast("dict[Any, Any]", value)
    args: Any = content.get("args")
    draft.settings |= flattened(args.fields if isinstance(args, Opaque) else args)
    step = content.get("iteration")
    draft.step = step if type(step) is int else None
    num_layers = draft.settings.get("num_layers")
    return num_layers if type(num_layers) is int else None


def _read_values(draft: Draft, metadata: DcpMetadata, sizes: dict[str, int]) -> None:
    """Read small values beside tensors: learning rates, step counts."""
    num_skipped = 0
    wrong: dict[str, Finding] = {}
    for number, (key, place) in enumerate(metadata.values.items()):
        value = _value(draft, place, sizes, wrong) if number < _MAX_VALUES and place is not None else None
        found = flattened(value, clip(key)) if value is not None and not isinstance(value, StoredTensor) else {}
        draft.settings |= found
        num_skipped += not found
        if key.rpartition(".")[2] in ("step", "global_step", "iteration") and "state" not in key:
            draft.step = value if type(value) is int else draft.step
    draft.notes += wrong.values()
    draft.skip("values", num_skipped)


def _value(draft: Draft, place: StoredRange, sizes: dict[str, int], wrong: dict[str, Finding]) -> Any:
    """Return a value; why the first of a file cannot be read is added to ``wrong``."""
    if place.file not in sizes or place.num_bytes > _MAX_VALUE_BYTES or place.transforms:
        return None
    try:
        return open_pt_part(draft.path / place.file, place.begin, place.num_bytes).value
    except DumpError as problem:
        wrong.setdefault(place.file, unreadable(str(problem)))
        return None
