"""Metrics and statuses of published standards, against values computed by hand, and with exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from limited import num_calls

from msprobe_core.api_check import published
from msprobe_core.api_check.published import api_name, published_columns, ratio_to
from msprobe_core.api_check.standards import Algorithm, standards
from msprobe_core.model import ReplayTensor

EPS = {"float16": Fraction(1, 2**23), "bfloat16": Fraction(1, 2**8), "float32": Fraction(1, 2**52)}
SMALL = {"float16": 2.0**-10, "bfloat16": 2.0**-10, "float32": 2.0**-20}
BENCHMARK = {"float16": 1e-16, "bfloat16": 1e-16, "float32": 2.0**-30}
ABSOLUTE = {"float16": 2.0**-16, "bfloat16": 1e-16, "float32": 2.0**-30}
RTOL = {"float16": 2.0**-10, "bfloat16": 2.0**-8, "float32": 2.0**-20}
FORM = {"float16": (-14, 10, 1), "bfloat16": (-126, 7, 1), "float32": (-126, 23, 32), "float8_e4m3fn": (-6, 3, 1),
        "float8_e5m2": (-14, 2, 1)}  # fmt: skip


def of(values, golden, dtype="float32", api="Torch.sin.0", own=None, inputs=frozenset()):
    holder = {"float16": np.float16, "float64": np.float64, "complex64": np.complex64}.get(dtype, np.float32)
    if not dtype.startswith(("float", "bfloat", "complex")):
        holder = np.dtype(dtype)
    recorded = ReplayTensor(values=np.array(values, holder), dtype=dtype)
    golden = np.array(golden, np.float64) if np.asarray(golden).dtype.kind == "f" else np.array(golden)
    own = None if own is None else np.array(own, holder)
    return published_columns(recorded, golden, own=own, api=api, inputs=inputs)


def rounded(value, dtype):
    """Round as the error balance does, for which bfloat16 counts as float32."""
    return float(np.float16(value)) if dtype == "float16" else float(np.float32(value))


def stored(value, dtype):
    """Round to the dtype; to 8 significant bits, ties to even, in bfloat16."""
    if dtype != "bfloat16" or value == 0:
        return rounded(value, dtype)
    unit = Fraction(2) ** (math.frexp(value)[1] - 8)
    return float(round(Fraction(value) / unit) * unit)


def by_fractions(values, golden, dtype):
    """The definitions, one element after the other, in exact arithmetic; finite numbers only."""
    errors = [abs(Fraction(v) - Fraction(g)) for v, g in zip(values, golden, strict=True)]
    small = [abs(g) < SMALL[dtype] for g in golden]
    relative = [e / (abs(Fraction(g)) + EPS[dtype]) for e, g in zip(errors, golden, strict=True)]
    normal = [r for r, is_small in zip(relative, small, strict=True) if not is_small]
    of_small = [e for e, is_small in zip(errors, small, strict=True) if is_small]
    n, k = len(values), len(of_small)
    mean = float(sum(e * e for e, is_small in zip(errors, small, strict=True) if not is_small) / n)
    least, mantissa, threshold = FORM[dtype]
    ulps = []
    for error, g in zip(errors, golden, strict=True):
        exponent = 0 if g == 0 else max(math.frexp(g)[1] - 1, least)
        ulps.append(error * Fraction(2) ** (mantissa - exponent))
    signs = [(v > rounded(g, dtype)) - (v < rounded(g, dtype)) for v, g in zip(values, golden, strict=True)]
    within = [sum(r < Fraction(1, 10**d) for r in relative) / n for d in (2, 3, 4)]
    return {
        "max_absolute": float(max(errors)),
        "within_percent": within[0], "within_thousandth": within[1], "within_ten_thousandth": within[2],
        "error_balance": abs(sum(signs)) / n,
        "rmse": math.sqrt(mean * (n / (n - k + 1e-4) + 1e-4)),
        "small_value_error_share": sum(e > BENCHMARK[dtype] for e in of_small) / k if k else 0.0,
        "max_relative": float(max(normal, default=0)),
        "mean_relative": float(sum(normal) / len(normal)) if normal else 0.0,
        "relative_error_rate": sum(r > RTOL[dtype] for r in normal) / len(normal) if normal else 0.0,
        "absolute_error_rate": sum(e > ABSOLUTE[dtype] for e in of_small) / k if k else 0.0,
        "max_ulp": float(max(ulps)), "mean_ulp": float(sum(ulps) / n),
        "ulp_share": sum(u > threshold for u in ulps) / n,
        "cosine": cosine(values, golden),
    }  # fmt: skip


def cosine(values, golden):
    dot = sum(Fraction(v) * Fraction(g) for v, g in zip(values, golden, strict=True))
    norms = sum(Fraction(v) ** 2 for v in values) * sum(Fraction(g) ** 2 for g in golden)
    return float(dot) / math.sqrt(float(norms))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("seed", range(6))
def test_metrics_are_those_of_exact_arithmetic(dtype, seed):
    generator = np.random.default_rng(seed)
    golden = generator.standard_normal(41) * 10.0 ** generator.integers(-6, 2, 41)
    golden[:3] = 0.0, SMALL[dtype], -SMALL[dtype] / 2
    noise = golden * (1 + 10.0 ** -generator.integers(1, 6, 41) * generator.standard_normal(41))
    noise[3] = 1e-3
    values = [stored(float(v), dtype) for v in noise]
    columns = of(values, golden, dtype)
    for name, expected in by_fractions(values, [float(g) for g in golden], dtype).items():
        assert getattr(columns, name) == pytest.approx(expected, rel=1e-12, abs=1e-300), name


def test_values_by_hand():
    columns = of([1.0, 2.5, 0.0, 1e-7], [1.0, 2.0, 0.0, 0.0])
    assert columns.max_absolute == 0.5
    assert columns.max_relative == pytest.approx(0.25)
    assert columns.mean_relative == pytest.approx(0.125)
    # Two elements are small; their errors are 0 and 1e-7, which is above 2^-30 = 9.3e-10.
    assert (columns.small_value_error_share, columns.absolute_error_rate) == (0.5, 0.5)
    assert columns.rmse == pytest.approx(math.sqrt(0.25 / 4 * (4 / 2.0001 + 1e-4)))
    assert columns.error_balance == 0.5
    assert columns.within_percent == 0.5  # 0/0 is within, and 1e-7/0 is not
    assert (columns.relative_error_rate, columns.non_finite_error_rate) == (0.5, 0.0)
    assert columns.binary_error_rate is None
    # 0.5 is 2^21 units of 2 in float32.
    assert columns.max_ulp == 2.0**21


def test_not_finite_elements_have_a_rate_of_their_own():
    inf, nan = math.inf, math.nan
    columns = of([inf, nan, inf, 3.0, -inf], [inf, nan, -inf, nan, 1e300])
    assert columns.non_finite_error_rate == pytest.approx(3 / 5)  # inf/-inf, 3/nan and -inf/1e300 are wrong
    assert (columns.max_relative, columns.rmse, columns.max_ulp) == (0.0, 0.0, 0.0)
    # What overflows the dtype counts as its largest number.
    assert of([inf, 1.0], [3.41e38, 1.0]).non_finite_error_rate == 0.0
    assert of([65504.0, 1.0], [7e4, 1.0], "float16").non_finite_error_rate == 0.0


@pytest.mark.parametrize(("dtype", "unit"), [("float8_e4m3fn", 0.125), ("float8_e5m2", 0.25)])
def test_units_of_float8_have_no_sign(dtype, unit):
    for sign in (1, -1):
        columns = of([1.0 + 2 * sign * unit, 1.0], [1.0, 1.0], dtype)
        assert (columns.max_ulp, columns.mean_ulp, columns.ulp_share) == (2.0, 1.0, 0.5)
        assert (columns.standard, columns.ulp_status) == (Algorithm.ULP.value, "error")
    # Below the smallest normal number the unit does not shrink.
    least = standards().ulp_formats[dtype].min_exponent
    assert of([2.0 ** (least - 2), 1.0], [2.0 ** (least - 1), 1.0], dtype).max_ulp == 2.0 ** (
        standards().ulp_formats[dtype].mantissa_bits - 2
    )


@pytest.mark.parametrize(
    ("values", "golden", "dtype", "status"),
    [
        ([1.0, 2.0], [1.0, 2.0], "float32", "pass"),
        ([1e-4, 2e-4], [2e-4, 4e-4], "float32", "pass"),  # wrong by a factor of two: published rules accept it
        ([1.0, -2.0], [1.0, 2.0], "float32", "error"),
        ([0.0, 0.0], [0.0, 0.0], "float32", "pass"),
        ([0.0, 0.0], [1.0, 1.0], "float32", "error"),
        ([1000.0, 2002.5], [1000.0, 2000.0], "float32", "error"),
        ([1000.0, 2000.5], [1000.0, 2000.0], "float32", "warning"),
        ([1000.0, 2000.125], [1000.0, 2000.0], "float32", "pass"),
        ([1000.0, 2040.0], [1000.0, 2000.0], "float16", "error"),
        ([1000.0, 2004.0], [1000.0, 2000.0], "bfloat16", "warning"),
        ([1000.0, 2001.0], [1000.0, 2000.0], "float16", "pass"),
        ([5.0], [-5.0], "float32", "error"),  # a single element has no cosine
        ([math.nan, 1.0], [1.0, 1.0], "float32", "error"),
        ([3, 4], [3, 4], "int64", "pass"),
        ([3, 4], [3, 5], "int64", "error"),
        ([True, False], [True, True], "bool", "error"),
    ],
)
def test_plain_rules(values, golden, dtype, status):
    assert of(values, golden, dtype).plain_status == status


def test_rules_of_some_apis():
    assert of([3, 4], [3, 5], "int8", "NPU.npu_dynamic_quant.0").plain_status == "pass"
    assert of([3, 4], [3, 6], "int8", "NPU.npu_dynamic_quant.0").plain_status == "error"
    assert of([-128, 4], [127, 4], "int8", "NPU.npu_dynamic_quant.0").max_absolute == 255
    kept = np.where(np.arange(200) % 2, 2.0, 0.0)
    assert of(kept, np.roll(kept, 1), api="Functional.dropout.0").plain_status == "pass"
    assert of(kept, np.full(200, 2.0), api="Functional.dropout.0").plain_status == "error"
    assert of(kept[:20], np.roll(kept[:20], 1), api="Functional.dropout.0").plain_status == "error"


def test_what_cannot_be_measured():
    assert of([1.0, 2.0], [1.0]).plain_status == "error"
    assert of([1, 2], [1.0, 2.0], "int32").plain_status == "error"
    assert of([], np.zeros(0)).plain_status == "SKIP"
    assert of([], np.zeros(0)).max_absolute is None


def test_integers_differ_or_not():
    columns = of([1, 2, 3, 4], [1, 2, 3, 5], "int32")
    assert (columns.binary_error_rate, columns.binary_status, columns.standard) == (0.25, "error", "binary")
    assert (columns.cosine, columns.rmse) == (None, None)
    assert of([255], [0], "uint8").max_absolute == 255


def test_complex_numbers_are_measured_by_their_parts():
    columns = of([1 + 2j], np.array([1 + 2.5j]), "complex64")
    assert (columns.max_absolute, columns.within_percent) == (0.5, 0.5)


def test_scalars_are_measured():
    assert of(2.0, 2.0).plain_status == "pass"
    assert of(2.0, 2.0).cosine is None


def test_the_ratio_to_a_replay_decides_the_benchmark():
    golden = np.linspace(1, 2, 64)
    own = golden * (1 + 1e-3)
    for times, status in ((1.9, "pass"), (2.1, "error")):
        assert of(golden * (1 + 1e-3 * times), golden, own=own).benchmark_status == status
    assert of(golden * (1 + 1.3e-3), golden, own=own, api="Torch.mm.3").benchmark_status == "error"  # L2: 1.2
    assert of(golden * (1 + 1.3e-3), golden, own=own, api="Functional.embedding.3").benchmark_status == "pass"
    assert of(golden, golden).benchmark_status is None
    assert of([math.inf, 1.0], [1.0, 1.0], own=[1.0, 1.0]).benchmark_status == "error"
    # Below the minimum error of 2^-14 two sides are alike.
    assert of(golden * (1 + 6e-5), golden, own=golden).benchmark_status == "pass"


def test_ratio_to():
    assert ratio_to(1e-4, 5e-5, 2.0**-14) == 1.6384
    assert ratio_to(-0.02, 0.0, 2.0**-14) == pytest.approx(327.68)
    assert ratio_to(0.0, 3.0, 2.0**-14) == 0.0
    assert math.isnan(ratio_to(math.inf, math.inf, 2.0**-14))


def test_other_standards():
    golden = np.full(100, 1.0)
    off = golden.copy()
    off[0] += 2.0**-19
    assert of(golden, golden).absolute_threshold_status == "pass"
    assert of(off, golden).absolute_threshold_status == "error"
    off[0] = 1.01
    assert of(off, golden).thousandth_status == "error"
    wide = np.full(2000, 1.0)
    wide[0] = 1.01
    assert of(wide, np.full(2000, 1.0)).thousandth_status == "pass"
    # 64 units is not below 64; 5 % of elements beyond 32 units is not below 5 %.
    unit = 2.0**-23
    assert of(golden + 64 * unit, golden).ulp_status == "error"
    assert of(golden + 63 * unit, golden).ulp_status == "pass"
    few = golden.copy()
    few[:4] += 5000 * unit
    assert of(few, golden).ulp_status == "pass"
    few[:5] += 5000 * unit
    assert of(few, golden).ulp_status == "error"
    assert of(few, golden, own=few).ulp_status == "error"
    more = few.copy()
    more[:6] = few[0]
    assert of(few, golden, own=more).ulp_status == "pass"


def test_single_benchmark():
    golden = np.full(100, 1.0)
    one = golden.copy()
    one[0] += 9.9 * 2**-13
    assert of(one, golden).single_benchmark_status == "pass"
    one[0] = 1 + 10.1 * 2**-13
    assert of(one, golden).single_benchmark_status == "error"
    assert of(golden * (1 + 2.0**-13 + 2.0**-20), golden).single_benchmark_status == "error"
    assert of(golden * (1 + 2.0**-14), golden).single_benchmark_status == "pass"
    assert of(golden, golden, "float64").single_benchmark_status is None


def test_torch_testing():
    assert of([1.0, math.inf], [1.0, math.inf]).torch_testing_status == "pass"
    assert of([1.0, math.nan], [1.0, math.nan]).torch_testing_status == "error"
    assert of([1.0, math.inf], [1.0, -math.inf]).torch_testing_status == "error"
    assert of([5.0, math.inf], [5.0, 1.0]).torch_testing_status == "error"
    assert of([1e-5, 1.0], [0.0, 1.0]).torch_testing_status == "pass"
    assert of([1.1e-5, 1.0], [0.0, 1.0]).torch_testing_status == "error"


def test_accumulative():
    golden = np.array([10.0, 0.5, -10.0, -0.5])
    assert of(golden * (1 + 2.0**-12 * np.array([1, -1, -1, -1])), golden).accumulative_status == "error"  # balance
    balanced = golden + np.array([1, -1, 1, -1]) * 2.0**-12
    assert of(balanced, golden).accumulative_status == "pass"
    assert of(golden + np.array([1, -1, 1, -1]) * 2.0**-10, golden).accumulative_status == "error"


def test_names_of_apis():
    assert [api_name(name) for name in ("Functional.layer_norm.0", "layer_norm", "Torch.mm.12")] == [
        "layer_norm", "layer_norm", "mm"]  # fmt: skip


def test_elements_are_measured_in_chunks(monkeypatch):
    generator = np.random.default_rng(3)
    golden = generator.standard_normal(1000) * 10.0 ** generator.integers(-8, 3, 1000)
    values = golden * (1 + 10.0 ** -generator.integers(1, 8, 1000) * generator.standard_normal(1000))
    values[5], values[6], golden[6], golden[7] = math.inf, math.nan, math.nan, 0.0
    found = []
    for size in (7, 100, 1000, 4096):
        monkeypatch.setattr(published, "_CHUNK", size)
        found.append(of(values, golden, own=golden))
    for name in found[0].__struct_fields__:
        first, *others = (getattr(columns, name) for columns in found)
        expected = pytest.approx(first, rel=1e-12, nan_ok=True) if isinstance(first, float) else first
        assert all(other == expected for other in others), name


def test_a_tiny_tensor_takes_a_few_hundred_calls():
    """They take 0.1 ms together, of which a dump has tens of thousands."""
    generator = np.random.default_rng(0)
    golden = generator.standard_normal((8, 32))
    recorded = ReplayTensor(values=golden.astype(np.float32), dtype="float32")
    own = golden.astype(np.float32)

    def once():
        published_columns(recorded, golden, own=own, api="Functional.linear.0")

    once()  # what is imported and cached is there
    assert num_calls(once) < 600


@pytest.mark.parametrize(
    ("names", "status"), [(None, "error"), ((), "error"), (("my_quant",), "pass")], ids=["standard", "none", "own"]
)
def test_results_of_listed_apis_may_be_off_by_one(names, status):
    recorded = ReplayTensor(values=np.array([1, 2, 3], np.int8), dtype="int8")
    found = published_columns(recorded, np.array([1, 2, 4]), own=None, api="NPU.my_quant.0", quantization_apis=names)
    assert found.plain_status == status


def test_a_list_replaces_that_of_the_standard():
    recorded = ReplayTensor(values=np.array([1, 2, 3], np.int8), dtype="int8")
    (name, *_) = sorted(standards().plain.quantization_apis)
    for names, status in ((None, "pass"), ((), "error")):
        found = published_columns(recorded, np.array([1, 2, 4]), own=None, api=f"NPU.{name}.0", quantization_apis=names)
        assert found.plain_status == status
