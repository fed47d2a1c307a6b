"""The compiled kernels: right in every dtype, the same for any number of threads, and not needed."""

import ctypes
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hatch_build
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.interception.host_reducer import BFLOAT16, HostReducer, HostValues, statistics_of
from msprobe_core.model import Digest
from msprobe_core.native import reductions as native
from msprobe_core.native.reductions import FLOAT_KINDS, INTEGER_KINDS, LONG, Kernels, Threads, kernels

RNG = np.random.default_rng(3)
SIZES = [1, 2, 63, 64, 65, 2047, 2048, 2049, 16384, LONG - 1, LONG, LONG + 2049, 3 * LONG + 7]

compiled = pytest.mark.skipif(
    shutil.which("cc") is None and "MSPROBE_REQUIRE_NATIVE" not in os.environ, reason="there is no C compiler"
)


@pytest.fixture(scope="session")
def lib(tmp_path_factory):
    """Kernels compiled from the source as it is now."""
    path = tmp_path_factory.mktemp("native") / "libkernels.so"
    source = native._FILE.with_name("kernels.c")
    assert hatch_build.compile_kernels(source, path) is None
    return Kernels(path)


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The same for processors of any generation, without vector instructions beyond the oldest."""
    path = tmp_path_factory.mktemp("native") / "libkernels.so"
    command = [shutil.which("cc"), *hatch_build.FLAGS, "-DONE_TARGET", "-o", path]
    subprocess.run([*command, native._FILE.with_name("kernels.c"), "-lm"], check=True)
    return Kernels(path)


def floats(lib, array, dtype=None, threads=None):
    kind = FLOAT_KINDS[dtype or array.dtype.name]
    return lib.float_statistics(array.ctypes.data, array.size, kind, threads)


def bfloat16(values):
    """The upper halves of float32, as uint16, and the numbers that they are."""
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


# --- statistics of floating-point numbers -----------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", list(FLOAT_KINDS))
def test_statistics_are_right_for_any_size(lib, dtype, size):
    values = RNG.normal(1, 3, size)
    array, numbers = bfloat16(values) if dtype == "bfloat16" else (values.astype(dtype),) * 2
    high, low, mean, norm, *counts = floats(lib, array, dtype)
    wide = numbers.astype(np.float64)
    assert (high, low) == (wide.max(), wide.min())
    rtol = 1e-14 if dtype == "float64" else 2e-6
    assert norm == pytest.approx(np.linalg.norm(wide), rel=rtol)
    assert abs(mean - wide.mean()) <= rtol * np.abs(wide).mean()
    assert counts == [0, 0]


@compiled
def test_all_numbers_of_half_precision_are_read_right(lib):
    for bits in range(0, 1 << 16, 3):
        array = np.array([bits], np.uint16)
        half = array.view(np.float16)[0]
        high, low, *_, num_nan, num_inf = floats(lib, array, "float16")
        assert (num_nan, num_inf) == (int(np.isnan(half)), int(np.isinf(half)))
        assert high == low == half or (np.isnan(half) and math.isnan(high) and math.isnan(low))


@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [10, 5000, LONG + 5])
@pytest.mark.parametrize(
    "planted", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [np.nan, np.inf, -np.inf, np.nan]]
)
def test_what_is_not_finite_is_counted_wherever_it_is(lib, dtype, size, planted):
    array = RNG.normal(size=size).astype(dtype)
    array[RNG.choice(size, len(planted), replace=False)] = planted
    high, low, mean, norm, num_nan, num_inf = floats(lib, array)
    assert (num_nan, num_inf) == (np.isnan(planted).sum(), np.isinf(planted).sum())
    with np.errstate(invalid="ignore"):
        expected = [array.max(), array.min(), array.astype(np.float64).mean(), np.nan if num_nan else np.inf]
    np.testing.assert_array_equal([high, low, mean, norm], np.array(expected, np.float64))


@compiled
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [("float32", 3e38), ("float32", 1e-38), ("float32", 1e-44), ("float32", 1e25), ("float64", 1e308),
     ("float64", 1e-200), ("float64", 1e-320), ("float64", 1e150), ("float16", 6e-8)],
)  # fmt: skip
def test_norms_are_right_where_squares_leave_the_range(lib, dtype, scale):
    array = (RNG.uniform(0.1, 1, 3000) * scale).astype(dtype)
    _, _, mean, norm, *_ = floats(lib, array)
    exact = array.astype(np.longdouble)
    size = exact.max()
    assert norm == pytest.approx(float(np.sqrt(((exact / size) ** 2).sum()) * size), rel=2e-6)
    assert mean == pytest.approx(float((exact / size).mean() * size), rel=2e-6)


@compiled
def test_one_large_number_does_not_lose_the_small_ones_of_other_blocks(lib):
    array = np.full(10 * 2048, 1e-20, np.float32)
    array[5000] = 1e30
    assert floats(lib, array)[2] == pytest.approx(array.astype(np.float64).mean(), rel=1e-12)


@compiled
def test_long_sums_of_equal_numbers_lose_nothing(lib):
    array = np.full(1 << 24, 0.1, np.float32)
    _, _, mean, norm, *_ = floats(lib, array)
    assert mean == pytest.approx(float(np.float32(0.1)), rel=2e-6)
    assert norm == pytest.approx(float(np.float32(0.1)) * 4096, rel=2e-6)


@compiled
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_it_agrees_with_numpy(lib, data):
    size = data.draw(st.integers(1, 5000))
    scale = data.draw(st.floats(-30, 30))
    array = (np.random.default_rng(size).normal(size=size) * 10.0**scale).astype(np.float32)
    found, expected = floats(lib, array), statistics_of(array)
    assert found[:2] == (expected.max, expected.min)
    assert found[3] == pytest.approx(expected.l2_norm, rel=1e-5)


# --- integers ---------------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("dtype", list(INTEGER_KINDS))
@pytest.mark.parametrize("size", [1, 64, 1000, 70000])
def test_statistics_of_integers_are_exact_at_the_ends(lib, dtype, size):
    info = np.iinfo(dtype)
    array = RNG.integers(info.min, info.max, size, dtype, endpoint=True)
    array[size // 2], array[0] = info.min, info.max
    high, low, mean, norm = lib.integer_statistics(array.ctypes.data, size, INTEGER_KINDS[dtype])
    assert (high, low) == (array.max().item(), array.min().item())
    wide = array.astype(np.float64)
    assert norm == pytest.approx(np.linalg.norm(wide), rel=1e-12)
    assert mean == pytest.approx(wide.mean(), rel=1e-9, abs=1e-9 * np.abs(wide).mean())


# --- hash and sketch --------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 100, LONG + 3])
def test_the_hash_is_that_of_the_definition(lib, dtype, size):
    array = RNG.integers(0, 256, size * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    expected = int(hash_of(array)[0]) % (1 << 64)
    assert lib.hash(array.ctypes.data, size, array.itemsize) == expected


@compiled
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 65536, 65537, 5 * 65536 - 3, 17 * 65536])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_sketch_is_that_of_the_definition(lib, dtype, size):
    array = RNG.normal(size=size).astype(dtype)
    sketcher = Sketcher(NumpyArrays())
    found = lib.sketch(array.ctypes.data, size, FLOAT_KINDS[dtype], sketcher.tables(size))
    expected = sketcher.sketch(array.astype(np.float64))
    scale = np.linalg.norm(array.astype(np.float64))
    np.testing.assert_allclose(np.frombuffer(found, "<f4"), expected, rtol=1e-6, atol=1e-7 * scale)


@compiled
def test_tables_grow_with_the_tensors(lib):
    sketcher = Sketcher(NumpyArrays())
    small, large = RNG.normal(size=100), RNG.normal(size=100 * 65536)
    first = lib.sketch(small.ctypes.data, 100, FLOAT_KINDS["float64"], sketcher.tables(100))
    found = lib.sketch(large.ctypes.data, large.size, FLOAT_KINDS["float64"], sketcher.tables(large.size))
    np.testing.assert_allclose(np.frombuffer(found, "<f4"), sketcher.sketch(large), rtol=1e-5, atol=1e-4)
    assert lib.sketch(small.ctypes.data, 100, FLOAT_KINDS["float64"], sketcher.tables(100)) == first


# --- the same everywhere ----------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("dtype", list(FLOAT_KINDS))
def test_results_do_not_depend_on_the_processor(lib, plain, dtype):
    values = RNG.normal(size=LONG + 1000)
    array = bfloat16(values)[0] if dtype == "bfloat16" else values.astype(dtype)
    assert floats(lib, array, dtype) == floats(plain, array, dtype)
    tables = Sketcher(NumpyArrays()).tables(array.size)
    sketches = {one.sketch(array.ctypes.data, array.size, FLOAT_KINDS[dtype], tables) for one in (lib, plain)}
    assert len(sketches) == 1


RUN = ctypes.CFUNCTYPE(None, ctypes.CFUNCTYPE(None, ctypes.c_void_p), ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)


@compiled
@pytest.mark.parametrize(("wanted", "started"), [(2, 2), (3, 3), (8, 8), (8, 2), (4, 0), (40, 40)])
def test_results_do_not_depend_on_the_threads(lib, wanted, started):
    """Also where fewer are started than were asked for, as inside of another parallel region."""
    current = [0]

    def run(work, job, count, flags):
        assert count == wanted
        for current[0] in range(started):
            work(job)

    run, number = RUN(run), NUMBER(lambda: current[0])
    threads = Threads(*(ctypes.cast(function, ctypes.c_void_p).value for function in (run, number)), lambda: wanted)
    array = RNG.normal(size=2 * LONG + 77).astype(np.float32)
    assert floats(lib, array, threads=threads) == floats(lib, array)
    assert lib.hash(array.ctypes.data, array.size, 4, threads) == lib.hash(array.ctypes.data, array.size, 4)
    tables = Sketcher(NumpyArrays()).tables(array.size)
    assert len({lib.sketch(array.ctypes.data, array.size, 0, tables, some) for some in (None, threads)}) == 1


# --- where they are used, and where there are none ----------------------------------------------------------------


def reduced(reducer, values):
    digest = Digest()
    for reduce in (reducer.statistics, reducer.hash, reducer.sketch):
        reduce(values, digest)
    return digest


@compiled
@pytest.mark.parametrize("dtype", [*FLOAT_KINDS, *INTEGER_KINDS, "bool", "complex64"])
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_values_of_a_framework_are_reduced_the_same_with_and_without(monkeypatch, lib, dtype, layout):
    shape = (40, 30)
    if dtype == BFLOAT16:
        array = bfloat16(RNG.normal(size=shape))[0]
    elif dtype in INTEGER_KINDS or dtype == "bool":
        array = RNG.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    else:
        array = RNG.normal(size=shape).astype(dtype)
    array = np.asfortranarray(array) if layout == "F" else array[::2] if layout == "strided" else array
    values = HostValues(array, dtype)
    digests = []
    for used in (lib, None):
        monkeypatch.setattr("msprobe_core.interception.host_reducer.kernels", lambda used=used: used)
        digests.append(reduced(HostReducer(), values))
    with_kernels, without = digests
    assert with_kernels.checksum == without.checksum
    assert (with_kernels.sketch is None) == (without.sketch is None)
    sketches = [np.frombuffer(digest.sketch, "<f4") for digest in digests]
    np.testing.assert_allclose(*sketches, rtol=1e-5, atol=1e-5)
    found, expected = with_kernels.stats, without.stats
    assert (found.max, found.min, found.num_nan, found.num_inf) == (
        expected.max, expected.min, expected.num_nan, expected.num_inf
    )  # fmt: skip
    assert type(found.max) is type(expected.max)
    assert found.mean == pytest.approx(expected.mean, rel=1e-5, abs=1e-6)
    assert found.l2_norm == pytest.approx(expected.l2_norm, rel=1e-5)


@compiled
def test_the_kernels_of_this_environment_are_used():
    if "MSPROBE_REQUIRE_NATIVE" in os.environ:
        assert kernels() is not None, "install the package again: pip install -e ."
    assert (kernels() is not None) == (native._FILE.exists() and os.environ.get(native.NATIVE_VARIABLE) != "0")


def test_they_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(native.NATIVE_VARIABLE, "0")
    native.kernels.cache_clear()
    try:
        assert kernels() is None
    finally:
        native.kernels.cache_clear()


@pytest.mark.parametrize("content", [None, b"", b"no library", "another"])
def test_a_foreign_file_is_left_alone(monkeypatch, tmp_path, content):
    path = tmp_path / "libkernels.so"
    if content == "another":
        path = ctypes.util.find_library("c") if hasattr(ctypes, "util") else "libc.so.6"
    elif content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(native, "_FILE", path)
    native.kernels.cache_clear()
    try:
        assert kernels() is None
    finally:
        native.kernels.cache_clear()


@compiled
def test_kernels_of_another_version_are_left_alone(monkeypatch, lib):
    monkeypatch.setattr(native, "_VERSION", lib.version + 1)
    native.kernels.cache_clear()
    try:
        assert kernels() is None
    finally:
        native.kernels.cache_clear()


# --- compiling --------------------------------------------------------------------------------------------------


def test_without_a_compiler_it_is_said_and_nothing_is_left(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    problem = hatch_build.compile_kernels(native._FILE.with_name("kernels.c"), tmp_path / "libkernels.so")
    assert problem == "there is no C compiler"
    assert not list(tmp_path.iterdir())


@compiled
def test_a_compiler_that_fails_is_quoted(tmp_path):
    source = tmp_path / "kernels.c"
    source.write_text("int main(void) { return missing; }")
    problem = hatch_build.compile_kernels(source, tmp_path / "libkernels.so")
    assert "missing" in problem
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.c"]


@pytest.mark.slow
@compiled
def test_the_source_has_no_warnings(tmp_path):
    source = native._FILE.with_name("kernels.c")
    command = [shutil.which("cc"), *hatch_build.FLAGS, "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "k.so"]
    done = subprocess.run([*command, source, "-lm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@compiled
def test_memory_is_not_read_beyond_its_end(lib):
    """With a guard page after the elements, in a process that may crash."""
    program = f"""
import ctypes, mmap, numpy as np
from pathlib import Path
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.native.reductions import FLOAT_KINDS, INTEGER_KINDS, Kernels
lib, sketcher = Kernels(Path({str(lib.path)!r})), Sketcher(NumpyArrays())
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 3 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for guarded in (start, start + 2 * page):
    assert libc.mprotect(guarded, page, 0) == 0
begin, end = start + page, start + 2 * page
for kinds, read in ((FLOAT_KINDS, lib.float_statistics), (INTEGER_KINDS, lib.integer_statistics)):
    for name, kind in kinds.items():
        width = 2 if name == "bfloat16" else np.dtype(name).itemsize
        for count in (1, 63, 64, 65, page // width):
            for address in (begin, end - count * width):
                read(address, count, kind)
                lib.hash(address, count, width)
                if kinds is FLOAT_KINDS:
                    lib.sketch(address, count, kind, sketcher.tables(count))
print("read")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "read\n", (done.returncode, done.stderr[-500:])
