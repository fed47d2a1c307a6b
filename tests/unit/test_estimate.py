"""What ``msprobe estimate`` does around a measured process; whole runs are in tests/e2e."""

import shutil
import sys
from types import SimpleNamespace

import pytest

from msprobe_core import PrecisionDebugger
from msprobe_core.capture.measure import REQUEST_VARIABLE, MeasurementRequest
from msprobe_core.errors import ConfigError
from msprobe_core.estimate import process
from msprobe_core.estimate.process import run_program
from msprobe_core.estimate.report import _size

READY = """
import os, time
from msprobe_core.capture.measure import Reading, requested_measurement
from pathlib import Path
Reading(num_warmup=1, times_s=[1.0], is_complete=True).write(Path(requested_measurement().directory))
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path):
    """Run a program that is measured; returns how that ended, and the numbers of steps that were told meanwhile."""

    def run(program):
        told = []
        directory = tmp_path / "msprobe-estimate-unit"
        directory.mkdir()
        wanted = MeasurementRequest(directory=str(directory), level=None)
        ended = run_program(
            [sys.executable, "-c", program], wanted, timeout_s=60, progress=lambda steps, _seconds: told.append(steps)
        )
        return ended, told

    return run


def test_a_launcher_that_goes_on_is_ended(run, monkeypatch):
    monkeypatch.setattr(process, "_PATIENCE_S", 0.3)
    ended, told = run(READY)
    assert (ended.status, ended.problem) == (None, None)
    assert ended.readings[0].times_s == [1.0]
    assert told[-1] == 2


def test_a_disk_that_fills_up_ends_the_run(run, monkeypatch):
    free = iter([5_000_000_000, 900_000_000])
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=next(free, 400_000_000)))
    ended, _ = run("import time; time.sleep(600)")
    assert ended.status is None
    assert "would fill the disk" in ended.problem
    assert "5.0 GB were free" in ended.problem


def test_a_request_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv(REQUEST_VARIABLE, "yes")
    with pytest.raises(ConfigError, match=r"MSPROBE_ESTIMATE holds no request of `msprobe estimate` .*; unset it"):
        PrecisionDebugger(dump_path=tmp_path)
    assert PrecisionDebugger._instance is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (10**15, "1.0 PB"), (10**19, "10,000.0 PB")],
)
def test_sizes(number, text):
    assert _size(number) == text
