"""Whole tensors in safetensors shards: each distinct one once, whole at all times, read without a framework."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_rig import ArrayRig, record_step

import msprobe_core
from msprobe_core.compare import compare_dumps
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError, DumpError
from msprobe_core.model import TensorContent
from msprobe_core.store import layout
from msprobe_core.store.reading import read_dump
from msprobe_core.store.safetensors_writer import ShardWriter
from msprobe_core.store.tensors import read_tensor

REPOSITORY = Path(msprobe_core.__file__).parents[1]


def content(values):
    values = np.asarray(values)
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return TensorContent(str(values.dtype), values.shape, memoryview(data))


def load(directory, reference):
    return read_tensor(directory / reference)


def io(field):
    """Return how many bytes or calls this process has had of the operating system, as Linux counts them."""
    counter = Path("/proc/self/io")
    if not counter.exists():
        pytest.skip("Linux counts what a process reads and writes")
    return int(dict(line.split(": ") for line in counter.read_text().splitlines())[field])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64",
                                   "uint32", "uint16", "uint8", "bool", "complex64"])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 5)], ids=str)
def test_what_is_written_is_read(tmp_path, dtype, shape):
    values = (np.random.default_rng(0).normal(size=shape) * 50).astype(dtype)
    shards = ShardWriter(tmp_path)
    shards.add("odd", content(np.uint8(1)))  # so that nothing stands where its type would have it
    reference = shards.add("Tensor.add.0.forward.input.0", content(values))
    assert reference == "shard-00000.safetensors#Tensor.add.0.forward.input.0"
    found = load(tmp_path, reference)  # before the shard is closed
    assert (found.dtype, found.shape) == (values.dtype, shape)
    np.testing.assert_array_equal(found, values)
    shards.close()


def test_the_library_reads_the_shards(tmp_path):
    numpy_of = pytest.importorskip("safetensors.numpy")
    shards = ShardWriter(tmp_path, max_bytes=100)
    arrays = {f"t{i}": np.full((i,), i, ["float32", "uint8", "int64", "bool"][i % 4]) for i in range(30)}
    references = {name: shards.add(name, content(values)) for name, values in arrays.items()}
    loaded = {}
    for path in tmp_path.iterdir():  # the last one is still open
        loaded |= numpy_of.load_file(path)
    shards.close()
    assert len(list(tmp_path.iterdir())) > 10
    for name, values in arrays.items():
        np.testing.assert_array_equal(loaded[layout.shard_member(references[name])[1]], values)


def test_equal_tensors_are_stored_once(tmp_path):
    shards = ShardWriter(tmp_path)
    ones = np.ones((4, 6), np.float32)
    first = shards.add("first", content(ones))
    size = (tmp_path / "shard-00000.safetensors").stat().st_size
    assert shards.add("second", content(ones.copy())) == first
    assert (tmp_path / "shard-00000.safetensors").stat().st_size == size
    # The same bytes in another shape or dtype are another tensor; so is one that differs in its last bit.
    others = [ones.reshape(6, 4), ones.view(np.int32), np.where(np.arange(24).reshape(4, 6) == 23, 1 + 2**-23, ones)]
    references = [shards.add("first", content(other.astype(other.dtype))) for other in others]
    assert len({first, *references}) == 4
    for reference, other in zip(references, others, strict=True):
        np.testing.assert_array_equal(load(tmp_path, reference), other)
    shards.close()


def test_shards_are_bounded(tmp_path):
    shards = ShardWriter(tmp_path, max_bytes=1000, header_bytes=600)
    rng = np.random.default_rng(0)
    sizes = [400, 400, 400, 5000, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    arrays = [rng.integers(0, 256, size).astype(np.uint8) for size in sizes]
    references = [shards.add(f"t{i}", content(values)) for i, values in enumerate(arrays)]
    shards.close()
    used = [int(layout.shard_member(reference)[0][6:11]) for reference in references]
    assert used[:5] == [0, 0, 1, 2, 3]  # 5000 bytes have a shard to themselves
    assert used[-1] > 3  # the header of the fourth is full
    for reference, values in zip(references, arrays, strict=True):
        np.testing.assert_array_equal(load(tmp_path, reference), values)


def test_a_tensor_costs_its_bytes_and_its_description(tmp_path):
    """Nothing is written twice, however long the shard is."""
    shards = ShardWriter(tmp_path)
    shards.add("begin", content([0]))
    costs = []
    for i in range(400):
        values, before = content(np.full(1000, i)), (io("wchar"), io("syscw"))
        shards.add(f"tensor{i:04}", values)
        costs.append((io("wchar") - before[0] - values.data.nbytes, io("syscw") - before[1]))
    shards.close()
    assert {calls for _, calls in costs} == {2}
    assert max(size for size, _ in costs) < 110


@pytest.mark.parametrize("stem", ["a/b", "x" * 400, "ключ#1", "#", ".."])
def test_any_stem_leads_to_its_tensor(tmp_path, stem):
    shards = ShardWriter(tmp_path)
    references = [shards.add(stem, content(np.array([i]))) for i in range(3)]
    shards.close()
    for i, reference in enumerate(references):
        path = layout.tensor_path(tmp_path.parent / "x" / "dump.json", reference)
        assert path.name == reference
        assert load(tmp_path, reference) == [i]


# --- what a kill, a full disk or an enemy leaves ------------------------------------------------------------------


def test_a_killed_process_loses_the_tensor_that_it_was_writing(tmp_path):
    program = f"""
