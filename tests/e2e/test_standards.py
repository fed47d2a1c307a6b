"""The tolerances and roundings of the published standards are those of PyTorch."""

import re

import pytest
import torch

from msprobe_core.api_check.published import published_columns
from msprobe_core.api_check.standards import standards
from msprobe_core.model import ReplayTensor

DTYPES = {name: getattr(torch, name) for name in standards().torch_testing if name != "other"}


def accepts(actual, expected, **options):
    try:
        torch.testing.assert_close(actual, expected, **options)
    except AssertionError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("name", DTYPES)
def test_tolerances_are_those_of_assert_close(name):
    golden = torch.ones(2, dtype=DTYPES[name])
    with pytest.raises(AssertionError) as raised:
        torch.testing.assert_close(golden + golden, golden)
    absolute, relative = (float(text) for text in re.findall(r"up to (\S+) allowed", str(raised.value)))
    own = standards().tolerance(name)
    assert (own.rtol, own.atol) == (relative, absolute)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_what_assert_close_accepts_is_what_the_column_says(name):
    generator = torch.Generator().manual_seed(0)
    own = standards().tolerance(name)
    found = set()
    for _ in range(60):
        golden = torch.randn(20, generator=generator, dtype=torch.float64)
        noise = 10.0 ** float(torch.empty(1).uniform_(-8, -1, generator=generator))
        actual = (golden * (1 + noise * torch.randn(20, generator=generator, dtype=torch.float64))).to(DTYPES[name])
        recorded = ReplayTensor(values=actual.to(torch.float32).numpy(), dtype=name)
        columns = published_columns(recorded, golden.numpy(), own=None, api="Torch.sin.0")
        expected = accepts(actual.double(), golden, rtol=own.rtol, atol=own.atol)
        assert columns.torch_testing_status == ("pass" if expected else "error")
        found.add(expected)
    assert found == {True, False}


@pytest.mark.parametrize("name", ["float16", "float32"])
def test_golden_values_are_rounded_as_by_pytorch(name):
    generator = torch.Generator().manual_seed(1)
    golden = torch.cat([torch.randn(2000, generator=generator, dtype=torch.float64), torch.tensor([0.0, 1e-40, 1e39])])
    rounded = golden.to(DTYPES[name])
    recorded = ReplayTensor(values=rounded.to(torch.float32).numpy(), dtype=name)
    # Nothing is above or below the rounded golden values, and what overflows does so on both sides.
    columns = published_columns(recorded, golden.numpy(), own=None, api="Torch.sin.0")
    assert columns.error_balance == 0
    up = torch.nextafter(rounded[:1000].float(), torch.tensor(torch.inf)).to(DTYPES[name])
    if name == "float32":
        moved = ReplayTensor(values=torch.cat([up, rounded[1000:]]).numpy(), dtype=name)
        assert published_columns(moved, golden.numpy(), own=None, api="x").error_balance == 1000 / 2003
