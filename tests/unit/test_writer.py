"""``dump.json`` and its companions: the shapes users' scripts know, strict JSON, and nothing lost on the way."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import msprobe_core
from msprobe_core.errors import StoreError
from msprobe_core.model import (
    Argument,
    Batch,
    Digest,
    Entry,
    GradientSlot,
    Phase,
    RunHeader,
    Stats,
    TensorMeta,
    TensorValue,
)
from msprobe_core.store import layout
from msprobe_core.store.json_reader import read_json_dump, read_parents, read_stacks
from msprobe_core.store.json_writer import JsonObjectStream, JsonWriter, entry_json, value_json
from msprobe_core.store.reading_codes import DamageCode

REPOSITORY = Path(msprobe_core.__file__).parents[1]
HEADER = RunHeader(task="statistics", level="mix", framework="pytorch")
META = TensorMeta("torch.Tensor", "torch.float32", (2, 3), True)


def strict(path):
    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(path.read_text(), parse_constant=refuse)


def tensor(**stats):
    return TensorValue(META, Digest(Stats(**stats)))


def test_a_tensor_has_the_published_keys():
    value = TensorValue(META, Digest(Stats(2.0, -1.0, 0.5, 3.0, 0, 0), "0a1b2c3d"), "x.pt")
    assert value_json(value) == {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": (2, 3), "Max": 2.0, "Min": -1.0, "Mean": 0.5,
        "Norm": 3.0, "requires_grad": True, "num_nan": 0, "num_inf": 0, "md5": "0a1b2c3d", "data_name": "x.pt",
    }  # fmt: skip
    assert list(value_json(value))[:8] == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"]


def test_special_numbers_are_strict_json():
    def written(value):
        text = msgspec.json.encode(value_json(value))
        return json.loads(text, parse_constant=pytest.fail)

    value = written(tensor(max=math.inf, min=-math.inf, mean=math.nan, l2_norm=math.inf))
    assert [value[key] for key in ("Max", "Min", "Mean", "Norm")] == [math.inf, -math.inf, "NaN", math.inf]
    assert written(Argument("float", math.nan)) == {"type": "float", "value": "NaN"}
    assert written(Argument("float", -math.inf)) == {"type": "float", "value": -math.inf}
    assert written(Argument("int", -(2**70))) == {"type": "int", "value": -(2**70)}
    array = Argument("numpy.ndarray", None, {"shape": [1], "Max": math.inf})
    assert written(array) == {"type": "numpy.ndarray", "shape": [1], "Max": math.inf}


def test_entries_have_the_published_parts():
    forward = Entry(
        name="f", phase=Phase.FORWARD, sequence=4, inputs=[tensor(max=1.0), None, [Argument("int", 3)]],
        input_kwargs={"mask": None}, outputs=[{"logits": tensor(max=2.0)}], parameters={},
    )  # fmt: skip
    record = entry_json(forward)
    assert list(record) == ["input_args", "input_kwargs", "output", "parameters", "execution"]
    assert record["input_args"][1:] == [None, [{"type": "int", "value": 3}]]
    assert record["output"][0]["logits"]["Max"] == 2.0
    assert record["execution"] == {"sequence": 4}
    backward = Entry(
        name="b", phase=Phase.BACKWARD, inputs=[GradientSlot(tensor(max=1.0))], outputs=[GradientSlot()],
        output_kwargs={"mask": GradientSlot(tensor(max=2.0))},
    )  # fmt: skip
    record = entry_json(backward)
    assert list(record) == ["input", "output", "output_kwargs", "execution"]
    assert record["output"] == [None]
    gradients = Entry(name="g", phase=Phase.PARAMETERS_GRAD, parameters={"weight": tensor(max=1.0), "execution": None})
    record = entry_json(gradients)
    assert record["weight"][0]["Max"] == 1.0
    assert record["execution"] == [None]  # a parameter of that name keeps it


def test_parts_that_were_not_asked_for_are_absent():
    assert list(entry_json(Entry(name="f", phase=Phase.FORWARD, outputs=[]))) == ["output", "execution"]


def test_files_are_valid_after_each_batch(tmp_path):
    writer = JsonWriter(tmp_path, HEADER)
    assert strict(tmp_path / "dump.json")["data"] == {}
    stacks = [("File a, line 1",), ("File b, line 2",), ("File a, line 1",)]
    for i, stack in enumerate(stacks):
        entry = Entry(
            name=f"Tensor.add.{i}.forward", phase=Phase.FORWARD, stack=stack, sequence=i, inputs=[], outputs=[]
        )
        writer.write(Batch([entry], {entry.name: "Module.M.forward.0" if i else None}))
        assert list(strict(tmp_path / "dump.json")["data"]) == [f"Tensor.add.{n}.forward" for n in range(i + 1)]
    writer.close()
    header = {key: value for key, value in strict(tmp_path / "dump.json").items() if key != "data"}
    said = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    assert header == said | {"summary_mode": "statistics"}
    assert strict(tmp_path / "stack.json")["1"] == [["Tensor.add.1.forward"], ["File b, line 2"]]
    assert read_stacks(tmp_path / "stack.json")["Tensor.add.2.forward"] == ["File a, line 1"]
    assert read_parents(tmp_path / "construct.json") == {
        "Tensor.add.0.forward": None,
        "Tensor.add.1.forward": "Module.M.forward.0",
        "Tensor.add.2.forward": "Module.M.forward.0",
    }
    # One record a line: what other tools cut and grep in.
    assert len((tmp_path / "dump.json").read_text().splitlines()) == 3 + 3


def test_no_extra_info_means_no_extra_files(tmp_path):
    header = RunHeader(task="tensor", level="L1", framework="pytorch", has_extra_info=False)
    JsonWriter(tmp_path, header).close()
    assert [path.name for path in tmp_path.iterdir()] == ["dump.json"]
    assert strict(tmp_path / "dump.json")["dump_data_dir"] == str(tmp_path / "dump_tensor_data")


def test_files_and_directories_are_for_the_owner_only(tmp_path):
    directory = tmp_path / "a" / "b"
    layout.make_directory(directory)
    JsonWriter(directory, HEADER).close()
    for path in (tmp_path / "a", directory, *directory.iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def test_a_symbolic_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "dump.json").symlink_to(victim)
    JsonWriter(tmp_path, HEADER).close()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "dump.json").is_symlink()


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be created .*; choose another directory"):
        layout.make_directory(tmp_path / "file" / "step0")


def small_dump(path, num_entries=5):
    writer = JsonWriter(path, HEADER)
    for i in range(num_entries):
        values = [tensor(max=float(i), min=0.0, mean=0.5, l2_norm=1.0, num_nan=0, num_inf=0)]
        entry = Entry(name=f"Tensor.add.{i}.forward", phase=Phase.FORWARD, sequence=i, inputs=values, outputs=values)
        writer.write(Batch([entry], {}))
    writer.close()
    return (path / "dump.json").read_bytes()


@given(share=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_off_anywhere_gives_all_whole_records(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut")
    content = small_dump(path)
    first_record = content.index(b"\n", content.index(b'"data"'))
    cut = first_record + 1 + int(share * (len(content) - first_record - 1))
    (path / "dump.json").write_bytes(content[:cut])
    whole = [line for line in content[first_record + 1 : cut].split(b",\n") if line.rstrip().endswith(b"}}")]
    if not whole:
        return
    dump = read_json_dump(path / "dump.json")
    found = dump.frame["entry"].unique(maintain_order=True).to_list()
    assert found == [f"Tensor.add.{i}.forward" for i in range(len(found))]
    assert len(found) >= len(whole) - 1
    if cut < len(content) - len(b"\n}}\n") and cut != len(content):
        assert dump.notes[0].fields["damage"].code is DamageCode.RECORDS


def test_a_full_disk_keeps_what_was_written(tmp_path):
    """In a process of its own, whose files may not grow beyond a limit: the file stays valid, the error is clear."""
    program = f"""
