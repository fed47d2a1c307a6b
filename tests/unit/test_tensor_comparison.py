"""Tensors are compared piece by piece as NumPy in float64 has it; what is bad in a file stays with its row."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pt_writer import Call, Global, tensor, write_pt

from msprobe_core.compare import compare_dumps, tensor_metrics, tensor_pass
from msprobe_core.compare.tensor_pass import StoredSide, compare_pairs, compare_sources, compare_tensors
from msprobe_core.compare.ulps import distances_in
from msprobe_core.errors import DumpError
from msprobe_core.store.tensor_source import HeldTensor
from msprobe_core.store.tensors import open_tensor

NAN, INF = float("nan"), float("inf")
REPOSITORY = Path(__file__).parents[2]


def reference(target, golden):
    """The metrics of two arrays of finite numbers, each by its definition, over whole arrays."""
    wide_t, wide_g = target.astype(np.float64).ravel(), golden.astype(np.float64).ravel()
    kind = np.float32 if max(target.itemsize, golden.itemsize) <= 4 else np.float64
    t, g = target.astype(kind).ravel(), golden.astype(kind).ravel()
    zero = g == 0
    t, g = np.where(zero, t + np.finfo(kind).eps, t), np.where(zero, g + np.finfo(kind).eps, g)
    with np.errstate(over="ignore"):
        relative = np.abs((t - g) / g)
    difference = np.abs(wide_t - wide_g)
    norm = math.sqrt(math.fsum(wide_g**2))
    euclidean = math.sqrt(math.fsum(difference**2))
    return SimpleNamespace(
        euclidean=euclidean,
        largest_abs=difference.max(),
        largest_rel=relative.max(),
        within_1e3=(relative < 0.001).mean(),
        within_5e3=(relative < 0.005).mean(),
        num_different=np.count_nonzero(wide_t != wide_g),
        bias=math.fsum(wide_t - wide_g) / len(wide_g) / math.sqrt(math.fsum(wide_g**2) / len(wide_g)) if norm else None,
        cosine=math.fsum(wide_t * wide_g) / norm / math.sqrt(math.fsum(wide_t**2)) if norm and wide_t.any() else None,
        error=max(euclidean / norm, difference.max() / np.abs(wide_g).max()) if norm else None,
    )


FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


@st.composite
def pairs_of_arrays(draw):
    size = draw(st.integers(2, 60))
    arrays = []
    for _ in range(2):
        dtype = draw(FLOATS)
        width = np.dtype(dtype).itemsize * 8
        elements = st.floats(-1000, 1000, width=width, allow_subnormal=False)
        values = draw(hnp.arrays(dtype, size, elements=elements))
        # Their squares, too, are numbers in float64; there is a test of its own for others.
        arrays.append(np.where(np.abs(values) < 1e-30, 0, values).astype(dtype))
    if draw(st.booleans()):  # much that is equal, as in healthy runs
        same = draw(hnp.arrays(np.bool_, size))
        arrays[0] = np.where(same, arrays[1].astype(arrays[0].dtype), arrays[0])
    return arrays


@contextlib.contextmanager
def cut_into(block, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_metrics, "_BLOCK", block)
        patch.setattr(tensor_pass, "CHUNK", chunk)
        yield


@given(pairs_of_arrays(), st.integers(1, 20), st.integers(1, 70))
@settings(max_examples=300, deadline=None)
def test_every_metric_by_its_definition_however_the_tensors_are_cut(arrays, block, chunk):
    target, golden = arrays
    with cut_into(block, chunk):
        found = compare_tensors(target, golden)
    expected = reference(target, golden)
    assert found.euclidean == pytest.approx(expected.euclidean, rel=1e-12, abs=1e-200)
    assert found.largest_abs == pytest.approx(expected.largest_abs, abs=1e-11)
    assert found.largest_rel == pytest.approx(expected.largest_rel, rel=1e-6, abs=1e-11)
    assert (found.within_1e3, found.within_5e3) == pytest.approx((expected.within_1e3, expected.within_5e3))
    assert found.num_different == expected.num_different
    if expected.bias is not None:
        assert found.bias == pytest.approx(expected.bias, rel=1e-9, abs=1e-12)
        assert found.error == pytest.approx(expected.error, rel=1e-9)
    norms = np.linalg.norm(target.astype(np.float64)), np.linalg.norm(golden.astype(np.float64))
    if min(norms) > 1e-15:
        assert found.cosine == pytest.approx(expected.cosine, abs=1e-6)
    if found.num_different:
        index = eval(found.worst_index)  # what we have written ourselves
        assert abs(float(target[index]) - float(golden[index])) == expected.largest_abs
        # As numbers of the arrays' own types, which the text stands for; NumPy 1 compares with a float in float64.
        assert target.dtype.type(found.worst_target) == target[index]
        assert golden.dtype.type(found.worst_golden) == golden[index]
    else:
        assert found.worst_index is None


@given(pairs_of_arrays(), st.integers(-900, 900).map(lambda exponent: 2.0**exponent))
@settings(max_examples=100, deadline=None)
def test_numbers_whose_squares_float64_does_not_hold(arrays, unit):
    target, golden = (side.astype(np.float64) for side in arrays)
    assume(np.abs(golden).min() > 1e-3)
    plain, scaled = compare_tensors(target, golden), compare_tensors(target * unit, golden * unit)
    assert scaled.error == pytest.approx(plain.error, rel=1e-6)
    assert scaled.bias == pytest.approx(plain.bias, rel=1e-6, abs=1e-9)
    assert scaled.euclidean == pytest.approx(plain.euclidean * unit, rel=1e-9)


def test_differences_beyond_float64():
    found = compare_tensors(np.array([1e308, 1.0]), np.array([-1e308, 1.0]))
    assert (found.largest_abs, found.euclidean, found.error) == (INF, INF, INF)
    assert found.problem is None


@pytest.mark.parametrize(
    ("dtype", "target", "golden", "expected"),
    [
        ("float32", np.float32(1), np.nextafter(np.float32(1), np.float32(2)), 1),
        ("float32", np.float32(1), np.nextafter(np.float32(1), np.float32(0)), 1),
        ("float32", np.float32(0.0), np.float32(-0.0), 0),
        ("float32", np.float32(1e-45), np.float32(-1e-45), 2),
        ("float32", np.finfo(np.float32).max, np.finfo(np.float32).min, 2 * 0x7F7FFFFF),
        ("float64", np.finfo(np.float64).max, np.finfo(np.float64).min, 2 * 0x7FEFFFFFFFFFFFFF),
        ("float64", np.float64(1), np.nextafter(1.0, 2.0), 1),
        ("float16", np.float16(1), np.float16(1 + 2**-9), 2),
        ("float16", np.float16(-65504), np.float16(65504), 2 * 0x7BFF),
        ("bfloat16", np.float32(1), np.float32(1 + 2**-7), 1),
        ("bfloat16", np.float32(1), np.float32(1 + 2**-8), 0),  # a tie, and 1 is even
        ("bfloat16", np.float32(1), np.float32(1 + 3 * 2**-8), 2),  # a tie, rounded up to an even one
        ("bfloat16", np.float32(-1), np.float32(-1 - 3 * 2**-8), 2),
        ("float8_e4m3fn", np.float32(1), np.float32(1.25), 2),
        ("float8_e4m3fn", np.float32(448), np.float32(-448), 252),
        ("float8_e5m2", np.float32(0.0), np.float32(2**-16), 1),
    ],
)
def test_distances_in_ulps(dtype, target, golden, expected):
    found = compare_sources(HeldTensor(np.array([target])), HeldTensor(np.array([golden])), dtypes=(dtype, "float64"))
    assert found.ulp_max == float(expected)
    assert found.ulp_p99 == float(expected)


@given(hnp.arrays(np.float32, 20, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
       hnp.arrays(np.float32, 20, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))  # fmt: skip
def test_distances_are_steps_from_number_to_number(target, golden):
    def place(value):
        bits = int(np.float32(value).view(np.uint32))
        return bits if bits < 2**31 else -(bits - 2**31)

    expected = [abs(place(t) - place(g)) for t, g in zip(target, golden, strict=True)]
    assert distances_in("float32", "float64")(target, golden).tolist() == expected


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_neighbours_in_float8_are_one_apart(dtype):
    from msprobe_core.store.tensor_values import float8_values

    numbers = np.unique(float8_values(dtype)[np.isfinite(float8_values(dtype))])
    assert set(distances_in(dtype, "float32")(numbers[1:], numbers[:-1]).tolist()) == {1}


@pytest.mark.parametrize("dtypes", [("int64", "int64"), ("float32", "bool"), ("complex64", "complex64")])
def test_other_dtypes_have_no_ulps(dtypes):
    assert distances_in(*dtypes) is None


def test_the_percentile_is_one_of_the_distances():
    golden = np.ones(1000, np.float32)
    target = golden.copy()
    target[:11] += np.float32(2**-20)
    found = compare_tensors(target, golden)
    assert (found.ulp_max, found.ulp_p99) == (8, 8)
    target[:1] = 1
    found = compare_tensors(target, golden)
    assert (found.ulp_max, found.ulp_p99, found.num_different) == (8, 0, 10)
    assert compare_tensors(golden.copy(), golden).ulp_p99 == 0


def test_the_percentile_of_a_large_tensor_is_that_of_a_sample():
    rng = np.random.default_rng(0)
    golden = np.ones(1 << 20, np.float32)
    target = (golden.view(np.int32) + rng.integers(0, 1000, 1 << 20, dtype=np.int32)).view(np.float32)
    assert compare_tensors(target, golden).ulp_p99 == pytest.approx(990, abs=3)


@pytest.mark.parametrize("scale", [1e-30, 1e-4, 1e20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_percentiles_of_errors_are_those_of_all_elements_but_for_rounding(dtype, scale):
    rng = np.random.default_rng(3)
    golden = rng.uniform(1, 2, 9000).astype(dtype)
    target = golden.astype(np.complex128 if dtype is np.complex128 else np.float64)
    target += scale * rng.lognormal(0, 3, 9000) * rng.choice([-1, 1], 9000)
    target = target.astype(dtype)
    target[:700] = golden[:700]
    with cut_into(1000, 3000):
        found = compare_tensors(target, golden)
    wide = np.abs(target.astype(np.complex128) - golden.astype(np.complex128))
    for kind, errors in (("abs", wide), ("rel", wide / np.abs(golden))):
        for name, percent in tensor_pass.PERCENTILES.items():
            expected = np.sort(errors)[round(90 * percent) - 1]
            assert getattr(found, f"{kind}_{name}") == pytest.approx(expected, rel=1 / 256 + 1e-6), (kind, name)


def test_percentiles_of_errors_do_not_exceed_the_largest_and_are_zero_where_most_is_equal():
    golden = np.ones(1000, np.float32)
    target = golden.copy()
    target[:2] = 1.5
    with cut_into(10, 10):
        found = compare_tensors(target, golden)
    assert (found.abs_p50, found.abs_p99, found.abs_p999) == (0, 0, 0.5)
    assert (found.rel_p50, found.rel_p99, found.rel_p999) == (0, 0, 0.5)
    same = compare_tensors(golden, golden.copy())
    assert [getattr(same, f"{kind}_{name}") for kind in ("abs", "rel") for name in tensor_pass.PERCENTILES] == [0] * 8
    one = compare_tensors(np.array([1.3]), np.array([1.0]))
    assert one.largest_abs * (1 - 1 / 256) <= one.abs_p50 <= one.largest_abs


def test_percentiles_of_errors_beyond_float32():
    found = compare_tensors(np.array([1e308, 1.0]), np.array([-1e308, 1.0]))
    assert (found.abs_p50, found.abs_p999) == (0, INF)
    found = compare_tensors(np.array([2e200, 2e200]), np.array([1e200, 1e200]))
    assert (found.abs_p50, found.rel_p50) == (1e200, 1.0)
    assert compare_tensors(np.array([2e-200]), np.array([1e-200])).abs_p50 == 0


def test_percentiles_of_errors_of_a_large_tensor_are_those_of_a_sample():
    rng = np.random.default_rng(0)
    golden = np.ones(1 << 20, np.float32)
    errors = np.float32(2.0**-20) * rng.integers(0, 1 << 15, 1 << 20).astype(np.float32)
    found = compare_tensors(golden + errors, golden)
    # Three standard errors of the rank of a sample of 16,384: 3 * sqrt(p (1 - p) / 16,384).
    for name, percent, rank in (("p50", 50, 1.2), ("p90", 90, 0.71), ("p99", 99, 0.24), ("p999", 99.9, 0.075)):
        low, high = np.percentile(errors, [percent - rank, percent + rank])
        assert low * (1 - 1 / 256) <= getattr(found, f"abs_{name}") <= high * (1 + 1 / 256)


@pytest.mark.parametrize("num_equal", [0, 37])
def test_samples_are_evenly_spaced_across_blocks_and_pieces(monkeypatch, num_equal):
    monkeypatch.setattr(tensor_metrics, "NUM_SAMPLES", 10)
    golden = np.ones(95, np.float32)
    steps = np.arange(95, dtype=np.int32) * 3
    steps[:num_equal] = 0
    target = (golden.view(np.int32) + steps).view(np.float32)
    with cut_into(7, 16):
        found = compare_tensors(target, golden)
    assert found.ulp_p99 == np.percentile(steps[::11], 99, method="inverted_cdf")
    assert found.ulp_max == steps.max()


def test_nan_and_inf_are_counted_and_the_first_that_differs_is_shown():
    target = np.array([[NAN, 1, INF], [-INF, NAN, 2]], np.float32)
    golden = np.array([[NAN, 1, INF], [-INF, 3, 2]], np.float32)
    found = compare_tensors(target, golden)
    assert (found.num_nan_target, found.num_nan_golden, found.num_inf_target, found.num_inf_golden) == (2, 1, 2, 2)
    assert (found.worst_index, found.worst_target, found.worst_golden) == ("(1, 1)", "nan", "3.0")
    same = compare_tensors(target.copy(), target)
    assert (same.num_nan_target, same.num_inf_golden, same.num_different, same.error) == (2, 2, 0, 0.0)
    far = compare_tensors(np.append(np.ones(100_000), NAN), np.append(np.ones(100_000), 1.0))
    assert (far.worst_index, far.num_nan_target, far.num_nan_golden) == ("(100000,)", 1, 0)


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, NAN, INF, -INF])


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=SPECIAL), st.data())
@settings(deadline=None)
def test_special_values_count_wherever_they_are(golden, data):
    others = hnp.arrays(np.float32, golden.size, elements=SPECIAL)
    target = data.draw(st.just(golden.copy()) | others)
    with cut_into(7, 5):
        found = compare_tensors(target, golden)
    special = ~(np.isfinite(target) & np.isfinite(golden))
    is_same = np.array_equal(target[special], golden[special], equal_nan=True)
    assert (found.problem is None) == is_same
    assert found.num_nan_target == np.isnan(target).sum()
    assert found.num_nan_golden == np.isnan(golden).sum()
    assert found.num_inf_target == np.isinf(target).sum()
    assert found.num_inf_golden == np.isinf(golden).sum()


def test_complex_numbers_whole():
    golden = np.array([1 + 1j, 2 - 2j, INF + 1j, 0])
    target = np.array([1 + 1j, 2 - 1j, INF + 1j, 1j])
    found = compare_tensors(target, golden)
    assert (found.largest_abs, found.num_different, found.worst_index) == (1.0, 2, "(1,)")
    assert found.euclidean == pytest.approx(math.sqrt(2))
    expected = np.vdot(golden[:2], target[:2]).real / np.linalg.norm(golden[:2]) / math.sqrt(2 + 5 + 1)
    assert found.cosine == pytest.approx(expected)
    assert compare_tensors(target, np.array([1 + 1j, 2 - 1j, -INF + 1j, 1j])).status == "N/A"


class Source:
    def __init__(self, chunks, shape, dtype="float32"):
        self._chunks, self.shape, self.dtype = chunks, shape, dtype

    def chunks(self, num_elements):
        del num_elements
        return iter([np.asarray(chunk, np.float32) for chunk in self._chunks])


def test_sources_that_are_cut_differently():
    found = compare_sources(Source([[1], [], [2, 3], [4]], (4,)), Source([[1, 2], [3], [], [5]], (4,)))
    assert (found.largest_abs, found.worst_index) == (1.0, "(3,)")


@pytest.mark.parametrize(
    ("chunks", "expected"), [([[1, 2]], "has 2 elements of 4"), ([[1, 2, 3, 4, 5]], "more than 4")]
)
def test_sources_that_are_shorter_or_longer_than_their_shape(chunks, expected):
    with pytest.raises(DumpError, match=expected):
        compare_sources(Source(chunks, (4,)), Source([[1, 2, 3, 4]], (4,)))


# --- Pairs of files ---------------------------------------------------------------------------------------------


class Files:
    """As much of a dump as compare asks for."""

    def __init__(self, directory):
        self.directory = directory

    def open_tensor(self, file_name):
        return open_tensor(self.directory / file_name)


def side(directory, name, shape="[6]", dtype="torch.float32"):
    return StoredSide(Files(directory), name, shape, dtype, 6)


def test_what_is_bad_in_a_file_stays_with_its_row(tmp_path):
    values = np.arange(6, dtype=np.float32)
    np.save(tmp_path / "good.npy", values)
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "int.npy", np.arange(6))
    np.save(tmp_path / "long.npy", np.arange(7, dtype=np.float32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:-3])
    (tmp_path / "empty.npy").touch()
    (tmp_path / "empty.pt").touch()
    (tmp_path / "directory.npy").mkdir()
    write_pt(tmp_path / "code.pt", Call(Global("os", "system"), f"touch {tmp_path}/never"))
    write_pt(tmp_path / "bomb.pt", tensor(), {"0": b"\0" * 24}, compression=zipfile.ZIP_DEFLATED)
    write_pt(tmp_path / "endless.pt", tensor(size=(10**15,), stride=(0,)), {"0": b"\0" * 24})
    expected = {
        "good.npy": None, "missing.npy": "cannot be read (No such file", "object.npy": "type object, not numbers",
        "int.npy": "holds a tensor of int64, and its record says torch.float32",
        "long.npy": "holds a tensor of the shape [7], and its record says [6]", "cut.npy": "is cut off",
        "empty.npy": "not a whole tensor file", "empty.pt": "PyTorch 1.6", "directory.npy": "it is a directory",
        "code.pt": "it was not run", "bomb.pt": "compressed or too large", "endless.pt": "too large to unfold",
    }  # fmt: skip
    names = list(expected) * 2
    results = list(compare_pairs([(side(tmp_path, name), side(tmp_path, "good.npy")) for name in names]))
    for name, result in zip(names, results, strict=True):
        if expected[name] is None:
            assert (result.unread, result.error) == (None, 0.0)
        else:
            assert expected[name] in result.unread
            assert result.error is None
    assert not (tmp_path / "never").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(6, np.float32))
    (tmp_path / "x.npy").chmod(0)
    [result] = compare_pairs([(side(tmp_path, "x.npy"), side(tmp_path, "x.npy"))])
    assert "Permission denied" in result.unread


def test_bfloat16_in_npy_is_float32_and_ulps_are_those_of_bfloat16(tmp_path):
    np.save(tmp_path / "t.npy", np.float32([1, 1, 1, 1, 1, 1 + 2**-7]))
    np.save(tmp_path / "g.npy", np.ones(6, np.float32))
    [result] = compare_pairs([tuple(side(tmp_path, name, dtype="BFloat16") for name in ("t.npy", "g.npy"))])
    assert (result.problem, result.ulp_max) == (None, 1)


class Broken:
    def open_tensor(self, file_name):
        raise RuntimeError(f"no {file_name} here")


def test_a_reader_of_others_that_fails_costs_its_row():
    pair = StoredSide(Broken(), "x"), StoredSide(Broken(), "x")
    [result] = compare_pairs([pair])
    assert result.unread == "x cannot be read (RuntimeError: no x here)"


# --- Progress, cancelling, memory -------------------------------------------------------------------------------


class Slow:
    """A dump of one tensor that takes its time."""

    def __init__(self, num_chunks, pause):
        self.num_chunks, self.pause, self.num_read = num_chunks, pause, 0

    def open_tensor(self, file_name):
        del file_name
        return self

    dtype = "float32"

    @property
    def shape(self):
        return (self.num_chunks * 100,)

    def chunks(self, num_elements):
        del num_elements
        for _ in range(self.num_chunks):
            time.sleep(self.pause)
            self.num_read += 1
            yield np.ones(100, np.float32)


def test_progress_moves_within_a_pair_and_ends_at_the_total(monkeypatch):
    monkeypatch.setattr(tensor_pass, "_PROGRESS_PERIOD_S", 0.01)
    slow = Slow(40, 0.01)
    shape = str(list(slow.shape))
    pair = tuple(StoredSide(slow, "x", shape, "torch.float32", 4000) for _ in range(2))
    told = []
    threads = set()
    results = compare_pairs([None, pair, pair], lambda *seen: (told.append(seen), threads.add(threading.get_ident())))
    assert [result.error for result in results] == [None, 0.0, 0.0]
    done, totals = zip(*told, strict=True)
    assert set(totals) == {4 * 16000}
    assert list(done) == sorted(done)
    assert done[-1] == 4 * 16000
    assert len(set(done) - {0, 32000, 64000}) >= 2
    assert threads == {threading.get_ident()}


def test_giving_up_ends_the_work_at_the_next_piece():
    slow = Slow(1000, 0.01)
    pair = tuple(StoredSide(slow, "x") for _ in range(2))

    def interrupt(*_):
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(compare_pairs([pair] * 50, interrupt))
    assert time.monotonic() - start < 60, "the whole takes minutes"
    num_read = slow.num_read
    time.sleep(0.1)
    assert slow.num_read == num_read


def write_dump(directory, entries):
    """A dump.json with one output per entry: ``{file name: (shape, fields of its record)}``."""
    (directory / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
    data = {}
    for i, (file_name, (shape, fields)) in enumerate(entries.items()):
        record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, "requires_grad": False}
        record |= {"data_name": file_name} | fields
        data[f"Functional.relu.{i}.forward"] = {"input_args": [], "input_kwargs": {}, "output": [record]}
    content = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (directory / "dump.json").write_text(json.dumps(content))
    return directory / "dump.json"


STATISTICS = {"Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 2.0}

SCRIPT = """
import re, sys
from pathlib import Path
from msprobe_core.compare import compare_dumps
result = compare_dumps(*sys.argv[1:])
row = result.units[0].rows.row(0, named=True)
# Not ru_maxrss, which begins with that of the process that started this one.
peak_kib = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(row["error"], row["num_different"], row["problem"], peak_kib >> 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_pair_that_is_larger_than_the_memory_it_takes(tmp_path):
    shape = (1 << 14, 8 << 10)  # 0.5 GiB a side
    for name in ("target", "golden"):
        path = write_dump(tmp_path / name, {"x.npy": (list(shape), STATISTICS)})
        with (path.parent / "dump_tensor_data" / "x.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            file.truncate(file.tell() + 4 * math.prod(shape))  # sparse: it takes no room
            if name == "target":
                file.seek(-4, os.SEEK_END)
                file.write(np.float32(1).tobytes())
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "target/dump.json"), str(tmp_path / "golden/dump.json")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    error, num_different, problem, peak_mib = run.stdout.split()
    assert (error, num_different, problem) == ("inf", "1", "None")
    assert int(peak_mib) < 300


def num_bytes_read(process, name):
    """Return how far a process is in its open files of a name."""
    found = [0]
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if file.readlink().name == name:
                found.append(int(Path(f"/proc/{process}/fdinfo/{file.name}").read_text().split()[1]))
    return max(found)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="signals")
