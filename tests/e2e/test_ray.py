"""Ranks are compared on a real Ray cluster of two nodes on this machine, through the command line."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.errors import PluginError
from msprobe_core.execute import ray_cluster

pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
ENTRY = "Functional.linear.0.forward"

NO_START = "The current node timed out during startup"
"""Ray has half a minute to start, which is little on a machine that others use; nothing of ours has run by then."""


def start_cluster(tries=3):
    try:
        return cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    except Exception as error:
        if tries == 1 or NO_START not in str(error):
            raise
    return start_cluster(tries - 1)


@pytest.fixture(scope="module")
def cluster():
    import ray

    cluster = start_cluster()
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    root = tmp_path_factory.mktemp("steps")
    for rank in range(6):
        for side in ("target", "golden"):
            output = TWICE if (side, rank) == ("target", 4) else X
            write_dump(root / side / f"rank{rank}", {ENTRY: api(tensor(X), output=tensor(output))})
    return root


def compare(steps, out, *options):
    command = [sys.executable, "-m", "msprobe_core", "compare", "-tp", steps / "target", "-gp", steps / "golden"]
    return subprocess.run(
        list(map(str, [*command, "-o", out, *options])),
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
    )


@pytest.mark.slow
def test_two_nodes_find_what_one_process_finds(cluster, steps, tmp_path):
    done = compare(steps, tmp_path / "ray", "--ray-address", cluster.address)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == f"DIFFERENT: first at rank4: {ENTRY}."
    assert compare(steps, tmp_path / "inline", "--executor", "inline").returncode == 1
    units = [json.loads((tmp_path / name / "summary.json").read_text())["units"] for name in ("ray", "inline")]
    for unit in (*units[0], *units[1]):
        (table,) = unit.pop("tables")
        assert Path(table).is_file()
    assert units[0] == units[1]


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_a_sentence(steps, tmp_path):
    done = compare(steps, tmp_path / "out", "--ray-address", "127.0.0.1:1")
    assert done.returncode == 2
    assert "there is no Ray cluster at 127.0.0.1:1 that takes this connection" in done.stderr
    assert "one with 'ray start --head'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["variable", "file", "none"])
def test_a_token_is_shown_where_there_is_one(monkeypatch, tmp_path, place):
    """As `ray start --head` asks for it by itself, a connection without it is refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    if place == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    elif place == "file":
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("x")
    ray_cluster._use_token()
    assert os.environ.get("RAY_AUTH_MODE") == (None if place == "none" else "token")
    os.environ.pop("RAY_AUTH_MODE", None)


LOCAL = """
import socket
from pathlib import Path
from msprobe_core.execute.ray_cluster import RayCluster
from msprobe_core.model import ExecutorOptions

def twice(number):
    return 2 * number

def listening(pid):
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        if file.is_symlink() and (target := str(file.readlink())).startswith("socket:["):
            inodes.add(target[8:-1])
    for table in ("tcp", "tcp6"):
        for fields in map(str.split, Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]):
            if fields[3] == "0A" and fields[9] in inodes:
                yield fields[1].split(":")[0]

def descendants(pid):
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            yield child
            yield from descendants(child)

for number, result in RayCluster().run(twice, [1, 2, 3], ExecutorOptions(workers=1)):
    found = {place for pid in ("self", *descendants("self")) for place in listening(pid)} if number == 0 else ()
    print(number, result, *found)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cluster_of_our_own_listens_on_loopback_only():
    """Who reaches a Ray cluster can run code in it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", LOCAL], capture_output=True, text=True, timeout=600, env=environment
        )
        if not done.returncode or NO_START not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    lines = {int(line.split()[0]): line.split()[1:] for line in done.stdout.splitlines()}
    assert {number: int(words[0]) for number, words in lines.items()} == {0: 2, 1: 4, 2: 6}
    # As the kernel writes them: of IPv4, and mapped into IPv6.
    assert {*lines[0][1:]} <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert lines[0][1:]


def test_no_cluster_is_started_that_others_reach():
    class Util:
        address = "192.0.2.2"

        def get_node_ip_address(self):
            return self.address

    class Ray:
        util = Util()

    with pytest.raises(PluginError, match=r"would listen at 192\.0\.2\.2.*--executor processes"):
        ray_cluster._check_private(Ray())
    Util.address = "127.0.0.1"
    ray_cluster._check_private(Ray())


ENDED = """
import sys, time
from msprobe_core.errors import PluginError
from msprobe_core.execute import ray_cluster
from msprobe_core.execute.ray_cluster import RayCluster
from msprobe_core.model import ExecutorOptions

ray_cluster._PATIENCE_S = 0.5  # between two looks; a head that has ended refuses each at once

def slow(number):
    time.sleep(1 if number else 0)
    return number

try:
    for number, _ in RayCluster().run(slow, range(90), ExecutorOptions(address=sys.argv[1])):
        print(number, flush=True)
except PluginError as error:
    print(error, flush=True)
    sys.exit(2)
"""


@pytest.mark.slow
def test_a_cluster_that_ends_is_a_sentence_and_no_difference(cluster):
    """Ray would end the process with exit status 1 after a minute. No later test has the cluster."""
    address = cluster.address  # which it forgets
    with subprocess.Popen(
        [sys.executable, "-c", ENDED, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "0\n"
        cluster.head_node.kill_gcs_server()
        said, errors = process.communicate(timeout=300)
    assert process.returncode == 2, errors
    assert f"the Ray cluster at {address} ended before all pairs were compared" in said


def test_a_head_may_be_gone_for_a_moment(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        head = ray_cluster._Head(address)
        monkeypatch.setattr(ray_cluster, "_PATIENCE_S", 1.0)
        head._missed = ray_cluster._MOST_MISSED - 1
        head._asked -= 2
        head.check()
    for _ in range(ray_cluster._MOST_MISSED - 1):
        head._asked -= 2
        head.check()
    head._asked -= 2
    with pytest.raises(PluginError, match="ended before all pairs were compared"):
        head.check()