import resource, signal, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from msprobe_core.errors import StoreError
from msprobe_core.store.json_writer import JsonObjectStream
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
stream = JsonObjectStream(Path({str(tmp_path / "x.json")!r}), b'{{"data":{{\\n', b"\\n}}}}\\n")
for i in range(100):
    try:
        stream.append([(f"entry{{i}}", b'"' + b"v" * 100 + b'"')])
    except StoreError as error:
        print(i, error)
        break
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    num_written = int(done.stdout.split()[0])
    assert "cannot be written (File too large); what was recorded before is kept" in done.stdout
    assert list(strict(tmp_path / "x.json")["data"]) == [f"entry{i}" for i in range(num_written)]
    assert num_written > 10


def test_streams_can_hold_any_key(tmp_path):
    stream = JsonObjectStream(tmp_path / "x.json", b"{", b"}")
    keys = ['a"b', "a\\b", "a\nb", "ключ", "", "=1+1"]
    stream.append([(key, b"1") for key in keys])
    stream.close()
    assert list(strict(tmp_path / "x.json")) == keys


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("Functional.linear.0.forward.input.0", "Functional.linear.0.forward.input.0.pt"),
        ("M.a=b@c+d-e_f", "M.a=b@c+d-e_f.pt"),
    ],
)
def test_ordinary_tensor_names_stay(stem, expected):
    assert layout.tensor_file_name(stem, ".pt") == expected


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_any_name_becomes_a_file_name_of_its_own(one, other):
    first, second = layout.tensor_file_name(one, ".npy"), layout.tensor_file_name(other, ".npy")
    assert "/" not in first
    assert "\0" not in first
    assert len(first.encode()) <= 255
    assert first.endswith(".npy")
    assert (first == second) == (one == other)


def test_units(tmp_path):
    for name in ("rank10", "rank2", "proc77", "rank01", "other"):
        (tmp_path / name).mkdir()
    assert [unit.rank for unit in layout.find_units(tmp_path)] == [2, 10]
    assert layout.unit_directory(tmp_path, 3, 1) == tmp_path / "step3" / "rank1"
    assert layout.unit_directory(tmp_path, 3, None).name == f"proc{os.getpid()}"


def test_numbers_survive_the_file(tmp_path):
    stats = Stats(max=np.float32(0.1).item(), min=-(2.0**-149), mean=1e-300, l2_norm=3.4e38, num_nan=0, num_inf=0)
    writer = JsonWriter(tmp_path, HEADER)
    entry = Entry(name="Tensor.add.0.forward", phase=Phase.FORWARD, inputs=[TensorValue(META, Digest(stats))])
    writer.write(Batch([entry], {}))
    writer.close()
    row = read_json_dump(tmp_path / "dump.json").frame.row(0, named=True)
    assert (row["max"], row["min"], row["mean"], row["norm"]) == (stats.max, stats.min, stats.mean, stats.l2_norm)
