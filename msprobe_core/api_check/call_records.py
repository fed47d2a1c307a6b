"""The files of calls with what a device computed of them: a header, and parts of tensors with what they belong to.

::

    {directory}/calls.json                 framework, dump, devices
    {directory}/calls-00000.safetensors    tensors of some calls
    {directory}/calls-00000.json           these calls; it comes last, so that a part is whole or not there

Nothing in them is executed, and numbers in them are not trusted: the size of the tensors' file, and a CRC-32 of each
tensor, are checked when it is read.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

VERSION = 1

HEADER_FILE = "calls.json"
PART_FILE = re.compile(r"calls-(\d{5,9})\.json", re.ASCII)


def part_stem(number: int) -> str:
    """Return the name of the files of a part, without their suffixes; parts count from 0."""
    return f"calls-{number:05}"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts have in common.

    Attributes:
        format: Of these files.
        framework: Whose calls they are, as in the dump.
        dump: SHA-256 of the dump's records.
        devices: That computed the calls.
        version: Of the format.
    """

    framework: str
    dump: str
    devices: tuple[str, ...]
    format: str = "msprobe calls"
    version: int = VERSION


class StoredTensor(msgspec.Struct, frozen=True, kw_only=True, tag="tensor", tag_field="is", omit_defaults=True):
    """A tensor in the part's file.

    Attributes:
        key: In that file.
        crc: CRC-32 of its bytes there.
        shape: Of the tensor.
        dtype: Of the framework's tensor; the file's may be a wider one.
        is_complex: Whether the file has its real and imaginary parts as a last dimension.
        takes_gradient: As `ReplayTensor.takes_gradient`.
        identity: As `ReplayTensor.identity`.
    """

    key: str
    crc: int
    shape: tuple[int, ...]
    dtype: str
    is_complex: bool = False
    takes_gradient: bool = False
    identity: int | None = None


class StoredScalar(msgspec.Struct, frozen=True, tag="value", tag_field="is"):
    """An argument that is no tensor."""

    type: str
    value: Any


class StoredItems(msgspec.Struct, frozen=True, tag="items", tag_field="is"):
    """A mapping."""

    items: dict[str, StoredValue]


class StoredList(msgspec.Struct, frozen=True, tag="list", tag_field="is"):
    """A list or a tuple."""

    items: list[StoredValue]


StoredValue: TypeAlias = StoredTensor | StoredScalar | StoredItems | StoredList | None


class StoredResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a device computed of a call, or why it did not."""

    device: str
    results: dict[str, StoredTensor] = {}
    problem: str | None = None


class StoredCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call; see `msprobe_core.replay.recorded.RecordedCall`. What is missing of it is a text here."""

    entry: str
    position: int
    args: list[StoredValue] = []
    kwargs: dict[str, StoredValue] = {}
    parameters: dict[str, StoredTensor] = {}
    gradients: dict[str, StoredTensor] = {}
    outputs: dict[str, StoredTensor] = {}
    scalars: dict[str, str] = {}
    missing: str | None = None
    fresh: list[StoredResults] = []


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one part, and the size of the file with their tensors, in bytes."""

    num_bytes: int
    calls: list[StoredCall]
