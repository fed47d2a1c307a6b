"""What a checkpoint holds, from its headers alone: no values are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.checkpoint.contents import Checkpoint, CheckpointFormat, LogicalTensor
from msprobe_core.findings import Finding, Level


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A checkpoint without its values.

    Attributes:
        path: Its path.
        format: Its format.
        step: The training step.
        num_files: Number of its files.
        size_bytes: Their size.
        tensors: Its tensors.
        numel: Number of elements by kind.
        dtypes: Number of tensors by dtype.
        aliases: Tied names.
        damaged: Tensors that cannot be read whole.
        notes: What was assumed.
    """

    path: Path
    format: CheckpointFormat
    step: int | None
    num_files: int
    size_bytes: int
    tensors: Sequence[LogicalTensor]
    numel: Mapping[str, int]
    dtypes: Mapping[str, int]
    aliases: Mapping[str, str]
    damaged: Sequence[LogicalTensor]
    notes: Sequence[Finding]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.damaged and not any(each.level is Level.ERROR for each in self.notes)


def list_checkpoint(checkpoint: Checkpoint) -> Listing:
    """Return what a checkpoint holds."""
    tensors = list(checkpoint.tensors.values())
    numel: Counter[str] = Counter()
    for tensor in tensors:
        numel[tensor.kind.value] += tensor.numel
    return Listing(
        path=checkpoint.path, format=checkpoint.format, step=checkpoint.step, num_files=checkpoint.num_files,
        size_bytes=checkpoint.size_bytes, tensors=tensors, numel=dict(numel),
        dtypes=dict(Counter(tensor.dtype or "unknown" for tensor in tensors)), aliases=checkpoint.aliases,
        damaged=[tensor for tensor in tensors if tensor.damage is not None], notes=checkpoint.notes,
    )  # fmt: skip
