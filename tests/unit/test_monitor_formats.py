"""Formats of a monitor's values: the table in Arrow's format, event files, the database of trends."""

from __future__ import annotations

import math
import re
import shutil
import sqlite3
import struct
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from msprobe_core.cli.monitor_export import data2db, to_db, to_tensorboard
from msprobe_core.errors import ConfigError, DumpError, PluginError, StoreError
from msprobe_core.exports.monitor_events import csv2tensorboard_by_step
from msprobe_core.exports.trend_database import read_mapping
from msprobe_core.findings import Finding
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitoring.anomalies import find_anomalies
from msprobe_core.monitoring.files import is_monitored, read_monitored
from msprobe_core.monitoring.monitoring_codes import MonitoringCode
from msprobe_core.plugins import registry
from msprobe_core.protocols.monitoring import MonitoredValue

DATA = Path(__file__).parents[1] / "data" / "monitor"
NAME = "Nov21_05-57-08-rank0-95f81c46"
COLUMNS = ["rank", "quantity", "stage", "name", "micro_step", "step", "norm", "max", "nans"]


def value(step, quantity, name, norm, micro_step=None, **numbers):
    numbers = {"norm": norm, "max": norm / 3, "nans": 0, **numbers}
    return MonitoredValue(
        step=step, quantity=quantity, stage=0, name=name, micro_step=micro_step, numbers=numbers, shape=(2, 3),
        dtype="torch.float32",
    )  # fmt: skip


def values_of(step, num_layers=3):
    for i in range(num_layers):
        for micro_step in range(2):
            yield value(step, "actv", f"layers.{i}.output", 1.1 + step + i + micro_step, micro_step)
        yield value(step, "grad_reduced", f"layers.{i}.weight", math.sin(step + i))


def write(writer_name, directory, steps=4, steps_per_file=1, values=values_of, before_close=lambda: None):
    writer = (
        registry().monitor_writers()[writer_name].open(directory / NAME, 0, steps_per_file=steps_per_file, ndigits=17)
    )
    for step in range(steps):
        writer.add(step, list(values(step)))
    before_close()
    writer.close()
    return directory


