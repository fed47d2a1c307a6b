"""Files for other viewers: they have the shape that these viewers read, and say what the page says."""

from __future__ import annotations

import json
import sqlite3
import struct

import numpy as np
import pytest
from click.testing import CliRunner
from dumps import tensor
from rank_dumps import Rank, write_ranks

from msprobe_core.cli.export import export as command
from msprobe_core.errors import CompareError
from msprobe_core.store.event_file import crc32c

X = np.random.default_rng(5).standard_normal((4, 8))
MODULE = "Module.layers.0/a.Layer.forward.0"


def run_of(place, **faults):
    """Two ranks over two steps: a module with two calls, an all-reduce, and a send from rank 0 to rank 1."""
    for step in range(2):
        ranks = {}
        for number in range(2):
            rank = Rank()
            made = X * faults.get(f"rank{number}", 1.0)
            rank.call("Functional.linear", tensor(X + number), output=tensor(made), parent=MODULE)
            rank.call("Torch.abs", tensor(made), output=tensor(abs(made)), parent=MODULE)
            rank.module("layers.0/a.Layer", tensor(X + number), output=tensor(abs(made)))
            rank.collective("all_reduce", given=tensor(abs(made)), got=tensor(X * 3))
            if number == 0:
                for _ in range(4):  # the other rank waits
                    rank.call("Torch.neg", tensor(X), output=tensor(-X))
                rank.send(1, tensor(X * 3))
            else:
                rank.receive(0, tensor(X * 3))
            rank.stacks["Functional.linear.0.forward"] = ["File a.py, line 3, in forward, y = linear(x)"]
            ranks[number] = rank
        write_ranks(place / f"step{step}", ranks)
    return place


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    place = tmp_path_factory.mktemp("exports")
    paths = [run_of(place / "target", rank1=1.5), run_of(place / "golden")]
    options = ["--model-explorer", "--perfetto", "--tensorboard", "--tb-database"]
    done = CliRunner().invoke(command, [*map(str, paths), "-o", str(place / "out"), *options])
    assert done.exit_code == 0, done.output
    for line in done.output.splitlines():
        assert (place / line).is_file()
    return place / "out"


def read(path):
    return json.loads(path.read_text())


# --- Model Explorer -----------------------------------------------------------------------------------------------


def test_graphs_have_nodes_in_namespaces_with_edges(exported):
    (collection,) = read(exported / "model_explorer" / "graphs.json")
    graphs = {graph["id"]: graph for graph in collection["graphs"]}
    assert list(graphs)[:2] == ["step0/rank0 target", "step0/rank0 golden"]
    assert len(graphs) == 8
    nodes = {node["id"]: node for node in graphs["step0/rank1 target"]["nodes"]}
    absolute = nodes["Torch.abs.0.forward"]
    assert absolute["namespace"].count("/") == 0  # the slash in the module's name is no step of the path
    assert absolute["namespace"] in graphs["step0/rank1 target"]["groupNodeAttributes"]
    assert MODULE not in nodes
    (edge,) = absolute["incomingEdges"]
    assert edge["sourceNodeId"] == "Functional.linear.0.forward"
    for graph in graphs.values():
        known = {node["id"] for node in graph["nodes"]}
        assert len(known) == len(graph["nodes"])
        for node in graph["nodes"]:
            assert set(node) >= {"id", "label", "namespace"}
            assert {each["sourceNodeId"] for each in node["incomingEdges"]} <= known
            for part in (*node["inputsMetadata"], *node["outputsMetadata"]):
                assert all(set(attribute) == {"key", "value"} for attribute in part["attrs"])


def test_node_data_say_how_bad_each_node_is(exported):
    data = read(exported / "model_explorer" / "node_data.json")
    own = data["step0/rank1 target"]
    assert own["results"]["Functional.linear.0.forward"]["value"] > 0.5
    assert data["step0/rank0 target"]["results"]["Functional.linear.0.forward"]["value"] == 0.0
    values = [threshold["value"] for threshold in own["thresholds"]]
    assert values == sorted(values)
    assert values[-1] == 1.0


