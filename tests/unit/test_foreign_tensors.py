"""Foreign files of tensors are recognised by content and read with equal bits; damage is a row with a position."""

import io
import json
import re

import numpy as np
import pt_writer
import pytest
from foreign_dumps import (
    ACL_CODES,
    DUMP_CODES,
    SHAPES,
    atb,
    cann_dump,
    elements,
    many_members,
    npz,
    safetensors,
    to_five_dims,
    to_fractal_z,
    to_nz,
)

from msprobe_core.cli import main
from msprobe_core.errors import DumpError
from msprobe_core.store.tensor_source import read_whole
from msprobe_core.tensor_files.contents import FileFormat
from msprobe_core.tensor_files.problems import Status, status_of
from msprobe_core.tensor_files.recognition import identify, open_tensors, tags_of
from msprobe_core.tensor_files.unpacking import content_of

FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)


@pytest.fixture
def write(tmp_path):
    def write(content, name="x.bin"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return ended.value.code, out, err

    return run


def bits(tensor):
    return bytes(content_of(tensor.source).data)


# --- sound files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ACL_CODES)
def test_atb(write, dtype, shape):
    content = elements(dtype, shape)
    for end in ("$End=1", "$END=1"):
        found = identify(write(atb(content, ACL_CODES[dtype], shape, end=end)))
        assert (found.format, found.version, found.damage) == (FileFormat.ATB, "1.0", None)
        (tensor,) = found.tensors
        assert (tensor.name, tensor.source.dtype, tensor.source.shape) == ("data", dtype, shape)
        assert bits(tensor) == content


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DUMP_CODES)
def test_dumps_of_cann(write, dtype, shape):
    pytest.importorskip("google.protobuf")
    content, other = elements(dtype, shape), elements("int32", (5,))
    part, second = (content, DUMP_CODES[dtype], shape), (other, DUMP_CODES["int32"], (5,))
    found = identify(write(cann_dump([part, second], [second, part], [b"abc"]), "MatMul.layer_0.1.2.1700000000"))
    assert (found.format, found.version, found.damage) == (FileFormat.ADUMP, "2.0", None)
    assert found.attributes == {"op_name": "MatMul", "dump_time": 1700000000}
    assert [each.name for each in found.tensors] == ["input.0", "input.1", "output.0", "output.1", "buffer.0"]
    assert [bits(each) for each in found.tensors] == [content, other, other, content, b"abc"]
    assert [each.source.shape for each in found.tensors] == [shape, (5,), (5,), shape, (3,)]


def test_bytes_after_the_tensors_of_a_dump_are_noted(write):
    pytest.importorskip("google.protobuf")
    found = identify(write(cann_dump([(bytes(4), 1, (1,))], space=b"1234567")))
    assert (found.damage, found.attributes["space_bytes"]) == (None, 7)


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (5, 7), (33, 20), (3, 20, 17), (2, 2, 16, 1)], ids=str)
def test_blocks_of_matrices_are_put_into_plain_order(write, dtype, shape):
    pytest.importorskip("google.protobuf")
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for size in (8, 16):
        stored = to_nz(values, size)
        code = DUMP_CODES[dtype.name]
        (tensor,) = identify(write(cann_dump([(stored.tobytes(), code, stored.shape, 29, shape)]))).tensors
        assert tensor.layout == ""
        assert tensor.source.shape == shape
        assert bits(tensor) == values.tobytes()
        for count in (7, 1 << 20):
            assert np.array_equal(np.concatenate(list(tensor.source.chunks(count))), values.ravel())


@pytest.mark.parametrize(("form", "made"), [(3, to_five_dims), (4, to_fractal_z)], ids=["NC1HWC0", "FRACTAL_Z"])
def test_blocks_of_channels_are_put_into_plain_order(write, form, made):
    pytest.importorskip("google.protobuf")
    values = np.arange(2 * 19 * 3 * 5, dtype=np.float32).reshape(2, 19, 3, 5)
    stored = made(values)
    (tensor,) = identify(write(cann_dump([(stored.tobytes(), 1, stored.shape, form, values.shape)]))).tensors
    assert bits(tensor) == values.tobytes()
    assert np.array_equal(read_whole(tensor.source), values)


def test_blocks_that_fit_two_orders_are_kept(write):
    pytest.importorskip("google.protobuf")
    values = np.zeros((2, 16, 16, 16), np.float32)
    stored = to_five_dims(values)
    (tensor,) = identify(write(cann_dump([(stored.tobytes(), 1, stored.shape, 3, values.shape)]))).tensors
    assert (tensor.layout, tensor.source.shape) == ("NC1HWC0", (2, 1, 16, 16, 16))
    # Integers, too.
    stored = to_nz(np.zeros((4, 4), np.int32))
    (tensor,) = identify(write(cann_dump([(stored.tobytes(), 7, stored.shape, 29, (4, 4))]))).tensors
    assert (tensor.layout, tensor.source.shape) == ("FRACTAL_NZ", stored.shape)


