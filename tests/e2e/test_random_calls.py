"""Recorded random functions of PyTorch: healthy ones are right in every dtype, and planted ones are not."""

import json
import runpy
import sys

import pytest
import torch
from bare_scripts import run_bare
from msprobe.pytorch import PrecisionDebugger
from torch.nn import functional

from msprobe_core.api_check.random_calls import check_random
from msprobe_core.api_check.reproducer import MOST_LINES, write_reproducer
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.errors import ReplayError
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.store.reading import read_dump


def recorded(place, function):
    """Return the calls of a dump, and the checks of those that are checked."""
    common = {"task": "tensor", "level": "L1", "dump_path": str(place), "risk_level": "ALL"}
    path = place.with_suffix(".json")
    path.write_text(json.dumps(common))
    debugger = PrecisionDebugger(str(path))
    try:
        with debugger.start():
            function()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    calls = RecordedCalls(read_dump(unit), 1 << 22)
    found = {entry: check_random(calls.read(entry)) for entry in calls.entries}
    return calls, {entry: verdict for entry, verdict in found.items() if verdict is not None}


def record(place, function):
    return recorded(place, function)[1]


def write(calls, entry, verdict, place):
    framework = replaying_framework("pytorch")
    return write_reproducer(calls.read(entry), verdict, framework, place, command="msprobe acc_check")


def run_here(path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return ended.value.code


def healthy(dtype):
    def run():
        torch.manual_seed(4)
        x = torch.randn(40, 50, 20).to(dtype).requires_grad_()
        functional.dropout(x, 0.1).float().pow(2).sum().backward()
        functional.dropout(x, p=0.3, training=True)
        functional.dropout(x.detach().clone(), 0.3, True, True)
        functional.dropout(x, 0.5, training=False)
        functional.alpha_dropout(x, 0.2, training=True)
        functional.dropout2d(torch.randn(150, 100, 2, 2).to(dtype), 0.4)
        torch.nn.Dropout(0.2)(x)
        torch.native_dropout(x, 0.25, True)
        torch.rand(200, 100, dtype=dtype)
        torch.randn(200, 100, dtype=dtype)
        torch.rand_like(x)
        torch.zeros(200, 100, dtype=dtype).uniform_(-3, 5)
        torch.zeros(200, 100, dtype=dtype).normal_(2, 0.1)
        torch.zeros(200, 100, dtype=dtype).exponential_(3.0)
        torch.zeros(200, 100, dtype=dtype).bernoulli_(0.3)

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_healthy_functions_are_right(tmp_path, dtype, monkeypatch, capsys):
    calls, found = recorded(tmp_path / "run", healthy(dtype))
    for entry, verdict in found.items():
        path = write(calls, entry, verdict, tmp_path / "scripts")
        assert run_here(path, monkeypatch) == 0, entry
        said = capsys.readouterr()
        assert (said.out.count(": right"), said.err) == (2, ""), entry
    wrong = {
        entry: verdict.worst.reason.text for entry, verdict in found.items() if verdict.verdict is not Verdict.RIGHT
    }
    assert not wrong
    for name in ("dropout.0.forward", "dropout.0.backward", "dropout.3.", "alpha_dropout", "dropout2d",
                 "native_dropout", "rand.", "randn.", "rand_like", "uniform_", "normal_", "exponential_",
                 "bernoulli_"):  # fmt: skip
        assert any(name in entry for entry in found), name


def test_dropout_of_another_probability_is_wrong(tmp_path, monkeypatch):
    torch.manual_seed(0)
    dropout = torch._VF.dropout
    monkeypatch.setattr(torch._VF, "dropout", lambda x, p, training: dropout(x, p / 2, training))
    found = record(tmp_path / "run", lambda: functional.dropout(torch.randn(200, 100), 0.2))
    assert {entry: verdict.verdict for entry, verdict in found.items()} == {
        "Torch.randn.0.forward": Verdict.RIGHT, "Functional.dropout.0.forward": Verdict.WRONG,
    }  # fmt: skip


WRONG = {
    "Functional.dropout.0.forward": lambda result: result[0].fill_(0),
    "Functional.dropout2d.0.forward": lambda result: result[:, :50, 0].fill_(0),
    "Functional.alpha_dropout.0.forward": lambda result: result.mul_(1.02),
    "Tensor.normal_.0.forward": lambda result: result.mul_(1.1),
    "Tensor.exponential_.0.forward": lambda result: result[0].neg_(),
    "Tensor.bernoulli_.0.forward": lambda result: result[:20].fill_(1),
    "Torch.rand.0.forward": lambda result: result[:, 1::2].copy_(result[:, ::2]),
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("drawn") / "run", healthy(torch.float32))


@pytest.mark.parametrize("entry", WRONG)
def test_scripts_of_wrong_draws(entry, drawn, tmp_path, monkeypatch, capsys):
    calls, _ = drawn
    call = calls.read(entry)
    WRONG[entry](torch.from_numpy(call.outputs["0"].values))
    verdict = check_random(call)
    assert verdict.verdict is Verdict.WRONG
    path = write_reproducer(call, verdict, replaying_framework("pytorch"), tmp_path, command="msprobe acc_check")
    assert run_here(path, monkeypatch) == 1
    said = capsys.readouterr().out.splitlines()
    assert ["WRONG" in line for line in said] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["Functional.dropout.0.backward", "Torch.randn.2.forward"])
def test_scripts_in_a_bare_interpreter(entry, drawn, tmp_path):
    calls, found = drawn
    path = write(calls, entry, found[entry], tmp_path)
    text = path.read_text()
    tests = text[text.index("\ndef binomial_bound") : text.index("\ndef call(")]
    assert text.count("\n") - tests.count("\n") <= MOST_LINES
    bare = run_bare(path)
    assert (bare.returncode, bare.stderr, bare.stdout.count(": right")) == (0, "", 2)


def test_draws_that_have_no_script(tmp_path):
    def run():
        functional.dropout(torch.ones(50, 100), 0.3)
        torch.randint(3, (200, 100))

    calls, found = recorded(tmp_path / "run", run)
    assert found["Functional.dropout.0.forward"].verdict is Verdict.CANNOT_TELL
    with pytest.raises(ReplayError, match="5,000 elements"):
        write(calls, "Functional.dropout.0.forward", found["Functional.dropout.0.forward"], tmp_path)
    with pytest.raises(ReplayError, match="random"):
        write(calls, "Torch.randint.0.forward", found["Functional.dropout.0.forward"], tmp_path)
