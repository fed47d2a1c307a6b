"""``msprobe run_overflow_check``: NaN and Inf that the inputs give, and those that a kernel makes."""

import json
import warnings
from contextlib import contextmanager
from inspect import signature

import numpy as np
import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch._framework import PyTorchFramework

from msprobe_core.api_check.overflow_codes import ReplayOverflowCode
from msprobe_core.api_check.overflow_replay import OverflowReplayer, OverflowState, overflow_entries
from msprobe_core.api_check.verdict import Inputs
from msprobe_core.cli import main
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.store.reading import read_dump

FRAMEWORK = PyTorchFramework()


def record(place, function, **config):
    """Record one function at level L1, and return the directory of the dump."""
    common = {"task": "tensor", "level": "L1", "dump_path": str(place)}
    path = place.with_suffix(".json")
    path.write_text(json.dumps(common | config))
    debugger = PrecisionDebugger(str(path))
    try:
        with debugger.start():
            function()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return unit


def verdicts(unit, api, **options):
    calls = RecordedCalls(read_dump(unit), 1 << 20)
    (entry,) = [entry for entry in overflow_entries(calls) if api in entry]
    return {each.side: each for each in OverflowReplayer(framework=FRAMEWORK, **options).check(calls, entry)}


def states(found):
    return {side: verdict.state for side, verdict in found.items()}


def status(arguments):
    with pytest.raises(SystemExit) as end:
        main(["run_overflow_check", *arguments])
    return end.value.code


