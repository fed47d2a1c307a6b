"""What a recorded result and those of devices mean together."""

import numpy as np
import pytest
from numpy_replays import NumPyReplays

from msprobe_core import names
from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.ratio_rule import benchmark_ratio
from msprobe_core.api_check.three_way import check_devices, check_on, not_computed
from msprobe_core.api_check.three_way_codes import ThreeWayCode
from msprobe_core.api_check.verdict import OutputVerdict, PublishedColumns, Verdict
from msprobe_core.errors import ConfigError, ReplayError
from msprobe_core.findings import Finding, noted
from msprobe_core.model import ReplayTensor
from msprobe_core.replay.recorded import RecordedCall

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(16, 32)).astype(np.float32), RNG.normal(size=(32, 8)).astype(np.float32)
EXACT = (A.astype(np.float64) @ B).astype(np.float32)


def tensor(values, dtype=None):
    return ReplayTensor(values=values, dtype=dtype or values.dtype.name)


def matmul(recorded):
    entry = "Torch.matmul.0.forward"
    return RecordedCall(
        entry=entry, site=names.parse_entry(entry), args=[tensor(A), tensor(B)], outputs={"0": tensor(recorded)}
    )


def argmax(recorded):
    entry = "Torch.argmax.0.forward"
    return RecordedCall(
        entry=entry, site=names.parse_entry(entry), args=[tensor(A)], outputs={"0": tensor(np.asarray(recorded))}
    )


def found(call, framework, devices=("npu:0",), **rest):
    verdict = check_on(CallChecker(framework=framework), call, devices, **rest)
    sides = {output.side: output.verdict for output in verdict.outputs}
    return verdict, sides, [note.code for note in verdict.notes if isinstance(note.code, ThreeWayCode)]


def scaled(values):
    return values * np.float32(1.5)


def without_a_row(values):
    values = values.copy()
    values[3] = 0
    return values


def infinite(values):
    values = values.copy()
    values[0, 0] = np.inf
    return values


def same(values):
    return values


CASES = {
    "both right": (same, same, None),
    "the device is wrong": (same, scaled, ThreeWayCode.ONLY_FRESH),
    "the record is wrong": (scaled, same, ThreeWayCode.NOT_REPRODUCED),
    "both are wrong alike": (scaled, scaled, ThreeWayCode.WRONG_AGAIN),
    "both are nearly alike": (scaled, lambda values: scaled(values) * np.float32(1.01), ThreeWayCode.WRONG_AGAIN),
    "both are wrong otherwise": (scaled, without_a_row, ThreeWayCode.WRONG_OTHERWISE),
    "both are infinite": (infinite, infinite, ThreeWayCode.WRONG_AGAIN),
    "one is infinite": (infinite, scaled, ThreeWayCode.WRONG_OTHERWISE),
    "both are zero": (np.zeros_like, np.zeros_like, ThreeWayCode.WRONG_AGAIN),
    "one is zero": (np.zeros_like, scaled, ThreeWayCode.WRONG_OTHERWISE),
}


@pytest.mark.parametrize("name", CASES)
def test_which_side_is_wrong_has_a_meaning(name):
    record, fresh, code = CASES[name]
    verdict, sides, codes = found(matmul(record(EXACT)), NumPyReplays(faults={"npu:0": fresh}))
    assert codes == ([] if code is None else [code])
    expected = {"recorded": record is not same, "npu:0": fresh is not same}
    assert {side: each is Verdict.WRONG for side, each in sides.items()} == expected
    assert verdict.verdict is (Verdict.RIGHT if code is None else Verdict.WRONG)
    assert verdict.reason is None
    assert all(note.text for note in verdict.notes)


@pytest.mark.parametrize(
    ("recorded", "fresh", "code"),
    [
        (int(A.argmax()), lambda value: value + 1, ThreeWayCode.ONLY_FRESH),
        (3, lambda value: value * 0 + 3, ThreeWayCode.WRONG_AGAIN),
        (3, same, ThreeWayCode.NOT_REPRODUCED),
    ],
)
def test_integers_have_the_same_meanings(recorded, fresh, code):
    assert A.argmax() != 3
    assert found(argmax(recorded), NumPyReplays(faults={"npu:0": fresh}))[2] == [code]


def test_a_device_that_fails_leaves_the_record_alone():
    def fail(_):
        raise ReplayError("out of memory")

    verdict, sides, codes = found(matmul(EXACT), NumPyReplays(faults={"npu:0": fail}))
    assert (sides, codes) == ({"recorded": Verdict.RIGHT}, [ThreeWayCode.NOT_COMPUTED])
    assert "not computed on npu:0: out of memory" in [note.text for note in verdict.notes]


@pytest.mark.parametrize(
    ("record", "fresh", "verdict", "sides"),
    [
        (scaled, same, Verdict.CANNOT_TELL, ["npu:0"]),
        (scaled, scaled, Verdict.CANNOT_TELL, []),
        (same, scaled, Verdict.RIGHT, ["recorded"]),
        (same, same, Verdict.RIGHT, ["recorded", "npu:0"]),
    ],
)
def test_a_call_without_one_right_result_is_not_called_wrong(record, fresh, verdict, sides):
    """Nor right, because a device is: the recorded result could not be judged."""
    framework = NumPyReplays(faults={"npu:0": fresh}, is_unique=False)
    found_verdict, found_sides, codes = found(matmul(record(EXACT)), framework)
    assert (found_verdict.verdict, list(found_sides), codes) == (verdict, sides, [])
    assert (found_verdict.reason is None) == (verdict is Verdict.RIGHT)


