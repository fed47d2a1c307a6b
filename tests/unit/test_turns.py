"""Threads that start, stop and step one debugger take turns, and none waits for ever."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from numpy_layers import Network
from numpy_rig import ArrayDebugger

from msprobe_core.capture import step_record

NUM_THREADS, NUM_CYCLES = 8, 12


@pytest.fixture
def debugger(tmp_path):
    debugger = ArrayDebugger(dump_path=tmp_path, level="L0")
    yield debugger
    debugger.close()


def in_time(work, *arguments):
    """Run something on a thread, and fail if it takes as long as a deadlock would."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *arguments).result(timeout=120)


def test_eight_threads_share_one_debugger(debugger, tmp_path, caplog):
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with caplog.at_level(logging.WARNING), ThreadPoolExecutor(NUM_THREADS) as pool:
            for cycle in [pool.submit(cycles, debugger) for _ in range(NUM_THREADS)]:
                cycle.result(timeout=300)
    finally:
        sys.setswitchinterval(switch)
    # A window that another thread ends at once has no calls.
    said = [record.getMessage() for record in caplog.records]
    assert [message for message in said if "nothing was recorded" not in message] == []
    assert not debugger._controller.session.is_finished
    assert debugger._controller.session.step_number == NUM_THREADS * NUM_CYCLES
    debugger.close()
    for dump in tmp_path.rglob("dump.json"):
        json.loads(dump.read_text())


def cycles(debugger):
    for _ in range(NUM_CYCLES):
        debugger.start(Network())
        debugger.stop()
        debugger.step()


def test_hooks_of_other_threads_do_not_wait_for_start_and_stop(debugger):
    with debugger._controller.lock:  # as in the middle of `stop`
        recorder = debugger._controller.session._recorder
        call = in_time(recorder.open_module, "Module", "", "Net")
        in_time(recorder.close, call)


def test_a_step_does_not_end_while_a_hook_of_another_thread_hands_over(debugger, monkeypatch):
    debugger.start(Network())
    session = debugger._controller.session
    recorder, closing = session._recorder, threading.Thread(target=session._output.close_unit)
    drain = recorder.drain_complete

    def end_the_step_and_drain():
        closing.start()
        closing.join(0.5)
        return drain()

    monkeypatch.setattr(recorder, "drain_complete", end_the_step_and_drain)
    monkeypatch.setattr(recorder.record, "on_backlog", session._output.write_backlog)
    monkeypatch.setattr(step_record, "BACKLOG_ENTRIES", 1)
    recorder.close(recorder.open_module("Module", "", "Net"))
    closing.join(120)
    session._output.queue.wait()  # raises what writing has raised


def test_a_handler_of_a_signal_may_stop_in_the_middle_of_a_step(debugger):
    before = signal.signal(signal.SIGUSR1, lambda *_: debugger.stop())
    try:
        with debugger._controller.lock:
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not debugger._controller.session.is_running


FORK_AND_EXIT = """
import os, sys, threading
from numpy_layers import Network
from numpy_rig import ArrayDebugger
from msprobe_core.capture import debugger as module
module._MAX_WAIT_AT_EXIT_S = 0.1
debugger = ArrayDebugger(dump_path=sys.argv[1], level="L0")
debugger.start(Network())
is_held = threading.Event()
def hold():
    with debugger._controller.lock:
        is_held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
is_held.wait()
child = os.fork()
if not child:
    debugger.close()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_neither_a_forked_child_nor_the_end_of_the_program_waits_for_a_thread_that_never_ends(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", FORK_AND_EXIT, str(tmp_path)], capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "7\n"), run.stderr
    assert list(tmp_path.rglob("dump.json")) == []  # it was closed, and nothing was in it
