"""The page asked for as established scripts do, and served: to whom, and to whom not."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
from click.testing import CliRunner
from dumps import tensor, write_dump
from rank_dumps import Rank, write_ranks

from msprobe_core.cli.graph import graph, graph_visualize
from msprobe_core.cli.view import view, write
from msprobe_core.errors import StoreError
from msprobe_core.view.build import build
from msprobe_core.view.serve import PageServer
from msprobe_core.view.stored_graphs import StoredGraphs

X = np.random.default_rng(5).standard_normal((4, 8))


def dump(place, factor=1.0):
    data = {
        "Functional.linear.0.forward": {"input_args": [tensor(X)], "output": [tensor(X * factor)]},
        "Module.Model.forward.0": {"input_args": [tensor(X)], "output": [tensor(X * factor)]},
    }
    write_dump(place, data, parents={"Functional.linear.0.forward": "Module.Model.forward.0"})
    return place


def ranks(place):
    made = {}
    for number in range(4):
        rank = Rank()
        rank.call("Functional.linear", tensor(X + number), output=tensor(X * 2))
        made[number] = rank
    return write_ranks(place, made)


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


# --- the established spelling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [graph, graph_visualize], ids=lambda command: command.name)
def test_established_options_make_a_page(tmp_path, command):
    target, golden = dump(tmp_path / "t", 1.5), dump(tmp_path / "g")
    options = ("-lm", "-fm", "-oc", "-tensor_log", "-progress_log")
    done = run(command, "-tp", target, "-gp", golden, "-o", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    (page,) = (tmp_path / "out").iterdir()
    assert re.fullmatch(r"compare_\d{14}\.html", page.name)
    assert "The runs first diverge at Functional.linear.0.forward" in done.output


def test_a_compare_json_and_one_run(tmp_path):
    (tmp_path / "compare.json").write_text(json.dumps({"npu_path": str(dump(tmp_path / "t"))}))
    done = run(graph, "-i", tmp_path / "compare.json", "-o", tmp_path / "out", "--file_type", "db")
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [re.sub(r"\d{14}", "T", name) for name in names] == ["build_T.html", "build_T.vis.db"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give the run: -tp TARGET"),
        (("-tp", "t", "-i", "compare.json"), "give the run"),
        (("-tp", "t", "--tp", "2"), "are all needed"),
        (("-tp", "t", "--rank_size", "4", "--tp", "2", "--pp", "1", "--vpp", "2"), "cannot be put together"),
        (("-tp", "t", "--rank_size", "4", "--tp", "3", "--pp", "1"), "no multiple"),
        (("-tp", "t", "--rank_size", "4", "--tp", "x", "--pp", "1"), "one value, or one for the target"),
        (("-tp", "t", "--rank_size", "4", "--tp", "2", "--pp", "1", "--order", "tp-pp"), "in another order"),
        (("-tp", "t", "--file_type", "json"), "is not written here"),
    ],
    ids=str,
)
def test_what_is_not_possible_is_said(tmp_path, options, words):
    done = run(graph_visualize, *options, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert words in done.output


def test_ranks_are_arranged_as_the_options_say(tmp_path):
    pages = tmp_path / "out"
    done = run(
        graph_visualize, "-tp", ranks(tmp_path / "t"), "--rank_size", 4, "--tp", 2, 2, "--pp", 2, "-o", pages
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    text = next(pages.iterdir()).read_text()
    packed = re.search(r'id="msprobe-data">([^<]*)<', text)[1]
    units = json.loads(gzip.decompress(base64.b64decode(packed)))["units"]
    assert [unit["groups"] for unit in units] == [
        {"pp": 0, "tp": 0}, {"pp": 0, "tp": 1}, {"pp": 1, "tp": 0}, {"pp": 1, "tp": 1},
    ]  # fmt: skip


# --- served -------------------------------------------------------------------------------------------------------


@contextmanager
def served(tmp_path, factor=1.5):
    graphs = StoredGraphs()
    data = build(dump(tmp_path / "t", factor), dump(tmp_path / "g"), graphs)
    with PageServer(data, graphs) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
    graphs.close()


def ask(server, path, *, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_a_browser_gets_the_page_the_index_and_graphs(tmp_path):
    with served(tmp_path) as server:
        assert server.server_address[0] == "127.0.0.1"
        path = urlsplit(server.url)
        status, headers, page = ask(server, f"{path.path}?{path.query}")
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        source = json.loads(re.search(rb'id="msprobe-source">([^<]*)<', page)[1])
        index = json.loads(gzip.decompress(ask(server, source["index"])[2]))
        assert index["verdict"]["state"] == "fault"
        assert index["units"][0]["graph"] is None
        graph = json.loads(gzip.decompress(ask(server, source["unit"].replace("{unit}", "0"))[2]))
        assert "Functional.linear.0.forward" in graph["name"]
        assert ask(server, source["unit"].replace("{unit}", "1"))[0] == 404
        assert ask(server, source["unit"].replace("{unit}", "../0"))[0] == 404


@pytest.mark.parametrize("path", ["/", "/data/index", "/data/unit/0", "/nothing"])
def test_nobody_else_gets_anything(tmp_path, path):
    with served(tmp_path) as server:
        good = f"?token={server.token}"
        assert ask(server, path)[0] == 403
        assert ask(server, f"{path}?token={server.token[:-1]}x")[0] == 403
        assert ask(server, f"{path}?token=%ff")[0] == 403
        assert ask(server, path + good, Host="evil.example")[0] == 403
        assert ask(server, path + good, Host=f"evil.example:{server.server_port}")[0] == 403
        assert ask(server, path + good, Host=f"localhost:{server.server_port}")[0] != 403
        assert ask(server, path + good, method="POST")[0] == 501


MALFORMED = [
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET //[::/?token=x HTTP/1.1\r\n\r\n",
    b"GET /\xff\xfe?token=\xff HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"GET /?" + b"a=1&" * 5000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9.9\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
]


@pytest.mark.slow
@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_malformed_requests_print_nothing(tmp_path, capfd, is_reset):
    """The terminal is the owner's, and any process on the machine can send them."""
    with served(tmp_path) as server:
        for request in MALFORMED:
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
                connection.sendall(request)
                if is_reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    connection.shutdown(socket.SHUT_WR)
                    assert b" 200 " not in connection.recv(1 << 16)
        good = urlsplit(server.url)
        assert ask(server, f"{good.path}?{good.query}")[0] == 200
    assert "".join(capfd.readouterr()) == ""


