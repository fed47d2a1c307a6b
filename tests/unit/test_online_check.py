"""The parts of the task `acc_check`: what is sampled, when, and how calls are held; without a framework."""

import json
from pathlib import Path

import numpy as np
import pytest

from msprobe_core.api_check.online.files import Totals, verdict_line, write_coverage
from msprobe_core.api_check.online.held_dump import HeldDump
from msprobe_core.api_check.online.kinds import CallSample, Kind, KindName
from msprobe_core.api_check.online.step_budget import StepBudget
from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError
from msprobe_core.findings import noted
from msprobe_core.model import Argument, Digest, Entry, Phase, RunHeader, TensorContent, TensorMeta, TensorValue
from msprobe_core.replay.recorded import RecordedCalls

# --- configuration ----------------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def make(**settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": "acc_check", **settings}))
        return path

    return make


def test_the_published_block_is_read(write):
    block = {"white_list": ["linear"], "black_list": [], "error_data_path": "./"}
    options = load_config(write(level="L1", acc_check=block)).options
    assert (options.white_list, options.error_data_path, options.budget, options.sample) == (
        ("linear",),
        "./",
        0.05,
        64,
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"level": "mix"}, "'acc_check' checks calls of APIs: take level L1, not mix"),
        ({"acc_check": {"budget": 0}}, "'budget' is 0.0, but must be more than 0"),
        ({"acc_check": {"sample": 0}}, "'sample' is 0, but must be at least 1"),
        ({"acc_check": {"list": []}}, "unknown field 'list'"),
    ],
)
def test_what_it_refuses(write, settings, said):
    with pytest.raises(ConfigError, match=said):
        load_config(write(**settings))


# --- the budget -------------------------------------------------------------------------------------------------


class Training:
    """Steps of a training on a clock of its own."""

    def __init__(self, share, *, step_s=1.0, recording_s=0.1, check_s=0.02):
        self.now = 0.0
        self.budget = StepBudget(share, lambda: self.now)
        self.step_s, self.recording_s, self.check_s = step_s, recording_s, check_s
        self.recorded = []
        self.num_calls = 0

    def run(self, num_steps, most=64):
        for number in range(num_steps):
            is_recorded = self.budget.wants(number)
            self.now += self.step_s + is_recorded * self.recording_s
            if is_recorded:
                self.recorded.append(number)
                with self.budget.checking():
                    for i in range(most):
                        if i and self.budget.left < self.check_s:
                            break
                        self.now += self.check_s
                        self.num_calls += 1
            self.budget.end_step(was_recorded=is_recorded)
        return self

    @property
    def spent(self):
        return self.recording_s * len(self.recorded) + self.check_s * self.num_calls


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize(("recording_s", "check_s"), [(0.001, 0.005), (0.1, 0.02), (2.0, 0.02), (0.1, 3.0)])
def test_the_share_is_kept_and_used(share, recording_s, check_s):
    training = Training(share, recording_s=recording_s, check_s=check_s).run(6000, most=1000)
    assert training.spent / training.now == pytest.approx(share, rel=0.2)


def test_ranks_record_the_same_steps():
    fast, slow = Training(0.05, recording_s=0.1).run(2000), Training(0.05, recording_s=1.0).run(2000)
    assert slow.budget.period > fast.budget.period
    late = {step for step in slow.recorded if step > 500}
    assert late
    assert all(step % slow.budget.period == 0 for step in late)
    assert slow.budget.period % fast.budget.period == 0


def test_the_first_step_is_recorded_and_one_call_is_checked_at_least():
    training = Training(0.001, check_s=100.0).run(3)
    assert (training.recorded, training.num_calls) == ([0], 1)


def test_a_share_of_one_or_more_records_all_steps():
    assert Training(1000.0).run(5).recorded == [0, 1, 2, 3, 4]


# --- the sample -------------------------------------------------------------------------------------------------


def tensor(shape, dtype="torch.float32", file_name=None):
    return TensorValue(TensorMeta("torch.Tensor", dtype, shape), Digest(), file_name)