RECORDED_AND_HOST = ("recorded", "cpu")
NORMAL = {
    "the exact result is infinite": (
        lambda: torch.log(torch.zeros(3)), "log", ReplayOverflowCode.EXACT, (0, 3)),
    "the dtype cannot hold it": (
        lambda: torch.mul(torch.tensor([300.0, 1.0]).half(), torch.tensor([300.0, 1.0]).half()), "mul",
        ReplayOverflowCode.RANGE, (0, 1)),
    "NaN came in": (
        lambda: torch.abs(torch.tensor([float("nan"), 1.0])), "abs", ReplayOverflowCode.CAME_IN, (1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMAL)
def test_what_the_inputs_give_is_normal(tmp_path, name, capsys):
    function, api, code, counts = NORMAL[name]
    unit = record(tmp_path / "run", function)
    found = verdicts(unit, f".{api}.")
    assert states(found) == dict.fromkeys(RECORDED_AND_HOST, OverflowState.NORMAL)
    assert {verdict.reason.code for verdict in found.values()} == {code}
    assert {(verdict.num_nan, verdict.num_inf) for verdict in found.values()} == {counts}
    assert status(["-api_info", str(unit / "dump.json")]) == 0
    assert "normal overflow" in capsys.readouterr().out


@contextmanager
def kernel(name, function):
    """Replace a kernel of PyTorch's."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced, which is what is wanted
        allowed = {"allow_override": True} if "allow_override" in signature(library.impl).parameters else {}
        library.impl(name, function, "CPU", **allowed)
    try:
        yield
    finally:
        library._destroy()


def test_what_a_kernel_makes_is_abnormal(tmp_path, capsys):
    def broken(x, dim, half_to_float):
        return torch.tensor([[float("inf"), float("nan"), 0.0], [0.0, 0.0, 0.0]])

    with kernel("_softmax", broken):
        unit = record(tmp_path / "run", lambda: torch.nn.functional.softmax(torch.ones(2, 3), -1))
    found = verdicts(unit, "softmax")
    assert states(found) == {"recorded": OverflowState.ABNORMAL, "cpu": OverflowState.FINITE}
    recorded = found["recorded"]
    assert (recorded.num_nan, recorded.num_inf, recorded.num_unexpected) == (1, 1, 2)
    assert recorded.reason.code is ReplayOverflowCode.UNEXPECTED
    assert status(["-api_info", str(unit), "--only_recorded", "-j"]) == 1
    said = capsys.readouterr()
    assert "abnormal overflow  Functional.softmax.0.forward  recorded: NaN 1, Inf 1" in said.out
    assert "-j has no effect" in said.err


def test_infinities_that_are_lost_are_abnormal(tmp_path):
    with kernel("log", lambda x: torch.tensor([-100.0, 0.0])):
        unit = record(tmp_path / "run", lambda: torch.log(torch.tensor([0.0, 1.0])))
    found = verdicts(unit, "log")
    assert found["recorded"].reason.code is ReplayOverflowCode.MISSING
    assert states(found) == {"recorded": OverflowState.ABNORMAL, "cpu": OverflowState.NORMAL}


def test_an_intermediate_overflow_of_the_host_too_is_normal_if_it_may_be(tmp_path):
    def ratio(values):
        return lambda: torch.hypot(*(torch.tensor(values) for _ in range(2)))

    def naive(call):
        found = FRAMEWORK.replay(call)
        path, value = next(iter(found.values.items()))
        if value.dtype == "float64":
            return found
        return type(found)(values={path: type(value)(values=np.full_like(value.values, np.inf), dtype=value.dtype)})

    class Naive:
        why_not_replayed = staticmethod(FRAMEWORK.why_not_replayed)

        def replay(self, call, model=None):
            return naive(call)

    for values, state in (([1e25], OverflowState.NORMAL), ([2.0], OverflowState.ABNORMAL)):
        unit = record(tmp_path / f"run{len(values)}{values[0]}", ratio(values))
        calls = RecordedCalls(read_dump(unit), 1 << 20)
        (entry,) = overflow_entries(calls)
        found = {each.side: each for each in OverflowReplayer(framework=Naive()).check(calls, entry)}
        assert states(found) == {"recorded": OverflowState.FINITE, "cpu": state}


def test_devices_are_judged_too(tmp_path):
    unit = record(tmp_path / "run", lambda: torch.exp(torch.ones(4)))

    def broken(call):
        found = FRAMEWORK.replay(call)
        for value in found.values.values():
            value.values[1] = np.inf
        return found

    found = verdicts(unit, "exp", devices={"npu:0": broken})
    assert states(found) == {
        "recorded": OverflowState.FINITE, "cpu": OverflowState.FINITE, "npu:0": OverflowState.ABNORMAL,
    }  # fmt: skip


def test_dumps_of_statistics_are_checked_with_random_inputs(tmp_path, capsys):
    unit = record(tmp_path / "run", lambda: torch.exp(torch.tensor([200.0, 300.0])), task="statistics")
    found = verdicts(unit, "exp")
    assert states(found) == {"cpu": OverflowState.NORMAL}
    assert found["cpu"].inputs is Inputs.RANDOM
    assert status(["-api_info", str(unit)]) == 0
    assert "cpu (random inputs): NaN 0, Inf 2" in capsys.readouterr().out


def test_backwards_are_checked(tmp_path):
    def run():
        x = torch.zeros(3, requires_grad=True)
        torch.sqrt(x).sum().backward()

    unit = record(tmp_path / "run", run)
    found = verdicts(unit, "sqrt.0.backward")
    assert states(found) == dict.fromkeys(RECORDED_AND_HOST, OverflowState.NORMAL)


def test_what_cannot_be_replayed(tmp_path, capsys):
    unit = record(tmp_path / "run", lambda: torch.nn.functional.dropout(torch.ones(30)))
    assert set(states(verdicts(unit, "dropout")).values()) == {OverflowState.CANNOT_TELL}
    assert status(["-api_info", str(unit)]) == 2
    assert "not judged: 1" in capsys.readouterr().out
    assert status(["-api_info", str(unit), "-d", "4095"]) == 2
    assert "--device 4095: the framework sees no such device" in capsys.readouterr().err
    assert status(["-api_info", str(tmp_path / "none")]) == 2
