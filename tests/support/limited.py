"""Limits for what may hang or fill the memory."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest


@contextmanager
def deadline(seconds=120):
    """Fail if the block takes longer: it waits for what never comes, or works without end."""

    def fail(_number, _frame):
        pytest.fail(f"still not done after {seconds} s")

    former = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def run_limited(program, *arguments, memory_bytes=1 << 30, seconds=300):
    """Run Python code in a process that may have so much memory and take so long; return what it has printed.

    Code in C, which a signal does not end, is ended too. The memory comes on top of what is mapped at the call of
    ``limit()``, a function that the program finds defined.
    """
    prologue = f"""
import resource
from pathlib import Path
def limit():
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + {memory_bytes}, -1))
"""
    done = subprocess.run(
        [sys.executable, "-c", prologue + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_without_privileges(program, *arguments, seconds=300):
    """Run Python code in a process whom permissions of files bind, also where the tests run as root."""

    def bind():
        if os.geteuid() == 0:
            for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; 24: PR_CAPBSET_DROP
                ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)

    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
        preexec_fn=bind,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def cpu_seconds(work, *arguments):
    """Return the processor time that a call takes, of two the shorter one."""
    found = []
    for _ in range(2):
        begin = time.process_time()
        work(*arguments)
        found.append(time.process_time() - begin)
    return min(found)


def num_calls(work):
    """Return how many functions a call enters, those in C too: what small work costs, on a busy machine as well."""
    found = 0

    def count(_frame, event, _argument):
        nonlocal found
        found += event in {"call", "c_call"}

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(former)
    return found


def grows_linearly(work, size, factor=8):
    """Whether work on a size ``factor`` times as large takes about so much longer, and not the square of it."""
    work(size)  # what is imported and cached is there
    return cpu_seconds(work, factor * size) < 3 * factor * max(cpu_seconds(work, size), 0.002)
