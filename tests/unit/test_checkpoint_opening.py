"""Damaged checkpoints are opened as far as possible, and each damaged tensor has its reason."""

import json
import re
import resource
import sys

import numpy as np
import pytest
from checkpoint_files import write_dcp, write_deepspeed

from msprobe_core.checkpoint import fingerprint_checkpoint, write_fingerprint
from msprobe_core.checkpoint.boxes import read_tensor
from msprobe_core.checkpoint.opening import open_checkpoint
from msprobe_core.errors import DumpError, StoreError

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


def test_what_is_no_file_is_not_called_missing(tmp_path):
    table = {name: f"{name}.safetensors" for name in ("gone", "inner", "device")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    (tmp_path / "inner.safetensors").mkdir()
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    found = open_checkpoint(tmp_path)
    assert {name: tensor.damage.text for name, tensor in found.tensors.items()} == {
        "gone": "the file gone.safetensors is missing",
        "inner": "inner.safetensors is no regular file, or a link to none",
        "device": "device.safetensors is no regular file, or a link to none",
    }
    assert not found.is_whole


def test_what_is_cut_off_says_where(tmp_path):
    path = write(tmp_path / "x.safetensors", {"x": ROWS, "y": {**ROWS, "data_offsets": [8, 16]}}, 12)
    begin = path.stat().st_size - 12
    assert f"ends before it, at byte {begin + 12} instead of {begin + 16}" in str(
        open_checkpoint(path).tensors["y"].damage
    )
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": path.name}}))
    assert "would end at byte 1,099,511,627,784 of 10" in str(open_checkpoint(tmp_path).tensors["x"].damage)


@pytest.mark.parametrize(
    ("write_one", "place", "head", "others"),
    [
        (write_dcp, "", ".metadata", ".distcp"),
        (write_deepspeed, "global_step10", "mp_rank_00_model_states.pt", "states.pt"),
    ],
)
def test_files_without_the_one_that_says_what_they_are(tmp_path, write_one, place, head, others):
    write_one(tmp_path / "saved")
    (tmp_path / "saved" / place / head).unlink()
    with pytest.raises(DumpError, match=f"lacks {head}, without which its files .*{others} cannot be put together"):
        open_checkpoint(tmp_path / "saved")


def test_what_megatron_writes_beside_the_tensors_is_no_checkpoint(tmp_path):
    place = tmp_path / "iter_0000010"
    place.mkdir()
    (place / "common.pt").write_bytes(b"PK")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    with pytest.raises(DumpError, match=r"common\.pt alone.*\*\.distcp are missing"):
        open_checkpoint(tmp_path)


def test_a_value_of_a_file_that_is_cut_off_is_not_passed_over_in_silence(tmp_path):
    write_dcp(tmp_path / "saved")
    file = tmp_path / "saved" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-40])
    found = open_checkpoint(tmp_path / "saved")
    assert all(tensor.damage is None for tensor in found.tensors.values())
    assert "__0_0.distcp: is cut off: it ends before" in found.notes[0].text
    assert not found.is_whole


def test_a_fingerprint_is_replaced_by_a_whole_one_or_not_at_all(tmp_path):
    write_dcp(tmp_path / "saved")
    file = tmp_path / "x.fingerprint.arrow"
    found = fingerprint_checkpoint(open_checkpoint(tmp_path / "saved"))
    write_fingerprint(found, file)
    before = file.read_bytes()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(StoreError, match=re.escape(f"{file}: cannot be written")):
            write_fingerprint(found, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if each.name != "saved"] == [file.name]
