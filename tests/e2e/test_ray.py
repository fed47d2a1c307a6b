"""Ranks are compared on a real Ray cluster of two nodes on this machine, through the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.execute import ray_cluster

pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
ENTRY = "Functional.linear.0.forward"


@pytest.fixture(scope="module")
def cluster():
    import ray

    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
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
        timeout=120,
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
