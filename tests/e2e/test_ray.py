"""Ranks are compared on a real Ray cluster of two nodes on this machine, through the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump

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
    assert "there is no Ray cluster at 127.0.0.1:1" in done.stderr
    assert "start one with 'ray start --head'" in done.stderr
    assert "Traceback" not in done.stderr