@pytest.mark.parametrize("compresses", [False, True])
def test_archives_of_numpy(write, compresses):
    members = {
        "a": np.arange(6.0).reshape(2, 3), "b": np.float16(2.5), "c": np.zeros((0, 3), np.int8),
        "f": np.asfortranarray(np.arange(6).reshape(2, 3)), "d/e": np.array([True, False]),
        "g": np.arange(100_000, dtype=np.float32), "h": np.array([1 + 2j]),
    }  # fmt: skip
    found = identify(write(npz(members, compresses=compresses), "x.anything"))
    assert (found.format, found.damage) == (FileFormat.NPZ, None)
    assert [each.name for each in found.tensors] == list(members)
    for tensor, values in zip(found.tensors, members.values(), strict=True):
        assert bits(tensor) == np.ascontiguousarray(values).tobytes(), tensor.name
        assert np.array_equal(read_whole(tensor.source), values)


def test_files_of_numpy_of_any_name(write):
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    found = identify(write(buffer.getvalue(), "x.data"))
    assert (found.format, found.version) == (FileFormat.NPY, "1.0")
    assert bits(found.tensors[0]) == np.arange(3).tobytes()
    kernel = "MatMul.Default_network-Net_a-op0.0.0.1700000000.output.0.DefaultFormat.npy"
    (tensor,) = identify(write(buffer.getvalue(), kernel)).tensors
    assert (tensor.role, tensor.name) == ("output", "Default_network-Net_a-op0.0.output.0")


def test_values_of_torch_save(tmp_path):
    path = pt_writer.write_pt(
        tmp_path / "x.pt",
        {"model": {"w": pt_writer.tensor(), "v": [pt_writer.tensor(), 3]}, "step": 5},
        {"0": np.arange(6, dtype=np.float32).tobytes()},
    )
    found = identify(path)
    assert (found.format, found.attributes) == (FileFormat.PT, {"values": 2})
    assert [each.name for each in found.tensors] == ["model.w", "model.v.0"]
    assert [each.name for each in open_tensors(path)] == ["model.w", "model.v.0"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step=0___rank=1___dump_index=2___name=a.b___layer_id=3.pt", {"step": "0", "rank": "1", "dump_index": "2",
                                                                       "name": "a.b", "layer_id": "3"}),
        ("forward_pass_id=4___name=x.pt", {"forward_pass_id": "4", "name": "x"}),
        ("name=a=b___x=.pt", {"name": "a=b", "x": ""}),
        ("weights.pt", {}), ("a=b.pt", {}), ("name=x.npy", {}), ("name=x___junk.pt", {"name": "x"}),
    ],
)  # fmt: skip
def test_tags_of_sglang(name, expected):
    assert tags_of(name) == expected


# --- files that are damaged or refused ------------------------------------------------------------------------------

SOUND = atb(bytes(24), 0, (2, 3))
NPY = io.BytesIO()
np.save(NPY, np.arange(6.0))


def bad_atb(old, new):
    return SOUND.replace(old.encode(), new.encode())


def position_of(path, name=""):
    found = identify(path)
    damage = found.damage or next(each.damage for each in found.tensors if each.name == name)
    return damage.fields["position"]


def test_damage_of_files_of_arrays_has_its_own_position(write):
    room = io.BytesIO()
    np.save(room, np.arange(100.0))
    content = room.getvalue()
    begin = len(content) - 800
    assert position_of(write(content[:-1], "x.npy"), "x") == begin  # of the elements that are cut off
    assert position_of(write(content[:40], "x.npy"), "x") == 8  # of the header
    members = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    for false in ({"dtype": "F31"}, {"shape": [3]}, {"data_offsets": [8, 24], "shape": [4]}):
        members["y"] = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16], **false}
        header = json.dumps(members).encode()
        file = write(len(header).to_bytes(8, "little") + header + bytes(16), "x.safetensors")
        assert position_of(file, "y") == 8 + len(header) + 8
    broken = b'{"x": {]  }'
    assert position_of(write(len(broken).to_bytes(8, "little") + broken + bytes(8), "x.safetensors")) == 8 + 7


def test_what_a_pickle_refers_to_has_its_position_in_the_file(tmp_path):
    value = {
        "good": pt_writer.Call(pt_writer.Global("torch", "Size"), (2,)),
        "bad": pt_writer.Call(pt_writer.Global("os", "system"), "x"),
    }
    path = pt_writer.write_pt(tmp_path / "x.pt", value, {})
    content = path.read_bytes()
    named = content.index(b"cos\nsystem\n")
    assert named < position_of(path, "bad") <= content.index(b".", named)
    pickled = content.index(b"\x80\x02")
    changed = content.replace(b"cos\nsystem", b"cos\nsyster")
    assert position_of(write_bytes(tmp_path / "y.pt", changed)) == pickled  # its checksum is another one