def calls(api, number, shape, dtype="torch.float32"):
    """Return the entries of a call with one tensor and a result, and of its backward."""
    name = f"{api}.{number}"
    forward = Entry(name=f"{name}.forward", phase=Phase.FORWARD, inputs=[tensor(shape, dtype)], outputs=[tensor(shape)])
    backward = Entry(name=f"{name}.backward", phase=Phase.BACKWARD, inputs=[tensor(shape)], outputs=[tensor(shape)])
    return [forward, backward]


STEP = [
    *calls("Functional.relu", 0, (2, 3)), *calls("Functional.relu", 1, (2, 3)), *calls("Functional.relu", 2, (4,)),
    *calls("Torch.exp", 0, (2, 3)), *calls("Torch.exp", 1, (2, 3), "torch.bfloat16"), *calls("Torch.odd", 0, (2,)),
]  # fmt: skip


def make_sample(white=(), black=(), number=64, seed=0):
    return CallSample(
        white, black, number, seed, lambda site: "it is odd" if site.path == "odd" else None
    )  # fmt: skip


def run_step(sample, check=True, size_bytes=1 << 20):
    """Return the entries of a step whose calls are checked; checks cost nothing."""
    recorded = [entry for entry in STEP if entry.name in sample]
    taken = [entry for entry in recorded if sample.takes(entry.name, entry.inputs[0].meta)]
    kinds = sample.look_at(recorded)
    for entry in taken:
        kind = kinds[entry.name]
        if check and not kind.is_closed:
            verdict = CallVerdict(entry=entry.name, api="", phase=entry.phase, verdict=Verdict.RIGHT, seconds=0.01)
            kind.note(verdict, 0)
    sample.next_step(100.0, size_bytes, was_recorded=True)
    return [entry.name for entry in taken]


def test_every_kind_is_checked_once_before_one_is_checked_again():
    sample = make_sample(number=2)
    first = run_step(sample)
    assert first == ["Functional.relu.0.forward", "Functional.relu.0.backward", "Functional.relu.2.forward",
                     "Functional.relu.2.backward"]  # fmt: skip
    second = run_step(sample)
    assert {name.rpartition(".")[0] for name in second} == {"Torch.exp.0", "Torch.exp.1"}
    kinds = {kind.name: kind.num_checked for kind in sample.kinds.values()}
    assert len(kinds) == 10
    assert {number for name, number in kinds.items() if name.api != "Torch.odd"} == {1}
    assert kinds[KindName("Torch.exp", "backward", "bfloat16[2, 3] -> float32")] == 1


def test_calls_that_are_not_replayed_are_never_sampled_and_the_reason_is_known():
    sample = make_sample()
    assert not any("odd" in name for _ in range(3) for name in run_step(sample))
    (reason,) = {kind.why_not.text for kind in sample.kinds.values() if kind.name.api == "Torch.odd"}
    assert reason == "Torch.odd is not replayed: it is odd"


@pytest.mark.parametrize(
    ("white", "black", "apis"),
    [((), ("relu",), {"Torch.exp"}), (("relu",), (), {"Functional.relu"}), (("relu", "exp"), ("relu.2",), None)],
)
def test_lists(white, black, apis):
    found = {name.rpartition(".")[0] for name in run_step(make_sample(white, black))}
    if apis is None:
        assert found == {"Functional.relu.0", "Torch.exp.0", "Torch.exp.1"}
    else:
        assert {name.rpartition(".")[0] for name in found} == apis


def test_a_kind_that_cannot_be_judged_is_given_up():
    kind = Kind(name=KindName("Torch.exp", "forward", "float32[2]"))
    verdict = CallVerdict(entry="e", api="", phase=Phase.FORWARD, verdict=Verdict.CANNOT_TELL, reason=noted("why"))
    kind.note(verdict, 0)
    assert not kind.is_closed
    kind.note(verdict, 1)
    kind.note(verdict, 2)
    assert kind.is_closed
    assert kind.why_not.text == "why"


