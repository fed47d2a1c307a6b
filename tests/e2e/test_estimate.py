"""``msprobe estimate`` says what a real run does: the same bytes, the same records; and it leaves no files."""

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from estimates import estimate, numbers, write
from msprobe.pytorch._framework import PyTorchFramework

from msprobe_core.protocols.capabilities import DeviceGauge

LOOP = """
import json, os, sys
import torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ballast = torch.ones(25_000_000)
debugger = PrecisionDebugger("config.json", **json.loads(os.environ["SETTINGS"]))
for step in range(int(sys.argv[1])):
    debugger.start(model)
    model(torch.randn(16 + step, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
open("ended", "w").close()
"""

FUNCTIONS = """
import time
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

def one_step():
    time.sleep(0.05)
    model(torch.randn(4, 8)).sum().backward()
    return model

def two_steps():
    yield [model]
    for _ in range(3):
        one_step()
        yield

"""


@pytest.mark.slow
def test_a_script_costs_what_a_real_run_costs(place):
    script = write("train.py", LOOP)
    write("config.json", json.dumps({"tensor": {"data_mode": ["forward"]}, "statistics": {"data_mode": ["backward"]}}))
    program = {"level": "L0", "step": [1], "rank": [3], "dump_enable": False, "dump_path": "never"}
    options = ("--levels", "mix", "--modes", "tensor", "--ranks", 4, "--train-steps", 10)
    done = estimate(*options, script, 1000, SETTINGS=json.dumps(program))
    assert done.returncode == 0, done.stderr
    assert not Path("never").exists()
    assert not Path("ended").exists()
    assert Path("numbers.json").stat().st_mode & 0o077 == 0

    settings = json.dumps({"level": "mix", "task": "tensor", "dump_path": "run"})
    subprocess.run([sys.executable, script, "4"], check=True, env=os.environ | {"SETTINGS": settings})
    sizes, records = [], []
    for step in (1, 2, 3):
        [unit] = Path(f"run/step{step}").iterdir()
        dump = json.loads((unit / "dump.json").read_text())
        # The dump names its directory, which has another length there.
        there = Path("../scratch/msprobe-estimate-12345678/dump-12345678") / unit.relative_to("run")
        longer = len(str((there / "dump_tensor_data").absolute())) - len(dump["dump_data_dir"])
        # The first step has the rows of its data in the manifest, the others in a file of their own.
        files = [path for path in unit.rglob("*") if path.is_file() and path.name != "data_rows.json"]
        sizes.append(sum(path.stat().st_size for path in files) + longer)
        records.append(len(dump["data"]))
    found = numbers()
    [case] = found["cases"]
    assert case["records_per_step"] == round(statistics.mean(records)) > 10
    assert case["bytes_per_step"] == pytest.approx(statistics.mean(sizes), abs=2)  # a process id of other length
    assert case["total_bytes"] == 40 * case["bytes_per_step"]
    assert len(case["times_s"]) == len(found["bare"]["times_s"]) == 3
    assert case["factor"] == case["time_s"] / found["bare"]["time_s"] > 0
    assert case["time_s"] == statistics.median(case["times_s"])
    assert found["bare"]["bytes_per_step"] == found["bare"]["records_per_step"] == 0
    assert found["bare"]["peak_memory_bytes"] > 100_000_000  # the ballast
    assert found["program"] == ["train.py", "1000"]

    [row] = [line for line in done.stdout.splitlines() if line.startswith("mix")]
    size = f"{case['bytes_per_step'] / 1e3:.1f} kB"
    total = f"{case['total_bytes'] / 1e6:.1f} MB"
    assert re.fullmatch(rf"mix +tensor +\S+ +\S+ to \S+ +\S+ +{size} +{case['records_per_step']} .* {total} *", row)
    assert "4 ranks," in done.stdout
    assert "measuring mix tensor (2 of 2)" in done.stderr


@pytest.mark.slow
def test_a_function_is_called_and_a_generator_goes_on(place):
    write("functions.py", FUNCTIONS)
    done = estimate("--levels", "L0", "--modes", "md5", "--warmup", 2, "functions:one_step")
    assert done.returncode == 0, done.stderr
    found = numbers()
    # Four modules, each forward and backward, and the gradients of two of them.
    assert found["cases"][0]["records_per_step"] == 10
    assert all(seconds >= 0.05 for seconds in found["bare"]["times_s"] + found["cases"][0]["times_s"])
    done = estimate("--levels", "L1", "--modes", "statistics", "functions:two_steps")
    assert done.returncode == 0, done.stderr
    assert len(numbers()["cases"][0]["times_s"]) == 2
    assert "The program made fewer steps than that: 2 steps in some case." in done.stdout


RANKS = """
import os, subprocess, sys
if "RANK" not in os.environ:
    runs = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"})
            for rank in range(2)]
    for run in runs:
        run.wait()
else:
    from msprobe.pytorch import PrecisionDebugger
    import torch
    torch.set_num_threads(1)
    debugger = PrecisionDebugger()
    while True:
        debugger.start()
        for _ in range(1 + int(os.environ["RANK"])):
            torch.ones(2) + 1
        debugger.stop()
        debugger.step()
"""


@pytest.mark.slow
def test_processes_of_a_job_are_measured_together(place):
    done = estimate("--levels", "L1", "--modes", "statistics", "--steps", "2", write("ranks.py", RANKS))
    assert done.returncode == 0, done.stderr
    [case] = numbers()["cases"]
    assert case["num_processes"] == 2
    assert case["records_per_step"] == 2  # the mean of one and two, rounded to even
    assert "Several processes recorded" in done.stdout


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_devices_in_use_are_asked(monkeypatch, kind):
    waited = []
    device = SimpleNamespace(
        is_initialized=lambda: True,
        synchronize=lambda: waited.append(kind),
        device_count=lambda: 2,
        max_memory_allocated=lambda index: 10 + index,
    )
    framework = PyTorchFramework()
    assert isinstance(framework, DeviceGauge)
    assert framework.peak_device_bytes() is None
    monkeypatch.setattr(torch, kind, device, raising=False)
    framework.wait_for_devices()
    assert waited == [kind]
    assert framework.peak_device_bytes() == 21
