"""Alarms that were written while a training ran, put in causal order."""

import json
import subprocess
import sys

import pytest

from msprobe_core.errors import DumpError
from msprobe_core.monitoring.alarm_files import first_alarms, read_alarms


def record(tag, step, *, rank=0, micro_step=0, pp_stage=0, call_id=0):
    return {
        "rank": rank, "step": step, "micro_step": micro_step, "pp_stage": pp_stage, "vpp_stage": 0, "call_id": call_id,
        "tag_name": f"0:{tag[0]}:{micro_step}/rank{rank}/{tag[1]}", "message": f"{tag[1]} of {tag[0]}",
        "group_mates": [0, 1],
    }  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(*records):
        for rank in sorted({each["rank"] for each in records}):
            place = tmp_path / "anomaly_detected" / f"rank{rank}"
            place.mkdir(parents=True)
            own = {f"key {i}": each for i, each in enumerate(records) if each["rank"] == rank}
            (place / "anomaly.json").write_text(json.dumps(own))
        return tmp_path / "anomaly_detected"

    return write


def test_the_order_is_that_of_causes(written):
    """Parameters last, which the established tool puts first; what is whole after all micro-batches."""
    directory = written(
        record(("w", "param_updated"), 3),
        record(("w", "exp_avg"), 3),
        record(("w", "grad_reduced"), 3),
        record(("late", "actv_grad"), 3, pp_stage=1, micro_step=1),
        record(("early", "actv_grad"), 3, pp_stage=0, micro_step=1),
        record(("late", "actv"), 3, pp_stage=1, micro_step=1, rank=1),
        record(("early", "actv"), 3, pp_stage=0, micro_step=1),
        record(("own", "unknown"), 3),
        record(("w", "param_origin"), 2, rank=1),
    )
    found = read_alarms(directory.parent)
    assert [each.message for each in found] == [
        "param_origin of w", "actv of early", "actv of late", "actv_grad of late", "actv_grad of early",
        "grad_reduced of w", "exp_avg of w", "unknown of own", "param_updated of w",
    ]  # fmt: skip
    assert [each.step for each in first_alarms(found, 2)] == [2, 3]
    assert [each.message for each in first_alarms(found, 1, [3])] == ["actv of early"]


@pytest.mark.parametrize("content", [b"[1]", b"{", b'{"a": {"rank": "0"}}', b"\xff", b"[" * 100_000])
def test_other_files_are_errors_that_name_them(written, content):
    directory = written(record(("w", "actv"), 0))
    (directory / "rank0" / "anomaly.json").write_bytes(content)
    with pytest.raises(DumpError, match=r"anomaly\.json: does not hold the alarms"):
        read_alarms(directory)


def test_a_directory_without_any_is_an_error(tmp_path):
    with pytest.raises(DumpError, match="holds no alarms of a monitor"):
        read_alarms(tmp_path)


def test_the_program_of_the_established_tool(written, tmp_path):
    directory = written(record(("w", "param_updated"), 3), record(("fc1.output", "actv"), 3), record(("w", "actv"), 5))
    command = [sys.executable, "-m", "msprobe.core.monitor.anomaly_processor", "-d", str(directory)]
    for options, place, expected in (
        ([], directory, ["actv of fc1.output", "param_updated of w", "actv of w"]),
        (["-o", str(tmp_path / "out"), "-k", "1", "-s", "[5]"], tmp_path / "out", ["actv of w"]),
    ):
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads((place / "anomaly_analyse.json").read_text())
        assert [each["message"] for each in found] == expected
    assert set(found[0]) == set(record(("w", "actv"), 5))
    done = subprocess.run([*command[:3], "-d", str(tmp_path / "nothing")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("msprobe: error: ")
    assert "Traceback" not in done.stderr
