"""Columns of the monitor's quantities, computed from numbers that a device has made."""

import math

import pytest

from msprobe_core.monitor.layer_features import spectral_columns
from msprobe_core.monitor.measures import rank_of
from msprobe_core.monitor.sampled_elements import stride_of
from msprobe_core.monitor.updates import columns_of


@pytest.mark.parametrize("size", [1, 2, 1000, 4096 * 4096, 97, 30 * 1024 * 1024])
def test_samples_are_small_and_meet_all_rows_and_columns(size):
    stride = stride_of(size, 1000)
    num_sampled = math.ceil(size / stride)
    assert num_sampled <= 1000
    assert num_sampled > min(size, 1000) * 0.9
    assert stride == 1 or math.gcd(stride, size) == 1


@pytest.mark.parametrize(
    ("units", "num_rounded", "debiased"), [(0.0, 1, 5.0), (12.0, 1, math.sqrt(24)), (12.0, 2, math.sqrt(23))]
)
def test_rounding_is_subtracted_from_squares(units, num_rounded, debiased):
    sums = {"change": 25.0, "values": 100.0, "unchanged": 0.25, "units": units}
    found = columns_of(sums, scale=4.0, num_rounded=num_rounded)
    assert found == pytest.approx(
        {
            "norm": 10.0, "norm_debiased": 2 * debiased, "ratio": 0.5, "ratio_debiased": debiased / 10,
            "unchanged": 0.25,
        }
    )  # fmt: skip


def test_what_rounding_has_lost_is_nan():
    found = columns_of({"change": 5.0, "values": 0.0, "unchanged": 0.9, "units": 12.0}, scale=1.0, num_rounded=1)
    assert found["norm"] == math.sqrt(5)
    assert all(math.isnan(found[column]) for column in ("norm_debiased", "ratio", "ratio_debiased"))
    broken = columns_of({"change": math.nan, "values": 1.0, "unchanged": 0.0}, scale=1.0, num_rounded=1)
    assert math.isnan(broken["norm"])


def test_a_bidiagonalisation_that_ends_early_is_used_to_there():
    nan = math.nan
    numbers = {"squares": 9.0, "alpha0": 3.0, "beta0": 0.0, "alpha1": nan, "beta1": nan}
    assert spectral_columns(numbers) == {"sr": 1.0, "kernel_norm": 3.0}


def test_ranks_of_percentiles():
    assert [rank_of(share, 5) for share in (0.01, 0.25, 0.5, 0.99)] == [1, 2, 3, 5]
    assert rank_of(0.99, 1) == 1
