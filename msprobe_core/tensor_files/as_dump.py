"""Foreign dumps of tensors as a dump of msprobe, which ``compare``, ``locate`` and ``view`` read.

Each source has its own place for steps, ranks and names:

===========  ==========================  ========================  ======================================
source       step                        rank                      entry
===========  ==========================  ========================  ======================================
SGLang       ``step``, or                ``rank``                  ``Saved.layers.{layer_id}.{name}``
             ``forward_pass_id``
FlashInfer   0                           number of the process     ``FlashInfer.{function}``
ATB          directory of the token      directory of the device   ``Kernel.{directories of it}``
CANN         directory of the iteration  directory of the device   ``Kernel.{type and name of operator}``
MindSpore    directory of the iteration  ``rank_{R}``              ``Kernel.{name of the kernel}``
others       ``step{K}`` in the path     ``rank{R}`` in the path   ``Saved.{path}.{name of the tensor}``
===========  ==========================  ========================  ======================================

Entries of one name are counted in their order: that of SGLang's ``dump_index``, of FlashInfer's calls, of times in
names of files, and else of names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from msprobe_core.errors import DumpError, MissingDumpError, clip
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import (
    Batch,
    Digest,
    Ending,
    EndState,
    Entry,
    Level,
    Phase,
    RunHeader,
    Stats,
    Task,
    TensorMeta,
    TensorValue,
    Value,
)
from msprobe_core.names import tensor_file_stem
from msprobe_core.plugins import registry
from msprobe_core.protocols.storage import EndingWriter, Writer, WriterFactory
from msprobe_core.store import layout
from msprobe_core.store.convert import Format, check_places, replaced_directory
from msprobe_core.store.folder_reader import FRAMEWORK, natural_order
from msprobe_core.store.json_writer import JsonWriter
from msprobe_core.store.safetensors_writer import ShardWriter
from msprobe_core.store.tensor_statistics import statistics_of
from msprobe_core.tensor_files.contents import FileContent, FileFormat, NamedTensor
from msprobe_core.tensor_files.recognition import identify, tags_of
from msprobe_core.tensor_files.unpacking import SourceFile, content_of, find_sources, is_passed_over

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of finished tensors, the total, and the next one's file."""

SAVED, KERNEL, FLASHINFER = "Saved", "Kernel", "FlashInfer"
"""First parts of the names of entries."""


class SourceKind(str, Enum):
    """Which files of a directory are converted."""

    AUTO = "auto"
    ATB = "atb"
    ADUMP = "adump"
    SGLANG = "sglang"
    FLASHINFER = "flashinfer"
    NPZ = "npz"
    PT = "pt"
    MSNPY = "msnpy"


_FORMATS: Mapping[SourceKind, frozenset[FileFormat]] = {
    SourceKind.AUTO: frozenset(FileFormat) - {FileFormat.UNKNOWN, FileFormat.DUMP},
    SourceKind.ATB: frozenset({FileFormat.ATB}),
    SourceKind.ADUMP: frozenset({FileFormat.ADUMP}),
    SourceKind.SGLANG: frozenset({FileFormat.SGLANG}),
    SourceKind.FLASHINFER: frozenset({FileFormat.FLASHINFER}),
    SourceKind.NPZ: frozenset({FileFormat.NPZ}),
    SourceKind.PT: frozenset({FileFormat.PT, FileFormat.SGLANG}),
    SourceKind.MSNPY: frozenset({FileFormat.MINDSPORE_KERNEL}),
}


@dataclass
class ForeignConversion:
    """What was converted.

    Attributes:
        num_tensors: Number of tensors.
        units: Steps and ranks.
        formats: Formats of their files.
        notes: What was left out, and why.
        damage: Files and tensors that are damaged or refused.
    """

    num_tensors: int = 0
    units: Sequence[tuple[int, int]] = ()
    formats: Sequence[FileFormat] = ()
    notes: list[str] = field(default_factory=list[str])
    damage: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A tensor and its place in a dump."""

    step: int = 0
    rank: int = 0
    entry: str
    role: str = "output"
    key: str = "0"
    call: int | None = None
    order: tuple[int | str, ...] = ()
    file: Path = Path()
    tensor: NamedTensor

    def at(self, call: int) -> str:
        """Return the entry's name with the number of its call."""
        return f"{self.entry}.{call}.{Phase.FORWARD.value}"


