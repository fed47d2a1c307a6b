"""Untrusted files are opened and decoded in time and memory that their own length bounds."""

import os
import socket
import zipfile
from pathlib import Path

import msgspec
import pytest
from foreign_files import READERS
from limited import deadline, run_limited

from msprobe_core.errors import MsprobeError
from msprobe_core.judge.noise.profile_file import SCHEMA, identity_of
from msprobe_core.model import RunHeader
from msprobe_core.untrusted.files import TooLargeError, open_plain, read_plain
from msprobe_core.untrusted.malformed import MalformedError
from msprobe_core.untrusted.yaml_text import MAX_DEPTH, MAX_NODES, load_yaml

# --- files ------------------------------------------------------------------------------------------------------------


def put(path, kind):
    """Put something that is no plain file in a file's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        here = Path.cwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
        os.chdir(here)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "socket"])
@pytest.mark.parametrize("name", READERS)
def test_only_plain_files_are_read(tmp_path, name, kind):
    put(tmp_path / name, kind)
    with deadline(), pytest.raises(MsprobeError, match="cannot be read"):
        READERS[name](tmp_path / name)


def test_what_stands_in_the_place_of_a_dump_that_is_identified(tmp_path):
    put(tmp_path / "dump.json", "pipe")
    with deadline(), pytest.raises(MsprobeError, match="it is a pipe, not a file"):
        identity_of(tmp_path)


def test_as_much_is_read_as_a_file_has_when_it_is_opened(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert read_plain(path) == b"abc"
    assert read_plain(path, 3) == b"abc"
    with pytest.raises(TooLargeError, match="it is larger than 0 MiB"):
        read_plain(path, 2)
    with deadline():
        assert read_plain(Path("/proc/self/mounts")) == b""  # says that it has no bytes
    (tmp_path / "link").symlink_to(path)
    with open_plain(tmp_path / "link") as file:
        assert file.read() == b"abc"


# --- YAML -------------------------------------------------------------------------------------------------------------


def nine_times(first, form):
    """Return lines each of which uses the one before nine times."""
    lines = [f"a0: &a0 {first}"]
    for i in range(1, 12):
        lines.append(f"a{i}: &a{i} {form.format(', '.join([f'*a{i - 1}'] * 9))}")
    return "\n".join(lines)


YAML_BOMBS = {
    "aliases": (nine_times("[x]", "[{}]"), "stand for more than a file of its length should"),
    "merge keys": (nine_times("{k: v}", "{{<<: [{}]}}"), "stand for more than a file of its length should"),
    "a chain": ("- &a0 [x]\n" + "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 3000)), "within each other"),
    "a circle": ("a: &a [*a]", "an alias stands within what it stands for, line 1"),
    "brackets": ("[" * 1_000_000, "within each other, more than 64"),
    "braces": ("{a: " * 500_000, "within each other, more than 64"),
    "lines of brackets": ("[\n" * 500_000, "within each other, more than 64 of them, line 65"),
    "dashes": ("- " * 500_000, "within each other, more than 64"),
    "base 60": ("a: " + "1:" * 500_000 + "1", "a number of 1,000,001 characters, line 1"),
    "values": ("[" + "," * 2 * MAX_NODES, "did not find"),
    "nulls": ("-\n" * MAX_NODES, "more than 1,000,000 values, line"),
}


@pytest.mark.parametrize("name", YAML_BOMBS)
def test_yaml_takes_no_more_than_its_length_allows(name):
    text, expected = YAML_BOMBS[name]
    with deadline(), pytest.raises(MalformedError, match=expected):
        load_yaml(text)


def test_yaml_that_is_meant_well():
    shared = "ranks: &ranks [0, 1, 2]\nbase: &base {level: mix, rank: *ranks}\n"
    text = shared + "".join(f"job{i}: {{<<: *base, step: [{i}]}}\n" for i in range(1000))
    found = load_yaml(text)
    assert found["job999"] == {"level": "mix", "rank": [0, 1, 2], "step": [999]}
    assert load_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert load_yaml("") is None
    assert load_yaml("on: 1", has_types=False) == {"on": "1"}
    assert load_yaml("on: 1") == {True: 1}


@pytest.mark.parametrize(
    "text", ["a: !!bool x", 'a: !!int ""', "a: !!float 1:x", "a: !!timestamp x", "a: 2001-99-99",
             "a: !!float " + "1:" * 400 + "1", "? [1]\n: 2", "<<: 3", "a: \ud800", "\x00", "!!set {a, b}: 1"],
)  # fmt: skip
def test_a_scalar_that_stands_for_nothing_is_malformed(text):
    with pytest.raises(MalformedError):
        load_yaml(text)


YAML_FILES = [name for name in READERS if name.endswith(".yaml")]


@pytest.mark.parametrize("bomb", ["aliases", "merge keys", "brackets", "base 60"])
@pytest.mark.parametrize("name", YAML_FILES)
def test_every_reader_of_yaml_is_bounded(tmp_path, name, bomb):
    (tmp_path / name).write_text(YAML_BOMBS[bomb][0][:900_000])
    with deadline(), pytest.raises(MsprobeError, match=name):
        READERS[name](tmp_path / name)


def test_a_live_job_is_not_stalled_by_its_configuration(tmp_path):
    """It is read between two steps of a training."""
    from msprobe_core.config import load_config
    from msprobe_core.config.watch import ConfigWatch
    from msprobe_core.errors import ConfigError

    path = tmp_path / "config.yaml"
    path.write_text("dump_enable: true\n")
    watch = ConfigWatch(path, {}, load_config(path), clock=lambda: 0.0, wall_clock=lambda: 1e12)
    path.write_text("dump_enable: true\n" + YAML_BOMBS["merge keys"][0])
    with deadline(), pytest.raises(ConfigError, match="stand for more than"):
        watch.poll()


# --- files that unfold ------------------------------------------------------------------------------------------------

ANSWERS = """
import sys
from foreign_files import READERS
import msprobe_core.judge.noise.profile_file, msprobe_core.compat.read_table, msprobe_core.store.arrow_reader, openpyxl
from msprobe_core.errors import MsprobeError
from msprobe_core.model import RunHeader
limit()
for path in map(Path, sys.argv[1:]):
    try:
        READERS[path.name](path)
        print("read")
    except MsprobeError as error:
        print(error)
