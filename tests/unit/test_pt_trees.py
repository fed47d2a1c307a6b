"""Files of ``torch.save`` with many tensors are read without a framework, and nothing in them is run."""

import functools
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from limited import run_limited
from pickle_bombs import PICKLE_BOMBS, SHARED, shared
from pt_writer import Call, Global, Made, Storage, tensor, write_legacy, write_pt

from msprobe_core.errors import DumpError
from msprobe_core.store.pt_trees import Opaque, open_pt_part, open_pt_tree, path_text

ORDERED = Global("collections", "OrderedDict")
CONTENT = np.arange(6, dtype=np.float32)


def write(path, value):
    return write_pt(path, value, {"0": CONTENT.tobytes()})


def tree(path, value):
    return open_pt_tree(write(path / "state.bin", value))


def test_tensors_have_their_path(tmp_path):
    parameter = Call(Global("torch._utils", "_rebuild_parameter"), tensor(), True, OrderedDict())
    found = tree(tmp_path, {"model": OrderedDict(w=tensor(), p=parameter), "state": {0: {"step": 3, "m": [tensor()]}}})
    tensors = dict(found.tensors())
    assert list(map(path_text, tensors)) == ["model.w", "model.p", "state.0.m.0"]
    for each in tensors.values():
        np.testing.assert_array_equal(each.read(), CONTENT.reshape(2, 3))
    assert found.value["state"][0]["step"] == 3
    assert len({each.storage for each in tensors.values()}) == 1  # tied
    assert found.size_bytes == (tmp_path / "state.bin").stat().st_size


def test_objects_are_names_and_simple_state(tmp_path):
    value = {
        "args": Made(Global("argparse", "Namespace"), state={"lr": 1e-3, "tp": 2}),
        "enum": Call(Global("megatron.core.enums", "ModelType"), 1),
        "dtype": Global("torch", "bfloat16"),
        "size": Call(Global("torch", "Size"), (2, 3)),
        "default": Made(Global("collections", "defaultdict"), (Global("builtins", "list"),), entries=[(1, "x")]),
        "set": Call(Global("builtins", "set"), [1, 2]),
        "pair": Made(Global("a", "Slots"), state=(None, {"x": 1})),
        "code": Call(Global("os", "system"), "true"),
        "numbers": Made(Global("collections", "deque"), ([1],), items=[2]),
        ("a", (1, Global("m", "k"))): True,
    }
    found = tree(tmp_path, value).value
    assert found["args"] == {"lr": 1e-3, "tp": 2}
    assert (found["enum"].name, found["enum"].args) == ("megatron.core.enums.ModelType", (1,))
    assert found["dtype"].name == "torch.bfloat16"
    assert found["size"] == (2, 3)
    assert found["default"] == {1: "x"}
    assert found["set"] == [1, 2]
    assert found["pair"].fields == {"x": 1}
    assert (found["code"].name, found["code"].args) == ("os.system", ("true",))
    assert found["numbers"] == [1, 2]
    assert found["a", (1, "m.k")] is True


def test_tensors_within_objects_are_found(tmp_path):
    module = Made(Global("my", "Net"), state={"_parameters": OrderedDict(w=tensor()), "training": True})
    assert [path_text(path) for path, _ in tree(tmp_path, module).tensors()] == ["_parameters.w"]


def test_wrong_tensors_do_not_hide_the_others(tmp_path):
    lost = Call(Global("torch._utils", "_rebuild_tensor_v2"), Storage(Global("torch", "FloatStorage"), "7", 6), 0, (6,),
                (1,), False, OrderedDict())  # fmt: skip
    value = {"large": tensor(size=(20, 30), stride=(30, 1)), "lost": lost, "odd": tensor(size="ab"), "good": tensor(),
             "sparse": Call(Global("torch._utils", "_rebuild_sparse_tensor"), 1)}  # fmt: skip
    found = tree(tmp_path, value)
    assert [path for path, _ in found.tensors()] == [("good",)]
    assert "larger than its 24 bytes" in found.value["large"].reason
    assert "lacks the part 'data/7'" in found.value["lost"].reason
    assert "describes no tensor" in found.value["odd"].reason
    assert "of a kind that is not read" in found.value["sparse"].reason


