"""Ctrl-C at any moment: native code may lose the exception, the command line does not."""

import ctypes
import signal
import subprocess
import sys
import threading
import time

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.run import RunOptions, compare_run
from msprobe_core.errors import DumpError
from msprobe_core.execute.kept import num_kept
from msprobe_core.hookspecs import hookimpl
from msprobe_core.interrupts import Ended, Interrupts, raise_if_interrupted
from msprobe_core.plugins import Plugin, registry
from msprobe_core.report.files import ResultFiles, TableOptions, time_stamp

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ENTRY = "Functional.linear.0.forward"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals")


@pytest.fixture(autouse=True)
def as_a_terminal_starts_programs():
    """``nohup`` and job schedulers have signals ignored, and so they are for what they start."""
    former = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS[:1]}
    former |= {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS[1:]}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@ctypes.CFUNCTYPE(None)
def lose_ctrl_c():
    """Called as native code calls a function of Python's, whose exceptions it can only complain of."""
    signal.raise_signal(signal.SIGINT)


def lose_ctrl_c_and_go_on(seconds):
    lose_ctrl_c()
    time.sleep(seconds)


def drop(number=signal.SIGINT):
    """As native code does that tries one thing after the other."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_raises_at_once(number):
    with pytest.raises(KeyboardInterrupt) as raised, Interrupts() as interrupts:
        signal.raise_signal(number)
    assert raised.type is (KeyboardInterrupt if number == signal.SIGINT else Ended)
    assert interrupts.number == number


def test_what_native_code_complains_of_is_raised_again(capsys):
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Interrupts():
        lose_ctrl_c_and_go_on(60)
    assert time.monotonic() - begin < 30
    assert capsys.readouterr() == ("", "")


def test_what_native_code_drops_is_raised_before_a_result_is_kept():
    with Interrupts() as interrupts:
        raise_if_interrupted()
        drop(signal.SIGTERM)
        for _ in range(2):
            with pytest.raises(Ended):
                raise_if_interrupted()
    assert interrupts.number == signal.SIGTERM
    raise_if_interrupted()


def test_what_comes_at_the_very_end_is_kept_and_raises_nothing():
    with Interrupts() as interrupts:
        lose_ctrl_c()
    assert interrupts.number == signal.SIGINT
    time.sleep(0.05)  # in which it would be raised again


def test_handlers_are_those_of_before_afterwards():
    def handlers():
        return [sys.unraisablehook, *map(signal.getsignal, SIGNALS)]

    before = handlers()
    with Interrupts():
        assert not [handler for handler in handlers() if handler in before]
    assert handlers() == before


def test_other_failures_of_native_code_are_complained_of_as_ever(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    @ctypes.CFUNCTYPE(None)
    def fail():
        raise ValueError("other")

    with Interrupts():
        fail()
    assert [unraisable.exc_type for unraisable in seen] == [ValueError]


def test_threads_get_no_signals_and_need_nothing():
    numbers = []

    def work():
        with Interrupts() as interrupts:
            raise_if_interrupted()
        numbers.append(interrupts.number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert numbers == [None]


def test_an_ignored_signal_stays_ignored():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            raise_if_interrupted()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert interrupts.number is None
    finally:
        signal.signal(signal.SIGHUP, former)


WAITING = """
import os, signal, threading, time
from msprobe_core.interrupts import Interrupts, raise_if_interrupted
done = threading.Event()
with Interrupts() as interrupts:
    import polars  # whose handler has a lock go on
    raise_if_interrupted()
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    threading.Timer(60, done.set).start()
    try:
        done.wait()
    except KeyboardInterrupt:
        print("waited" if done.is_set() else "raised", flush=True)
        os._exit(0)
"""


def test_who_waits_for_others_need_not_wait_after_ctrl_c():
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True)
    assert done.stdout == "raised\n", done.stderr


# --- comparing --------------------------------------------------------------------------------------------------


class _Losing:
    """A reader of the files with a certain suffix, in which Ctrl-C is lost."""

    name = "losing"

    def __init__(self, error):
        self.error = error

    def recognises(self, path):
        return path.name == "rank0"

    def read(self, path):
        from msprobe_core.store.json_reader import read_json_dump

        drop()
        if self.error is not None:
            raise self.error
        return read_json_dump(path)


@pytest.fixture
def lose(tmp_path, request):
    for side in ("target", "golden"):
        for rank in range(2):
            write_dump(tmp_path / side / f"rank{rank}", {ENTRY: api(tensor([1.0]), output=tensor([1.0]))})
    plugins = registry()

    class Module:
        """Offers the reader."""

        @staticmethod
        @hookimpl(tryfirst=True)
        def msprobe_register_readers():
            return [_Losing(request.param)]

    plugins.add(Plugin("losing", None, "test"), lambda: Module)
    yield tmp_path
    plugins.manager.unregister(name="losing")


@pytest.mark.parametrize(
    "lose", [None, TypeError("'<unprintable str object>'"), DumpError("cannot be read")], indirect=True
)
def test_a_pair_in_which_ctrl_c_was_lost_is_neither_compared_nor_failed(lose):
    writer = ResultFiles(lose / "out", TableOptions(stamp=time_stamp()))
    with pytest.raises(KeyboardInterrupt), Interrupts():
        compare_run(lose / "target", lose / "golden", writer, run=RunOptions(executor="inline"))
    assert num_kept(lose / "out") == 0
    with pytest.raises(KeyboardInterrupt), Interrupts():
        compare_dumps(lose / "target/rank0", lose / "golden/rank0")
