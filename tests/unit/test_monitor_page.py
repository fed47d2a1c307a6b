"""What a page gets of a monitored training: maps, events, the files beside it, and a training that goes on."""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import math
import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import polars as pl
import pytest
from dumps import tensor, write_dump
from monitored_runs import Fault, Training, alarm, write_alarms

from msprobe_core.compare.pairs import Chosen
from msprobe_core.monitoring import files
from msprobe_core.monitoring.files import read_monitored
from msprobe_core.monitoring.history import Monitored
from msprobe_core.view import trends_maps
from msprobe_core.view.serve import PageServer
from msprobe_core.view.stored_graphs import StoredGraphs
from msprobe_core.view.trends import monitored_data, thinned
from msprobe_core.view.trends_beside import beside
from msprobe_core.view.trends_live import LiveMonitor
from msprobe_core.view.trends_maps import columns_of, indexed, model_order, part_map, worst_map

WEIGHT = "layers.1.mlp.up.weight"


def history(rows, statistics=("norm",)):
    """Return a history of rows (rank, quantity, name, micro_step, step, statistics)."""
    records = [
        {
            "rank": rank, "quantity": quantity, "stage": None, "name": name, "micro_step": micro, "step": step,
            "place": i, **dict(zip(statistics, values, strict=True)),
        }
        for i, (rank, quantity, name, micro, step, *values) in enumerate(rows)
    ]  # fmt: skip
    schema = {**files.SCHEMA, **dict.fromkeys(statistics, pl.Float64)}
    return Monitored(frame=pl.DataFrame(records, schema=schema), statistics=list(statistics))


def names_of(run):
    return [place.name for place in model_order(run)]


# --- the order of the model ---------------------------------------------------------------------------------------


def test_numbers_of_layers_are_numbers_and_the_rest_is_as_computed():
    names = ["embed.output", "layers.10.fc.output", "layers.9.fc.output", "norm.output"]
    run = history([(0, "actv", name, 0, 0, 1.0) for name in names])
    assert names_of(run) == ["embed.output", "layers.9.fc.output", "layers.10.fc.output", "norm.output"]


def test_ranks_of_a_pipeline_have_their_parts_in_turn():
    first = ["embed.weight", "layers.0.weight", "layers.1.weight"]
    last = ["layers.2.weight", "layers.3.weight", "head.weight"]
    rows = [(rank, "grad_reduced", name, None, 0, 1.0) for rank, names in ((0, first), (1, last)) for name in names]
    assert names_of(history(rows)) == first + last


def test_what_goes_in_comes_before_what_is_inside_and_what_comes_out_after_it():
    computed = ["a.b.input", "a.b.output", "a.input", "a.output"]
    assert names_of(history([(0, "actv", name, 0, 0, 1.0) for name in computed])) == [
        "a.input", "a.b.input", "a.b.output", "a.output",
    ]  # fmt: skip


def test_gradients_of_activations_are_in_the_order_of_the_model_too():
    run = history([(0, "actv_grad", name, 0, 0, 1.0) for name in ("z.output", "m.output", "a.output")])
    assert names_of(run) == ["a.output", "m.output", "z.output"]


# --- maps ---------------------------------------------------------------------------------------------------------