def test_a_range_of_a_file(tmp_path):
    content = write(tmp_path / "state.bin", tensor()).read_bytes()
    (tmp_path / "parts").write_bytes(b"x" * 100 + content + b"y" * 50)
    [(path, found)] = open_pt_part(tmp_path / "parts", 100, len(content)).tensors()
    assert path == ()
    np.testing.assert_array_equal(found.read(), CONTENT.reshape(2, 3))
    with pytest.raises(DumpError, match="is cut off: it ends before the"):
        open_pt_part(tmp_path / "parts", 100, len(content) + 51)


def test_files_of_earlier_releases(tmp_path):
    path = write_legacy(
        tmp_path / "x.bin", {"a": tensor(), "b": tensor(offset=3, size=(3,), stride=(1,))}, {"0": CONTENT}
    )
    found = dict(open_pt_tree(path).tensors())
    np.testing.assert_array_equal(found["a",].read(), CONTENT.reshape(2, 3))
    np.testing.assert_array_equal(found["b",].read(), CONTENT[3:])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DumpError, match="ends before the storage '0' does"):
        open_pt_tree(path)
    write_legacy(path, {"a": tensor()}, {"0": CONTENT}, little_endian=False)
    with pytest.raises(DumpError, match=r"byte order of torch\.save that is not supported"):
        open_pt_tree(path)
    write_legacy(path, {"a": tensor()}, {"0": CONTENT, "1": CONTENT})
    with pytest.raises(DumpError, match="lists a storage that no tensor uses"):
        open_pt_tree(path)


def test_what_is_no_such_file(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(pickle.dumps({"a": 1}, 2))
    with pytest.raises(DumpError, match=r"a pickle that torch\.save of PyTorch has not written"):
        open_pt_tree(path)
    path.write_bytes(b"text")
    with pytest.raises(DumpError, match="neither a zip archive nor a pickle"):
        open_pt_tree(path)
    path.write_bytes(b"")
    with pytest.raises(DumpError, match="neither a zip archive nor a pickle"):
        open_pt_tree(path)


def test_temporary_values_are_not_taken_for_each_other(tmp_path):
    """Lists made on the way are freed, and others may have their address."""
    value = [Call(Global("builtins", "set"), [i]) for i in range(200)]
    assert tree(tmp_path, value).value == [[i] for i in range(200)]


BOMBS = PICKLE_BOMBS | {
    "a value many times": {"x": shared(60)},
    "a key that is shared": b"\x80\x02}" + SHARED + b"K\x01s.",
    "a dictionary in itself": b"\x80\x02}q\x00K\x01h\x00s.",
    "an object in itself": b"\x80\x02ca\nb\n)\x81q\x00h\x00b.",
    "depth": functools.reduce(lambda value, _: [value], range(120), tensor()),
}


@pytest.mark.slow
def test_small_files_take_no_more_than_their_length_allows(tmp_path):
    paths = []
    for name, value in BOMBS.items():
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
from msprobe_core.store.pt_trees import open_pt_tree
limit()
for path in map(Path, sys.argv[1:]):
    try:
        print("leaves", sum(1 for _ in open_pt_tree(path).leaves()))
    except DumpError as error:
        print(str(error).removeprefix(f"{path}: "))
"""
    said = dict(zip(BOMBS, run_limited(program, *paths, memory_bytes=512 << 20).splitlines(), strict=True))
    assert "refer to each other more often" in said["a value many times"]
    assert "keys of too many parts" in said["a key that is shared"]
    assert "nested more than" in said["depth"]
    assert said["a dictionary in itself"] == "leaves 1"
    assert not [name for name, sentence in said.items() if len(sentence) > 200]


def test_opaque_values_are_shown_shortly(tmp_path):
    assert isinstance(tree(tmp_path, [Global("m" * 1000, "x")]).value[0], Opaque)
    assert len(tree(tmp_path, [Global("m" * 1000, "x")]).value[0].name) <= 200