"""
"""Reads each file with as little memory as the test allows, and prints what came of it in one line."""


@pytest.mark.slow
def test_parquet_takes_no_more_than_its_length_allows(tmp_path):
    """Equal values take no room, and packed pages little."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    from pyarrow import parquet

    kinds = {"step": "int64", "rank": "int64", "flips": "uint16", "name": "string", "about": "string"}

    def write(directory, num_rows, text, **options):
        columns = {
            name: pyarrow.array([text if kinds.get(name) == "string" else 0], kinds.get(name, "float32"))
            for name in SCHEMA
        }
        rows = pyarrow.array([0] * num_rows, "int32")
        table = pyarrow.table({name: column.take(rows) for name, column in columns.items()})
        directory.mkdir()
        parquet.write_table(table, directory / "noise_profile.parquet", **options)
        return directory / "noise_profile.parquet"

    prefixes = {"use_dictionary": False, "column_encoding": {"name": "DELTA_BYTE_ARRAY"}}
    paths = [
        write(tmp_path / "rows", 600_000, "x"),
        write(tmp_path / "page", 1, "x" * (80 << 20), compression="zstd", use_dictionary=False),
        write(tmp_path / "prefixes", 1000, "x" * 100, **prefixes),
        write(tmp_path / "sound", 1, "x"),
    ]
    assert max(path.stat().st_size for path in paths) < 50_000
    cut = tmp_path / "cut" / "noise_profile.parquet"
    cut.parent.mkdir()
    cut.write_bytes(paths[-1].read_bytes()[:-100])
    said = run_limited(ANSWERS, *paths, cut, memory_bytes=512 << 20).splitlines()
    assert "more than a file of its length should" in said[0]
    assert "more than a file of its length should" in said[1]
    assert "in an encoding that msprobe does not write" in said[2]
    assert "JSON is malformed" in said[3]  # it is quoted from the column `about`: the table was read
    assert "is no noise profile" in said[4]


SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def row(number, *cells):
    """Return a row of texts, each with its column's letters."""
    texts = "".join(f'<c r="{column}{number}" t="inlineStr"><is><t>{text}</t></is></c>' for column, text in cells)
    return f'<row r="{number}">{texts}</row>'


def write_book(directory, rows, *, shared="", prologue="", styles=""):
    """Write a spreadsheet by hand, as a library would never write it."""
    from openpyxl import Workbook

    directory.mkdir()
    Workbook().save(directory / "plain.xlsx")
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    texts = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/>'
    changed = {
        "xl/worksheets/sheet1.xml": lambda _: (
            f'{prologue}<worksheet xmlns="{SPREADSHEET}"><sheetData>{rows}</sheetData></worksheet>'
        ),
        "[Content_Types].xml": lambda own: own.replace("</Types>", f"{texts}</Types>"),
        "xl/styles.xml": lambda own: own.replace("</cellXfs>", f"{styles}</cellXfs>"),
    }
    path = directory / "table.xlsx"
    with zipfile.ZipFile(directory / "plain.xlsx") as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in plain.namelist():
            own = plain.read(name).decode()
            made.writestr(name, changed.get(name, str)(own))
        made.writestr("xl/sharedStrings.xml", f'<sst xmlns="{SPREADSHEET}">{shared}</sst>')
    return path


