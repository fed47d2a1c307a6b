"""Checks of a dump that end early: by Ctrl-C, by the death of a worker, or of all; and two at the same time."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from wrong_kernels import record


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    def run(debugger):
        torch.manual_seed(0)
        x = torch.randn(64, 64)
        with debugger.start():
            for _ in range(60):
                x = torch.tanh(torch.matmul(x, x) / 64)

    return record(tmp_path_factory.mktemp("ended") / "dump", run, level="L1")


def start(dump, out, *options, python=sys.executable):
    """Start a check; with another ``python`` it cannot be sent signals, and its workers cannot be found."""
    command = [python, "-m", "msprobe_core", "acc_check", "-api_info", str(dump), "-o", str(out), *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def size_of(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:  # replaced since it was listed
        return 0


def wait_for_verdicts(out):
    deadline = time.monotonic() + 300
    while not any(size_of(path) > 4000 for path in out.glob(".acc_check_*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def workers_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def content_of(out):
    return json.loads((out / "acc_check.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_check_that_was_interrupted_says_how_to_go_on(workers, dump, torch_python, tmp_path):
    out = tmp_path / "out"
    with start(dump, out, "-n", workers) as process:
        wait_for_verdicts(out)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    command = shlex.split(said[said.index("  msprobe acc_check") :])
    ended = subprocess.run(
        [torch_python, "-m", "msprobe_core", *command[1:]], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    calls = [call["entry"] for call in content_of(out)["calls"]]
    assert len(calls) == len(set(calls)) >= 180
    assert not list(out.glob(".acc_check_*"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds child processes in /proc")
def test_a_worker_that_is_killed_costs_at_most_one_call(dump, tmp_path):
    out = tmp_path / "out"
    with start(dump, out, "-n", "2") as process:
        wait_for_verdicts(out)
        os.kill(workers_of(process)[0], signal.SIGKILL)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    calls = content_of(out)["calls"]
    assert len({call["entry"] for call in calls}) == len(calls) >= 180
    lost = [call for call in calls if call["verdict"] == "cannot_tell"]
    assert len(lost) <= 1  # none if it was between two calls
    assert all(call["reason"] in " ".join(said.split()) for call in lost)


@pytest.mark.slow
def test_a_check_in_two_processes_that_was_killed_goes_on(dump, torch_python, tmp_path):
    out = tmp_path / "out"
    with start(dump, out, "-n", "2", python=torch_python) as process:
        wait_for_verdicts(out)
        process.kill()
        process.communicate(timeout=300)  # its workers end too, and close what it printed to
    (results,) = out.glob("accuracy_checking_result_*.csv")
    with start(dump, out, "-n", "2", "-csv_path", str(results), python=torch_python) as process:
        said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, said + errors
    with results.open(encoding="utf-8-sig") as file:
        names = [row["API name"] for row in csv.DictReader(file)]
    assert len(names) == len(set(names)) == len({call["api"] for call in content_of(out)["calls"]})


@pytest.mark.slow
def test_checks_at_the_same_time_have_files_of_their_own(dump, torch_python, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "few.yaml").write_text("white_list: [tanh]")
    options = ("-n", "0", "-f", "-config", str(out / "few.yaml"))
    processes = [start(dump, out, *options, python=torch_python) for _ in range(3)]
    for process in processes:
        with process:
            said, errors = process.communicate(timeout=300)
        assert process.returncode == 0, said + errors
    for kind in ("result", "details"):
        assert len(list(out.glob(f"accuracy_checking_{kind}_*.csv"))) == 3
    assert not list(out.glob(".acc_check_*"))