def test_a_mapping_moves_both_panes(exported):
    mapping = read(exported / "model_explorer" / "mapping_step0_rank1.json")
    assert mapping["type"] == "sync_navigation"
    assert mapping["mapping"]["Torch.abs.0.forward"] == "Torch.abs.0.forward"


# --- Perfetto -----------------------------------------------------------------------------------------------------


def test_slices_nest_and_arrows_point_forward(exported):
    events = read(exported / "perfetto" / "trace.json")["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {0, 1}
    first = [event for event in slices if event["pid"] == 0]
    module = next(event for event in first if event["args"]["name"] == MODULE)
    inner = next(event for event in first if event["args"]["name"] == "Torch.abs.0.forward")
    assert module["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= module["ts"] + module["dur"]
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == 2 * 3  # in each step, the all-reduce in both directions and one send
    for number, begin in begins.items():
        assert begin["ts"] <= ends[number]["ts"]
        for event in (begin, ends[number]):
            own = [each for each in slices if each["pid"] == event["pid"]]
            assert any(each["ts"] <= event["ts"] < each["ts"] + each["dur"] for each in own)


# --- TensorBoard --------------------------------------------------------------------------------------------------


def fields_of(content):
    """Yield number and value of each field of a message."""

    def varint(place):
        value = shift = 0
        while True:
            byte = content[place]
            value |= (byte & 0x7F) << shift
            place, shift = place + 1, shift + 7
            if not byte & 0x80:
                return value, place

    place = 0
    while place < len(content):
        key, place = varint(place)
        match key & 7:
            case 0:
                value, place = varint(place)
            case 1:
                value, place = struct.unpack_from("<d", content, place)[0], place + 8
            case 5:
                value, place = struct.unpack_from("<f", content, place)[0], place + 4
            case 2:
                size, place = varint(place)
                value, place = content[place : place + size], place + size
        yield key >> 3, value


def records_of(content):
    place = 0
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        for begin, length, check in ((place, 8, place + 8), (place + 12, size, place + 12 + size)):
            (masked,) = struct.unpack_from("<I", content, check)
            rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
            assert crc32c(content[begin : begin + length]) == (rotated >> 17 | rotated << 15) & 0xFFFFFFFF
        yield content[place + 12 : place + 12 + size]
        place += 16 + size


def scalars_of(file):
    found = {}
    records = list(records_of(file.read_bytes()))
    assert dict(fields_of(records[0]))[3] == b"brain.Event:2"
    for record in records[1:]:
        event = dict(fields_of(record))
        for _, value in fields_of(event[5]):
            scalar = dict(fields_of(value))
            found.setdefault(scalar[1].decode(), {})[event.get(2, 0)] = scalar[2]
    return found


def test_checksums_are_those_of_the_standard():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4


def test_event_files_hold_the_statistics_over_steps(exported):
    runs = {path.parent.name: path for path in (exported / "tensorboard").glob("*/events.out.tfevents.*")}
    assert sorted(runs) == ["golden_rank0", "golden_rank1", "target_rank0", "target_rank1"]
    target, golden = (scalars_of(runs[f"{side}_rank1"]) for side in ("target", "golden"))
    norm = target[f"norm/{MODULE}.output.0"]
    assert sorted(norm) == [0, 1]
    assert norm[0] == pytest.approx(1.5 * golden[f"norm/{MODULE}.output.0"][0], rel=1e-6)


def test_tensorboard_itself_reads_them(exported):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    own = accumulators.EventAccumulator(str(exported / "tensorboard" / "target_rank0"))
    own.Reload()
    assert len(own.Scalars(f"norm/{MODULE}.output.0")) == 2


def test_one_step_of_one_rank_has_nothing_to_follow(tmp_path):
    run_of(tmp_path / "run")
    done = CliRunner().invoke(
        command, [str(tmp_path / "run" / "step0" / "rank0"), "-o", str(tmp_path), "--tensorboard"]
    )
    assert isinstance(done.exception, CompareError)
    assert "give a run with several" in str(done.exception)


# --- the database -------------------------------------------------------------------------------------------------


@pytest.fixture
def database(exported):
    (path,) = exported.glob("compare_*.vis.db")
    assert path.stat().st_mode & 0o777 == 0o600
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    yield connection
    connection.close()


def test_the_database_has_the_tables_of_the_established_viewer(database):
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"tb_nodes", "tb_stack", "tb_config"}
    columns = [row["name"] for row in database.execute("PRAGMA table_info(tb_nodes)")]
    assert columns == [
        "id", "graph_id", "node_order", "node_name", "node_type", "up_node", "sub_nodes", "precision_index",
        "overflow_level", "micro_step_id", "matched_node_link", "stack_id", "parallel_merge_info",
        "matched_distributed", "modified", "input_data", "output_data", "data_source", "dump_data_dir", "step", "rank",
        "is_distributed",
    ]  # fmt: skip
    indexes = database.execute("SELECT count(*) FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    assert indexes.fetchone()[0] == 7
    config = database.execute("SELECT * FROM tb_config").fetchone()
    assert (config["graph_type"], config["task"], config["step_list"], config["rank_list"]) == (
        "compare", "summary", "[0,1]", "[0,1]",
    )  # fmt: skip


def test_nodes_are_in_post_order_below_one_root(database):
    rows = database.execute("SELECT * FROM tb_nodes WHERE graph_id = 'NPU_1_1' ORDER BY node_order").fetchall()
    names = [row["node_name"] for row in rows]
    assert names[-1] == "DefaultModel"
    assert names.index("Functional.linear.0.forward") < names.index(MODULE)
    by_name = {row["node_name"]: row for row in rows}
    module = by_name[MODULE]
    assert (module["id"], module["up_node"], module["node_type"]) == (f"NPU_1_1_{MODULE}", "DefaultModel", "0")
    assert json.loads(module["sub_nodes"]) == ["Functional.linear.0.forward", "Torch.abs.0.forward"]
    for row in rows[:-1]:
        assert row["node_name"] in json.loads(by_name[row["up_node"]]["sub_nodes"])
    linear = by_name["Functional.linear.0.forward"]
    assert linear["precision_index"] == 1.0
    assert json.loads(linear["matched_node_link"]) == ["DefaultModel", MODULE, "Functional.linear.0.forward"]
    fields = json.loads(linear["output_data"])["Functional.linear.0.forward.output.0"]
    assert fields["dtype"] == "torch.float32"
    assert float(fields["L2norm diff"]) == pytest.approx(np.linalg.norm(X) / 2, rel=1e-5)
    assert fields["NormRelativeErr"].startswith("50.0")
    stack = database.execute("SELECT stack_info FROM tb_stack WHERE id = ?", (linear["stack_id"],)).fetchone()
    assert "line 3, in forward" in stack[0]


def test_a_node_that_is_called_like_the_root_is_another(tmp_path):
    rank = Rank()
    rank.call("Functional.linear", tensor(X), output=tensor(X), parent="DefaultModel")
    write_ranks(tmp_path / "run", {0: rank})
    done = CliRunner().invoke(command, [str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--tb-database"])
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "out").iterdir()
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT id, up_node FROM tb_nodes WHERE node_name = 'DefaultModel'").fetchall()
    connection.close()
    assert sorted(found, key=str) == [("NPU_0_0_DefaultModel", None), ("NPU_0_0_DefaultModel.1", "DefaultModel")]


def test_communication_names_rank_and_node(database):
    row = database.execute(
        "SELECT * FROM tb_nodes WHERE node_name = 'Distributed.send.0.forward' AND graph_id = 'NPU_0_0'"
    ).fetchone()
    found = json.loads(row["matched_distributed"])
    assert found["communications_type"] == "send"
    assert found["nodes_info"]["1"][1] == "Distributed.recv.0.forward"
    assert row["is_distributed"] == 1


def test_what_to_write_must_be_said(tmp_path):
    done = CliRunner().invoke(command, [str(run_of(tmp_path / "run")), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "--model-explorer, --perfetto, --tensorboard or --tb-database" in done.output