def test_usual_is_the_median_of_the_past():
    values = [float(i) for i in range(1, 80)]
    values[30] = math.nan
    run = history([(0, "actv", "x", None, step, value) for step, value in enumerate(values)])
    usual = part_map(indexed(run, None), "norm", [0], None, None).usual[0]
    assert usual[:10] == [5.5] * 10  # of the first ten
    assert usual[10] == 5.5
    assert usual[20] == 10.5
    expected = sorted(value for value in values[20:70] if value == value)
    assert usual[70] == expected[len(expected) // 2]


def test_the_worst_rank_is_furthest_from_its_own_past():
    rows = [(rank, "actv", "x", None, step, 10.0**rank) for rank in range(3) for step in range(12)]
    rows += [(0, "actv", "x", None, 12, 1.0), (1, "actv", "x", None, 12, 1.0), (2, "actv", "x", None, 12, 300.0)]
    rows += [(0, "actv", "x", None, 13, math.inf), (1, "actv", "x", None, 13, 1e9), (2, "actv", "x", None, 13, 0.0)]
    source = indexed(history(rows), None)
    found = worst_map(source, "norm", columns_of(source, 1))
    assert [found.value[0][c] for c in (12, 13)] == [1.0, "inf"]
    assert [found.rank[0][c] for c in (12, 13)] == [1, 0]
    assert found.usual[0][12] == 10.0
    assert found.golden is None


def test_against_golden_the_worst_rank_is_furthest_from_it():
    rows = [(rank, "actv", "x", None, step, 1.0 + 0.1 * rank * (step == 1)) for rank in range(3) for step in range(2)]
    golden = [(rank, "actv", "x", None, step, 1.0) for rank in range(3) for step in range(2)]
    found = worst_map(indexed(history(rows), history(golden)), "norm", [(0, 0), (1, 1)])
    assert (found.value[0], found.golden, found.rank[0][1]) == ([1.0, 1.2], [[1.0, 1.0]], 2)


def test_values_that_are_not_there_are_none():
    rows = [(0, "actv", "x", None, 0, 1.0), (0, "actv", "y", None, 1, 2.0)]
    found = worst_map(indexed(history(rows), None), "norm", [(0, 0), (1, 1)])
    assert found.value == [[1.0, None], [None, 2.0]]
    assert list(found.rank) == []


def test_several_steps_share_a_column_if_there_are_too_many(monkeypatch):
    monkeypatch.setattr(trends_maps, "MAX_CELLS", 4)
    rows = [(0, "actv", "x", None, step, 9.0 if step == 5 else 1.0) for step in range(12)]
    source = indexed(history(rows), None)
    columns = columns_of(source, 1)
    assert columns == [(0, 2), (3, 5), (6, 8), (9, 11)]
    found = worst_map(source, "norm", columns)
    assert found.value[0] == [1.0, 9.0, 1.0, 1.0]
    assert found.step[0][1] == 5


def test_parts_are_exact(tmp_path):
    run = read_monitored(Training(ranks=2, layers=1, steps=12).write(tmp_path))
    source = indexed(run, None)
    rows = [i for i, place in enumerate(source.places) if place.quantity == "grad_reduced"]
    whole = [part_map(source, "norm", [row], None, None).value for row in rows]
    assert [len(whole), len(whole[0]), len(whole[0][0])] == [4, 2, 12]
    assert part_map(source, "norm", rows, 1, None).value == [each[1] for each in whole]
    step = part_map(source, "norm", rows, None, 7)
    assert step.value == [[rank[7] for rank in each] for each in whole]
    assert step.usual == [
        [part_map(source, "norm", [row], None, None).usual[rank][7] for rank in (0, 1)] for row in rows
    ]


def test_thinned_steps_are_spread_and_telling():
    assert thinned(range(5), [], 9) == [0, 1, 2, 3, 4]
    found = thinned(range(100), [37, 37, 200, 38], 10)
    assert len(found) == 10
    assert {0, 37, 38, 99} <= set(found)
    assert max(b - a for a, b in itertools.pairwise(found)) <= 15


# --- events -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    root = tmp_path_factory.mktemp("faulty")
    faults = [Fault(rank, "grad_reduced", WEIGHT, 50, 8.0) for rank in (1, 3)]
    training = Training(ranks=4, layers=2, steps=60, faults=[*faults, Fault(0, "actv", "head.output", 58, math.nan)])
    write_alarms(training.write(root), 1, *[alarm(1, "grad_reduced", WEIGHT, step, 9.5) for step in (50, 51, 55)])
    return root


def test_an_anomaly_of_several_ranks_and_steps_is_one_event(faulty):
    board = monitored_data(faulty, None, Chosen()).monitor
    first, second, *_ = [event for event in board.events if event.kind == "anomaly"]
    assert (board.rows.name[first.row], first.step, first.ranks) == (WEIGHT, 50, [1, 3])
    assert first.count >= 4
    assert (board.rows.name[second.row], second.step, second.ranks) == ("head.output", 58, [0])
    assert not [event for event in board.events if event.kind == "not-finite"]  # it is the second anomaly
    assert board.num_anomalies == sum(event.count for event in board.events if event.kind == "anomaly")


def test_alarms_that_follow_each_other_are_one_event(faulty):
    board = monitored_data(faulty, None, Chosen()).monitor
    alarms = [event for event in board.events if event.kind == "alarm"]
    assert [(event.step, event.count, event.ranks) for event in alarms] == [(50, 2, [1]), (55, 1, [1])]
    assert board.rows.name[alarms[0].row] == WEIGHT
    assert alarms[0].text.text == "AnomalyTurbulence holds: norm is 9.5"
    assert board.num_alarms == 3


def test_steps_and_ranks_choose_alarms_and_coverage(faulty):
    board = monitored_data(faulty, None, Chosen(steps=frozenset({55, 56}), ranks=frozenset({1}))).monitor
    assert [event.step for event in board.events if event.kind == "alarm"] == [55]
    assert {row.ranks for row in board.coverage} == {1}


def test_what_the_values_of_events_are_comes_first_in_the_trends(faulty):
    data = monitored_data(faulty, None, Chosen())
    names = list(dict.fromkeys(trend.name for trend in data.trends))
    assert names[:2] == ["head.output", WEIGHT]  # that of the first sentence before those of events


# --- the files beside it ------------------------------------------------------------------------------------------


def test_coverage_is_of_all_ranks_together(faulty):
    rows = {row.quantity: row for row in beside(faulty, faulty).coverage}
    assert (rows["actv"].ranks, rows["actv"].expected, rows["actv"].seen, rows["actv"].finite) == (4, None, 24, 23)
    assert (rows["grad_reduced"].expected, rows["grad_reduced"].seen) == (28, 24)
    assert list(rows["grad_reduced"].missing) == ["lm_head.bias"]  # on all ranks, and of the only stage


def test_what_some_ranks_miss_names_them(tmp_path):
    Training(ranks=2, layers=1, steps=1).write(tmp_path)
    path = next(tmp_path.glob("*rank1-*")) / "coverage.json"
    row = {"expected": 2, "seen": 1, "finite": 1, "first_step": 3, "missing": ["1:x"], "always": 1, "by_class": {}}
    path.write_text(json.dumps({"exp_avg": row, "grad_reduced": row}))
    rows = {row.quantity: row for row in beside(tmp_path, tmp_path).coverage}
    assert list(rows["grad_reduced"].missing) == ["lm_head.bias (rank 0)", "1:x (rank 1)"]
    assert (rows["exp_avg"].ranks, rows["exp_avg"].first_step) == (1, 3)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"x": 3}', b"\xff\xfe", b"[" * 100_000], ids=lambda content: repr(content[:8])
)
def test_what_cannot_be_read_is_a_note(tmp_path, content):
    Training(ranks=1, layers=1, steps=1).write(tmp_path)
    write_alarms(tmp_path, 0, alarm(0, "actv", "head.output", 0, 1.0))
    for path in (tmp_path / "anomaly_detected" / "rank0" / "anomaly.json", *tmp_path.glob("*/coverage.json")):
        path.write_bytes(content)
    found = beside(tmp_path, tmp_path)
    assert (list(found.alarms), list(found.coverage)) == ([], [])
    assert [note.fields["file"] for note in found.notes] == ["anomaly.json", "coverage.json"]
    assert all("\n" not in note.text for note in found.notes)


