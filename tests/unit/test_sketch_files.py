"""Sketches on disk and in comparisons; hashes compared."""

import base64
import csv
import json

import numpy as np
import pytest
from dumps import api, tensor, write_dump
from numpy_layers import ArrayFramework, Network, train_step
from written_tables import write_report

from msprobe_core.capture import Session
from msprobe_core.compare import compare_dumps
from msprobe_core.config import load_config
from msprobe_core.errors import DumpError
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.model import Batch, Digest, Entry, Phase, RunHeader, TensorMeta, TensorValue
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.json_writer import JsonWriterFactory
from msprobe_core.store.reading_codes import DamageCode

ENTRY = "Functional.linear.0.forward"
X = np.random.default_rng(1).normal(size=(40, 50))


def sketch_of(values):
    return base64.b64encode(Sketcher(NumpyArrays()).sketch(np.asarray(values)).astype("<f4").tobytes()).decode()


def sketched(values, **fields):
    return tensor(values, sketch=sketch_of(values), **fields)


def record(directory, summary_mode, *, seed=1, scale=1.0):
    """Train one step of the NumPy network, with weights that are scaled in the last layer."""
    path = directory.with_suffix(".json")
    path.write_text(json.dumps({"task": "statistics", "level": "mix", "statistics": {"summary_mode": summary_mode}}))
    config = load_config(path, dump_path=str(directory))
    session = Session(config, ArrayFramework())
    model = Network()
    model.last.parameters["weight"].values *= scale
    session.start([model])
    train_step(model, seed)
    session.stop()
    session.close()
    return session.directory


def table_of(result, directory):
    path = write_report(result, directory).tables[0][0]
    with path.open(newline="") as file:
        return {row["target_name"]: row for row in csv.DictReader(file)}


def test_a_sketch_of_anything_is_strict_json_and_comes_back(tmp_path):
    numbers = np.arange(64, dtype="<f4")
    numbers[:3] = np.nan, np.inf, -np.inf
    value = TensorValue(TensorMeta("torch.Tensor", "torch.float32", (9,)), Digest(sketch=numbers.tobytes()))
    writer = JsonWriterFactory().open(tmp_path, RunHeader(task="statistics", level="L1", framework="pytorch"))
    writer.write(Batch([Entry(name=ENTRY, phase=Phase.FORWARD, outputs=[value])], {}))
    writer.close()
    text = (tmp_path / "dump.json").read_text()
    stored = json.loads(text, parse_constant=pytest.fail)["data"][ENTRY]["output"][0]
    assert base64.b64decode(stored["sketch"]) == numbers.tobytes()
    frame = read_json_dump(tmp_path / "dump.json").frame
    assert frame["sketch"].to_list() == [numbers.tobytes()]


@pytest.mark.parametrize("sketch", ["AAAA", "no base64!", 7, [1, 2], "ä" * 344], ids=str)
def test_a_damaged_sketch_is_a_malformed_record(sketch, tmp_path):
    good, bad = {ENTRY: api(output=sketched(X))}, {"Torch.abs.0.forward": api(output=tensor(X, sketch=sketch))}
    dump = read_json_dump(write_dump(tmp_path / "a", good | bad))
    assert dump.frame["entry"].to_list() == [ENTRY]
    malformed = dump.notes[0].fields["damage"]
    assert (malformed.code, malformed.fields["record"]) == (DamageCode.MALFORMED, "'Torch.abs.0.forward'")
    with pytest.raises(DumpError, match="no other record is sound"):
        read_json_dump(write_dump(tmp_path / "b", bad))


def test_the_table_has_the_estimated_error(tmp_path):
    noise = np.random.default_rng(2).normal(size=X.shape)
    target = {ENTRY: api(sketched(X), sketched(X[:5]), 3, output=sketched(X + 0.02 * noise))}
    golden = {ENTRY: api(sketched(X), tensor(X[:5]), 3, output=sketched(X))}
    result = compare_dumps(write_dump(tmp_path / "target", target), write_dump(tmp_path / "golden", golden))
    rows = table_of(result, tmp_path / "out")
    errors = {name.removeprefix(f"{ENTRY}."): row["estimated_rel_error"] for name, row in rows.items()}
    assert errors["input.0"] == "0.0"
    assert errors["input.1"] == errors["input.2"] == ""
    assert 0.02 * 0.8 < float(errors["output.0"]) < 0.02 * 1.2
    assert "sketch_target" not in result.units[0].rows.columns


def test_without_sketches_or_with_other_shapes_there_is_no_such_column(tmp_path):
    sides = [{ENTRY: api(output=sketched(X))}, {ENTRY: api(output=tensor(X))}, {ENTRY: api(output=sketched(X[1:]))}]
    paths = [write_dump(tmp_path / str(i), side) for i, side in enumerate(sides)]
    for target, golden in (paths[:2], paths[1:], (paths[0], paths[2])):
        (row,) = table_of(compare_dumps(target, golden), tmp_path / "out").values()
        assert "estimated_rel_error" not in row


def test_without_statistics_the_sketches_own_norm_is_taken(tmp_path):
    none = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    target = {ENTRY: api(output=sketched(1.1 * X) | none), "Torch.abs.0.forward": api(output=sketched(X * 0 + 1))}
    golden = {ENTRY: api(output=sketched(X) | none), "Torch.abs.0.forward": api(output=sketched(X * 0))}
    result = compare_dumps(write_dump(tmp_path / "target", target), write_dump(tmp_path / "golden", golden))
    found = [row["estimated_rel_error"] for row in table_of(result, tmp_path / "out").values()]
    assert float(found[0]) == pytest.approx(0.1, rel=1e-4)
    assert found[1] == "inf"


def test_two_recorded_runs_are_compared_by_sketches(tmp_path):
    golden, same = record(tmp_path / "golden", "sketch"), record(tmp_path / "same", "sketch")
    other = record(tmp_path / "other", "sketch", scale=1.01)
    assert compare_dumps(same, golden).agrees
    rows = table_of(compare_dumps(other, golden), tmp_path / "out")
    weight = rows["Module.last.Dense.forward.0.parameters.weight"]
    assert float(weight["estimated_rel_error"]) == pytest.approx(0.01, rel=0.21)
    assert rows["Module.first.Dense.forward.0.parameters.weight"]["estimated_rel_error"] == "0.0"


def test_two_recorded_runs_are_compared_by_hashes(tmp_path):
    golden, same = record(tmp_path / "golden", "hash"), record(tmp_path / "same", "hash")
    other = record(tmp_path / "other", "hash", scale=1 + 2**-52)
    result = compare_dumps(same, golden)
    assert result.agrees
    assert result.units[0].mode.value == "md5"
    found = compare_dumps(other, golden)
    assert not found.agrees
    rows = table_of(found, tmp_path / "out")
    weight = rows["Module.last.Dense.forward.0.parameters.weight"]
    assert weight["target_checksum"] != weight["golden_checksum"]
    assert weight["target_checksum"].startswith("0x")
    assert len(weight["target_checksum"]) == 18
    assert weight["verdict"] == "error"
    assert rows["Module.first.Dense.forward.0.parameters.weight"]["verdict"] == "pass"
