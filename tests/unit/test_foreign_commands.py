"""Foreign files on the command line: identify, parse, show, and convert into dumps that are compared."""

import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from foreign_dumps import ACL_CODES, DUMP_CODES, atb, cann_dump, elements, npz, write_sglang

from msprobe_core.cli import main
from msprobe_core.store.reading import read_dump
from msprobe_core.store.tensor_source import read_whole
from msprobe_core.tensor_files.recognition import identify
from msprobe_core.tensor_files.unpacking import content_of

REAL = Path(__file__).parents[1] / "data" / "foreign_dumps"
"""What the dumpers of SGLang 0.5.23 and FlashInfer 0.7.2 wrote on a CPU."""

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


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


@pytest.fixture
def mixed(tmp_path):
    """A directory with several formats, one of them damaged, and a log."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a.bin").write_bytes(atb(elements("bfloat16", (2, 3)), ACL_CODES["bfloat16"], (2, 3)))
    (source / "b.npz").write_bytes(npz({"x": np.arange(3.0), "y": np.int8(4)}))
    (source / "deep" / "c.bin").write_bytes(atb(bytes(8), 0, (3,)))
    (source / "deep" / "a.npy").write_bytes(npz({"x": np.arange(2)})[:-5])
    (source / "run.log").write_text("nothing")
    return source


def index_of(directory):
    return json.loads((directory / "index.json").read_text())["tensors"]


def test_identify_lists_every_file(run, mixed):
    code, out, err = run("identify", mixed)
    assert code == 1
    lines = out.splitlines()
    assert lines[0].split() == ["file", "format", "tensor", "dtype", "shape", "bytes", "status"]
    assert len(lines) == 6
    assert "bfloat16  [2, 3]" in lines[1]
    assert "float32 of the shape [3] do not take 8 bytes" in out
    assert err == "note: files without tensors that are not listed: 1\n"
    assert run("parse", "--identify", mixed)[:2] == (code, out)
    assert run("identify", mixed / "b.npz")[0] == 0
    code, out, _ = run("identify", "--json", mixed / "b.npz")
    (file,) = json.loads(out)["files"]
    assert (code, file["format"], [each["name"] for each in file["tensors"]]) == (0, "npz", ["x", "y"])


NOT_DONE = [
    ("identify", "nowhere"), ("identify",), ("parse",), ("show", "nowhere"), ("parse", "-d", "nowhere"),
    ("convert", "--from", "auto", "nowhere", "x"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", NOT_DONE, ids=" ".join)
def test_what_cannot_be_done_is_exit_2(run, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments)[0] == 2
    (tmp_path / "empty").mkdir()
    for command in (("identify", "empty"), ("parse", "-d", "empty"), ("convert", "--from", "pt", "empty", "x")):
        assert run(*command)[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


@pytest.mark.parametrize("kind", ["pt", "npy", "safetensors"])
def test_parse_writes_each_tensor_and_proves_it(run, mixed, tmp_path, kind):
    output = tmp_path / "out"
    code, out, err = run("parse", "-d", mixed, "-t", kind, "-o", output)
    assert code == 1
    assert f"3 tensors of 4 files as {kind}" in out
    assert err.count("damaged: ") == 2
    sound = {row["file"]: row for row in index_of(output) if row["status"] == "sound"}
    assert sorted(sound) == [f"a.{kind}", f"b.x.{kind}", f"b.y.{kind}"]
    for name, row in sound.items():
        assert stat.S_IMODE((output / name).stat().st_mode) == 0o600
        (tensor,) = identify(output / name).tensors
        is_widened = kind == "npy" and row["dtype"] == "bfloat16"
        assert (row["hash_before"] == row["hash_after"]) is not is_widened
        assert [each["code"] for each in row["conversions_finding"]] == ["tensor-file.note.widened"] * is_widened
        (original,) = [each for each in identify(mixed / row["source"]).tensors if each.name == row["tensor"]]
        assert np.array_equal(read_whole(tensor.source), read_whole(original.source))
        if not is_widened:
            assert bytes(content_of(tensor.source).data) == bytes(content_of(original.source).data)
    (a,) = [row for row in sound.values() if row["source"] == "a.bin"]
    content = (mixed / "a.bin").read_bytes()
    assert content[a["offset"] :] == elements("bfloat16", (2, 3))
    # An existing result is not replaced unless asked to.
    assert run("parse", "-d", mixed, "-t", kind, "-o", output)[0] == 2
    assert run("parse", "-d", mixed, "-t", kind, "-o", output, "-f")[0] == 1


def test_the_names_of_roles_and_the_place_of_the_result(run, tmp_path):
    pytest.importorskip("google.protobuf")
    source = tmp_path / "dump" / "0" / "1"
    source.mkdir(parents=True)
    part = (elements("float16", (2,)), DUMP_CODES["float16"], (2,))
    (source / "Add.add_1.3.4.1700000000").write_bytes(cann_dump([part, part], [part]))
    assert run("parse", "-d", tmp_path / "dump", "-t", "npy", "-o", tmp_path / "out")[0] == 0
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.npy")) == [
        "0/1/Add.add_1.3.4.1700000000.input.0.npy", "0/1/Add.add_1.3.4.1700000000.input.1.npy",
        "0/1/Add.add_1.3.4.1700000000.output.0.npy",
    ]  # fmt: skip
    for place in (tmp_path / "dump", tmp_path / "dump" / "out"):
        assert run("parse", "-d", tmp_path / "dump", "-o", place)[0] == 2
    before = (tmp_path / "mine").write_text("important")
    assert run("parse", "-d", tmp_path / "dump", "-o", tmp_path / "mine")[0] == 2
    assert before == len((tmp_path / "mine").read_text())


@needs_torch
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1, 1, 5)], ids=str)
def test_torch_reads_the_files_that_are_written_without_it(run, tmp_path, shape):
    import torch

    for dtype, code in ACL_CODES.items():
        content = elements(dtype, shape)
        (tmp_path / "x.bin").write_bytes(atb(content, code, shape))
        assert run("parse", "-d", tmp_path / "x.bin", "-o", tmp_path / dtype)[0] == 0
        for maps in (False, True):
            found = torch.load(tmp_path / dtype / "x.pt", weights_only=True, mmap=maps)
            assert (str(found.dtype), tuple(found.shape)) == (f"torch.{dtype}", shape)
            assert found.is_contiguous()
            assert found.reshape(-1).view(torch.uint8).numpy().tobytes() == content


@needs_torch
def test_values_of_torch_are_read_with_equal_bits(tmp_path):
    import torch

    dtypes = [getattr(torch, name) for name in ACL_CODES]
    base = torch.arange(240).reshape(4, 60)
    values = {
        f"{dtype}.{name}": view
        for dtype in dtypes
        for name, view in (
            ("whole", base.to(dtype)), ("columns", base.to(dtype)[:, 3:50:4]), ("turned", base.to(dtype).t()),
            ("scalar", base.to(dtype)[1, 1]), ("empty", base.to(dtype)[:0]),
        )
    }  # fmt: skip
    torch.save(values, tmp_path / "x.pt")
    found = {each.name: each for each in identify(tmp_path / "x.pt").tensors}
    assert list(found) == list(values)
    for name, value in values.items():
        expected = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert bytes(content_of(found[name].source).data) == expected, name


def test_show_prints_values(run, mixed):
    code, out, _ = run("show", mixed / "b.npz", "--values", 2)
    assert code == 0
    assert "float64, [3]" in out
    assert "max 2, min 0, mean 1, norm 2.236068" in out
    assert "first: 0 1\n" in out
    assert out.count("#") >= 3
    code, out, _ = run("show", mixed / "b.npz", "--tensor", "y", "--json")
    (tensor,) = json.loads(out)["tensors"]
    assert (tensor["first"], sum(tensor["counts"]), tensor["statistics"]["max"]) == (["4"], 1, 4.0)
    assert run("show", mixed)[0] == 1
    assert run("show", mixed / "b.npz", "--tensor", "z")[0] == 2


def test_show_compares_files_of_different_formats(run, tmp_path):
    values = np.linspace(1, 2, 12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", values)
    (tmp_path / "y.bin").write_bytes(atb(values.tobytes(), 0, values.shape))
    code, out, _ = run("show", tmp_path / "x.npy", "--against", tmp_path / "y.bin")
    assert (code, out.splitlines()[1].split()[1:4]) == (0, ["1", "0", "0"])
    values[1, 2] += 0.5
    (tmp_path / "y.bin").write_bytes(atb(values.tobytes(), 0, values.shape))
    code, out, _ = run("show", tmp_path / "x.npy", "--against", tmp_path / "y.bin", "--json")
    (pair,) = json.loads(out)["pairs"]
    assert (code, pair["num_different"], pair["worst_index"]) == (1, 1, "(1, 2)")
    assert pair["largest_abs"] == pytest.approx(0.5)
    assert run("show", tmp_path / "x.npy", "--against", tmp_path / "y.bin", "--limit", "1")[0] == 0


def test_show_compares_directories(run, tmp_path):
    for side in ("a", "b"):
        (tmp_path / side / "in").mkdir(parents=True)
        for name in ("x", "y"):
            np.save(tmp_path / side / "in" / f"{name}.npy", np.arange(4.0))
    assert run("show", tmp_path / "a", "--against", tmp_path / "b")[0] == 0
    np.save(tmp_path / "b" / "in" / "y.npy", np.arange(4.0) * 2)
    np.save(tmp_path / "b" / "z.npy", np.arange(4.0))
    code, out, _ = run("show", tmp_path / "a", "--against", tmp_path / "b")
    assert code == 1
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["in/x"].split()[2] == "0"
    assert lines["in/y"].split()[2] == "3"
    assert "in the golden only" in lines["z"]


# --- as a dump ------------------------------------------------------------------------------------------------------


def test_real_dumps_of_sglang_and_flashinfer(run, tmp_path):
    code, out, _ = run("convert", "--from", "sglang", REAL / "sglang", tmp_path / "sglang")
    assert (code, out.split(";")[0]) == (0, "converted 6 tensors from sglang: 2 steps, 1 rank")
    dump = read_dump(tmp_path / "sglang" / "step1" / "rank0")
    assert dump.frame["entry"].to_list() == [
        "Saved.layers.0.hidden_states.0.forward", "Saved.layers.1.hidden_states.0.forward", "Saved.logits.0.forward",
    ]  # fmt: skip
    assert dump.frame["dtype"].to_list() == ["bfloat16", "bfloat16", "float32"]
    assert str(tmp_path / "sglang" / "step1") in (tmp_path / "sglang" / "step1" / "rank0" / "dump.json").read_text()
    for name in ("flashinfer", "flashinfer_pt"):
        code, out, _ = run("convert", "--from", "flashinfer", REAL / name, tmp_path / name)
        assert (code, out.split(";")[0]) == (0, "converted 6 tensors from flashinfer: 1 step, 1 rank")
        frame = read_dump(tmp_path / name / "step0" / "rank0").frame
        assert set(frame["name"].to_list()) >= {
            "FlashInfer.rmsnorm.0.forward.input.0", "FlashInfer.rmsnorm.0.forward.input.w",
            "FlashInfer.rmsnorm.1.forward.output.0",
        }  # fmt: skip
    # The two recorded the same seed, one with torch.save and one with safetensors.
    paths = ("-tp", tmp_path / "flashinfer", "-gp", tmp_path / "flashinfer_pt", "-o", tmp_path / "out")
    assert run("compare", *paths)[0] == 0


def values_of(fault):
    rng = np.random.default_rng(5)
    values = {
        (step, rank, name, layer): rng.standard_normal((4, 8)).astype(np.float32)
        for step in range(2) for rank in range(2) for layer in range(3) for name in ("attn", "mlp")
    }  # fmt: skip
    if fault:
        for name, layer in (("mlp", 1), ("attn", 2), ("mlp", 2)):
            values[1, 1, name, layer] = values[1, 1, name, layer] * np.float32(1.5)
    return values


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("to", ["json", "arrow"])
def test_a_fault_between_two_foreign_dumps_is_found(run, tmp_path, to):
    if to == "arrow":
        pytest.importorskip("pyarrow")
    for side, fault in (("target", True), ("golden", False), ("same", False)):
        write_sglang(tmp_path / f"sglang_{side}", values_of(fault))
        assert run("convert", "--from", "auto", tmp_path / f"sglang_{side}", tmp_path / side, "--to", to)[0] == 0
    sides = ("-tp", tmp_path / "target", "-gp", tmp_path / "golden")
    code, out, _ = run("compare", *sides, "-o", tmp_path / "out")
    assert code == 1
    assert "first at step1/rank1: Saved.layers.1.mlp.0.forward" in out.splitlines()[-1]
    assert run("compare", "-tp", tmp_path / "same", "-gp", tmp_path / "golden", "-o", tmp_path / "out2")[0] == 0
    code, out, _ = run("locate", tmp_path / "target", tmp_path / "golden", "-o", tmp_path / "out3")
    assert code == 1
    assert "Saved.layers.1.mlp.0.forward" in out
    assert run("view", tmp_path / "target", tmp_path / "golden", "-o", tmp_path / "page.html")[0] in {0, 1}
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_dumps_of_operators_keep_their_inputs_and_outputs(run, tmp_path):
    pytest.importorskip("google.protobuf")
    part = (elements("float32", (2,)), 1, (2,))
    for time_, device in ((1700000002, 1), (1700000001, 1), (1700000003, 0)):
        place = tmp_path / "cann" / "20260101" / str(device) / "model" / "3" / "7"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"Add.add_1.3.4.{time_}").write_bytes(cann_dump([part], [part]))
    assert run("convert", "--from", "adump", tmp_path / "cann", tmp_path / "a")[0] == 0
    names = read_dump(tmp_path / "a" / "step7" / "rank1").frame["name"].to_list()
    assert names == [f"Kernel.Add.add_1.{n}.forward.{side}.0" for n in (0, 1) for side in ("input", "output")]
    for op, side, file in (
        ("0_Emb", "before", "intensor0"),
        ("0_Emb", "after", "outtensor0"),
        ("1_Add", "after", "outtensor1"),
    ):
        place = tmp_path / "atb" / "tensors" / "2_9173" / "5" / op / side
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{file}.bin").write_bytes(atb(bytes(8), 0, (2,)))
    assert run("convert", "--from", "atb", tmp_path / "atb", tmp_path / "b")[0] == 0
    frame = read_dump(tmp_path / "b" / "step5" / "rank2").frame.filter(kind="tensor")
    assert frame["name"].to_list() == [
        "Kernel.0_Emb.0.forward.input.0", "Kernel.0_Emb.0.forward.output.0", "Kernel.1_Add.0.forward.output.1",
    ]  # fmt: skip


def test_values_inside_of_an_operation_of_atb_are_not_its_outputs(run, tmp_path):
    place = tmp_path / "atb" / "0_7" / "0" / "0_Add" / "after"
    place.mkdir(parents=True)
    for name in ("outtensor0", "internal_tensor0"):
        (place / f"{name}.bin").write_bytes(atb(bytes(8), 0, (2,)))
    assert run("convert", "--from", "atb", tmp_path / "atb", tmp_path / "b")[0] == 0
    assert read_dump(tmp_path / "b" / "step0" / "rank0").frame["entry"].to_list() == ["Kernel.0_Add.0.forward"] * 2


def test_values_of_kernels_of_mindspore(run, tmp_path):
    for iteration in (0, 1):
        place = tmp_path / "kernels" / "rank_3" / "Net" / "0" / str(iteration)
        place.mkdir(parents=True)
        for time, (side, slot) in enumerate((("input", 0), ("input", 1), ("output", 0))):
            name = f"MatMul.Default_net-op0.0.0.170000000{time}.{side}.{slot}.DefaultFormat.float32.npy"
            np.save(place / name, np.full((2, 2), slot, np.float32))
    assert run("convert", "--from", "msnpy", tmp_path / "kernels", tmp_path / "run")[0] == 0
    frame = read_dump(tmp_path / "run" / "step1" / "rank3").frame
    call = "Kernel.Default_net-op0.0.0.forward"
    assert frame["name"].to_list() == [f"{call}.input.0", f"{call}.input.1", f"{call}.output.0"]
    assert frame["max"].to_list() == [0.0, 1.0, 0.0]
    # A dump is shown and compared like any other directory of tensors.
    code, out, _ = run("show", tmp_path / "run", "--against", tmp_path / "run")
    assert (code, len(out.splitlines())) == (0, 7)


def test_damaged_tensors_are_left_out_and_said(run, mixed, tmp_path):
    code, _, err = run("convert", "--from", "auto", mixed, tmp_path / "dump")
    assert code == 1
    assert err.count("left out: ") == 2
    names = read_dump(tmp_path / "dump" / "step0" / "rank0").frame["entry"].to_list()
    assert names == ["Kernel.a.0.forward", "Saved.b.x.0.forward", "Saved.b.y.0.forward"]
    assert run("convert", "--from", "auto", mixed, tmp_path / "dump")[0] == 2
    assert run("convert", "--from", "npz", mixed, tmp_path / "dump", "--overwrite")[0] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").touch()
    assert run("convert", "--from", "npz", mixed, tmp_path / "mine", "--overwrite")[0] == 2


def test_help_needs_no_library(tmp_path):
    program = "import sys; from msprobe_core.cli import main\ntry: main(sys.argv[1:])\nfinally: "
    program += "print(sorted({'numpy', 'polars', 'rich', 'torch', 'yaml'} & {*sys.modules}))"
    for name in ("parse", "identify", "show", "convert"):
        command = [sys.executable, "-c", program, name, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ)
        assert done.stdout.splitlines()[-1] == "[]"
