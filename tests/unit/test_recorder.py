"""From reported calls to entries: names, nesting, order, gradients early, late and twice."""

import gc
import random
import threading
import weakref

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework, ArrayReducer

from msprobe_core.capture.order import in_execution_order
from msprobe_core.capture.processors import StatisticsProcessor
from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.selection import Selection
from msprobe_core.config import TaskOptions
from msprobe_core.interception.stacks import StackCache
from msprobe_core.model import Entry, Phase


@pytest.fixture
def framework():
    return ArrayFramework()


@pytest.fixture
def make(framework):
    def make(*, stacks=None, expands_modules=False, **options):
        return Recorder(
            framework,
            StatisticsProcessor(),
            Selection(TaskOptions(**options)),
            stacks=stacks,
            tracks_parents=True,
            expands_modules=expands_modules,
            keep_tensor=None,
        )

    return make


@pytest.fixture
def recorder(make):
    return make()


def array(value=1.0, requires_grad=True):
    return Array(np.full(2, value), requires_grad)


def names(batch):
    return [entry.name for entry in batch.entries]


def api(recorder, name, *args, output=None, keep=True):
    call = recorder.open_api("Functional", name)
    recorder.record_inputs(call, args, {})
    recorder.record_outputs(call, output)
    recorder.close(call, keep=keep)
    return call


def with_gradients(recorder, call, args, output):
    slots_in, slots_out = recorder.input_gradients(call, args, {}), recorder.output_gradients(call, output)
    recorder.expect_gradients(call, len(slots_out), len(slots_in))
    return [slot for slot, _ in slots_out], [slot for slot, _ in slots_in]


def test_calls_are_counted_by_name_and_nested_by_module(recorder):
    outer = recorder.open_module("Module", "", "Net")
    inner = recorder.open_module("Module", "layers.0", "Linear")
    api(recorder, "linear", array())
    recorder.close(inner)
    api(recorder, "linear", array())
    recorder.close(outer)
    batch = recorder.drain()
    assert names(batch) == [
        "Functional.linear.0.forward", "Module.layers.0.Linear.forward.0", "Functional.linear.1.forward",
        "Module.Net.forward.0",
    ]  # fmt: skip
    assert [entry.sequence for entry in batch.entries] == [0, 1, 2, 3]
    assert batch.parents == {
        "Functional.linear.0.forward": "Module.layers.0.Linear.forward.0",
        "Functional.linear.1.forward": "Module.Net.forward.0",
        "Module.layers.0.Linear.forward.0": "Module.Net.forward.0",
        "Module.Net.forward.0": None,
    }


def test_indices_and_sequence_go_on_in_a_second_window_and_begin_again_in_a_new_step(recorder):
    api(recorder, "relu", array())
    first = recorder.drain()
    api(recorder, "relu", array())
    second = recorder.drain()
    recorder.next_step()
    api(recorder, "relu", array())
    third = recorder.drain()
    assert [names(batch) for batch in (first, second, third)] == [
        ["Functional.relu.0.forward"], ["Functional.relu.1.forward"], ["Functional.relu.0.forward"]
    ]  # fmt: skip
    assert [batch.entries[0].sequence for batch in (first, second, third)] == [0, 1, 0]


def test_a_call_that_is_not_kept_gives_its_number_back(recorder):
    api(recorder, "size", keep=False)
    api(recorder, "size", array())
    batch = recorder.drain()
    assert names(batch) == ["Functional.size.0.forward"]
    assert list(batch.parents) == ["Functional.size.0.forward"]


def test_a_call_that_an_exception_skipped_does_not_disturb_the_nesting(recorder):
    outer = recorder.open_module("Module", "a", "A")
    recorder.open_module("Module", "a.b", "B")  # raises, and is never closed
    recorder.close(outer)
    api(recorder, "relu", array())
    assert recorder.drain().parents["Functional.relu.0.forward"] is None


def test_threads_have_nestings_of_their_own(recorder):
    outer = recorder.open_module("Module", "a", "A")
    worker = threading.Thread(target=lambda: api(recorder, "relu", array()))
    worker.start()
    worker.join()
    recorder.close(outer)
    assert recorder.drain().parents["Functional.relu.0.forward"] is None


