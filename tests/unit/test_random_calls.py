"""Recorded results of dropout and of draws: what is healthy passes at any seed, what is planted does not."""

import math

import numpy as np
import pytest

from msprobe_core.api_check.draw_tests import LEVEL, binomial_bound, distance_bound
from msprobe_core.api_check.random_calls import (
    LEAST_ELEMENTS,
    MOST_TESTS,
    check_random,
)
from msprobe_core.api_check.random_codes import RandomCode
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.model import Argument, ReplayTensor
from msprobe_core.names import parse_entry
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.store.dtype_values import rounded

SHAPE = (8, 50, 60)


def plain(value):
    return Argument(type(value).__name__, str(value))  # as dumps are read


def tensor(values, dtype="float32"):
    return ReplayTensor(values=rounded(values, dtype), dtype=dtype)


def call_of(api, args, result, phase="forward", gradients=None, **kwargs):
    entry = f"{api}.0.{phase}"
    kwargs = {name: plain(value) for name, value in kwargs.items()}
    return RecordedCall(
        entry=entry, site=parse_entry(entry), args=args, kwargs=kwargs, outputs={"0": result}, gradients=gradients or {}
    )


def dropout(x, is_kept, p=0.1, dtype="float32", name="Functional.dropout", scale=None, **kwargs):
    scale = 1 / (1 - p) if scale is None else scale
    result = tensor(tensor(x, dtype).values.astype(float) * is_kept * rounded(np.array(scale), dtype), dtype)
    return call_of(name, [tensor(x, dtype)], result, p=p, **kwargs)


def verdict(call):
    found = check_random(call)
    if found.verdict is Verdict.CANNOT_TELL:
        return found.verdict, found.reason.code
    (output,) = found.outputs
    return found.verdict, output.reason.code


def mask(seed, p=0.1, shape=SHAPE):
    return np.random.default_rng(seed).random(shape) >= p


X = np.random.default_rng(0).normal(size=SHAPE)
RIGHT = (Verdict.RIGHT, RandomCode.AS_DRAWN)


# --- healthy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1e-3])
def test_healthy_dropout_is_right(p, dtype):
    for seed in range(5):
        assert verdict(dropout(X, mask(seed, p), p, dtype)) == RIGHT


def test_p_values_are_upper_bounds():
    """Of 400 healthy results, at most a share of about q has a p-value below q: so LEVEL bounds the false alarms."""
    worst = []
    for seed in range(400):
        (output,) = check_random(dropout(X, mask(seed, 0.3), 0.3)).outputs
        worst.append(LEVEL**output.times)  # the least of at most MOST_TESTS
    for q in (0.1, 0.01):
        assert np.mean(np.array(worst) < q) <= MOST_TESTS * q
    assert min(worst) > LEVEL


@pytest.mark.parametrize(("number", "chance"), [(50, 0.1), (200, 0.5), (400, 0.01)])
def test_the_bound_of_counts_exceeds_the_exact_probability(number, chance):
    exact = [math.comb(number, k) * chance**k * (1 - chance) ** (number - k) for k in range(number + 1)]
    for count in range(number + 1):
        tail = min(sum(exact[: count + 1]), sum(exact[count:]), 0.5)
        assert binomial_bound(count, number, chance) >= min(2 * tail, 1.0) - 1e-12
    assert binomial_bound(0, 0, 0.5) == distance_bound(0.0, 10) == 1.0


def test_backward_takes_the_mask_of_its_gradients():
    gradient, kept = np.random.default_rng(1).normal(size=SHAPE), mask(3)
    right = call_of("Functional.dropout", [tensor(X)], tensor(gradient * kept / 0.9), "backward",
                    {"0": tensor(gradient)}, p=0.1)  # fmt: skip
    assert verdict(right) == RIGHT
    unscaled = call_of("Functional.dropout", [tensor(X)], tensor(gradient * kept), "backward",
                       {"0": tensor(gradient)}, p=0.1)  # fmt: skip
    assert verdict(unscaled) == (Verdict.WRONG, RandomCode.KEPT)


