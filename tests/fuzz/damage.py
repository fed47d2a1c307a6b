"""Damage to files: bytes anywhere, and values in JSON, YAML, Parquet, spreadsheets and csv files."""

import csv
import datetime as dt
import io
import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import openpyxl
import polars as pl
import yaml

from msprobe_core.errors import MsprobeError

WORDS = (
    *(b"NaN", b"-Infinity", b"null", b"true", b"1e999", b"9" * 5000, b"-", b"0.", b'"\\ud800"', b"\\", b"\x00"),
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"\xff\xfe", b"\xef\xbb\xbf", b'"type":', b'"shape":', b'"value":'),
)
ODD = (
    *(None, True, 0, -1, 2**70, 10**400, 1.5, float("nan"), float("inf"), [], {}, [[]], {"type": "error"}, {"type": 3}),
    *("", "NaN", "x" * 70_000, "\ud800", "\x1b[2J", "\u202e", "=1+1", "../../etc/passwd", "a\nb\rc"),
    *({"type": "torch.Tensor", "dtype": "x", "shape": [-1, 2**70]}, {"type": "float", "value": [float("nan")]}),
)

NUMBERS = (0, -1, 2**15, 2**16, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, -(2**70), 1e-45, 3.5e38, 1e308, -1e308, 0.5)
TYPES = (
    *(pl.Int8, pl.Int32, pl.Int64, pl.UInt16, pl.UInt64, pl.Float32, pl.Float64, pl.String, pl.Binary, pl.Boolean),
    *(pl.Null, pl.Date, pl.Datetime, pl.Categorical, pl.Decimal(38, 2), pl.List(pl.Int64), pl.Struct({"a": pl.String})),
)
WRITTEN = ("", "nan", "-inf", "1e999", "9" * 400, "x" * 40_000, "true", "[1, 2", "=1+1", "a\nb", "\u202e", "N/A", "1,5")
"""Values of cells: numbers at the ends of types and past them, the types of columns, and texts."""


def damage_file(rng: random.Random, path: Path) -> None:
    """Damage a file; in one that describes values in text these are replaced, too."""
    content = path.read_bytes()
    damage = _BY_SUFFIX.get(path.suffix) if rng.random() < 0.6 else None
    path.write_bytes((damage or damage_bytes)(rng, content))


def damage_yaml(rng: random.Random, content: bytes) -> bytes:
    """Return YAML with other values: JSON is YAML."""
    return damage_json(rng, json.dumps(yaml.safe_load(content), default=str).encode())


def damage_safetensors(rng: random.Random, content: bytes) -> bytes:
    """Return a shard that describes its tensors in another way."""
    begin = 8 + int.from_bytes(content[:8], "little")
    header = damage_json(rng, content[8:begin])
    return len(header).to_bytes(8, "little") + header + content[begin:]


def damage_lines(rng: random.Random, content: bytes) -> bytes:
    """Return lines of JSON one of which has other values."""
    lines = content.splitlines()
    number = rng.randrange(len(lines))
    lines[number] = damage_json(rng, lines[number]).replace(b"\n", b" ")
    return b"\n".join(lines)


def damage_parquet(rng: random.Random, content: bytes) -> bytes:
    """Return a Parquet file with other values, types, names or rows."""
    table = pl.read_parquet(io.BytesIO(content))
    for _ in range(rng.choice((1, 1, 2))):
        column = rng.choice(table.columns)
        kind = rng.randrange(8)
        if kind == 0:
            table = table.rename({column: rng.choice(("", "x" * 300, f"{column} "))})
        elif kind == 1:
            table = rng.choice((table.clear(), table.drop(column), pl.concat([table, table])))
        elif kind == 2:
            odd = pl.Series(column, [rng.choice(NUMBERS)] * table.height, strict=False)
            table = table.with_columns(_cast(odd, rng.choice(TYPES)))
        elif kind == 3:
            table = table.with_columns(_cast(table[column], rng.choice(TYPES)))
        else:
            table = table.with_columns(_with_odd_cells(rng, table[column]))
    file = io.BytesIO()
    table.write_parquet(file)
    return file.getvalue()


