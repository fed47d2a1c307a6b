"""Checkpoints of MindSpore are read without MindSpore, and their length bounds what is read of them."""

import numpy as np
import pytest
from mindspore_files import field, tensor, varint, write_checkpoint

from msprobe_core.errors import DumpError
from msprobe_core.tensor_files.mindspore_checkpoint import is_mindspore_checkpoint, open_mindspore_checkpoint

ARRAYS = {"fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "step": np.array(7), "flags": np.array([True])}


def values_of(path):
    return {value.name: value for value in open_mindspore_checkpoint(path).values}


@pytest.mark.parametrize("parts", [1, 5])
def test_values(tmp_path, parts):
    path = write_checkpoint(tmp_path / "x.ckpt", {"w": ARRAYS["fc.weight"]}, "héllo", parts)
    found = values_of(path)
    np.testing.assert_array_equal(found["w"].source.read(), ARRAYS["fc.weight"])
    np.testing.assert_array_equal(np.concatenate(list(found["w"].source.chunks(5))), np.arange(12))
    assert found["text"].text == "héllo"
    assert is_mindspore_checkpoint(path)


def test_scalars_and_checksum(tmp_path):
    path = write_checkpoint(tmp_path / "x.ckpt", ARRAYS)
    with path.open("ab") as file:
        file.write(b"crc_num" + (123).to_bytes(10, "big"))
    found = values_of(path)
    assert found["step"].source.read() == 7
    assert found["step"].shape == ()
    assert found["flags"].source.read().tolist() == [True]
    path.write_bytes(tensor("x", "Float32", (0,), np.float32(2.5).tobytes()))
    assert values_of(path)["x"].source.read() == 2.5


def test_values_that_cannot_be_read_do_not_hide_the_others(tmp_path):
    good = tensor("good", "Float32", (2,), bytes(8))
    kinds = {
        "short": (tensor("short", "Float32", (3,), bytes(8)), "do not fit its shape"),
        "negative": (tensor("negative", "Float32", (-1,), bytes(8)), "do not fit its shape"),
        "huge": (tensor("huge", "Float32", (1 << 40, 1 << 40), bytes(8)), "do not fit its shape"),
        "odd": (tensor("odd", "Float7", (2,), bytes(8)), "of the type 'Float7'"),
        "map": (field(1, field(1, b"map") + field(3, b"")), "a map of tensors"),
        "words": (tensor("words", "str", (0,), b"abc"), "is no text"),
    }
    path = tmp_path / "x.ckpt"
    path.write_bytes(b"".join(content for content, _ in kinds.values()) + good)
    found = values_of(path)
    for name, (_, reason) in kinds.items():
        assert found[name].source is None
        assert reason in found[name].reason
    assert found["good"].source.read().tolist() == [0, 0]


def test_a_file_that_is_cut_off(tmp_path):
    path = write_checkpoint(tmp_path / "x.ckpt", ARRAYS)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            found = open_mindspore_checkpoint(path)
        except DumpError:
            continue
        assert found.damage or len(found.values) < len(ARRAYS)
    path.write_bytes(b"PK\x03\x04")
    assert not is_mindspore_checkpoint(path)
    with pytest.raises(DumpError, match="is no checkpoint of MindSpore"):
        open_mindspore_checkpoint(path)


def test_a_large_file_is_listed_without_reading_it(tmp_path):
    path = tmp_path / "x.ckpt"
    size = 50 << 30
    content = varint(3 << 3 | 2) + varint(size)
    inner = field(1, size // 4) + field(2, b"Float32")
    head = varint(2 << 3 | 2) + varint(len(inner) + len(content) + size)
    value = field(1, b"w")
    with path.open("wb") as file:
        file.write(varint(1 << 3 | 2) + varint(len(value) + len(head) + len(inner) + len(content) + size))
        file.write(value + head + inner + content)
        file.truncate(file.tell() + size)
    [found] = open_mindspore_checkpoint(path).values
    assert found.source.shape == (size // 4,)
