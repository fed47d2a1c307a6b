"""Recognise foreign files of tensors by their content, and open their tensors. Nothing in them is executed.

The name of a file decides only between formats whose content is the same: a tensor that SGLang saved is a ``.pt`` file
called ``key=value___key=value.pt``, and one of a kernel of MindSpore a ``.npy`` file with the kernel's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.errors import DumpError, clip
from msprobe_core.manifest.facts import Scalar
from msprobe_core.store import kernel_files, layout
from msprobe_core.store.pt_trees import Opaque, open_pt_tree, path_text
from msprobe_core.store.tensor_source import StoredTensor
from msprobe_core.store.tensors import open_member, open_tensor, shard_keys
from msprobe_core.tensor_files.archives import member_names, read_npz
from msprobe_core.tensor_files.atb import MARK as ATB_MARK
from msprobe_core.tensor_files.atb import read_atb
from msprobe_core.tensor_files.cann_dumps import is_cann_dump, read_cann_dump
from msprobe_core.tensor_files.contents import FileContent, FileFormat, NamedTensor
from msprobe_core.tensor_files.files_codes import FilesCode
from msprobe_core.tensor_files.mindspore_checkpoint import is_mindspore_checkpoint, open_mindspore_checkpoint
from msprobe_core.tensor_files.opening import Opened, opened, refuse_overlaps
from msprobe_core.tensor_files.problems import ProblemError, attempted, damage_by
from msprobe_core.untrusted.files import read_plain

METADATA_FILE = "metadata.jsonl"
"""What FlashInfer writes beside the tensors of one call."""

_NPY_MARK = b"\x93NUMPY"
_NPY_HEADER = _SAFETENSORS_HEADER = 8
"""Position of the header of either format, after its mark or length."""

_ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")
_OLD_PT_MARK = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The magic number of ``torch.save`` before PyTorch 1.6, as a pickle."""

_MAX_METADATA_BYTES = 64 << 20
_MAX_OBJECTS = 100
"""How many objects of a file that are no tensors are listed one by one."""


