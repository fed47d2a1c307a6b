"""What one call does to errors: each formula against float32, added up in an unfavourable order, and float64."""

import numpy as np
import pytest

from msprobe_core.judge.noise.effects import (
    Backward,
    Error,
    Forward,
    Operand,
    Size,
    of_backward,
    of_forward,
    together,
)
from msprobe_core.judge.noise.operations import Kind, Operations, is_layer, kind_of, known_as, merged

EXACT = Operations()
UNIT = 2.0**-24


def size_of(array):
    array = np.asarray(array, np.float64)
    return Size(array.size, float(np.linalg.norm(array)), array.mean(), array.max(), array.min(), array.shape)


def operand(array, place="0", error=Error(), *, is_parameter=False):  # noqa: B008  # immutable
    return Operand(size_of(array), error, place, is_parameter)


def forward(operation, result, *given):
    call = Forward(operation, [operand(array, str(i)) for i, array in enumerate(given)], operand(result))
    return of_forward(call, EXACT)


def apart(found, exact):
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def one_after_another(terms):
    """Return the sums over the last axis, of float32, each addition rounded: the worst order."""
    total = np.zeros(terms.shape[:-1], np.float32)
    for k in range(terms.shape[-1]):
        total = (total + terms[..., k]).astype(np.float32)
    return total


def numbers(*shape, seed=0, shift=0.0):
    return (np.random.RandomState(seed).randn(*shape) + shift).astype(np.float32)


