"""Read a folder of plain tensor files as a dump: ``.pt``, ``.npy`` and ``.safetensors`` files without records.

Each tensor is one saved value. Its name is the path of its file within the folder, without the suffix, followed in a
``.safetensors`` file by the tensor's key. Values are in natural order of their names: ``layer2`` comes before
``layer10``. One such file can be given instead of a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msprobe_core.errors import DumpError, MissingDumpError
from msprobe_core.findings import Finding
from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Ending, EndState, Level, Phase, RunHeader, Task
from msprobe_core.protocols.storage import Dump, Reader, TensorSource
from msprobe_core.store import kernel_files, layout
from msprobe_core.store.ending import explained
from msprobe_core.store.reading_codes import DamageCode

if TYPE_CHECKING:
    import polars as pl

_SUFFIXES = (".pt", ".npy", layout.SHARD_SUFFIX)
_MAX_LOOKED_AT = 1000
"""Number of files to check before a directory is not considered a folder of tensors."""

FRAMEWORK = "files"
"""Value of the field ``framework`` for such a dump."""


class _Place(NamedTuple):
    """Location of a tensor: its file and, in a ``.safetensors`` file, its key."""

    file: Path
    key: str | None


class FolderDump:
    """The tensors of a folder; see `msprobe_core.plugin.Dump`."""

    stacks: Mapping[str, Sequence[str]] = {}
    parents: Mapping[str, str | None] = {}
    notes: Sequence[str] = ()
    header = RunHeader(
        task=Task.TENSOR.value,
        level=Level.DEBUG.value,
        framework=FRAMEWORK,
        has_extra_info=False,
        keeps_tensors=True,
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places, unreadable = _listed(path)
        self.frame = self._read_frame(unreadable)
        self.ending = _ending_of(unreadable, self.frame.height)

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a tensor; its elements are read on demand.

        Raises:
            DumpError: it is missing, damaged or not a tensor.
        """
        from msprobe_core.store.tensors import open_member, open_tensor

        place = self._places.get(file_name)
        if place is None:
            raise MissingDumpError(f"{self.path}: holds no tensor {file_name!r}")
        return open_tensor(place.file) if place.key is None else open_member(place.file, place.key)

    def _read_frame(self, unreadable: list[str]) -> pl.DataFrame:
        from msprobe_core.store.frame import FrameBuilder  # imports polars, which the command line does not need

        builder = FrameBuilder()
        for name in self._places:
            try:
                found = self.open_tensor(name)
            except DumpError as error:
                unreadable.append(str(error))
                continue
            leaf = {"type": "torch.Tensor", "dtype": found.dtype, "shape": list(found.shape), "data_name": name}
            builder.add_entry(f"{name}.0.{Phase.DEBUG.value}", leaf)
        if not self._places or len(unreadable) == len(self._places):
            raise MissingDumpError(unreadable[0] if unreadable else f"{self.path}: holds no tensor")
        return builder.build()


def _listed(path: Path) -> tuple[dict[str, _Place], list[str]]:
    """Return the tensors by name, and the files that cannot be read."""
    from msprobe_core.store.tensors import shard_keys

    root = path if path.is_dir() else path.parent
    found: dict[str, _Place] = {}
    unreadable: list[str] = []
    for file in sorted(_files(path), key=lambda file: natural_order(file.as_posix())):
        name = file.relative_to(root).with_suffix("").as_posix()
        if file.suffix != layout.SHARD_SUFFIX:
            # Two files with the same name and different suffixes are two tensors.
            found[name if name not in found else f"{name}{file.suffix}"] = _Place(file, None)
            continue
        try:
            found.update({f"{name}/{key}": _Place(file, key) for key in sorted(shard_keys(file), key=natural_order)})
        except DumpError as error:
            unreadable.append(str(error))
    return found, unreadable


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for directory, directories, names in os.walk(path):
        directories.sort()
        yield from (Path(directory, name) for name in names if name.endswith(_SUFFIXES))


_DIGITS = re.compile(r"(\d+)", re.ASCII)


def natural_order(part: int | str) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which ``layer2`` comes before ``layer10``, and numbers before texts."""
    if isinstance(part, int):
        return ((0, part, ""),)
    pieces = _DIGITS.split(part)
    return tuple((0, int(piece), "") if piece.isdecimal() and len(piece) < 20 else (1, 0, piece) for piece in pieces)


def _ending_of(unreadable: Sequence[str], num_read: int) -> Ending:
    if not unreadable:
        return Ending(state=EndState.COMPLETE, num_calls=num_read)
    why = Finding(DamageCode.UNREADABLE_FILES, fields={"count": len(unreadable), "first": unreadable[0]})
    return explained(Ending(state=EndState.DAMAGED), num_read, why)


class FolderReader:
    """Reads folders of tensors."""

    name = "tensors"

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is such a folder, or one such file, and no other known format."""
        if path.is_file():
            return path.suffix in _SUFFIXES
        is_of_dump = layout.is_unit(path.name) or path.name == layout.TENSOR_DIRECTORY or kernel_files.is_in_place(path)
        return path.is_dir() and not is_of_dump and self._holds_tensors(path)

    def _holds_tensors(self, path: Path) -> bool:
        num_looked_at = 0
        for directory, directories, names in os.walk(path):
            # The directory of a dump without its record, or of kernels.
            place = Path(directory)
            if layout.TENSOR_DIRECTORY in directories or layout.holds_units(place) or kernel_files.holds_kernels(place):
                return False
            if any(name.endswith(_SUFFIXES) for name in names):
                return True
            num_looked_at += len(names) + len(directories)
            if num_looked_at > _MAX_LOOKED_AT:
                return False
        return False

    def read(self, path: Path) -> Dump:
        """Read the tensors at ``path``.

        Raises:
            DumpError: no tensor can be read.
        """
        return FolderDump(path)


@hookimpl
def msprobe_register_readers() -> Sequence[Reader]:
    """Offer the reader of this module."""
    return [FolderReader()]
