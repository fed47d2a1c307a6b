"""Read dumps in ``dump.json`` form: ours, and those written by ``mindstudio-probe`` 8.x and 26.x."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from json.decoder import scanstring  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from msprobe_core.errors import DamagedDumpError, DumpError, clip
from msprobe_core.findings import Finding
from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import Ending, RunHeader, RunIdentity
from msprobe_core.protocols.storage import Dump, Reader
from msprobe_core.store import layout
from msprobe_core.store.ending import ending_in
from msprobe_core.store.json_pieces import OddDocumentError, read_pieces
from msprobe_core.store.reading_codes import DamageCode
from msprobe_core.store.stored_dump import MAX_BYTES, StoredDump, read_content
from msprobe_core.untrusted.json_text import without_depth

if TYPE_CHECKING:
    from msprobe_core.store.frame import FrameBuilder
    from msprobe_core.store.stored_rows import Rows


_T = TypeVar("_T")

PIECE_BYTES = 4 << 20
"""Maximum size of the JSON text of a dump in memory."""


class JsonDump(StoredDump):
    """A dump read from ``dump.json`` and the files next to it."""

    stack_file = layout.STACK_FILE
    construct_file = layout.CONSTRUCT_FILE

    @property
    def recomputed(self) -> frozenset[str]:
        """Entries of forward calls that ran inside a backward pass; other tools do not record this."""
        try:
            return frozenset(chain.from_iterable(map(_recomputed_in, read_pieces(self.path, PIECE_BYTES))))
        except (OSError, OddDocumentError):
            return frozenset(_recomputed_in(read_content(self.path)))

    def _read_stacks(self, path: Path) -> Mapping[str, Sequence[str]]:
        return read_stacks(path)

    def _read_parents(self, path: Path) -> Mapping[str, str | None]:
        return read_parents(path)


def _recomputed_in(content: bytes) -> Iterator[str]:
    if b'"recompute"' not in content:
        return iter(())
    try:
        data = msgspec.json.decode(content, type=_Executions).data
    except (msgspec.MsgspecError, ValueError, RecursionError):  # optional: the records have been read
        return iter(())
    return (entry for entry, call in data.items() if call.execution.recompute)


def micro_steps_in(path: Path) -> Mapping[str, int] | None:
    """Return the micro-steps of the calls of a dump; ``None`` if it does not have them, as those of other tools.

    Raises:
        DumpError: the file cannot be read.
    """
    content = read_content(path)
    if b'"execution"' not in content:
        return None
    try:
        data = msgspec.json.decode(content, type=_Executions).data
    except (msgspec.MsgspecError, ValueError, RecursionError):  # optional: the records have been read
        return None
    return {entry: call.execution.micro_step for entry, call in data.items()}


class _Execution(msgspec.Struct):
    recompute: bool = False
    micro_step: int = 0


class _Executed(msgspec.Struct):
    execution: _Execution = msgspec.field(default_factory=_Execution)


class _Executions(msgspec.Struct):
    data: dict[str, _Executed]


class JsonReader:
    """Reads ``dump.json``."""

    name = "json"

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a JSON file or a directory with a ``dump.json`` or ``debug.json``."""
        return path.suffix == ".json" if path.is_file() else _file_in(path).is_file()

    def read(self, path: Path) -> Dump:
        """Read the dump at ``path``, a file or a rank's directory."""
        return read_json_dump(_file_in(path) if path.is_dir() else path)


def _file_in(directory: Path) -> Path:
    """Return the file with the records of a rank's directory."""
    saved = directory / layout.DEBUG_FILE
    return saved if saved.is_file() and not (directory / layout.DUMP_FILE).exists() else directory / layout.DUMP_FILE


