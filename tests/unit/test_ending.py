"""The mark at a dump's end: there once all of a step is, gone while more is recorded, and never left by a kill."""

import json
import os
import subprocess
import sys

import pytest
from dumps import api, tensor, write_dump
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger

from msprobe_core.errors import StoreError
from msprobe_core.findings import Finding
from msprobe_core.model import Ending, EndState
from msprobe_core.store.append_file import GrowingFile
from msprobe_core.store.convert import convert
from msprobe_core.store.ending import ending_of, ending_of_all, sentence
from msprobe_core.store.reading import read_dump
from msprobe_core.store.reading_codes import DamageCode

WRITERS = ["json", "arrow"]
NUM_CALLS = 12
"""Of one training step of the network at level mix."""


@pytest.fixture(params=WRITERS)
def writer(request):
    if request.param == "arrow":
        pytest.importorskip("pyarrow")
    return request.param


@pytest.fixture
def make(tmp_path, writer):
    made = []

    def make(**settings):
        debugger = ArrayDebugger(**{"dump_path": tmp_path / "run", "level": "mix", "writer": writer, **settings})
        made.append(debugger)
        return debugger

    yield make
    for debugger in made:
        debugger.close()


def unit_of(tmp_path, step=0):
    (unit,) = (tmp_path / "run" / f"step{step}").iterdir()
    return unit


def ending(tmp_path, step=0):
    return ending_of(read_dump(unit_of(tmp_path, step)))


def states_of(tmp_path):
    found = ending(tmp_path)
    return found.state, found.num_calls


class TestWhatTheMarkSays:
    def test_a_step_that_was_ended_is_complete(self, make, tmp_path):
        debugger, model = make(), Network()
        with debugger.start(model):
            train_step(model)
        debugger.step()
        assert states_of(tmp_path) == (EndState.COMPLETE, NUM_CALLS)
        assert ending(tmp_path).is_whole

    def test_the_mark_goes_while_more_is_recorded(self, make, tmp_path):
        debugger, model = make(), Network()
        with debugger.start(model):
            train_step(model)
        assert states_of(tmp_path) == (EndState.STOPPED, NUM_CALLS)
        debugger.start(model)
        debugger._controller.session._output.queue.wait()
        assert states_of(tmp_path) == (EndState.EARLY, NUM_CALLS)
        train_step(model)
        debugger.stop()
        assert states_of(tmp_path) == (EndState.STOPPED, 2 * NUM_CALLS)
        debugger.close()
        assert states_of(tmp_path) == (EndState.COMPLETE, 2 * NUM_CALLS)

    def test_calls_are_counted_as_readers_count_them(self, make, tmp_path):
        debugger, model = make(), Network()
        with debugger.start(model):
            train_step(model)
        debugger.close()
        dump = read_dump(unit_of(tmp_path))
        assert dump.ending.num_calls == dump.frame["entry"].n_unique() == NUM_CALLS

    def test_an_error_that_leaves_the_window_is_said(self, make, tmp_path):
        debugger, model = make(), Network()
        model.fails = True
        with pytest.raises(ArithmeticError), debugger.start(model):
            train_step(model)
        model.fails = False
        debugger.step()
        found = ending(tmp_path)
        assert (found.state, found.reason) == (EndState.EARLY, "ArithmeticError has left the window")
        with debugger.start(model):
            train_step(model)
        debugger.step()
        assert ending(tmp_path, 1).state is EndState.COMPLETE

    def test_a_structure_without_values_counts_its_calls(self, make, tmp_path):
        debugger, model = make(task="structure"), Network()
        with debugger.start(model):
            train_step(model)
        debugger.close()
        assert states_of(tmp_path) == (EndState.COMPLETE, 6)  # gradients are not recorded

    def test_saved_values_have_an_end_mark(self, tmp_path):
        debugger = ArrayDebugger(dump_path=tmp_path / "run", level="debug")
        debugger.save(1.5, "x", save_backward=False)
        debugger._controller.session._output.queue.wait()
        assert states_of(tmp_path) == (EndState.EARLY, 1)
        debugger.step()
        assert states_of(tmp_path) == (EndState.COMPLETE, 1)
        debugger.close()

    def test_recording_that_was_given_up_says_why(self, make, tmp_path, monkeypatch):
        debugger, model = make(), Network()
        debugger.start(model)
        train_step(model)
        debugger.stop()
        debugger.start(model)

        def fail(self, _content):
            raise StoreError(f"{self._path}: cannot be written (No space left on device)")

        with monkeypatch.context() as context:
            context.setattr(GrowingFile, "append", fail)
            train_step(model)
            debugger.stop()
        found = ending(tmp_path)
        assert (found.state, found.num_calls) == (EndState.EARLY, NUM_CALLS)
        assert "recording was given up: " in found.reason
        assert "No space left on device" in found.reason


