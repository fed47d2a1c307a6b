"""``.pt`` and ``.npy`` are read without a framework, and nothing in them is run."""

import contextlib
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limited import run_limited
from pickle_bombs import PICKLE_BOMBS, shared
from pt_writer import FLOAT, V2, Call, Global, Pickler, Storage, tensor, write_pt

from msprobe_core.errors import DumpError
from msprobe_core.store.tensors import read_tensor


def test_a_tensor(tmp_path):
    values = np.arange(6, dtype=np.float32)
    path = write_pt(tmp_path / "x.pt", tensor(), {"0": values.tobytes()})
    np.testing.assert_array_equal(read_tensor(path), values.reshape(2, 3))


def test_views_and_parameters(tmp_path):
    values = np.arange(6, dtype=np.float32)
    transposed = write_pt(tmp_path / "t.pt", tensor(size=(3, 2), stride=(1, 3)), {"0": values.tobytes()})
    np.testing.assert_array_equal(read_tensor(transposed), values.reshape(2, 3).T)
    sliced = write_pt(tmp_path / "s.pt", tensor(offset=4, size=(2,), stride=(1,)), {"0": values.tobytes()})
    assert read_tensor(sliced).tolist() == [4.0, 5.0]
    scalar = write_pt(tmp_path / "0.pt", tensor(offset=5, size=(), stride=()), {"0": values.tobytes()})
    assert read_tensor(scalar).tolist() == 5.0
    empty = write_pt(tmp_path / "e.pt", tensor(size=(0, 3)), {"0": b""})
    assert read_tensor(empty).shape == (0, 3)
    wrapped = Call(Global("torch._utils", "_rebuild_parameter"), tensor(), True, OrderedDict())
    parameter = write_pt(tmp_path / "p.pt", wrapped, {"0": values.tobytes()})
    np.testing.assert_array_equal(read_tensor(parameter), values.reshape(2, 3))


MARK = Path("exploit_ran")
"""In the working directory."""


class Exploit:
    def __reduce__(self):
        return os.system, (f"touch {MARK}",)


