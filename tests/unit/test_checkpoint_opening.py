"""Damaged checkpoints are opened as far as possible, and each damaged tensor has its reason."""

import json
import sys

import numpy as np
import pytest

from msprobe_core.checkpoint.boxes import read_tensor
from msprobe_core.checkpoint.opening import open_checkpoint
from msprobe_core.errors import DumpError

ROWS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path, header, size=16):
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + bytes(size))
    return path


def damage_of(checkpoint):
    return {name: tensor.damage.code.value for name, tensor in checkpoint.tensors.items() if tensor.damage is not None}


def test_damaged_tensors_do_not_hide_the_others(tmp_path):
    header = {
        "good": ROWS,
        "overlap": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        "within": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]},
        "beyond": {"dtype": "F32", "shape": [9], "data_offsets": [8, 44]},
        "odd": {"dtype": "F3", "shape": [2], "data_offsets": [0, 8]},
    }
    found = open_checkpoint(write(tmp_path / "x.safetensors", header))
    assert damage_of(found) == {
        "overlap": "checkpoint.open.overlap", "within": "checkpoint.open.overlap",
        "beyond": "checkpoint.open.unreadable", "odd": "checkpoint.open.unreadable",
    }  # fmt: skip
    np.testing.assert_array_equal(read_tensor(found.tensors["good"]), [0, 0])


def test_an_index_does_not_lead_out_of_its_directory(tmp_path):
    write(tmp_path / "a.safetensors", {"x": ROWS})
    table = {"x": "a.safetensors", "y": "a.safetensors", "z": "../b.safetensors", "w": "/etc/passwd"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    found = damage_of(open_checkpoint(tmp_path))
    assert found == {
        "y": "checkpoint.open.missing-entry",
        "z": "checkpoint.open.outside",
        "w": "checkpoint.open.outside",
    }


def num_calls(work):
    """Return how many functions of Python a piece of work calls."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_the_work_of_an_index_grows_with_its_tensors_rather_than_with_its_tensors_times_files(tmp_path):
    counts = []
    for num_files in (2, 40):
        directory = tmp_path / str(num_files)
        directory.mkdir()
        table = {f"t{i}": f"{i % num_files}.safetensors" for i in range(800)}
        for number in range(num_files):
            names = [name for name, file in table.items() if file == f"{number}.safetensors"]
            header = {
                name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)
            }
            write(directory / f"{number}.safetensors", header, 4 * len(names))
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
        counts.append(num_calls(lambda directory=directory: open_checkpoint(directory)))
    assert counts[1] < 1.5 * counts[0]


@pytest.mark.parametrize("text", ["../x", "ten", "", "1\n2"])
def test_a_tracker_that_names_no_checkpoint(tmp_path, text):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text)
    with pytest.raises(DumpError, match="names no checkpoint"):
        open_checkpoint(tmp_path)


def test_what_is_no_checkpoint(tmp_path):
    (tmp_path / "inner").mkdir()
    with pytest.raises(
        DumpError, match="holds no checkpoint of a known format; give one of its directories, such as inner"
    ):
        open_checkpoint(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"\x80\x04cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    with pytest.raises(DumpError, match="is no metadata of a distributed checkpoint"):
        open_checkpoint(tmp_path)
