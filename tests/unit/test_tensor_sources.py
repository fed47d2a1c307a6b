"""Stored tensors are read in pieces, however their files arrange them."""

import os
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pt_writer import FLOAT, V2, Call, Global, Pickler, Storage, tensor, write_pt

from msprobe_core.errors import DumpError
from msprobe_core.store import tensor_source
from msprobe_core.store.tensors import open_tensor, read_tensor


def joined(source, num_elements):
    chunks = list(source.chunks(num_elements))
    assert all(chunk.ndim == 1 and chunk.size <= num_elements for chunk in chunks)
    return np.concatenate(chunks).reshape(source.shape)


@st.composite
def views(draw):
    """A vector, and a view of it with any strides, overlapping ones and such of 0 included."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=0, max_size=4)))
    strides = tuple(draw(st.integers(0, 40)) for _ in shape)
    offset = draw(st.integers(0, 9))
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    values = np.arange(extent + draw(st.integers(0, 5)), dtype=np.float32)
    return values, shape, strides, offset


@given(views(), st.integers(1, 50), st.integers(4, 400))
@settings(max_examples=300, deadline=None)
def test_views_are_read_as_numpy_has_them(tmp_path_factory, view, num_elements, gather_bytes):
    values, shape, strides, offset = view
    expected = np.lib.stride_tricks.as_strided(values[offset:], shape, [4 * stride for stride in strides])
    path = tmp_path_factory.mktemp("view") / "x.pt"
    write_pt(path, tensor(numel=values.size, offset=offset, size=shape, stride=strides), {"0": values.tobytes()})
    with pytest.MonkeyPatch.context() as patch:  # blocks as small as these are cut and halved in every way
        patch.setattr(tensor_source, "_GATHER_BYTES", gather_bytes)
        patch.setattr(tensor_source, "_PAGE_BYTES", 16)
        np.testing.assert_array_equal(joined(open_tensor(path), num_elements), expected)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<i8", "|b1", "<c8", "<U3", "|S5", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("num_elements", [1, 5, 1000])
def test_npy_of_every_kind(tmp_path, dtype, order, num_elements):
    values = np.asarray(np.arange(24).reshape(2, 3, 4) % 5).astype(dtype).copy(order)
    np.save(tmp_path / "x.npy", values)
    source = open_tensor(tmp_path / "x.npy")
    assert source.shape == (2, 3, 4)
    found = joined(source, num_elements)
    np.testing.assert_array_equal(found, values)
    assert found.dtype.isnative
    assert source.dtype == ("text" if values.dtype.kind in "SU" else values.dtype.name)


def test_the_dtype_is_that_of_the_file_and_the_values_are_widened(tmp_path):
    storage = Storage(Global("torch", "BFloat16Storage"), "0", 2)
    value = Call(V2, storage, 0, (2,), (1,), False, OrderedDict())
    source = open_tensor(write_pt(tmp_path / "x.pt", value, {"0": b"\x80\x3f\x00\xc0"}))
    assert source.dtype == "bfloat16"
    assert joined(source, 10).tolist() == [1.0, -2.0]
    assert joined(source, 1).dtype == np.float32


def test_an_empty_tensor_yields_no_elements(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 3), np.float32))
    assert [chunk.size for chunk in open_tensor(tmp_path / "x.npy").chunks(5)] == [0]


def test_a_file_that_is_cut_off_later_is_an_error_then(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000.0))
    source = open_tensor(tmp_path / "x.npy")
    chunks = source.chunks(100)
    next(chunks)
    os.truncate(tmp_path / "x.npy", 2000)
    with pytest.raises(DumpError, match=r"x\.npy: is cut off: the file ends before the tensor"):
        list(chunks)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(DumpError, match=r"x\.npy: cannot be read \(No such file"):
        list(source.chunks(100))


@pytest.mark.parametrize(
    ("numel", "size", "stride", "offset"),
    [(6, (6,), (1,), 0), (6, (3, 2), (1, 3), 0), (6, (2,), (1,), 1)],
    ids=["whole", "transposed", "a part that is sound itself"],
)
def test_bytes_that_do_not_match_their_checksum_are_refused(tmp_path, numel, size, stride, offset):
    content = np.arange(6, dtype=np.float32).tobytes()
    description = tensor(numel=numel, size=size, stride=stride, offset=offset)
    path = write_pt(tmp_path / "x.pt", description, {"0": content})
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(content) + 23] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DumpError, match="do not match the checksum beside them; the file is damaged"):
        read_tensor(path)


def test_files_without_checksums_are_read(tmp_path):
    path = write_pt(tmp_path / "x.pt", tensor(), {"0": np.arange(6, dtype=np.float32).tobytes()})
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            crc = info.CRC.to_bytes(4, "little")
            while crc in content:
                content[content.index(crc) : content.index(crc) + 4] = b"\0\0\0\0"
    path.write_bytes(content)
    assert read_tensor(path).ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_what_a_pickle_writes_into_its_description_has_no_effect(tmp_path):
    """Attributes are not kept, so nothing can change what has been checked."""

    class Building(Pickler):
        def save(self, value, save_persistent_id=True):
            super().save(value, save_persistent_id)
            if isinstance(value, Call):
                arguments = (Storage(FLOAT, "0", 6), 10**6, (2, 3), (3, 1), False, OrderedDict())
                super().save((None, {"args": arguments}))
                self.write(b"b")

    path = write_pt(tmp_path / "x.pt", tensor(), {"0": b"\0" * 24}, pickler=Building)
    found = open_tensor(path)
    assert (found.shape, found.strides, found.offset) == ((2, 3), (3, 1), 0)


SCRIPT = """
import re, sys
from pathlib import Path
from msprobe_core.store.tensors import open_tensor
peak_kib = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kib()
num_elements = sum(chunk.size for chunk in open_tensor(Path(sys.argv[1])).chunks(1 << 20))
print(num_elements, (peak_kib() - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_tensor_is_read_in_little_memory(tmp_path, order):
    with (tmp_path / "x.npy").open("wb") as file:  # sparse: it takes no room
        header = {"descr": "<f4", "fortran_order": order == "F", "shape": (1 << 13, 1 << 13)}
        np.lib.format.write_array_header_1_0(file, header)
        os.truncate(file.fileno(), file.tell() + (4 << 26))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "x.npy")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    num_elements, grown_mib = map(int, run.stdout.split())
    assert num_elements == 1 << 26
    assert grown_mib < (16 if order == "C" else 64)