def test_a_wrong_host_is_said_beside_a_wrong_device():
    assert ThreeWayCode.HOST_TOO in found(matmul(scaled(EXACT)), NumPyReplays(is_coarse=True))[2]
    assert ThreeWayCode.HOST_TOO not in found(matmul(scaled(EXACT)), NumPyReplays())[2]


def test_two_devices_are_compared_with_each_other():
    framework = NumPyReplays(faults={"npu:1": scaled})
    verdict, sides, codes = found(matmul(EXACT), framework, ["npu:0", "npu:1"])
    assert sides == {"recorded": Verdict.RIGHT, "npu:0": Verdict.RIGHT, "npu:1": Verdict.WRONG}
    assert codes == [ThreeWayCode.ONLY_FRESH, ThreeWayCode.DEVICES_DIFFER]
    assert verdict.notes[-1].fields == {"wrong": ["npu:1"], "right": ["npu:0"]}


def test_a_ratio_rule_gets_the_results_of_first_and_other():
    asked = []

    def rule(target, golden):
        asked.append((target.side, golden.side))
        return noted("the ratio")

    verdict, _, _ = found(matmul(EXACT), NumPyReplays(), ["npu:0", "npu:1"], ratio=rule)
    assert asked == [("npu:0", "npu:1")]
    assert verdict.notes[-1].text == "the ratio"
    found(matmul(EXACT), NumPyReplays(), ["npu:0"], ratio=rule)
    assert len(asked) == 1


def measured(side, dtype="float32", **columns):
    published = PublishedColumns(standard="benchmark", api_class="L0", **columns)
    return OutputVerdict(
        path="0", side=side, dtype=dtype, shape=(4,), verdict=Verdict.RIGHT, reason=noted("within"), error=0.0,
        rounding=0.0, condition=0.0, own_error=None, times=0.0, amplification=None, worst_index=None, bias=None,
        published=published,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "mine", "golden", "exceeded"),
    [
        ("float32", {"rmse": 3e-3}, {"rmse": 1e-3}, ["rmse"]),
        ("float32", {"rmse": 1.9e-3}, {"rmse": 1e-3}, []),
        # Below the minimum error of the dtype, 2^-14 or 2^-8, the golden metric counts as that.
        ("float32", {"rmse": 1e-4}, {"rmse": 1e-9}, []),
        ("bfloat16", {"rmse": 3e-3}, {"rmse": 1e-3}, []),
        ("float32", {"max_relative": 0.2, "mean_relative": 0.03}, {"max_relative": 0.01, "mean_relative": 0.01},
         ["max_relative", "mean_relative"]),
        ("float32", {"rmse": None}, {"rmse": 1e-3}, []),
        ("float32", {"rmse": float("inf")}, {"rmse": 1e-3}, ["rmse"]),
    ],
)  # fmt: skip
def test_the_published_ratios_of_two_devices(dtype, mine, golden, exceeded):
    found = benchmark_ratio(measured("npu:0", dtype, **mine), measured("cuda:0", dtype, **golden))
    assert [each.fields["metric"] for each in found.fields["metrics"]] == exceeded if exceeded else found is None
    if found is not None:
        assert (found.fields["device"], found.fields["golden"]) == ("npu:0", "cuda:0")
        assert "npu:0 is worse than cuda:0" in found.text


def test_stored_results_are_judged_like_those_of_a_device():
    call = matmul(EXACT)
    framework = NumPyReplays(faults={"npu:0": scaled})
    verdict = check_on(CallChecker(framework=framework), call, stored=[not_computed("npu:0", "it was busy")])
    assert [note.text for note in verdict.notes] == ["not computed on npu:0: it was busy"]
    assert verdict.verdict is Verdict.RIGHT


def test_what_cannot_be_checked_has_its_reason():
    entry = "Torch.sort.0.forward"
    call = RecordedCall(entry=entry, site=names.parse_entry(entry), outputs={"0": tensor(EXACT)})
    verdict, sides, _ = found(call, NumPyReplays())
    assert (verdict.verdict, sides) == (Verdict.CANNOT_TELL, {})
    assert isinstance(verdict.reason, Finding)


class HostOnly:
    def why_not_replayed(self, site):
        return None

    def replay(self, call, model=None):
        return NumPyReplays().replay(call, model)


@pytest.mark.parametrize(
    ("framework", "devices", "message"),
    [
        (NumPyReplays(), ["cuda:0"], "--device cuda:0: .* no such device on this machine; it sees npu:0, npu:1"),
        (NumPyReplays(present=()), ["npu"], "it sees none besides the host"),
        (NumPyReplays(), ["npu", "npu:0"], "the same device twice; give each once"),
        (HostOnly(), ["npu"], "--device npu: the plugin of this framework replays calls on the host only"),
    ],
)
def test_a_device_that_is_not_there_is_an_error_before_any_call(framework, devices, message):
    with pytest.raises(ConfigError, match=message):
        check_devices(framework, devices)


def test_without_devices_nothing_is_asked_of_the_framework():
    check_devices(HostOnly(), [])
    verdict, sides, codes = found(matmul(EXACT), HostOnly(), [])
    assert (verdict.verdict, sides, codes) == (Verdict.RIGHT, {"recorded": Verdict.RIGHT}, [])


def test_a_framework_without_devices_is_no_failure_of_the_check():
    verdict, sides, codes = found(matmul(EXACT), HostOnly())
    assert (verdict.verdict, sides, codes) == (
        Verdict.RIGHT, {"recorded": Verdict.RIGHT}, [ThreeWayCode.NOT_COMPUTED],
    )  # fmt: skip
