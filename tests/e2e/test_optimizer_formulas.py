"""Steps of fused optimizers and of lists of tensors are checked by the update that PyTorch documents."""

import inspect
from contextlib import nullcontext

import pytest
import torch
from bare_scripts import run_bare
from msprobe.pytorch._optimizer_formulas import fused_adam, fused_sgd
from replay_scripts import COMMAND
from wrong_kernels import kernel, record

from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
from msprobe_core.api_check.reproducer import MOST_LINES, write_reproducer
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.replay.frameworks import replaying_framework


@pytest.fixture(autouse=True)
def _closed(close_debugger):
    return


def recorded(place, make, dtype=torch.float32, size=1.0, fault=None):
    """Record the third step of an optimizer, whose gradients are of this size, with a wrong kernel for an operator."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((16, 12), (7,))]
    optimizer = make(parameters)

    def step():
        for parameter in parameters:
            parameter.grad = (torch.randn(parameter.shape) * size).to(dtype)
        optimizer.step()

    def run(debugger):
        step()
        step()
        with nullcontext() if fault is None else kernel(*fault), debugger.start():
            step()

    return record(place, run, level="L1")


def checked(unit):
    check = DumpCheck.of(unit, CheckOptions())
    return check, {
        each.entry: each for each in check.run(workers=0) if "fused" in each.entry or "foreach" in each.entry
    }


OPTIMIZERS = {
    "plain": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, maximize=True, fused=True),
    "rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True, fused=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1, fused=True),
    "lists": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=True),
    "lists of sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
}


def leaves_parameters():
    """Whether this PyTorch leaves parameters of 16 bits as they are, see PyTorch's issue 191763."""
    parameters = [torch.ones(64).bfloat16()]
    options = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
    torch._fused_sgd_(parameters, [torch.ones(64).bfloat16()], [], weight_decay=0.0, lr=1.0, **options)
    return bool(parameters[0].any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_healthy_steps_are_right(tmp_path, make, dtype):
    check, found = checked(recorded(tmp_path / "run", make, dtype))
    if dtype is torch.bfloat16 and "Torch._fused_sgd_.0.forward" in found and leaves_parameters():
        assert {each.verdict for each in found.values()} == {Verdict.WRONG}  # the fault of that issue, found
        return
    assert found
    assert {each.verdict for each in found.values()} == {Verdict.RIGHT}, found
    entry = next(iter(found))
    path = write_reproducer(check.read(entry), found[entry], replaying_framework("pytorch"), tmp_path, command=COMMAND)
    ended = run_bare(path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(path.read_text().splitlines()) <= MOST_LINES


def writing(formula, change=lambda arguments: None):
    """Return a kernel that writes what a formula gives for changed arguments."""

    def wrong(*args, **kwargs):
        arguments = inspect.signature(formula).bind(*args, **kwargs)
        change(arguments.arguments)
        for parameter, value in zip(args[0], formula(*arguments.args, **arguments.kwargs), strict=True):
            parameter.copy_(value)

    return wrong


def eps_inside_of_the_root(given):
    # sqrt(v / c + eps) = sqrt((v + c eps) / c), of which the second moment before this step is a part
    steps, beta, eps = given["state_steps"], given["beta2"], given["eps"]
    moments = zip(given["exp_avg_sqs"], steps, strict=True)
    given |= {"exp_avg_sqs": [v.float() + (1 - beta**t) * eps / beta for v, t in moments], "eps": 0.0}


def step_before(given):
    given["state_steps"] = [step - 1 for step in given["state_steps"]]


def setting(**values):
    return lambda given: given.update(values)


FAULTS = {
    "eps inside of the root": ("plain", "_fused_adam_", writing(fused_adam, eps_inside_of_the_root), 1e-4),
    "correction of the step before": ("adam", "_fused_adam_", writing(fused_adam, step_before), 1.0),
    "other moment": ("amsgrad", "_fused_adam_", writing(fused_adam, setting(beta1=0.85)), 1.0),
    "coupled decay": ("adamw", "_fused_adamw_", writing(fused_adam), 1.0),
    "no decay": ("adamw", "_fused_adamw_", writing(fused_adam, setting(weight_decay=0.0)), 1.0),
    "not nesterov": ("nesterov", "_fused_sgd_", writing(fused_sgd, setting(nesterov=False)), 1.0),
    "no dampening": ("momentum", "_fused_sgd_", writing(fused_sgd, setting(dampening=0.0)), 1.0),
    "sign": ("amsgrad", "_fused_adam_", writing(fused_adam, setting(maximize=False)), 1.0),
}
"""Optimizer, operator, wrong kernel, and the size of gradients."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_wrong_steps_are_wrong(tmp_path, fault, dtype):
    make, name, function, size = fault
    _, found = checked(recorded(tmp_path / "run", OPTIMIZERS[make], dtype, size, (name, function)))
    assert found[f"Torch.{name}.0.forward"].verdict is Verdict.WRONG


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_small_gradients_are_right(tmp_path, dtype):
    _, found = checked(recorded(tmp_path, OPTIMIZERS["plain"], dtype, 1e-4))
    assert found["Torch._fused_adam_.0.forward"].verdict is Verdict.RIGHT


def test_a_step_of_lists_that_leaves_one_tensor_out_is_wrong(tmp_path):
    def first_only(tensors, others, *, alpha=1):
        tensors[0].sub_(others[0])

    with kernel("_foreach_sub_.List", first_only):
        unit = record(tmp_path / "run", run_of_lists, level="L1")
    _, found = checked(unit)
    assert found["Torch._foreach_sub_.0.forward"].verdict is Verdict.WRONG


def run_of_lists(debugger):
    tensors, others = ([torch.randn(5), torch.randn(3)] for _ in range(2))
    with debugger.start():
        torch._foreach_sub_(tensors, others)


def test_a_gradient_that_is_not_finite_leaves_the_parameters(tmp_path):
    tensors = [[torch.randn(5)] for _ in range(4)]

    def run(debugger):
        with debugger.start():
            torch._fused_adam_(
                *tensors, [], [torch.ones(())], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
                amsgrad=False, maximize=False, grad_scale=torch.tensor(4.0), found_inf=torch.tensor(1.0),
            )  # fmt: skip

    tensors[3] = [tensors[3][0].abs()]
    _, found = checked(record(tmp_path / "run", run, level="L1"))
    assert found["Torch._fused_adam_.0.forward"].verdict is Verdict.RIGHT
