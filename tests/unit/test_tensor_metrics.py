"""The six metrics of stored tensors, against the published table and against NumPy in float64."""

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from msprobe_core.compare.tensor_pass import compare_tensors
from msprobe_core.compat.verdicts import with_metrics_of_tables

NAN, INF = float("nan"), float("inf")


def f32(*values):
    return np.array(values, np.float32)


RAMP = np.arange(1, 101, dtype=np.float32)


def scaled_ramp(number):
    values = RAMP.copy()
    values[:number] *= np.float32(1.01)
    return values


# Target, golden, and the six cells that users' tables have for them.
TABLE = {
    "itself": (f32(1, 2, 3, 4), f32(1, 2, 3, 4), (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)),
    "twice": (f32(2, 4, 6, 8), f32(1, 2, 3, 4), (1.0, 5.477225575051661, 4.0, 1.0, 0.0, 0.0)),
    "negated": (f32(-1, -2, -3), f32(1, 2, 3), (-1.0, 7.483314773547883, 6.0, 2.0, 0.0, 0.0)),
    "orthogonal": (f32(1, 0), f32(0, 1), (0.0, 1.4142135623730951, 1.0, 8388608.0, 0.0, 0.0)),
    "both zero": (np.zeros(4, np.float32), np.zeros(4, np.float32), (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)),
    "zero against one": (np.zeros(4, np.float32), np.ones(4, np.float32), (NAN, 2.0, 1.0, 1.0, 0.0, 0.0)),
    "one against zero": (np.ones(4, np.float32), np.zeros(4, np.float32), (NAN, 2.0, 1.0, 8388608.0, 0.0, 0.0)),
    "golden zero in one place": (
        f32(1, 1e-3, 3, 4), f32(1, 0, 3, 4), (1.0, 0.0010000000474974513, 0.001000000047, 8388.6083984375, 0.75, 0.75),
    ),
    "just within a thousandth": (
        f32(1.0009, 2, 3, 4), f32(1, 2, 3, 4), (1.0, 0.0009000301361083984, 0.000900030136, 0.000900030136, 1.0, 1.0),
    ),
    "just over a thousandth": (
        f32(1.001, 2, 3, 4), f32(1, 2, 3, 4), (1.0, 0.001000046730041504, 0.00100004673, 0.00100004673, 0.75, 1.0),
    ),
    "within five thousandths": (
        f32(1.004, 2.008, 3, 4), f32(1, 2, 3, 4),
        (0.999999, 0.008944156756046765, 0.007999897003, 0.003999948502, 0.5, 1.0),
    ),
    "NaN at the same place": (f32(1, NAN, 3), f32(1, NAN, 3), (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)),
    "Inf at the same place": (
        f32(1, INF, 3), f32(1, INF, 3.5), (0.999056158355, 0.5, 0.5, 0.142857149243, 0.666666666667, 0.666666666667),
    ),
    "one dimension more": (np.array([[1, 2, 3, 4]], np.float32), f32(1, 2, 3, 4), (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)),
    "int64": (
        np.array([1, 2, 3]), np.array([1, 2, 4]), (0.991460133984, 1.0, 1.0, 0.25, 0.666666666667, 0.666666666667),
    ),
    "bool": (
        np.array([True, False, True]), np.array([True, True, True]),
        (0.816496580928, 1.0, 1.0, 1.0, 0.666666666667, 0.666666666667),
    ),
    "float16 against float32": (np.array([1, 2, 3], np.float16), f32(1, 2, 3), (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)),
    "float64": (np.array([1.000000001, 2]), np.array([1.0, 2]), (1.0, 1.000000082740371e-09, 1e-09, 1e-09, 1.0, 1.0)),
    "huge": (f32(3e38, 1), f32(-3e38, 1), (-1.0, 6.0000000109955115e38, 6.0000000109955115e38, INF, 0.5, 0.5)),
    "45 of 100": (scaled_ramp(45), RAMP, (0.999996, 1.7718618504881694, 0.450000762939, 0.010000037961, 0.55, 0.55)),
    "95 of 100": (scaled_ramp(95), RAMP, (0.999994, 5.3881306023170765, 0.949996948242, 0.010000037961, 0.05, 0.05)),
}  # fmt: skip


SIX = ("cosine", "euclidean", "largest_abs", "largest_rel", "within_1e3", "within_5e3")


def metrics_in_tables(target, golden):
    """Return the six as tables of other tools have them."""
    metrics = compare_tensors(target, golden)
    norms = {
        f"norm_{side}": float(np.linalg.norm(values.astype(np.float64)))
        for side, values in (("target", target), ("golden", golden))
    }
    row = pl.DataFrame([{name: getattr(metrics, name) for name in SIX} | norms])
    return with_metrics_of_tables(row).row(0)[: len(SIX)]


@pytest.mark.parametrize("case", TABLE)
def test_published_table(case):
    target, golden, expected = TABLE[case]
    assert metrics_in_tables(target, golden) == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("unit", [1e-7, 1e-14, 1e-20, 1e-37, 1e-300])
def test_tiny_tensors_have_metrics_as_others(unit, dtype):
    golden = (np.random.default_rng(0).standard_normal(100) * unit).astype(dtype)
    if not golden.any():
        pytest.skip("float32 has no such numbers")
    flipped = compare_tensors(-golden, golden)
    assert (flipped.cosine, flipped.error, flipped.scale) == (pytest.approx(-1), pytest.approx(2), pytest.approx(-2))
    assert flipped.largest_abs == 2.0 * float(np.abs(golden).max())
    assert compare_tensors(golden, golden).cosine == 1.0
    assert np.isnan(compare_tensors(np.zeros_like(golden), golden).cosine)


