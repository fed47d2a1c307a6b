"""Executors: each task comes back once, a lost process costs its own task only, interruption ends the work."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from msprobe_core.errors import PluginError
from msprobe_core.execute import processes
from msprobe_core.execute.inline import Inline
from msprobe_core.execute.processes import Processes
from msprobe_core.model import ExecutorOptions, TaskLost

TWO = ExecutorOptions(workers=2)


def square(number):
    return number * number


def pid_of(meeting):
    """Return this process's id once two processes are there: one that starts late could find no task left."""
    (meeting / str(os.getpid())).touch()
    for _ in range(6000):
        if len(list(meeting.iterdir())) >= 2:
            break
        time.sleep(0.01)
    return os.getpid()


def square_or_die(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def pid_after_one_death(place):
    if not place.exists():
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def threads_of(_task):
    return os.environ["POLARS_MAX_THREADS"]


@pytest.mark.parametrize("executor", [Inline(), Processes()], ids=["inline", "processes"])
def test_every_task_comes_back_once(executor):
    results = list(executor.run(square, list(range(9)), TWO))
    assert sorted(results) == [(n, n * n) for n in range(9)]


def test_processes_are_several_and_not_this_one(tmp_path):
    pids = {pid for _, pid in Processes().run(pid_of, [tmp_path] * 12, TWO)}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.slow
def test_a_killed_process_costs_its_own_task_only():
    results = dict(Processes().run(square_or_die, list(range(8)), TWO))
    assert Counter(type(result) for result in results.values()) == {int: 7, TaskLost: 1}
    assert "want of memory" in results[3].reason
    assert [results[n] for n in (0, 1, 2, 4, 5, 6, 7)] == [0, 1, 4, 16, 25, 36, 49]


@pytest.mark.slow
def test_tasks_that_were_under_way_are_repeated_in_one_process(tmp_path):
    """Each process may have a framework to import."""
    results = dict(Processes().run(pid_after_one_death, [tmp_path / "died"] * 2, ExecutorOptions(workers=1)))
    assert results.keys() == {0, 1}
    assert len(set(results.values())) == 1


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    (threads,) = {found for _, found in Processes().run(threads_of, [0, 1], TWO)}
    assert int(threads) == max(1, os.cpu_count() // 2)


INTERRUPTED = """
import sys, time
from msprobe_core.execute.processes import Processes
from msprobe_core.model import ExecutorOptions
from test_execute import slowly

if __name__ == "__main__":
    for number, _ in Processes().run(slowly, [0, 0, 600, 600, 600, 600], ExecutorOptions(workers=2)):
        print("done", number, flush=True)
"""


def slowly(seconds):
    time.sleep(seconds)


def test_ctrl_c_ends_the_workers_at_once(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    job = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert job.stdout.readline().startswith("done")
    assert job.stdout.readline().startswith("done")
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = job.communicate(timeout=120)
    assert job.returncode != 0
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert ends_within(job.pid, 60.0)


def ends_within(group, seconds):
    for _ in range(int(10 * seconds)):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_ray_that_is_not_installed_is_said(monkeypatch):
    from msprobe_core.execute.ray_cluster import RayCluster

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PluginError, match=r"needs the library ray.*pip install 'msprobe-core\[ray\]'"):
        RayCluster().check(ExecutorOptions())


def test_a_pool_that_breaks_between_two_tasks_loses_no_task(monkeypatch):
    """The task that is handed over just when the pool breaks is neither waiting nor under way in anybody's books."""
    submitted = []
    submit = processes.ProcessPoolExecutor.submit

    def submit_or_break(pool, function, task):
        submitted.append(task)
        if len(submitted) == 3:
            raise BrokenProcessPool
        return submit(pool, function, task)

    monkeypatch.setattr(processes.ProcessPoolExecutor, "submit", submit_or_break)
    assert dict(Processes().run(square, list(range(6)), TWO)) == {n: n * n for n in range(6)}
