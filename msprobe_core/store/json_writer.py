"""Write ``dump.json``, ``stack.json`` and ``construct.json`` as streams: a record per line, valid after each batch."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import (
    Argument,
    Batch,
    Digest,
    Distribution,
    Ending,
    Entry,
    Failure,
    GradientSlot,
    Level,
    Phase,
    RunHeader,
    Task,
    TensorValue,
    Value,
)
from msprobe_core.protocols.storage import Writer, WriterFactory
from msprobe_core.store import layout
from msprobe_core.store.append_file import GrowingFile
from msprobe_core.store.ending import says_anything

_encode = msgspec.json.Encoder(enc_hook=lambda value: f"<{type(value).__name__}>").encode


class JsonObjectStream:
    """An append-only JSON object that is valid after every append; see `GrowingFile`."""

    def __init__(self, path: Path, head: bytes, tail: bytes) -> None:
        """Create the file without members.

        Args:
            path: An existing file is replaced.
            head: Everything before the first member.
            tail: Everything after the last.

        Raises:
            StoreError: the file cannot be created or written.
        """
        self._file = GrowingFile(path, head, tail)
        self._is_empty = True

    def append(self, members: Sequence[tuple[str, bytes]]) -> None:
        """Append members, each a key and its encoded value.

        Raises:
            StoreError: they cannot be written; the file then has all earlier ones and is valid.
        """
        if not members:
            return
        lines = b",\n".join(_encode(clean_text(key)) + b":" + value for key, value in members)
        self._file.append(lines if self._is_empty else b",\n" + lines)
        self._is_empty = False

    def end_with(self, tail: bytes | None) -> None:
        """Replace the usual tail, until members are appended; ``None`` restores it.

        Raises:
            StoreError: it cannot be written; the file then has its usual tail.
        """
        self._file.end_with(tail)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JsonWriter:
    """The writer of one step of one rank."""

    def __init__(self, directory: Path, header: RunHeader, place: Path | None = None) -> None:
        """Begin the files.

        Args:
            directory: Where they are written.
            header: Of the dump.
            place: The directory that they will be in; ``None`` for the same.
        """
        layout.remove_dump(directory)
        name = layout.DEBUG_FILE if header.level == Level.DEBUG.value else layout.DUMP_FILE
        self._dump = JsonObjectStream(directory / name, dump_head(place or directory, header), DUMP_TAIL)
        self._stacks: JsonObjectStream | None = None
        self._construct: JsonObjectStream | None = None
        if header.has_extra_info:
            self._stacks = JsonObjectStream(directory / layout.STACK_FILE, b"{\n", b"\n}\n")
            self._construct = JsonObjectStream(directory / layout.CONSTRUCT_FILE, b"{\n", b"\n}\n")
        self._num_stacks = 0
        self._num_calls = 0
        self._keeps_values = header.task != Task.STRUCTURE.value

    def write(self, batch: Batch) -> None:
        """Append a batch to all files, records last: every record in the file has its stack and its nesting."""
        if self._stacks is not None:
            self._stacks.append(self._grouped_by_stack(batch.entries))
        if self._construct is not None:
            self._construct.append(
                [(name, _encode(parent and clean_text(parent))) for name, parent in batch.parents.items()]
            )
        if self._keeps_values:
            self._dump.append([(entry.name, encoded_entry(entry)) for entry in batch.entries])
        self._num_calls += len(batch.entries)

    def end(self, ending: Ending) -> None:
        """Store how the recording ended; see `msprobe_core.plugin.EndingWriter`."""
        self._dump.end_with(dump_tail(msgspec.structs.replace(ending, num_calls=self._num_calls)))

    def close(self) -> None:
        """Close all files."""
        for stream in (self._dump, self._stacks, self._construct):
            if stream is not None:
                stream.close()

    def _grouped_by_stack(self, entries: Iterable[Entry]) -> list[tuple[str, bytes]]:
        groups: dict[tuple[str, ...], list[str]] = {}
        for entry in entries:
            if entry.stack is not None:
                groups.setdefault(entry.stack, []).append(clean_text(entry.name))
        members: list[tuple[str, bytes]] = []
        for frames, entry_names in groups.items():
            members.append((str(self._num_stacks), _encode([entry_names, [clean_text(frame) for frame in frames]])))
            self._num_stacks += 1
        return members


def encoded_entry(entry: Entry) -> bytes:
    """Return the entry as JSON; if that fails, return the reason instead, so that the others are written."""
    try:
        return _encode(entry_json(entry))
    except Exception as error:  # noqa: BLE001  # arguments are objects of the user
        failed = {"type": "error", "error": type(error).__name__}
        return _encode(failed if entry.phase is Phase.DEBUG else failed | {"execution": {"sequence": entry.sequence}})


DUMP_TAIL = b"\n}}\n"
"""The text after the last record while the ending is unknown."""


def dump_tail(ending: Ending) -> bytes:
    """Return the text after the last record once the ending is known."""
    if not says_anything(ending):
        return DUMP_TAIL
    cleaned = msgspec.structs.replace(ending, reason=clean_text(ending.reason))
    return b'\n},\n"end":' + _encode(cleaned) + b"}\n"


def dump_head(directory: Path, header: RunHeader, others: Mapping[str, Any] | None = None) -> bytes:
    """Return the text before the first record.

    Args:
        directory: Final directory of the dump.
        header: Header of the dump.
        others: Additional members.
    """
    keeps_tensors = header.keeps_tensors or header.task == Task.TENSOR.value
    fields: dict[str, Any] = {
        "task": header.task,
        "level": header.level,
        "framework": header.framework,
        "summary_mode": header.summary_mode,
        "dump_data_dir": str((directory / layout.TENSOR_DIRECTORY).absolute()) if keeps_tensors else None,
    }
    if header.run is not None:
        fields["run"] = header.run
    return _encode({**(others or {}), **fields})[:-1] + b',\n"data":{\n'


def entry_json(entry: Entry) -> Any:
    """Return an entry in the structure of ``dump.json``, or a saved value in that of ``debug.json``."""
    if entry.phase is Phase.DEBUG:
        return value_json((entry.outputs or [None])[0])
    if entry.phase is Phase.PARAMETERS_GRAD:
        record: dict[str, Any] = {name: [value_json(v)] for name, v in (entry.parameters or {}).items()}
    elif entry.phase is Phase.BACKWARD:
        record = _parts({"input": entry.inputs, "output": entry.outputs, "output_kwargs": entry.output_kwargs})
    else:
        record = _parts(
            {
                "input_args": entry.inputs,
                "input_kwargs": entry.input_kwargs,
                "output": entry.outputs,
                "parameters": entry.parameters,
            }
        )
    # A parameter may be named "execution" too; it takes precedence.
    record.setdefault("execution", _execution_json(entry))
    return record


def _execution_json(entry: Entry) -> dict[str, Any]:
    execution: dict[str, Any] = {"sequence": entry.sequence}
    if entry.micro_step:
        execution["micro_step"] = entry.micro_step
    if entry.is_recomputed:
        execution["recompute"] = True
    return execution


def _parts(parts: Mapping[str, list[Value] | dict[str, Value] | None]) -> dict[str, Any]:
    return {name: value_json(part) for name, part in parts.items() if part is not None}


def value_json(value: Value) -> Any:
    """Return a value in the structure of ``dump.json``."""
    if isinstance(value, TensorValue):
        return _tensor_json(value)
    if isinstance(value, list):
        return [value_json(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): value_json(item) for key, item in value.items()}
    if isinstance(value, GradientSlot):
        return value_json(value.value)
    if isinstance(value, Argument):
        return _argument_json(value, json_number)
    if isinstance(value, Failure):
        return {"type": "error", "error": clean_text(value.reason)}
    return None


def leaf_text(value: TensorValue | Argument | Failure) -> str:
    """Return the JSON text of a value in ``dump.arrow``, where infinities are text."""
    fields = _argument_json(value, finite_number) if isinstance(value, Argument) else value_json(value)
    return _encode(fields).decode()


def _tensor_json(value: TensorValue) -> dict[str, Any]:
    meta, stats = value.meta, value.digest.stats
    fields: dict[str, Any] = {"type": meta.type, "dtype": meta.dtype, "shape": meta.shape}
    if stats is not None:  # absent with summary_mode xor or hash
        fields["Max"] = json_number(stats.max)
        fields["Min"] = json_number(stats.min)
        fields["Mean"] = json_number(stats.mean)
        fields["Norm"] = json_number(stats.l2_norm)
    if meta.requires_grad is not None:
        fields["requires_grad"] = meta.requires_grad
    if stats is not None and stats.num_nan is not None:
        fields["num_nan"] = stats.num_nan
        fields["num_inf"] = stats.num_inf
    if meta.distribution is not None:
        fields |= _distribution_json(meta.distribution)
    if meta.transforms is not None:
        fields["transforms"] = meta.transforms
    fields |= _digest_json(value.digest)
    if value.file_name is not None:
        fields["data_name"] = value.file_name
    if value.sliced_from is not None:
        fields["sliced_from"] = value.sliced_from
    if value.failure is not None:
        fields["error"] = clean_text(value.failure)
    return fields


def _digest_json(digest: Digest) -> dict[str, Any]:
    """Return what a digest has besides statistics."""
    fields: dict[str, Any] = {}
    if digest.checksum is not None:
        fields["md5"] = digest.checksum
    if digest.sketch is not None:
        fields["sketch"] = base64.b64encode(digest.sketch).decode()
    if digest.fp8 is not None:
        fields["fp8"] = digest.fp8
    if digest.extra is not None:
        fields["extra_statistics"] = {name: json_number(number) for name, number in digest.extra.items()}
    return fields


def _distribution_json(distribution: Distribution) -> dict[str, Any]:
    placements: list[dict[str, dict[str, Any]]] = []
    for placement in distribution.placements:
        detail: dict[str, Any] = {
            "dim": placement.dim,
            "reduce_op": placement.reduce_op,
            "split_factor": placement.split_factor,
        }
        placements.append({placement.kind: {key: value for key, value in detail.items() if value is not None}})
    fields = {
        "device_mesh": distribution.device_mesh,
        "placements": placements,
        "local_shape": distribution.local_shape,
    }
    return fields if distribution.local_offset is None else {**fields, "local_offset": distribution.local_offset}


def _argument_json(argument: Argument, number: Callable[[Any], Any]) -> Any:
    if argument.fields is not None:
        return {"type": argument.type, **{key: number(part) for key, part in argument.fields.items()}}
    value = argument.value
    text = clean_text(value) if isinstance(value, str) else number(value)
    return {"type": argument.type, "value": text} if argument.type else text


def clean_text(text: str) -> str:
    """Return ``text`` as valid UTF-8: text from a tokenizer's bytes may contain lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_number(number: Any) -> Any:
    """Return ``number`` as strict JSON.

    NaN is a string. Infinities are numbers beyond the range of float64: mindstudio-probe treats their names as
    different texts, and rejects texts that begin with a minus.
    """
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else _INFINITE[number > 0]
    if isinstance(number, int) and not -(2**63) <= number < 2**64:
        return msgspec.Raw(str(number).encode())  # the encoder rejects it as a number
    return number


_INFINITE = (msgspec.Raw(b"-1e999"), msgspec.Raw(b"1e999"))


def finite_number(number: Any) -> Any:
    """Return ``number`` for decoders that accept no number beyond float64: NaN and infinities as strings."""
    if isinstance(number, float) and math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return json_number(number)


class JsonWriterFactory:
    """Stores runs as ``dump.json``, ``stack.json`` and ``construct.json``."""

    name = "json"

    def check(self) -> None:
        """Do nothing: this format has no requirements."""

    def open(self, directory: Path, header: RunHeader) -> Writer:
        """Begin a dump in ``directory``."""
        return JsonWriter(directory, header)


@hookimpl
def msprobe_register_writers() -> Sequence[WriterFactory]:
    """Offer the writer of this module."""
    return [JsonWriterFactory()]
