"""What a file of tensors holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from msprobe_core.findings import Finding
from msprobe_core.manifest.facts import Scalar
from msprobe_core.protocols.storage import TensorSource


class FileFormat(str, Enum):
    """Format of a file or directory, recognised by its content."""

    NPY = "npy"
    NPZ = "npz"
    PT = "pt"
    SAFETENSORS = "safetensors"
    ATB = "atb"
    ADUMP = "adump"
    MINDSPORE_KERNEL = "mindspore kernel"
    MINDSPORE_CHECKPOINT = "mindspore checkpoint"
    SGLANG = "sglang"
    FLASHINFER = "flashinfer"
    DUMP = "msprobe dump"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class NamedTensor:
    """One tensor of a file.

    Attributes:
        name: Name in its file: a key, ``state.0.exp_avg``, ``input.0``.
        source: Its elements, read on demand; ``None`` if it is damaged or refused.
        role: ``input``, ``output``, ``space``, … if the format says so; empty otherwise.
        layout: Memory format that the file names, such as ``FRACTAL_NZ``; empty if plain.
        attributes: What the file says of it besides dtype and shape.
        damage: Why there is no source, with file and byte position.
    """

    name: str
    source: TensorSource | None
    role: str = ""
    layout: str = ""
    attributes: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    damage: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class FileContent:
    """The tensors of one file.

    Attributes:
        path: The file.
        format: Its format.
        version: Version of the format as the file says it; empty if it does not.
        size_bytes: Size of the file.
        tensors: Its tensors, in the order of the file.
        damage: What is wrong with the file as a whole; ``None`` if nothing is known.
        attributes: What the file says besides its tensors.
    """

    path: Path
    format: FileFormat
    version: str = ""
    size_bytes: int = 0
    tensors: Sequence[NamedTensor] = ()
    damage: Finding | None = None
    attributes: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