def write_bytes(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (SOUND[:-1], Status.DAMAGED, "at byte 98: the file ends at 121, and 122 bytes are needed"),
        (bad_atb("dims=2,3", "dims=2,4"), Status.DAMAGED, "float32 of the shape \\[2, 4\\] do not take 24 bytes"),
        (bad_atb("dims=2,3", "dims=2,-3"), Status.DAMAGED, "at byte [0-9]+: dims is no number"),
        (bad_atb("dtype=0", "dtype=99"), Status.REFUSED, "at byte [0-9]+: the dtype 99 is not known here"),
        (bad_atb("dtype=0", "dtype=34"), Status.REFUSED, "the dtype 34 is not known here"),
        (bad_atb("=0,24", "=-1,24"), Status.DAMAGED, "offset is no number"),
        (bad_atb("=0,24", "=99999999999,24"), Status.DAMAGED, "the file ends at"),
        (bad_atb("=0,24", "=0,24\n$Object.b=8,24"), Status.DAMAGED, "its bytes are those of (b|data) too"),
        (bad_atb("$End=1\n", ""), Status.DAMAGED, "the header has no end"),
        (bad_atb("format=2", "format"), Status.DAMAGED, "at byte [0-9]+: the header has what it cannot have: format"),
        (many_members(10**6), Status.REFUSED, "it lists more than 200,000 parts"),
        (b"PK\x03\x04" + bytes(60), Status.DAMAGED, "no end"),
        (safetensors({"a": ("F32", (2,), 0, 8), "b": ("F32", (2,), 4, 12)}, bytes(12)), Status.DAMAGED, "too"),
        (safetensors({"a": ("F32", (2,), 0, 8)}, bytes(4)), Status.DAMAGED, "cut off"),
        (safetensors({"a": ("F32", (3,), 0, 8)}, bytes(8)), Status.DAMAGED, "does not fit its shape"),
        (safetensors({"a": ("Q7", (2,), 0, 8)}, bytes(8)), Status.DAMAGED, "Q7"),
        (NPY.getvalue()[:-1], Status.DAMAGED, "cut off"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", Status.DAMAGED, ""),
        (b"no tensors at all", Status.REFUSED, "it is of no format that is known here"),
        (b"", Status.REFUSED, "it is of no format"),
        ((1 << 62).to_bytes(8, "little") + b"{}", Status.REFUSED, "it is of no format"),
    ],
)
def test_damage_is_a_row_with_its_place(write, run, content, status, said):
    path = write(content)
    found = identify(path)
    damage = next(each.damage for each in (found, *found.tensors) if each.damage is not None)
    assert status_of(damage) is status
    assert re.search(said, damage.text), damage.text
    assert "at byte" in damage.text
    code, out, err = run("identify", path)
    assert (code, err) == (1, "")
    assert status.value in out
    code, out, _ = run("identify", "--json", path)
    (file,) = json.loads(out)["files"]
    assert status.value in {file["status"], *(each["status"] for each in file["tensors"])}


def test_damage_of_dumps_of_cann(write):
    pytest.importorskip("google.protobuf")
    sound = cann_dump([(bytes(8), 1, (2,))], [(bytes(4), 1, (1,))])
    cut = identify(write(sound[:-6]))
    assert "bytes are needed" in cut.damage.text
    assert [each.damage is None for each in cut.tensors] == [False, False]
    assert identify(write(sound[:-2])).tensors[0].damage is None
    unknown = identify(write(cann_dump([(bytes(8), 33, (8,)), (bytes(4), 1, (1,))])))
    assert status_of(unknown.tensors[0].damage) is Status.REFUSED
    assert unknown.tensors[1].damage is None
    wrong = identify(write(cann_dump([(bytes(8), 1, (3,))])))
    assert "float32 of the shape [3] do not take 8 bytes" in wrong.tensors[0].damage.text
    huge = identify(write(cann_dump([(bytes(8), 1, (2**63 - 1, 2**62))])))
    assert status_of(huge.tensors[0].damage) is Status.DAMAGED


def test_a_pickle_that_names_anything_is_refused_and_not_run(tmp_path):
    class Harm:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'harm')!r}, 'w')",))

    path = tmp_path / "x.pt"
    pt_writer.write_pt(path, {"a": pt_writer.tensor(), "b": Harm()}, {"0": bytes(24)})
    found = identify(path)
    assert [(each.name, status_of(each.damage)) for each in found.tensors][:2] == [
        ("a", Status.SOUND), ("b", Status.REFUSED)
    ]  # fmt: skip
    assert "neither made nor run" in found.tensors[1].damage.text
    assert not (tmp_path / "harm").exists()


def test_an_archive_that_unfolds_too_far(write):
    zeros = npz({"a": np.zeros(1 << 28, np.int8)}, compresses=True)
    (tensor,) = identify(write(zeros)).tensors
    assert status_of(tensor.damage) is Status.REFUSED
    assert "268,435,584 bytes" in tensor.damage.text


def test_what_is_no_file(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(DumpError):
            identify(path)