def _cast(column: pl.Series, wanted: pl.DataType) -> pl.Series:
    try:
        return column.cast(wanted, strict=False)
    except pl.exceptions.PolarsError:  # no value of one type is one of the other
        return pl.Series(column.name, [None] * len(column), wanted)


def _with_odd_cells(rng: random.Random, column: pl.Series) -> pl.Series:
    """Replace one value, or all, by one of the same type."""
    values = column.to_list()
    every = rng.random() < 0.3
    for number in range(len(values)) if every else [rng.randrange(len(values))] if values else []:
        if rng.random() < 0.2:
            values[number] = None
        elif column.dtype == pl.String and (values[number] or "").startswith("{") and rng.random() < 0.8:
            values[number] = damage_json(rng, values[number].encode()).decode()
        elif column.dtype == pl.String:
            values[number] = rng.choice(WRITTEN)
        else:
            values[number] = rng.choice((*NUMBERS, float("nan"), float("inf")))
    # What the type cannot hold is null.
    return pl.Series(column.name, values, column.dtype, strict=False)


def damage_xlsx(rng: random.Random, content: bytes) -> bytes:
    """Return a spreadsheet some of whose cells have other values, of other types, too."""
    book = openpyxl.load_workbook(io.BytesIO(content))
    sheet = rng.choice(book.worksheets)
    for _ in range(rng.choice((1, 2, 8))):
        cell = sheet.cell(rng.randint(1, sheet.max_row + 1), rng.randint(1, sheet.max_column + 1))
        cell.value = rng.choice((None, True, *NUMBERS, *WRITTEN, dt.datetime(2026, 1, 1), dt.time(1)))
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def damage_csv(rng: random.Random, content: bytes) -> bytes:
    """Return a table of text some of whose cells have other values."""
    lines = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(rng.choice((1, 2, 8))):
        line = rng.choice(lines)
        if line:
            line[rng.randrange(len(line))] = str(rng.choice((*NUMBERS, *WRITTEN)))
    file = io.StringIO()
    csv.writer(file).writerows(lines)
    return file.getvalue().encode()


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return bytes that are damaged in one to eight places."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 64, 1000))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = data[(start := rng.randrange(len(data) + 1)) : start + size]
        elif kind == 4:
            data[at:at] = rng.choice(WORDS)
        elif kind == 5:
            data[at : at + size] = rng.randbytes(size)
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def damage_json(rng: random.Random, content: bytes) -> bytes:
    """Return JSON in which one to four values were replaced, moved, doubled or put deeper."""
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = tree
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            key = rng.choice(list(keys))
            if isinstance(place[key], dict | list) and rng.random() < 0.85:
                place = place[key]
                continue
            kind = rng.randrange(4)
            if kind == 0 and isinstance(place, dict):
                place[str(rng.choice(("type", "", "data", "x", "execution", "\ud800", "=cmd", "a" * 300)))] = place.pop(
                    key
                )
            elif kind == 1:
                deep = place[key]
                for _ in range(rng.choice((1, 3, 100, 600, 1500))):
                    deep = [deep] if rng.random() < 0.5 else {"a": deep}
                place[key] = deep
            else:
                place[key] = rng.choice(ODD)
            break
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        text = json.dumps(tree, indent=rng.choice((None, 1)))
    except (RecursionError, ValueError):
        return content
    finally:
        sys.setrecursionlimit(limit)
    if rng.random() < 0.1:  # a key twice
        text = text.replace('"data":', '"task": [], "data": {}, "data":', 1)
    return text.encode("utf-8", "replace")


def answer_of(step: Callable[[], object]) -> str:
    """Return what came of it; raise what is no answer."""
    try:
        step()
    except MsprobeError as error:
        if not str(error) or "\n" in str(error) or len(str(error)) > 3000:
            raise AssertionError(f"no sentence: {str(error)[:200]!r}") from error
        return type(error).__name__
    return "result"


_BY_SUFFIX: Mapping[str, Callable[[random.Random, bytes], bytes]] = {
    ".json": damage_json, ".lock": damage_json, ".yaml": damage_yaml, ".jsonl": damage_lines,
    ".safetensors": damage_safetensors, ".parquet": damage_parquet, ".xlsx": damage_xlsx, ".csv": damage_csv,
}  # fmt: skip