import sys
sys.path[:0] = [{str(REPOSITORY)!r}, {str(Path(__file__).parent)!r}, {str(REPOSITORY / "tests" / "support")!r}]
from test_shards import Path, ShardWriter, content, np
shards = ShardWriter(Path({str(tmp_path)!r}), max_bytes=1 << 20)
for i in range(100000):
    print(shards.add(f"t{{i}}", content(np.full(5000, i))), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        written = []
        for line in process.stdout:
            written.append(line.strip())
            if len(written) == 60:
                process.kill()
                break
        written += process.stdout.read().split()
    assert process.returncode == -signal.SIGKILL
    for i, reference in enumerate(written):
        assert load(tmp_path, reference).tolist() == [i] * 5000


@given(cut=st.integers(0, 200))
@settings(max_examples=80, deadline=None)
def test_a_half_written_description_hides_no_other(tmp_path_factory, cut):
    directory = tmp_path_factory.mktemp("half")
    shards = ShardWriter(directory)
    references = [shards.add(f"t{i}", content(np.arange(i, i + 3))) for i in range(3)]
    shards.close()
    path = directory / "shard-00000.safetensors"
    whole = path.read_bytes()
    begin = whole.index(b',"t2"')
    end = whole.index(b"}}", begin) + 2
    begin = min(begin + cut, end)
    path.write_bytes(whole[:begin] + b" " * (end - begin) + whole[end:])
    for i in range(2):
        assert load(directory, references[i]).tolist() == [i, i + 1, i + 2]
    if begin < end - 1:
        with pytest.raises(DumpError, match="does not hold the tensor 't2'"):
            load(directory, references[2])


def test_a_full_disk_keeps_what_was_written(tmp_path):
    program = f"""
import resource, signal, sys
sys.path[:0] = [{str(REPOSITORY)!r}, {str(Path(__file__).parent)!r}, {str(REPOSITORY / "tests" / "support")!r}]
from test_shards import Path, ShardWriter, content, np
from msprobe_core.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
shards = ShardWriter(Path({str(tmp_path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for i, size in enumerate([1000, 10_000, 2000]):
    try:
        print(shards.add(f"t{{i}}", content(np.full(size, i))))
    except StoreError as error:
        print(error)
shards.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    first, error, last = done.stdout.splitlines()
    assert error.endswith("cannot be written (File too large); what was recorded before is kept")
    assert load(tmp_path, first).tolist() == [0] * 1000
    assert load(tmp_path, last).tolist() == [2] * 2000
    if numpy_of := pytest.importorskip("safetensors.numpy"):
        assert set(numpy_of.load_file(tmp_path / "shard-00000.safetensors")) == {"t0", "t2"}


def shard(path, header, data=b"", length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)


def member(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read"),
        (lambda path: path.write_bytes(b""), "is not a whole tensor file|is not a safetensors file"),
        (lambda path: path.write_bytes(os.urandom(3)), "is not"),
        (lambda path: shard(path, b"{}", length=2**63), "is not a safetensors file, or is cut off in its header"),
        (lambda path: shard(path, b"{}", length=2**40), "is not a safetensors file, or is cut off in its header"),
        (lambda path: shard(path, b"garbage"), "is not a whole tensor file"),
        (lambda path: shard(path, b"}" * 100), "is not a whole tensor file"),
        (lambda path: shard(path, b"[1]"), "is not a whole tensor file"),
        (lambda path: shard(path, {}), "does not hold the tensor 't'"),
        (lambda path: shard(path, {"t": 3}), "is not a whole tensor file"),
        (lambda path: shard(path, member("Q4"), b"ab"), "the type Q4, which is not known"),
        (lambda path: shard(path, member(), b"a"), "the file ends before it"),
        (lambda path: shard(path, member(offsets=(-1, 1)), b"ab"), "does not fit its shape"),
        (lambda path: shard(path, member(shape=(-1, -2)), b"ab"), "does not fit its shape"),
        (lambda path: shard(path, member(shape=(2**40,)), b"ab"), "does not fit its shape"),
        (lambda path: shard(path, member(shape=(2**70,)), b"ab"), "is not a whole tensor file|does not fit"),
        (lambda path: shard(path, member("F32"), b"ab"), "does not fit its shape"),
    ],
)
def test_what_is_no_shard_is_an_error_in_a_sentence(tmp_path, make, message):
    path = tmp_path / "shard-00000.safetensors"
    make(path)
    with pytest.raises(DumpError, match=message) as error:
        load(tmp_path, f"{path.name}#t")
    assert str(path) in str(error.value)


def test_a_reference_does_not_lead_out_of_the_dump(tmp_path):
    for name in ("../shard-00000.safetensors#t", "shard-00000.safetensors#../t", "/etc/x.safetensors#t"):
        with pytest.raises(DumpError, match="leads out of"):
            layout.tensor_path(tmp_path / "dump.json", name)


def test_a_tensor_file_of_another_kind_is_named(tmp_path):
    with pytest.raises(DumpError, match=r"expected \.pt, \.npy, or a tensor of a \.safetensors"):
        read_tensor(tmp_path / "shard-00000.safetensors")


# --- through the whole program ------------------------------------------------------------------------------------


def record(tmp_path, fault=1.0, rig=None, **options):
    config = load_config(None, dump_path=str(tmp_path), task="tensor", level="mix", **options)
    return record_step(config, fault=fault, rig=rig)


WAYS = [("json", "files"), ("json", "safetensors"), ("arrow", "safetensors")]


def test_tensors_compare_the_same_however_they_are_stored(tmp_path):
    pytest.importorskip("pyarrow")
    golden, target = (
        [record(tmp_path / side / str(i), fault, writer=w, tensor_format=t) for i, (w, t) in enumerate(WAYS)]
        for side, fault in (("golden", 1.0), ("target", 1.5))
    )
    stored = ["file_name_target", "file_name_golden", "name_target", "name_golden"]
    first = compare_dumps(target[0], golden[0]).units[0]
    assert not first.agrees
    for t in target:
        for g in golden:
            unit = compare_dumps(t, g).units[0]
            assert unit.mode == "tensor"
            assert unit.rows["problem"].null_count() == unit.rows.height
            assert unit.rows.drop(stored).equals(first.rows.drop(stored))
            assert unit.counts == first.counts


def test_a_run_stores_each_tensor_once(tmp_path):
    unit = record(tmp_path, tensor_format="safetensors")
    (shard,) = (unit / "dump_tensor_data").iterdir()
    dump = read_dump(unit)
    rows = dump.frame.filter(dump.frame["file_name"].is_not_null())
    assert rows.height == dump.frame.filter(kind="tensor").height
    assert rows["file_name"].n_unique() < rows.height / 2
    assert rows["name"].equals(rows["key"].alias("name"))
    assert shard.stat().st_mode & 0o077 == 0
    for row in rows.rows(named=True):
        values = read_tensor(dump.tensor_path(row["file_name"]))
        assert str(list(values.shape)) == row["shape"]
        assert values.max() == row["max"]


def test_what_the_format_has_no_dtype_for_has_a_file_of_its_own(tmp_path):
    rig = ArrayRig()

    class Framework(type(rig.framework)):
        def content(self, snapshot):
            found = super().content(snapshot)
            if snapshot.ndim == 2 and snapshot.shape[1] == 3:
                return None
            return TensorContent("complex128", found.shape, found.data) if snapshot.shape[1] == 5 else found

    rig.framework = Framework()
    unit = record(tmp_path, rig=rig, tensor_format="safetensors")
    rows = read_dump(unit).frame.filter(kind="tensor")
    kinds = {shape: name.partition("#")[0][-12:] for shape, name in rows.select("shape", "file_name").rows()}
    assert rows["file_name"].null_count() == 0
    assert {shape: name[-4:] for shape, name in kinds.items()} == {
        "[6, 4]": "sors", "[4, 5]": ".npy", "[6, 5]": ".npy", "[5, 3]": ".npy", "[6, 3]": ".npy"
    }  # fmt: skip
    assert compare_dumps(unit, unit).agrees


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match=r"'tensor_format' is 'zip'; allowed: files, safetensors"):
        load_config(None, tensor_format="zip")


def test_reading_many_tensors_of_a_shard_does_not_read_its_header_each_time(tmp_path):
    shards = ShardWriter(tmp_path)
    references = [shards.add(f"t{i}", content(np.array([i]))) for i in range(1000)]
    shards.close()
    before = io("rchar")
    for reference in references:
        load(tmp_path, reference)
    assert io("rchar") - before < 20_000_000