def test_a_defect_is_told_to_who_debugs_it(tmp_path, capfd, caplog, monkeypatch):
    monkeypatch.setattr("msprobe_core.view.serve._Handler._is_for_us", lambda *_: 1 / 0)
    with caplog.at_level("DEBUG"), served(tmp_path) as server, pytest.raises(http.client.HTTPException):
        ask(server, "/")
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" not in capfd.readouterr().err


def test_a_port_that_is_taken_is_a_sentence(tmp_path):
    with served(tmp_path) as server, pytest.raises(StoreError, match="give another --port"):
        PageServer(build(tmp_path / "t", None, server.graphs), server.graphs, server.server_port)


def test_ctrl_c_ends_it_without_a_traceback(tmp_path):
    dump(tmp_path / "t")
    environment = {"TMPDIR": str(tmp_path), "PATH": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "msprobe_core", "view", tmp_path / "t", "--serve"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert "until Ctrl-C: http://127.0.0.1:" in lines[1]
    assert list(tmp_path.glob("msprobe-view-*"))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.strip() == ""
    assert not list(tmp_path.glob("msprobe-view-*"))


def test_ranks_that_share_a_layer_are_merged(tmp_path):
    entry = "Module.fc.ColumnParallelLinear.forward.0"
    weight, made = np.arange(64.0).reshape(8, 8), X @ np.arange(64.0).reshape(8, 8).T

    def record(rows):
        own = tensor(weight[rows], shape=[len(weight[rows]), 8])
        return {
            entry: {"input_args": [tensor(X)], "output": [tensor(made[:, rows])], "parameters": {"weight": own}}
        }  # fmt: skip

    for rank, rows in enumerate((slice(0, 4), slice(4, 8))):
        write_dump(tmp_path / "t" / f"rank{rank}", record(rows), parents={entry: None})
    write_dump(tmp_path / "g" / "rank0", record(slice(0, 8)), parents={entry: None})
    options = ("--rank_size", 2, 1, "--tp", 2, 1, "--pp", 1)
    done = run(graph_visualize, "-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    assert "The runs agree" in done.output


# --- the page -----------------------------------------------------------------------------------------------------


def test_graphs_that_a_file_has_no_room_for_are_said(tmp_path, capsys):
    graphs = StoredGraphs()
    data = build(ranks(tmp_path / "t"), None, graphs)
    graphs.sizes = dict.fromkeys(graphs.sizes, 150 << 20)
    write(data, graphs, tmp_path / "page.html")
    graphs.close()
    shown = capsys.readouterr()
    assert "graphs that the file has no room for: 3 of 4; --serve shows all of them" in shown.err
    packed = re.search(r'id="msprobe-data">([^<]*)<', (tmp_path / "page.html").read_text())[1]
    content = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert [unit["graph"] is None for unit in content["units"]] == [False, True, True, True]
    assert content["notes"][-1]["code"] == "view.note.no-room"


@pytest.mark.parametrize("groups", ["tp", "tp=x", "tp=0", "=2", "tp=2;pp=2"])
def test_groups_that_are_none_are_said(tmp_path, groups):
    done = run(view, ranks(tmp_path / "t"), "-o", tmp_path / "out", "--groups", groups)
    assert done.exit_code == 2
    assert "for example tp=2,pp=2,dp=4" in done.output