def test_a_tensor_is_read_for_each_record_as_it_is_then(recorder):
    tensor = array(1.0)
    api(recorder, "relu", tensor, output=tensor)
    tensor.values[...] = 5.0  # without a new version, as a kernel outside of the framework does
    api(recorder, "gelu", tensor)
    first, second = recorder.drain().entries
    assert [first.inputs[0].digest.stats.max, first.outputs[0].digest.stats.max] == [1.0, 1.0]
    assert second.inputs[0].digest.stats.max == 5.0


def test_memory_that_has_not_been_set_is_described_and_not_read(recorder):
    unset, tensor = array(1.0), array(2.0)
    call = recorder.open_api("Tensor", "copy_")
    recorder.record_inputs(call, [unset, tensor], {"out": [unset]}, [unset])
    recorder.record_outputs(call, unset)
    recorder.close(call)
    (entry,) = recorder.drain().entries
    found = [entry.inputs[0], entry.inputs[1], entry.input_kwargs["out"][0], entry.outputs[0]]
    assert [value.digest.stats.max for value in found] == [None, 2.0, None, 1.0]
    assert found[0].meta.shape == (2,)


def test_gradients_stand_where_their_tensors_were(recorder):
    args, output = ([array(), array(requires_grad=False)], 3, array()), (array(), array())
    call = api(recorder, "mix", *args, output=output)
    out, inside = with_gradients(recorder, call, args, output)
    assert (len(out), len(inside)) == (2, 2)
    recorder.record_gradient(call, out[1], array(7.0))
    recorder.record_gradient(call, inside[1], array(8.0))
    backward = recorder.drain().entries[1]
    assert (backward.name, backward.phase) == ("Functional.mix.0.backward", Phase.BACKWARD)
    assert backward.inputs[0].value is None
    assert backward.inputs[1].value.digest.stats.max == 7.0
    assert backward.outputs[0][0].value is None
    assert backward.outputs[1] is None
    assert backward.outputs[2].value.digest.stats.max == 8.0


def test_trailing_places_without_a_gradient_are_dropped(recorder):
    args = (array(), array(requires_grad=False), 3)
    call = api(recorder, "mix", *args, output=array())
    _, inside = with_gradients(recorder, call, args, array())
    recorder.record_gradient(call, inside[0], array(1.0))
    backward = recorder.drain().entries[1]
    assert len(backward.outputs) == 1
    assert backward.inputs == []


def test_a_call_without_any_gradient_has_no_backward_entry(recorder):
    call = api(recorder, "mix", array(), output=array())
    with_gradients(recorder, call, (array(),), array())
    assert names(recorder.drain()) == ["Functional.mix.0.forward"]


def test_a_gradient_that_comes_twice_or_late_is_said_once(recorder, caplog):
    call = api(recorder, "mix", array(), output=array())
    [out], [inside] = with_gradients(recorder, call, (array(),), array())
    recorder.record_gradient(call, out, array(1.0))
    recorder.record_gradient(call, out, array(2.0))
    backward = recorder.drain().entries[1]
    assert backward.inputs[0].value.digest.stats.max == 1.0
    recorder.record_gradient(call, inside, array(3.0))
    assert recorder.drain().entries == []
    assert caplog.text.count("came a second time in one backward pass or after its step was over") == 1


def test_each_backward_pass_has_an_entry_of_its_own(recorder, caplog):
    outer = recorder.open_module("Module", "a", "A")
    call = api(recorder, "mix", array(), {"deep": [array(), array(requires_grad=False)]}, output=array())
    recorder.close(outer)
    args = (array(requires_grad=False), {"deep": [array()]}, array())
    outs, ins = with_gradients(recorder, call, args, (array(), array()))
    given = [*outs, *ins]
    for i, slot in enumerate(given[:-1]):  # the last place is dropped from its entry, and not from the others
        recorder.record_gradient(call, slot, array(float(i)), 7)
    first = recorder.drain()
    for number in (12, 9):  # whatever numbers a framework gives, in whatever order
        recorder.record_gradient(call, given[0], array(10.0 + number), number)
    recorder.record_gradient(call, given[-1], array(5.0), 9)
    recorder.record_gradient(call, given[-2], array(6.0), 7)  # of the first, which is written
    later = recorder.drain()
    assert names(first)[-1] == "Functional.mix.0.backward"
    assert names(later) == ["Functional.mix-pass1.0.backward", "Functional.mix-pass2.0.backward"]
    assert [entry.parent for entry in later.entries] == ["Module.a.A-pass1.backward.0", "Module.a.A-pass2.backward.0"]
    assert [later.parents[name] for name in names(later)] == [entry.parent for entry in later.entries]
    values = [[slot.value.digest.stats.max for slot in entry.inputs] for entry in later.entries]
    assert values == [[22.0], [19.0]]
    assert later.entries[0].outputs == []
    outputs = later.entries[1].outputs
    assert outputs[0] is None
    assert outputs[1]["deep"][0].value is None  # where no gradient came
    assert outputs[2].value.digest.stats.max == 5.0
    assert "Functional.mix.0.backward: a gradient came a second time in one backward pass" in caplog.text