@pytest.mark.slow
def test_spreadsheets_take_no_more_than_their_length_allows(tmp_path):
    names = ("A", "target_name"), ("B", "golden_name")
    header = row(1, *names)
    columns = [first + second for first in " ABCDE" for second in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"][2:]
    wide = row(1, *names, *((column.strip(), f"x{column}") for column in columns))
    entities = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10 if i else "x" * 10}">' for i in range(9))
    references = "".join(f'<row r="{i}"><c r="A{i}" t="s"><v>0</v></c></row>' for i in range(2, 2000))
    books = {
        "zeros": write_book(tmp_path / "zeros", header + " " * (40 << 20)),
        "far": write_book(tmp_path / "far", wide + row(1_048_576, ("A", "x"))),
        "shared": write_book(tmp_path / "shared", header + references, shared=f"<si><t>{'x' * (1 << 18)}</t></si>"),
        "entities": write_book(
            tmp_path / "entities", header + row(2, ("A", "&a8;")), prologue=f"<!DOCTYPE x [{entities}]>"
        ),
        "styles": write_book(tmp_path / "styles", header, styles="<xf/>" * 1_000_000),
        "sound": write_book(tmp_path / "sound", header + row(2, ("A", "a"))),
    }
    assert max(path.stat().st_size for path in books.values()) < 100_000
    said = dict(zip(books, run_limited(ANSWERS, *books.values(), memory_bytes=512 << 20).splitlines(), strict=True))
    for name in ("zeros", "styles"):
        assert "unpacks to more than a spreadsheet of" in said[name]
    for name in ("far", "shared"):
        assert "its rows are more than a spreadsheet of its length should have" in said[name]
    assert "is no table that can be read" in said["entities"]
    assert said["sound"] == "read"


def write_stream(path, num_rows, compression, **texts):
    """Write a dump whose rows all refer to the same texts."""
    import numpy as np
    import pyarrow as pa

    from msprobe_core.store.arrow_columns import DUMP_COLUMNS, FORMAT_VERSION, HEADER_KEY, FileHeader, types

    header = FileHeader(
        FORMAT_VERSION, RunHeader(task="statistics", level="mix", framework="pytorch", summary_mode="statistics")
    )
    texts = {"entry": "Torch.f.0.forward", "phase": "forward", "part": "output", "path": "0", "value": "null"} | texts
    fields = [pa.field(name, types()[DUMP_COLUMNS[name]]) for name in texts]
    schema = pa.schema(fields, {HEADER_KEY: msgspec.json.encode(header)})
    indices = pa.array(np.zeros(num_rows, np.int32))
    arrays = [pa.DictionaryArray.from_arrays(indices, pa.array([text])) for text in texts.values()]
    path.parent.mkdir()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema, options=options) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return path


def test_arrow_takes_no_more_than_its_length_allows(tmp_path):
    """Each of them took over 10 GB, and ended the process in Rust or C++."""
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    streams = {
        "rows": write_stream(tmp_path / "rows" / "dump.arrow", 1_000_000, "zstd"),
        "value": write_stream(tmp_path / "value" / "dump.arrow", 1, "zstd", value=f'"{"x" * (100 << 20)}"'),
        "names": write_stream(tmp_path / "names" / "dump.arrow", 1_000, "zstd", entry=f"T.{'f' * (1 << 20)}.0.forward"),
        "plain": write_stream(tmp_path / "plain" / "dump.arrow", 20_000, None, entry=f"T.{'f' * (1 << 16)}.0.forward"),
        "sound": write_stream(tmp_path / "sound" / "dump.arrow", 20_000, "zstd"),
    }
    assert max(path.stat().st_size for name, path in streams.items() if name != "plain") < 150_000
    said = dict(zip(streams, run_limited(ANSWERS, *streams.values(), memory_bytes=1 << 30).splitlines(), strict=True))
    for name in ("rows", "value"):
        assert "bytes stand for more than a file of its length should" in said[name]
    for name in ("names", "plain"):
        assert "its rows refer to longer texts than those of a file of its length should" in said[name]
    assert said["sound"] == "read"
