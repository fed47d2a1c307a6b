"""Independent formulas agree with PyTorch's functions: at common values and at extreme ones, in values and gradients.

A formula that is off where a function is right would make a healthy call wrong.
"""

import dataclasses
import itertools
import math

import msgspec
import numpy as np
import pytest
import torch
from msprobe.pytorch import _replay
from msprobe.pytorch._formula_specialised import formula_for
from msprobe.pytorch._reference_formulas import _FUNCTIONS, _METHODS, find_reference
from msprobe.pytorch._script_formula import whole_formula
from replaying import call_of

from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.check_codes import CheckCode
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.errors import ReplayError
from msprobe_core.model import ReplayCall
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.replay.replays import base_of


def _d(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


INDEX = torch.tensor([[2, 0, 1], [0, 0, 3]])
CALLS = {
    "linear": ("Functional.linear", lambda: [_d(3, 2, 5), _d(4, 5), _d(4)], {}),
    "matmul": ("Torch.matmul", lambda: [_d(2, 1, 3, 4), _d(5, 4, 2)], {}),
    "vector": ("Tensor.__matmul__", lambda: [_d(4), _d(4, 2)], {}),
    "addmm": ("Torch.addmm", lambda: [_d(3), _d(2, 4), _d(4, 3)], {"beta": 0.5, "alpha": 2.0}),
    "conv2d": ("Functional.conv2d", lambda: [_d(2, 4, 9, 8), _d(6, 2, 3, 2), _d(6), (2, 1), (1, 0), (1, 2), 2], {}),
    "conv same": ("Functional.conv1d", lambda: [_d(4, 9), _d(6, 4, 4)], {"padding": "same"}),
    "embedding": ("Functional.embedding", lambda: [INDEX, _d(4, 3), 2], {}),
    "index_select": ("Tensor.index_select", lambda: [_d(3, 4), -1, torch.tensor([1, 1, 3])], {}),
    "gather": ("Tensor.gather", lambda: [_d(3, 4), 1, INDEX], {}),
    "scatter_add": ("Tensor.scatter_add", lambda: [_d(3, 4), 1, INDEX, _d(2, 3)], {}),
    "index_add": ("Torch.index_add", lambda: [_d(4, 3), 0, torch.tensor([1, 1, 3]), _d(3, 3)], {"alpha": 2.0}),
    "cumsum": ("Tensor.cumsum", lambda: [_d(3, 4), 0], {}),
    "layer_norm": ("Functional.layer_norm", lambda: [_d(3, 4, 5), (4, 5), _d(4, 5), _d(4, 5), 0.1], {}),
    "rms_norm": ("Functional.rms_norm", lambda: [_d(3, 5), (5,), _d(5)], {}),
    "group_norm": ("Functional.group_norm", lambda: [_d(2, 4, 3), 2, _d(4), _d(4)], {}),
    "batch_norm": ("Functional.batch_norm", lambda: [_d(2, 4, 3), _d(4).detach(), _d(4).detach() ** 2, _d(4)], {}),
    "softmax": ("Functional.softmax", lambda: [_d(3, 4), 0], {}),
    "log_softmax": ("Tensor.log_softmax", lambda: [_d(3, 4), -1], {}),
    "attention": ("Functional.scaled_dot_product_attention", lambda: [_d(2, 4, 5, 3), _d(2, 2, 6, 3), _d(2, 2, 6, 3)],
                  {"attn_mask": _d(5, 6).detach(), "enable_gqa": True}),
    "causal": ("Functional.scaled_dot_product_attention", lambda: [_d(2, 5, 3), _d(2, 6, 3), _d(2, 6, 4)],
               {"is_causal": True, "scale": 0.3}),
    "gelu": ("Functional.gelu", lambda: [_d(9) * 4], {}),
    "gelu tanh": ("Functional.gelu", lambda: [_d(9) * 4], {"approximate": "tanh"}),
    "silu": ("Functional.silu", lambda: [_d(9) * 20], {}),
    "tanh": ("Torch.tanh", lambda: [_d(9) * 4], {}),
    "mish": ("Functional.mish", lambda: [_d(9) * 4], {}),
    "cross_entropy": ("Functional.cross_entropy", lambda: [_d(3, 4, 2), torch.tensor([[1, 0], [-100, 3], [2, 2]])],
                      {"weight": torch.rand(4).double(), "label_smoothing": 0.1}),
    "probabilities": ("Functional.cross_entropy", lambda: [_d(3, 4), torch.rand(3, 4).double()],
                      {"label_smoothing": 0.1, "reduction": "sum"}),
    "bce": ("Functional.binary_cross_entropy_with_logits", lambda: [_d(3, 4), torch.rand(3, 4).double()],
            {"pos_weight": torch.rand(4).double()}),
    "lerp": ("Tensor.lerp_", lambda: [_d(3, 4), _d(3, 4), 0.1], {}),
    "addcmul": ("Tensor.addcmul_", lambda: [_d(3, 4), _d(3, 4), _d(3, 4)], {"value": 0.3}),
}  # fmt: skip
"""Name of the function, its arguments, and those by name."""


@pytest.mark.parametrize("given", CALLS.values(), ids=CALLS)
def test_formulas_agree_with_the_functions(given):
    torch.manual_seed(0)
    name, make, kwargs = given
    assert find_reference(*name.split("."))
    args = make()
    forward = call_of(name, args, kwargs, is_widened=True)
    (shape,) = [tuple(value.values.shape) for value in _replay.replay(forward, None).values.values()]
    backward = call_of(name, args, kwargs, {"0": torch.randn(shape, dtype=torch.float64)}, is_widened=True)
    for call in (forward, backward):
        found = _replay.replay(msgspec.structs.replace(call, by_reference=True), None).values
        expected = _replay.replay(call, None).values
        assert found.keys() == expected.keys()
        for path, value in expected.items():
            torch.testing.assert_close(
                torch.from_numpy(found[path].values), torch.from_numpy(value.values), rtol=1e-12, atol=1e-12
            )


# --- extreme values ---------------------------------------------------------------------------------------------------

IGNORED, ONE_HOT, NO_WEIGHTS = torch.full((3,), -100), torch.eye(4)[:3].double(), torch.zeros(4).double()
SPECIAL = {
    "mm": ("Torch.mm", lambda: [_d(2, 4), _d(4, 3)], {}),
    "bmm": ("Torch.bmm", lambda: [_d(2, 2, 4), _d(2, 4, 3)], {}),
    "baddbmm": ("Torch.baddbmm", lambda: [_d(2, 2, 3), _d(2, 2, 4), _d(2, 4, 3)], {"beta": 0, "alpha": 0.5}),
    "layer_norm without eps": ("Functional.layer_norm", lambda: [_d(3, 4, 5), (4, 5), _d(4, 5), _d(4, 5), 0.0], {}),
    "rms_norm without eps": ("Functional.rms_norm", lambda: [_d(3, 5), (5,), _d(5), 0.0], {}),
    "group_norm without eps": ("Functional.group_norm", lambda: [_d(2, 4, 3), 2, _d(4), _d(4), 0.0], {}),
    "group_norm of one": ("Functional.group_norm", lambda: [_d(2, 1, 3), 1, _d(1)], {}),
    "instance_norm": ("Functional.instance_norm", lambda: [_d(2, 4, 3)], {}),
    "trained batch_norm": ("Functional.batch_norm", lambda: [_d(2, 4, 3), None, None, _d(4), _d(4), True], {}),
    "tensor softmax": ("Tensor.softmax", lambda: [_d(3, 4), -1], {}),
    "softmax of one": ("Functional.softmax", lambda: [_d(3, 1), 1], {}),
    "log_softmax of one": ("Functional.log_softmax", lambda: [_d(3, 1), 1], {}),
    "sigmoid": ("Torch.sigmoid", lambda: [_d(9)], {}),
    "relu": ("Functional.relu", lambda: [_d(9)], {}),
    "leaky_relu": ("Functional.leaky_relu", lambda: [_d(9)], {}),
    "elu": ("Functional.elu", lambda: [_d(9), 2.0], {}),
    "logsigmoid": ("Functional.logsigmoid", lambda: [_d(9)], {}),
    "glu": ("Functional.glu", lambda: [_d(3, 4)], {}),
    "nll_loss": ("Functional.nll_loss", lambda: [_d(3, 4), torch.tensor([1, -100, 3])], {}),
    "mse_loss": ("Functional.mse_loss", lambda: [_d(3, 4), _d(3, 4)], {}),
    "ignored": ("Functional.cross_entropy", lambda: [_d(3, 4), IGNORED], {"label_smoothing": 0.1}),
    "ignored sum": ("Functional.cross_entropy", lambda: [_d(3, 4), IGNORED], {"reduction": "sum"}),
    "no weights": ("Functional.cross_entropy", lambda: [_d(3, 4), torch.arange(3)], {"weight": NO_WEIGHTS}),
    "some weights": ("Functional.cross_entropy", lambda: [_d(3, 4), torch.arange(3)],
                     {"weight": torch.tensor([0.0, 1, 0, 2]).double(), "reduction": "none"}),
    "all smoothed": ("Functional.cross_entropy", lambda: [_d(3, 4), torch.arange(3)], {"label_smoothing": 1.0}),
    "certain": ("Functional.cross_entropy", lambda: [_d(3, 4), ONE_HOT], {"label_smoothing": 1.0}),
    "one row": ("Functional.cross_entropy", lambda: [_d(4), torch.tensor(2)],
                {"label_smoothing": 0.3, "weight": torch.arange(4).double()}),
    "one class": ("Functional.cross_entropy", lambda: [_d(3, 1), torch.zeros(3, dtype=torch.int64)], {}),
    "learnt target": ("Functional.cross_entropy", lambda: [_d(3, 4), _d(3, 4)], {}),
    "certain bce": ("Functional.binary_cross_entropy_with_logits", lambda: [_d(3, 4), ONE_HOT], {}),
    "learnt bce": ("Functional.binary_cross_entropy_with_logits", lambda: [_d(3, 4), _d(3, 4)], {}),
    "bce of nothing": ("Functional.binary_cross_entropy_with_logits", lambda: [_d(3, 4), ONE_HOT],
                       {"weight": NO_WEIGHTS, "pos_weight": NO_WEIGHTS}),
    "masked attention": ("Functional.scaled_dot_product_attention", lambda: [_d(1, 2, 3) for _ in range(3)],
                         {"attn_mask": torch.tensor([[0.0, -math.inf]] * 2).double()}),
    "nothing to attend to": ("Functional.scaled_dot_product_attention", lambda: [_d(1, 2, 3) for _ in range(3)],
                             {"attn_mask": torch.tensor([[True, False], [False, False]])}),
    "attention to the least": ("Functional.scaled_dot_product_attention", lambda: [_d(1, 2, 3) for _ in range(3)],
                               {"attn_mask": torch.full((2, 2), torch.finfo(torch.bfloat16).min).double()}),
    "attention to one": ("Functional.scaled_dot_product_attention", lambda: [_d(1, 1, 3) for _ in range(3)], {}),
    "lerp to the end": ("Torch.lerp", lambda: [_d(3, 4), _d(3, 4), 1.0], {}),
    "lerps": ("Torch.lerp", lambda: [_d(3, 4), _d(3, 4), _d(3, 4)], {}),
    "addcdiv": ("Torch.addcdiv", lambda: [_d(3, 4), _d(3, 4), _d(3, 4)], {"value": 0.1}),
    "no rows": ("Functional.layer_norm", lambda: [_d(0, 5), (5,), _d(5), _d(5)], {}),
    "no loss": ("Functional.cross_entropy", lambda: [_d(0, 4), torch.zeros(0, dtype=torch.int64)], {}),
    "no product": ("Functional.linear", lambda: [_d(0, 4), _d(3, 4), _d(3)], {}),
    "no index": ("Torch.index_add", lambda: [_d(4, 3), 0, torch.zeros(0, dtype=torch.int64), _d(0, 3)], {}),
}  # fmt: skip

FILLS = {
    "zeros": lambda x: 0 * x,
    "equal": lambda x: 0 * x + 0.7,
    "tiny": lambda x: x * 1e-30,
    "small": lambda x: x * 1e-8,
    "large": lambda x: x * 1e8,
    "huge": lambda x: x * 1e30,
    "positive": lambda x: abs(x) * 40,
    "negative": lambda x: abs(x) * -40,
    "ties": torch.round,
    "infinite": lambda x: torch.where(torch.arange(x.numel()).reshape(x.shape) == 0, -math.inf, x),
}
"""What becomes of the elements of tensors."""

OVERFLOWS = ("large", "huge")
"""Where squares overflow inside norms, and attention rounds its scores by more than one: the kernels are off, too."""

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def _filled(value, fill, dtype):
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return fill(value.detach()).to(dtype).requires_grad_(value.requires_grad)


def _healthy(name, args, kwargs):
    """Yield the forward and the backward of a call as recorded."""
    gradients = None
    for _ in range(2):
        call = call_of(name, args, kwargs, gradients)
        outputs = dict(_replay.replay(call, None).values)
        parts = {"args": call.args, "kwargs": call.kwargs, "gradients": call.gradients, "outputs": outputs}
        yield RecordedCall(entry=f"{name}.0.{call.site.phase.value}", site=call.site, **parts)
        gradients = {
            path: torch.randn(value.values.shape).to(getattr(torch, value.dtype)) for path, value in outputs.items()
        }


@pytest.mark.parametrize("given", (CALLS | SPECIAL).values(), ids=CALLS | SPECIAL)
def test_a_healthy_call_of_extreme_values_is_not_wrong(given):
    name, make, kwargs = given
    checker, wrong = CallChecker(framework=replaying_framework("pytorch"), measures_power=False), []
    for dtype, size, fills_all in itertools.product(DTYPES, FILLS, (True, False)):
        torch.manual_seed(0)
        args = make()
        first = next(value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point())
        args = [_filled(value, FILLS[size] if fills_all or value is first else torch.sin, dtype) for value in args]
        for call in _healthy(name, args, {key: _filled(value, torch.clone, dtype) for key, value in kwargs.items()}):
            found = checker.check(call)
            codes = [note.code for note in found.notes]
            overflows = (
                CheckCode.HOST_IS_OFF_TOO in codes and size in OVERFLOWS and name.endswith(("norm", "attention"))
            )
            is_wrong = found.verdict is Verdict.WRONG and not overflows
            if is_wrong or ReplayCode.FUNCTION_IS_OFF in codes or not _is_finite_where_the_function_is(call):
                wrong.append((dtype, size, fills_all, call.site.phase.value, found.verdict.value, codes))
    assert not wrong


def _is_finite_where_the_function_is(call):
    try:
        base = msgspec.structs.replace(base_of(call, 1 << 20), by_reference=True)
        found = _replay.replay(base, None).values
    except ReplayError:  # it takes no such arguments, or no bfloat16
        return True
    pairs = [(found[path].values, value.values) for path, value in call.outputs.items() if path in found]
    return all(np.isfinite(values[np.isfinite(expected)]).all() for values, expected in pairs)


def test_every_formula_is_held_to_its_function():
    formulas = {find_reference(*name.split(".")) for name, _, _ in (CALLS | SPECIAL).values()}
    assert formulas == {*_FUNCTIONS.values(), *_METHODS.values()}


@pytest.mark.parametrize("name", ["gelu", "silu", "elu", "mish", "logsigmoid", "sigmoid", "tanh"])
def test_a_formula_keeps_its_digits_near_zero_and_has_the_gradient_there(name):
    formula, function = find_reference("Functional", name), getattr(torch.nn.functional, name)
    for values in (torch.logspace(-30, -9, 50), torch.zeros(3), torch.linspace(-5, 30, 50)):
        for signed in (values.double(), -values.double()):
            given = [signed.clone().requires_grad_() for _ in range(2)]
            results = [called(each) for called, each in zip((formula, function), given, strict=True)]
            torch.testing.assert_close(*results, rtol=1e-9, atol=0)
            gradients = [torch.autograd.grad(made.sum(), each)[0] for made, each in zip(results, given, strict=True)]
            torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-15)


