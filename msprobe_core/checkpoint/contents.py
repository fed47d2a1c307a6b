"""What a checkpoint holds: logical tensors, each made of pieces that are stored in files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.facts import Scalar
from msprobe_core.protocols.storage import TensorSource


class CheckpointFormat(str, Enum):
    """Format of a checkpoint, recognised by its content."""

    SAFETENSORS = "safetensors"
    PT = "pt"
    DCP = "torch distributed checkpoint"
    MEGATRON = "megatron"
    MEGATRON_DIST = "megatron torch_dist"
    DEEPSPEED = "deepspeed"
    MINDSPORE = "mindspore"
    NPZ = "npz"


class Kind(str, Enum):
    """Kind of a tensor in a checkpoint."""

    WEIGHT = "weight"
    BUFFER = "buffer"
    MOMENT = "moment"  # of an optimizer
    MASTER = "master"  # an optimizer's copy of a weight in more precision
    STATE = "state"  # anything else: step counts, random states


def kinds_of(*, has_optimizer: bool) -> list[Kind]:
    """Return the kinds of tensors that are compared."""
    return [Kind.WEIGHT, Kind.BUFFER, *([Kind.MOMENT, Kind.MASTER] if has_optimizer else [])]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a tensor that is stored in one place.

    Attributes:
        source: Its elements, in its own shape; read on demand.
        begin: Position of its first element in the logical tensor, one index for each dimension.
        file: The file that it is in.
        rank: Rank or mesh coordinate that wrote it, as text: ``tp1 pp0``; empty if there is none.
    """

    source: TensorSource
    begin: tuple[int, ...]
    file: Path
    rank: str = ""


@dataclass(frozen=True, kw_only=True)
class LogicalTensor:
    """One tensor of the model, as it would be in one process.

    Pieces cover it without overlaps, or the checkpoint says in `damage` where they do not.

    Attributes:
        name: Name as in the checkpoint, with global numbers of layers and experts.
        dtype: Dtype without a framework's name.
        shape: Shape of the whole.
        pieces: Its parts.
        kind: What it is.
        rule: The rule by which its pieces were put together, for people: ``column parallel, dim 0``; empty if it is in
            one piece.
        damage: Why it cannot be read whole: a missing file, a gap, an overlap, another shape.
        replicas: Copies of pieces that other ranks stored, which should be equal to the pieces in the same place.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Sequence[Piece]
    kind: Kind = Kind.WEIGHT
    rule: str = ""
    damage: Finding | None = None
    replicas: Sequence[Piece] = ()

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint; nothing but headers has been read.

    Attributes:
        path: Its directory or file.
        format: Its format.
        tensors: Its tensors by name.
        aliases: Names that are tied to another one: the same bytes under a second name.
        settings: What it says of the model and the training: arguments, ``config.json``, flattened.
        step: The training step it was saved at, if it says so.
        num_files: Number of its files.
        size_bytes: Their size.
        notes: What was assumed, missing or ignored.
    """

    path: Path
    format: CheckpointFormat
    tensors: Mapping[str, LogicalTensor]
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    step: int | None = None
    num_files: int = 1
    size_bytes: int = 0
    notes: Sequence[Finding] = ()

    @property
    def damaged(self) -> list[LogicalTensor]:
        """Tensors that cannot be read whole."""
        return [tensor for tensor in self.tensors.values() if tensor.damage is not None]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.damaged and not any(each.level is Level.ERROR for each in self.notes)

    @property
    def numel_by_kind(self) -> dict[str, int]:
        """Number of elements by kind."""
        numel: Counter[str] = Counter()
        for tensor in self.tensors.values():
            numel[tensor.kind.value] += tensor.numel
        return dict(numel)

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of tensors by dtype."""
        return dict(Counter(tensor.dtype or "unknown" for tensor in self.tensors.values()))