def test_no_file_is_there_before_the_first_step(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    for name, factory in registry().monitor_writers().items():
        factory.open(tmp_path / name, 0, steps_per_file=1, ndigits=6).close()
    assert not list(tmp_path.iterdir())


# --- Arrow --------------------------------------------------------------------------------------------------------


def test_a_table_is_read_as_files_of_text_are(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    table, text = (read_monitored(write(name, tmp_path / name)) for name in ("arrow", "csv"))
    key = ["step", "quantity", "name", "micro_step"]
    assert table.frame.select(COLUMNS).sort(key).equals(text.frame.select(COLUMNS).sort(key))
    assert list(table.notes) == []
    assert (list(table.statistics), table.resolution) == (["norm", "max", "nans"], 1e-300)
    assert is_monitored(tmp_path / "arrow")
    assert read_monitored(tmp_path / "arrow", steps=[2]).steps == [2]
    # Both formats of one training are one training.
    both = write("csv", write("arrow", tmp_path / "both"))
    assert list(read_monitored(both).notes) == []
    assert read_monitored(both).frame.height == table.frame.height
    anomalies = find_anomalies(table, false_alarms=1e-3, most=8)
    assert not anomalies.num_found


def test_closed_windows_of_a_killed_training_are_there(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    killed = tmp_path / "killed"
    whole = tmp_path / "whole"
    write("arrow", whole, steps=5, steps_per_file=2, before_close=lambda: shutil.copytree(whole, killed))
    assert (read_monitored(killed).steps, list(read_monitored(killed).notes)) == ([0, 1, 2, 3], [])
    assert read_monitored(whole).steps == [0, 1, 2, 3, 4]
    path = killed / NAME / "values_0.arrow"
    path.write_bytes(path.read_bytes()[:-300])
    run = read_monitored(killed)
    assert run.steps == [0, 1]
    fields = {"file": "values_0.arrow", "directory": NAME}
    assert list(run.notes) == [Finding(MonitoringCode.CUT_TABLE, fields=fields)]
    path.write_bytes(b"no table")
    with pytest.raises(DumpError, match="is not an Arrow stream"):
        read_monitored(killed)


def test_quantities_with_columns_of_their_own_and_later_trainings_have_their_own_tables(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")

    def values(step):
        yield value(step, "grad_reduced", "up", 1.0)
        yield MonitoredValue(
            step=step, quantity="linear_hook", stage=0, name="up", micro_step=None, numbers={"sr": 2.5}, shape=None,
            dtype="",
        )  # fmt: skip

    write("arrow", tmp_path, values=values, steps=2)
    write("arrow", tmp_path, values=lambda step: values(step + 2), steps=2)
    assert {path.name for path in (tmp_path / NAME).iterdir()} == {f"values_{i}.arrow" for i in range(4)}
    run = read_monitored(tmp_path)
    assert run.steps == [0, 1, 2, 3]
    assert run.frame["sr"].drop_nulls().to_list() == [2.5] * 4


def test_a_value_takes_less_than_60_bytes(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    write("arrow", tmp_path, steps=20, values=lambda step: values_of(step, 200))
    num_bytes = (tmp_path / NAME / "values_0.arrow").stat().st_size
    assert num_bytes < 60 * 20 * 600


def test_a_library_that_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PluginError, match=r"pip install 'msprobe-core\[arrow\]'"):
        write("arrow", tmp_path)


@pytest.mark.parametrize("lost", ["step", "name", "quantity"])
def test_a_table_without_what_it_needs_is_an_error(lost, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    path = write("arrow", tmp_path) / NAME / "values_0.arrow"
    with pyarrow.ipc.open_stream(path) as stream:
        table = stream.read_all()
    metadata = table.schema.metadata
    table = table.drop_columns([lost]).replace_schema_metadata(metadata)
    with pyarrow.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(DumpError, match=f"lacks the columns {lost}"):
        read_monitored(tmp_path)


# --- event files --------------------------------------------------------------------------------------------------


def crc32c(content):
    """Return the checksum bit by bit; RFC 3720, appendix B.4."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def checked(content, check):
    crc = crc32c(content)
    assert struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF) == check
    return content


def events_of(path):
    """Return the scalars of an event file by tag and step."""
    content, found, place = path.read_bytes(), {}, 0
    while place < len(content):
        head = checked(content[place : place + 8], content[place + 8 : place + 12])
        end = place + 12 + struct.unpack("<Q", head)[0]
        event = dict(fields_of(checked(content[place + 12 : end], content[end : end + 4])))
        place = end + 4
        for number, summary in fields_of(event.get(5, b"")):
            assert number == 1
            scalar = dict(fields_of(summary))
            found[scalar[1].decode(), event.get(2, 0)] = struct.unpack("<f", scalar[2])[0]
    return found


def fields_of(content):
    """Yield number and content of the fields of a message; protobuf.dev, Encoding."""
    place = 0
    while place < len(content):
        key, place = varint(content, place)
        kind = key & 7
        if kind == 0:
            found, place = varint(content, place)
        else:
            size, place = (8, place) if kind == 1 else (4, place) if kind == 5 else varint(content, place)
            found, place = content[place : place + size], place + size
        yield key >> 3, found


def varint(content, place):
    number = shift = 0
    while True:
        byte = content[place]
        number, shift, place = number | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return number, place


def test_curves_are_there_while_the_training_runs_and_afterwards(tmp_path):
    live = {}

    def read():
        live.update({path.parent.name: events_of(path) for path in (tmp_path / "live").rglob("*tfevents*")})

    write("tensorboard", tmp_path / "live", before_close=read)
    directory = csv2tensorboard_by_step(write("csv", tmp_path / "files"))
    later = {path.parent.name: events_of(path) for path in directory.glob("rank0/*/*tfevents*")}
    assert live == later
    assert set(later) == {"actv", "grad_reduced"}
    norm = struct.unpack("<f", struct.pack("<f", math.sin(3)))[0]
    assert later["grad_reduced"]["vp0:layers.0.weight/norm", 3] == norm
    assert later["actv"]["vp0:layers.2.output:micro1/nans", 0] == 0
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d-csv2tensorboard_by_step", directory.name)


def test_trainings_and_quantities_are_chosen(tmp_path):
    write("csv", tmp_path)
    for start, end in (("Nov21_05-57-08", None), (None, "Nov21_05-57-08"), ("Nov01_00-00-00", "Jan01_00-00-00")):
        directory = csv2tensorboard_by_step(
            tmp_path, start, end, process_num=8, data_type_list=["actv"], output_dirpath=tmp_path / "out"
        )
        assert [path.name for path in (directory / "rank0").iterdir()] == ["actv"]
    with pytest.raises(DumpError, match="no training in it began between"):
        csv2tensorboard_by_step(tmp_path, time_start="Nov21_05-57-09")
    with pytest.raises(ConfigError, match="time_end is 'today'"):
        csv2tensorboard_by_step(tmp_path, time_end="today")
    with pytest.raises(ConfigError, match=r"data_type_list has 'actvs'; .* actv, grad_reduced"):
        csv2tensorboard_by_step(tmp_path, data_type_list=["actvs"])


def test_a_full_disk_is_said(tmp_path):
    (tmp_path / NAME).write_text("a file where the directory should be")
    with pytest.raises(StoreError):
        write("tensorboard", tmp_path)


# --- the database of trends ---------------------------------------------------------------------------------------

TABLES = ("monitoring_targets", "monitoring_metrics", "monitoring_tags", "tag_target_mapping")


def trends_of(connection):
    """Return what a database says, whatever the numbers in it and the order of its columns."""
    names = {table: connection.execute(f"PRAGMA table_info({table})").fetchall() for table in (*TABLES, "trend_data")}
    columns = {table: {(name, kind, null, key) for _, name, kind, null, _, key in names[table]} for table in names}
    numbers = sorted(name for _, name, *_ in names["trend_data"][4:])
    told = "JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)"
    data = connection.execute(
        f"SELECT rank, step, target_name, vpp_stage, micro_step, metric_name, {','.join(numbers)} "
        f"FROM trend_data {told}"
    ).fetchall()
    tags = connection.execute(
        "SELECT target_name, micro_step, tag_name, category, metric_name FROM tag_target_mapping "
        f"JOIN monitoring_tags USING (tag_id) {told}"
    ).fetchall()
    cursor = connection.execute("SELECT * FROM global_stats")
    extent = dict(zip([each[0] for each in cursor.description], cursor.fetchone(), strict=True))
    return columns, set(data), len(data), set(tags), extent


@pytest.mark.parametrize("by_micro_step", ["true", "false"])
@pytest.mark.parametrize("command", [to_db, data2db])
def test_trends_are_those_that_the_established_tool_finds(command, by_micro_step, tmp_path):
    """The text beside the files is what mindstudio-probe 26.2.0 makes of them."""
    source = DATA / "trends"
    arguments = [str(source), "-o"] if command is to_db else ["--data", str(source), "--format", "monitor", "--db"]
    done = CliRunner().invoke(command, [*arguments, str(tmp_path / "new"), "--micro_step", by_micro_step])
    assert done.exit_code == 0, done.output
    with sqlite3.connect(":memory:") as expected:
        expected.executescript((source / f"micro_step_{by_micro_step}.sql").read_text())
    path = tmp_path / "new" / "monitor_data.trend.db"
    assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as found:
        assert trends_of(found) == trends_of(expected)
        assert found.execute("PRAGMA foreign_key_check").fetchall() == []


def test_parts_of_names_are_replaced(tmp_path):
    (tmp_path / "names.json").write_text('{"layers.": "blocks.", ".weight": ".w"}')
    write("csv", tmp_path)
    done = CliRunner().invoke(to_db, [str(tmp_path), "--mapping", str(tmp_path / "names.json")])
    assert done.exit_code == 0, done.output
    with sqlite3.connect(tmp_path / "monitor_data.trend.db") as connection:
        names = {name for (name,) in connection.execute("SELECT target_name FROM monitoring_targets")}
    assert names == {f"blocks.{i}.{what}" for i in range(3) for what in ("output", "w")}


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"": "b"}', "{"])
def test_a_mapping_is_checked(text, tmp_path):
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(ConfigError, match=r"names\.json"):
        read_mapping(tmp_path / "names.json")


def test_what_is_not_of_a_monitor_says_what_to_use(tmp_path):
    for command, arguments in (
        (data2db, ["--data", str(tmp_path), "--db", str(tmp_path)]),
        (data2db, ["--data", str(DATA / "trends"), "--db", str(tmp_path), "--format", "dump"]),
        (data2db, ["--data", str(tmp_path), "--db", str(tmp_path), "--format", "monitor"]),
        (to_db, [str(tmp_path)]),
    ):
        done = CliRunner().invoke(command, arguments)
        assert isinstance(done.exception, DumpError)
        is_of_monitor = command is to_db or "monitor" in arguments
        assert ("`msprobe export DIR --tensorboard`" in str(done.exception)) == is_of_monitor
    assert isinstance(CliRunner().invoke(to_tensorboard, [str(tmp_path)]).exception, DumpError)


def test_the_plan_may_name_all_writers():
    assert {"csv", "csv-v2", "arrow", "tensorboard"} <= set(registry().monitor_writers())
    assert MonitorPlan().extensions.writers == ("csv",)
