"""A plugin that raises, exits or returns nothing, wherever it is called: it is named once, and the training goes on."""

import logging
import signal
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from dumps import api, tensor, write_dump
from numpy_layers import ArrayFramework, ArrayReducer, Network, train_step

from msprobe_core import PrecisionDebugger
from msprobe_core.capture.processors import msprobe_register_processors
from msprobe_core.errors import DumpError, PluginError, StoreError
from msprobe_core.guard import plugin_call
from msprobe_core.hookspecs import hookimpl
from msprobe_core.interrupts import is_of_a_signal
from msprobe_core.model import EndState
from msprobe_core.plugins import Plugin, registry
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.json_writer import JsonWriterFactory
from msprobe_core.store.reading import read_dump

NUM_STEPS = 3


class CustomExit(BaseException):
    """An exception of a library, derived from the base class of those that programs should not catch."""


def raise_error(*_args, **_kwargs):
    raise RuntimeError("planted")


def leave(*_args, **_kwargs):
    sys.exit(3)


def raise_custom(*_args, **_kwargs):
    raise CustomExit("planted")


def interrupt(*_args, **_kwargs):
    raise KeyboardInterrupt


def give_nothing(*_args, **_kwargs):
    return None


WAYS = {"raises": raise_error, "exits": leave, "raises another": raise_custom}


def train(debugger, model, num_steps=NUM_STEPS):
    losses = []
    for step in range(num_steps):
        debugger.start(model)
        losses.append(train_step(model, step))
        debugger.stop()
        debugger.step()
    debugger.close()
    return losses


BARE = [train_step(model, step) for model in [Network()] for step in range(NUM_STEPS)]


@pytest.fixture
def make(tmp_path):
    made = []

    def make(framework, **settings):
        class Debugger(PrecisionDebugger):
            framework_name = "hostile"

            def _framework(self, model):
                return framework

        made.append(Debugger(**{"dump_path": tmp_path / "run", "level": "mix", **settings}))
        return made[-1]

    yield make
    for debugger in made:
        debugger.close()


@pytest.fixture
def said(caplog):
    def said():
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    return said


def finished(work):
    """Run ``work`` on a thread, as it may hang, and return what it returned or raised."""
    results = []

    def run():
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    return results[0]


# --- writers ------------------------------------------------------------------------------------------------------


class HostileFactory:
    name = "hostile"

    def __init__(self, method, way):
        self._method, self._way = method, way

    def check(self):
        return None

    def open(self, directory, header):
        if self._method == "open":
            return self._way()
        writer = JsonWriterFactory().open(directory, header)
        own = getattr(writer, self._method)

        def fail(*args):
            if self._method == "close":  # or its files stay open
                own(*args)
            self._way(*args)

        setattr(writer, self._method, fail)
        return writer


@pytest.fixture
def hostile_writer():
    """Register a plugin that offers a writer which fails."""
    registry()

    def register(method, way):
        @hookimpl(specname="msprobe_register_writers")
        def offer():
            return [HostileFactory(method, way)]

        registry().add(
            Plugin("tables", "1.0", "msprobe-tables"), lambda: SimpleNamespace(msprobe_register_writers=offer)
        )

    yield register
    registry().manager.unregister(name="tables")
    del registry()._plugins["tables"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["open", "write", "end", "close"])
def test_a_writer(make, said, hostile_writer, method, way):
    hostile_writer(method, WAYS[way])
    assert finished(lambda: train(make(ArrayFramework(), writer="hostile"), Network())) == BARE
    (message,) = said()
    assert (
        "recording ends at step 0, training goes on: the writer 'hostile' of the plugin 'tables' failed at" in message
    )


@pytest.mark.parametrize("method", ["write", "close"])
def test_a_keyboard_interrupt_on_the_writing_thread_does_not_interrupt(make, said, hostile_writer, method):
    hostile_writer(method, interrupt)
    assert finished(lambda: train(make(ArrayFramework(), writer="hostile"), Network())) == BARE
    assert len(said()) == 1


def test_a_writer_that_is_none(make, said, hostile_writer):
    hostile_writer("open", give_nothing)
    assert train(make(ArrayFramework(), writer="hostile"), Network()) == BARE
    (message,) = said()
    assert (
        "the writer 'hostile' of the plugin 'tables' returned None from open, which is no Writer: it lacks close, write"
        in message
    )


