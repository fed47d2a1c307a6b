"""The sketch: linear, the same for every layout, within its error bounds over seeds, and what two of them tell."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.distance import RESOLUTION, SIZE_BYTES, relative_error
from msprobe_core.fingerprint.place import Place
from msprobe_core.fingerprint.sketch import Sketcher

BLOCK = 65536
RNG = np.random.default_rng(5)
SKETCHER = Sketcher(NumpyArrays())
NUM_SEEDS = 300


@pytest.fixture(scope="module")
def sketchers():
    """Many random maps."""
    return [Sketcher(NumpyArrays(), seed) for seed in range(NUM_SEEDS)]


def encoded(values, sketcher=SKETCHER):
    return sketcher.sketch(values).astype("<f4").tobytes()


def one(index, sketcher=SKETCHER):
    """Where the element at ``index`` goes, and its sign."""
    sketch = sketcher.sketch(np.ones(1), Place.of_whole((1,), offset=index))
    (number,) = np.flatnonzero(sketch)
    return number, sketch[number]


@pytest.mark.parametrize("size", [1, 64, 1000, BLOCK, 2 * BLOCK + 70])
def test_places_are_the_map(size):
    values = RNG.normal(size=size)
    numbers, signs = SKETCHER.places(size)
    assert np.bincount(numbers, weights=signs * values, minlength=64) == pytest.approx(
        SKETCHER.sketch(values), abs=1e-4, rel=1e-6
    )


# --- the map ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, BLOCK, BLOCK + 1, 3 * BLOCK - 5, 5 * BLOCK])
def test_each_element_goes_to_one_number_with_a_sign(size):
    indices = RNG.choice(size, min(size, 40), replace=False)
    values = np.zeros(size)
    values[indices] = RNG.normal(size=indices.size)
    expected = np.zeros(64)
    for i in indices:
        number, sign = one(int(i))
        assert sign in (-1, 1)
        expected[number] += sign * values[i]
    np.testing.assert_allclose(SKETCHER.sketch(values), expected, rtol=1e-6, atol=1e-7)


def drawn(table, k):
    """Number ``k`` of a table, from SplitMix64 on Python integers."""
    word = (0x9E3779B97F4A7C15 * k + 0x6D7370726F6265 + (table + 1 << 59)) % (1 << 64)
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ word >> 27) * 0x94D049BB133111EB % (1 << 64)
    return word ^ word >> 31


def test_the_map_is_what_is_defined():
    """Dumps are compared with older ones and with those of other frameworks: another map is another format."""
    in_order = sorted(range(1024), key=lambda row: drawn(1, row) ^ 1 << 63)  # as signed integers
    for index in (0, 1, 64, 65535, 65536, 10**6, 10**9, *map(int, RNG.integers(0, 10**7, 50))):
        block, place = divmod(index, BLOCK)
        row, column = divmod(place, 64)
        turned = (row + (drawn(4, block) if block else 0)) % 1024
        number = (column + in_order.index(turned)) % 64
        place = 64 * turned + column
        is_negative = (drawn(0, place) ^ drawn(2, block) ^ drawn(3, block + place)) >> 63
        assert one(index) == (number, -1 if is_negative else 1)


def test_sketches_add_up():
    a, b = RNG.normal(size=(2, 300, 500))
    parts = SKETCHER.sketch(a) + 2 * SKETCHER.sketch(b)
    np.testing.assert_allclose(SKETCHER.sketch(a + 2 * b), parts, rtol=1e-4, atol=1e-3)
    assert np.abs(parts).max() > 50


@pytest.mark.parametrize("shape", [(4, 6, 9), (3, 70, 900), (2, 200_000), (700, 300)], ids=str)
def test_shards_add_up(shape):
    values = RNG.normal(size=shape)
    whole = SKETCHER.sketch(values)
    size = np.abs(whole).max()
    for dim in range(len(shape)):
        total = np.zeros(64)
        for first, last in itertools.pairwise([0, 1, shape[dim] // 2, shape[dim]]):
            begin = [0] * len(shape)
            begin[dim] = first
            shard = np.take(values, range(first, last), axis=dim)
            total += SKETCHER.sketch(shard, Place.of_shard(shape, begin))
        np.testing.assert_allclose(total, whole, rtol=1e-5, atol=1e-5 * size)


def test_shards_of_two_dimensions_flat_ones_and_complex_ones_add_up():
    values = RNG.normal(size=(6, 50, 40)) + 1j * RNG.normal(size=(6, 50, 40))
    whole = SKETCHER.sketch(values)
    blocks = [(slice(i, i + 3), slice(None), slice(k, k + 20)) for i in (0, 3) for k in (0, 20)]
    total = sum(
        SKETCHER.sketch(values[block], Place.of_shard(values.shape, [s.start or 0 for s in block])) for block in blocks
    )
    np.testing.assert_allclose(total, whole, rtol=1e-4, atol=1e-4)
    flat = RNG.normal(size=200_000)
    cuts = itertools.pairwise([0, 17, 70_000, 131_072, 200_000])
    total = sum(SKETCHER.sketch(flat[a:b], Place.of_whole((b - a,), offset=a)) for a, b in cuts)
    np.testing.assert_allclose(total, SKETCHER.sketch(flat), rtol=1e-4, atol=1e-4)


def test_a_place_must_hold_the_block():
    with pytest.raises(ValueError, match="do not hold its shape"):
        SKETCHER.sketch(np.ones((3, 7)), Place(0, (5, 1)))
    with pytest.raises(ValueError, match="a block of 2 dimensions cannot have a place of 1"):
        SKETCHER.sketch(np.ones((2, 3)), Place.of_whole((6,)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.complex64])
@pytest.mark.parametrize("shape", [(6, 10, 8), (70, 1000, 3), (2, 100_000)], ids=str)
def test_the_layout_in_memory_does_not_matter_bit_by_bit(dtype, shape):
    values = (100 * RNG.normal(size=shape)).astype(dtype)
    expected = encoded(values)
    order = [*range(1, values.ndim), 0]
    for layout in (
        np.asfortranarray(values),
        np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order)),
        np.repeat(values, 2, axis=-1)[..., ::2],
    ):
        np.testing.assert_array_equal(layout, values)
        assert encoded(layout) == expected
    assert encoded(values) == encoded(values, Sketcher(NumpyArrays()))


def test_what_is_not_finite():
    values = np.ones(1000, np.float32)
    values[7] = np.nan
    assert np.flatnonzero(np.isnan(SKETCHER.sketch(values))).tolist() == [one(7)[0]]
    values[7] = -np.inf
    sketch = SKETCHER.sketch(values)
    assert np.flatnonzero(np.isinf(sketch)).tolist() == [one(7)[0]]
    values[:] = np.inf * np.sign(RNG.normal(size=1000))
    assert np.isnan(SKETCHER.sketch(values)).all()  # of infinities of both signs, and no warning
    assert np.isnan(SKETCHER.sketch(np.tile(values, 200))).all()
    assert np.isinf(SKETCHER.sketch(np.array([1e300]))).any()  # beyond float32
    assert not SKETCHER.sketch(np.zeros((0, 3))).any()


def test_memory_is_that_of_chunks():
    values = np.ones((2000, 2000), np.float32)  # 16 MB, as float64 32
    for layout in (values, values.T):
        SKETCHER.sketch(layout[:300])
        tracemalloc.start()
        SKETCHER.sketch(layout)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 6 << 20


# --- error bounds, over seeds -----------------------------------------------------------------------------------


def rows_of_one_column(num_rows, width, column):
    values = np.zeros((num_rows, width))
    values[:, column] = RNG.normal(size=num_rows)
    return values


VECTORS = {
    "normal": RNG.normal(size=3000),
    "constant": np.ones(5000),
    "two elements": np.eye(1, 200, 3)[0] + np.eye(1, 200, 150)[0],
    "two elements in blocks": np.eye(1, 3 * BLOCK, 3)[0] + np.eye(1, 3 * BLOCK, 3 + 2 * BLOCK)[0],
    "one column of a matrix": rows_of_one_column(500, 64, 5),
    "one column, once a block": rows_of_one_column(6, BLOCK, 77),
    "equal blocks": np.tile(RNG.normal(size=BLOCK), 4),
    "equal rows": np.tile(RNG.normal(size=4096), 64),
    "heavy tails": RNG.standard_t(1.5, size=4000),
}


@pytest.mark.parametrize("case", VECTORS)
def test_the_squared_norm_is_unbiased_and_within_its_variance(case, sketchers):
    """Mean 1 and variance 2/64 at the most, of the ratio; over seeds, so both with the errors of a sample."""
    values = VECTORS[case]
    ratios = (
        np.array([(sketcher.sketch(values).astype(float) ** 2).sum() for sketcher in sketchers]) / (values**2).sum()
    )
    bound = 2 / 64 * 1024 / 1023
    assert abs(ratios.mean() - 1) < 4.5 * math.sqrt(bound / NUM_SEEDS)
    # Of a chi-squared variable with 64 degrees of freedom the variance of a sample of 300 has a deviation of 9%.
    assert ratios.var() < bound * 1.4


PAIRS = {
    "next to each other": ((0, 1), 0),
    "same row": ((640, 703), 0),
    "same column": ((5, 5 + 64 * 9), 15 / 1023),
    "anywhere in a block": ((123, 54321), 16 / 1023),
    "same place of two blocks": ((77, 77 + BLOCK), 1 / 64),
    "same column of two blocks": ((77, 77 + 64 * 5 + 3 * BLOCK), 1 / 64),
    "same row of two blocks": ((77, 80 + 5 * BLOCK), 1 / 64),
    "anywhere in two blocks": ((12, 40_000 + 2 * BLOCK), 1 / 64),
}


@pytest.mark.parametrize("case", PAIRS)
def test_how_often_two_elements_share_a_number(case, sketchers):
    """Over seeds, and rows by which both are shifted."""
    (first, second), probability = PAIRS[case]
    shifts = 64 * np.arange(100)
    num_shared = sum(
        int((number_of(sketcher, first + shifts) == number_of(sketcher, second + shifts)).sum())
        for sketcher in sketchers
    )
    expected = probability * NUM_SEEDS * shifts.size
    # Shifted pairs are nearly independent.
    assert abs(num_shared - expected) <= 5 * math.sqrt(expected)


def number_of(sketcher, indices):
    """The same as `one`, of many elements of the first blocks and from the tables."""
    blocks, places = np.divmod(indices, BLOCK)
    rows, columns = np.divmod(places, 64)
    turned = (rows + sketcher._turns[blocks]) % 1024
    return (columns - sketcher._sources[turned, 0]) % 64


def test_the_numbers_above_are_those_of_the_map(sketchers):
    indices = RNG.integers(0, 6 * BLOCK, 20)
    for sketcher in sketchers[:10]:
        assert number_of(sketcher, indices).tolist() == [one(int(index), sketcher)[0] for index in indices]


@pytest.mark.parametrize(
    "indices",
    [(0, 1), (0, BLOCK), (3, 9, 3 + BLOCK, 9 + BLOCK), (3, 9, 4, 10), (1, 2, 1 + BLOCK, 2 + 2 * BLOCK)],
    ids=["in a block", "in two", "corners of a rectangle", "in one row", "any four"],
)
def test_products_of_two_and_four_signs_vanish(indices, sketchers):
    products = [math.prod(float(one(index, sketcher)[1]) for index in indices) for sketcher in sketchers]
    assert abs(sum(products)) < 4.5 * math.sqrt(NUM_SEEDS)


# --- distances --------------------------------------------------------------------------------------------------

GOLDEN = RNG.normal(size=(50, 64))
DIFFERENCES = {
    "noise": RNG.normal(size=GOLDEN.shape),
    "scale": GOLDEN,
    "one element": np.eye(1, GOLDEN.size, 700).reshape(GOLDEN.shape),
    "three elements": np.eye(3, GOLDEN.size, 700).sum(0).reshape(GOLDEN.shape),
    "one row": np.where(np.arange(50)[:, None] == 7, 1.0, 0.0) * np.ones(64),
    "one column": np.where(np.arange(64) == 7, 1.0, 0.0) * np.ones((50, 1)),
    "bias": np.ones(GOLDEN.shape),
}


@pytest.mark.parametrize("size", [3.0, 1e-2, 1e-5])
@pytest.mark.parametrize("case", DIFFERENCES)
def test_the_interval_holds_the_relative_error_in_95_of_100(case, size, sketchers):
    norm = np.linalg.norm(GOLDEN)
    target = GOLDEN + size * norm * DIFFERENCES[case] / np.linalg.norm(DIFFERENCES[case])
    for golden_norm in (norm, None):
        found = [relative_error(encoded(target, s), encoded(GOLDEN, s), golden_norm) for s in sketchers]
        inside = sum(estimate.low <= size <= estimate.high for estimate in found)
        assert inside > 0.95 * NUM_SEEDS - 3 * math.sqrt(NUM_SEEDS * 0.05 * 0.95)
        assert all(estimate.low < estimate.value < estimate.high < 1.7 * estimate.value for estimate in found)


def test_quantiles_are_those_of_the_distributions():
    from msprobe_core.fingerprint.distance import WITH_NORM, WITHOUT_NORM

    above, below = RNG.chisquare(64, (2, 1_000_000)) / 64
    np.testing.assert_allclose(np.quantile(above, [0.975, 0.025]) ** -0.5, WITH_NORM, rtol=2e-3)
    np.testing.assert_allclose(np.quantile(above / below, [0.025, 0.975]) ** 0.5, WITHOUT_NORM, rtol=2e-3)


def test_what_is_equal_and_what_is_nearly_so():
    golden = RNG.normal(size=10_000).astype(np.float32)
    same = relative_error(encoded(golden), encoded(golden))
    assert (same.value, same.low) == (0.0, 0.0)
    assert RESOLUTION < same.high < 2 * RESOLUTION
    target = golden * np.float32(1 + 2**-22)
    assert relative_error(encoded(target), encoded(golden)).value == pytest.approx(2**-22, rel=0.8)


def test_zeros_and_what_is_not_finite():
    zeros, ones = encoded(np.zeros(9)), encoded(np.ones(9))
    assert relative_error(zeros, zeros).value == 0
    assert relative_error(ones, zeros) == relative_error(ones, zeros, 0.0)
    assert math.isinf(relative_error(ones, zeros).value)
    assert relative_error(zeros, ones).value == 1
    spoiled = np.ones(9)
    spoiled[3] = np.nan
    for pair in ((encoded(spoiled), ones), (ones, encoded(spoiled)), (encoded(spoiled), encoded(spoiled))):
        estimate = relative_error(*pair)
        assert all(map(math.isnan, (estimate.value, estimate.low, estimate.high)))
    with pytest.raises(ValueError, match="a sketch has 256 bytes, this one 255"):
        relative_error(ones[:-1], ones)
    assert len(ones) == SIZE_BYTES