def convert_foreign(
    source: Path,
    destination: Path,
    kind: SourceKind = SourceKind.AUTO,
    *,
    to: Format = Format.JSON,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ForeignConversion:
    """Convert foreign files of tensors into a dump of whole tensors with their statistics.

    ``destination`` appears when it is complete. One tensor is in memory at a time.

    Args:
        source: A file, or a directory of files.
        destination: Created: a run with its steps and ranks.
        kind: Which files are converted.
        to: Format of the dump.
        overwrite: Whether an existing run is replaced.
        progress: Called before each tensor, and at the end.

    Raises:
        DumpError: there are no such files.
        StoreError: ``destination`` exists, or cannot be written.
        PluginError: a library for the format is not installed.
    """
    done = ForeignConversion()
    factory = registry().writers()[to.value]
    factory.check()
    units = _placed(source, kind, done)
    if not units:
        wanted = "files of tensors" if kind is SourceKind.AUTO else f"files of the format {kind.value}"
        raise MissingDumpError(
            f"{source}: holds no {wanted} that can be read; `msprobe identify {source}` lists its files"
        )
    check_places(source, destination, overwrite=overwrite)
    total = sum(map(len, units.values()))
    header = RunHeader(
        task=Task.TENSOR.value,
        level=Level.MIX.value,
        framework=FRAMEWORK,
        has_extra_info=False,
        keeps_tensors=True,
    )
    with replaced_directory(destination) as scratch:
        for (step, rank), placed in sorted(units.items()):
            directory = layout.unit_directory(scratch, step, rank)
            layout.make_directory(directory / layout.TENSOR_DIRECTORY)
            with (
                closing(_writer(factory, directory, header, layout.unit_directory(destination, step, rank))) as writer,
                closing(ShardWriter(directory / layout.TENSOR_DIRECTORY)) as shards,
            ):
                entries = _entries(
                    placed, shards, done, lambda file: progress and progress(done.num_tensors, total, file)
                )
                writer.write(Batch(entries, {}))
                if isinstance(writer, EndingWriter):
                    writer.end(Ending(state=EndState.COMPLETE))
        if progress is not None:
            progress(total, total, "")
    done.units = sorted(units)
    return done


def _writer(factory: WriterFactory, directory: Path, header: RunHeader, place: Path) -> Writer:
    if factory.name == Format.JSON.value:
        return JsonWriter(directory, header, place.absolute())
    return factory.open(directory, header)


def _placed(source: Path, kind: SourceKind, done: ForeignConversion) -> dict[tuple[int, int], list[_Placed]]:
    """Return the tensors of each step and rank, in their order."""
    formats: dict[FileFormat, None] = {}
    placed: list[_Placed] = []
    num_others = 0
    for file in find_sources(source):
        content = identify(file.path)
        if content.format not in _FORMATS[kind]:
            num_others += not is_passed_over(content)
            continue
        if content.damage is not None:
            done.damage.append(f"{file.path}: {content.damage.text}")
        formats[content.format] = None
        for tensor in content.tensors:
            if tensor.source is None:
                why = "" if tensor.damage is None else tensor.damage.text
                done.damage.append(f"{file.path}#{clip(tensor.name)}: {why}")
            else:
                placed.append(_PLACES.get(content.format, _any_place)(file, content, tensor))
    if num_others:
        done.notes.append(f"{source}: files of other formats, which were left out: {num_others:,}")
    done.formats = list(formats)
    if FileFormat.FLASHINFER in formats:
        placed = _with_ranks(placed)
    units: dict[tuple[int, int], list[_Placed]] = defaultdict(list)
    for each in sorted(placed, key=lambda each: tuple(map(natural_order, (*each.order, str(each.file))))):
        units[each.step, each.rank].append(each)
    return units


def _with_ranks(placed: Iterable[_Placed]) -> list[_Placed]:
    """Return FlashInfer's calls with the processes as ranks, in the order of their numbers."""
    from dataclasses import replace

    placed = list(placed)
    processes = sorted({each.rank for each in placed if each.entry.startswith(f"{FLASHINFER}.")})
    ranks = {process: rank for rank, process in enumerate(processes)}
    return [
        replace(each, rank=ranks[each.rank]) if each.entry.startswith(f"{FLASHINFER}.") else each for each in placed
    ]


# --- places -------------------------------------------------------------------------------------------------------


def _sglang_place(file: SourceFile, content: FileContent, tensor: NamedTensor) -> _Placed:
    tags = tags_of(file.path.name)
    layer = tags.get("layer_id")
    name = _joined("layers", layer, tags["name"]) if layer is not None else _joined(tags["name"])
    if tensor.name not in {"value", content.path.name.removesuffix(".pt")}:
        name = _joined(name, tensor.name.removeprefix("value."))
    if tags.get("recompute_status", "disabled") not in {"disabled", "original"}:
        name = _joined(name, tags["recompute_status"])
    return _Placed(
        step=_number(tags.get("step", tags.get("forward_pass_id"))),
        rank=_number(tags.get("rank", tags.get("tp_rank", file.path.parent.name.rpartition("_")[2]))),
        entry=f"{SAVED}.{name}",
        order=(_number(tags.get("dump_index")),),
        file=file.path,
        tensor=tensor,
    )


def _flashinfer_place(file: SourceFile, content: FileContent, tensor: NamedTensor) -> _Placed:
    call = content.attributes.get("call_sequence", 1)
    process = content.attributes.get("process_id", 0)
    assert isinstance(call, int)
    assert isinstance(process, int)
    key = tensor.name
    for mark in ("arg_", "kwarg_", "result_"):
        key = key.removeprefix(mark) if tensor.name.startswith(mark) else key
    return _Placed(
        rank=process,
        entry=f"{FLASHINFER}.{_joined(str(content.attributes.get('function_name', 'call')))}",
        role=tensor.role,
        key="0" if key == "result" else key,
        call=max(call - 1, 0),
        order=(file.path.parent.name, tensor.role, tensor.name),
        file=file.path,
        tensor=tensor,
    )


_ATB_DEVICE = re.compile(r"(\d{1,9})_\d+", re.ASCII)
_ATB_TENSOR = re.compile(r"(in|out|internal)_?tensor_?(\d{1,9})", re.ASCII | re.IGNORECASE)


def _atb_place(file: SourceFile, content: FileContent, tensor: NamedTensor) -> _Placed:
    parts = list(file.path.parent.parts)
    device = next((i for i in range(len(parts) - 1, -1, -1) if _ATB_DEVICE.fullmatch(parts[i])), None)
    step = rank = 0
    if device is not None:
        found = _ATB_DEVICE.fullmatch(parts[device])
        rank = _number(found[1] if found else "0")
        parts = parts[device + 1 :]
        if parts and parts[0].isdecimal():
            step, parts = _number(parts[0]), parts[1:]
    else:
        parts = list(file.relative.parent.parts)
    found = _ATB_TENSOR.fullmatch(file.stem)
    name = [part for part in parts if part not in {"before", "after"}]
    if found is None:
        name.append(file.stem)
    if len(content.tensors) > 1:
        name.append(tensor.name)
    return _Placed(
        step=step,
        rank=rank,
        entry=f"{KERNEL}.{_joined(*name)}",
        role="input" if found is not None and found[1].casefold() == "in" else "output",
        key="0" if found is None else f"internal{found[2]}" if found[1].casefold() == "internal" else found[2],
        call=0,
        order=tuple(name),
        file=file.path,
        tensor=tensor,
    )


_CANN_NAME = re.compile(r"(.+?)\.(\d+)\.(\d+)\.(\d{10,})", re.ASCII)


def _cann_place(file: SourceFile, content: FileContent, tensor: NamedTensor) -> _Placed:
    """CANN names a directory by time, device, model, number of the model, and iteration."""
    parts = list(file.path.parent.parts)
    is_numbered = len(parts) >= 4 and parts[-1].isdecimal() and parts[-2].isdecimal() and parts[-4].isdecimal()
    found = _CANN_NAME.fullmatch(file.path.name)
    op_name = str(content.attributes.get("op_name", "")) or file.stem
    return _Placed(
        step=_number(parts[-1]) if is_numbered else 0,
        rank=_number(parts[-4]) if is_numbered else 0,
        entry=f"{KERNEL}.{_joined(found[1] if found else op_name)}",
        role="input" if tensor.role == "input" else "output",
        key=tensor.name.rpartition(".")[2] if tensor.role != "buffer" else tensor.name,
        call=None,
        order=(int(found[4]) if found and len(found[4]) < 20 else 0, file.path.name),
        file=file.path,
        tensor=tensor,
    )


_RANK_DIRECTORY = re.compile(r"rank_?(\d{1,9})", re.ASCII)
_STEP_DIRECTORY = re.compile(r"step_?(\d{1,18})", re.ASCII)


def _kernel_place(file: SourceFile, content: FileContent, tensor: NamedTensor) -> _Placed:
    parts = list(file.path.parent.parts)
    found = _RANK_DIRECTORY.fullmatch(parts[-4]) if len(parts) >= 4 else None
    time = tensor.attributes.get("time", 0)
    return _Placed(
        step=_number(parts[-1]) if parts and parts[-1].isdecimal() else 0,
        rank=_number(found[1] if found else None),
        entry=f"{KERNEL}.{_joined(str(tensor.attributes.get('kernel', content.path.name)))}",
        role=tensor.role,
        key=tensor.name.rpartition(".")[2],
        order=(int(time) if isinstance(time, int) else 0,),
        file=file.path,
        tensor=tensor,
    )


def _any_place(file: SourceFile, content: FileContent, tensor: NamedTensor) -> _Placed:
    step = rank = 0
    name: list[str] = []
    for part in file.relative.parent.parts:
        if found := _STEP_DIRECTORY.fullmatch(part):
            step = _number(found[1])
        elif found := _RANK_DIRECTORY.fullmatch(part):
            rank = _number(found[1])
        else:
            name.append(part)
    name.append(file.stem)
    if len(content.tensors) > 1:
        name.append(tensor.name)
    return _Placed(
        step=step, rank=rank, entry=f"{SAVED}.{_joined(*name)}", order=tuple(name), file=file.path, tensor=tensor
    )


_PLACES: Mapping[FileFormat, Callable[[SourceFile, FileContent, NamedTensor], _Placed]] = {
    FileFormat.SGLANG: _sglang_place,
    FileFormat.FLASHINFER: _flashinfer_place,
    FileFormat.ATB: _atb_place,
    FileFormat.ADUMP: _cann_place,
    FileFormat.MINDSPORE_KERNEL: _kernel_place,
}


def _joined(*parts: str) -> str:
    """Return parts of a name with dots between them, none of which is empty or invisible."""
    words = ".".join(parts).replace("/", ".").split(".")
    shown = ("".join(c if c.isprintable() and c != " " else "_" for c in word) for word in words)
    return clip(".".join(word for word in shown if word), 500) or "tensor"


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else 0


# --- records ------------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    """The values of one entry, in the order of their files."""

    name: str
    inputs: dict[str, TensorValue] = field(default_factory=dict[str, TensorValue])
    outputs: dict[str, TensorValue] = field(default_factory=dict[str, TensorValue])

    def entry(self, sequence: int) -> Entry:
        """Return the record."""
        positional, named = _parts(self.inputs)
        return Entry(
            name=self.name,
            phase=Phase.FORWARD,
            sequence=sequence,
            inputs=positional,
            input_kwargs=named,
            outputs=_parts(self.outputs, is_positional=True)[0],
        )


def _parts(values: Mapping[str, TensorValue], *, is_positional: bool = False) -> tuple[list[Value], dict[str, Value]]:
    """Return values with numbers by number, without those that are missing, and the others by name."""
    numbers = sorted((int(key), value) for key, value in values.items() if key.isdecimal())
    named: dict[str, Value] = {key: value for key, value in values.items() if not key.isdecimal()}
    most = numbers[-1][0] if numbers else -1
    positional: list[Value] = [None] * (most + 1) if most < len(numbers) + 100 else []
    for number, value in numbers:
        if positional:
            positional[number] = value
        else:
            named[str(number)] = value
    if is_positional:
        return [*positional, *named.values()], {}
    return positional, named


def _entries(
    placed: Iterable[_Placed], shards: ShardWriter, done: ForeignConversion, begin: Callable[[str], object]
) -> list[Entry]:
    calls: dict[str, _Call] = {}
    counts: dict[str, int] = defaultdict(int)
    for each in placed:
        raise_if_interrupted()
        begin(str(each.file))
        number = counts[each.entry] if each.call is None else each.call
        side = "inputs" if each.role == "input" else "outputs"
        call = calls.setdefault(each.at(number), _Call(each.at(number)))
        # A value that the entry has already belongs to its next call.
        while each.key in getattr(call, side):
            number += 1
            counts[each.entry] = number
            call = calls.setdefault(each.at(number), _Call(each.at(number)))
        value = _value(each, call.name, shards, done)
        if value is not None:
            getattr(call, side)[each.key] = value
            done.num_tensors += 1
    return [call.entry(sequence) for sequence, call in enumerate(calls.values())]


def _value(each: _Placed, entry: str, shards: ShardWriter, done: ForeignConversion) -> TensorValue | None:
    source = each.tensor.source
    assert source is not None
    try:
        content = content_of(source)
        found = statistics_of(source)
    except DumpError as error:
        done.damage.append(f"{each.file}#{clip(each.tensor.name)}: {error}")
        return None
    file_name = None
    if shards.takes(content):
        file_name = shards.add(tensor_file_stem(entry, each.role, each.key), content)
    else:
        done.notes.append(f"{each.file}: {source.dtype} has no place in a dump; only its statistics were kept")
    stats = Stats(
        max=found.get("max"),
        min=found.get("min"),
        mean=found.get("mean"),
        l2_norm=found.get("norm"),
        num_nan=int(found["num_nan"]) if "num_nan" in found else None,
        num_inf=int(found["num_inf"]) if "num_inf" in found else None,
    )
    meta = TensorMeta(type="torch.Tensor", dtype=source.dtype, shape=tuple(source.shape))
    return TensorValue(meta=meta, digest=Digest(stats=stats), file_name=file_name)