def identify(path: Path | str) -> FileContent:
    """Return what a file of tensors, or the directory of a dump, holds; only headers are read.

    Args:
        path: A file of any of the formats in `FileFormat`, or the directory of a dump of msprobe.

    Returns:
        The format, and each tensor or why it cannot be opened. Nothing is raised for a damaged or unknown file.

    Raises:
        DumpError: it does not exist, is a directory that holds no dump, or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return _dump_in(path)
    with opened(path) as file:
        form = format_of(file)
        if form is FileFormat.UNKNOWN:
            damage = ProblemError(FilesCode.UNKNOWN, 0).finding
            return FileContent(path=path, format=form, size_bytes=file.size, damage=damage)
        try:
            content = _READERS[form](file)
        except DumpError as error:
            return FileContent(path=path, format=form, size_bytes=file.size, damage=damage_by(error))
        except MemoryError:
            damage = ProblemError(FilesCode.TOO_LARGE, 0, num_bytes=file.size).finding
            return FileContent(path=path, format=form, size_bytes=file.size, damage=damage)
        except Exception as error:  # noqa: BLE001 - untrusted bytes: readers of formats may fail in any way
            why = DumpError(f"{type(error).__name__}: {error}")
            return FileContent(path=path, format=form, size_bytes=file.size, damage=damage_by(why))
    return content


def open_tensors(path: Path | str) -> Iterator[NamedTensor]:
    """Yield the tensors of a file, whose elements are read on demand; those that cannot be opened have no source.

    Raises:
        DumpError: as `identify`; or the whole file is damaged or of no known format.
    """
    content = identify(path)
    if content.damage is not None and not content.tensors:
        raise DumpError(f"{content.path}: {content.damage.text}")
    yield from content.tensors


def format_of(file: Opened) -> FileFormat:
    """Return the format of an opened file; `FileFormat.UNKNOWN` if it is none of those known here."""
    head = file.head
    if head.startswith(_NPY_MARK):
        return FileFormat.MINDSPORE_KERNEL if kernel_files.is_tensor_name(file.path.name) else FileFormat.NPY
    if head.startswith(_ZIP_MARKS):
        return _format_of_zip(file)
    if head.startswith(_OLD_PT_MARK):
        return _kind_of_pt(file.path)
    if head.startswith(ATB_MARK):
        return FileFormat.ATB
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 0 < length <= file.size - 8:
        return FileFormat.FLASHINFER if _is_of_flashinfer(file.path) else FileFormat.SAFETENSORS
    if is_cann_dump(file):
        return FileFormat.ADUMP
    if is_mindspore_checkpoint(file.path):
        return FileFormat.MINDSPORE_CHECKPOINT
    return FileFormat.UNKNOWN


def tags_of(name: str) -> Mapping[str, str]:
    """Return the tags in the name of a file that SGLang's dumper wrote; empty if it has none.

    ``step=0___rank=1___dump_index=5___name=hidden_states___layer_id=3.pt``; releases before ``step`` have
    ``forward_pass_id``.
    """
    if not name.endswith(".pt") or name.find("=") < 1:
        return {}
    parts = [part.partition("=") for part in name.removesuffix(".pt").split("___")]
    tags = {key: value for key, mark, value in parts if mark}
    return tags if "name" in tags else {}


def _format_of_zip(file: Opened) -> FileFormat:
    try:
        names = member_names(file)
    except ProblemError:
        # The first member shows what it was to be.
        is_pt = b"data.pkl" in file.head[:512] or b"archive/" in file.head[:64]
        return _kind_of_pt(file.path) if is_pt or file.path.suffix == ".pt" else FileFormat.NPZ
    if any(name.partition("/")[2] == "data.pkl" for name in names):
        return _kind_of_pt(file.path)
    if not names or any(name.endswith(".npy") for name in names):
        return FileFormat.NPZ
    return FileFormat.UNKNOWN


def _kind_of_pt(path: Path) -> FileFormat:
    if tags_of(path.name):
        return FileFormat.SGLANG
    return FileFormat.FLASHINFER if _is_of_flashinfer(path) else FileFormat.PT


def _is_of_flashinfer(path: Path) -> bool:
    return path.stem in {"inputs", "outputs"} and path.with_name(METADATA_FILE).is_file()


# --- readers -------------------------------------------------------------------------------------------------------


def _read_npy(file: Opened) -> FileContent:
    # The file may have another suffix.
    source, damage = attempted(lambda: open_tensor(file.path, ".npy"), _NPY_HEADER)
    tensor = NamedTensor(name=file.path.name.removesuffix(".npy"), source=source, damage=damage)
    version = ".".join(map(str, file.head[6:8]))
    return FileContent(path=file.path, format=FileFormat.NPY, version=version, size_bytes=file.size, tensors=[tensor])


def _read_kernel(file: Opened) -> FileContent:
    found = kernel_files.tensor_file(file.path.name)
    assert found is not None
    source, damage = attempted(lambda: open_tensor(file.path), _NPY_HEADER)
    place = found.place
    tensor = NamedTensor(
        name=f"{place.kernel}.{place.side}.{place.slot}",
        source=source,
        role=place.side,
        attributes={"kernel": place.kernel, "time": found.time},
        damage=damage,
    )
    return FileContent(path=file.path, format=FileFormat.MINDSPORE_KERNEL, size_bytes=file.size, tensors=[tensor])


def _read_safetensors(file: Opened) -> FileContent:
    found = {
        key: attempted(lambda key=key: open_member(file.path, key), _SAFETENSORS_HEADER)
        for key in shard_keys(file.path)
    }
    storages = {key: source.storage for key, (source, _) in found.items() if source is not None}
    overlaps = refuse_overlaps([(each.begin, each.begin + each.num_bytes, key) for key, each in storages.items()])
    role = file.path.stem.removesuffix("s") if _is_of_flashinfer(file.path) else ""
    tensors: list[NamedTensor] = []
    for key, (source, damage) in found.items():
        if key in overlaps:
            source, damage = None, overlaps[key].finding  # noqa: PLW2901
        attributes: dict[str, Scalar] = {} if source is None else {"offset": source.storage.begin}
        tensors.append(NamedTensor(name=key, source=source, role=role, attributes=attributes, damage=damage))
    return FileContent(
        path=file.path,
        format=FileFormat.FLASHINFER if role else FileFormat.SAFETENSORS,
        size_bytes=file.size,
        tensors=tensors,
        attributes=call_of(file.path) if role else {},
    )


def _read_pt(file: Opened) -> FileContent:
    form = _kind_of_pt(file.path)
    if file.head.startswith(_ZIP_MARKS):
        member_names(file)  # refuses too many
    tree = open_pt_tree(file.path)
    role = file.path.stem.removesuffix("s") if form is FileFormat.FLASHINFER else ""
    tensors: list[NamedTensor] = []
    num_objects = num_values = 0
    for path, value in tree.leaves():
        name = path_text(path) or file.path.name.removesuffix(".pt")
        if isinstance(value, StoredTensor):
            attributes: dict[str, Scalar] = {"offset": value.storage.begin}
            tensors.append(NamedTensor(name=name, source=value, role=role, attributes=attributes))
        elif isinstance(value, Opaque):
            num_objects += 1
            if num_objects <= _MAX_OBJECTS:
                tensors.append(NamedTensor(name=name, source=None, role=role, damage=_refusal_of(value)))
        else:
            num_values += 1
    attributes = {"values": num_values} if num_values else {}
    if num_objects > _MAX_OBJECTS:
        attributes["objects"] = num_objects
    if form is FileFormat.SGLANG:
        attributes |= {key: clip(value) for key, value in tags_of(file.path.name).items()}
    if role:
        attributes |= call_of(file.path)
    return FileContent(path=file.path, format=form, size_bytes=file.size, tensors=tensors, attributes=attributes)


def _read_checkpoint(file: Opened) -> FileContent:
    found = open_mindspore_checkpoint(file.path)
    tensors: list[NamedTensor] = []
    attributes: dict[str, Scalar] = {}
    for value in found.values:
        if value.text is not None:
            attributes[clip(value.name)] = clip(value.text)
        else:
            damage = None if value.source is not None else damage_by(DumpError(value.reason), value.position)
            tensors.append(NamedTensor(name=value.name, source=value.source, damage=damage))
    return FileContent(
        path=file.path,
        format=FileFormat.MINDSPORE_CHECKPOINT,
        size_bytes=file.size,
        tensors=tensors,
        damage=damage_by(DumpError(found.damage), found.position) if found.damage else None,
        attributes=attributes,
    )


def _refusal_of(value: Opaque) -> Any:
    if value.reason:
        return damage_by(DumpError(f"{clip(value.name)}: {clip(value.reason)}"), value.position)
    return ProblemError(FilesCode.OBJECT, value.position, name=clip(value.name)).finding


def call_of(path: Path) -> dict[str, Scalar]:
    """Return what FlashInfer says of the call with the tensors in a file: the last line beside it, if any."""
    try:
        lines = read_plain(path.with_name(METADATA_FILE), _MAX_METADATA_BYTES).splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record = msgspec.json.decode(line, type=_Call)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue  # a process that was killed leaves half a line
        return {
            "function_name": clip(record.function_name), "call_sequence": record.call_sequence,
            "process_id": record.process_id, "execution_status": clip(record.execution_status),
        }  # fmt: skip
    return {}


class _Call(msgspec.Struct):
    """One line of FlashInfer's metadata."""

    function_name: str
    call_sequence: int = 1
    process_id: int = 0
    execution_status: str = ""