def test_gradients_without_those_of_dropped_elements_show_no_share():
    kept = mask(3)
    gradient = np.random.default_rng(1).normal(size=SHAPE) * kept  # as of the square of the result
    for scale, expected in ((1 / 0.9, (Verdict.RIGHT, RandomCode.SCALED)), (1.0, (Verdict.WRONG, RandomCode.KEPT))):
        call = call_of("Functional.dropout", [tensor(X)], tensor(gradient * scale), "backward",
                       {"0": tensor(gradient)}, p=0.1)  # fmt: skip
        assert verdict(call) == expected


def test_what_is_zero_already_shows_nothing():
    sparse = np.where(mask(9, 0.5), X, 0.0)
    assert verdict(dropout(sparse, mask(2))) == RIGHT


def test_few_elements_are_not_called_right():
    few = X.reshape(-1)[: LEAST_ELEMENTS - 1]
    assert verdict(dropout(few, mask(1, shape=few.shape))) == (Verdict.CANNOT_TELL, RandomCode.SHORT)
    assert verdict(dropout(few, np.zeros(few.shape))) == (Verdict.WRONG, RandomCode.SHARE)


def test_nothing_is_dropped_outside_of_training():
    for kwargs in ({"training": False, "p": 0.4}, {"p": 0.0}):
        assert verdict(dropout(X, 1.0, scale=1.0, **kwargs)) == (Verdict.RIGHT, RandomCode.UNCHANGED)
        assert verdict(dropout(X, mask(1), scale=1.0, **kwargs)) == (Verdict.WRONG, RandomCode.CHANGED)


def test_arguments_may_be_positional():
    result = tensor(X * mask(4, 0.25) / 0.75)
    call = call_of("Torch.native_dropout", [tensor(X), plain(0.25), plain(True)], result)
    assert verdict(call) == RIGHT


# --- planted faults ---------------------------------------------------------------------------------------------

