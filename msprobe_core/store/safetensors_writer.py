"""Write whole tensors into safetensors files of bounded size, each distinct tensor once.

Space for the header is reserved at the start of a shard. A tensor's bytes are appended first, and then its description
is appended to the header. So a shard is a valid safetensors file at all times, no byte is written twice, and a killed
process loses only the tensor that it was writing.

Source: https://github.com/huggingface/safetensors, section Format; a header may end in spaces.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from msprobe_core.errors import StoreError
from msprobe_core.model import TensorContent
from msprobe_core.store import layout
from msprobe_core.store.append_file import write_at
from msprobe_core.store.tensor_values import SAFETENSORS_DTYPES

MAX_BYTES = 256 << 20
"""Maximum size of a shard with several tensors; a larger tensor has its own shard."""

HEADER_BYTES = 128 << 10
"""Space for the descriptions of about a thousand tensors."""

_DTYPES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
_HEADER = b'{"__metadata__":{"producer":"msprobe"}}'


class ShardWriter:
    """The shards of one step of one rank."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES, header_bytes: int = HEADER_BYTES) -> None:
        """Begin without shards.

        Args:
            directory: Existing directory.
            max_bytes: Size of a shard, in bytes of its tensors.
            header_bytes: Size of its header.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        self._header_bytes = header_bytes
        self._shard: _Shard | None = None
        self._num_shards = 0
        self._references: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._keys: set[str] = set()

    def takes(self, content: TensorContent) -> bool:
        """Whether the format supports this dtype."""
        return content.dtype in _DTYPES

    def add(self, stem: str, content: TensorContent) -> str:
        """Store a tensor, unless it is stored already; return its reference.

        Args:
            stem: Its name, if it is new.
            content: Of a supported dtype.

        Raises:
            StoreError: it cannot be written; all earlier ones are kept.
        """
        digest = hashlib.blake2b(content.data, digest_size=16).digest()
        identity = (content.dtype, content.shape, digest)
        reference = self._references.get(identity)
        if reference is None:
            reference = self._references[identity] = self._append(stem, content)
        return reference

    def close(self) -> None:
        """Close the last shard."""
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def _append(self, stem: str, content: TensorContent) -> str:
        key = self._new_key(stem)
        shard = self._shard
        if shard is None or not shard.has_room(key, content):
            self.close()
            path = self._directory / layout.shard_file_name(self._num_shards)
            self._num_shards += 1
            shard = self._shard = _Shard(path, self._max_bytes, self._header_bytes)
        shard.append(key, content)
        self._keys.add(key)
        return layout.shard_reference(shard.path.name, key)

    def _new_key(self, stem: str) -> str:
        stem = key = layout.tensor_file_name(stem, "")
        number = 1
        while key in self._keys:
            number += 1
            key = f"{stem}={number}"
        return key


class _Shard:
    """One file that is being written."""

    def __init__(self, path: Path, max_bytes: int, header_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._start = self._end = 8 + header_bytes
        self._brace = 8 + len(_HEADER) - 1
        self._file = layout.create_file(path)
        try:
            self._write(header_bytes.to_bytes(8, "little") + _HEADER.ljust(header_bytes), 0)
        except StoreError:
            self._file.close()
            path.unlink(missing_ok=True)
            raise

    def has_room(self, key: str, content: TensorContent) -> bool:
        """Whether the tensor and its description fit; a tensor always fits into an empty shard."""
        num_bytes = self._end - self._start
        member = self._member(key, content)
        return (num_bytes == 0 or num_bytes + content.data.nbytes <= self._max_bytes) and (
            self._brace + len(member) <= self._start
        )

    def append(self, key: str, content: TensorContent) -> None:
        """Write a tensor's bytes, then its description over the header's closing brace."""
        member = self._member(key, content)
        self._write(content.data, self._end)
        self._write(member, self._brace)
        self._end += content.data.nbytes
        self._brace += len(member) - 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _member(self, key: str, content: TensorContent) -> bytes:
        """Return a tensor's description as the header's last member, followed by the closing brace."""
        begin = self._end - self._start
        description = {
            "dtype": _DTYPES[content.dtype],
            "shape": content.shape,
            "data_offsets": (begin, begin + content.data.nbytes),
        }
        return b"," + msgspec.json.encode(key) + b":" + msgspec.json.encode(description) + b"}"

    def _write(self, data: bytes | memoryview, position: int) -> None:
        try:
            write_at(self._file.fileno(), data, position)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self._end)
            raise StoreError(
                f"{self.path}: cannot be written ({error.strerror}); what was recorded before is kept"
            ) from error