def read_stacks(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the frames of each entry in a ``stack.json`` of either format.

    Raises:
        DumpError: the file is missing or is not such a file.
    """
    content = read_object(path)
    groups = content.values() if _is_grouped(content) else [[[entry], frames] for entry, frames in content.items()]
    stacks: dict[str, Sequence[str]] = {}
    for group in groups:
        try:
            entries, frames = msgspec.convert(group, tuple[list[str], list[str]])
        except msgspec.ValidationError as error:
            raise DumpError(f"{path}: is not a {layout.STACK_FILE} ({error})") from error
        stacks.update(dict.fromkeys(entries, frames))
    return stacks


def _is_grouped(content: Mapping[str, Any]) -> bool:
    """Whether entries with the same stack are listed together; older releases write one list per entry."""
    first = cast("Any", content.get("0"))
    return isinstance(first, list) and len(cast("list[Any]", first)) == 2


def read_parents(path: Path) -> Mapping[str, str | None]:
    """Return the enclosing call of each entry in a ``construct.json``.

    Raises:
        DumpError: the file is missing or is not such a file.
    """
    parents: dict[str, str | None] = {}
    for entry, value in read_object(path).items():
        # With Megatron a value is [parent, micro step], and one key has the number of micro steps.
        parent = cast("Any", value[0] if isinstance(value, list) and value else value)
        if isinstance(parent, str | None):
            parents[entry] = parent
    return parents


class Document(msgspec.Struct):
    """A dump whose records are still JSON or, in a damaged or unusual one, already decoded."""

    task: str
    data: dict[str, msgspec.Raw] | dict[str, Any]
    level: Any = ""
    framework: Any = ""
    summary_mode: Any = None
    dump_data_dir: Any = None
    run: Any = None
    end: Any = None

    def header(self, summary_mode: str) -> RunHeader:
        """Return the header of the dump, with defaults for missing fields."""
        return RunHeader(
            task=clip(self.task),
            level=clip(self.level) if isinstance(self.level, str) else "",
            framework=clip(self.framework) if isinstance(self.framework, str) else "",
            summary_mode=clip(summary_mode),
            keeps_tensors=isinstance(self.dump_data_dir, str),
            run=self._identity(),
        )

    def _identity(self) -> RunIdentity | None:
        try:
            return msgspec.convert(self.run, RunIdentity)
        except msgspec.ValidationError:
            return None

    def ending(self, header: RunHeader, num_records: int, damage: Sequence[Finding]) -> Ending:
        """Return how the recording of ``num_records`` records ended; ``damage`` describes damage of the file."""
        return ending_in(header, self.end, num_records, damage)


class _SoundDocument(Document):
    data: dict[str, msgspec.Raw]


_decode_document = msgspec.json.Decoder(_SoundDocument).decode


def read_json_dump(path: Path) -> JsonDump:
    """Return the dump in the file ``path``.

    Args:
        path: A ``dump.json`` or ``debug.json``.

    Raises:
        DumpError: the file is missing, not a dump, or damaged before its first record.
    """
    if (dump := _read_in_pieces(path)) is not None:
        return dump
    damage: list[Finding] = []
    return _built(path, [read_document(path, damage)], damage)


def _read_in_pieces(path: Path) -> JsonDump | None:
    """Return a large dump; ``None`` for a small one, and for one that is damaged or has an unusual layout."""
    try:
        if not PIECE_BYTES < path.stat().st_size <= MAX_BYTES:
            return None
        dump = _built(path, map(_sound_document, read_pieces(path, PIECE_BYTES)), [])
    except (OSError, OddDocumentError):
        return None
    # Of two records with the same name the later one counts. Pieces may hide this; the whole document does not.
    entries = dump.rows["entry"]
    return dump if entries.rle_id().n_unique() == entries.n_unique() else None


def _built(path: Path, documents: Iterable[Document], damage: list[Finding]) -> JsonDump:
    """Return the dump with the records of ``documents``, at least one, in this order.

    Raises:
        DumpError: no record is valid.
        OddDocumentError: see `_sound_document`.
    """
    # They import polars, which the command line does not need.
    from msprobe_core.store.frame import FrameBuilder
    from msprobe_core.store.stored_rows import LONG_BYTES, PART_ROWS

    malformed: Mapping[str, str] = {}
    num_malformed = 0
    has_execution: list[bool] = []
    num_records = 0
    document = Document("", {})
    num_bytes = path.stat().st_size
    builder = FrameBuilder(num_bytes, part_rows=PART_ROWS if num_bytes > LONG_BYTES else None)
    for document in documents:
        has_execution = has_execution or [_has_execution(document)]
        num_records += len(document.data)
        for entry, record in document.data.items():
            try:
                _add_record(builder, entry, record)
            except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:  # noqa: PERF203  # 50 ns
                malformed = malformed or {"record": repr(clip(entry)), "why": clip(str(error))}
                num_malformed += 1
    rows = builder.rows(has_whole_entries=True)
    if malformed and not rows.height:
        first = f"the record {malformed['record']} is malformed ({malformed['why']})"
        raise DumpError(f"{path}: {first}; no other record is sound")
    if malformed:
        damage.append(Finding(DamageCode.MALFORMED, fields={**malformed, "count": num_malformed}))
    mode = document.summary_mode
    if not isinstance(mode, str) or not mode:
        mode = _summary_mode_in(rows, is_ours=any(has_execution))
    header = document.header(mode)
    return JsonDump(path, header, rows, damage, document.ending(header, num_records, damage))


def _has_execution(document: Document) -> bool:
    """Whether the first record has a field that only our dumps have."""
    first: Any = next(iter(document.data.values()), None)
    return b'"execution"' in bytes(first) if isinstance(first, msgspec.Raw) else "execution" in str(first)


def _summary_mode_in(rows: Rows, *, is_ours: bool) -> str:
    """Infer the summary mode of a dump whose header lacks it; empty if that is impossible."""
    if rows["sketch"].null_count() < rows.height:
        return "sketch"
    checksum = rows["checksum"].drop_nulls().head(1).to_list()
    if not checksum:
        return "statistics"
    if len(checksum[0]) == _NUM_CRC_DIGITS:
        return "md5"
    return "" if is_ours else "xor"  # our early releases did not record which of xor and hash it was


_NUM_CRC_DIGITS = 8


def _add_record(builder: FrameBuilder, entry: str, record: Any) -> None:
    """Append the rows of a record.

    Raises:
        TypeError, ValueError, KeyError, AttributeError, RecursionError: it does not have the structure of a record.
    """
    if not isinstance(record, msgspec.Raw):
        builder.add_entry(entry, record)
        return
    try:
        builder.add_json(entry, record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        builder.add_entry(entry, decode_record(record))


def decode_record(record: Any) -> Any:
    """Return a record of a `Document`, decoded.

    Raises:
        ValueError, RecursionError: it is not JSON.
    """
    if not isinstance(record, msgspec.Raw):
        return record
    try:
        return msgspec.json.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Numbers that strict JSON readers reject, and bytes that are not text, do not make a record malformed.
        return _loads_text(bytes(record).decode("utf-8", "replace"))


def read_document(path: Path, damage: list[Finding]) -> Document:
    """Return the dump in ``path``. If the file is truncated, return the rest of it and add to its ``damage``."""
    content = read_content(path)
    with suppress(OddDocumentError):
        return _sound_document(content)
    fields = _as_object(path, _decode(path, content.removeprefix(_BYTE_ORDER_MARK), damage))
    task, data = fields.get("task"), fields.get("data")
    if not isinstance(data, dict) or not isinstance(task, str):
        raise DumpError(f"{path}: is not a dump: it has no 'task' and 'data'; give the path of a {layout.DUMP_FILE}")
    header = {name: fields[name] for name in Document.__struct_fields__[2:] if name in fields}
    return Document(task, cast("dict[str, Any]", data), **header)


def _sound_document(content: bytes) -> Document:
    """Return the dump in ``content``.

    Raises:
        OddDocumentError: it is not a dump, or not JSON.
    """
    content = content.removeprefix(_BYTE_ORDER_MARK)
    for make_sound in (bytes, _with_quoted_numbers):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _in_depth(_decode_document, make_sound(content))
    raise OddDocumentError("not a dump")


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Added by some editors."""

_LINE_OF_NUMBER = re.compile(rb'[ \t]*"[^"\\]*"[ \t]*:[ \t]*(NaN|-?Infinity)[ \t]*,?[ \t\r]*')


def _with_quoted_numbers(content: bytes) -> bytes:
    """Return ``content`` with NaN and infinities as strings, where other tools write them as bare words.

    Only words that are alone with their key on a line are replaced. They cannot be inside a string, because no string
    continues across the end of a line.
    """
    pieces: list[bytes] = []
    done = 0
    for begin, end in _lines_with(content, (b"NaN", b"Infinity")):
        if found := _LINE_OF_NUMBER.fullmatch(content[begin:end]):
            pieces += [content[done : begin + found.start(1)], b'"', found[1], b'"']
            done = begin + found.end(1)
    return b"".join([*pieces, content[done:]]) if pieces else content


def _lines_with(content: bytes, words: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each line with one of the words; ``content`` is searched once per word."""
    places = [content.find(word) for word in words]
    while (found := min((place for place in places if place >= 0), default=-1)) >= 0:
        begin, end = content.rfind(b"\n", 0, found) + 1, content.find(b"\n", found)
        end = end if end >= 0 else len(content)
        yield begin, end
        places = [
            content.find(word, end) if 0 <= place < end else place for word, place in zip(words, places, strict=True)
        ]


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        DumpError: the file is missing, or has no object.
    """
    return _as_object(path, _decode(path, read_content(path).removeprefix(_BYTE_ORDER_MARK), None))


def _as_object(path: Path, decoded: Any) -> dict[str, Any]:
    if not isinstance(decoded, dict):
        raise DumpError(f"{path}: holds {type(decoded).__name__}, not an object; give the path of a {layout.DUMP_FILE}")
    return cast("dict[str, Any]", decoded)


def _decode(path: Path, content: bytes, damage: list[Finding] | None) -> Any:
    """Return decoded JSON; for a truncated dump its readable part, if ``damage`` is given to report it."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return _in_depth(msgspec.json.decode, content)
    try:
        # Other tools write NaN and Infinity as bare words, which strict JSON does not have.
        return _in_depth(lambda content: _loads_text(content.decode("utf-8", "replace")), content)
    except ValueError as error:
        recovered = _recover(without_depth(content).decode("utf-8", "replace"))
        if damage is None or not recovered.get("data"):
            raise DamagedDumpError(
                f"{path}: is not valid JSON ({error}); the file is damaged or of another kind"
            ) from error
        damage.append(Finding(DamageCode.RECORDS, fields={"count": len(recovered["data"])}))
        return recovered


def _in_depth(decode: Callable[[bytes], _T], content: bytes) -> _T:
    """Return decoded JSON; if it is nested too deeply to be decoded, without the parts that are too deep."""
    try:
        return decode(content)
    except RecursionError:
        return decode(without_depth(content))


def _loads_text(text: str) -> Any:
    """Return decoded JSON, with a question mark for each half of a surrogate pair, which text cannot contain.

    Raises:
        ValueError, RecursionError: it is not JSON.
    """
    value = json.loads(text)
    return without_surrogates(value) if "\\ud" in text or "\\uD" in text else value


def without_surrogates(value: Any) -> Any:
    """Return a JSON value whose texts can be encoded: what cannot becomes question marks."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {without_surrogates(key): without_surrogates(item) for key, item in members}
    if isinstance(value, list):
        return [without_surrogates(item) for item in cast("list[Any]", value)]
    return value


def _recover(text: str) -> dict[str, Any]:
    """Return the members of a damaged dump up to the first incomplete one."""
    found: dict[str, Any] = {}
    for key, start in _members(text, _skip(text, 0) + 1):
        if key == "data":
            found[key] = dict(_whole_members(text, start + 1))
            break
        with suppress(ValueError, StopIteration):
            found[key] = without_surrogates(_value_at(text, start)[0])
    return found


def _members(text: str, position: int) -> Iterator[tuple[str, int]]:
    """Yield key and position of the value for each member of the object whose brace is before ``position``.

    Ends at the first incomplete member, but still yields a last ``data``, whose own members may be complete.
    """
    while (position := _skip(text, position, ",")) < len(text) and text[position] == '"':
        key, start = "", position
        try:
            key, start = cast("tuple[str, int]", scanstring(text, position + 1))
            start = _skip(text, start, ":")
            _, position = _value_at(text, start)
        except (ValueError, StopIteration):
            if key == "data" and text[start : start + 1] == "{":
                yield key, start
            return
        yield key, start


def _whole_members(text: str, position: int) -> Iterator[tuple[str, Any]]:
    for key, start in _members(text, position):
        with suppress(ValueError, StopIteration):  # named "data" and truncated
            yield without_surrogates(key), without_surrogates(_value_at(text, start)[0])


_scan = json.JSONDecoder().raw_decode


def _value_at(text: str, position: int) -> tuple[Any, int]:
    return _scan(text, position)


def _skip(text: str, position: int, separator: str = "") -> int:
    while position < len(text) and (text[position].isspace() or text[position] in separator):
        position += 1
    return position


@hookimpl
def msprobe_register_readers() -> Sequence[Reader]:
    """Offer the reader of this module."""
    return [JsonReader()]
