"""Storage of whole tensors: one file each, or together in shards. Everything here runs on the writer's thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from msprobe_core.config import TensorFormat
from msprobe_core.errors import StoreError
from msprobe_core.protocols.framework import Framework
from msprobe_core.store import layout


class TensorStore(Protocol):
    """Destination of one step's whole tensors."""

    def save(self, snapshot: Any, stem: str) -> str:
        """Store a snapshot and return the ``file_name`` for its record.

        Raises:
            StoreError: for example the disk is full.
            Exception: the framework cannot write it.
        """
        ...

    def close(self) -> None:
        """Finish the files."""
        ...


def open_tensor_store(tensor_format: TensorFormat, framework: Framework, directory: Path) -> TensorStore:
    """Return a store that writes into ``directory``, which exists."""
    files = _TensorFiles(framework, directory)
    return files if tensor_format is TensorFormat.FILES else _TensorShards(framework, directory, files)


class _TensorFiles:
    """One file per tensor, in the framework's own format."""

    def __init__(self, framework: Framework, directory: Path) -> None:
        self._framework = framework
        self._directory = directory

    def save(self, snapshot: Any, stem: str) -> str:
        """Write a file."""
        name = layout.tensor_file_name(stem, self._framework.tensor_suffix)
        path = self._directory / name
        try:
            self._framework.save(snapshot, path)
        except Exception as error:
            path.unlink(missing_ok=True)
            if (full := _os_error_in(error)) is not None:
                raise StoreError(f"{path}: cannot be written ({full.strerror or full})") from error
            raise
        return name

    def close(self) -> None:
        """Do nothing: each file is closed already."""


class _TensorShards:
    """Shards; tensors of a dtype that the shard format lacks get their own files."""

    def __init__(self, framework: Framework, directory: Path, files: TensorStore) -> None:
        from msprobe_core.store.safetensors_writer import ShardWriter  # imports NumPy, which a framework may not need

        self._framework = framework
        self._files = files
        self._shards = ShardWriter(directory)

    def save(self, snapshot: Any, stem: str) -> str:
        """Store a snapshot in a shard, unless a shard has the same bytes already."""
        content = self._framework.content(snapshot)
        if content is None or not self._shards.takes(content):
            return self._files.save(snapshot, stem)
        return self._shards.add(stem, content)

    def close(self) -> None:
        """Close the last shard."""
        self._shards.close()


def _os_error_in(error: BaseException | None) -> OSError | None:
    """Return the `OSError` that caused ``error``: PyTorch converts a full disk to a RuntimeError."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
