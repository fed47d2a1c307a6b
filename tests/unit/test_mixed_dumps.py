"""A dump of whole tensors beside one of statistics or checksums."""

import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pt_writer import V2, Call, Global, Storage, write_pt

from msprobe_core.compare import compare_dumps, mixed
from msprobe_core.compare.result import Mode
from msprobe_core.errors import CompareError
from msprobe_core.fingerprint.hashing import hash_of
from msprobe_core.store.tensor_source import HeldTensor

STATISTICS = {"Max": 5.0, "Min": 0.0, "Mean": 2.5, "Norm": 7.416198487095663}
VALUES = np.arange(6, dtype=np.float32)


def write_dump(directory, records, task="statistics", mode=None):
    """A dump.json with one output for each of ``records``."""
    directory.mkdir()
    data = {}
    for i, fields in enumerate(records):
        record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [6], "requires_grad": False} | fields
        data[f"Functional.relu.{i}.forward"] = {"input_args": [], "input_kwargs": {}, "output": [record]}
    header = {"task": task, "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    header |= {"summary_mode": mode} if mode else {}
    (directory / "dump.json").write_text(json.dumps(header | {"data": data}))
    return directory / "dump.json"


def write_tensors(directory, arrays, **fields):
    path = write_dump(directory, [{"data_name": f"{i}.npy"} | fields for i in range(len(arrays))], "tensor")
    (directory / "dump_tensor_data").mkdir()
    for i, array in enumerate(arrays):
        if array is not None:
            np.save(directory / "dump_tensor_data" / f"{i}.npy", array)
    return path


def test_statistics_that_the_records_lack_are_computed(tmp_path):
    tensors = write_tensors(tmp_path / "t", [VALUES, VALUES + 1, None])
    unit = compare_dumps(tensors, write_dump(tmp_path / "g", [STATISTICS] * 3)).units[0]
    assert unit.mode is Mode.STATISTICS
    assert unit.rows["verdict"].to_list() == ["pass", "error", "warning"]
    assert unit.rows["norm_target"].to_list()[0] == pytest.approx(STATISTICS["Norm"])
    assert unit.rows["num_nan_target"].to_list()[:2] == [0, 0]
    notes = "\n".join(unit.notes)
    assert "statistics of" in notes
    assert "that were computed from its tensors: 2" in notes
    assert "statistics that could not be: 1; the first is of 2.npy" in notes
    other_way = compare_dumps(tmp_path / "g/dump.json", tensors).units[0]
    assert other_way.rows["verdict"].to_list() == ["pass", "error", "warning"]


def test_statistics_in_the_records_are_taken_as_they_are(tmp_path):
    tensors = write_tensors(tmp_path / "t", [None], **STATISTICS)  # no file is looked at
    unit = compare_dumps(tensors, write_dump(tmp_path / "g", [STATISTICS])).units[0]
    assert unit.rows["verdict"].to_list() == ["pass"]
    assert not any("computed" in note for note in unit.notes)


FLOATS = hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(-1000, 1000, width=32))


@given(FLOATS, st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_statistics_are_those_of_numpy(values, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed, "_CHUNK", chunk)
        found = mixed.statistics_of(HeldTensor(values))
    wide = values.astype(np.float64)
    assert (found["max"], found["min"]) == (wide.max(), wide.min())
    assert found["mean"] == pytest.approx(wide.mean(), rel=1e-9, abs=1e-9)
    assert found["norm"] == pytest.approx(np.linalg.norm(wide))


def test_statistics_of_nan_inf_complex_bool_and_nothing():
    found = mixed.statistics_of(HeldTensor(np.array([1, np.nan, np.inf, -np.inf])))
    assert np.isnan([found[name] for name in ("max", "min", "mean", "norm")]).all()
    assert (found["num_nan"], found["num_inf"]) == (1, 2)
    found = mixed.statistics_of(HeldTensor(np.array([3 + 4j, 0])))
    assert (found["max"], found["min"], found["mean"], found["norm"]) == (5.0, 0.0, 2.5, 5.0)
    found = mixed.statistics_of(HeldTensor(np.array([True, False])))
    assert (found["max"], found["min"]) == (1.0, 0.0)
    assert mixed.statistics_of(HeldTensor(np.zeros((0, 3)))) == {}


def xor_of(content):
    words = np.frombuffer(content + b"\0" * (-len(content) % 8), "<u8")
    return f"0x{np.bitwise_xor.reduce(words):016x}"


def hash_text(values):
    return f"0x{int(hash_of(values)[0]) % 2**64:016x}"


CHECKSUMS = {
    "md5": lambda values: f"{zlib.crc32(values.tobytes()):08x}",
    "xor": lambda values: xor_of(values.tobytes()),
    "hash": hash_text,
}


@pytest.mark.parametrize("mode", CHECKSUMS)
def test_checksums_are_computed_where_the_other_dump_keeps_nothing_else(tmp_path, mode):
    tensors = write_tensors(tmp_path / "t", [VALUES, VALUES + 1])
    golden = write_dump(tmp_path / "g", [{"md5": CHECKSUMS[mode](VALUES)}] * 2, mode=mode)
    unit = compare_dumps(tensors, golden).units[0]
    assert unit.mode is Mode.CHECKSUM
    assert unit.rows["verdict"].to_list() == ["pass", "error"]
    assert any("checksums of" in note and note.endswith("from its tensors: 2") for note in unit.notes)


def test_where_there_are_statistics_too_they_are_compared(tmp_path):
    """Reading every tensor for a checksum would cost what comparing statistics saves."""
    tensors = write_tensors(tmp_path / "t", [VALUES], **STATISTICS)
    golden = write_dump(tmp_path / "g", [STATISTICS | {"md5": "00000000"}], mode="md5")
    assert compare_dumps(tensors, golden).units[0].mode is Mode.STATISTICS


def test_a_kind_of_checksum_that_is_not_known_is_refused_with_a_sentence(tmp_path):
    tensors = write_tensors(tmp_path / "t", [VALUES], **STATISTICS)
    golden = write_dump(tmp_path / "g", [{"md5": "0x0123456789abcdef"}], mode="theirs")
    with pytest.raises(CompareError, match="cannot be compared; record both with the same 'summary_mode'"):
        compare_dumps(tensors, golden)


@pytest.mark.parametrize("mode", CHECKSUMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "bool", "complex64"])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_checksums_are_those_of_the_whole_tensor(monkeypatch, mode, dtype, chunk):
    monkeypatch.setattr(mixed, "_CHUNK", chunk)
    values = (np.arange(13) % 5 - 2).astype(dtype)
    assert mixed._CHECKSUMS[mode](HeldTensor(values)) == {"checksum": CHECKSUMS[mode](values)}


@pytest.mark.parametrize("mode", CHECKSUMS)
def test_checksums_of_bfloat16_are_those_of_its_own_bits(tmp_path, mode):
    from msprobe_core.store.tensors import open_tensor

    stored = np.array([0x3F80, 0xC000, 0x7FC1], np.uint16)
    value = Call(V2, Storage(Global("torch", "BFloat16Storage"), "0", 3), 0, (3,), (1,), False, {})
    source = open_tensor(write_pt(tmp_path / "x.pt", value, {"0": stored.tobytes()}))
    assert mixed._CHECKSUMS[mode](source) == {"checksum": CHECKSUMS[mode](stored)}