def test_a_module_that_a_pass_has_not_come_to_yet_is_known_by_the_number_that_it_will_have(recorder):
    outer = recorder.open_module("Module", "a", "A")
    call = api(recorder, "mix", array(), output=array())
    recorder.close(outer)
    [out], _ = with_gradients(recorder, call, (array(),), array())
    [around], _ = with_gradients(recorder, outer, (array(),), array())
    for backward_pass in (1, 2):  # the module is reached by the first pass and by the third
        recorder.record_gradient(call, out, array(), backward_pass)
        if backward_pass == 1:
            recorder.record_gradient(outer, around, array(), backward_pass)
    recorder.record_gradient(call, out, array(), 3)
    recorder.record_gradient(outer, around, array(), 3)
    found = {entry.name: entry.parent for entry in recorder.drain().entries if entry.phase is Phase.BACKWARD}
    assert found == {
        "Functional.mix.0.backward": "Module.a.A.backward.0", "Module.a.A.backward.0": None,
        "Functional.mix-pass1.0.backward": "Module.a.A-pass1.backward.0",
        "Functional.mix-pass2.0.backward": "Module.a.A-pass2.backward.0", "Module.a.A-pass2.backward.0": None,
    }  # fmt: skip


def test_a_sum_that_arrives_after_the_next_pass_has_begun_belongs_to_its_own_pass(recorder):
    call = api(recorder, "mix", array(), output=array())
    [out], [inside] = with_gradients(recorder, call, (array(),), array())
    for backward_pass in (1, 2, 3):
        recorder.record_gradient(call, out, array(float(backward_pass)), backward_pass)
        if backward_pass > 1:
            recorder.record_gradient(call, inside, array(10.0 + backward_pass - 1), backward_pass - 1)
    entries = recorder.drain().entries[1:]
    assert {entry.name: [slot.value.digest.stats.max for slot in entry.outputs] for entry in entries} == {
        "Functional.mix.0.backward": [11.0], "Functional.mix-pass1.0.backward": [12.0],
        "Functional.mix-pass2.0.backward": [],
    }  # fmt: skip


def test_a_pass_whose_entry_is_written_is_late(recorder, caplog):
    call = api(recorder, "mix", array(), output=array())
    [out], [inside] = with_gradients(recorder, call, (array(),), array())
    for backward_pass in (1, 2):
        recorder.record_gradient(call, out, array(), backward_pass)
    recorder.drain()
    recorder.record_gradient(call, inside, array(), 2)
    assert recorder.drain().entries == []
    assert "Functional.mix-pass1.0.backward: a gradient came a second time" in caplog.text
    recorder.record_gradient(call, inside, array(), 3)
    assert names(recorder.drain()) == ["Functional.mix-pass2.0.backward"]


def test_what_is_written_of_later_passes_is_forgotten(recorder):
    call = api(recorder, "mix", array(), output=array())
    [out], [inside] = with_gradients(recorder, call, (array(),), array())
    for backward_pass in range(5):
        for slot in (out, inside):
            recorder.record_gradient(call, slot, array(), backward_pass)
        recorder.drain_complete()
        assert not recorder._backwards._later


def test_a_gradient_of_the_step_before_is_not_taken(recorder, caplog):
    call = api(recorder, "mix", array(), output=array())
    [out], _ = with_gradients(recorder, call, (array(),), array())
    recorder.next_step()
    recorder.record_gradient(call, out, array(1.0))
    assert recorder.drain().entries == []
    assert "Functional.mix.0.backward" in caplog.text