@pytest.mark.parametrize(
    "value",
    [
        Call(Global("os", "system"), "true"),
        Call(Global("builtins", "eval"), "1"),
        Call(Global("torch", "load"), "x"),
        Call(Global("torch.storage", "_load_from_bytes"), b""),
        Call(Global("numpy", "frombuffer"), b""),
        Global("collections", "deque"),
        Exploit(),
    ],
    ids=["os.system", "eval", "torch.load", "nested pickle", "numpy", "other type", "reduce"],
)
def test_code_is_refused_and_not_run(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    path = write_pt(tmp_path / "x.pt", value)
    with pytest.raises(DumpError, match=r"which no tensor needs; it was not run"):
        read_tensor(path)
    assert not MARK.exists()


@pytest.mark.parametrize(
    ("value", "storages", "expected"),
    [
        (tensor(), {"0": b"\0" * 8}, "larger than its 8 bytes"),
        (tensor(offset=-1), {"0": b"\0" * 24}, "impossible sizes or strides"),
        (tensor(stride=(-3, 1)), {"0": b"\0" * 24}, "impossible sizes or strides"),
        (tensor(size=(2**40, 2**40), stride=(0, 10**9)), {"0": b"\0" * 24}, "larger than its 24 bytes"),
        (tensor(stride=(3,)), {"0": b"\0" * 24}, "impossible sizes or strides"),
        (tensor(), {}, "lacks the part 'data/0'"),
        ([1, 2], {}, "holds list, not one tensor"),
        (tensor(size="ab"), {"0": b"\0" * 24}, "does not describe a tensor"),
    ],
)
def test_impossible_descriptions_are_refused(tmp_path, value, storages, expected):
    path = write_pt(tmp_path / "x.pt", value, storages)
    with pytest.raises(DumpError, match=expected) as raised:
        read_tensor(path)
    assert str(raised.value).startswith(str(path))


def test_damaged_files_are_refused(tmp_path):
    whole = write_pt(tmp_path / "x.pt", tensor(), {"0": b"\0" * 24}).read_bytes()
    for cut in (0, 3, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "x.pt").write_bytes(whole[:cut])
        with pytest.raises(DumpError, match=r"x\.pt: "):
            read_tensor(tmp_path / "x.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"legacy": 1}, 2))
    with pytest.raises(DumpError, match=r"PyTorch 1\.6 or later"):
        read_tensor(tmp_path / "old.pt")
    with pytest.raises(DumpError, match="cannot be read"):
        read_tensor(tmp_path / "missing.pt")
    with pytest.raises(DumpError, match="unknown kind of tensor file"):
        read_tensor(tmp_path / "x.bin")


def test_compressed_parts_are_refused(tmp_path):
    path = write_pt(tmp_path / "x.pt", tensor(), {"0": b"\0" * 24}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(DumpError, match="compressed or too large"):
        read_tensor(path)


def test_big_endian_files_are_refused(tmp_path):
    path = write_pt(tmp_path / "x.pt", tensor(), {"0": b"\0" * 24}, byteorder=b"big")
    with pytest.raises(DumpError, match="big-endian"):
        read_tensor(path)


def test_npy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.arange(4.0).reshape(2, 2)
    np.save(tmp_path / "x.npy", values)
    np.testing.assert_array_equal(read_tensor(tmp_path / "x.npy"), values)
    np.save(tmp_path / "o.npy", np.array([Exploit()], dtype=object), allow_pickle=True)
    with pytest.raises(DumpError, match="holds values of the type object, not numbers"):
        read_tensor(tmp_path / "o.npy")
    assert not MARK.exists()
    (tmp_path / "t.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:90])
    with pytest.raises(DumpError, match="not a whole tensor file"):
        read_tensor(tmp_path / "t.npy")
    (tmp_path / "t.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-8])
    with pytest.raises(DumpError, match="is cut off: its header says 32 bytes"):
        read_tensor(tmp_path / "t.npy")
    np.savez(tmp_path / "z.npz", values)
    (tmp_path / "z.npz").rename(tmp_path / "z.npy")
    with pytest.raises(DumpError, match="not a whole tensor file"):
        read_tensor(tmp_path / "z.npy")
    for odd in (np.array([(1, 2.0)], dtype="i4,f8"), np.array(["2026-01-01"], dtype="datetime64[D]")):
        np.save(tmp_path / "s.npy", odd)
        with pytest.raises(DumpError, match="not numbers"):
            read_tensor(tmp_path / "s.npy")


def test_a_header_that_claims_too_much_is_not_believed(tmp_path):
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)})
        file.write(b"1234")
    with pytest.raises(DumpError, match="is cut off: its header says 40000000000000 bytes"):
        read_tensor(tmp_path / "x.npy")
    path = write_pt(tmp_path / "x.pt", tensor(size=(10**12,), stride=(0,)), {"0": b"\0" * 24})
    with pytest.raises(DumpError, match="too large to unfold"):
        read_tensor(path)


@pytest.mark.slow
def test_small_descriptions_take_no_more_than_their_length_allows(tmp_path):
    """Python's own unpickler takes 2 GB for one of these, and never ends with others, in C where no signal ends it."""
    paths = []
    for name, value in PICKLE_BOMBS.items():
        path = tmp_path / f"{name}.pt"
        if isinstance(value, bytes):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("archive/data.pkl", value)
                archive.writestr("archive/data/0", b"\0" * 24)
        else:
            write_pt(path, value, {"0": b"\0" * 24})
        paths.append(path)
    program = """
import sys
from msprobe_core.errors import DumpError
from msprobe_core.store.tensors import open_tensor
limit()
for path in map(Path, sys.argv[1:]):
    try:
        print(open_tensor(path).shape)
    except DumpError as error:
        print(str(error).removeprefix(f"{path}: "))
"""
    said = dict(zip(PICKLE_BOMBS, run_limited(program, *paths, memory_bytes=256 << 20).splitlines(), strict=True))
    assert said.pop("parameters") == "(2, 3)"
    assert said.pop("a view") == "describes a tensor of the shape (8589934592,), which is too large to unfold"
    assert "keys that are neither text nor numbers" in said["a key that is hashed"]
    assert "keys that are neither text nor numbers" in said["a part of a set"]
    assert not [name for name, sentence in said.items() if len(sentence) > 200 or sentence.startswith("(")]


def test_a_tensor_that_is_referred_to_again_and_again_is_read(tmp_path):
    """What a training put beside a parameter may be anything; as much of it as the pickle has bytes."""
    extra = Call(
        Global("torch._tensor", "_rebuild_from_type_v2"),
        V2,
        Global("torch.nn.parameter", "Parameter"),
        tensor().args,
        {"shared": shared(60), "partition_dim": 0, "name": "w", "scale": 1.5, "tags": ["a", "b"]},
    )
    path = write_pt(tmp_path / "x.pt", extra, {"0": np.arange(6, dtype=np.float32).tobytes()})
    assert read_tensor(path).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_views_that_are_conjugated_or_negated_later(tmp_path):
    content = np.array([1 + 2j, 3 - 4j], np.complex64)
    for flags, expected in (({"conj": True}, content.conj()), ({"neg": True}, -content), ({}, content)):
        storage = Storage(Global("torch", "ComplexFloatStorage"), "0", 2)
        value = Call(V2, storage, 0, (2,), (1,), False, OrderedDict(), flags)
        path = write_pt(tmp_path / "x.pt", value, {"0": content.tobytes()})
        np.testing.assert_array_equal(read_tensor(path), expected)


class Build:
    """Writes to an object while a pickle is read."""

    def __init__(self, target, state):
        self.target, self.state = target, state


class BuildingPickler(Pickler):
    def save(self, value, save_persistent_id=True):
        if isinstance(value, Build):
            self.save(value.target)
            self.save(value.state)
            self.write(b"b")
        else:
            super().save(value, save_persistent_id)


@pytest.mark.parametrize(
    "target",
    [V2, FLOAT, Global("torch.storage", "UntypedStorage"), Global("collections", "OrderedDict")],
    ids=["function", "storage", "type", "OrderedDict"],
)
@pytest.mark.parametrize(
    "state", [{"name": "x", "call": "x"}, (None, {"name": "x", "call": "x", "__defaults__": (1,)})]
)
def test_one_file_changes_nothing_for_the_next(tmp_path, target, state):
    content = np.arange(6, dtype=np.float32)
    sound = write_pt(tmp_path / "sound.pt", tensor(), {"0": content.tobytes()})
    value = [Build(target, state), tensor()]
    hostile = write_pt(tmp_path / "hostile.pt", value, {"0": content.tobytes()}, pickler=BuildingPickler)
    with pytest.raises(DumpError):
        read_tensor(hostile)
    np.testing.assert_array_equal(read_tensor(sound), content.reshape(2, 3))
    assert not hasattr(OrderedDict, "call")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damage_of_any_kind_is_one_kind_of_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "x.pt"
    content = bytearray(write_pt(path, tensor(), {"0": b"\0" * 24}).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(DumpError):  # and nothing else
        read_tensor(path)