PROGRAM = """
import os, signal, sys
sys.path[:0] = {paths!r}
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger
debugger, model = ArrayDebugger(dump_path={run!r}, level="mix", writer={writer!r}), Network()
{body}
"""
TRAIN = "debugger.start(model); train_step(model); "


@pytest.fixture
def run_program(tmp_path, writer):
    def run(body):
        program = PROGRAM.format(paths=sys.path, run=str(tmp_path / "run"), writer=writer, body=body)
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    return run


class TestHowProgramsEnd:
    @pytest.mark.parametrize(
        ("body", "state", "reason"),
        [
            (TRAIN + "os.kill(os.getpid(), signal.SIGKILL)", EndState.EARLY, ""),
            (TRAIN + "debugger.stop(); os.kill(os.getpid(), signal.SIGKILL)", EndState.STOPPED, ""),
            (TRAIN + "debugger.stop(); debugger.start(model); debugger._controller.session._output.queue.wait()"
             "; os._exit(1)", EndState.EARLY, ""),
            (TRAIN + "debugger.stop()", EndState.COMPLETE, ""),
            (TRAIN + "debugger.stop(); 1 / 0", EndState.STOPPED, ""),
            (TRAIN + "1 / 0", EndState.EARLY, "the program ended with ZeroDivisionError"),
            (TRAIN, EndState.STOPPED, ""),
        ],
        ids=["killed inside", "killed between", "killed in a second", "ends", "fails between", "fails inside", "open"],
    )  # fmt: skip
    def test_the_mark_says_what_is_known(self, tmp_path, run_program, body, state, reason):
        done = run_program(body)
        found = ending(tmp_path) if state is not EndState.EARLY or reason else None
        if found is None:  # killed: nothing may have been written, but nothing is called whole
            unit = unit_of(tmp_path)
            text = b"".join(path.read_bytes() for path in unit.iterdir() if path.stem == "dump")
            assert b'"complete"' not in text
            assert b'"stopped"' not in text
        else:
            assert (found.state, found.reason) == (state, reason), done.stderr

    def test_a_window_that_was_opened_for_nothing_leaves_no_step(self, tmp_path, run_program):
        run_program(TRAIN + "debugger.step()")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["step0"]
        assert ending(tmp_path).state is EndState.COMPLETE


class TestWhatReadersMakeOfIt:
    @pytest.fixture
    def unit(self, make, tmp_path):
        debugger, model = make(), Network()
        with debugger.start(model):
            train_step(model)
        debugger.close()
        return unit_of(tmp_path)

    def test_every_cut_shows(self, unit, writer):
        """Wherever the file ends, it is not called whole, and what was read of it is counted."""
        path = unit / f"dump.{writer}"
        content = path.read_bytes()
        cuts = sorted({*range(len(content) - 400, len(content) - 1, 7), len(content) // 2, len(content) * 3 // 4})
        seen = set()
        for cut in cuts:
            path.write_bytes(content[:cut])
            try:
                found = ending_of(read_dump(unit))
            except ValueError:  # cut off before the first whole record or batch
                continue
            assert not found.is_whole, cut
            assert found.num_calls <= NUM_CALLS
            seen.add(found.num_calls)
        assert NUM_CALLS in seen  # all that was flushed before the cut is there

    def test_records_that_are_gone_show(self, unit, writer):
        if writer == "arrow":
            pytest.skip("made in the text of dump.json")
        path = unit / "dump.json"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(lines[:3] + lines[4:]))
        found = ending_of(read_dump(unit))
        assert (found.state, found.num_calls, found.why) == (
            EndState.DAMAGED, NUM_CALLS - 1, Finding(DamageCode.CALLS_LOST, fields={"count": 1, "total": NUM_CALLS}),
        )  # fmt: skip

    def test_it_survives_being_converted(self, unit, writer, tmp_path):
        pytest.importorskip("pyarrow")
        header, before = read_dump(unit).header, ending_of(read_dump(unit))
        done = convert(unit, tmp_path / "there")
        back = convert(tmp_path / "there", tmp_path / "back")
        assert [done.incomplete, back.incomplete] == [[], []]
        for place in ("there", "back"):
            dump = read_dump(tmp_path / place)
            assert (dump.header.run, dump.ending) == (header.run, before)

    def test_half_a_dump_stays_half_a_dump(self, unit, writer, tmp_path):
        pytest.importorskip("pyarrow")
        path = unit / f"dump.{writer}"
        content = path.read_bytes()
        path.write_bytes(content[: -20 if writer == "arrow" else -300])
        done = convert(unit, tmp_path / "there")
        assert [line.startswith("step 0 of process ") for line in done.incomplete] == [True]
        assert not ending_of(read_dump(tmp_path / "there")).is_whole


def test_dumps_of_other_tools_are_judged_as_ever(tmp_path):
    path = write_dump(tmp_path, {"Tensor.add.0.forward": api(tensor(1.0), output=tensor(2.0))})
    assert ending_of(read_dump(path)) == Ending(state=EndState.UNKNOWN, num_calls=1)
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b',\n"Tensor.add.1.forward": {"input_args": [')
    found = ending_of(read_dump(path))
    assert found.state is EndState.DAMAGED
    assert found.why == Finding(DamageCode.RECORDS, fields={"count": 1})