def test_parameter_gradients_of_micro_batches_are_counted(recorder):
    for value in (1.0, 2.0):
        recorder.record_parameter_gradient("Module.a.Linear", "weight", array(value))
        recorder.record_parameter_gradient("Module.a.Linear", "bias", array(value))
    first = recorder.drain()
    recorder.record_parameter_gradient("Module.a.Linear", "weight", array(3.0))
    entries = [*first.entries, *recorder.drain().entries]
    assert [entry.name for entry in entries] == [f"Module.a.Linear.parameters_grad.{i}" for i in range(3)]
    assert [entry.parameters["weight"].digest.stats.max for entry in entries] == [1.0, 2.0, 3.0]
    assert list(entries[0].parameters) == ["weight", "bias"]


def test_a_tensor_that_cannot_be_read_is_said_and_the_rest_recorded(recorder, monkeypatch, caplog):
    def fail(_reducer, _tensor, _digest):
        raise RuntimeError("device lost")

    monkeypatch.setattr(ArrayReducer, "statistics", fail)
    api(recorder, "relu", array(), 3)
    api(recorder, "relu", array(), 3)
    entries = recorder.drain().entries
    for entry in entries:
        tensor, number = entry.inputs
        assert (tensor.meta.shape, tensor.digest.stats.max, number.value) == ((2,), None, 3)
    assert caplog.text.count("device lost") == 1
    assert "Functional.relu.0.forward input 0: not recorded" in caplog.text
    assert recorder.reader.num_failures == 2


def test_a_shut_recorder_takes_no_gradient(recorder, caplog):
    call = api(recorder, "mix", array(), output=array())
    [out], _ = with_gradients(recorder, call, (array(),), array())
    recorder.shut()
    recorder.record_gradient(call, out, array(1.0))
    recorder.record_parameter_gradient("Module.a.Linear", "weight", array(1.0))
    assert names(recorder.drain()) == ["Functional.mix.0.forward"]


def test_data_mode_leaves_parts_out(make):
    recorder = make(data_mode=("forward", "output"))
    call = api(recorder, "relu", array(), output=array())
    assert not call.wants_gradients
    [entry] = recorder.drain().entries
    assert (entry.inputs, entry.input_kwargs, len(entry.outputs)) == (None, None, 1)


def test_a_listed_module_brings_what_is_inside(make):
    recorder = make(list=("layers.1",), expands_modules=True)
    for path in ("layers.0", "layers.1"):
        module = recorder.open_module("Module", path, "Linear")
        api(recorder, "linear", array())
        recorder.close(module)
    assert names(recorder.drain()) == ["Functional.linear.1.forward", "Module.layers.1.Linear.forward.0"]


def test_stacks_begin_at_the_users_frame(make):
    recorder = make(stacks=StackCache())
    for _ in range(2):
        api(recorder, "relu", array())
    first, second = recorder.drain().entries
    assert first.stack is second.stack  # formatted once
    assert f"File {__file__}, line " in first.stack[0]
    assert first.stack[0].endswith('\n call = recorder.open_api("Functional", name)')
    assert "in test_stacks_begin_at_the_users_frame" in first.stack[1]


def test_a_stack_keeps_nothing_of_what_runs_alive():
    class Large:
        pass

    stacks = StackCache()

    def work():
        large = Large()
        stacks.capture()  # of a place that is new, and of one that is known
        return weakref.ref(large)

    gc.disable()  # which takes up what keeps itself, some time
    try:
        assert [one() for one in [work() for _ in range(2)]] == [None, None]
    finally:
        gc.enable()


def test_a_backward_that_completes_early_comes_after_its_children():
    """A module whose input takes no gradient has all of its own before anything inside has run."""

    def entry(name, parent):
        return Entry(name=name, phase=Phase.BACKWARD, parent=parent)

    outer, inner, leaf = entry("outer", None), entry("inner", "hidden"), entry("leaf", "inner")
    later = entry("later", None)
    ordered = in_execution_order([(1, outer), (2, inner), (3, leaf), (4, later)], {"hidden": "outer"})
    assert [item.name for item in ordered] == ["leaf", "inner", "outer", "later"]