def test_what_was_recorded_before_says_why_it_ends(make, tmp_path, hostile_writer):
    calls = []

    def fail_later(batch):
        calls.append(batch)
        if len(calls) > 1:
            sys.exit(3)

    hostile_writer("write", fail_later)
    debugger, model = make(ArrayFramework(), writer="hostile"), Network()
    for _ in range(2):
        debugger.start(model)
        train_step(model)
        debugger.stop()
    (path,) = (tmp_path / "run" / "step0").glob("*/dump.json")
    ending = read_json_dump(path).ending if calls and path.stat().st_size > 300 else None
    assert ending is None or ending.state is EndState.EARLY
    assert "SystemExit: 3" in path.read_text()


# --- frameworks ---------------------------------------------------------------------------------------------------


def framework_with(method, way):
    return type("Hostile", (ArrayFramework,), {method: way})()


ATTACHMENT = ("attach", "rank", "is_model")
VALUES = ("describe", "is_tensor", "takes_gradient", "describe_argument")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ATTACHMENT)
def test_a_framework_that_fails_at_a_window_ends_the_recording(make, said, method, way):
    assert train(make(framework_with(method, WAYS[way])), Network()) == BARE
    (message,) = said()
    assert "recording ends at step 0, training goes on: " in message


@pytest.mark.parametrize("way", [*WAYS, "returns nothing"])
@pytest.mark.parametrize("method", ["detach", "settle", "release"])
def test_an_attachment(make, said, method, way):
    class Framework(ArrayFramework):
        def attach(self, models, options, recorder):
            attachment = super().attach(models, options, recorder)
            own = getattr(attachment, method)

            def fail():
                own()
                return WAYS.get(way, give_nothing)()

            setattr(attachment, method, fail)
            return attachment

    assert train(make(Framework()), Network()) == BARE
    if way == "returns nothing":
        assert said() == []
        return
    (message,) = said()
    assert "the framework 'numpy' failed at" in message


def test_an_attachment_that_is_none(make, said):
    assert train(make(framework_with("attach", give_nothing)), Network()) == BARE
    (message,) = said()
    assert "the framework 'numpy' returned None from attaching" in message


@pytest.mark.parametrize("way", [*WAYS, "returns nothing"])
@pytest.mark.parametrize("method", VALUES)
def test_a_framework_that_fails_at_a_value_loses_that(make, tmp_path, method, way):
    debugger = make(framework_with(method, WAYS.get(way, give_nothing)), task="tensor")
    assert train(debugger, Network(), 1) == BARE[:1]
    (path,) = (tmp_path / "run" / "step0").glob("*/dump.json")
    assert read_json_dump(path).ending.state is EndState.COMPLETE


@pytest.mark.parametrize("value", [None, {"shape": [1]}, "a tensor", 42], ids=["none", "mapping", "text", "number"])
@pytest.mark.parametrize("method", ["describe", "describe_argument"])
def test_a_description_of_another_type_is_said_at_the_first_value(make, said, tmp_path, method, value):
    class Framework(ArrayFramework):
        def is_tensor(self, given):
            return method == "describe" and super().is_tensor(given)

    setattr(Framework, method, lambda _self, _given: value)
    assert train(make(Framework(), task="tensor"), Network(), 1) == BARE[:1]
    (path,) = (tmp_path / "run" / "step0").glob("*/dump.json")
    assert read_json_dump(path).ending.state is EndState.COMPLETE
    is_said = any(f"from {method}, which is no" in text for text in said())
    assert is_said == (method == "describe" or value is not None)  # there, none is what it may return


@pytest.mark.parametrize("way", [*WAYS, "returns nothing"])
@pytest.mark.parametrize("method", ["snapshot", "save"])
def test_a_framework_that_cannot_keep_tensors(make, tmp_path, method, way):
    debugger = make(framework_with(method, WAYS.get(way, give_nothing)), task="tensor")
    losses = finished(lambda: train(debugger, Network(), 1))
    assert losses == BARE[:1]
    (path,) = (tmp_path / "run" / "step0").glob("*/dump.json")
    assert read_json_dump(path).ending.state is EndState.COMPLETE


