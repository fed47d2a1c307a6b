"""Read calls with what a device computed of them, where that device is not; see `call_records`."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from msprobe_core import names
from msprobe_core.api_check.call_records import (
    HEADER_FILE,
    PART_FILE,
    VERSION,
    Header,
    Part,
    StoredCall,
    StoredItems,
    StoredScalar,
    StoredTensor,
    StoredValue,
    part_stem,
)
from msprobe_core.api_check.three_way import FreshResults, not_computed
from msprobe_core.errors import DamagedDumpError, DumpError, EntryNameError, LargeDumpError
from msprobe_core.findings import Finding, noted
from msprobe_core.model import Argument, Phase, ReplayTensor, ReplayValue
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.store.layout import SHARD_SUFFIX
from msprobe_core.store.tensors import open_member
from msprobe_core.untrusted.files import open_plain, read_plain, reading
from msprobe_core.untrusted.json_text import without_depth

_MAX_INDEX_BYTES = 1 << 30

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ComputedCall:
    """A call, and what devices computed of it elsewhere.

    Attributes:
        call: As it was recorded.
        position: Among those of the dump.
        fresh: Results of devices, for `three_way.check_on`.
    """

    call: RecordedCall
    position: int
    fresh: Sequence[FreshResults]


def has_calls(path: Path) -> bool:
    """Whether this is a directory of such files, and not a dump."""
    return (path / HEADER_FILE).is_file()


class CallFiles:
    """A directory of stored calls, which are read one by one.

    Attributes:
        header: What all calls have in common.
        entries: Names of the calls, in the order of the dump.
        num_parts: Number of parts.
    """

    def __init__(self, directory: Path, max_elements: int = 1 << 28) -> None:
        """Read what there is, without the tensors.

        Args:
            directory: The directory.
            max_elements: A call with more elements in all of its tensors is not read.

        Raises:
            DumpError: a file is missing, damaged or not such a file.
        """
        self._directory = directory
        self._max_elements = max_elements
        self.header = _decoded(directory / HEADER_FILE, Header)
        if self.header.format != "msprobe calls" or self.header.version != VERSION:
            raise DumpError(f"{directory / HEADER_FILE}: is not of stored calls, or of another release of msprobe")
        self.num_parts = self._count_parts()
        calls: list[tuple[StoredCall, Path]] = []
        for number in range(self.num_parts):
            index = self._index(number)
            calls += [(call, index) for call in _read_part(index).calls]
        calls.sort(key=lambda each: each[0].position)
        self._calls = {call.entry: (call, index) for call, index in calls}
        if len(self._calls) < len(calls):
            raise DamagedDumpError(f"{directory}: has a call twice; it is damaged, or two programs wrote to it")

    @property
    def entries(self) -> Sequence[str]:
        """Names of the calls, in the order of the dump."""
        return list(self._calls)

    def read(self, entry: str) -> ComputedCall:
        """Read a call.

        Raises:
            DumpError: it is not there, or a file is damaged.
        """
        if entry not in self._calls:
            raise DumpError(f"{self._directory}: has no call {entry!r}")
        stored, index = self._calls[entry]
        return _Reader(index, self._max_elements).read(stored)

    def _index(self, number: int) -> Path:
        return self._directory / f"{part_stem(number)}.json"

    def _count_parts(self) -> int:
        with reading(self._directory):
            parts = [PART_FILE.fullmatch(path.name) for path in self._directory.iterdir()]
        there = {int(part[1]) for part in parts if part is not None}
        for number in range(len(there)):
            if number not in there:
                raise DumpError(f"{self._index(number)}: is missing, while later parts are there")
        return len(there)


def _read_part(index: Path) -> Part:
    """Return one part, after its file of tensors was found to have the size that it had."""
    part = _decoded(index, Part)
    tensors = index.with_suffix(SHARD_SUFFIX)
    with reading(tensors), open_plain(tensors) as file:
        size = file.seek(0, 2)
    if size != part.num_bytes:
        raise DamagedDumpError(
            f"{tensors}: has {size} bytes, and {part.num_bytes} were written; it is cut off or replaced"
        )
    for call in part.calls:
        _check_entry(index, call)
        if odd := next((each.device for each in call.fresh if not _DEVICE.fullmatch(each.device)), None):
            raise DamagedDumpError(f"{index}: {odd!r} is not the name of a device; the file is damaged")
    return part


_DEVICE = re.compile(r"(?!recorded$)[A-Za-z][A-Za-z0-9_]{0,31}(:[0-9]{1,4})?", re.ASCII)


def _check_entry(index: Path, call: StoredCall) -> None:
    try:
        is_call = names.parse_entry(call.entry).phase in (Phase.FORWARD, Phase.BACKWARD)
    except EntryNameError:
        is_call = False
    if not is_call:
        raise DamagedDumpError(f"{index}: {call.entry!r} is not the name of a call; the file is damaged")


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        content = read_plain(path, _MAX_INDEX_BYTES)
        if len(without_depth(content)) != len(content):
            raise DumpError(f"{path}: its values are nested too deeply")
        return msgspec.json.decode(content, type=kind)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise LargeDumpError(f"{path}: does not fit into memory") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedDumpError(f"{path}: is not a whole file of stored calls ({error})") from error


class _TooLargeError(Exception):
    """A call has too many elements."""


class _Reader:
    """Reads the tensors of one call, each once."""

    def __init__(self, index: Path, max_elements: int) -> None:
        self._tensors_file = index.with_suffix(SHARD_SUFFIX)
        self._left = self._most = max_elements
        self._read: dict[tuple[str, bool], Any] = {}

    def read(self, stored: StoredCall) -> ComputedCall:
        site = names.parse_entry(stored.entry)
        missing: Finding | None = None if stored.missing is None else noted(stored.missing)
        fresh: list[FreshResults] = []
        call = RecordedCall(entry=stored.entry, site=site, missing=missing)
        if missing is None:
            try:
                call = RecordedCall(
                    entry=stored.entry, site=site, args=[self._value(value) for value in stored.args],
                    kwargs={name: self._value(value) for name, value in stored.kwargs.items()},
                    parameters=self._all(stored.parameters), gradients=self._all(stored.gradients),
                    outputs=self._all(stored.outputs), scalars=stored.scalars,
                )  # fmt: skip
                for each in stored.fresh:
                    if each.problem is None:
                        fresh.append(FreshResults(device=each.device, results=self._all(each.results)))
                    else:
                        fresh.append(not_computed(each.device, each.problem))
            except _TooLargeError:
                missing = Finding(ReplayCode.TOO_LARGE, fields={"most": self._most})
                call, fresh = RecordedCall(entry=stored.entry, site=site, missing=missing), []
        return ComputedCall(call=call, position=stored.position, fresh=fresh)

    def _value(self, value: StoredValue) -> ReplayValue:
        if isinstance(value, StoredTensor):
            return self._tensor(value)
        if isinstance(value, StoredScalar):
            return Argument(value.type, value.value)
        if isinstance(value, StoredItems):
            return {key: self._value(item) for key, item in value.items.items()}
        return None if value is None else [self._value(item) for item in value.items]

    def _all(self, values: Mapping[str, StoredTensor]) -> dict[str, ReplayTensor]:
        return {path: self._tensor(value) for path, value in values.items()}

    def _tensor(self, value: StoredTensor) -> ReplayTensor:
        place = value.key, value.is_complex
        if place not in self._read:
            self._read[place] = self._load(value)
        values = self._read[place]
        if values.shape != value.shape:
            raise DamagedDumpError(
                f"{self._tensors_file}: {value.key!r} has another shape than its call says; it is damaged"
            )
        return ReplayTensor(
            values=values, dtype=value.dtype, takes_gradient=value.takes_gradient, identity=value.identity
        )

    def _load(self, value: StoredTensor) -> Any:
        found = open_member(self._tensors_file, value.key)
        self._left -= math.prod(found.shape)
        if self._left < 0:
            raise _TooLargeError
        storage = dataclasses.replace(found.storage, crc=value.crc)
        values: Any = dataclasses.replace(found, storage=storage).read()
        if not value.is_complex:
            return values
        kind = {"float32": np.complex64, "float64": np.complex128}.get(values.dtype.name)
        if kind is None or values.shape[-1:] != (2,):
            raise DamagedDumpError(f"{self._tensors_file}: {value.key!r} holds no complex numbers; it is damaged")
        return values.view(kind)[..., 0]