# --- gradients of norms whose mean is far larger than their deviation -----------------------------------------------

FAR = {
    "one feature": ("Functional.layer_norm", [(6, 1), (1,)], lambda x: x * 1e4, torch.float32),
    "one element": ("Functional.group_norm", [(2, 4, 1), 4], lambda x: x * 100, torch.float32),
    "equal features": ("Functional.layer_norm", [(6, 8), (8,)], lambda x: x + 1e6, torch.bfloat16),
    "group": ("Functional.group_norm", [(4, 6, 5, 5), 3], lambda x: x + 1e7, torch.bfloat16),
}


@pytest.mark.parametrize("case", FAR.values(), ids=FAR)
def test_a_gradient_of_a_norm_far_from_its_mean_is_off_by_what_its_kernel_cancels(case):
    """The kernels compute ``rstd g + b x + c``, of which ``b x`` and ``c`` cancel.

    With ``b = (mean sum(g) - sum(g x)) rstd^3 / n``, which itself cancels: rounding leaves ``u |x| mean|g| rstd^3`` of
    it, so each of both terms is off by up to ``u x^2 mean|g| rstd^3``, while the gradient is at most some ``rstd |g|``.
    """
    name, (shape, size), fill, dtype = case
    checker, errors = CallChecker(framework=replaying_framework("pytorch"), measures_power=False), []
    for seed in range(6):
        torch.manual_seed(seed)
        x = fill(torch.randn(shape)).to(dtype).requires_grad_()
        weight = torch.randn(size).to(dtype) if name.endswith("layer_norm") else None
        _, call = _healthy(name, [x, size, weight], {})
        found = checker.check(call)
        codes = [note.code for note in found.notes]
        assert ReplayCode.FUNCTION_IS_OFF not in codes
        assert found.verdict is not Verdict.WRONG or CheckCode.HOST_IS_OFF_TOO in codes
        groups = x.detach().double().reshape(len(x) * (size if isinstance(size, int) else 1), -1)
        gradient = torch.from_numpy(call.gradients["0"].values).double().reshape(groups.shape)
        rstd = (groups.var(-1, unbiased=False) + 1e-5).rsqrt()
        scaled = gradient if weight is None else gradient * weight.double()
        limit = 2**-24 * groups.square().amax(-1) * scaled.abs().mean(-1) * rstd**3
        wide = x.detach().double().requires_grad_()
        result = getattr(torch.nn.functional, name.rpartition(".")[2])(
            wide, size, None if weight is None else weight.double()
        )
        exact = torch.autograd.grad(result, wide, gradient.reshape(result.shape))[0].reshape(groups.shape)
        error = (torch.from_numpy(call.outputs["0"].values).double().reshape(groups.shape) - exact).abs().amax(-1)
        # Rounding to the dtype of the call comes on top.
        assert (error <= 4 * limit + 2**-7 * exact.abs().amax(-1)).all()
        errors.append(float((error / exact.abs().amax(-1).clamp_min(1e-30)).max()))
    assert max(errors) > 0.99  # no digit is left, so that it is right to call it wrong


