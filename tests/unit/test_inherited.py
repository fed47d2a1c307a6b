"""A coarse tensor widens the limits of values computed from it, and no others."""

import numpy as np
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import compare_dumps

FLOAT8, HALF = "torch.float8_e4m3fn", "torch.bfloat16"
LIMITS = {"torch.float32": 1e-3, HALF: 0.05, FLOAT8: 0.25}
RNG = np.random.default_rng(0)


def some(size=12):
    """Return numbers that no other tensor has."""
    return RNG.standard_normal(size).round(6)


@pytest.fixture
def limits(tmp_path):
    """Compare a dump with itself, or with another; return the limits of rows by name."""

    def limits(data, golden=None, *, parents=None):
        sides = [
            write_dump(tmp_path / name, each, parents=parents) for name, each in (("t", data), ("g", golden or data))
        ]
        rows = compare_dumps(*sides).units[0].rows.filter(pl.col("judged_error").is_not_null())
        return dict(rows.select("name_target", "limit").rows())

    return limits


def test_a_tensor_in_float8_is_not_what_everything_comes_from(limits):
    """An error of a fifth in a later float32 call is a fault."""
    given, made, coarse = some(), some(), some()
    data = {
        "Tensor.to.0.forward": api(tensor(some()), output=tensor(coarse, dtype=FLOAT8)),
        "Functional.linear.0.forward": api(tensor(given), output=tensor(made)),
        "Torch.exp.0.forward": api(tensor(made), output=tensor(some())),
    }
    found = limits(data)
    assert found["Tensor.to.0.forward.output.0"] == 0.25
    assert {limit for name, limit in found.items() if not name.endswith("to.0.forward.output.0")} == {1e-3}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [HALF, FLOAT8])
def test_a_fault_after_a_coarse_tensor_is_found(tmp_path, dtype, nested):
    given, made = some(), some()
    entries = (
        ["Module.a.Quantize.forward.0", "Module.b.Linear.forward.0"]
        if nested
        else ["Tensor.to.0.forward", "Functional.linear.0.forward"]
    )
    for side, factor in (("t", 1.2), ("g", 1.0)):
        rng = np.random.default_rng(1)
        own = {
            entries[0]: api(tensor(given), output=tensor(rng.standard_normal(9), dtype=dtype)),
            entries[1]: api(tensor(given), output=tensor(made * factor)),
        }
        parents = dict.fromkeys(entries, "Module.Net.forward.0") if nested else None
        if nested:
            own["Module.Net.forward.0"] = api(tensor(given), output=tensor(made * factor))
        write_dump(tmp_path / side, own, parents=parents)
    (unit,) = compare_dumps(tmp_path / "t" / "dump.json", tmp_path / "g" / "dump.json").units
    assert not unit.agrees
    assert unit.first_fault.entry == entries[1]


@pytest.mark.parametrize("dtype", [HALF, FLOAT8])
def test_what_is_computed_from_it_is_no_better(limits, dtype):
    coarse, made, last = some(), some(), some()
    data = {
        "Torch.mm.0.forward": api(tensor(some()), tensor(some()), output=tensor(coarse, dtype=dtype)),
        # The same numbers, cast and laid out otherwise, which changes how the norm is summed up.
        "Torch.add.0.forward": api(
            tensor(coarse, shape=[3, 4], Norm=float(np.linalg.norm(coarse)) * (1 + 1e-7)),
            tensor(some()),
            output=tensor(made),
        ),
        "Torch.exp.0.forward": api(tensor(made), output=tensor(last)),
        "Torch.sin.0.forward": api(tensor(some()), output=tensor(some())),
    }
    found = limits(data)
    assert {
        found[f"Torch.{row}"] for row in ("add.0.forward.input.0", "add.0.forward.output.0", "exp.0.forward.output.0")
    } == {LIMITS[dtype]}
    assert {found[f"Torch.{row}"] for row in ("add.0.forward.input.1", "sin.0.forward.output.0")} == {1e-3}


def test_parts_and_wholes_are_recognised_by_their_extremes(limits):
    whole, others, made = some(20), some(7), some()
    whole[3] = 9.0
    data = {
        "Torch.mm.0.forward": api(tensor(some()), output=tensor(whole, dtype=HALF)),
        "Torch.mul.0.forward": api(tensor(whole[:8]), output=tensor(some())),
        "Torch.sum.0.forward": api(tensor(np.concatenate([whole, others])), output=tensor(made)),
        "Torch.sin.0.forward": api(tensor(some()), output=tensor(some())),
    }
    found = limits(data)
    assert (found["Torch.mul.0.forward.output.0"], found["Torch.sum.0.forward.output.0"]) == (0.05, 0.05)
    assert found["Torch.sin.0.forward.output.0"] == 1e-3