def test_the_same_seed_samples_the_same_calls():
    first, second, other = make_sample(seed=1, number=1), make_sample(seed=1, number=1), make_sample(seed=2, number=1)
    assert [run_step(first) for _ in range(12)] == [run_step(second) for _ in range(12)]
    assert [run_step(first) for _ in range(12)] != [run_step(other) for _ in range(12)]


def test_a_step_without_time_still_samples_one_call():
    sample = make_sample()
    run_step(sample, check=False)
    sample.next_step(-1.0, 1 << 20, was_recorded=True)
    assert len({name.rpartition(".")[0] for name in run_step(sample)}) == 1


def test_calls_beyond_the_memory_wait_for_another_step():
    sample = make_sample(number=2)
    run_step(sample, size_bytes=1)
    later = [run_step(sample, size_bytes=1) for _ in range(2)]
    assert [len({name.rpartition(".")[0] for name in names}) for names in later] == [1, 1]
    assert later[0] != later[1]


# --- held calls -------------------------------------------------------------------------------------------------


def content(values, dtype):
    return TensorContent(dtype, values.shape, memoryview(np.ascontiguousarray(values).view(np.uint8).reshape(-1)))


def test_held_entries_are_read_like_those_of_a_dump():
    x = np.array([[1.0, np.inf], [np.nan, -2.5]], np.float32)
    half = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2 in bfloat16
    copies = {"x": content(x, "float32"), "y": content(half, "bfloat16")}
    forward = Entry(
        name="Torch.add.0.forward", phase=Phase.FORWARD,
        inputs=[tensor(x.shape, file_name="x"), Argument("float", float("-inf")), [Argument("int", 3), None]],
        input_kwargs={"alpha": Argument("bool", True)}, outputs=[tensor((2,), "torch.bfloat16", "y")],
    )  # fmt: skip
    header = RunHeader(task="acc_check", level="L1", framework="pytorch")
    dump = HeldDump.of([forward], copies, lambda copy: copy, header=header, path=Path())
    call = RecordedCalls(dump, 100).read("Torch.add.0.forward")
    assert call.missing is None
    np.testing.assert_array_equal(call.args[0].values, x)
    assert (call.args[0].dtype, call.outputs["0"].dtype) == ("float32", "bfloat16")
    np.testing.assert_array_equal(call.outputs["0"].values, np.array([1.0, -2.0], np.float32))
    assert float(call.args[1].value) == float("-inf")
    assert call.args[2][0].value in (3, "3")
    assert call.kwargs["alpha"].value in (True, "True")


def test_a_call_without_its_copy_says_so():
    entry = Entry(name="Torch.exp.0.forward", phase=Phase.FORWARD, inputs=[tensor((2,))], outputs=[tensor((2,))])
    header = RunHeader(task="acc_check", level="L1", framework="pytorch")
    dump = HeldDump.of([entry], {}, lambda copy: copy, header=header, path=Path())
    assert RecordedCalls(dump, 100).read(entry.name).missing is not None


# --- files ------------------------------------------------------------------------------------------------------


def test_a_line_and_the_coverage_are_strict_json(tmp_path):
    kind = Kind(name=KindName("Torch.exp", "forward", "float32[2] -> float32"), num_seen=3)
    verdict = CallVerdict(entry="e", api="", phase=Phase.FORWARD, verdict=Verdict.CANNOT_TELL, reason=noted("why"))
    line = json.loads(json.dumps(verdict_line(verdict, kind, 4, 0)))
    assert (line["step"], line["call"], line["reason"], line["outputs"]) == (4, "e", "why", [])
    totals = Totals(
        budget=0.05, share=0.01, training_s=1.0, check_s=0.0, recording_s=0.0, num_steps=1, num_recorded=1, period=1,
        num_calls=0, verdicts={}, num_kinds=1, num_kinds_checked=0,
    )  # fmt: skip
    write_coverage(tmp_path / "coverage.json", totals, [kind])
    found = json.loads((tmp_path / "coverage.json").read_text())
    assert found["kinds"][0]["why_not"] == "it waits for a step in which the budget leaves time for it"
    assert (found["kinds"][0]["calls"], found["totals"]["budget"]) == (3, 0.05)