# --- as they are written in scripts ---------------------------------------------------------------------------------

WRITTEN_WHOLE = {"embedding backward", "nothing to attend to forward", "nothing to attend to backward",
                 "attention to the least forward", "attention to the least backward"}  # fmt: skip
"""The gradient of an embedding writes to an array; the others are refused, and have no script by the formula."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CALLS | SPECIAL)
def test_independent_formulas_have_the_same_bits(case):
    name, make, kwargs = (CALLS | SPECIAL)[case]
    torch.manual_seed(0)
    function = find_reference(*name.split("."))
    for each in _healthy(name, make(), kwargs):
        call = ReplayCall(
            site=each.site, args=each.args, kwargs=each.kwargs, gradients=each.gradients, by_reference=True
        )
        found = formula_for(call, function)
        is_whole = found.parameters is None
        assert is_whole == (f"{case} {each.site.phase.value}" in WRITTEN_WHOLE)
        assert is_whole or found.source.count("\n") <= min(whole_formula(function).source.count("\n"), 21)


# --- places between elements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "is_wrong"), [(0, False), (1, False), (2, False), (0, True)])
def test_a_place_that_the_dtype_rounds_over_a_border_explains_the_gradient_there(seed, is_wrong):
    torch.manual_seed(seed)
    image = torch.randn(2, 3, 5, 5).bfloat16()
    # The middles of five elements from -1 to 1 are 0.4 apart: most places are between two, some just before the middle.
    places = torch.randint(-2, 2, (2, 4, 4, 2)) * 0.4 + 0.2
    grid = places.masked_fill(torch.rand(places.shape) < 0.1, -3e-4).bfloat16().requires_grad_()
    args = [image, grid, "bilinear", "zeros", False]
    _, call = _healthy("Functional.grid_sample", args, {})
    if is_wrong:
        outputs = {
            path: msgspec.structs.replace(value, values=value.values * 4) for path, value in call.outputs.items()
        }
        call = dataclasses.replace(call, outputs=outputs)
    found = CallChecker(framework=replaying_framework("pytorch")).check(call)
    assert (found.verdict is Verdict.WRONG) == is_wrong
