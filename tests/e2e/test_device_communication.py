"""Communication of devices: recorded, the same to the bit, without a wait in a step. Devices and HCCL are simulated."""

import device_ranks
import pytest
import simulated_device
import torch
from jobs import entries, run_job

from msprobe_core.monitoring.files import read_monitored

pytestmark = [
    pytest.mark.skipif(
        not simulated_device.has_python_devices(), reason="this PyTorch takes no device that is written in Python"
    ),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="the stand-in of HCCL needs gloo"),
    pytest.mark.filterwarnings("ignore"),
]


def run_on(device, work, directory, *args):
    if device == "cpu":
        return run_job(work, 2, directory / "host", *args)
    return run_job(work, 2, directory / "device", *args, backend=device_ranks.over_hccl)


def told(entry):
    """Return what a dump says of an entry, but of its place, which uploads of the program move, and of classes."""
    if isinstance(entry, dict):
        return {key: told(value) for key, value in entry.items() if key not in ("type", "execution")}
    return [told(item) for item in entry] if isinstance(entry, list) else entry


@pytest.mark.slow
def test_results_are_there_once_a_stream_has_waited_for_them(tmp_path):
    found = run_on("npu", device_ranks.read_too_early, tmp_path)
    assert found == [{"early": [1, 1], "noted": ["aten::add"], "late": [2, 2], "noted later": []}] * 2


@pytest.mark.slow
def test_all_kinds_of_communication_are_recorded_as_on_the_host(tmp_path):
    dumps = {}
    for device, name in (("npu", "device"), ("cpu", "host")):
        for found in run_on(device, device_ranks.communicate, tmp_path, device):
            assert found["same"]
            assert (found["waits"], found["unordered"]) == (found["own waits"], [])
        dumps[device] = [told(dict(entries(tmp_path / name / device / "run", 0, rank))) for rank in range(2)]
    assert dumps["npu"] == dumps["cpu"]
    names = {entry.split(".")[1] for entry in dumps["npu"][0] if entry.startswith("Distributed.")}
    assert len(names) >= 7
    assert "output" in dumps["npu"][0]["Distributed.all_reduce.1.forward"]
    assert "output" not in dumps["npu"][0]["Distributed.all_reduce.3.forward"]  # no one waited for it


@pytest.mark.slow
def test_the_monitor_records_communication_as_on_the_host(tmp_path):
    rows = {}
    for device, name in (("npu", "device"), ("cpu", "host")):
        for found in run_on(device, device_ranks.monitor, tmp_path, device):
            assert found == {"same": True, "own waits": [], "waits": [], "unordered": []}
        table = read_monitored(tmp_path / name / device).frame.sort("rank", "step", "name")
        rows[device] = {
            (row["rank"], row["step"], row["name"]): (row["norm"], row["mean"]) for row in table.iter_rows(named=True)
        }
    assert len(rows["npu"]) == 2 * 3 * 6  # ranks, steps, and inputs and outputs of three collectives
    assert rows["npu"].keys() == rows["cpu"].keys()
    for place, numbers in rows["npu"].items():
        assert numbers == pytest.approx(rows["cpu"][place], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tp"])
def test_trainings_of_several_devices(tmp_path, kind):
    for found in run_on("npu", device_ranks.compare_with_bare, tmp_path, kind):
        assert found == {
            "itself": True, "communicates": True, "bare unordered": [], **{name: [] for name in device_ranks.KINDS},
        }  # fmt: skip