@pytest.mark.parametrize(
    "tag", ["", "x", "0:a", "0::0/rank0/actv", "9" * 400 + ":a:0/rank0/actv", "0:a:0/rank0/\ud800"]
)
def test_odd_tags_have_no_row(tmp_path, tag):
    Training(ranks=1, layers=1, steps=1).write(tmp_path)
    _, record = alarm(0, "actv", "head.output", 0, 1.0)
    write_alarms(tmp_path, 0, ("a", record | {"tag_name": tag}), ("b", record | {"step": 1 << 60}))
    board = monitored_data(tmp_path, None, Chosen()).monitor
    assert [event.row for event in board.events] == [-1] * (board.num_alarms)


def test_dumps_are_found_in_the_run_and_in_its_directories(tmp_path):
    data = {"Torch.relu.0.forward": {"input_args": [tensor([1.0])], "output": [tensor([1.0])]}}
    monitored = Training(ranks=1, layers=1, steps=1).write(tmp_path / "monitor output")
    write_dump(monitored / "dump" / "step3" / "rank0", data)
    write_dump(tmp_path / "dump" / "step4" / "rank0", data)
    found = beside(monitored, monitored)
    assert sorted(found.dumps) == [3, 4]
    assert found.command(3) == f"msprobe view '{monitored}/dump/step3'"
    assert found.command(5) == ""


