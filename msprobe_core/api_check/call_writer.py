"""Write calls and the results that a device computed of them to files, to be judged elsewhere; see `call_records`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from msprobe_core.api_check.call_files import CallFiles
from msprobe_core.api_check.call_records import (
    HEADER_FILE,
    Header,
    Part,
    StoredCall,
    StoredItems,
    StoredList,
    StoredResults,
    StoredScalar,
    StoredTensor,
    StoredValue,
    part_stem,
)
from msprobe_core.api_check.three_way import FreshResults
from msprobe_core.errors import ExistsError
from msprobe_core.fingerprint.checksums import crc32
from msprobe_core.model import ReplayTensor, ReplayValue
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.store import layout
from msprobe_core.store.atomic_file import whole_file, write_json
from msprobe_core.store.tensor_values import SAFETENSORS_DTYPES

PART_BYTES = 64 << 20
"""Bytes of tensors from which a part is written; a call that has more is a part of its own."""

PART_CALLS = 256
"""Calls from which a part is written: what a killed process has to compute again."""

_FILE_DTYPES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}


class CallWriter:
    """Stores calls in parts, each of which is written completely or not at all.

    A directory that has calls of the same dump from the same devices is continued.
    """

    def __init__(
        self, directory: Path, header: Header, *, part_bytes: int = PART_BYTES, part_calls: int = PART_CALLS
    ) -> None:
        """Begin, or continue.

        Args:
            directory: New, or with such calls; it is created for its owner only.
            header: What the calls have in common.
            part_bytes: Bytes of tensors from which a part is written.
            part_calls: Calls from which a part is written.

        Raises:
            StoreError: it cannot be written, or has something else.
            DumpError: what it has is damaged.
        """
        self._directory = directory
        self._part_bytes, self._part_calls = part_bytes, part_calls
        self.entries: set[str] = set()
        """Names of the calls that are stored already."""
        self._number = 0
        layout.make_directory(directory)
        if (directory / HEADER_FILE).exists():
            self._continue(header)
        elif any(directory.iterdir()):
            raise ExistsError(f"{directory}: holds other files; choose a new directory for the calls")
        else:
            write_json(directory / HEADER_FILE, msgspec.to_builtins(header))
        self._begin()

    def _continue(self, header: Header) -> None:
        there = CallFiles(self._directory)
        if there.header != header:
            raise ExistsError(
                f"{self._directory}: holds calls of another dump or from other devices; choose a new directory"
            )
        self.entries.update(there.entries)
        self._number = there.num_parts

    def _begin(self) -> None:
        self._calls: list[StoredCall] = []
        self._members: dict[str, dict[str, object]] = {}
        self._content: list[Any] = []
        self._num_bytes = 0
        self._known: dict[tuple[str, tuple[int, ...], bytes], tuple[str, int]] = {}

    def add(self, call: RecordedCall, position: int, fresh: Sequence[FreshResults]) -> None:
        """Store a call, at the latest when this is closed.

        Args:
            call: The call.
            position: Position of the call among those of the dump.
            fresh: What devices computed.

        Raises:
            StoreError: a part cannot be written.
        """
        missing = None if call.missing is None else call.missing.text
        self._calls.append(
            StoredCall(
                entry=call.entry, position=position, args=[self._stored(value) for value in call.args],
                kwargs={name: self._stored(value) for name, value in call.kwargs.items()},
                parameters=self._tensors(call.parameters), gradients=self._tensors(call.gradients),
                outputs=self._tensors(call.outputs), scalars=dict(call.scalars), missing=missing,
                fresh=[
                    StoredResults(device=each.device, results=self._tensors(each.results), problem=_why(each))
                    for each in fresh
                ],
            )
        )  # fmt: skip
        self.entries.add(call.entry)
        if self._num_bytes >= self._part_bytes or len(self._calls) >= self._part_calls:
            self._write()

    def close(self) -> None:
        """Write what is left.

        Raises:
            StoreError: it cannot be written.
        """
        if self._calls:
            self._write()

    def _write(self) -> None:
        stem = part_stem(self._number)
        header = msgspec.json.encode(self._members)
        header += b" " * (-len(header) % 8)
        tensors = self._directory / f"{stem}{layout.SHARD_SUFFIX}"
        with whole_file(tensors) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for values in self._content:
                file.write(values)
        part = Part(num_bytes=8 + len(header) + self._num_bytes, calls=self._calls)
        with whole_file(self._directory / f"{stem}.json") as file:
            file.write(msgspec.json.encode(part))
        self._number += 1
        self._begin()

    # --- values ---------------------------------------------------------------------------------------------------

    def _stored(self, value: ReplayValue) -> StoredValue:
        if value is None:
            return None
        if isinstance(value, ReplayTensor):
            return self._tensor(value)
        if isinstance(value, list):
            return StoredList([self._stored(item) for item in value])
        if isinstance(value, dict):
            return StoredItems({key: self._stored(item) for key, item in value.items()})
        return StoredScalar(value.type, value.value)

    def _tensors(self, values: Mapping[str, ReplayTensor]) -> dict[str, StoredTensor]:
        return {path: self._tensor(value) for path, value in values.items()}

    def _tensor(self, value: ReplayTensor) -> StoredTensor:
        values, dtype = _as_stored(np.asarray(value.values, order="C"), value.dtype)
        content = values.reshape(-1).view(np.uint8)
        identity = dtype, tuple(values.shape), hashlib.blake2b(content, digest_size=16).digest()
        known = self._known.get(identity)
        if known is None:
            known = self._known[identity] = f"t{len(self._members)}", crc32(content)
            span = self._num_bytes, self._num_bytes + content.nbytes
            self._members[known[0]] = {"dtype": _FILE_DTYPES[dtype], "shape": values.shape, "data_offsets": span}
            self._content.append(content)
            self._num_bytes += content.nbytes
        key, crc = known
        return StoredTensor(
            key=key, crc=crc, shape=tuple(map(int, value.values.shape)), dtype=value.dtype,
            is_complex=value.values.dtype.kind == "c", takes_gradient=value.takes_gradient, identity=value.identity,
        )  # fmt: skip


def _why(fresh: FreshResults) -> str | None:
    """Return why there are no results, without the device, which stands beside it."""
    return None if fresh.problem is None else str(fresh.problem.fields["why"])


def _as_stored(values: Any, dtype: str) -> tuple[Any, str]:
    """Return the values in the framework's dtype, if that holds them all exactly, and the dtype of the file."""
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], axis=-1)
    elif dtype == "bfloat16" and values.dtype == np.float32:
        bits = values.view(np.uint32)
        if not np.any(bits & np.uint32(0xFFFF)):
            return (bits >> np.uint32(16)).astype(np.uint16), "bfloat16"
    elif dtype == "float16" and values.dtype == np.float32:
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float16)
        if np.array_equal(narrow.astype(np.float32).view(np.uint32), values.view(np.uint32)):
            return narrow, "float16"
    return values, str(values.dtype.name)