def test_constants_come_from_nowhere(limits):
    data = {
        "Torch.mm.0.forward": api(tensor(some()), output=tensor(np.zeros(4), dtype=HALF)),
        "Torch.add.0.forward": api(tensor(np.zeros(4)), tensor(some()), output=tensor(some())),
    }
    assert limits(data)["Torch.add.0.forward.output.0"] == 1e-3


NET = "Module.Net.forward.0"


def test_what_nothing_recorded_has_made_comes_from_the_enclosing_module(limits):
    """Of two blocks the first computes in bfloat16 inside; in either something between two calls is not recorded."""
    given, first, second = some(), some(), some()
    data, parents = {}, {}
    for block, dtype, made in (("a", HALF, first), ("b", "torch.float32", second)):
        call = f"Module.{block}.Block.forward.0"
        one, other = f"Module.{block}.one.Linear.forward.0", f"Module.{block}.other.Linear.forward.0"
        data[one] = api(tensor(given if block == "a" else some()), output=tensor(some(), dtype=dtype))
        data[other] = api(tensor(some()), output=tensor(made))
        data[call] = api(tensor(given), output=tensor(made))
        parents |= {one: call, other: call, call: NET}
    data[NET] = api(tensor(given), output=tensor(second))
    found = limits(data, parents=parents)
    assert found["Module.a.other.Linear.forward.0.output.0"] == 0.05
    assert found["Module.a.Block.forward.0.output.0"] == 0.05
    for name in ("b.other.Linear.forward.0.output.0", "b.Block.forward.0.output.0", "Net.forward.0.output.0"):
        assert found[f"Module.{name}"] == 1e-3


def test_without_modules_it_is_what_most_of_the_dump_is(limits):
    most = {
        f"Torch.mm.{i}.forward": api(tensor(some(), dtype=HALF), output=tensor(some(), dtype=HALF)) for i in range(3)
    }
    last = {"Torch.exp.0.forward": api(tensor(some()), output=tensor(some()))}
    assert limits(most | last)["Torch.exp.0.forward.output.0"] == 0.05


def test_gradients_are_as_coarse_as_what_they_come_through(limits):
    """The gradient of a sum of two branches was never recorded as such: it is known by who took the sum."""
    shared, left, right, other = some(), some(), some(), some()
    data = {
        "Torch.exp.0.forward": api(tensor(some()), output=tensor(shared)),
        "Torch.mm.0.forward": api(tensor(shared), output=tensor(left, dtype=HALF)),
        "Torch.sin.0.forward": api(tensor(shared), output=tensor(right)),
        "Torch.cos.0.forward": api(tensor(some()), output=tensor(other)),
        "Torch.cos.0.backward": {"input": [tensor(some())], "output": [tensor(some())]},
        "Torch.sin.0.backward": {"input": [tensor(some())], "output": [tensor(some())]},
        "Torch.mm.0.backward": {"input": [tensor(some(), dtype=HALF)], "output": [tensor(some())]},
        "Torch.exp.0.backward": {"input": [tensor(some())], "output": [tensor(some())]},
    }
    found = limits(data)
    for call, limit in (("cos", 1e-3), ("sin", 1e-3), ("mm", 0.05), ("exp", 0.05)):
        assert found[f"Torch.{call}.0.backward.output.0"] == limit, call


def test_gradients_of_parameters_are_as_coarse_as_their_module(limits):
    """Also if they come before its backward, and if an enclosing module uses them."""
    gradient, weight = some(), {"parameters": {"weight": tensor(some())}}
    data = {
        "Module.a.Linear.forward.0": api(tensor(some()), output=tensor(some())) | weight,
        "Module.b.Norm.forward.0": api(tensor(some()), output=tensor(some(), dtype=HALF)),
        "Module.a.Linear.parameters_grad.0": {"weight": [tensor(some())]},
        "Module.b.inner.Linear.parameters_grad.0": {"weight": [tensor(some())]},
        "Module.c.Linear.parameters_grad.0": {"weight": [tensor(some())]},
        "Module.a.Linear.backward.0": {"input": [tensor(gradient, dtype=HALF)], "output": [tensor(some())]},
    }  # fmt: skip
    found = limits(data)
    assert found["Module.a.Linear.parameters_grad.0.weight"] == 0.05
    assert found["Module.b.inner.Linear.parameters_grad.0.weight"] == 0.05
    assert found["Module.c.Linear.parameters_grad.0.weight"] == 1e-3
    assert found["Module.a.Linear.forward.0.parameters.weight"] == 1e-3


@pytest.mark.parametrize(
    ("lowest", "limit"), [(-65504.0, 0.02), (-3.3895313892515355e38, 0.05), (-3.4028234663852886e38, 1e-3)]
)
def test_a_mask_is_as_coarse_as_the_format_whose_lowest_number_it_holds(limits, lowest, limit):
    data = {"Torch.where.0.forward": api(tensor(some()), output=tensor([0.0, lowest]))}
    assert limits(data)["Torch.where.0.forward.output.0"] == limit