def _dump_in(path: Path) -> FileContent:
    """Return the tensors of a dump of msprobe: those that have files."""
    from msprobe_core.store.reading import read_dump  # imports polars

    if not is_dump(path):
        raise DumpError(
            f"{path}: cannot be read (it is a directory without a dump); give its files, or `msprobe identify {path}`"
        )
    dump = read_dump(path)
    rows = dump.frame.filter(dump.frame["file_name"].is_not_null()).select("name", "role", "file_name").rows()
    tensors: list[NamedTensor] = []
    for name, role, file_name in rows:
        source, damage = attempted(lambda file_name=file_name: dump.open_tensor(file_name))
        tensors.append(NamedTensor(name=name, source=source, role=role, damage=damage))
    return FileContent(
        path=path, format=FileFormat.DUMP, tensors=tensors, attributes={"framework": dump.header.framework}
    )


def is_dump(directory: Path) -> bool:
    """Whether a directory is that of one rank's dump."""
    return any((directory / name).is_file() for name in layout.RECORD_FILES)


_READERS: Mapping[FileFormat, Callable[[Opened], FileContent]] = {
    FileFormat.NPY: _read_npy,
    FileFormat.NPZ: read_npz,
    FileFormat.PT: _read_pt,
    FileFormat.SGLANG: _read_pt,
    FileFormat.FLASHINFER: lambda file: _read_pt(file) if file.path.suffix == ".pt" else _read_safetensors(file),
    FileFormat.SAFETENSORS: _read_safetensors,
    FileFormat.ATB: read_atb,
    FileFormat.ADUMP: read_cann_dump,
    FileFormat.MINDSPORE_KERNEL: _read_kernel,
    FileFormat.MINDSPORE_CHECKPOINT: _read_checkpoint,
}