def test_what_is_complete_can_be_written_early(recorder):
    outer = recorder.open_module("Module", "", "Net")
    args, output = (array(),), array()
    call = api(recorder, "linear", *args, output=output)
    out, inside = with_gradients(recorder, call, args, output)
    waiting = api(recorder, "relu", *args, output=output)
    waiting_out, _ = with_gradients(recorder, waiting, args, output)
    enclosing_out, _ = with_gradients(recorder, outer, (), output)
    first = recorder.drain_complete()
    assert names(first) == ["Functional.linear.0.forward", "Functional.relu.0.forward"]
    assert first.parents == dict.fromkeys(names(first), "Module.Net.forward.0")
    recorder.close(outer)
    recorder.record_gradient(outer, enclosing_out[0], array())
    recorder.record_gradient(waiting, waiting_out[0], array())
    recorder.record_gradient(call, out[0], array())
    recorder.record_gradient(call, inside[0], array())
    recorder.record_parameter_gradient("Module.a.Linear", "weight", array())
    second = recorder.drain_complete()
    assert names(second) == ["Module.Net.forward.0"]  # all others follow a call that waits
    third = recorder.drain()
    assert names(third) == [
        "Functional.relu.0.backward", "Functional.linear.0.backward", "Module.Net.backward.0",
        "Module.a.Linear.parameters_grad.0",
    ]  # fmt: skip
    batches = [first, second, third]
    assert [entry.sequence for batch in batches for entry in batch.entries] == list(range(7))
    written = [name for batch in batches for name in batch.parents]
    assert len(written) == len(set(written)) == 6  # gradients of parameters have none
    assert recorder.drain().entries == []


def test_a_module_is_not_written_before_a_call_inside_that_waits_for_gradients(recorder):
    """Of `BatchNorm` in MindSpore four of five results never get one, and the window may last long."""
    x, output = array(), array()
    outer = recorder.open_module("Module", "", "Net")
    inner = recorder.open_module("Module", "norm", "Norm")
    call = api(recorder, "norm", x, output=output)
    out, _ = with_gradients(recorder, call, (x,), output)
    norm_out, norm_in = with_gradients(recorder, inner, (x,), output)
    recorder.close(inner)
    outer_out, outer_in = with_gradients(recorder, outer, (x,), output)
    recorder.close(outer)
    recorder.record_gradient(call, out[0], array())
    for of_call, slots in ((inner, [*norm_out, *norm_in]), (outer, [*outer_out, *outer_in])):
        for slot in slots:
            recorder.record_gradient(of_call, slot, array())
    early = recorder.drain_complete()
    assert [entry.phase for entry in early.entries] == [Phase.FORWARD] * 3
    assert names(recorder.drain()) == [
        "Functional.norm.0.backward", "Module.norm.Norm.backward.0", "Module.Net.backward.0"
    ]  # fmt: skip


def test_what_waited_is_written_early_once_its_thread_has_begun_the_next_forward(recorder):
    def micro_batch(number):
        outer = recorder.open_module("Module", "", "Net")
        call = api(recorder, "norm", array(), output=(array(), array()))
        (used, unused), _ = with_gradients(recorder, call, (), (array(), array()))
        (out,), _ = with_gradients(recorder, outer, (), array())
        recorder.close(outer)
        recorder.record_gradient(outer, out, array(), number)
        recorder.record_gradient(call, used, array(), number)
        return call, unused

    call, unused = micro_batch(0)
    assert [entry.phase for entry in recorder.drain_complete().entries] == [Phase.FORWARD] * 2
    micro_batch(1)
    assert names(recorder.drain_complete()) == [
        "Functional.norm.0.backward", "Module.Net.backward.0", "Functional.norm.1.forward", "Module.Net.forward.1"
    ]  # fmt: skip
    recorder.record_gradient(call, unused, array(), 2)
    assert names(recorder.drain()) == [
        "Functional.norm.1.backward", "Module.Net.backward.1", "Functional.norm-pass1.0.backward"
    ]  # fmt: skip


def test_gradients_of_parameters_are_written_once_all_expected_ones_exist(recorder):
    recorder.expect_parameter_gradients("Module.a.Linear", ["weight", "bias"])
    for name in ("weight", "bias", "weight"):
        recorder.record_parameter_gradient("Module.a.Linear", name, array())
        recorder.record_parameter_gradient("Module.b.Linear", name, array())
    assert names(recorder.drain_complete()) == ["Module.a.Linear.parameters_grad.0"]
    assert names(recorder.drain()) == [
        "Module.b.Linear.parameters_grad.0", "Module.a.Linear.parameters_grad.1", "Module.b.Linear.parameters_grad.1"
    ]  # fmt: skip


