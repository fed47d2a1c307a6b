"""Every dump of mindstudio-probe in tests/data is read and compared, each with itself and with a changed copy."""

import json
import shutil
from pathlib import Path

import pytest

from msprobe_core.compare import compare_dumps
from msprobe_core.compare.result import Mode
from msprobe_core.store.json_reader import JsonReader
from msprobe_core.store.layout import find_units
from msprobe_core.store.tensors import read_tensor

DATA = Path(__file__).parents[1] / "data" / "mindstudio_probe"

KINDS = {
    "1.2.2_statistics": (Mode.STATISTICS, "statistics", 114),
    "8.3.3_statistics": (Mode.STATISTICS, "statistics", 98),
    "26.2.0_statistics": (Mode.STATISTICS, "statistics", 95),
    "26.2.0_md5": (Mode.CHECKSUM, "md5", 95),
    "26.2.0_tensor": (Mode.TENSOR, "statistics", 95),
    "26.2.0_xor": (Mode.CHECKSUM, "xor", 74),
    "26.2.0_L0_two_micro_batches": (Mode.STATISTICS, "statistics", 46),
    "26.2.0_L1": (Mode.STATISTICS, "statistics", 51),
    "26.2.0_two_ranks": (Mode.STATISTICS, "statistics", 76),
    "26.2.0_structure": (Mode.STRUCTURE, "statistics", 22),
    "26.2.0_debug": (Mode.STATISTICS, "statistics", 14),
    "26.2.0_debug_tensor": (Mode.TENSOR, "statistics", 14),
}


@pytest.mark.parametrize("name", list(KINDS))
def test_each_is_read_and_agrees_with_itself(name):
    mode, summary_mode, num_rows = KINDS[name]
    result = compare_dumps(DATA / name / "step0", DATA / name / "step0")
    assert result.agrees
    assert not result.missing
    assert [unit.label for unit in result.units] == [unit.label for unit in find_units(DATA / name / "step0")]
    for unit in result.units:
        assert (unit.mode, unit.rows.height, unit.notes) == (mode, num_rows, [])
    for unit in find_units(DATA / name / "step0"):
        assert JsonReader().read(unit.directory).header.summary_mode == summary_mode


def reshaped(value):
    """Return a tree whose first tensor has one more dimension; ``None`` if it has no tensor."""
    if isinstance(value, dict) and "shape" in value:
        return value | {"shape": [*value["shape"], 1]}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if (changed := reshaped(item)) is not None:
            value[key] = changed
            return value
    return None


@pytest.mark.parametrize("name", list(KINDS))
def test_a_change_in_each_is_found(tmp_path, name):
    copy = shutil.copytree(DATA / name / "step0", tmp_path / "step0")
    path = find_units(copy)[0].directory / ("debug.json" if "debug" in name else "dump.json")
    if "structure" in name:
        path = path.with_name("construct.json")
        content = json.loads(path.read_text())
        expected = "Torch.relu.0.forward"
        del content[expected]
    else:
        content = json.loads(path.read_text())
        expected = "y.0.debug" if "debug" in name else "Module.norm.LayerNorm.forward.0"
        expected = expected if expected in content["data"] else "Torch.relu.0.forward"
        content["data"][expected] = reshaped(content["data"][expected])
    path.write_text(json.dumps(content))
    result = compare_dumps(copy, DATA / name / "step0")
    assert not result.agrees
    assert result.units[0].first_fault.entry == expected


def test_two_ranks_hold_their_own_values_and_the_collective():
    frames = [JsonReader().read(unit.directory).frame for unit in find_units(DATA / "26.2.0_two_ranks" / "step0")]
    reduced = [frame.filter(name="Distributed.all_reduce.0.forward.input.0")["norm"].item() for frame in frames]
    assert reduced[0] != reduced[1]
    summed = [frame.filter(name="Distributed.all_reduce.0.forward.output.0")["norm"].item() for frame in frames]
    assert summed[0] == summed[1]


def test_micro_batches_are_calls_and_accumulated_gradients():
    (unit,) = find_units(DATA / "26.2.0_L0_two_micro_batches" / "step0")
    frame = JsonReader().read(unit.directory).frame
    keys = set(frame["key"])
    for number in range(2):
        assert f"Module.fc1.Linear.forward.{number}.output.0" in keys
        assert f"Module.fc1.Linear.parameters_grad.{number}.weight" in keys


def test_saved_values_and_their_files():
    (unit,) = find_units(DATA / "26.2.0_debug_tensor" / "step0")
    dump = JsonReader().read(unit.directory)
    rows = {row["name"]: row for row in dump.frame.rows(named=True)}
    assert rows["nest.0.debug.y.1"]["text"] == "3"
    assert rows["nest_grad.0.debug.y.0"]["kind"] == "tensor"
    stored = rows["x.0.debug"]
    assert read_tensor(dump.tensor_path(stored["file_name"])).max() == stored["max"]
    assert {"x.0.debug", "y_grad.0.debug", "nest.0.debug.pair.0"} <= set(rows)


def test_a_number_in_place_of_a_checksum_is_a_value():
    """In mode xor, tensors without dimensions are kept as they are."""
    (unit,) = find_units(DATA / "26.2.0_xor" / "step0")
    assert '"md5": 1.0' in (unit.directory / "dump.json").read_text()
    frame = JsonReader().read(unit.directory).frame
    numbers = frame.filter((frame["kind"] == "tensor") & frame["checksum"].is_null() & (frame["shape"] == "[]"))
    assert numbers.height == 2
    assert (numbers["max"] == numbers["min"]).all()
