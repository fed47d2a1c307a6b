"""Write each tensor of foreign files into a file of its own, with a proof that its bytes are the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_core.errors import DumpError, LargeDumpError, MissingDumpError
from msprobe_core.findings import Finding, Level
from msprobe_core.manifest.facts import Scalar
from msprobe_core.model import TensorContent
from msprobe_core.protocols.storage import TensorSource
from msprobe_core.store.joined_tensor import JoinedTensor
from msprobe_core.store.layout import make_directory, tensor_file_name
from msprobe_core.tensor_files.contents import FileContent, FileFormat, NamedTensor
from msprobe_core.tensor_files.files_codes import FilesCode
from msprobe_core.tensor_files.memory_formats import PLAIN
from msprobe_core.tensor_files.problems import Status, damage_by, status_of
from msprobe_core.tensor_files.recognition import identify, is_dump
from msprobe_core.tensor_files.writing import FileType, UnsupportedDtypeError, digest_of, write_tensor

SUFFIXES = frozenset({".bin", ".npy", ".npz", ".pt", ".pth", ".safetensors", ".ckpt"})
"""Suffixes of files that are expected to hold tensors; names of dumps of CANN have none."""

MAX_FILES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class UnpackedTensor:
    """One tensor of a source file, and the file that it was written into.

    Attributes:
        source: Path of its file, relative to what was given.
        tensor: Its name there.
        status: Whether it could be read.
        file: Path of the new file, relative to the output directory; empty if there is none.
        offset: Byte position of its elements in the source file; ``None`` if they are not in one place.
        dtype: Dtype in the source file.
        shape: Shape.
        format: Format of the source file.
        layout: Memory format in which the elements are written; empty if they are in plain order.
        role: ``input``, ``output``, … if the source says so.
        hash_before: BLAKE2b hash of the elements that were read.
        hash_after: BLAKE2b hash of the elements that were written, in their dtype.
        conversions: What was changed on the way.
        problem: Why it was not written.
        attributes: What the source says of it besides.
    """

    source: str
    tensor: str
    status: Status
    file: str = ""
    offset: int | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    format: FileFormat
    layout: str = ""
    role: str = ""
    hash_before: str = ""
    hash_after: str = ""
    conversions: Sequence[Finding] = ()
    problem: Finding | None = None
    attributes: dict[str, Scalar] = field(default_factory=dict[str, Scalar])


@dataclass(frozen=True)
class SourceFile:
    """One file to unpack; a unit of work for `msprobe_core.execute.run_units`.

    Attributes:
        path: The file, or the directory of a dump.
        relative: Its path relative to what was given.
        stem: How the names of its new files begin.
        is_given: Whether it was named itself; other files without tensors are passed over.
    """

    path: Path
    relative: Path
    stem: str
    is_given: bool = False

    @property
    def label(self) -> str:
        """Name of the unit in reports."""
        return str(self.relative)

    @property
    def files(self) -> Sequence[Path]:
        """The file."""
        return [self.path]


def find_sources(path: Path) -> list[SourceFile]:
    """Return the files in a directory and below, or the one that is given; directories of dumps are one each.

    Raises:
        DumpError: it does not exist or cannot be read, or there are more than `MAX_FILES`.
    """
    if not path.is_dir():
        if not path.exists():
            raise MissingDumpError(f"{path}: does not exist")
        return [SourceFile(path, Path(path.name), _stem_of(path.name), is_given=True)]
    if is_dump(path):
        return [SourceFile(path, Path(path.name), path.name, is_given=True)]
    found: list[Path] = []
    for each in _walked(path):
        found.append(each)
        if len(found) > MAX_FILES:
            raise LargeDumpError(f"{path}: holds more than {MAX_FILES:,} files; give a directory in it")
    relative = [each.relative_to(path) for each in found]
    counts = Counter((each.parent, _stem_of(each.name)) for each in relative)
    sources: list[SourceFile] = []
    for each, place in zip(found, relative, strict=True):
        stem = _stem_of(place.name)
        # Two files that differ in their suffixes only keep their whole names.
        sources.append(SourceFile(each, place, stem if counts[place.parent, stem] == 1 else place.name))
    return sources


def _walked(root: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise DumpError(f"{error.filename}: cannot be read ({error.strerror})") from error

    for directory, directories, names in os.walk(root, onerror=fail):
        directories.sort()
        if is_dump(Path(directory)):
            directories.clear()
            yield Path(directory)
            continue
        yield from (Path(directory, name) for name in sorted(names))


def _stem_of(name: str) -> str:
    stem, mark, suffix = name.rpartition(".")
    return stem if stem and mark + suffix in SUFFIXES else name


def is_passed_over(content: FileContent) -> bool:
    """Whether a file of a directory is none of those with tensors, such as a log: neither listed nor a problem."""
    return content.format is FileFormat.UNKNOWN and content.path.suffix not in SUFFIXES


def unpack(source: SourceFile, output: Path, kind: FileType) -> list[UnpackedTensor] | None:
    """Write each tensor of a file into a file of its own, below ``output`` at the same place as the source.

    Args:
        source: What to unpack.
        output: The directory for new files.
        kind: Their format.

    Returns:
        The tensors in the order of the file; one without a name if the file as a whole cannot be read. ``None`` for a
        file that is none of those with tensors.

    Raises:
        StoreError: a new file cannot be written.
    """
    try:
        content = identify(source.path)
    except DumpError as error:
        content = FileContent(path=source.path, format=FileFormat.UNKNOWN, damage=damage_by(error))
    if is_passed_over(content) and not source.is_given:
        return None
    rows: list[UnpackedTensor] = []
    if content.damage is not None:
        rows.append(
            UnpackedTensor(
                source=str(source.relative),
                tensor="",
                status=status_of(content.damage),
                format=content.format,
                problem=content.damage,
            )
        )
    names: set[str] = set()
    for number, tensor in enumerate(content.tensors):
        name = _file_name(source.stem, tensor, number, len(content.tensors), kind, names)
        rows.append(_written(source, content, tensor, output, name, kind))
    return rows


def _file_name(stem: str, tensor: NamedTensor, number: int, count: int, kind: FileType, names: set[str]) -> str:
    """Return the name of a new file: ``{stem}.{role}.{i}``, ``{stem}.{name}``, or ``{stem}`` for the only tensor."""
    if tensor.role and tensor.name == f"{tensor.role}.{tensor.name.rpartition('.')[2]}":
        parts = f"{stem}.{tensor.name}"
    elif count == 1:
        parts = stem
    else:
        parts = f"{stem}.{tensor.name or number}"
    name = tensor_file_name(parts, f".{kind.value}")
    if name in names:
        name = tensor_file_name(f"{parts}={number}", f".{kind.value}")
    names.add(name)
    return name


def _written(
    source: SourceFile, content: FileContent, tensor: NamedTensor, output: Path, name: str, kind: FileType
) -> UnpackedTensor:
    attributes = dict(tensor.attributes)
    offset = attributes.pop("offset", None)
    known: dict[str, Any] = {
        "source": str(source.relative),
        "tensor": tensor.name,
        "format": content.format,
        "layout": tensor.layout if tensor.layout not in PLAIN else "",
        "role": tensor.role,
        "offset": offset if isinstance(offset, int) else None,
        "attributes": attributes,
    }
    if tensor.source is None:
        return UnpackedTensor(status=status_of(tensor.damage), problem=tensor.damage, **known)
    known |= {"dtype": tensor.source.dtype, "shape": tensor.source.shape}
    place = source.relative.parent / name
    try:
        elements = content_of(tensor.source)
        make_directory((output / place).parent, below=output)
        written = write_tensor(output / place, elements, kind)
    except UnsupportedDtypeError as error:
        return UnpackedTensor(status=Status.REFUSED, problem=error.finding, **known)
    except DumpError as error:
        damage = damage_by(error, known["offset"] or 0)
        return UnpackedTensor(status=status_of(damage), problem=damage, **known)
    return UnpackedTensor(
        status=Status.SOUND,
        file=str(place),
        hash_before=(before := digest_of(elements)),
        hash_after=before if written is elements else digest_of(written),
        conversions=_conversions(tensor, elements, written),
        **known,
    )


def _conversions(tensor: NamedTensor, elements: TensorContent, written: TensorContent) -> list[Finding]:
    found: list[Finding] = []
    name = tensor.name
    if (layout := tensor.attributes.get("relaid")) is not None:
        found.append(Finding(FilesCode.RELAID, Level.NOTE, {"name": name, "layout": str(layout)}))
    elif tensor.layout not in PLAIN:
        found.append(Finding(FilesCode.LAYOUT_KEPT, Level.WARNING, {"name": name, "layout": tensor.layout}))
    if written.dtype != elements.dtype:
        fields = {"name": name, "dtype": elements.dtype, "wider": written.dtype}
        found.append(Finding(FilesCode.WIDENED, Level.NOTE, fields))
    return found


def content_of(source: TensorSource) -> TensorContent:
    """Return the elements of a tensor as they are stored, in C order.

    Raises:
        DumpError: they cannot be read, do not fit into memory, or are text.
    """
    if source.dtype == "text":
        raise DumpError("it is text, which is no tensor")
    if isinstance(source, JoinedTensor):
        room = b"".join(bytes(part.content().data) for part in source.parts)
        return TensorContent(source.dtype, source.shape, memoryview(room))
    read = getattr(source, "content", None)
    if read is not None:
        return read()
    parts = list(source.chunks(1 << 20))
    values: Any = np.ascontiguousarray(np.concatenate(parts) if parts else np.empty(0, source.dtype))
    if values.dtype.name != source.dtype:
        raise DumpError(f"its {source.dtype} is not available as it is stored")
    return TensorContent(source.dtype, source.shape, memoryview(values.view(np.uint8)))