def test_near_equal_tensors_are_not_rounded_to_equal():
    golden = np.ones(4)
    metrics = compare_tensors(golden + np.array([1e-13, 0, 0, 1e-3]), golden)
    assert 1 - metrics.cosine == pytest.approx(9.37e-8, rel=1e-2)
    assert compare_tensors(golden + 1e-13, golden).largest_abs == pytest.approx(1e-13, rel=1e-2)


@pytest.mark.parametrize(
    ("target", "golden", "largest_abs", "largest_rel"),
    [
        (np.float32(2.5), np.float32(2.0), 0.5, 0.25),
        (np.array([2.5], np.float32), np.array([2.0], np.float32), 0.5, 0.25),
        (np.array(True), np.array(False), 1.0, 4503599627370496.0),
    ],
)
def test_single_elements_have_two_metrics(target, golden, largest_abs, largest_rel):
    metrics = compare_tensors(np.asarray(target), np.asarray(golden))
    assert (metrics.largest_abs, metrics.largest_rel) == (largest_abs, largest_rel)
    assert (metrics.cosine, metrics.euclidean, metrics.within_1e3, metrics.status) == (None, None, None, "unsupported")
    assert metrics.error > 0.2


def test_what_cannot_be_compared_says_why():
    shapes = compare_tensors(np.zeros((2, 2)), np.zeros(4))
    assert (shapes.status, shapes.error) == ("shape unmatched", None)
    assert "(2, 2) and (4,)" in shapes.problem
    empty = compare_tensors(np.zeros(0), np.zeros(0))
    assert (empty.status, empty.error, empty.problem) == ("unsupported", 0.0, None)


@pytest.mark.parametrize(
    ("target", "golden"),
    [(f32(1, NAN, 3), f32(1, 2, 3)), (f32(1, 2, 3), f32(1, NAN, 3)), (f32(1, INF), f32(1, 2)),
     (f32(1, INF), f32(1, -INF)), (f32(NAN, 1), f32(INF, 1))],
)  # fmt: skip
def test_special_values_must_be_the_same(target, golden):
    metrics = compare_tensors(target, golden)
    assert (metrics.status, metrics.error) == ("N/A", None)
    assert metrics.problem == "NaN or Inf are not the same on both sides"


def test_the_imaginary_part_counts():
    metrics = compare_tensors(np.array([1 + 1j, 2 - 1j]), np.array([1 + 1j, 2 - 2j]))
    assert metrics.largest_abs == 1.0
    assert metrics.error == pytest.approx(1 / np.sqrt(8))


values = hnp.arrays(np.float64, st.integers(2, 30), elements=st.floats(-1e6, 1e6))


@given(values, st.floats(-100, 100))
def test_metrics_agree_with_numpy(golden, shift):
    target = golden + shift
    metrics = compare_tensors(target, golden)
    assert metrics.euclidean == pytest.approx(np.linalg.norm(target - golden), rel=1e-9)
    assert metrics.largest_abs == pytest.approx(np.abs(target - golden).max(), abs=1e-11)
    sizes = [np.abs(side).max() for side in (target, golden)]
    assume(min(sizes) > np.finfo(np.float64).tiny)
    # Of size 1, so that no square of NumPy's underflows: the cosine is the same.
    one, other = (side / size for side, size in zip((target, golden), sizes, strict=True))
    assert metrics.cosine == pytest.approx(float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)), abs=1e-6)


@pytest.mark.parametrize(("target", "expected"), [([0.0, 1e-17], 1.0), ([1.0, 0.0], np.nan)])
def test_in_tables_of_other_tools_a_norm_below_the_epsilon_counts_as_zero(target, expected):
    assert metrics_in_tables(np.array(target), np.array([1e-17, 0.0]))[0] == pytest.approx(expected, nan_ok=True)


@given(values, st.floats(1e-3, 1e3))
def test_error_does_not_depend_on_the_unit(golden, unit):
    target = golden * 1.01
    plain, scaled = compare_tensors(target, golden), compare_tensors(target * unit, golden * unit)
    assert scaled.error == pytest.approx(plain.error, rel=1e-6)


@given(values)
def test_a_tensor_agrees_with_itself(golden):
    metrics = compare_tensors(golden.copy(), golden)
    assert (metrics.error, metrics.euclidean, metrics.largest_abs, metrics.within_1e3) == (0.0, 0.0, 0.0, 1.0)


def test_large_integers_are_compared_exactly():
    large = 2**53
    metrics = compare_tensors(np.array([large + 1, 1]), np.array([large, 1]))
    assert metrics.largest_abs == 1.0
    assert metrics.error > 0
    top = np.array([2**64 - 1], np.uint64)
    assert compare_tensors(top, np.array([2**64 - 2], np.uint64)).error > 0
    assert compare_tensors(top, top.copy()).error == 0.0


def test_texts_are_equal_or_not():
    assert compare_tensors(np.array(["a", "b"]), np.array(["a", "b"])).error == 0.0
    assert compare_tensors(np.array(["a", "b"]), np.array(["a", "c"])).problem == "the texts differ"
    assert compare_tensors(np.array(["1"]), np.array([1])).problem == "the texts differ"
