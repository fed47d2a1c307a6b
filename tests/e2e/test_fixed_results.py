"""`handler_type` `fix` of the task `free_benchmark`: results of calls, or their gradients, are replaced."""

import json
import logging

import pytest
import torch
from architectures import ARCHITECTURES, train
from msprobe.pytorch import PrecisionDebugger
from torch.nn import functional
from torch_traces import traces_in
from wrong_kernels import kernel

from msprobe_core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.fixture
def fixing(tmp_path):
    def make(**options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({
            "task": "free_benchmark", "free_benchmark": {"handler_type": "fix", **options},
        }))  # fmt: skip
        return PrecisionDebugger(path, dump_path=tmp_path / "run")

    return make


def given(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16().requires_grad_()


def run(debugger, function, *tensors):
    debugger.start()
    try:
        return function(*tensors)
    finally:
        debugger.stop()
        debugger.step()


def coarse(x):
    """Compute in bfloat16 with half of its digits, and in wider formats right."""
    if x.dtype is not torch.bfloat16:
        return x / (1 + (-x).exp())
    return ((x.float() / (1 + (-x.float()).exp())).view(torch.int32) & -(1 << 20)).view(torch.float32).bfloat16()


# --- forward ------------------------------------------------------------------------------------------------------


def test_a_result_is_replaced_and_its_gradient_stays(fixing, tmp_path, caplog):
    x, y = given(64), given(64)
    with kernel("silu", coarse), caplog.at_level(logging.WARNING):
        wrong = functional.silu(x)
        wrong.sum().backward()
        out = run(fixing(list=["silu"]), functional.silu, y)
        out.sum().backward()
    right = functional.silu(x.detach().float()).bfloat16()
    assert not torch.equal(wrong, right)
    assert torch.equal(out, right)
    assert out.dtype is torch.bfloat16
    assert torch.equal(y.grad, x.grad)
    assert "THIS CHANGES THE TRAINING" in caplog.text
    assert "Functional.silu is fixed from now on" in caplog.text
    PrecisionDebugger.close(PrecisionDebugger())
    content = json.loads((tmp_path / "run" / "free_benchmark_fixed_rank.json").read_text())
    assert (content["stage"], content["mode"], content["fixed"]) == (
        "forward", "improve_precision", {"Functional.silu": 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"list": ["silu"]}, [True, True]),
        ({"list": ["relu"]}, [False, False]),
        ({"scope": ["Functional.silu.1.forward"]}, [False, True]),
        ({}, [True, True]),
    ],
)
def test_list_and_scope_select_calls(fixing, options, changed):
    x = given(64)
    with kernel("silu", coarse):
        wrong = functional.silu(x)
        found = run(fixing(**options), lambda: [functional.silu(x) for _ in range(2)])
    assert [not torch.equal(each, wrong) for each in found] == changed


def test_what_is_no_computation_stays_as_it_is(fixing, tmp_path):
    def several(x):
        view = x.view(8, 8)
        view.detach().add_(1)
        torch.manual_seed(0)
        return view, functional.dropout(x, 0.5), x.float(), x.argmax(), torch.sort(x).indices

    x = given(64)
    with torch.no_grad():
        y = x.detach().clone().requires_grad_()
    expected = several(x)
    found = run(fixing(), several, y)
    assert found[0]._base is y
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    content = json.loads((tmp_path / "run" / "free_benchmark_fixed_rank.json").read_text())
    assert content["not_fixed"]["Functional.dropout"] == "it draws random numbers"


def test_a_training_with_a_wrong_kernel_becomes_the_right_one(fixing):
    architecture = ARCHITECTURES["llama"]

    def losses(debugger=None):
        model = architecture.build().bfloat16()
        before = traces_in(model)
        found = []
        for step in range(2):
            if debugger:
                debugger.start(model)
            found.append(train(model, architecture, step))
            if debugger:
                debugger.stop()
                debugger.step()
        assert traces_in(model) == before
        return found

    right = losses()
    with kernel("silu", lambda x: coarse(x) * 1.25 if x.dtype is torch.bfloat16 else coarse(x)):
        wrong = losses()
        fixed = losses(fixing(list=["silu"]))
    assert abs(wrong[0] - right[0]) > 20 * abs(fixed[0] - right[0])


def test_under_autocast_results_keep_their_format(fixing):
    x, weight = given(4, 8), torch.randn(8, 8, requires_grad=True)
    debugger = fixing(list=["linear"])
    with torch.autocast("cpu", torch.bfloat16):
        out = run(debugger, functional.linear, x, weight)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, functional.linear(x.float(), weight).bfloat16())


# --- backward -----------------------------------------------------------------------------------------------------


def test_a_gradient_is_replaced_and_the_result_stays(fixing):
    def wrong_backward(grad, x):
        s = torch.sigmoid(x)
        right = grad * s * (1 + x * (1 - s))
        return right * 2 if x.dtype is torch.bfloat16 else right

    x, y = given(64), given(64)
    with kernel("silu_backward", wrong_backward):
        out = run(fixing(list=["silu"], fuzz_stage="backward"), functional.silu, x)
        out.sum().backward()
        functional.silu(y).sum().backward()
    fine = y.detach().float().requires_grad_()
    functional.silu(fine).sum().backward()
    assert torch.equal(out, functional.silu(y))
    assert torch.equal(x.grad, fine.grad.bfloat16())
    assert not torch.equal(y.grad, x.grad)


def test_a_step_that_is_not_selected_is_not_changed(fixing):
    x = given(64)
    debugger = fixing(list=["silu"])
    with kernel("silu", coarse):
        wrong = functional.silu(x)
        debugger.start()
        debugger.stop()
        assert torch.equal(functional.silu(x), wrong)


def test_the_host_cannot_be_fixed_by_the_host(fixing):
    with pytest.raises(ConfigError, match="runs on the host already"):
        run(fixing(pert_mode="to_cpu", fuzz_device="cpu"), functional.silu, given(4))