REPEATED = np.broadcast_to(mask(5, 0.1, SHAPE[2:]), SHAPE)
COPIED = np.concatenate([mask(6, 0.1, (4, *SHAPE[1:]))] * 2)[[0, 4, 1, 5, 2, 6, 3, 7]]
FIRST = np.concatenate([mask(7, 0.2, (4, *SHAPE[1:])), np.ones((4, *SHAPE[1:]))])
FAULTS = {
    "too few dropped": (mask(1, 0.08), {}, RandomCode.SHARE),
    "none dropped": (np.ones(SHAPE), {}, RandomCode.SHARE),
    "not scaled": (mask(1), {"scale": 1.0}, RandomCode.KEPT),
    "scaled by 1 - p": (mask(1), {"scale": 0.9}, RandomCode.KEPT),
    "slightly off": (mask(1), {"scale": 1.0001 / 0.9}, RandomCode.KEPT),
    "the same mask in each row": (REPEATED, {}, None),
    "the same mask in each pair of the batch": (COPIED, {}, RandomCode.PAIRS),
    "in the first half only": (FIRST, {}, RandomCode.PLACES),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_wrong(name):
    is_kept, options, code = FAULTS[name]
    found, reason = verdict(dropout(X, is_kept, **options))
    assert found is Verdict.WRONG
    assert code in (None, reason)


def test_one_element_that_is_neither_dropped_nor_kept_is_found():
    call = dropout(X, mask(1))
    call.outputs["0"].values[3, 4, 5] = 0.123
    (output,) = check_random(call).outputs
    assert (output.verdict, output.reason.code, output.worst_index) == (Verdict.WRONG, RandomCode.KEPT, (3, 4, 5))


def test_channels_are_dropped_whole():
    x = np.random.default_rng(0).normal(size=(120, 100, 2, 2))
    channels = mask(2, 0.3, (120, 100, 1, 1))
    assert verdict(dropout(x, channels, 0.3, name="Functional.dropout2d")) == RIGHT
    found = verdict(dropout(x, mask(2, 0.3, x.shape), 0.3, name="Functional.dropout2d"))
    assert found == (Verdict.WRONG, RandomCode.IN_PART)


def test_alpha_dropout_keeps_mean_and_variance():
    alpha, p, kept = 1.7580993408473766, 0.2, mask(8, 0.2)
    scale = 1 / math.sqrt((alpha**2 * p + 1) * (1 - p))
    drawn = np.where(kept, X, -alpha) * scale + scale * alpha * p
    assert abs(drawn.var() - X.var()) < 0.03
    call = call_of("Functional.alpha_dropout", [tensor(X)], tensor(drawn), p=p, training=True)
    assert verdict(call) == RIGHT
    plainly = call_of("Functional.alpha_dropout", [tensor(X)], tensor(X * kept / 0.8), p=p, training=True)
    assert verdict(plainly) == (Verdict.WRONG, RandomCode.KEPT)


# --- draws ------------------------------------------------------------------------------------------------------


def draw(api, values, *args, dtype="float32"):
    filled = [tensor(np.zeros(values.shape), dtype)] if args else []
    return verdict(call_of(api, [*filled, *map(plain, args)], tensor(values, dtype)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_healthy_draws_are_right(dtype):
    random = np.random.default_rng(3)
    steps = {"bfloat16": 256, "float16": 2048, "float32": 2**24}[dtype]
    uniform = np.floor(random.random(SHAPE) * steps) / steps  # as frameworks draw them
    assert draw("Torch.rand", uniform, dtype=dtype) == RIGHT
    assert draw("Tensor.uniform_", 1 + 2 * uniform, 1, 3.0, dtype=dtype) == RIGHT
    assert draw("Torch.randn", random.normal(size=SHAPE), dtype=dtype) == RIGHT
    assert draw("Tensor.normal_", random.normal(0.5, 2.0, SHAPE), 0.5, 2.0, dtype=dtype) == RIGHT
    assert draw("Tensor.exponential_", random.exponential(0.5, SHAPE), 2.0, dtype=dtype) == RIGHT
    assert draw("Tensor.bernoulli_", (random.random(SHAPE) < 0.3) * 1.0, 0.3, dtype=dtype) == RIGHT


def test_planted_draws_are_wrong():
    random = np.random.default_rng(3)
    normal = random.normal(size=SHAPE)
    assert draw("Torch.randn", normal * 1.1) == (Verdict.WRONG, RandomCode.DISTRIBUTION)
    assert draw("Torch.randn", normal + 0.1) == (Verdict.WRONG, RandomCode.DISTRIBUTION)
    assert draw("Torch.randn", random.uniform(-1.7, 1.7, SHAPE)) == (Verdict.WRONG, RandomCode.DISTRIBUTION)
    assert draw("Torch.rand", normal) == (Verdict.WRONG, RandomCode.OUTSIDE)
    assert draw("Torch.rand", np.repeat(random.random((8, 50, 30)), 2, -1)) == (Verdict.WRONG, RandomCode.PAIRS)
    assert draw("Tensor.bernoulli_", (random.random(SHAPE) < 0.3) * 1.0, 0.35)[0] is Verdict.WRONG
    assert draw("Tensor.bernoulli_", normal, 0.3) == (Verdict.WRONG, RandomCode.OUTSIDE)


def test_arguments_that_no_call_has_are_not_checked():
    for p in (-0.5, 1.5, math.nan):
        assert check_random(call_of("Functional.dropout", [tensor(X)], tensor(X), p=p)) is None
        assert check_random(call_of("Tensor.bernoulli_", [tensor(X), plain(p)], tensor(X))) is None
    integers = ReplayTensor(values=np.ones(SHAPE, np.int64), dtype="int64")
    assert check_random(call_of("Functional.dropout", [integers], integers)) is None
    for shape in ((), (0, 3)):
        empty = tensor(np.zeros(shape))
        assert verdict(call_of("Functional.dropout", [empty], empty, p=0.1))[0] is Verdict.CANNOT_TELL


def test_other_functions_are_not_checked():
    assert check_random(call_of("Functional.softmax", [tensor(X)], tensor(X))) is None
    assert check_random(call_of("Tensor.uniform_", [tensor(X), tensor(X)], tensor(X))) is None
    assert check_random(call_of("Functional.dropout", [tensor(X)], tensor(X[0]))) is None