def _nested_modules(recorder, draw, depth=0):
    """Run the forward of a random module; return its slots and those of everything inside, innermost last."""
    module = recorder.open_module("Module", f"m{draw.randrange(3)}", "Net")
    inside = []
    for _ in range(draw.randrange(4)):
        if depth < 3 and draw.random() < 0.5:
            inside += _nested_modules(recorder, draw, depth + 1)
        else:
            call = api(recorder, "linear", array(), output=array())
            inside.append((call, *with_gradients(recorder, call, (array(), array()), (array(), array()))))
    args = draw.choice([(), (array(),)])
    slots = with_gradients(recorder, module, args, array())
    recorder.close(module)
    return [*inside, (module, *slots)]


def _random_window(recorder, seed, drained):
    """Record micro-batches whose backward passes leave out gradients, come late and run through graphs again."""
    draw = random.Random(seed)
    for number in range(4):
        calls = _nested_modules(recorder, draw)
        drained()
        for backward_pass in (number, number + 100)[: draw.randrange(1, 3)]:
            for call, outs, ins in reversed(calls):
                reported = [slot for slot in [*outs, *ins] if draw.random() < 0.8]
                for slot in reported if draw.random() < 0.7 else reported[::-1]:
                    recorder.record_gradient(call, slot, array(), backward_pass)
                    drained()
                if draw.random() < 0.3:
                    for name in draw.choice([["weight"], ["weight", "bias"]]):
                        recorder.record_parameter_gradient(call.stem or "Module.m0.Net", name, array())
                    drained()


@pytest.mark.parametrize("seed", range(30))
def test_the_order_of_entries_does_not_depend_on_when_they_are_written(make, seed):
    recorders = [make(), make()]
    for recorder in recorders:
        for number in range(3):
            recorder.expect_parameter_gradients(f"Module.m{number}.Net", ["weight", "bias"])
    early, late = recorders
    batches = []
    _random_window(early, seed, lambda: batches.append(early.drain_complete()))
    assert any(batch.entries for batch in batches)
    batches.append(early.drain())
    _random_window(late, seed, lambda: None)
    at_once = late.drain()
    assert [entry for batch in batches for entry in batch.entries] == at_once.entries
    assert [item for batch in batches for item in batch.parents.items()] == list(at_once.parents.items())


def test_entries_that_wait_for_one_that_is_never_complete_are_bounded(recorder, monkeypatch):
    from msprobe_core.capture import step_record as module

    monkeypatch.setattr(module, "MAX_WAITING", 5)
    recorder.record._max_waiting = 5
    monkeypatch.setattr(module, "BACKLOG_SECONDS", float("inf"))
    written = []
    recorder.record.on_backlog = lambda: written.append(names(recorder.drain_complete()))
    recorder.record_parameter_gradient("Module.a.Linear", "weight", array())
    for _ in range(12):
        api(recorder, "relu", array())
    assert written == [[f"Functional.relu.{i}.forward" for i in numbers] for numbers in (range(5), range(5, 10))]
    assert names(recorder.drain())[0] == "Module.a.Linear.parameters_grad.0"


def test_nothing_is_written_early_while_results_are_on_a_device(recorder, monkeypatch):
    monkeypatch.setattr(ArrayReducer, "is_complete", False)
    api(recorder, "relu", array())
    assert recorder.drain_complete().entries == []
    assert names(recorder.drain()) == ["Functional.relu.0.forward"]


def test_a_backlog_is_offered_by_number_and_by_time(recorder, monkeypatch):
    from msprobe_core.capture import step_record as module

    offered, now = [], [100.0]
    monkeypatch.setattr(module, "BACKLOG_ENTRIES", 3)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    recorder.record._last_offer = now[0]
    recorder.record.on_backlog = lambda: offered.append(len(recorder.drain_complete().entries))
    for _ in range(7):
        api(recorder, "relu", array())
    assert offered == [3, 3]
    now[0] += 1.0
    api(recorder, "relu", array())
    assert offered == [3, 3, 2]
