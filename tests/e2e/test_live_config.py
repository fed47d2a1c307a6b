"""A real job, in a process of its own, switched on and off from a command line beside it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from recorded import Recorded

import msprobe_core

REPOSITORY = Path(msprobe_core.__file__).parents[1]

JOB = """
import sys, time
import torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
debugger = PrecisionDebugger("config.json")
for line in sys.stdin:
    for _ in range(int(line)):
        time.sleep(0.02)
        debugger.start(model)
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    print(loss.item(), torch._C._len_torch_function_stack(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_running_job_is_switched_on_and_off(tmp_path):
    run = tmp_path / "run"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dump_enable": False, "level": "L1", "dump_path": str(run), "risk_level": "ALL"}))
    (tmp_path / "job.py").write_text(JOB)
    environment = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins' / 'pytorch'}", "PATH": "/usr/bin:/bin"}

    def control(*arguments):
        command = [sys.executable, "-m", "msprobe_core", "control", "config.json", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=environment)
        time.sleep(0.6)  # until the file has rested

    with subprocess.Popen([sys.executable, "job.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, env=environment) as job:  # fmt: skip

        def train(num_steps):
            job.stdin.write(f"{num_steps}\n")
            job.stdin.flush()
            return job.stdout.readline().split()

        losses = [train(3)]
        assert not run.exists()
        control("set", "dump_enable=true", "level=mix", "step=[4]")
        losses.append(train(3))
        assert [path.name for path in run.iterdir()] == ["step4"]
        control("off")
        losses.append(train(2))
        job.stdin.close()
        assert job.wait() == 0
    dump = Recorded(run, 4)
    assert dump.header["level"] == "mix"
    assert "Module.0.Linear.backward.0" in dump.data
    assert "Module.0.Linear.parameters_grad.0" in dump.data
    assert [depth for _, depth in losses] == ["0", "0", "0"]

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    for step in range(8):
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in {2, 5, 7}:
            expected.append(loss.item())
    assert [float(loss) for loss, _ in losses] == expected


@pytest.mark.usefixtures("close_debugger")
def test_parts_of_the_graph_of_an_earlier_configuration_are_left_in_peace(tmp_path):
    """A graph made before the change runs backward after it: its hooks belong to a recorder that is shut."""
    import os

    from msprobe.pytorch import PrecisionDebugger

    config = tmp_path / "config.json"
    settings = {"dump_enable": True, "level": "mix", "dump_path": str(tmp_path / "run")}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    debugger.start(model)
    loss = model(torch.ones(1, 2)).sum()
    config.write_text(json.dumps(settings | {"level": "L0"}))
    os.utime(config, (1.0, 1.0))
    time.sleep(0.6)
    debugger.step()
    loss.backward()
    model(torch.ones(1, 2)).sum().backward()
    debugger.stop()
    assert Recorded(tmp_path / "run", 0).header["level"] == "mix"
    second = Recorded(tmp_path / "run", 1)
    assert second.header["level"] == "L0"
    assert second.starting("Module.0.Linear.backward") == ["Module.0.Linear.backward.0"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
