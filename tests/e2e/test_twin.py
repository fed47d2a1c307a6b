"""Two trainings in two processes: the follower names the first call that disagrees while both run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import json, sys, time
import torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

name, leader = sys.argv[1:3]
fault_at, num_steps, halts_at = map(int, sys.argv[3:6])
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
config = {"dump_path": name, "level": "mix", "statistics": {"summary_mode": "sketch"}}
if leader:
    config["twin"] = {"leader": leader, "wait": float(sys.argv[6]), "budget": 100}
with open(name + ".json", "w") as file:
    json.dump(config, file)
debugger = PrecisionDebugger(name + ".json")
losses = []
for step in range(num_steps):
    if step == fault_at:
        model[2].eps = 1e-2
    torch.manual_seed(step)
    debugger.start(model)
    loss = model(torch.randn(16, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item().hex())
    print(step, flush=True)
    time.sleep(0.2 if step != halts_at else 600)
with open(name + ".losses", "w") as file:
    json.dump(losses, file)
"""
FAULTY = "Functional.layer_norm.0.forward"


@pytest.fixture
def job(tmp_path):
    """Return a function that starts a training."""
    (tmp_path / "job.py").write_text(JOB)

    def start(name, leader="", fault_at=-1, num_steps=4, halts_at=-1, wait=60):
        command = [sys.executable, "job.py", name, leader, *map(str, (fault_at, num_steps, halts_at, wait))]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def watch(tmp_path):
    command = [Path(sys.executable).parent / "msprobe", "twin", "watch", "follower", "leader", "--wait", "300"]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_both_the_follower_and_the_command_name_the_call_while_the_leader_runs(job, tmp_path):
    watching = watch(tmp_path)
    leader, follower = job("leader", num_steps=3000), job("follower", "leader", fault_at=2)
    try:
        _, said = follower.communicate(timeout=300)
        told, _ = watching.communicate(timeout=300)
        assert leader.poll() is None, "the leader has ended before"
    finally:
        for process in (leader, watching):
            process.kill()
            process.communicate()
    assert follower.returncode == 0, said
    assert watching.returncode == 1, told
    assert f"step 2: twin: {FAULTY} disagrees with {tmp_path / 'leader'}: " in said
    assert f"step 2: {FAULTY} disagrees" in told
    (file,) = (tmp_path / "follower").glob("twin_*.jsonl")
    assert [json.loads(line)["verdict"] for line in file.read_text().splitlines()] == ["agree", "agree", "fault"]


@pytest.mark.slow
@pytest.mark.usefixtures("has_torch_imported")
def test_a_follower_outlives_its_leader_and_trains_as_it_does_alone(job, tmp_path):
    leader = job("leader", halts_at=1)
    assert leader.stdout.readline() == "0\n"
    assert leader.stdout.readline() == "1\n"
    os.kill(leader.pid, signal.SIGKILL)
    leader.communicate()
    follower = job("follower", "leader", wait=0.2)
    _, said = follower.communicate(timeout=300)
    assert follower.returncode == 0, said
    assert "Traceback" not in said
    assert said.count("is not there yet") == 1
    alone = job("alone")
    alone.communicate(timeout=300)
    assert alone.returncode == 0
    assert (tmp_path / "follower.losses").read_text() == (tmp_path / "alone.losses").read_text()