def test_ctrl_c_ends_the_command_line_at_once(tmp_path):
    shape = (1 << 18, 64 << 10)  # 64 GiB a side: minutes, in the middle of which it ends
    for name in ("target", "golden"):
        path = write_dump(tmp_path / name, {"x.npy": (list(shape), STATISTICS)})
        with (path.parent / "dump_tensor_data" / "x.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            file.truncate(file.tell() + 4 * math.prod(shape))  # sparse: it takes no room
    command = [sys.executable, "-m", "msprobe_core", "compare", "-tp", tmp_path / "target", "-gp", tmp_path / "golden"]
    run = subprocess.Popen([*map(str, command), "-o", str(tmp_path / "out")], cwd=REPOSITORY, stderr=subprocess.PIPE)
    while num_bytes_read(run.pid, "x.npy") < 1 << 20:
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said


def test_rows_have_a_column_for_every_metric(tmp_path):
    values = np.arange(6, dtype=np.float32)
    for name, shift in (("target", 0.5), ("golden", 0.0)):
        path = write_dump(tmp_path / name, {"x.npy": ([6], STATISTICS | {"num_nan": 5}), "y.npy": ([6], STATISTICS)})
        np.save(path.parent / "dump_tensor_data" / "x.npy", values + np.float32(shift))
        np.save(path.parent / "dump_tensor_data" / "y.npy", values)
    rows = compare_dumps(tmp_path / "target/dump.json", tmp_path / "golden/dump.json").units[0].rows
    assert set(tensor_pass.TensorMetrics.__struct_fields__) <= set(rows.columns)
    row = rows.row(0, named=True)
    assert (row["num_different"], row["worst_index"], row["worst_target"], row["num_nan_target"]) == (
        6,
        "(0,)",
        "0.5",
        0,
    )
    assert rows.row(1, named=True)["error"] == 0.0
