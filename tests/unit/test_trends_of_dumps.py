"""Databases of trends that are made of dumps."""

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from dumps import api, tensor, write_dump

from msprobe_core.cli.monitor_export import data2db

DATA = Path(__file__).parents[1] / "data"
TRENDS = DATA / "mindstudio_probe_trends"


@pytest.fixture
def made(tmp_path):
    """Make the database of a directory and open it."""
    opened = []

    def make(directory, *arguments):
        done = CliRunner().invoke(data2db, ["--data", str(directory), "--db", str(tmp_path / "db"), *arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        opened.append(sqlite3.connect(tmp_path / "db" / "dump_data.trend.db"))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


def rows_of(connection):
    rows = connection.execute(
        "SELECT rank, step, target_name, vpp_stage, micro_step, metric_name, norm, max, min, mean FROM trend_data "
        "JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)"
    ).fetchall()
    return {row[:6]: row[6:] for row in rows}


def tags_of(connection):
    return set(connection.execute(
        "SELECT target_name, micro_step, tag_name, category, metric_name FROM tag_target_mapping "
        "JOIN monitoring_tags USING (tag_id) JOIN monitoring_metrics USING (metric_id) "
        "JOIN monitoring_targets USING (target_id)"
    ))  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.stem for path in TRENDS.glob("*.sql")))
def test_trends_are_those_that_the_established_tool_finds(name, made):
    """The text is what mindstudio-probe 26.2.0 makes of its own dump."""
    with sqlite3.connect(":memory:") as expected:
        expected.executescript((TRENDS / f"{name}.sql").read_text())
    found = made(DATA / "mindstudio_probe" / name, "--micro_step", "false")
    assert len(rows_of(expected)) > 40
    assert rows_of(found) == rows_of(expected)
    assert tags_of(found) == tags_of(expected)
    assert found.execute("PRAGMA foreign_key_check").fetchall() == []
    metrics = "SELECT metric_name FROM monitoring_metrics ORDER BY metric_id"
    assert found.execute(metrics).fetchall() == expected.execute(metrics).fetchall()
    extent = "SELECT max_rank, min_step, max_step, forward FROM global_stats"
    assert found.execute(extent).fetchall() == [(0, 0, 0, "norm,max,min,mean")]


@pytest.fixture
def run(tmp_path):
    """Two steps on two ranks, each with two micro-batches of a model with one layer."""
    for step in (3, 4):
        for rank in (0, 1):
            records, parents = {}, {}
            for micro in (0, 1):
                outer, inner = f"Module.M.forward.{micro}", f"Module.layers.2.mlp.MLP.forward.{micro}"
                value = step * 100 + rank * 10 + micro
                calls = [f"Functional.linear.{2 * micro + i}.forward" for i in (0, 1)]
                for number, name in enumerate([*calls, inner, outer]):
                    records[name] = api(tensor([1.0]), output=tensor([float(value + number)]))
                parents |= {calls[0]: inner, calls[1]: inner, inner: outer, outer: None}
            write_dump(tmp_path / "run" / f"step{step}" / f"rank{rank}", records, parents=parents, stacks={})
    return tmp_path / "run"


def test_steps_ranks_and_micro_batches(made, run):
    rows = rows_of(made(run, "--micro_step", "false"))
    assert {key[:2] for key in rows} == {(0, 3), (0, 4), (1, 3), (1, 4)}
    for (rank, step, name, _, micro, metric), (_, high, _, _) in rows.items():
        assert metric == "forward"
        if ".output." in name:
            number = {"Functional.linear": 0, "Functional.linear.1": 1, "Functional.linear.3": 1,
                      "Module.layers.2.mlp.MLP": 2, "Module.M": 3}[name.removesuffix(".output.0")]  # fmt: skip
            assert high == step * 100 + rank * 10 + micro + number
    # No value is lost: 8 calls with 2 values on each rank of each step.
    assert len(rows) == 4 * 16
    flat = rows_of(made(run, "--process_num", "2"))
    assert {key[1] for key in flat} == {6, 7, 8, 9}
    assert len(flat) == 4 * 16


def test_tags_and_names_of_layers(made, run, tmp_path):
    (tmp_path / "names.json").write_text(json.dumps({"layers.": "blocks."}))
    tags = tags_of(made(run / "step3", "--mapping", str(tmp_path / "names.json")))
    own = {(tag, category) for name, _, tag, category, _ in tags if name == "Module.blocks.2.mlp.MLP.output.0"}
    assert own == {
        ("output.0", "index"), ("Module", "default"), ("blocks.2", "layer"), ("mlp.MLP", "module"),
    }  # fmt: skip


def test_a_damaged_dump_does_not_hold_up_the_others(made, run):
    (run / "step3" / "rank1" / "dump.json").write_text("{")
    assert {key[:2] for key in rows_of(made(run, "--micro_step", "false"))} == {(0, 3), (0, 4), (1, 4)}
