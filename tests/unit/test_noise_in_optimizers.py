"""What Adam makes of gradients that are rounding noise, in two healthy runs without repetitions, and in faulty ones."""

import numpy as np
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import CompareOptions
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.judge.rounding_rules import RoundingRule, without
from msprobe_core.locate import LocateOptions, LocateVerdict, locate

SIZE = 64
LAST_DIGIT = 1e-7
LR, EPSILON = 0.01, 1e-8
SCALE = 1024.0


def drawn(key, size=SIZE):
    return np.random.default_rng(key).normal(size=size)


def nearly(values, side, key):
    """Return values with other last digits on the target's side."""
    return values * (1 + LAST_DIGIT * drawn([key, 77], values.size)) if side == "target" else values


def gradients(side, *, noise):
    """Return the gradients of two biases: one is known, of the other a part is the rounding of its sums."""
    of_noise = 1e-11 * drawn([5, side == "target"])
    known = nearly(drawn(1) * 1e-3, side, 1)
    if noise == "all":
        return [known, of_noise]
    if noise == "the sum over ranks":
        return [known, nearly(drawn(2) * 1e-3, side, 2)]
    return [known, np.where(np.arange(SIZE) < SIZE // 3, of_noise, nearly(drawn(2) * 1e-3, side, 2))]


def adam(given, parameters, factors):
    """Return the calls of a first step of AdamW: name, tensors given and made for all parameters, and ``value``."""
    zeros = [np.zeros(SIZE)] * len(given)
    decayed = [each * 0.999 for each in parameters]
    moments, squares = [0.1 * each for each in given], [0.001 * each**2 for each in given]
    roots, sizes = [np.sqrt(each) for each in squares], [np.abs(each) for each in given]
    divisors = [each + EPSILON for each in sizes]
    made = [
        each - factor * 10 * LR * moment / divisor
        for each, factor, moment, divisor in zip(decayed, factors, moments, divisors, strict=True)
    ]
    return [
        ("mul", [parameters], decayed, None),
        ("lerp", [zeros, given], moments, None),
        ("addcmul", [zeros, given, given], squares, 0.001),
        ("sqrt", [squares], roots, None),
        ("div", [roots], sizes, None),
        ("add", [sizes], divisors, None),
        ("addcdiv", [decayed, moments, divisors], made, -10 * LR),
    ]


def one_by_one(calls):
    """Return the records of an optimizer that goes from parameter to parameter."""
    numbers = range(len(calls[0][2]))
    return {
        f"Tensor.{name}_.{i}.forward": api(
            *[tensor(each[i]) for each in given], output=tensor(made[i]), **({} if value is None else {"value": value})
        )
        for i in numbers
        for name, given, made, value in calls
    }


def on_lists(calls):
    """Return the records of an optimizer that treats all parameters in each call, as on a GPU."""
    return {
        f"Torch._foreach_{name}_.0.forward": {
            "input_args": [[tensor(each) for each in listed] for listed in given],
            "input_kwargs": {} if value is None else {"value": value},
            "output": [tensor(each) for each in made],
        }
        for name, given, made, value in calls
    }


def norms(data, side, given, wrong_total):
    """Add the calls of clipping, which puts the norms of all gradients together."""
    own = [float(np.linalg.norm(each)) for each in given]
    data["Torch._foreach_norm.0.forward"] = api(
        [tensor(each) for each in given], output=[tensor(norm, shape=[]) for norm in own]
    )
    total = np.linalg.norm(own) * (1.01 if side == "target" and wrong_total else 1)
    data["Functional.norm.0.forward"] = api(tensor(own), output=tensor(total, shape=[]))


def reduced(data, side, given, factor, noise):
    """Add the sums over two ranks, and return them; the other part of noise is other noise, or cancels this one."""
    others = [nearly(drawn(31) * 1e-3, side, 31), 1e-11 * drawn([32, side == "target"])]
    if noise == "the sum over ranks":
        others[1] = others[1] - given[1]
    sums = [each + other for each, other in zip(given, others, strict=True)]
    if side == "target":
        sums[1] = sums[1] * factor
    for i, (each, made) in enumerate(zip(given, sums, strict=True)):
        data[f"Distributed.all_reduce.{i}.forward"] = api(tensor(each), output=tensor(made))
    return sums


def unscaled(data, side, scaled, wrong):
    """Add the call by which a GradScaler divides all gradients by its factor, or the target by another one."""
    made = [each / (SCALE * (1.01 if side == "target" and wrong else 1)) for each in scaled]
    data["Torch._amp_foreach_non_finite_check_and_unscale_.0.forward"] = {
        "input_args": [[tensor(each) for each in scaled], tensor([0.0]), tensor([1 / SCALE])],
        "input_kwargs": {},
        "output": [tensor(each) for each in made],
    }
    return made


def located(
    tmp_path, write=one_by_one, *, noise="all", factors=(1.0, 1.0), wrong_total=False, sum_factor=None, wrong_scale=None
):
    """Write both runs, the target with updates that are multiplied by factors; return what is located."""
    for side in ("target", "golden"):
        data = {}
        scale = 1.0 if wrong_scale is None else SCALE
        given = [each * scale for each in gradients(side, noise=noise)]
        x, upstream = nearly(drawn(8), side, 8), nearly(drawn(9) * 1e-2 * scale, side, 9)
        for i, each in enumerate(given):
            data[f"Functional.linear.{i}.forward"] = api(tensor(x), output=tensor(x))
            data[f"Functional.linear.{i}.backward"] = {"input": [tensor(upstream)], "output": [tensor(each)]}
        if wrong_scale is not None:
            given = unscaled(data, side, given, wrong_scale)
        if sum_factor is not None:
            given = reduced(data, side, given, sum_factor, noise)
        norms(data, side, given, wrong_total)
        parameters = [drawn(20 + i) * 0.1 for i in range(len(given))]
        data |= write(adam(given, parameters, factors if side == "target" else (1.0, 1.0)))
        write_dump(tmp_path / side / "step0" / "rank0", data)
    options = LocateOptions(compare=CompareOptions(noise=NoiseModel()))
    return locate(tmp_path / "target", tmp_path / "golden", options)


@pytest.mark.parametrize("write", [one_by_one, on_lists])
@pytest.mark.parametrize("noise", ["all", "a part"])
def test_updates_from_noise_are_no_fault_without_repetitions(tmp_path, noise, write):
    found = located(tmp_path, write, noise=noise)
    assert (found.verdict, found.suspects) == (LocateVerdict.AGREE, [])


@pytest.mark.parametrize("noise", ["all", "the sum over ranks"])
@pytest.mark.parametrize(("factor", "is_suspect"), [(1.0, False), (1e6, True)])
def test_a_sum_over_ranks_is_noise_unless_it_is_larger_than_roundings(tmp_path, factor, is_suspect, noise):
    found = located(tmp_path, sum_factor=factor, noise=noise)
    assert ("Distributed.all_reduce.1.forward" in {suspect.entry for suspect in found.suspects}) is is_suspect
    assert (found.verdict is LocateVerdict.FAULT) is is_suspect


@pytest.mark.parametrize(
    ("noise", "rule"), [("all", RoundingRule.NOISE_IN_UPDATES), ("a part", RoundingRule.SMALL_DIVISORS)]
)
def test_each_kind_of_noise_needs_its_rule(tmp_path, noise, rule):
    with without(rule):
        assert located(tmp_path, noise=noise).verdict is LocateVerdict.FAULT


@pytest.mark.parametrize("write", [one_by_one, on_lists])
@pytest.mark.parametrize("noise", ["all", "a part"])
def test_a_wrong_update_beside_noise_is_a_fault(tmp_path, noise, write):
    found = located(tmp_path, write, noise=noise, factors=(1.1, 1.0))
    assert "addcdiv_.0.forward" in found.suspects[0].entry


def test_a_wrong_total_norm_is_a_fault_although_it_includes_noise(tmp_path):
    assert located(tmp_path, wrong_total=True).suspects[0].entry == "Functional.norm.0.forward"


@pytest.mark.parametrize("wrong", [False, True])
def test_noise_is_divided_by_the_factor_of_the_loss_as_all_gradients_are(tmp_path, wrong):
    found = located(tmp_path, on_lists, wrong_scale=wrong)
    assert (found.verdict is LocateVerdict.FAULT) is wrong
    assert all("unscale" in suspect.entry for suspect in found.suspects[:1])
