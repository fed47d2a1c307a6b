"""The hash: its definition in plain Python, what it sees, what it does not depend on, and shards that add up to it."""

import itertools
import tracemalloc

import numpy as np
import pytest

from msprobe_core.fingerprint.arrays import NumpyArrays, mix
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.place import Place

WORD = 1 << 64
RNG = np.random.default_rng(4)

DTYPES = ["bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


class Small(NumpyArrays):
    """Works on few elements at a time, so that small tensors have many chunks."""

    chunk = 5


def mixed(word):
    """SplitMix64's finaliser on a Python integer."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def defined(values):
    """The hash of an array, from its definition."""
    if np.iscomplexobj(values):
        values = np.stack((values.real, values.imag), -1)
    size = values.dtype.itemsize
    content = np.ascontiguousarray(values).tobytes()
    words = (int.from_bytes(content[i : i + size], "little", signed=True) for i in range(0, len(content), size))
    return sum(mixed((word + 0x9E3779B97F4A7C15 * (i + 1)) % WORD) for i, word in enumerate(words)) % WORD


def hashed(values, arrays=None, place=None):
    return int(hash_of(values, arrays, place)[0]) % WORD


def random(dtype, *shape):
    raw = RNG.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    return (raw[..., 0] > 127) if dtype == "bool" else raw.view(dtype)[..., 0]


def test_mixing_is_that_of_splitmix64():
    # The first three numbers of SplitMix64 seeded with 0, as in java.util.SplittableRandom and many test suites.
    found = mix(NumpyArrays().ramp(4, -7046029254386353131)[1:].copy(), NumpyArrays())
    assert [int(word) % WORD for word in found] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4, 5), (1, 6, 1), (0, 3)], ids=str)
def test_it_is_what_is_defined(dtype, shape):
    values = random(dtype, *shape)
    assert hashed(values) == hashed(values, Small()) == defined(values)


def test_the_hash_of_known_tensors_does_not_change():
    """Dumps are compared with older ones: a change of these numbers is a change of the format."""
    assert hashed(np.arange(1000, dtype=np.float32)) == 0xC5B134E9ADB17B4D
    assert hashed(np.arange(100_000, dtype=np.int64).reshape(10, -1)) == 0xBE81624737D8A14A


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c8"])
def test_the_layout_in_memory_does_not_matter(dtype):
    values = random(dtype, 6, 10, 8)
    layouts = [
        np.asfortranarray(values),
        np.ascontiguousarray(values.transpose(1, 2, 0)).transpose(2, 0, 1),
        np.repeat(values, 2, axis=2)[..., ::2],
        values[::-1, :, ::-1].copy()[::-1, :, ::-1],
    ]
    for layout, arrays in itertools.product(layouts, (NumpyArrays(), Small())):
        assert layout.tobytes() == values.tobytes()  # bit by bit: some are NaN
        assert hashed(layout, arrays) == defined(values)
    repeated = np.broadcast_to(values[:1], values.shape)
    assert hashed(repeated, Small()) == defined(repeated.copy())


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("arrays", [NumpyArrays(), Small()], ids=["whole", "in chunks"])
def test_shards_along_any_dimension_add_up(dtype, arrays):
    values = random(dtype, 4, 6, 9)
    for dim in range(3):
        cuts = [0, 1, 3, values.shape[dim]]  # shards need not be of one size
        total = 0
        for first, last in itertools.pairwise(cuts):
            begin = [0, 0, 0]
            begin[dim] = first
            shard = np.ascontiguousarray(np.take(values, range(first, last), axis=dim))
            total += hashed(shard, arrays, Place.of_shard(values.shape, begin))
        assert total % WORD == defined(values), dim


@pytest.mark.parametrize("arrays", [NumpyArrays(), Small()], ids=["whole", "in chunks"])
def test_shards_along_two_dimensions_and_flat_ones_add_up(arrays):
    values = random("f4", 4, 6, 5)
    blocks = [(slice(i, i + 2), slice(None), slice(k, min(5, k + 3))) for i in (0, 2) for k in (0, 3)]
    total = sum(
        hashed(values[block], arrays, Place.of_shard(values.shape, [s.start or 0 for s in block])) for block in blocks
    )
    assert total % WORD == defined(values)
    flat = values.reshape(-1)
    total = sum(
        hashed(flat[a:b], arrays, Place.of_whole((b - a,), offset=a)) for a, b in itertools.pairwise([0, 7, 8, 8, 120])
    )
    assert total % WORD == defined(values)


def test_a_place_must_fit():
    with pytest.raises(ValueError, match="a block of 2 dimensions cannot have a place of 1"):
        hash_of(np.zeros((2, 3)), place=Place.of_whole((6,)))


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_every_single_bit_and_every_swap_is_seen(dtype):
    values = random(dtype, 3, 5)
    bits = values.reshape(-1).view(np.uint8)
    seen = {hashed(values)}
    for i, bit in itertools.product(range(bits.size), range(8)):
        bits[i] ^= 1 << bit
        seen.add(hashed(values))
        bits[i] ^= 1 << bit
    assert len(seen) == bits.size * 8 + 1
    flat = values.reshape(-1)
    flat[:] = np.arange(flat.size)
    seen = {hashed(values)}
    for i, j in itertools.combinations(range(flat.size), 2):
        flat[[i, j]] = flat[[j, i]]
        seen.add(hashed(values))
        flat[[i, j]] = flat[[j, i]]
    assert len(seen) == 1 + flat.size * (flat.size - 1) // 2


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_signs_of_zeros_are_seen(dtype):
    """Every subset of ten zeros that are negative has its own hash: sign bits are where weak sums lose bits."""
    seen = {hashed(np.array(zeros, dtype)) for zeros in itertools.product((0.0, -0.0), repeat=10)}
    assert len(seen) == 1024


@pytest.mark.slow
def test_similar_tensors_collide_no_more_often_than_random_numbers():
    """Of 65,536 tensors that differ in few bits, 24 bits of the hash: 2**15 * 65535 / 2**24 pairs, 128, are equal."""
    values = np.array(list(itertools.product(range(16), repeat=4)), np.uint8)
    hashes = np.array([hashed(row) for row in values], np.uint64)
    assert np.unique(hashes).size == hashes.size
    for shift in (0, 20, 40):
        part = (hashes >> np.uint64(shift)) & np.uint64((1 << 24) - 1)
        num_equal = sum(n * (n - 1) // 2 for n in np.unique(part, return_counts=True)[1])
        assert 128 - 6 * 128**0.5 < num_equal < 128 + 6 * 128**0.5


def test_each_bit_of_an_element_changes_half_of_the_bits():
    flips = np.zeros((64, 64))
    for i in range(200):
        values = random("u8", 3)
        before = hashed(values)
        for bit in range(64):
            changed = values.copy()
            changed[i % 3] ^= np.uint64(1 << bit)
            difference = before ^ hashed(changed)
            flips[bit] += [difference >> place & 1 for place in range(64)]
    assert np.abs(flips / 200 - 0.5).max() < 0.2  # 5.7 standard deviations; there are 4096 numbers


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "a shard"])
def test_memory_is_that_of_chunks(layout):
    values = np.ones((2000, 2000), np.float32)  # 16 MB, as int64 32
    place = None if layout != "a shard" else Place.of_shard((2000, 3000), (0, 5))
    block = values.T if layout == "transposed" else values
    hash_of(block[:10, :10])
    tracemalloc.start()
    hash_of(block, place=place)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20