@pytest.mark.parametrize(
    "mark", [3, [], {}, {"state": "half"}, {"state": "unknown"}, {"state": "complete", "calls": -1}, {"calls": 1}, None]
)
def test_an_invalid_end_mark_counts_as_missing(tmp_path, mark):
    run = {"job": "", "host": "h", "process": 1, "started": 1.0}
    path = write_dump(tmp_path, {"Tensor.add.0.forward": api(tensor(1.0), output=tensor(2.0))}, run=run, end=mark)
    assert ending_of(read_dump(path)).state is EndState.EARLY
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": 3}))
    assert ending_of(read_dump(path)).state is EndState.UNKNOWN


def test_words(tmp_path):
    unit = tmp_path / "step3" / "rank1" / "dump.json"
    early = Ending(state=EndState.EARLY, num_calls=1)
    assert sentence(unit, early).text == "step 3 of rank 1 ended early, after 1 call"
    given_up = Ending(state=EndState.EARLY, num_calls=1234, reason="disk full")
    assert sentence(unit.parent, given_up).text == "step 3 of rank 1 ended early, after 1,234 calls (disk full)"
    damaged = Ending(state=EndState.DAMAGED, num_calls=2, reason="1 of 3 calls are lost")
    assert (
        sentence(tmp_path / "step3", damaged).text == "step 3 is damaged (1 of 3 calls are lost): 2 calls could be read"
    )
    assert sentence(tmp_path / "x.json", early).text == f"{tmp_path / 'x.json'} ended early, after 1 call"
    assert sentence(tmp_path / "step0" / "proc12", early).text.startswith("step 0 of process 12 ended")


class Part:
    def __init__(self, path, state):
        self.path = path
        self.ending = Ending(state=state, num_calls=2)


def test_together_they_are_as_whole_as_the_least_of_them(tmp_path):
    complete, early = EndState.COMPLETE, EndState.EARLY
    parts = [Part(tmp_path / "step0" / f"rank{i}", state) for i, state in enumerate([complete, early, complete])]
    found = ending_of_all(parts)
    assert (found.state, found.num_calls) == (early, 6)
    assert found.why == Finding(DamageCode.PARTS, fields={"parts": [sentence(parts[1].path, parts[1].ending)]})
    assert found.reason == "step 0 of rank 1 ended early, after 2 calls"
    assert ending_of_all(parts[:1]) == parts[0].ending
    assert ending_of_all([]) == Ending()


def test_a_child_of_fork_leaves_its_parents_mark_alone(tmp_path):
    debugger, model = ArrayDebugger(dump_path=tmp_path / "run", level="mix"), Network()
    debugger.start(model)
    train_step(model)
    child = os.fork()
    if not child:
        try:
            debugger.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    debugger._controller.session._output.queue.wait()
    assert not (unit_of(tmp_path) / "dump.json").read_text().count('"end"')
    debugger.stop()
    debugger.step()
    debugger.close()
    assert states_of(tmp_path) == (EndState.COMPLETE, NUM_CALLS)
