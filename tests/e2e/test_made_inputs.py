"""Dumps of statistics: calls are checked with made inputs, which accuse a kernel of this machine at most."""

import json
import warnings
from contextlib import contextmanager
from inspect import signature

import pytest
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn
from torch.nn import functional

from msprobe_core.api_check.dump_check import CheckOptions, check_dump
from msprobe_core.api_check.verdict import Inputs, Verdict

MADE = [Inputs.RANDOM, Inputs.SYNTHETIC]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(100, 32)
        self.norm = nn.LayerNorm(32)
        self.conv = nn.Conv1d(32, 16, 3)
        self.head = nn.Linear(16, 100)

    def forward(self, tokens):
        hidden = functional.gelu(self.norm(self.embedding(tokens)))
        hidden = functional.softmax(hidden @ hidden.transpose(1, 2), -1) @ hidden
        return self.head(torch.relu(self.conv(hidden.transpose(1, 2))).transpose(1, 2))


def record(place, dtype, mode):
    path = place.with_suffix(".json")
    config = {"task": "statistics", "level": "L1", "dump_path": str(place), "statistics": {"summary_mode": mode}}
    path.write_text(json.dumps(config))
    debugger, model = PrecisionDebugger(str(path)), Net().to(dtype)
    tokens = torch.randint(0, 100, (4, 22))
    try:
        with debugger.start(model):
            found = model(tokens).flatten(0, 1)
            functional.cross_entropy(found.float(), tokens[:, :20].flatten()).backward()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return unit


@contextmanager
def scaled_gelu():
    def gelu(x, *, approximate="none"):
        wide = x.double()
        return (wide * (1 + torch.erf(wide / 2**0.5)) / 2 * (1 if x.dtype == torch.float64 else 1.1)).to(x.dtype)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced, which is what is wanted
        allowed = {"allow_override": True} if "allow_override" in signature(library.impl).parameters else {}
        library.impl("gelu", gelu, "CPU", **allowed)
    try:
        yield
    finally:
        library._destroy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["statistics", "sketch"])
def test_healthy_kernels_are_right(tmp_path, dtype, mode):
    unit = record(tmp_path / "run", dtype, mode)
    for inputs in MADE:
        found = list(check_dump(unit, CheckOptions(inputs=inputs), workers=0))
        assert len(found) > 15
        assert {each.verdict for each in found} == {Verdict.RIGHT}
        assert {(each.inputs, each.seed) for each in found} == {(inputs, 1234)}


@pytest.mark.slow
@pytest.mark.parametrize("inputs", MADE)
def test_a_wrong_kernel_is_suspect(tmp_path, inputs):
    unit = record(tmp_path / "run", torch.float32, "sketch")
    with scaled_gelu():
        found = {each.entry: each for each in check_dump(unit, CheckOptions(inputs=inputs), workers=0)}
    suspects = {entry for entry, each in found.items() if each.verdict is not Verdict.RIGHT}
    assert suspects == {"Functional.gelu.0.forward"}
    assert found["Functional.gelu.0.forward"].verdict is Verdict.SUSPECT
    assert {output.verdict for output in found["Functional.gelu.0.forward"].outputs} == {Verdict.SUSPECT}