@pytest.mark.parametrize("method", ["statistics", "collect"])
def test_a_reducer(make, tmp_path, method):
    class Framework(ArrayFramework):
        def reducer(self):
            return type("Hostile", (ArrayReducer,), {method: raise_error})()

    assert train(make(Framework()), Network(), 1) == BARE[:1]


# --- processors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*WAYS, "returns nothing"])
def test_a_processor(make, tmp_path, said, way):
    (first, *_) = msprobe_register_processors()
    hostile = type("Hostile", (type(first),), {"name": "hostile", "reduce": WAYS.get(way, give_nothing)})()

    @hookimpl(specname="msprobe_register_processors")
    def offer():
        return [hostile]

    registry().add(Plugin("sums", "1.0", "msprobe-sums"), lambda: SimpleNamespace(msprobe_register_processors=offer))
    try:
        (tmp_path / "c.json").write_text('{"statistics": {"summary_mode": "hostile"}}')
        debugger = make(ArrayFramework(), config_path=tmp_path / "c.json")
        assert train(debugger, Network(), 1) == BARE[:1]
    finally:
        registry().manager.unregister(name="sums")
        del registry()._plugins["sums"]
    (path,) = (tmp_path / "run" / "step0").glob("*/dump.json")
    assert read_json_dump(path).ending.state is EndState.COMPLETE
    if way != "returns nothing":
        assert "the processor 'hostile' of the plugin 'sums' failed at reduce (" in said()[0]


# --- the guard ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), CustomExit("y"), GeneratorExit()])
def test_whatever_is_raised_names_the_plugin(error):
    with (
        pytest.raises(PluginError, match=r"^the reader 'x' failed at reading \("),
        plugin_call("the reader 'x'", "reading"),
    ):
        raise error


def test_errors_of_ours_and_ctrl_c_pass():
    for error in (StoreError("disk"), KeyboardInterrupt()):
        with pytest.raises(type(error)), plugin_call("the reader 'x'", "reading"):
            raise error


class Preempted(Exception):  # noqa: N818
    pass


class Handler:
    def __call__(self, _number, _frame):
        raise Preempted


@contextmanager
def handled(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def raise_preempted(_number, _frame):
    raise Preempted


def deep(_number, _frame):
    raise_preempted(0, None)


@pytest.mark.parametrize(
    "handler", [raise_preempted, deep, Handler(), Handler().__call__], ids=["function", "deep", "object", "method"]
)
def test_what_a_handler_of_the_program_raises_reaches_it(make, handler, said):
    """A signal that ends the program while our code runs still reaches the program."""

    class Framework(ArrayFramework):
        def attach(self, models, options, recorder):
            signal.raise_signal(signal.SIGUSR1)
            return super().attach(models, options, recorder)

    with handled(handler):
        with pytest.raises(Preempted) as raised:
            make(Framework()).start(Network())
        assert is_of_a_signal(raised.value)
    assert said() == []


def test_an_error_of_others_is_of_no_signal():
    with handled(raise_preempted), pytest.raises(RuntimeError) as raised:
        raise_error()
    assert not is_of_a_signal(raised.value)


# --- readers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*WAYS, "returns nothing"])
@pytest.mark.parametrize("method", ["recognises", "read"])
def test_a_reader(tmp_path, said, method, way):
    """One that fails at looking is passed over, one that fails at reading is an error that names it."""
    path = write_dump(tmp_path, {"Tensor.add.0.forward": api(tensor(1.0), output=tensor(2.0))})
    reader = SimpleNamespace(name="hostile", recognises=lambda _path: True, read=give_nothing)
    setattr(reader, method, WAYS.get(way, give_nothing))

    @hookimpl(specname="msprobe_register_readers")
    def offer():
        return [reader]

    registry().add(Plugin("files", "1.0", "msprobe-files"), lambda: SimpleNamespace(msprobe_register_readers=offer))
    try:
        if method == "recognises":
            assert read_dump(path).frame.height == 2
            assert len(said()) == (way != "returns nothing")
            assert all("the reader 'hostile' of the plugin 'files' failed at recognises" in text for text in said())
            return
        with pytest.raises(DumpError, match=r"the reader 'hostile' of the plugin 'files' (failed at|returned None)"):
            read_dump(path)
    finally:
        registry().manager.unregister(name="files")
        del registry()._plugins["files"]