MATRICES = {
    "of both signs": (numbers(24, 400), numbers(400, 30, seed=1)),
    "of one sign": (np.abs(numbers(24, 400)), np.abs(numbers(400, 30, seed=1))),
    "that cancel": (
        np.concatenate([numbers(24, 200), -numbers(24, 200)], 1),
        np.concatenate([numbers(200, 30, seed=1)] * 2) + 1e-3 * numbers(400, 30, seed=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("terms", MATRICES)
def test_sums_of_products_round_as_much_as_their_condition_says(terms):
    a, b = MATRICES[terms]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    products = (a[:, None, :] * b.T[None]).astype(np.float32)
    rounded = apart(one_after_another(products), exact)
    own = forward("matmul", exact, a, b).own.spread
    assert rounded / 3 < own < 8 * rounded


@pytest.mark.parametrize("terms", MATRICES)
def test_errors_of_factors_grow_with_the_condition(terms):
    a, b = (array.astype(np.float64) for array in MATRICES[terms])
    error = 1e-5
    off = a + error * np.sqrt(np.mean(a**2)) * np.random.RandomState(5).randn(*a.shape)
    given = [operand(a, "0", Error(error)), operand(b, "1")]
    inherited = of_forward(Forward("linear", given, operand(a @ b)), EXACT).inherited.spread
    seen = apart(off @ b, a @ b)
    assert seen / 3 < inherited < max(8 * seen, 1.01 * error)  # never said to become smaller


@pytest.mark.parametrize(("shift", "is_mean"), [(0.0, False), (0.0, True), (2.0, False), (2.0, True)])
def test_sums_and_means(shift, is_mean):
    x = numbers(40, 500, shift=shift)
    exact = x.astype(np.float64).sum(1)
    rounded = apart(one_after_another(x), exact)
    own = forward("mean" if is_mean else "sum", exact / 500 if is_mean else exact, x).own.spread
    assert rounded / 3 < own < 8 * rounded


@pytest.mark.parametrize("shift", [0.0, 3.0, 20.0])
def test_a_variance_in_one_pass_loses_what_the_mean_takes(shift):
    x = numbers(60, 96, shift=shift)
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    mean = one_after_another(x) / np.float32(96)
    squares = one_after_another((x * x).astype(np.float32)) / np.float32(96)
    variance = (squares - mean * mean).astype(np.float32)
    normalised = (x - mean[:, None]) / np.sqrt(variance)[:, None]
    rounded = apart(normalised, exact)
    own = forward("layer_norm", exact, x, np.ones(96)).own.spread
    assert rounded / 3 < own < 60 * rounded


def test_the_backward_of_a_normalisation_is_as_ill_conditioned_as_it_is():
    """A gradient along what is normalised is taken away: what is left of it is all error."""
    x = numbers(50, 64).astype(np.float64)
    normal = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)

    def back(gradient):
        gradient = gradient - gradient.mean(1, keepdims=True)
        return (gradient - normal * (gradient * normal).mean(1, keepdims=True)) / x.std(1, keepdims=True)

    for share in (0.0, 0.99):
        gradient = (1 - share) * np.random.RandomState(3).randn(*x.shape) + share * normal * 10
        off = gradient + 1e-6 * np.sqrt(np.mean(gradient**2)) * np.random.RandomState(4).randn(*x.shape)
        seen = apart(back(off), back(gradient))
        call = Forward("layer_norm", [operand(x)], operand(normal))
        found = of_backward(Backward(call, operand(gradient, "0", Error(1e-6)), "0", size_of(back(gradient))), EXACT)
        assert seen / 2 < found.inherited.spread < 4 * seen


def test_a_mask_does_not_count_in_a_softmax():
    x = numbers(8, 32).astype(np.float64) * 3
    masked = np.where(np.arange(32) < 20, x, -1e9)

    def softmax(values):
        powers = np.exp(values - values.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    error = 1e-7
    seen = apart(softmax(np.where(masked < -1e8, masked, masked + error * np.abs(x))), softmax(masked))
    found = of_forward(Forward("softmax", [operand(masked, "0", Error(error))], operand(softmax(masked))), EXACT)
    assert seen < found.inherited.spread < 100 * error


def test_a_selection_passes_on_the_error_of_its_input():
    x = np.concatenate([numbers(100) * 10, numbers(100)])
    found = of_forward(Forward("__getitem__", [operand(x, "0", Error(1e-6, 2e-6))], operand(x[100:])), EXACT)
    assert found.own == Error()
    ratio = float(np.sqrt(np.mean(x**2) / np.mean(x[100:] ** 2)))
    assert found.inherited.spread == pytest.approx(1e-6 * ratio)
    assert found.inherited.shift == pytest.approx(2e-6 * ratio)


def test_the_difference_of_equal_values_is_all_error():
    a = numbers(1000)
    b = (a + 1e-4 * numbers(1000, seed=7)).astype(np.float32)
    call = Forward("sub", [operand(a, "0", Error(1e-7)), operand(b, "1", Error(1e-7))], operand(a - b))
    assert 5e-4 < of_forward(call, EXACT).inherited.spread < 5e-3


def test_common_errors_of_a_sum_do_not_average_out():
    x = numbers(400, 30)
    total = x.sum(0)
    given = operand(x, "0", Error(1e-6, 1e-6))
    found = of_forward(Forward("sum", [given], operand(total)), EXACT).inherited
    assert found.shift > 10 * found.spread


def test_the_gradient_of_a_bias_is_a_sum_and_that_of_a_weight_one_of_products():
    x, weight, bias = numbers(50, 20), numbers(8, 20, seed=1), numbers(8, seed=2)
    gradient = numbers(50, 8, seed=3)
    given = [operand(x), operand(weight, "weight", is_parameter=True), operand(bias, "bias", is_parameter=True)]
    call = Forward("Linear", given, operand(x @ weight.T + bias))
    for place, result in (("weight", gradient.T @ x), ("bias", gradient.sum(0)), ("0", gradient @ weight)):
        found = of_backward(Backward(call, operand(gradient, "0", Error(1e-6)), place, size_of(result)), EXACT)
        terms = gradient.shape[1] if place == "0" else gradient.shape[0]
        assert UNIT * np.sqrt(terms / 3) < found.own.spread < 10 * UNIT * np.sqrt(terms)
        assert 1e-6 <= found.inherited.spread < 1e-5


def test_what_nothing_is_known_of_is_no_more_than_all():
    zeros = np.zeros(5)
    assert forward("matmul", np.zeros((2, 2)), numbers(2, 3), numbers(3, 2)).own.spread > 0.5
    assert of_forward(Forward("matmul", [], operand(zeros)), EXACT).inherited == Error()
    assert Error(0.5, 0.5).times(10) == Error(1.0, 1.0)
    assert together([Error(0.3), Error(0.4)]) == Error(0.5)


# --- names ---


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conv2d", Kind.CONVOLUTION), ("Conv1d", Kind.CONVOLUTION), ("ConvTranspose2d", Kind.CONVOLUTION),
        ("layer_norm", Kind.NORM), ("BatchNorm2d", Kind.NORM), ("__getitem__", Kind.COPY),
        ("cross_entropy", Kind.LOG_SOFTMAX), ("CrossEntropyLoss", Kind.LOG_SOFTMAX),
        ("MSELoss", Kind.DIFFERENCE), ("Functional.softmax", Kind.SOFTMAX),
        ("one_of_mine", Kind.OTHER), ("", Kind.OTHER),
    ],
)  # fmt: skip
def test_spellings_of_one_operation(name, kind):
    assert kind_of(name) is kind


def test_a_class_of_the_users_is_not_what_it_is_called_like():
    """``Clip``, a model of images and texts, is not ``clip``."""
    assert known_as("Clip") == "clip"
    assert kind_of("Clip") is Kind.COPY
    assert not is_layer("Clip")
    assert is_layer("Conv2d")


def test_approximations_of_two_frameworks_are_off_together():
    both = Operations(
        inexact=merged({"exp": [(1.0, 1e-6), (88.0, 1e-5)]}, {"exp": [(8.0, 2e-6)], "tanh": [(5.0, 1e-4)]})
    )
    assert both.approximation("Exp", 0.5) == pytest.approx(3e-6)
    assert both.approximation("exp", 2.0) == pytest.approx(1.2e-5)
    assert both.approximation("exp", 1e3) == pytest.approx(1.2e-5)
    assert both.approximation("tanh", 1.0) == pytest.approx(1e-4)
    assert both.approximation("sin", 1.0) == 0.0
    call = Forward("exp", [operand(numbers(10))], operand(np.exp(numbers(10))))
    assert of_forward(call, both).own.shift == pytest.approx(1.2e-5)