# --- a training that goes on --------------------------------------------------------------------------------------


def ask(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@contextmanager
def served(live):
    with closing(StoredGraphs()) as graphs, PageServer(live.data, graphs, live=live) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_server_reads_what_is_new_and_only_that(tmp_path, monkeypatch):
    read = []
    read_file = files._read_file
    monkeypatch.setattr(files, "_read_file", lambda path, *rest: (read.append(path.name), read_file(path, *rest))[1])
    training = Training(ranks=1, layers=1, steps=30)
    Training(ranks=1, layers=1, steps=20).write(tmp_path)
    live = LiveMonitor(tmp_path, None, Chosen())
    assert sorted(read) == ["actv_0-19.csv", "grad_reduced_0-19.csv"]
    with served(live) as server:
        index = f"/data/index?token={server.token}"
        status, headers, content = ask(server, index)
        assert status == 200
        document = json.loads(gzip.decompress(content))
        assert (document["kind"], document["trends"], document["monitor"]["steps"][-1]) == ("monitor", [], 19)
        tag = {"If-None-Match": headers["ETag"]}
        assert ask(server, index, **tag)[0] == 304
        read.clear()
        training.write(tmp_path, first=20)
        expected = {"actv_20-29.csv", "grad_reduced_20-29.csv"}
        for _ in range(400):  # one of the files may be read before the other is there, or is complete
            status, headers, content = ask(server, index, **tag)
            if status == 200 and expected <= {*read}:
                break
            threading.Event().wait(0.05)
        assert json.loads(gzip.decompress(content))["monitor"]["steps"][-1] == 29
        assert {*read} == expected


def test_a_file_that_is_damaged_later_leaves_the_page_as_it_was(tmp_path):
    Training(ranks=1, layers=1, steps=5).write(tmp_path)
    live = LiveMonitor(tmp_path, None, Chosen())
    version, _ = live.latest
    (next(tmp_path.glob("*rank0*")) / "actv_5-9.csv").write_bytes(b"\xff\xfe\n")
    for _ in range(20):
        assert live.latest[0] == version
        threading.Event().wait(0.01)


@pytest.mark.parametrize(
    ("part", "status"),
    [
        ("row/0/norm/-", 200), ("rank/1/norm/actv", 200), ("step/3/nans/grad%5Freduced", 200), ("row/999/norm/-", 404),
        ("row/0/median/-", 404), ("rank/7/norm/actv", 404), ("step/99/norm/actv", 404), ("step/3/norm/nothing", 404),
        ("", 404), ("row/-1/norm/-", 404), ("row/0/norm", 404), ("../index", 404), ("row/%30/norm/-", 404),
    ],
)  # fmt: skip
def test_parts_of_a_training(tmp_path, part, status):
    live = LiveMonitor(Training(ranks=2, layers=1, steps=5).write(tmp_path), None, Chosen())
    with served(live) as server:
        path = f"/data/monitor/{part}"
        assert ask(server, path)[0] == 403
        found, _, content = ask(server, f"{path}?token={server.token}")
        assert found == status
        if status == 200:
            values = json.loads(gzip.decompress(content))["value"]
            assert (len(values), len(values[0])) in {(2, 5), (4, 5), (4, 2)}
        page = urlsplit(server.url)
        source = ask(server, f"{page.path}?{page.query}")[2]
        assert b"/data/monitor/{part}?token=" in source


def test_the_command_serves_a_training_until_ctrl_c(tmp_path):
    Training(ranks=1, layers=1, steps=3).write(tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "msprobe_core", "view", tmp_path / "run", "--serve"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, start_new_session=True,
        env={"TMPDIR": str(tmp_path), "PATH": ""},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert lines[0].startswith("A single monitored training")
    address = urlsplit(lines[1].rpartition(" ")[2].strip())
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", f"/data/index?{address.query}")
    answer = connection.getresponse()
    assert (answer.status, len(answer.headers["ETag"])) == (200, 34)
    connection.close()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.strip()) == (130, "")
